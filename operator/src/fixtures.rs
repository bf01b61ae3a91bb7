//! Stores and what is observed around them, for tests.
#![allow(clippy::missing_panics_doc)]

use metricsstore_crds::MetricsStore;
use serde_json::{Value, json};

use crate::plan::{self, Plan};
use crate::reconcile::{Existing, Seen, Valid, validate};

/// What the operator runs in tests.
pub const IMAGE: &str = "registry.example/metricsstore:0.1.0";

/// The store `main` with these fields of a spec; the volume is 50Gi unless said.
pub fn store(fields: &str) -> MetricsStore {
    let mut spec: Value = serde_yaml_ng::from_str(&format!("{{ {fields} }}")).unwrap();
    if spec.get("storage").is_none() {
        spec["storage"] = json!({ "size": "50Gi" });
    }
    serde_json::from_value(json!({
        "apiVersion": "metricsstore.dev/v1alpha1",
        "kind": "MetricsStore",
        "metadata": { "name": "main", "namespace": "monitoring", "uid": "store-uid", "generation": 1 },
        "spec": spec,
        "status": { "observedGeneration": -1 }
    }))
    .unwrap()
}

/// The same, validated.
pub fn valid(fields: &str) -> Valid {
    validate(&store(fields), IMAGE).unwrap()
}

/// A store of which nothing exists yet.
pub fn seen(fields: &str) -> Seen {
    Seen {
        store: store(fields),
        existing: Existing::default(),
        pods: vec![],
        claims: vec![],
        pieces: vec![],
        engines: [].into(),
    }
}

/// The plan of a fresh store.
pub fn plan(fields: &str) -> Plan {
    plan::plan(&valid(fields), &seen(fields), "token").unwrap()
}
