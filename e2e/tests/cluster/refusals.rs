//! Bad specs are refused with the cure, and never touch running pods.
use metricsstore_e2e::kubectl::Kubectl;
use serde_json::{Value, json};

use super::support::{Store, manifest, small};

#[test]
fn the_schema_refuses_with_the_line_to_add() {
    let refused = |spec: Value, cure: &str| {
        let text = Kubectl::inside().apply_refused(&manifest("default", &spec)).unwrap();
        assert!(text.contains(cure), "wanted {cure:?} in: {text}");
    };
    refused(json!({"storage": {"size": "1Gi"}}), "add spec.resources.limits.memory");
    refused(json!({"resources": {"limits": {"memory": "1Gi"}}}), "add spec.storage.size");
    refused(
        json!({"resources": {"limits": {"memory": "64Mi"}}, "storage": {"size": "1Gi"}}),
        "must be a quantity of at least 128Mi",
    );
    let with = |more: Value| {
        let mut spec = small();
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        spec
    };
    refused(with(json!({"memory": {"budget": "0%"}})), "write for example 90% or 512Mi");
    refused(with(json!({"retention": {"time": "soon"}})), "write for example 15d");
    refused(with(json!({"replicas": 12})), "write 0 (hibernated, claims kept) to 9");
}

#[test]
fn a_spec_that_cannot_be_served_stalls_with_the_cure_while_pods_run_on() {
    let store = Store::ready("refusals-stalled", &small());
    let before = store.incarnation();
    // A class that no node can serve is for the schema; a scrape configuration that does not exist is for run time.
    store.patch(&json!({"scrape": {"configs": [{"configMap": {"name": "no-such", "key": "scrape.yaml"}}]}}));
    let message = store.wait_condition("Stalled", "True");
    assert!(message.contains("no-such"), "{message}");
    assert_eq!(store.incarnation(), before);
    assert_eq!(store.pod()["status"]["containerStatuses"][0]["ready"], true);
    store.patch(&json!({"scrape": null}));
    store.wait_ready();
    assert_eq!(store.incarnation(), before);
}

#[test]
fn a_smaller_volume_is_frozen_and_everything_else_still_applies() {
    let store = Store::ready("refusals-shrink", &small());
    let before = store.incarnation();
    store.patch(&json!({"storage": {"size": "128Mi"}, "retention": {"time": "3d"}}));
    let message = store.wait_condition("Ready", "False");
    assert!(message.contains("shrink"), "{message}");
    let deadline = std::time::Duration::from_mins(2);
    store.wait_runtime_info("the new retention", deadline, |info| {
        info["storageRetention"].as_str().is_some_and(|text| text.starts_with("3d"))
    });
    assert_eq!(store.incarnation(), before);
}
