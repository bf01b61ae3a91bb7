//! What the operator and the engine say to each other, and nothing else: quantities, durations, the sizing rule,
//! `engine.yaml` and the runtime info. It needs no I/O and no Kubernetes, so that both sides work out the same numbers
//! from the same code.
#![forbid(unsafe_code)]

pub mod duration;
pub mod engine_config;
pub mod hash;
pub mod host;
pub mod quantity;
pub mod retention;
pub mod runtime_info;
pub mod sizing;

pub use duration::{DurationError, PromDuration};
pub use engine_config::{Budget, EngineConfig, RemoteWrite, Retention, SCHEMA, Threads};
pub use hash::content_hash;
pub use host::OwnHost;
pub use quantity::{Quantity, QuantityError};
pub use retention::{RetentionSize, RetentionSizeError};
pub use runtime_info::{ConfigVerdict, DiskUsage, RuntimeInfo};
pub use sizing::{BudgetPolicy, BudgetPolicyError, ThreadRule, budget_bytes};
