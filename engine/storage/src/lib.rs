//! The TSDB: appends [`metricsstore_model::Batch`]es durably, keeps them within a memory budget, answers selects.
//!
//! A sample's way: identity (labels to series) -> log (durable) -> head column (in memory) -> segment (sealed, on
//! disk) -> merged segment -> removed by retention. Synchronous and deterministic on the simulated files and clock.
#![forbid(unsafe_code)]

mod append;
mod bytes;
mod column;
mod compact;
mod counters;
mod error;
mod head;
mod identity;
mod identity_files;
mod ladder;
mod maintain;
mod manifest;
mod open;
mod options;
mod quarantine;
mod seal;
mod segment;
mod select;
mod stats;
mod store;
mod view;
mod wal;

pub use error::StorageError;
pub use options::{Maintenance, Progress, ProgressState, RefusedCounts, StoreOptions, StoreStats, WalSync};
pub use store::Store;
