//! Sets of label pairs that series share, and where each pair occurs. A series is two sets: the labels that say where it
//! comes from, and the others.
//!
//! ```text
//! sets      list by number: fingerprint u128 LE; then ordinals of the pairs, ascending, each − the one before
//! postings  list by the ordinal of the pair: numbers of the sets that have it, ascending, as runs of neighbours: gap
//!           since the end of the run before << 1 | longer; where it is longer than one, its length − 2
//! ```
use std::sync::Arc;

use roaring::RoaringBitmap;

use super::interner::Interner;
use super::list::{self, ListPage, ListWriter};
use super::page::{PageSink, PageSource};
use crate::StorageError;
use crate::bytes::{Cursor, put_varint};

const FINGERPRINT_BYTES: usize = 16;
const PAGE_BYTES: usize = 32 << 10;
/// Sets that are believed.
const MAX_SETS: u32 = 1 << 30;

/// What the directory has of sets and postings.
#[derive(Default)]
pub(super) struct Sets {
    pub(super) count: u32,
    pub(super) pages: Vec<ListPage>,
    pub(super) postings: Vec<ListPage>,
}

/// Writes sets and postings; `order` has the pairs as their keys sort.
pub(super) fn write(interner: &Interner, order: &[u32], sink: &mut PageSink) -> Result<Sets, StorageError> {
    let mut ordinals = vec![0; order.len()];
    order.iter().zip(0..).for_each(|(&pair, ordinal)| ordinals[pair as usize] = ordinal);
    let (mut sets, mut pairs) = (ListWriter::new(PAGE_BYTES), Vec::new());
    for number in 0..interner.set_count() {
        pairs.clear();
        pairs.extend(interner.set(number).iter().map(|&pair| ordinals[pair as usize]));
        pairs.sort_unstable();
        sets.push(sink, |out| {
            out.extend_from_slice(&interner.fingerprint(number).to_le_bytes());
            put_ascending(&pairs, out);
        })?;
    }
    let pages = sets.finish(sink)?;
    let postings = write_postings(interner, &ordinals, sink)?;
    Ok(Sets { count: interner.set_count(), pages, postings })
}

fn put_ascending(numbers: &[u32], out: &mut Vec<u8>) {
    let mut previous = 0;
    for &number in numbers {
        put_varint(out, u64::from(number - previous));
        previous = number;
    }
}

fn write_postings(
    interner: &Interner,
    ordinals: &[u32],
    sink: &mut PageSink,
) -> Result<Vec<ListPage>, StorageError> {
    let sets =
        || (0..interner.set_count()).flat_map(|set| interner.set(set).iter().map(move |&pair| (pair, set)));
    let mut ends = vec![0_u32; ordinals.len()];
    sets().for_each(|(pair, _)| ends[ordinals[pair as usize] as usize] += 1);
    let mut total = 0;
    for end in &mut ends {
        total += std::mem::replace(end, total);
    }
    // `ends` are starts now, and become ends while the sets are put behind them.
    let mut members = vec![0; total as usize];
    for (pair, set) in sets() {
        let end = &mut ends[ordinals[pair as usize] as usize];
        members[*end as usize] = set;
        *end += 1;
    }
    let (mut postings, mut start) = (ListWriter::new(PAGE_BYTES), 0);
    for &end in &ends {
        postings.push(sink, |out| put_runs(&members[start..end as usize], out))?;
        start = end as usize;
    }
    postings.finish(sink)
}

fn put_runs(members: &[u32], out: &mut Vec<u8>) {
    let mut end = 0;
    for run in members.chunk_by(|a, b| a + 1 == *b) {
        put_varint(out, u64::from(run[0] - end) << 1 | u64::from(run.len() > 1));
        if run.len() > 1 {
            put_varint(out, run.len() as u64 - 2);
        }
        end = run[0] + run.len() as u32;
    }
}

/// A set as it is stored.
pub(super) struct Set {
    /// Ordinals, ascending.
    pub(super) pairs: Vec<u32>,
}

impl Sets {
    pub(super) fn set(&self, number: u32, source: &PageSource) -> Result<Set, StorageError> {
        let (page, index) = self.find(number, source)?;
        let content = source.read(page.page)?;
        list::get(&content, index).and_then(read_set).ok_or_else(|| damaged(source, page, "sets of labels"))
    }

    /// Hands sets, which ascend, and their fingerprints to `visit`: each page is read once.
    pub(super) fn visit_fingerprints(
        &self,
        numbers: &[u32],
        source: &PageSource,
        mut visit: impl FnMut(u32, u128),
    ) -> Result<(), StorageError> {
        let mut loaded: Option<(u64, Arc<[u8]>)> = None;
        for &number in numbers {
            let (page, index) = self.find(number, source)?;
            let content = match &loaded {
                Some((offset, content)) if *offset == page.page.offset => content,
                _ => &loaded.insert((page.page.offset, source.read(page.page)?)).1,
            };
            let fingerprint = list::get(content, index).and_then(<[u8]>::first_chunk);
            let fingerprint = fingerprint.ok_or_else(|| damaged(source, page, "sets of labels"))?;
            visit(number, u128::from_le_bytes(*fingerprint));
        }
        Ok(())
    }

    fn find(&self, number: u32, source: &PageSource) -> Result<(&ListPage, usize), StorageError> {
        let found = list::find(&self.pages, number).filter(|_| number < self.count);
        found.ok_or_else(|| source.damaged(source.end, "a series names a set of labels that does not exist"))
    }

    /// Adds the sets that have a pair.
    pub(super) fn add_sets_of(
        &self,
        pair: u32,
        sets: &mut RoaringBitmap,
        source: &PageSource,
    ) -> Result<(), StorageError> {
        let Some((page, index)) = list::find(&self.postings, pair) else { return Ok(()) };
        let content = source.read(page.page)?;
        let runs = list::get(&content, index).and_then(|runs| add_runs(runs, self.count, sets));
        runs.ok_or_else(|| damaged(source, page, "postings"))
    }

    pub(super) fn take(cursor: &mut Cursor<'_>, end: u64) -> Option<Sets> {
        let count = cursor.varint_u32().filter(|&count| count <= MAX_SETS)?;
        let (pages, postings) = (list::take_pages(cursor, end)?, list::take_pages(cursor, end)?);
        Some(Sets { count, pages, postings })
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.count));
        list::put_pages(&self.pages, out);
        list::put_pages(&self.postings, out);
    }
}

fn damaged(source: &PageSource, page: &ListPage, what: &str) -> StorageError {
    source.damaged(page.page.offset, &format!("a page of {what} is malformed"))
}

fn read_set(entry: &[u8]) -> Option<Set> {
    let (_, rest) = entry.split_first_chunk::<FINGERPRINT_BYTES>()?;
    let mut cursor = Cursor::new(rest);
    let (mut pairs, mut pair) = (Vec::new(), 0u32);
    while !cursor.is_at_end() {
        pair = pair.checked_add(cursor.varint_u32()?)?;
        pairs.push(pair);
    }
    Some(Set { pairs })
}

fn add_runs(runs: &[u8], count: u32, sets: &mut RoaringBitmap) -> Option<()> {
    let (mut cursor, mut end) = (Cursor::new(runs), 0u64);
    while !cursor.is_at_end() {
        let head = cursor.varint()?;
        let length = if head & 1 == 1 { cursor.varint()?.checked_add(2)? } else { 1 };
        let start = end.checked_add(head >> 1)?;
        end = start.checked_add(length).filter(|&end| end <= u64::from(count))?;
        sets.insert_range(start as u32..end as u32);
    }
    Some(())
}
