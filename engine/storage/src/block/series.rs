//! One series on its way from one format to another.
use metricsstore_model::LabelBuf;
use metricsstore_model::histogram::Histogram;
use xxhash_rust::xxh3::Xxh3;

use crate::{StorageError, StoredExemplar};

/// Samples in one slice of a series, at most: what bounds the memory of a merge.
pub(crate) const SLICE_SAMPLES: usize = 64 << 10;

/// One series of a block, or a slice of it that fits in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeriesData {
    /// Sorted.
    pub(crate) labels: LabelBuf,
    /// Whether this goes on with the series of the slice before. Its samples are later, of each kind.
    pub(crate) is_continuation: bool,
    /// Time in ms and bits of the value, ascending and distinct in time.
    pub(crate) floats: Vec<(i64, u64)>,
    /// Likewise. No time stands in both.
    pub(crate) histograms: Vec<(i64, Histogram)>,
    /// Times of samples and when their counter began, both in ms, for the samples for which that is known.
    pub(crate) starts: Vec<(i64, i64)>,
    /// Oldest first.
    pub(crate) exemplars: Vec<StoredExemplar>,
}

impl SeriesData {
    /// Forgets everything and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.labels.clear();
        self.is_continuation = false;
        self.clear_samples();
    }

    /// Forgets all but the labels.
    pub(crate) fn clear_samples(&mut self) {
        self.floats.clear();
        self.histograms.clear();
        self.starts.clear();
        self.exemplars.clear();
    }

    /// Samples of both kinds.
    pub(crate) fn samples(&self) -> usize {
        self.floats.len() + self.histograms.len()
    }
}

/// Series in the order of their label sets.
pub(crate) trait SeriesStream {
    /// Puts the next slice into `series`, cleared first; `false` after the last.
    fn next_into(&mut self, series: &mut SeriesData) -> Result<bool, StorageError>;
}

/// What series of different parts are told to be the same by: XXH3 with 128 bits over the sorted names and values, each
/// followed by the byte 255, which stands in no UTF-8 text.
pub(crate) fn fingerprint(labels: &LabelBuf) -> u128 {
    let mut hasher = Xxh3::new();
    for (name, value) in labels.iter() {
        hasher.update(name.as_bytes());
        hasher.update(&[0xff]);
        hasher.update(value.as_bytes());
        hasher.update(&[0xff]);
    }
    hasher.digest128()
}
