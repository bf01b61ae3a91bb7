//! `MetricsStore`: what is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is. `observedGeneration` is −1 until the operator has seen the store.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricsStoreStatus {
    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready, Available, Reconciling, Stalled, Degraded; others only while they are true.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Pods that exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Pods that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Pods that are as the spec wants them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// The label selector of the pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The image that the spec comes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Where to read and where to write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Endpoints>,
    /// What is in force, as the engines report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective: Option<Effective>,
    /// The same in a few characters, for `kubectl get`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// A sample of the load, two significant digits, taken apart from reconciling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// Where to read and where to write.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoints {
    /// The base URL for queries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// One remote write URL per replica; a sender lists all of them. Absent while the receiver is disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<Vec<String>>,
}

/// What is in force, as the engines report it.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Effective {
    /// The memory budget in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_budget_bytes: Option<i64>,
    /// The number of threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_threads: Option<i32>,
    /// What is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<EffectiveRetention>,
    /// The size of the claims: never below an existing one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
}

/// What is kept.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveRetention {
    /// How long samples are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// What everything on a volume may take, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
}

/// The status in a few characters.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Ready of wanted, such as 2/2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<String>,
    /// The engine's version; two while they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The memory budget of each replica, such as 1843Mi.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// Live series of the fullest replica, such as 1.2M.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
    /// How full the fullest volume is, such as 31%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
}

/// A sample of the load of the busiest replica, two significant digits.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Live series.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<i64>,
    /// Samples acknowledged per second since the look before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<i64>,
    /// Memory that counts against the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
    /// Everything in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<i64>,
}
