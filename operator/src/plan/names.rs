//! Names, labels and paths that several children share.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use metricsstore_crds::MetricsStore;

use crate::reconcile::Valid;

/// Who applies; the owner of every field that we set.
pub const FIELD_MANAGER: &str = "metricsstore-operator";
/// Selects a store's pods and claims; the only label that a claim carries.
pub const STORE_LABEL: &str = "metricsstore.dev/store";
/// Hash of our rendered pod template without resources: a pod that carries another one is rolled.
pub const PLAN_HASH: &str = "metricsstore.dev/plan-hash";
/// The container resources that a pod was rendered with, by value.
pub const RESOURCES: &str = "metricsstore.dev/resources";
/// Hash of what is mounted into a pod; patched on running pods, which makes the kubelet look at the volumes at once.
pub const CONFIG_HASH: &str = "metricsstore.dev/config-hash";
/// Hash of a child as it was applied: finds fields that we once set and no longer do.
pub const APPLIED: &str = "metricsstore.dev/applied";

/// Prometheus' API, the only port of the client Service.
pub const WEB_PORT: u16 = 9090;
/// Administration and probes.
pub const OPS_PORT: u16 = 9091;
/// Where a pod finds the rendered scrape configuration.
pub const SCRAPE_DIR: &str = "/etc/metricsstore/scrape";
/// Where a pod finds `engine.yaml`.
pub const RUNTIME_DIR: &str = "/etc/metricsstore/runtime";
/// Where a pod finds the token of its operations listener.
pub const OPS_DIR: &str = "/etc/metricsstore/ops";
/// The main scrape configuration file.
pub const SCRAPE_FILE: &str = "prometheus.yaml";
/// The file that changes without a restart.
pub const ENGINE_FILE: &str = "engine.yaml";
/// The key of the operations token.
pub const TOKEN_KEY: &str = "token";
/// The engine's container.
pub const CONTAINER: &str = "metricsstore";
/// The data volume; claims are named `data-<pod>`.
pub const DATA: &str = "data";

/// The headless Service under which pods have names.
pub fn pods_service(store: &str) -> String {
    format!("{store}-pods")
}

/// The Secret of the operations token.
pub fn ops_secret(store: &str) -> String {
    format!("{store}-ops")
}

/// The Secret of the rendered scrape configuration.
pub fn scrape_secret(store: &str) -> String {
    format!("{store}-scrape")
}

/// A remote write URL per replica.
pub fn write_addresses(store: &str, namespace: &str, replicas: i32) -> Vec<String> {
    let service = pods_service(store);
    (0..replicas)
        .map(|ordinal| format!("http://{store}-{ordinal}.{service}.{namespace}.svc:{WEB_PORT}/api/v1/write"))
        .collect()
}

/// What selects a store's pods.
pub fn selector(store: &str) -> BTreeMap<String, String> {
    [(STORE_LABEL.to_owned(), store.to_owned())].into()
}

/// The labels of everything but claims.
pub fn labels(store: &str) -> BTreeMap<String, String> {
    let mut labels = selector(store);
    for (key, value) in [
        ("app.kubernetes.io/name", "metricsstore"),
        ("app.kubernetes.io/instance", store),
        ("app.kubernetes.io/component", "engine"),
        ("app.kubernetes.io/managed-by", FIELD_MANAGER),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    labels
}

/// Metadata of a child: labels and the store as its controller.
pub fn child(valid: &Valid, name: String) -> ObjectMeta {
    let owner = OwnerReference {
        api_version: MetricsStore::api_version(&()).into_owned(),
        kind: MetricsStore::kind(&()).into_owned(),
        name: valid.name.clone(),
        uid: valid.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    ObjectMeta {
        name: Some(name),
        namespace: Some(valid.namespace.clone()),
        labels: Some(labels(&valid.name)),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    }
}
