//! `MetricsStore`: what is wanted.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Amount, MetricsStoreStatus};

/// A Prometheus-compatible time series store. Every replica is a complete, independent copy. The smallest store says
/// `resources.limits.memory` and `storage.size`; everything else has a default, and what is in force is shown in `status`.
#[derive(CustomResource, KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "metricsstore.dev",
    version = "v1alpha1",
    kind = "MetricsStore",
    plural = "metricsstores",
    shortname = "mstore",
    namespaced,
    status = "MetricsStoreStatus",
    derive = "PartialEq",
    doc = "A Prometheus-compatible time series store, run by the metricsstore operator.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Replicas", type_ = "string", json_path = ".status.summary.replicas"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.summary.version"),
    printcolumn(name = "Budget", type_ = "string", json_path = ".status.summary.budget"),
    printcolumn(name = "Series", type_ = "string", json_path = ".status.summary.series"),
    printcolumn(name = "Disk", type_ = "string", json_path = ".status.summary.disk"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')").message(
        "metadata.name becomes the name of Services and pods: use 1 to 40 lower-case letters, digits and '-', starting with a letter and ending with a letter or digit, for example: main"
    )
)]
#[x_kube(validation = Rule::new("has(self.resources) && has(self.resources.limits) && has(self.resources.limits.memory)").message(
    "the memory budget is worked out from the limit: add spec.resources.limits.memory, for example resources: { limits: { memory: 1Gi } }"
))]
#[x_kube(validation = Rule::new("has(self.storage) && has(self.storage.size)").message(
    "a store needs a volume: add spec.storage.size, for example storage: { size: 50Gi }"
))]
#[serde(rename_all = "camelCase")]
pub struct MetricsStoreSpec {
    /// The image of the engine. Absent: the operator's own, so that both always fit.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = Rule::new("self.matches('^[^ \\\\t\\\\n]+$')").message(
        "spec.image must not contain blanks: write it as registry.example/metricsstore:0.1.0"
    ))]
    pub image: Option<String>,

    /// Secrets to pull the image with.
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Option<Vec<LocalRef>>,

    /// How many complete, independent copies run: 0 to 9, default 1. 0 hibernates the store and keeps its claims.
    #[x_kube(validation = Rule::new("self >= 0 && self <= 9").message(
        "spec.replicas are complete copies: write 0 (hibernated, claims kept) to 9"
    ))]
    pub replicas: Option<i32>,

    /// Requests and limits of the engine's container.
    pub resources: Option<Resources>,

    /// How much of its memory limit the engine plans with.
    pub memory: Option<Memory>,

    /// How many threads the engine runs.
    pub cpu: Option<Cpu>,

    /// What is kept, and for how long.
    pub retention: Option<Retention>,

    /// The volume of each replica.
    pub storage: Option<Storage>,

    /// The time series database.
    pub tsdb: Option<Tsdb>,

    /// What is scraped, and how often.
    pub scrape: Option<Scrape>,

    /// Remote write.
    pub remote_write: Option<RemoteWrite>,

    /// Where pods may run.
    pub scheduling: Option<Scheduling>,

    /// The operator changes nothing while this is true; pods keep running and status is kept up.
    pub paused: Option<bool>,
}

/// An object in the store's namespace.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message(
        "name is not the name of an object: write small letters, digits, '-' and '.', for example regcred"
    ))]
    pub name: String,
}

/// Requests and limits of the engine's container.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new(
    "!has(self.requests) || !has(self.requests.memory) || !has(self.limits) || !has(self.limits.memory) || !isQuantity(string(self.requests.memory)) || !isQuantity(string(self.limits.memory)) || !quantity(string(self.requests.memory)).isGreaterThan(quantity(string(self.limits.memory)))"
).message("spec.resources.requests.memory is above limits.memory: lower the request or raise the limit"))]
#[x_kube(validation = Rule::new(
    "!has(self.requests) || !has(self.requests.cpu) || !has(self.limits) || !has(self.limits.cpu) || !isQuantity(string(self.requests.cpu)) || !isQuantity(string(self.limits.cpu)) || !quantity(string(self.requests.cpu)).isGreaterThan(quantity(string(self.limits.cpu)))"
).message("spec.resources.requests.cpu is above limits.cpu: lower the request or raise the limit"))]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What a node must have free. Absent: the limits.
    pub requests: Option<Requests>,
    /// What the container may use. `memory` is required.
    pub limits: Option<Limits>,
}

/// What a node must have free.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Requests {
    /// Processors, such as 500m or 2.
    #[x_kube(validation = Rule::new("isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('0'))").message(
        "spec.resources.requests.cpu is not a quantity of 0 or more: write for example 500m or 2"
    ))]
    pub cpu: Option<Amount>,
    /// Bytes, such as 1Gi.
    #[x_kube(validation = Rule::new("isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('0'))").message(
        "spec.resources.requests.memory is not a quantity of 0 or more: write for example 1Gi"
    ))]
    pub memory: Option<Amount>,
}

/// What the container may use.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Processors, such as 1500m or 2. Rounded up it is the engine's number of threads.
    #[x_kube(validation = Rule::new("isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))").message(
        "spec.resources.limits.cpu is not a quantity above 0: write for example 1500m or 2, or leave it out"
    ))]
    pub cpu: Option<Amount>,
    /// Bytes, at least 128Mi. The engine's memory budget is worked out from it.
    #[x_kube(validation = Rule::new("isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('128Mi')) >= 0 && quantity(string(self)).isLessThan(quantity('1Ei'))").message(
        "spec.resources.limits.memory must be a quantity of at least 128Mi, and below 1Ei: write for example memory: 1Gi"
    ))]
    pub memory: Option<Amount>,
}

/// How much of its memory limit the engine plans with.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// A share of the limit (`90%`, the default) or a quantity (`512Mi`). 32Mi below the limit always stay free.
    #[x_kube(validation = Rule::new(
        "string(self).endsWith('%') ? string(self).matches('^(100(\\\\.0{1,2})?|[1-9][0-9]?(\\\\.[0-9]{1,2})?)%$') : isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('32Mi')) >= 0"
    ).message("spec.memory.budget is a share of the limit from 1% to 100% or a quantity of at least 32Mi: write for example 90% or 512Mi"))]
    pub budget: Option<Amount>,
}

/// How many threads the engine runs.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cpu {
    /// 1 to 256. Absent: limits.cpu rounded up; without a limit max(4, 2 × request), or what the node has if that is less.
    #[x_kube(validation = Rule::new("self >= 1 && self <= 256").message("spec.cpu.threads must be 1 to 256"))]
    pub threads: Option<i32>,
}

/// What is kept, and for how long.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// Samples older than this are deleted; a duration as Prometheus writes it, default 15d.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = Rule::new(
        "self.matches('[1-9]') && self.matches('^([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$')"
    ).message("spec.retention.time is not a duration: write for example 15d, 2w or 1d12h"))]
    pub time: Option<String>,
    /// What everything on the volume may take before the oldest blocks are deleted: a share of the claim's capacity (`80%`,
    /// the default) or a quantity (`40Gi`).
    #[x_kube(validation = Rule::new(
        "string(self).endsWith('%') ? string(self).matches('^(100(\\\\.0{1,2})?|[1-9][0-9]?(\\\\.[0-9]{1,2})?)%$') : isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))"
    ).message("spec.retention.size is a share of the volume from 1% to 100% or a quantity: write for example 80% or 40Gi"))]
    pub size: Option<Amount>,
}

/// The volume of each replica.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new(
    "has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)"
).message(
    "spec.storage.storageClassName cannot change after creation: set it back, or create a new store with the other class"
))]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// The size of the volume, such as 50Gi. A size below an existing claim is accepted but not applied.
    #[x_kube(validation = Rule::new("isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))").message(
        "spec.storage.size is not a quantity above 0: write for example 50Gi"
    ))]
    pub size: Option<Amount>,
    /// The storage class. Absent: the cluster's default class. Cannot change after creation.
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
}

/// The time series database.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tsdb {
    /// How far behind the newest sample late ones are accepted; a duration as Prometheus writes it, default 0s: none.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = Rule::new(
        "self == '0' || (self.matches('[0-9]') && self.matches('^([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$'))"
    ).message("spec.tsdb.outOfOrderTimeWindow is not a duration: write for example 30m, or 0s for none"))]
    pub out_of_order_time_window: Option<String>,
    /// Format of the blocks that are written, Native unless set; those of the other one are read all the same. A change
    /// rolls the pods.
    pub block_format: Option<BlockFormat>,
}

/// Which bytes blocks are made of.
#[derive(JsonSchema, Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockFormat {
    /// A fraction of the size.
    #[default]
    Native,
    /// As Prometheus writes them: for Thanos and promtool.
    Prometheus,
}

/// What is scraped, and how often. Every replica scrapes everything.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scrape {
    /// How often, where a configuration does not say; default 15s.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = Rule::new(
        "self.matches('[1-9]') && self.matches('^([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$')"
    ).message("spec.scrape.interval is not a duration: write for example 15s or 1m"))]
    pub interval: Option<String>,
    /// After how long a scrape is given up, where a configuration does not say; default 10s, or the interval if that is
    /// shorter.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = Rule::new(
        "self.matches('[1-9]') && self.matches('^([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$')"
    ).message("spec.scrape.timeout is not a duration: write for example 10s"))]
    pub timeout: Option<String>,
    /// Where the scrape configurations are.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub configs: Option<Vec<ScrapeConfig>>,
}

/// A key of a Secret or a ConfigMap that holds a Prometheus `scrape_configs` section, or its list alone.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("has(self.secret) != has(self.configMap)").message(
    "each of spec.scrape.configs names one object: write either secret: { name: …, key: … } or configMap: { name: …, key: … }"
))]
#[serde(rename_all = "camelCase")]
pub struct ScrapeConfig {
    /// A Secret in the store's namespace.
    pub secret: Option<KeyRef>,
    /// A ConfigMap in the store's namespace.
    pub config_map: Option<KeyRef>,
}

/// A key of an object in the store's namespace.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// The object's name.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message(
        "name is not the name of an object: write small letters, digits, '-' and '.', for example my-targets"
    ))]
    pub name: String,
    /// The key of its data.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[-._a-zA-Z0-9]+$')").message(
        "key is not a key of a Secret or a ConfigMap: write letters, digits, '-', '_' and '.', for example scrape.yaml"
    ))]
    pub key: String,
}

/// Remote write.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteWrite {
    /// Whether the store takes remote write; default Enabled. A sender lists every URL in `status.endpoints.write`.
    pub receiver: Option<Receiver>,
}

/// Whether the store takes remote write.
#[derive(JsonSchema, Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Receiver {
    /// Taken.
    #[default]
    Enabled,
    /// Refused.
    Disabled,
}

/// Where pods may run; as in a pod.
#[derive(KubeSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Labels that a node must have.
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Affinity of pods to nodes and to other pods.
    pub affinity: Option<Affinity>,
    /// Taints that pods put up with.
    pub tolerations: Option<Vec<Toleration>>,
    /// How pods spread. Absent: over nodes, where that is possible.
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// The pods' priority class.
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,
}
