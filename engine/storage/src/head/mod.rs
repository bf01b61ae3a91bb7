//! What is in memory and not yet sealed.
//!
//! The head is divided into shards, one writer each; a shard's data belong to an *epoch*. Sealing freezes the epoch of
//! every shard at once, goes on in the next, writes the frozen ones to a segment and drops them whole.
mod epoch;
mod late;
mod pages;
mod streams;

pub(crate) use epoch::{ColumnEnd, Epoch, EpochData, Judgement, Limits};

/// Series ids of one page: allocated together, so that ids of one target mostly share a shard.
pub(crate) const PAGE_SERIES: u32 = 1024;

/// Which shard and which page in it hold a series.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    shards: u32,
}

impl Layout {
    pub(crate) fn new(shards: usize) -> Layout {
        Layout { shards: shards.clamp(1, 64) as u32 }
    }

    pub(crate) fn shards(self) -> usize {
        self.shards as usize
    }

    pub(crate) fn shard_of(self, series: u32) -> usize {
        (series / PAGE_SERIES % self.shards) as usize
    }

    /// The series' place in its shard.
    pub(crate) fn local(self, series: u32) -> u32 {
        series / PAGE_SERIES / self.shards * PAGE_SERIES + series % PAGE_SERIES
    }

    /// The inverse of [`Layout::local`].
    pub(crate) fn global(self, shard: usize, local: u32) -> u32 {
        (local / PAGE_SERIES * self.shards + shard as u32) * PAGE_SERIES + local % PAGE_SERIES
    }
}
