//! All tables of one generation. They only grow; removal builds the next generation, and readers of the old one
//! keep it until they are done.
use metricsstore_model::LabelBuf;
use metricsstore_model::read::SeriesRef;

use super::pairs::Pairs;
use super::rows::{NONE, Rows};
use super::series::SeriesTable;
use super::symbols::Symbols;
use crate::block::series::pair_fingerprint;

/// Ids stay below this, so that a damaged file cannot ask for unbounded tables.
pub(super) const MAX_SERIES: u32 = 1 << 26;

#[derive(Default)]
pub(super) struct Tables {
    pub(super) symbols: Symbols,
    pub(super) pairs: Pairs,
    pub(super) rows: Rows,
    pub(super) series: SeriesTable,
    /// Makes the sums of pair hashes unpredictable to senders.
    seed: u64,
}

/// A label set as ids of its pairs, ascending, and the sum of their hashes.
#[derive(Default)]
pub(super) struct PairSet {
    pairs: Vec<u32>,
    sum: u32,
}

impl PairSet {
    fn clear(&mut self) {
        self.pairs.clear();
        self.sum = 0;
    }
}

impl Tables {
    pub(super) fn new(seed: u64) -> Tables {
        Tables { seed, ..Tables::default() }
    }

    fn add_pair(&self, set: &mut PairSet, pair: u32) {
        let mixed = (u64::from(pair) ^ self.seed).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        set.sum = set.sum.wrapping_add((mixed >> 32) as u32);
        set.pairs.push(pair);
    }

    /// The series with these labels, if there is one.
    pub(super) fn find(&self, labels: &LabelBuf, scratch: &mut PairSet) -> Option<u32> {
        scratch.clear();
        for (name, value) in labels.iter() {
            let pair = self.pairs.find(&self.symbols, name, value)?;
            self.add_pair(scratch, pair);
        }
        let PairSet { pairs, sum } = scratch;
        self.find_sum(*sum, pairs, |_| {})
    }

    /// The series with a sum of hashes and with the pairs that `fill` puts into `pairs`, which is asked for only when
    /// there is a series to compare them with.
    fn find_sum(&self, sum: u32, pairs: &mut Vec<u32>, fill: impl FnOnce(&mut Vec<u32>)) -> Option<u32> {
        let mut fill = Some(fill);
        self.series.find(sum, |[group, residual]| {
            if let Some(fill) = fill.take() {
                fill(pairs);
                pairs.sort_unstable();
            }
            is_union(self.rows.pairs(group), self.rows.pairs(residual), pairs)
        })
    }

    /// Whether another series of `labels` fits into the offsets and ids.
    pub(super) fn has_room(&self, text_bytes: usize, labels: usize) -> bool {
        self.symbols.has_room(text_bytes)
            && self.rows.has_room(labels)
            && self.series.next_id() < MAX_SERIES
            && self.rows.len() + 2 < NONE as usize
    }

    /// The row of these pairs, new or known.
    fn intern_row(&mut self, set: &mut PairSet) -> u32 {
        set.pairs.sort_unstable();
        if let Some(known) = self.rows.find(set.sum, &set.pairs) {
            return known;
        }
        let row = self.rows.push(set.sum, &set.pairs);
        set.pairs.iter().for_each(|&pair| self.pairs.add_row(pair, row));
        row
    }

    /// The row of these labels, new or known.
    pub(super) fn intern_labels<'l>(
        &mut self,
        labels: impl Iterator<Item = (&'l str, &'l str)>,
        scratch: &mut PairSet,
    ) -> u32 {
        scratch.clear();
        for (name, value) in labels {
            let pair = self.pairs.intern(&mut self.symbols, name, value);
            self.add_pair(scratch, pair);
        }
        self.intern_row(scratch)
    }

    /// The pairs of these labels, if all of them are known.
    pub(super) fn known_set<'l>(&self, labels: impl Iterator<Item = (&'l str, &'l str)>) -> Option<PairSet> {
        let mut set = PairSet::default();
        for (name, value) in labels {
            self.add_pair(&mut set, self.pairs.find(&self.symbols, name, value)?);
        }
        Some(set)
    }

    /// The series with the pairs of two sets.
    pub(super) fn find_union(
        &self,
        group: &PairSet,
        residual: &PairSet,
        scratch: &mut PairSet,
    ) -> Option<u32> {
        self.find_sum(group.sum.wrapping_add(residual.sum), &mut scratch.pairs, |pairs| {
            pairs.clear();
            pairs.extend(group.pairs.iter().chain(&residual.pairs));
        })
    }

    /// Finds or adds the series with the pairs of two rows; `id` and `order` are for a new one, which `true` tells.
    pub(super) fn intern_series(
        &mut self,
        rows: [u32; 2],
        id: u32,
        order: u64,
        scratch: &mut PairSet,
    ) -> (u32, bool) {
        let [group, residual] = rows;
        let sum = self.rows.hash(group).wrapping_add(self.rows.hash(residual));
        let known = self.find_sum(sum, &mut scratch.pairs, |pairs| {
            pairs.clear();
            pairs.extend(self.rows.pairs(group).chain(self.rows.pairs(residual)));
        });
        if let Some(known) = known {
            return (known, false);
        }
        self.series.insert(&mut self.rows, id, rows, order);
        (id, true)
    }

    /// The series as seen by readers of this generation.
    pub(super) fn series_ref(&self, id: u32, [group, residual]: [u32; 2]) -> SeriesRef {
        SeriesRef { order: self.series.orders.get(id), group, residual }
    }

    /// Names and values of a row's pairs.
    pub(super) fn row_labels(&self, row: u32) -> impl Iterator<Item = (&str, &str)> {
        let known = (row as usize) < self.rows.len();
        known.then(|| self.rows.pairs(row)).into_iter().flatten().map(|pair| {
            let (name, value) = self.pairs.get(pair);
            (self.symbols.get(name), self.symbols.get(value))
        })
    }

    /// What the labels of a row add to the fingerprints of its series.
    pub(super) fn row_fingerprint(&self, row: u32) -> u128 {
        self.row_labels(row).fold(0, |sum, (name, value)| sum.wrapping_add(pair_fingerprint(name, value)))
    }

    /// Clears `labels` and fills in those of a series, sorted.
    pub(super) fn labels(&self, [group, residual]: [u32; 2], labels: &mut LabelBuf) {
        labels.clear();
        self.row_labels(group)
            .chain(self.row_labels(residual))
            .for_each(|(name, value)| labels.push(name, value));
        labels.sort();
    }

    /// Empty tables that hash as these do.
    pub(super) fn successor(&self) -> Tables {
        Tables::new(self.seed)
    }

    /// Bytes held by rows and series.
    pub(super) fn identity_bytes(&self) -> usize {
        self.rows.bytes() + self.series.bytes()
    }
}

/// Whether two ascending sequences without common items make up `whole`.
fn is_union(
    mut left: impl Iterator<Item = u32>,
    mut right: impl Iterator<Item = u32>,
    whole: &[u32],
) -> bool {
    let (mut a, mut b) = (left.next(), right.next());
    for &wanted in whole {
        if a == Some(wanted) {
            a = left.next();
        } else if b == Some(wanted) {
            b = right.next();
        } else {
            return false;
        }
    }
    a.is_none() && b.is_none()
}
