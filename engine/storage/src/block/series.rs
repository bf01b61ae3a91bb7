//! One series on its way from one format to another.
use metricsstore_model::LabelBuf;
use metricsstore_model::histogram::Histogram;
use xxhash_rust::xxh3::xxh3_128;

use crate::{StorageError, StoredExemplar};

/// Samples in one slice of a series, at most: what bounds the memory of a merge.
pub(crate) const SLICE_SAMPLES: usize = 64 << 10;

/// Bytes of a label pair that is hashed without an allocation.
const SHORT_PAIR: usize = 256;

/// Histograms in one slice, at most: each takes as much as many floats.
pub(crate) const SLICE_HISTOGRAMS: usize = 1 << 10;

/// One series of a block, or a slice of it that fits in memory.
#[derive(Debug, Clone, Default)]
pub struct SeriesData {
    /// Sorted.
    pub labels: LabelBuf,
    /// Whether this goes on with the series of the slice before. Its samples and exemplars are later than all of that.
    pub is_continuation: bool,
    /// Time in ms and bits of the value, ascending and distinct in time.
    pub floats: Vec<(i64, u64)>,
    /// Likewise. No time stands in both.
    pub histograms: Vec<(i64, Histogram)>,
    /// Times of samples and when their counter began, both in ms, for the samples of this slice for which that is known.
    pub starts: Vec<(i64, i64)>,
    /// Oldest first.
    pub exemplars: Vec<StoredExemplar>,
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
    pub fn samples(&self) -> usize {
        self.floats.len() + self.histograms.len()
    }
}

/// Series in the order of their label sets.
pub(crate) trait SeriesStream {
    /// Puts the next slice into `series`, cleared first; `false` after the last. Damage ([`StorageError::Corrupt`])
    /// costs the series that would have been next, or what is left of it: the call after that goes on behind it.
    fn next_into(&mut self, series: &mut SeriesData) -> Result<bool, StorageError>;
}

/// What series of different parts are told to be the same by: the sum, modulo 2^128, of [`pair_fingerprint`] over the
/// labels. A sum, so that it can be put together from the sums of parts of a label set, in any order: identity keeps
/// labels in halves, and so may a block.
pub(crate) fn fingerprint(labels: &LabelBuf) -> u128 {
    labels.iter().fold(0, |sum, (name, value)| sum.wrapping_add(pair_fingerprint(name, value)))
}

/// XXH3 with 128 bits over name and value with the byte 255 between them, which stands in no UTF-8 text.
pub(crate) fn pair_fingerprint(name: &str, value: &str) -> u128 {
    let (mut short, split) = ([0; SHORT_PAIR], name.len());
    if let Some(pair) = short.get_mut(..split + 1 + value.len()) {
        pair[..split].copy_from_slice(name.as_bytes());
        pair[split] = 0xff;
        pair[split + 1..].copy_from_slice(value.as_bytes());
        return xxh3_128(pair);
    }
    xxh3_128(&[name.as_bytes(), &[0xff], value.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_fingerprint_is_the_same_however_the_labels_are_put_together_and_tells_similar_sets_apart() {
        let long = "x".repeat(300);
        let labels = LabelBuf::from_pairs([("a", "1"), ("b", "2"), ("c", &long)]);
        let parts = [("c", &*long), ("a", "1"), ("b", "2")];
        let sum =
            parts.iter().fold(0, |sum: u128, (name, value)| sum.wrapping_add(pair_fingerprint(name, value)));
        assert_eq!(fingerprint(&labels), sum);
        let pairs = (0..200).flat_map(|a| (0..200).map(move |b| (a.to_string(), b.to_string())));
        let sets = pairs.flat_map(|(a, b)| {
            // Values in the places of the others are among these, too.
            [("a", "b"), ("a", "bb")].map(|names| LabelBuf::from_pairs([(names.0, &a), (names.1, &b)]))
        });
        // Half of each is enough.
        let distinct: HashSet<u64> = sets.map(|labels| fingerprint(&labels) as u64).collect();
        assert_eq!(distinct.len(), 80_000);
    }
}
