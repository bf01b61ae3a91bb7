//! Compaction: blocks to fewer and larger ones, without what was deleted, in memory that does not grow with them.
//!
//! `plan` says which blocks; `source` reads one as a stream of series, its tombstones applied; `merge` makes one stream of
//! several; a [`crate::block::BlockSink`] writes what comes out; `run` puts it into their place.
mod merge;
mod plan;
mod run;
mod shipped;
mod source;
pub(crate) mod tombstones;
mod turn;

pub(crate) use merge::{Damage, MergedSeries};
pub(crate) use source::BlockSeries;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod tests;
