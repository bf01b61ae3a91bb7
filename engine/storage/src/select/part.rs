//! One part of the store, as a select reads it.
use std::sync::Arc;

use metricsstore_model::read::ReadError;

use crate::block::BlockCursor;
use crate::head::{ColumnEnd, Epoch};
use crate::segment::SegmentCursor;
use crate::view::LiveBlock;

/// What a series has in order in one part is older than what it has in the next, blocks of late samples left aside.
pub(super) enum Part {
    Block {
        live: Arc<LiveBlock>,
        cursor: Box<dyn BlockCursor>,
    },
    Segment(SegmentCursor),
    /// An epoch of one shard. For an open one, where the columns of the selected series in it ended when the snapshot
    /// was taken, in their order; chunks take them from the front.
    Head {
        epoch: Arc<Epoch>,
        shard: usize,
        ends: Option<std::vec::IntoIter<ColumnEnd>>,
    },
}

impl Part {
    pub(super) fn of_block(live: &Arc<LiveBlock>) -> Part {
        Part::Block { live: Arc::clone(live), cursor: Arc::clone(&live.block).cursor() }
    }

    /// What is older is not read from it.
    pub(super) fn begin_ms(&self) -> i64 {
        match self {
            Part::Segment(cursor) => cursor.segment().from_ms,
            Part::Block { .. } | Part::Head { .. } => i64::MIN,
        }
    }

    /// The timestamps of a stream.
    pub(super) fn times(&mut self, stream: u32) -> Result<Arc<[i64]>, ReadError> {
        match self {
            Part::Block { cursor, .. } => Ok(cursor.times(stream)?),
            Part::Segment(cursor) => Ok(cursor.times(stream)?),
            Part::Head { epoch, .. } => {
                let mut times = Vec::new();
                epoch.data.lock().times_into(stream, &mut times);
                Ok(times.into())
            }
        }
    }

    /// What it is called in an error.
    pub(super) fn name(&self) -> String {
        match self {
            Part::Block { live, .. } => block_name(live),
            Part::Segment(cursor) => cursor.segment().name(),
            Part::Head { .. } => "memory".into(),
        }
    }
}

/// What a block is called in an error.
pub(crate) fn block_name(live: &LiveBlock) -> String {
    let first = live.block.files().into_iter().next();
    first.map_or_else(|| live.block.meta().ulid.to_string(), |file| file.display().to_string())
}
