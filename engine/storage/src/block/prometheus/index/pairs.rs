//! Symbols and label pairs of an index that is being written. In memory: each symbol's text and 13 bytes, each pair
//! 18 bytes, and 8 bytes of each for their order while the index is finished.
use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use crate::identity::id_table::{IdTable, fold};
use crate::identity::symbols::Symbols;

/// A label pair and in how many series it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) name: u32,
    pub(super) value: u32,
    pub(super) series: u32,
}

pub(super) struct Pairs {
    symbols: Symbols,
    count: u32,
    /// Bytes that the symbols take in the file.
    symbol_bytes: u64,
    list: Vec<Pair>,
    table: IdTable,
    hasher: DefaultHashBuilder,
}

/// Symbols and pairs in the order of their texts.
pub(super) struct Order {
    /// Symbols, ascending, and the place of each.
    pub(super) symbols: Vec<u32>,
    pub(super) places: Vec<u32>,
    /// Pairs, ascending by name, then by value.
    pub(super) pairs: Vec<u32>,
}

impl Pairs {
    pub(super) fn new() -> Pairs {
        let mut pairs = Pairs {
            symbols: Symbols::default(),
            count: 0,
            symbol_bytes: 0,
            list: Vec::new(),
            table: IdTable::default(),
            hasher: DefaultHashBuilder::default(),
        };
        // The pair of all series is of two empty texts.
        pairs.symbol("");
        pairs
    }

    /// Whether there is room for `bytes` more of text.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.symbols.has_room(bytes)
    }

    /// The id of a pair, which is in one series more.
    pub(super) fn add(&mut self, name: &str, value: &str) -> u32 {
        let (name, value) = (self.symbol(name), self.symbol(value));
        let hash = fold(self.hasher.hash_one((name, value)));
        let is = |id: u32| {
            let pair = self.list[id as usize];
            (pair.name, pair.value) == (name, value)
        };
        let id = self.table.find(hash, is).unwrap_or_else(|| {
            let id = self.list.len() as u32;
            self.list.push(Pair { name, value, series: 0 });
            let Pairs { list, table, hasher, .. } = self;
            table.insert(hash, id, |other| {
                let pair = list[other as usize];
                fold(hasher.hash_one((pair.name, pair.value)))
            });
            id
        });
        self.list[id as usize].series += 1;
        id
    }

    fn symbol(&mut self, text: &str) -> u32 {
        let id = self.symbols.intern(text);
        if id == self.count {
            self.count += 1;
            self.symbol_bytes += (varint_bytes(text.len() as u64) + text.len()) as u64;
        }
        id
    }

    pub(super) fn text(&self, symbol: u32) -> &str {
        self.symbols.get(symbol)
    }

    pub(super) fn pair(&self, id: u32) -> Pair {
        self.list[id as usize]
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes that the symbols take in the file.
    pub(super) fn symbol_bytes(&self) -> u64 {
        self.symbol_bytes
    }

    /// Bytes that the text of a symbol takes in the file.
    pub(super) fn text_bytes(&self, symbol: u32) -> u64 {
        let text = self.text(symbol);
        (varint_bytes(text.len() as u64) + text.len()) as u64
    }

    pub(super) fn order(&self) -> Order {
        let mut symbols: Vec<u32> = (0..self.count).collect();
        symbols.sort_unstable_by(|&a, &b| self.text(a).cmp(self.text(b)));
        let mut places = vec![0; symbols.len()];
        for (place, &symbol) in symbols.iter().enumerate() {
            places[symbol as usize] = place as u32;
        }
        let mut pairs: Vec<u32> = (0..self.list.len() as u32).collect();
        pairs.sort_unstable_by_key(|&id| {
            let pair = self.pair(id);
            (places[pair.name as usize], places[pair.value as usize])
        });
        Order { symbols, places, pairs }
    }

    /// Bytes of memory held.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.symbols.bytes() + self.list.capacity() * size_of::<Pair>() + self.table.bytes()
    }
}

/// Bytes of a varint.
pub(super) fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}
