//! The API that users write. Types become the CRD's YAML; what is valid is said here, in CEL whose messages name the cure.
//!
//! Absent means default and defaults live in code: a default in the schema that a manifest does not mention looks like
//! drift to tools that compare with Git. The one exception is `status`, which is born with `observedGeneration: -1`, so that nobody takes
//! a store for settled before the operator has seen it.
#![forbid(unsafe_code)]

mod amount;
mod schema;
mod spec;
mod status;

pub use amount::Amount;
pub use schema::{crd, crd_yaml};
pub use spec::{
    BlockFormat, Cpu, KeyRef, Limits, LocalRef, Memory, MetricsStore, MetricsStoreSpec, Receiver,
    RemoteWrite, Requests, Resources, Retention, Scheduling, Scrape, ScrapeConfig, Storage, Tsdb,
};
pub use status::{Effective, EffectiveRetention, Endpoints, MetricsStoreStatus, Summary, Usage};

/// The API group, also the prefix of our labels and annotations.
pub const GROUP: &str = "metricsstore.dev";
