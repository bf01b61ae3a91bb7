//! What the published definition says and refuses.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use kube::core::cel::{RootContext, Validator};
use serde_json::{Value, json};

const GOLDEN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/metricsstore-operator/crd-bases/metricsstore.yaml");

fn schema() -> Value {
    let crd = serde_json::to_value(metricsstore_crds::crd().unwrap()).unwrap();
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap().clone()
}

/// The messages of the rules that refuse a store of this name and spec, on top of `old` if there is one.
fn refusals(name: &str, spec: &str, old: Option<&str>) -> Vec<String> {
    let store = |spec: &str| {
        let spec: Value = serde_yaml_ng::from_str(spec).unwrap();
        json!({ "apiVersion": "metricsstore.dev/v1alpha1", "kind": "MetricsStore", "metadata": { "name": name }, "spec": spec })
    };
    let (new, old) = (store(spec), old.map(store));
    let root = RootContext {
        api_version: "metricsstore.dev/v1alpha1".into(),
        api_group: "metricsstore.dev".into(),
        kind: "MetricsStore".into(),
    };
    let outcome = Validator::new().validate_with_context(&schema(), &new, old.as_ref(), Some(&root));
    match outcome {
        Ok(()) => vec![],
        Err(errors) => errors.into_vec().into_iter().map(|error| error.message).collect(),
    }
}

const SMALLEST: &str = "{ resources: { limits: { memory: 1Gi } }, storage: { size: 50Gi } }";

fn with(field: &str) -> String {
    format!("{{ {field}, resources: {{ limits: {{ memory: 1Gi }} }}, storage: {{ size: 50Gi }} }}")
}

#[test]
fn the_checked_in_yaml_is_what_the_types_say() {
    let found = std::fs::read_to_string(GOLDEN).unwrap();
    assert!(found == metricsstore_crds::crd_yaml().unwrap(), "run `cargo xtask crds` and commit the result");
}

#[test]
fn the_definition_stays_small() {
    assert!(metricsstore_crds::crd_yaml().unwrap().len() < 100_000);
}

#[test]
fn good_stores_are_taken() {
    for spec in [
        SMALLEST.to_owned(),
        "{ resources: { limits: { memory: 128Mi, cpu: 1 }, requests: { cpu: 500m, memory: 0.1Gi } }, storage: { size: 1e9 } }".into(),
        with("memory: { budget: 90% }"),
        with("memory: { budget: 87.5% }"),
        with("memory: { budget: 100% }"),
        with("memory: { budget: 512Mi }"),
        with("memory: { budget: 536870912 }"),
        with("retention: { time: 1d12h }"),
        with("tsdb: { outOfOrderTimeWindow: 30m }"),
        with("tsdb: { outOfOrderTimeWindow: 0s }"),
        with("tsdb: { outOfOrderTimeWindow: '0' }"),
        with("replicas: 0"),
        with("image: registry.example/metricsstore:0.1.0"),
        with("scrape: { interval: 15s, configs: [{ secret: { name: a, key: b } }, { configMap: { name: a, key: b } }] }"),
    ] {
        assert_eq!(refusals("main", &spec, None), Vec::<String>::new(), "{spec}");
    }
}

#[test]
fn a_refusal_says_the_line_to_write() {
    let memory = |memory: &str| {
        format!("{{ resources: {{ limits: {{ memory: {memory} }} }}, storage: {{ size: 1Gi }} }}")
    };
    for (spec, cure) in [
        ("{ storage: { size: 1Gi } }".to_owned(), "resources: { limits: { memory: 1Gi } }"),
        ("{ resources: { limits: { cpu: 1 } }, storage: { size: 1Gi } }".into(), "resources: { limits: { memory: 1Gi } }"),
        ("{ resources: { limits: { memory: 1Gi } } }".into(), "storage: { size: 50Gi }"),
        (memory("127Mi"), "at least 128Mi"),
        (memory("lots"), "at least 128Mi"),
        ("{ resources: { limits: { memory: 1Gi } }, storage: { size: 0 } }".into(), "write for example 50Gi"),
        (
            "{ resources: { limits: { memory: 1Gi }, requests: { memory: 1025Mi } }, storage: { size: 1Gi } }".into(),
            "requests.memory is above limits.memory",
        ),
        (
            "{ resources: { limits: { memory: 1Gi, cpu: 1500m }, requests: { cpu: 2 } }, storage: { size: 1Gi } }".into(),
            "requests.cpu is above limits.cpu",
        ),
        (with("replicas: 10"), "0 (hibernated, claims kept) to 9"),
        (with("replicas: -1"), "0 (hibernated, claims kept) to 9"),
        (with("cpu: { threads: 0 }"), "1 to 256"),
        (with("memory: { budget: 0% }"), "90% or 512Mi"),
        (with("memory: { budget: 101% }"), "90% or 512Mi"),
        (with("memory: { budget: most }"), "90% or 512Mi"),
        // The sign of the share was forgotten: not ninety bytes.
        (with("memory: { budget: 90 }"), "90% or 512Mi"),
        (memory("1Ei"), "below 1Ei"),
        (with("scrape: { configs: [{ secret: { name: ../../other/secrets/a, key: b } }] }"), "for example my-targets"),
        (with("scrape: { configs: [{ configMap: { name: a?x=y, key: b } }] }"), "for example my-targets"),
        (with("scrape: { configs: [{ secret: { name: a, key: ../b } }] }"), "for example scrape.yaml"),
        (with("imagePullSecrets: [{ name: A_b }]"), "for example regcred"),
        (with("retention: { time: 15 }").replace("15", "'15'"), "15d"),
        (with("retention: { time: 0d }"), "15d"),
        (with("tsdb: { outOfOrderTimeWindow: soon }"), "30m"),
        (with("scrape: { interval: 1.5s }"), "15s or 1m"),
        (with("scrape: { timeout: soon }"), "10s"),
        (with("scrape: { configs: [{}] }"), "secret: {"),
        (with("scrape: { configs: [{ secret: { name: a, key: b }, configMap: { name: a, key: b } }] }"), "secret: {"),
        (with("image: 'a b'"), "must not contain blanks"),
    ] {
        let refusals = refusals("main", &spec, None);
        assert!(refusals.iter().any(|message| message.contains(cure)), "{spec}: {refusals:?}");
    }
}

#[test]
fn names_that_cannot_be_services_are_refused() {
    let longest = format!("a{}", "b".repeat(39));
    for name in ["main", "a", "a-1", &longest] {
        assert!(refusals(name, SMALLEST, None).is_empty(), "{name}");
    }
    let longer = format!("a{}", "b".repeat(40));
    for name in ["1a", "a.b", "a-", "-a", "A", &longer] {
        assert!(refusals(name, SMALLEST, None)[0].contains("1 to 40 lower-case letters"), "{name}");
    }
}

#[test]
fn the_storage_class_cannot_be_changed_added_or_removed() {
    let class = |class: &str| {
        format!("{{ resources: {{ limits: {{ memory: 1Gi }} }}, storage: {{ size: 1Gi{class} }} }}")
    };
    let (none, fast, slow) =
        (class(""), class(", storageClassName: fast"), class(", storageClassName: slow"));
    for (old, new) in [(&none, &fast), (&fast, &none), (&fast, &slow)] {
        assert!(
            refusals("main", new, Some(old))[0].contains("cannot change after creation"),
            "{old} -> {new}"
        );
    }
    assert!(refusals("main", &fast, Some(&fast)).is_empty());
}

#[test]
fn a_smaller_volume_is_no_error_because_git_may_legally_revert_it() {
    let size =
        |size: &str| format!("{{ resources: {{ limits: {{ memory: 1Gi }} }}, storage: {{ size: {size} }} }}");
    assert!(refusals("main", &size("1Gi"), Some(&size("50Gi"))).is_empty());
}

#[test]
fn only_status_has_a_default_nothing_is_nullable_and_everything_is_bounded() {
    fn walk(at: &str, node: &Value) {
        let Some(map) = node.as_object() else { return };
        assert!(!map.contains_key("nullable"), "{at}");
        assert_eq!(map.contains_key("default"), at == "/status", "{at}");
        let has = |key: &str| map.contains_key(key);
        match map.get("type").and_then(Value::as_str) {
            Some("string") => assert!(has("maxLength") || has("enum") || has("format"), "{at}"),
            Some("array") => assert!(has("maxItems"), "{at}"),
            Some("object") if has("additionalProperties") => assert!(has("maxProperties"), "{at}"),
            _ => {}
        }
        if let Some(Value::Object(properties)) = map.get("properties") {
            properties.iter().for_each(|(name, below)| walk(&format!("{at}/{name}"), below));
        }
        for below in ["items", "additionalProperties"] {
            map.get(below).into_iter().for_each(|node| walk(&format!("{at}/{below}"), node));
        }
    }
    walk("", &schema());
    assert_eq!(schema().pointer("/properties/status/default"), Some(&json!({ "observedGeneration": -1 })));
}
