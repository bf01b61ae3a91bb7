//! The TSDB: appends [`metricsstore_model::Batch`]es durably, keeps them within a memory budget, answers selects.
//!
//! A sample's way: identity (labels to series) -> log (durable) -> head column (in memory) -> segment (sealed, on
//! disk) -> merged segment -> removed by retention. Synchronous and deterministic on the simulated files and clock.
#![forbid(unsafe_code)]

mod error;
mod identity;
mod options;
mod store;

pub use error::StorageError;
pub use options::{Maintenance, Progress, ProgressState, RefusedCounts, StoreOptions, StoreStats, WalSync};
pub use store::Store;
