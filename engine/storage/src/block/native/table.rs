//! Where the pages of one kind are: references in pages of their own, and in the directory where those are, so that a
//! block of any size is open in little memory.
//!
//! ```text
//! page of references, and their list in the directory (all numbers varints):
//!     count, then per page: first key − previous first key, last key − first key, offset − previous offset, bytes,
//!     zigzag(min ms − previous min ms), max ms − min ms, columns, samples
//! ```
//! Keys are rows, or numbers of streams. What is first and what is last ascends; a key may stand in several pages.
use super::page::{PageRef, PageSink, PageSource};
use crate::StorageError;
use crate::bytes::{Cursor, put_signed, put_varint};

/// References in one page.
const FANOUT: usize = 256;

/// A page, or all pages of a page of references.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) page: PageRef,
    /// Oldest and newest sample.
    pub(super) min_ms: i64,
    pub(super) max_ms: i64,
    /// Columns, or streams.
    pub(super) columns: u64,
    pub(super) samples: u64,
}

impl Entry {
    pub(super) fn overlaps(&self, (from_ms, to_ms): (i64, i64)) -> bool {
        self.min_ms <= to_ms && self.max_ms >= from_ms
    }

    fn over(entries: &[Entry], page: PageRef) -> Entry {
        let mut all = entries.iter();
        let Some(&first) = all.next() else { return Entry::default() };
        let all = all.fold(first, |sum, entry| Entry {
            last: entry.last,
            min_ms: sum.min_ms.min(entry.min_ms),
            max_ms: sum.max_ms.max(entry.max_ms),
            columns: sum.columns + entry.columns,
            samples: sum.samples + entry.samples,
            ..sum
        });
        Entry { page, ..all }
    }
}

pub(super) fn put_entries(entries: &[Entry], out: &mut Vec<u8>) {
    put_varint(out, entries.len() as u64);
    let mut previous = Entry::default();
    for &entry in entries {
        put_varint(out, u64::from(entry.first - previous.first));
        put_varint(out, u64::from(entry.last - entry.first));
        entry.page.put(out, previous.page);
        put_signed(out, entry.min_ms.wrapping_sub(previous.min_ms));
        put_varint(out, entry.max_ms.wrapping_sub(entry.min_ms) as u64);
        put_varint(out, entry.columns);
        put_varint(out, entry.samples);
        previous = entry;
    }
}

/// `None` is damage.
pub(super) fn take_entries(cursor: &mut Cursor<'_>, end: u64) -> Option<Vec<Entry>> {
    let count = cursor.varint()?;
    let mut entries: Vec<Entry> = Vec::new();
    let mut previous = Entry::default();
    for _ in 0..count {
        let first = previous.first.checked_add(cursor.varint_u32()?)?;
        let last = first.checked_add(cursor.varint_u32()?)?;
        let page = PageRef::take(cursor, previous.page, end)?;
        let min_ms = previous.min_ms.wrapping_add(cursor.signed()?);
        let max_ms = min_ms.wrapping_add(cursor.varint()? as i64);
        if last < previous.last || max_ms < min_ms {
            return None;
        }
        let (columns, samples) = (cursor.varint()?, cursor.varint()?);
        previous = Entry { first, last, page, min_ms, max_ms, columns, samples };
        entries.push(previous);
    }
    entries.shrink_to_fit();
    Some(entries)
}

/// Collects references while pages are written.
#[derive(Default)]
pub(super) struct TableWriter {
    open: Vec<Entry>,
    closed: Vec<Entry>,
}

impl TableWriter {
    pub(super) fn push(&mut self, entry: Entry, sink: &mut PageSink) -> Result<(), StorageError> {
        self.open.push(entry);
        if self.open.len() >= FANOUT { self.close(sink) } else { Ok(()) }
    }

    fn close(&mut self, sink: &mut PageSink) -> Result<(), StorageError> {
        let mut content = Vec::new();
        put_entries(&self.open, &mut content);
        let page = sink.put(&content)?;
        self.closed.push(Entry::over(&self.open, page));
        self.open.clear();
        Ok(())
    }

    /// What the directory has of it.
    pub(super) fn finish(mut self, sink: &mut PageSink) -> Result<Vec<Entry>, StorageError> {
        if !self.open.is_empty() {
            self.close(sink)?;
        }
        Ok(self.closed)
    }
}

/// Reads one table, and keeps the page of references that it read last.
#[derive(Default)]
pub(super) struct TableCursor {
    loaded: Option<u64>,
    entries: Vec<Entry>,
    found: Vec<Entry>,
}

impl TableCursor {
    /// The pages that may have something under a key, in their order.
    pub(super) fn find(
        &mut self,
        table: &[Entry],
        source: &PageSource,
        key: u32,
    ) -> Result<&[Entry], StorageError> {
        self.found.clear();
        let from = table.partition_point(|entry| entry.last < key);
        for over in table[from..].iter().take_while(|over| over.first <= key) {
            self.load(over, source)?;
            let from = self.entries.partition_point(|entry| entry.last < key);
            self.found.extend(self.entries[from..].iter().take_while(|entry| entry.first <= key));
        }
        Ok(&self.found)
    }

    fn load(&mut self, over: &Entry, source: &PageSource) -> Result<(), StorageError> {
        if self.loaded == Some(over.page.offset) {
            return Ok(());
        }
        self.loaded = None;
        let content = source.read(over.page)?;
        self.entries = take_entries(&mut Cursor::new(&content), source.end)
            .ok_or_else(|| source.damaged(over.page.offset, "a page of references is malformed"))?;
        self.loaded = Some(over.page.offset);
        Ok(())
    }
}
