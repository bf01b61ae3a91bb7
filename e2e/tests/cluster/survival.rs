//! What was acknowledged stays, whatever is killed, deleted or replaced.
use std::process::Command;

use serde_json::json;

use super::ledger::Ledger;
use super::support::{Store, observed, small};

#[test]
fn deleting_the_pod_and_killing_the_engine_lose_no_acknowledged_sample() {
    let store = Store::ready("survival-kill", &small());
    let ledger = Ledger::start(&store);
    ledger.wait_acknowledged(50);

    let (uid, _) = store.incarnation();
    store.text(&["delete", "pod", "main-0", "--wait=false"]);
    store.wait_for("pod", "main-0", "another pod", |pod| {
        pod["metadata"]["uid"] != uid.as_str() && pod["status"]["containerStatuses"][0]["ready"] == true
    });
    ledger.wait_acknowledged(50);

    kill_engine(&store);
    store.wait_for("pod", "main-0", "a restarted engine", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["restartCount"] == 1 && status["ready"] == true
    });
    ledger.wait_acknowledged(50);
    ledger.settle(&store);
}

#[test]
fn a_deleted_store_keeps_its_claim_and_a_new_one_of_that_name_finds_the_data() {
    let store = Store::ready("survival-claim", &small());
    let ledger = Ledger::start(&store);
    ledger.wait_acknowledged(20);
    store.text(&["delete", "metricsstore", "main", "--timeout=60s"]);
    let claim = store.wait_for("persistentvolumeclaim", "data-main-0", "the claim", |_| true);
    store
        .kubectl
        .text(&["--namespace", &store.namespace, "wait", "--for=delete", "pod/main-0", "--timeout=120s"])
        .unwrap();
    store.apply(&small());
    store.wait_ready();
    let after = store.get("persistentvolumeclaim", "data-main-0");
    assert_eq!(claim["metadata"]["uid"], after["metadata"]["uid"]);
    ledger.wait_acknowledged(20);
    ledger.settle(&store);
}

#[test]
fn a_bad_image_then_a_good_one_heals() {
    let store = Store::ready("survival-image", &small());
    let image = store.pod()["spec"]["containers"][0]["image"].as_str().unwrap().to_owned();
    store.patch(&json!({"image": "metricsstore.local/metricsstore:no-such"}));
    store.wait_for("metricsstore", "main", "the store not to be Ready", |store| {
        observed(store) && metricsstore_e2e::kubectl::condition_status(store, "Ready") == Some("False")
    });
    store.wait_for("pod", "main-0", "the bad image on the pod", |pod| {
        pod["spec"]["containers"][0]["image"] == "metricsstore.local/metricsstore:no-such"
            && pod["status"]["containerStatuses"][0]["state"]["waiting"].is_object()
    });
    store.patch(&json!({"image": image}));
    store.wait_ready();
    assert_eq!(store.pod()["status"]["containerStatuses"][0]["ready"], true);
}

/// `kill -9` by its id on this side of the process namespaces.
fn kill_engine(store: &Store) {
    let pod = store.pod();
    let group = metricsstore_e2e::cluster::cgroup::of_container(&pod, "metricsstore", "memory").unwrap();
    let processes = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
    let pid = processes.lines().next().unwrap();
    assert!(Command::new("kill").args(["-KILL", pid]).status().unwrap().success());
}
