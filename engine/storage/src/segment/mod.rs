//! placeholder
use crate::StorageError;
use crate::column::Piece;
use std::sync::Arc;
pub(crate) struct Segment {
    pub(crate) series: roaring::RoaringBitmap,
    pub(crate) min_ms: i64,
    pub(crate) max_ms: i64,
    pub(crate) bytes: u64,
}
impl Segment {
    pub(crate) fn name(&self) -> String {
        String::new()
    }
    pub(crate) fn damaged(&self, what: &str) -> StorageError {
        StorageError::corrupt(std::path::Path::new(""), 0, what)
    }
    pub(crate) fn open(
        _f: &Arc<dyn metricsstore_vfs::Files>,
        dir: &std::path::Path,
        _n: u64,
        _b: &metricsstore_budget::Budget,
    ) -> Result<Segment, StorageError> {
        Err(StorageError::corrupt(dir, 0, ""))
    }
}
pub(crate) struct SegmentCursor {
    segment: Arc<Segment>,
}
impl SegmentCursor {
    pub(crate) fn new(segment: Arc<Segment>) -> SegmentCursor {
        SegmentCursor { segment }
    }
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }
    pub(crate) fn pieces_into(
        &mut self,
        _series: u32,
        _payload: &mut Vec<u8>,
        _pieces: &mut Vec<Piece>,
    ) -> Result<(), StorageError> {
        Ok(())
    }
    pub(crate) fn times(&mut self, _stream: u32) -> Result<Arc<[i64]>, StorageError> {
        Ok(Vec::new().into())
    }
}
