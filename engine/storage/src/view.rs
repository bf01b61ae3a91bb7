//! What a reader sees at one moment, swapped whole.
use std::sync::Arc;

use crate::head::Epoch;
use crate::segment::Segment;

/// Live segments, the epoch that is being sealed, and the open one. What a series has in
/// order is newer in a later part; what was late may lie anywhere.
#[derive(Clone)]
pub(crate) struct View {
    /// In the order in which they were sealed.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Frozen epochs, one per shard; empty when nothing is being sealed.
    pub(crate) frozen: Vec<Arc<Epoch>>,
    /// Open epochs, one per shard.
    pub(crate) open: Vec<Arc<Epoch>>,
}
