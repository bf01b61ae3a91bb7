//! What a reader sees at one moment, swapped whole.
use std::sync::Arc;

use crate::block::Block;
use crate::compaction::tombstones::BlockTombstones;
use crate::head::Epoch;
use crate::manifest::{NamedBlock, NamedSegment};
use crate::segment::Segment;

/// Live blocks and segments, the epoch that is being sealed, and the open one. What a series has in
/// order is newer in a later part; what was late may lie anywhere.
#[derive(Clone)]
pub(crate) struct View {
    /// By the beginning of the time that they are for, and of one beginning by their names.
    pub(crate) blocks: Vec<Arc<LiveBlock>>,
    /// In the order in which they were sealed.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Frozen epochs, one per shard; empty when nothing is being sealed.
    pub(crate) frozen: Vec<Arc<Epoch>>,
    /// Open epochs, one per shard.
    pub(crate) open: Vec<Arc<Epoch>>,
}

/// A live block with what was deleted of it.
pub(crate) struct LiveBlock {
    pub(crate) block: Arc<dyn Block>,
    pub(crate) tombstones: Arc<BlockTombstones>,
}

impl LiveBlock {
    /// Its name in the manifest.
    pub(crate) fn name(&self) -> NamedBlock {
        let meta = self.block.meta();
        NamedBlock { ulid: meta.ulid, format: meta.format }
    }

    /// Whether it may have samples in a time range, ends inclusive.
    pub(crate) fn overlaps(&self, start_ms: i64, end_ms: i64) -> bool {
        let meta = self.block.meta();
        meta.min_ms <= end_ms && meta.max_ms >= start_ms
    }
}

impl View {
    /// The names of its segments and blocks, for the manifest.
    pub(crate) fn names(&self) -> (Vec<NamedSegment>, Vec<NamedBlock>) {
        let segments = self.segments.iter().map(|segment| NamedSegment::from(&**segment));
        (segments.collect(), self.blocks.iter().map(|block| block.name()).collect())
    }
}

/// Puts blocks into the order in which they are read: of one time the first sample holds.
pub(crate) fn sort_blocks(blocks: &mut [Arc<LiveBlock>]) {
    blocks.sort_by_key(|live| (live.block.meta().start_ms, live.block.meta().ulid));
}
