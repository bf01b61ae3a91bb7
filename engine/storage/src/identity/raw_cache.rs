//! From the keyed hash of a row's raw label bytes to its series: what makes a known series cost one lookup.
//!
//! An entry holds the low 64 bits of the 128-bit key and the id, 12 bytes; open addressing, grown by a quarter. An
//! unknown key is taken for a known one when those 64 bits agree: with n entries that happens once in 2⁶⁴/n unknown
//! keys (n = 10⁶: once in 1.8 · 10¹³ new series), and since the hash is keyed anew by each process, no sender can
//! aim at it.
use std::ops::Range;

use metricsstore_model::RawKey;

use super::tight::bytes_of;

/// The row of this key is dropped by relabelling.
pub(super) const DROPPED: u32 = u32::MAX - 1;
const EMPTY: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    /// Two halves, so that an entry needs 12 bytes and not 16.
    tag: [u32; 2],
    id: u32,
}

impl Entry {
    const FREE: Entry = Entry { tag: [0; 2], id: EMPTY };

    fn new(key: RawKey, id: u32) -> Entry {
        Entry { tag: [key.0 as u32, (key.0 >> 32) as u32], id }
    }

    fn home(&self, slots: usize) -> usize {
        let tag = u64::from(self.tag[1]) << 32 | u64::from(self.tag[0]);
        ((u128::from(tag) * slots as u128) >> 64) as usize
    }
}

/// Series (or [`DROPPED`]) by raw key, bounded.
#[derive(Default)]
pub(super) struct RawCache {
    entries: Vec<Entry>,
    len: usize,
    /// How many there were after the last [`RawCache::retain`].
    retained: usize,
}

impl RawCache {
    /// What is known of a key.
    pub(super) fn get(&self, key: RawKey) -> Option<u32> {
        let wanted = Entry::new(key, EMPTY);
        self.slot_of(&wanted).map(|slot| self.entries[slot].id)
    }

    fn slot_of(&self, wanted: &Entry) -> Option<usize> {
        if self.entries.is_empty() {
            return None;
        }
        let mut slot = wanted.home(self.entries.len());
        while self.entries[slot].id != EMPTY {
            if self.entries[slot].tag == wanted.tag {
                return Some(slot);
            }
            slot = self.after(slot);
        }
        None
    }

    /// Notes what a key is. With `bound` entries present, another one makes room. A table that is full grows when
    /// `has_room_for` the bytes of the larger one, which exists beside it for a moment; else the key is not noted.
    pub(super) fn insert(
        &mut self,
        key: RawKey,
        id: u32,
        bound: usize,
        has_room_for: impl FnOnce(usize) -> bool,
    ) {
        self.note(Entry::new(key, id), bound, has_room_for);
    }

    fn note(&mut self, entry: Entry, bound: usize, has_room_for: impl FnOnce(usize) -> bool) {
        if let Some(slot) = self.slot_of(&entry) {
            self.entries[slot].id = entry.id;
            return;
        }
        if self.len >= bound.max(1) {
            self.evict_near(&entry);
        } else if (self.len + 1) * 8 > self.entries.len() * 7 {
            let slots = (self.entries.len() * 5 / 4).max(16);
            if !has_room_for(slots * size_of::<Entry>()) {
                return;
            }
            self.resize(slots);
        }
        self.place(entry);
        self.len += 1;
    }

    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.entries.len() { 0 } else { slot + 1 }
    }

    fn place(&mut self, entry: Entry) {
        let mut slot = entry.home(self.entries.len());
        while self.entries[slot].id != EMPTY {
            slot = self.after(slot);
        }
        self.entries[slot] = entry;
    }

    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.entries, vec![Entry::FREE; slots]);
        old.into_iter().filter(|entry| entry.id != EMPTY).for_each(|entry| self.place(entry));
    }

    /// Takes out the first entry at or after the home of `entry`: as good as a random one.
    fn evict_near(&mut self, entry: &Entry) {
        let mut slot = entry.home(self.entries.len());
        while self.entries[slot].id == EMPTY {
            slot = self.after(slot);
        }
        self.remove(slot);
    }

    /// Frees a slot and moves later entries up, so that none is cut off from its home.
    fn remove(&mut self, mut hole: usize) {
        let slots = self.entries.len();
        let mut slot = self.after(hole);
        while self.entries[slot].id != EMPTY {
            let home = self.entries[slot].home(slots);
            // Distances along the ring, counted back from `slot`.
            if (slot + slots - home) % slots >= (slot + slots - hole) % slots {
                self.entries[hole] = self.entries[slot];
                hole = slot;
            }
            slot = self.after(slot);
        }
        self.entries[hole] = Entry::FREE;
        self.len -= 1;
    }

    /// Keeps the keys of ids for which `keep` holds and forgets the dropped ones.
    pub(super) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        self.entries.iter_mut().filter(|entry| entry.id == DROPPED || !keep(entry.id)).for_each(|entry| {
            *entry = Entry::FREE;
        });
        self.len = self.entries.iter().filter(|entry| entry.id != EMPTY).count();
        self.retained = self.len;
        self.resize(self.len * 5 / 4 + 16);
    }

    /// An empty cache with room for `keys` and some more.
    pub(super) fn with_room(keys: usize) -> RawCache {
        RawCache { entries: vec![Entry::FREE; keys * 5 / 4 + 16], len: 0, retained: 0 }
    }

    /// Keys noted.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Places for keys.
    pub(super) fn slots(&self) -> usize {
        self.entries.len()
    }

    /// Notes the keys in `slots` whose ids `keep` holds in another cache; those of dropped rows are left out.
    pub(super) fn copy_into(&self, slots: Range<usize>, keep: impl Fn(u32) -> bool, to: &mut RawCache) {
        let slots = slots.start..slots.end.min(self.entries.len());
        let known = self.entries[slots].iter().filter(|entry| entry.id != EMPTY && entry.id != DROPPED);
        for &entry in known.filter(|entry| keep(entry.id)) {
            to.note(entry, usize::MAX, |_| true);
        }
    }

    /// Forgets everything and gives the memory back.
    pub(super) fn clear(&mut self) {
        *self = RawCache::default();
    }

    /// Whether an eighth has come since the last [`RawCache::retain`].
    pub(super) fn has_grown(&self) -> bool {
        self.len > self.retained + self.retained / 8
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        bytes_of(&self.entries)
    }
}

#[cfg(test)]
mod tests {
    use metricsstore_model::{RawKey, RawKeyHasher};

    use super::{DROPPED, RawCache};

    fn key(number: u32) -> RawKey {
        RawKeyHasher::new(1, b"test").key(&number.to_le_bytes())
    }

    #[test]
    fn keys_are_found_until_their_series_is_gone() {
        let mut cache = RawCache::default();
        (0..5000).for_each(|id| cache.insert(key(id), id, usize::MAX, |_| true));
        cache.insert(key(5000), DROPPED, usize::MAX, |_| true);
        assert!((0..5000).all(|id| cache.get(key(id)) == Some(id)));
        assert_eq!(cache.get(key(5000)), Some(DROPPED));
        cache.retain(|id| id % 3 == 0);
        assert!((0..5000).all(|id| cache.get(key(id)) == (id % 3 == 0).then_some(id)));
        assert_eq!(cache.get(key(5000)), None);
        assert!(!cache.has_grown());
        (0..5000).for_each(|id| cache.insert(key(id), id, usize::MAX, |_| true));
        assert!(cache.has_grown());
    }

    #[test]
    fn without_room_to_grow_the_known_keys_stay_known() {
        let mut cache = RawCache::default();
        (0..5000).for_each(|id| cache.insert(key(id), id, usize::MAX, |bytes| bytes <= 12_000));
        let held = cache.bytes();
        assert!(held <= 12_000, "{held}");
        let known: Vec<u32> = (0..5000).filter(|&id| cache.get(key(id)) == Some(id)).collect();
        assert!(known.len() > 500 && known.iter().copied().eq(0..known.len() as u32));
        cache.clear();
        assert_eq!((cache.bytes(), cache.get(key(0))), (0, None));
    }

    #[test]
    fn at_its_bound_the_newest_key_is_known_and_no_other_answer_is_wrong() {
        let mut cache = RawCache::default();
        for id in 0..3000 {
            cache.insert(key(id), id, 100, |_| true);
            assert_eq!(cache.get(key(id)), Some(id));
        }
        let known: Vec<u32> = (0..3000).filter(|&id| cache.get(key(id)).is_some()).collect();
        assert_eq!(known.len(), 100);
        assert!(known.iter().all(|&id| cache.get(key(id)) == Some(id)));
    }
}
