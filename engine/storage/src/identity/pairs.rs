//! Label pairs by dense ids, the rows they occur in, and the pairs of each name.
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap};

use super::id_table::{IdTable, fold};
use super::posting::Posting;
use super::symbols::Symbols;
use super::tight::{bytes_of, push_tight};

/// One label pair.
struct Pair {
    name: u32,
    value: u32,
    rows: Option<Posting>,
}

/// All label pairs.
#[derive(Default)]
pub(super) struct Pairs {
    all: Vec<Pair>,
    table: IdTable,
    /// Pairs by the symbol of their name.
    by_name: HashMap<u32, Vec<u32>>,
    hasher: DefaultHashBuilder,
    list_bytes: usize,
    posting_bytes: usize,
}

impl Pairs {
    /// Symbols of a pair's name and value.
    pub(super) fn get(&self, pair: u32) -> (u32, u32) {
        let pair = &self.all[pair as usize];
        (pair.name, pair.value)
    }

    /// The rows a pair occurs in.
    pub(super) fn rows(&self, pair: u32) -> Option<&Posting> {
        self.all[pair as usize].rows.as_ref()
    }

    /// Symbols of all names.
    pub(super) fn names(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_name.keys().copied()
    }

    /// All pairs with a name.
    pub(super) fn of_name(&self, name: u32) -> &[u32] {
        self.by_name.get(&name).map_or(&[], Vec::as_slice)
    }

    /// The pair of a name and a value, if known. Hashes both texts at once: one probe, not three.
    pub(super) fn find(&self, symbols: &Symbols, name: &str, value: &str) -> Option<u32> {
        let hash = fold(self.hasher.hash_one((name, value)));
        self.table.find(hash, |id| {
            let pair = &self.all[id as usize];
            symbols.get(pair.value) == value && symbols.get(pair.name) == name
        })
    }

    /// The pair of a name and a value, new or known.
    pub(super) fn intern(&mut self, symbols: &mut Symbols, name: &str, value: &str) -> u32 {
        if let Some(known) = self.find(symbols, name, value) {
            return known;
        }
        let id = self.all.len() as u32;
        let pair = Pair { name: symbols.intern(name), value: symbols.intern(value), rows: None };
        let of_name = self.by_name.entry(pair.name).or_default();
        let before = bytes_of(of_name);
        if of_name.is_empty() {
            of_name.push(id);
        } else {
            push_tight(of_name, id);
        }
        self.list_bytes += bytes_of(of_name) - before;
        push_tight(&mut self.all, pair);
        let hash = fold(self.hasher.hash_one((name, value)));
        let Pairs { all, table, hasher, .. } = self;
        table.insert(hash, id, |other| {
            let pair = &all[other as usize];
            fold(hasher.hash_one((symbols.get(pair.name), symbols.get(pair.value))))
        });
        id
    }

    /// Notes that a pair occurs in a row; rows come in ascending order.
    pub(super) fn add_row(&mut self, pair: u32, row: u32) {
        match &mut self.all[pair as usize].rows {
            Some(rows) => self.posting_bytes += rows.push(row),
            rows @ None => *rows = Some(Posting::new(row)),
        }
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        bytes_of(&self.all)
            + self.table.bytes()
            + self.by_name.allocation_size()
            + self.list_bytes
            + self.posting_bytes
    }
}
