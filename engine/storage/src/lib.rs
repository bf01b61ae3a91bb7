//! The TSDB: appends [`metricsstore_model::Batch`]es durably, keeps them within a memory budget, answers selects.
//!
//! A sample's way: identity (labels to series) -> log (durable) -> head column (in memory) -> segment (sealed, on
//! disk) -> merged segment -> block -> longer block -> removed by retention. Synchronous and deterministic on the simulated files and clock.
//!
//! | module | owns |
//! |---|---|
//! | `identity` | symbols, groups, residuals, series ids, lookup, postings; `identity_files` keeps them on disk |
//! | `wal` | the log: record format, writer with group commit, reader |
//! | `head` | shards, timestamp streams, open columns, runs of late samples |
//! | `segment` | sealed samples: format, writer, reader |
//! | `block` | immutable blocks with their own labels: native, and as Prometheus has them |
//! | `import` | what a data directory of Prometheus holds beyond its blocks, as series in their order |
//! | `compaction` | blocks into fewer and longer ones, what was deleted of them |
//! | `manifest` | the one atomic record of what is live, kept twice |
//! | `append`, `taken` | a batch's way in: judgement per sample, log, columns; what stands at an older time |
//! | `append_extras`, `kinds` | histograms and start timestamps: their way in, and columns for the few series that have them |
//! | `exemplars`, `families` | exemplars in a circular buffer, metadata; kept by the log alone, which carries them over |
//! | `delete`, `tombstones` | samples that were deleted, masked wherever they are read |
//! | `view`, `select` | what a reader sees at one moment, and the merged stream of it |
//! | `seal`, `compact`, `cut`, `ended`, `retention`, `maintain` | background work: head to segment, segments to fewer, segments to blocks, ended series, what goes |
//! | `usage` | what everything on disk takes |
//! | `open`, `recover`, `replay`, `quarantine` | start: load, replay; damaged files are set aside, never deleted |
//! | `snapshot` | directories of hard links that open as data directories |
//! | `tools` | what command-line tools see of a store |
//! | `shutdown` | the mark by which a start knows whether the last process ended in order |
//! | `ladder`, `disk` | what is shed and refused when memory or disk run out; the space kept back for a full disk |
//!
//! # Who may do what when
//! Three locks. The *gate* is held shared by every append (from the resolution of its series to the write of its
//! samples) and by selects while they take their snapshot, and alone by a seal while it swaps the head and lets series
//! ids go. A *shard's* lock covers judging, taking and logging samples, so that the log has each series' samples in
//! the order in which they were judged. The *upkeep* lock covers manifest, view and files: one piece of background work
//! at a time. Order: upkeep, gate, open shard, frozen shard, log, identity.
#![forbid(unsafe_code)]

mod append;
mod append_extras;
mod block;
mod bytes;
mod column;
mod compact;
mod compaction;
mod counters;
mod cut;
mod delete;
mod disk;
mod ended;
mod error;
mod exemplars;
mod families;
#[doc(hidden)]
pub mod fuzzing;
mod head;
mod identity;
mod identity_files;
mod import;
mod kinds;
mod ladder;
mod maintain;
mod manifest;
mod open;
mod options;
mod quarantine;
mod recover;
mod replay;
mod retention;
mod seal;
mod segment;
mod select;
mod shutdown;
mod snapshot;
mod stats;
mod store;
mod sync;
mod taken;
mod tombstones;
mod tools;
mod usage;
mod view;
mod wal;

pub use block::{BlockMeta, Format as BlockFormat, Parent, Ulid};
pub use error::StorageError;
pub use exemplars::{SeriesExemplars, StoredExemplar};
pub use import::{DamagedPlace, Report as LogReport};
pub use options::{
    DiskLevel, Maintenance, Progress, ProgressState, ReadOnly, RefusedCounts, StoreOptions, StoreStats,
    WalSync,
};
pub use snapshot::{NewSnapshot, SnapshotFile, SnapshotInfo};
pub use store::Store;
pub use tools::{
    BlockInfo, Contents, DataDir, Export, ExportStep, Import, ImportStep, Imported, PartReport, Problem,
    Selected, Series, SeriesData,
};
