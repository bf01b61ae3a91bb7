//! The series that a log names, and what was deleted of them.
use std::collections::HashSet;
use std::sync::Arc;

use hashbrown::HashMap;
use metricsstore_model::LabelBuf;

use crate::block::series::fingerprint;
use crate::tombstones::{add_range, is_covered};

/// Series by their number, in the order in which the log first names them. Memory: 8 bytes for each label, 40 for each
/// series, and every distinct name and value once.
#[derive(Default)]
pub(super) struct Catalog {
    symbols: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
    /// Name and value of the labels of all series, and where those of a series end.
    pairs: Vec<(u32, u32)>,
    ends: Vec<usize>,
    by_fingerprint: HashMap<u128, u32>,
    by_reference: HashMap<u64, u32>,
    /// The series of every definition in the log, in their order, so that a second reading finds them without labels.
    definitions: Vec<u32>,
    /// Those that were deleted with all their samples.
    gone: HashSet<u32>,
    deleted: HashMap<u32, Vec<(i64, i64)>>,
    /// The place of each series in the order of label sets.
    ranks: Vec<u32>,
    /// The series at each place.
    order: Vec<u32>,
}

impl Catalog {
    /// Takes a definition: the reference means this series from here on.
    pub(super) fn define(&mut self, reference: u64, labels: &LabelBuf) {
        let next = self.ends.len() as u32;
        let series = *self.by_fingerprint.entry(fingerprint(labels)).or_insert(next);
        if series == next {
            for (name, value) in labels.iter() {
                let pair = (self.symbol(name), self.symbol(value));
                self.pairs.push(pair);
            }
            self.ends.push(self.pairs.len());
        }
        self.by_reference.insert(reference, series);
        self.definitions.push(series);
    }

    fn symbol(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let (number, text) = (self.symbols.len() as u32, Arc::<str>::from(text));
        self.symbols.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    /// Takes a tombstone. One of all time ends the series: its samples were written to a block early, and a later
    /// definition with the same labels is another series.
    pub(super) fn delete(&mut self, reference: u64, min_ms: i64, max_ms: i64) {
        let Some(&series) = self.by_reference.get(&reference) else { return };
        if (min_ms, max_ms) == (i64::MIN, i64::MAX) {
            self.gone.insert(series);
            self.by_fingerprint.retain(|_, &mut kept| kept != series);
        } else {
            add_range(self.deleted.entry(series).or_default(), min_ms, max_ms);
        }
    }

    /// Puts the series into the order of label sets, after which none is added, and begins a second reading.
    pub(super) fn sort(&mut self) {
        let mut symbols: Vec<u32> = (0..self.symbols.len() as u32).collect();
        symbols.sort_unstable_by(|&a, &b| self.symbols[a as usize].cmp(&self.symbols[b as usize]));
        let mut places = vec![0_u32; symbols.len()];
        for (place, &symbol) in (0..).zip(&symbols) {
            places[symbol as usize] = place;
        }
        let place = |&(name, value): &(u32, u32)| (places[name as usize], places[value as usize]);
        let mut order: Vec<u32> = (0..self.ends.len() as u32).collect();
        order.sort_by(|&a, &b| self.pairs_of(a).iter().map(place).cmp(self.pairs_of(b).iter().map(place)));
        self.ranks = vec![0; order.len()];
        for (rank, &series) in (0..).zip(&order) {
            self.ranks[series as usize] = rank;
        }
        self.order = order;
        self.by_reference.clear();
        (self.by_fingerprint, self.numbers) = Default::default();
    }

    /// The second time that the log defines something, for the `number`th time.
    pub(super) fn define_again(&mut self, reference: u64, number: usize) {
        if let Some(&series) = self.definitions.get(number) {
            self.by_reference.insert(reference, series);
        }
    }

    pub(super) fn series(&self) -> usize {
        self.ends.len() - self.gone.len()
    }

    /// What a reference means now.
    pub(super) fn resolve(&self, reference: u64) -> Option<u32> {
        self.by_reference.get(&reference).copied()
    }

    pub(super) fn is_deleted(&self, series: u32, time_ms: i64) -> bool {
        self.gone.contains(&series)
            || self.deleted.get(&series).is_some_and(|ranges| is_covered(ranges, time_ms))
    }

    pub(super) fn rank(&self, series: u32) -> u32 {
        self.ranks[series as usize]
    }

    /// The labels of the series at a place: cleared, filled.
    pub(super) fn labels(&self, rank: u32, labels: &mut LabelBuf) {
        labels.clear();
        for &(name, value) in self.order.get(rank as usize).map_or(&[][..], |&series| self.pairs_of(series)) {
            labels.push(&self.symbols[name as usize], &self.symbols[value as usize]);
        }
    }

    fn pairs_of(&self, series: u32) -> &[(u32, u32)] {
        let series = series as usize;
        let start = if series == 0 { 0 } else { self.ends[series - 1] };
        &self.pairs[start..self.ends[series]]
    }
}
