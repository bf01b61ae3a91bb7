//! What an import found, and what it could not read.
use std::path::Path;

/// Damaged places that are named, at most; all are counted.
const MAX_PLACES: usize = 1000;

/// What was read beyond the blocks, and what was left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Series that the log names.
    pub series: u64,
    /// Samples that were taken: of all sources, so that those that stand in two are counted twice.
    pub floats: u64,
    /// Likewise, native histograms.
    pub histograms: u64,
    /// Likewise.
    pub exemplars: u64,
    /// Samples that the blocks hold already, as Prometheus judges it when it starts.
    pub in_blocks: u64,
    /// Samples that were deleted.
    pub deleted: u64,
    /// Samples and exemplars whose series no record names: its record is damaged or was removed before its last sample.
    pub without_series: u64,
    /// Histograms whose parts do not agree, or whose schema is none that exists.
    pub invalid_histograms: u64,
    /// Records of a type that a newer release writes.
    pub unknown_records: u64,
    /// Damaged places.
    pub damaged: u64,
    /// The first of them.
    pub places: Vec<DamagedPlace>,
}

/// Where something could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedPlace {
    /// The file.
    pub file: String,
    /// Byte offset of the record or chunk.
    pub offset: u64,
    /// What is wrong there.
    pub what: &'static str,
}

impl Report {
    pub(super) fn damage(&mut self, path: &Path, offset: u64, what: &'static str) {
        self.damaged += 1;
        if self.places.len() < MAX_PLACES {
            self.places.push(DamagedPlace { file: path.display().to_string(), offset, what });
        }
    }
}
