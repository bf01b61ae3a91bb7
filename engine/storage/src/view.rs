//! What a reader sees at one moment, swapped whole.
use std::sync::Arc;

use crate::head::Epoch;
use crate::segment::Segment;

/// Live segments, the epoch that is being sealed, and the open one. Samples of one series are ordered: those in a later
/// part are newer.
#[derive(Clone)]
pub(crate) struct View {
    /// In the order in which they were sealed.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Frozen epochs, one per shard; empty when nothing is being sealed.
    pub(crate) frozen: Vec<Arc<Epoch>>,
    /// Open epochs, one per shard.
    pub(crate) open: Vec<Arc<Epoch>>,
}
