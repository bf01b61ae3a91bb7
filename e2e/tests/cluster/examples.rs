//! The chart's examples, as a user applies them.
use metricsstore_e2e::kubectl::{Kubectl, condition_status};
use metricsstore_e2e::places;

use super::support::{PATIENCE, observed};

#[test]
fn every_example_goes_to_ready_and_its_row_tells_budget_series_and_disk() {
    let kubectl = Kubectl::inside();
    let namespace = "examples";
    kubectl.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}")).unwrap();
    let folder = places::in_workspace("charts/metricsstore-operator/examples");
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path().display().to_string();
        kubectl.text(&["--namespace", namespace, "apply", "--filename", &file]).unwrap();
    }
    let stores = kubectl.json(&["get", "metricsstores", "--namespace", namespace]).unwrap();
    let stores = stores["items"].as_array().unwrap();
    assert!(!stores.is_empty());
    for store in stores {
        let name = store["metadata"]["name"].as_str().unwrap();
        let what = format!("example {name} to be Ready with its figures");
        let get = ["metricsstore", name, "--namespace", namespace];
        kubectl
            .wait_for(&get, &what, PATIENCE, |store| {
                let summary = &store["status"]["summary"];
                observed(store)
                    && condition_status(store, "Ready") == Some("True")
                    && ["budget", "series", "disk", "version"]
                        .iter()
                        .all(|column| summary[*column].is_string())
            })
            .unwrap();
    }
    let table = kubectl.text(&["get", "mstore", "--namespace", namespace]).unwrap();
    let header = table.lines().next().unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(
        header,
        ["NAME", "READY", "REASON", "REPLICAS", "VERSION", "BUDGET", "SERIES", "DISK", "AGE"],
        "{table}"
    );
    kubectl.text(&["delete", "namespace", namespace, "--wait=false"]).unwrap();
}
