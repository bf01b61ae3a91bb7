//! Label names and values, each stored once: one arena of text, where a symbol ends, and a lookup.
use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use super::id_table::{IdTable, fold};
use super::tight::{bytes_of, push_tight};

/// Interned strings by dense ids.
#[derive(Default)]
pub(crate) struct Symbols {
    text: String,
    ends: Vec<u32>,
    table: IdTable,
    hasher: DefaultHashBuilder,
}

impl Symbols {
    /// The text of a symbol.
    pub(crate) fn get(&self, id: u32) -> &str {
        text_of(&self.text, &self.ends, id)
    }

    /// The id of a text that is known.
    pub(crate) fn find(&self, text: &str) -> Option<u32> {
        self.table.find(self.hash(text), |id| self.get(id) == text)
    }

    /// The id of a text, new or known. [`Symbols::has_room`] must hold.
    pub(crate) fn intern(&mut self, text: &str) -> u32 {
        let hash = self.hash(text);
        if let Some(id) = self.table.find(hash, |id| self.get(id) == text) {
            return id;
        }
        let id = self.ends.len() as u32;
        if self.text.capacity() - self.text.len() < text.len() {
            self.text.reserve_exact(text.len().max(self.text.len() / 8).max(256));
        }
        self.text.push_str(text);
        push_tight(&mut self.ends, self.text.len() as u32);
        let Symbols { text, ends, table, hasher } = self;
        table.insert(hash, id, |other| fold(hasher.hash_one(text_of(text, ends, other))));
        id
    }

    /// Whether `bytes` more of text fit into the arena's 32-bit offsets.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        u32::try_from(self.text.len() + bytes).is_ok()
    }

    fn hash(&self, text: &str) -> u32 {
        fold(self.hasher.hash_one(text))
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.text.capacity() + bytes_of(&self.ends) + self.table.bytes()
    }
}

fn text_of<'t>(text: &'t str, ends: &[u32], id: u32) -> &'t str {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends[id - 1] as usize };
    &text[start..ends[id] as usize]
}
