//! What the last scrape of a target held: which of its series are known, and which must be ended when they vanish.
//!
//! Eight bytes of key and one of flags per series in the order of the page, and the page itself, compressed. Pages
//! hardly change their order, so the next page is compared in step; the text of the old page is only looked at when
//! something has vanished.
use std::collections::{HashMap, HashSet};

use metricsstore_ingest::text::{Page, PageOptions};
use metricsstore_model::{RawKey, RawKeyHasher, Row};

use crate::body::StoredPage;

/// The series is ended when it is absent from the next page.
pub(crate) const TRACKED: u8 = 1;
/// Relabelling drops the series.
pub(crate) const DROPPED: u8 = 2;
/// The store did not take the series: it is treated as never seen.
pub(crate) const REFUSED: u8 = 4;

/// The last page of a target.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    keys: Vec<u64>,
    flags: Vec<u8>,
    page: Option<StoredPage>,
}

/// Half of a row's key is enough to tell the rows of one page apart.
pub(crate) fn short(key: RawKey) -> u64 {
    key.0 as u64
}

impl Seen {
    pub(crate) fn new(keys: Vec<u64>, flags: Vec<u8>, page: Option<StoredPage>) -> Seen {
        Seen { keys, flags, page }
    }

    /// Rows of the last page.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let page = self.page.as_ref().map_or(0, StoredPage::bytes);
        self.keys.capacity() * size_of::<u64>() + self.flags.capacity() + page
    }

    /// Whether the last page had exactly these rows, so that its text can stay.
    pub(crate) fn is_same(&self, keys: &[u64], flags: &[u8]) -> bool {
        self.page.is_some() && self.keys == keys && self.flags == flags
    }

    /// What is known of each row: its flags, or `None` when it is new.
    pub(crate) fn look_up(&self, rows: &[Row<'_>]) -> Vec<Option<u8>> {
        let mut index: Option<HashMap<u64, usize>> = None;
        let mut next = 0;
        let found = rows.iter().map(|row| {
            let key = short(row.key);
            let at = if self.keys.get(next) == Some(&key) {
                Some(next)
            } else {
                index.get_or_insert_with(|| self.keys.iter().copied().zip(0..).collect()).get(&key).copied()
            }?;
            next = at + 1;
            Some(self.flags[at]).filter(|flags| flags & REFUSED == 0)
        });
        found.collect()
    }

    /// Keys of tracked rows that are not among the tracked rows of the new page.
    pub(crate) fn vanished(&self, keys: &[u64], flags: &[u8]) -> HashSet<u64> {
        if self.keys == keys && self.flags == flags {
            return HashSet::new();
        }
        let tracked = |keys: &[u64], flags: &[u8]| -> HashSet<u64> {
            let pairs = keys.iter().zip(flags);
            pairs.filter(|(_, flags)| **flags & TRACKED != 0).map(|(key, _)| *key).collect()
        };
        let now = tracked(keys, flags);
        let mut before = tracked(&self.keys, &self.flags);
        before.retain(|key| !now.contains(key));
        before
    }

    /// Keys of all tracked rows.
    pub(crate) fn tracked(&self) -> HashSet<u64> {
        self.vanished(&[], &[])
    }

    /// Forgets what was to be ended: it has been.
    pub(crate) fn untrack(&mut self) {
        for flags in &mut self.flags {
            *flags &= !TRACKED;
        }
        self.page = None;
    }

    /// The text of the last page.
    pub(crate) fn text(&self) -> Vec<u8> {
        self.page.as_ref().map(StoredPage::text).unwrap_or_default()
    }
}

/// Rows of `text`, which is a page read before, whose keys are among `keys`, each once.
pub(crate) fn rows_of<'p>(
    text: &'p [u8],
    rewritten: &'p mut Vec<u8>,
    hasher: RawKeyHasher,
    mut keys: HashSet<u64>,
) -> Vec<Row<'p>> {
    let options = PageOptions { hasher, timestamp_ms: 0, honor_timestamps: false, expected_rows: 0 };
    let page = Page::parse(text, rewritten, &options, |_| ()).unwrap_or_default();
    page.rows.into_iter().filter(|row| keys.remove(&short(row.key))).collect()
}

#[cfg(test)]
mod tests {
    use metricsstore_model::{RawKey, Row};

    use super::{DROPPED, REFUSED, Seen, TRACKED};

    fn rows(keys: &[u64]) -> Vec<Row<'static>> {
        keys.iter().map(|&key| Row { raw_labels: b"", key: RawKey(key.into()), samples: 0..0 }).collect()
    }

    #[test]
    fn rows_are_found_in_any_order_and_refused_ones_are_new() {
        let seen = Seen::new(vec![1, 2, 3, 4], vec![TRACKED, DROPPED, REFUSED, TRACKED], None);
        assert_eq!(seen.look_up(&rows(&[1, 2, 3, 4])), [Some(TRACKED), Some(DROPPED), None, Some(TRACKED)]);
        assert_eq!(
            seen.look_up(&rows(&[9, 4, 1, 2, 8])),
            [None, Some(TRACKED), Some(TRACKED), Some(DROPPED), None]
        );
    }

    #[test]
    fn only_tracked_rows_vanish_and_repeated_ones_do_not() {
        let seen = Seen::new(vec![1, 2, 2, 3], vec![TRACKED, TRACKED, TRACKED, DROPPED], None);
        assert!(seen.vanished(&[2, 1], &[TRACKED, TRACKED]).is_empty());
        assert_eq!(seen.vanished(&[2], &[TRACKED]), [1].into());
        // A series that now has timestamps of its own is no longer tracked, and is ended.
        assert_eq!(seen.vanished(&[1, 2], &[0, TRACKED]), [1].into());
        assert_eq!(seen.tracked(), [1, 2].into());
    }
}
