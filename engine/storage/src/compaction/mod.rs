//! Compaction: blocks to fewer and larger ones, without what was deleted, in memory that does not grow with them.
//!
//! `source` reads a block as a stream of series, its tombstones applied; `merge` makes one stream of several; a
//! [`crate::block::BlockSink`] writes what comes out.
#[allow(dead_code, reason = "blocks are landed one part after the other")]
mod merge;
#[allow(dead_code, reason = "blocks are landed one part after the other")]
mod source;
pub(crate) mod tombstones;

#[allow(unused_imports, reason = "blocks are landed one part after the other")]
pub(crate) use merge::{Damage, MergedSeries};
#[allow(unused_imports, reason = "blocks are landed one part after the other")]
pub(crate) use source::BlockSeries;
