//! Finds the row of a table by the hash of its content: an open-addressing table of `u32` ids with one byte of the
//! hash beside each, 5 bytes a slot. It grows by a quarter, so it is never less than 70 % full once it is large;
//! the general-purpose tables double and would spend up to twice as much.
use super::tight::bytes_of;

/// Ids by hash. Content stays with the caller, who compares it; nothing is ever removed (tables are rebuilt).
#[derive(Default)]
pub(crate) struct IdTable {
    /// 0: free.
    tags: Vec<u8>,
    ids: Vec<u32>,
    len: usize,
}

/// Spreads a 64-bit hash over the 32 bits that tables use.
pub(crate) fn fold(hash: u64) -> u32 {
    ((hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

fn tag(hash: u32) -> u8 {
    (hash as u8).max(1)
}

fn slots_for(len: usize) -> usize {
    len * 8 / 7 + 16
}

impl IdTable {
    /// An empty table that takes `len` ids before it grows.
    pub(crate) fn with_room(len: usize) -> IdTable {
        let slots = slots_for(len);
        IdTable { tags: vec![0; slots], ids: vec![0; slots], len: 0 }
    }

    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.tags.len() as u64) >> 32) as usize
    }

    /// The id with this hash for which `is` holds.
    pub(crate) fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.tags.is_empty() {
            return None;
        }
        let mut slot = self.home(hash);
        while self.tags[slot] != 0 {
            if self.tags[slot] == tag(hash) && is(self.ids[slot]) {
                return Some(self.ids[slot]);
            }
            slot = if slot + 1 == self.tags.len() { 0 } else { slot + 1 };
        }
        None
    }

    /// Adds an id that is not in the table; `hash_of` gives the hash of any id added before.
    pub(crate) fn insert(&mut self, hash: u32, id: u32, hash_of: impl Fn(u32) -> u32) {
        if (self.len + 1) * 8 > self.tags.len() * 7 {
            self.resize((self.tags.len() * 5 / 4).max(16), hash_of);
        }
        self.place(hash, id);
        self.len += 1;
    }

    /// Grows at once as far as `more` ids need.
    pub(crate) fn reserve(&mut self, more: usize, hash_of: impl Fn(u32) -> u32) {
        let slots = slots_for(self.len + more);
        if slots > self.tags.len() {
            self.resize(slots, hash_of);
        }
    }

    /// Gives back what [`IdTable::reserve`] took too much.
    pub(crate) fn fit(&mut self, hash_of: impl Fn(u32) -> u32) {
        let slots = slots_for(self.len);
        if self.tags.len() > slots * 5 / 4 {
            self.resize(slots, hash_of);
        }
    }

    fn resize(&mut self, slots: usize, hash_of: impl Fn(u32) -> u32) {
        let old_tags = std::mem::replace(&mut self.tags, vec![0; slots]);
        let old_ids = std::mem::replace(&mut self.ids, vec![0; slots]);
        for (_, &old) in old_tags.iter().zip(&old_ids).filter(|&(&tag, _)| tag != 0) {
            self.place(hash_of(old), old);
        }
    }

    fn place(&mut self, hash: u32, id: u32) {
        let mut slot = self.home(hash);
        while self.tags[slot] != 0 {
            slot = if slot + 1 == self.tags.len() { 0 } else { slot + 1 };
        }
        self.tags[slot] = tag(hash);
        self.ids[slot] = id;
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        bytes_of(&self.tags) + bytes_of(&self.ids)
    }
}

#[cfg(test)]
mod tests {
    use super::{IdTable, fold};

    #[test]
    fn every_id_is_found_again_at_every_size_and_no_other_is() {
        let mut table = IdTable::default();
        let hash = |id: u32| fold(u64::from(id % 500));
        for id in 0..1000 {
            table.insert(hash(id), id, hash);
            assert_eq!(table.find(hash(id / 2), |found| found == id / 2), Some(id / 2));
        }
        for id in 0..1000 {
            assert_eq!(table.find(hash(id), |found| found == id), Some(id));
        }
        assert_eq!(table.find(fold(777_777), |_| false), None);
    }
}
