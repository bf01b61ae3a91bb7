//! Label pairs and sets of pairs while a block is written, each held once.
use std::hash::BuildHasher;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use metricsstore_model::LabelBuf;

use crate::block::series::pair_fingerprint;
use crate::identity::is_place;

/// Between name and value of a pair; stands in no UTF-8 text, and sorts behind all of it.
pub(super) const SEPARATOR: u8 = 0xff;

/// Items of various lengths, one after the other, each once.
struct Distinct<T> {
    items: Vec<T>,
    ends: Vec<u32>,
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl<T> Default for Distinct<T> {
    fn default() -> Distinct<T> {
        Distinct {
            items: Vec::new(),
            ends: Vec::new(),
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl<T: Copy + Eq + std::hash::Hash> Distinct<T> {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, number: u32) -> &[T] {
        slice(&self.items, &self.ends, number)
    }

    /// The number of an item, and whether it is new.
    fn intern(&mut self, item: &[T]) -> (u32, bool) {
        let Distinct { items, ends, table, hasher } = self;
        let found = table.entry(
            hasher.hash_one(item),
            |&number| slice(items, ends, number) == item,
            |&number| hasher.hash_one(slice(items, ends, number)),
        );
        match found {
            Entry::Occupied(found) => (*found.get(), false),
            Entry::Vacant(vacant) => {
                let number = ends.len() as u32;
                vacant.insert(number);
                items.extend_from_slice(item);
                ends.push(items.len() as u32);
                (number, true)
            }
        }
    }
}

fn slice<'i, T>(items: &'i [T], ends: &[u32], number: u32) -> &'i [T] {
    let end = |number: usize| ends[number] as usize;
    let start = (number as usize).checked_sub(1).map_or(0, end);
    &items[start..end(number as usize)]
}

/// The two sets that the labels of a row are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowSets {
    /// Labels that say where the series comes from.
    pub(super) place: u32,
    /// The others.
    pub(super) rest: u32,
}

/// Pairs and sets by number, in the order in which they came.
#[derive(Default)]
pub(super) struct Interner {
    pairs: Distinct<u8>,
    sets: Distinct<u32>,
    fingerprints: Vec<u128>,
    key: Vec<u8>,
    set: Vec<u32>,
}

impl Interner {
    pub(super) fn row(&mut self, labels: &LabelBuf) -> RowSets {
        RowSets { place: self.half(labels, true), rest: self.half(labels, false) }
    }

    fn half(&mut self, labels: &LabelBuf, is_of_place: bool) -> u32 {
        self.set.clear();
        for (name, value) in labels.iter().filter(|&(name, _)| is_place(name) == is_of_place) {
            self.key.clear();
            self.key.extend_from_slice(name.as_bytes());
            self.key.push(SEPARATOR);
            self.key.extend_from_slice(value.as_bytes());
            self.set.push(self.pairs.intern(&self.key).0);
        }
        let (number, is_new) = self.sets.intern(&self.set);
        if is_new {
            let pairs = labels.iter().filter(|&(name, _)| is_place(name) == is_of_place);
            let sum =
                pairs.fold(0, |sum: u128, (name, value)| sum.wrapping_add(pair_fingerprint(name, value)));
            self.fingerprints.push(sum);
        }
        number
    }

    /// Pairs, as their keys sort.
    pub(super) fn sorted_pairs(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.pairs.len() as u32).collect();
        order.sort_unstable_by(|&a, &b| self.pairs.get(a).cmp(self.pairs.get(b)));
        order
    }

    /// Name, separator and value of a pair.
    pub(super) fn key(&self, pair: u32) -> &[u8] {
        self.pairs.get(pair)
    }

    pub(super) fn set_count(&self) -> u32 {
        self.sets.len() as u32
    }

    pub(super) fn set(&self, number: u32) -> &[u32] {
        self.sets.get(number)
    }

    pub(super) fn fingerprint(&self, number: u32) -> u128 {
        self.fingerprints[number as usize]
    }
}
