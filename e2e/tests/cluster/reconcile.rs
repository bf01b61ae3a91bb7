//! The operator writes when something is to change, and only then.
use std::time::Duration;

use metricsstore_e2e::audit::{Mark, Request};
use metricsstore_e2e::kubectl::Kubectl;
use metricsstore_e2e::release;
use metricsstore_e2e::wait::{self, Look};
use serde_json::json;

use super::support::{LOOK, PATIENCE, Store, small};

#[test]
fn a_second_reconcile_sends_no_write_request() {
    let store = quiet_store("reconcile-second");
    let mark = Mark::now().unwrap();
    reconcile_again(&store);
    assert_no_writes(&mark, &store);
}

#[test]
fn the_same_quantities_in_other_words_change_nothing() {
    let mut spec = small();
    spec["resources"] =
        json!({"requests": {"cpu": "0.1", "memory": "128Mi"}, "limits": {"memory": "1Gi", "cpu": "0.5"}});
    let store = Store::ready("reconcile-words", &spec);
    wait_usage(&store);
    let before = store.incarnation();
    let mark = Mark::now().unwrap();
    spec["resources"] = json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1024Mi", "cpu": "500m"}});
    store.apply(&spec);
    store.wait_ready();
    assert_eq!(store.incarnation(), before);
    // The new generation is noted in status; no child is touched.
    let writes = writes(&mark, &store);
    let touched: Vec<&Request> =
        writes.iter().filter(|write| !write.uri.contains("/metricsstores/")).collect();
    assert!(touched.is_empty(), "{touched:?}");
}

#[test]
fn drift_on_a_child_is_repaired() {
    let store = Store::ready("reconcile-drift", &small());
    let before = store.incarnation();
    let mark = Mark::now().unwrap();
    let port = json!({"spec": {"ports": [{"name": "web", "port": 1234, "targetPort": 1234}]}});
    store.kubectl.patch(&store.namespace, "service/main", &port).unwrap();
    store.wait_for("service", "main", "the port as it was", |service| {
        let ports = service["spec"]["ports"].as_array();
        ports.is_some_and(|ports| ports.iter().any(|port| port["port"] == 9090))
    });
    let name = config_map(&store);
    store.text(&["delete", "configmap", &name]);
    store.wait_for("configmap", &name, "the ConfigMap again", |_| true);
    store.wait_ready();
    assert_eq!(store.incarnation(), before);
    // Where writes are expected they are found: none elsewhere means that none were sent.
    assert!(!writes(&mark, &store).is_empty(), "the repair is not in the audit log");
}

#[test]
fn fields_and_annotations_of_others_are_left_alone() {
    let store = quiet_store("reconcile-others");
    store.text(&["annotate", "service/main", "example.org/owner=somebody"]);
    let mark = Mark::now().unwrap();
    reconcile_again(&store);
    let service = store.get("service", "main");
    assert_eq!(service["metadata"]["annotations"]["example.org/owner"], "somebody");
    assert_no_writes(&mark, &store);
}

/// The one that holds `engine.yaml`.
fn config_map(store: &Store) -> String {
    let all = store.kubectl.json(&["get", "configmaps", "--namespace", &store.namespace]).unwrap();
    let all = all["items"].as_array().unwrap();
    let ours = all.iter().find(|map| map["data"]["engine.yaml"].is_string());
    ours.unwrap()["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Ready, and its first usage sample taken: the next one comes minutes later.
fn quiet_store(namespace: &str) -> Store {
    let store = Store::ready(namespace, &small());
    wait_usage(&store);
    store
}

fn wait_usage(store: &Store) {
    store.wait_for("metricsstore", "main", "the first sample of usage", |store| {
        store["status"]["usage"]["series"].is_number()
    });
}

/// Touches the store's annotations, which changes nothing that is wanted, and waits until the operator has reconciled.
fn reconcile_again(store: &Store) {
    let before = reconciles();
    store.text(&["annotate", "metricsstore/main", "example.org/touched=now"]);
    // The touched store and, while other tests run, others: several rounds make it certain.
    wait::until("the next reconciles", PATIENCE, LOOK, || {
        let now = reconciles();
        Ok(if now >= before + 1.0 { Look::Done(()) } else { Look::NotYet(format!("{now} reconciles")) })
    })
    .unwrap();
    // What a reconcile sends is sent within moments; the audit log shows it when it is answered.
    std::thread::sleep(Duration::from_secs(3));
}

/// Reconciles that the operator has finished, from its own metrics.
fn reconciles() -> f64 {
    let kubectl = Kubectl::inside();
    let pods = kubectl.json(&["get", "pods", "--namespace", release::NAMESPACE]).unwrap();
    let pod = pods["items"][0]["metadata"]["name"].as_str().unwrap();
    let path = format!("/api/v1/namespaces/{}/pods/{pod}:8080/proxy/metrics", release::NAMESPACE);
    let text = kubectl.raw(&path).unwrap();
    text.lines()
        .filter(|line| line.starts_with("metricsstore_operator_reconciles_total"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

fn writes(mark: &Mark, store: &Store) -> Vec<Request> {
    let inside = format!("/namespaces/{}/", store.namespace);
    let all = mark.writes_by(release::USER).unwrap();
    all.into_iter().filter(|request| request.uri.contains(&inside)).collect()
}

fn assert_no_writes(mark: &Mark, store: &Store) {
    let writes = writes(mark, store);
    assert!(writes.is_empty(), "{writes:?}");
}
