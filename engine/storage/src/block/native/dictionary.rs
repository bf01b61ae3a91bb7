//! The label pairs of a block, sorted: text to ordinal and back.
//!
//! ```text
//! key     name, 255, value
//! list    of runs of 16 keys, the last one shorter; a page ends behind a run. Per key, varints: bytes that it shares
//!         with the key before in the run, further bytes; these bytes
//! fst     in the directory: the last key of each page -> the number of the page
//! names   one page: count, then per name, ascending as keys are: its length; its bytes; its number of values
//! ```
//! Pages instead of one map: a look-up reads a page, not the dictionary; the fst, which has to be in memory as a whole,
//! has a key for some hundreds of pairs.
use std::ops::Range;

use fst::{IntoStreamer, Streamer};

use super::interner::{Interner, SEPARATOR};
use super::list::{self, ListPage, ListWriter};
use super::page::{PageRef, PageSink, PageSource};
use crate::StorageError;
use crate::bytes::{Cursor, put_varint};

const RUN: usize = 16;
/// Smaller than others: a look-up of one label reads one.
const PAGE_BYTES: usize = 16 << 10;

/// What the directory has of a dictionary.
pub(super) struct Dictionary {
    pub(super) fst: fst::Map<Vec<u8>>,
    /// Of runs.
    pub(super) pages: Vec<ListPage>,
    pub(super) names: PageRef,
    pub(super) pairs: u32,
}

/// A label name, and which pairs have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) name: String,
    pub(super) pairs: Range<u32>,
}

/// Writes the pairs in this order, which is that of their keys.
pub(super) fn write(
    interner: &Interner,
    order: &[u32],
    sink: &mut PageSink,
) -> Result<Dictionary, StorageError> {
    let mut runs = ListWriter::new(PAGE_BYTES);
    let mut keys = Vec::new();
    for run in order.chunks(RUN) {
        let is_first = runs.push(sink, |out| put_run(run.iter().map(|&pair| interner.key(pair)), out))?;
        if is_first {
            keys.push(run[run.len() - 1]);
        }
        if let (Some(last), Some(&pair)) = (keys.last_mut(), run.last()) {
            *last = pair;
        }
    }
    let pages = runs.finish(sink)?;
    let what = |error: fst::Error| StorageError::corrupt(&sink.path, sink.offset, error.to_string());
    let keys = keys.iter().zip(0..).map(|(&pair, page)| (interner.key(pair), page));
    let fst = fst::Map::from_iter(keys).map_err(what)?;
    let names = sink.put(&names_page(interner, order))?;
    Ok(Dictionary { fst, pages, names, pairs: order.len() as u32 })
}

fn put_run<'k>(keys: impl Iterator<Item = &'k [u8]>, out: &mut Vec<u8>) {
    let mut previous: &[u8] = &[];
    for key in keys {
        let shared = previous.iter().zip(key).take_while(|(a, b)| a == b).count();
        put_varint(out, shared as u64);
        put_varint(out, (key.len() - shared) as u64);
        out.extend_from_slice(&key[shared..]);
        previous = key;
    }
}

fn names_page(interner: &Interner, order: &[u32]) -> Vec<u8> {
    let name_of = |&pair: &u32| interner.key(pair).split(|&byte| byte == SEPARATOR).next().unwrap_or(&[]);
    let (mut entries, mut count) = (Vec::new(), 0);
    for pairs in order.chunk_by(|a, b| name_of(a) == name_of(b)) {
        let name = name_of(&pairs[0]);
        put_varint(&mut entries, name.len() as u64);
        entries.extend_from_slice(name);
        put_varint(&mut entries, pairs.len() as u64);
        count += 1;
    }
    let mut page = Vec::new();
    put_varint(&mut page, count);
    page.append(&mut entries);
    page
}

/// Reads keys of a run one after the other.
struct Run<'p> {
    cursor: Cursor<'p>,
}

impl Run<'_> {
    /// Turns the key before, nothing at first, into the next one; `None` is damage.
    fn next(&mut self, key: &mut Vec<u8>) -> Option<()> {
        let shared = usize::try_from(self.cursor.varint()?).ok()?;
        let more = usize::try_from(self.cursor.varint()?).ok()?;
        if shared > key.len() {
            return None;
        }
        key.truncate(shared);
        key.extend_from_slice(self.cursor.take(more)?);
        Some(())
    }
}

/// Name and value of a key; `None` is damage.
pub(super) fn split(key: &[u8]) -> Option<(&str, &str)> {
    let separator = key.iter().position(|&byte| byte == SEPARATOR)?;
    Some((str::from_utf8(&key[..separator]).ok()?, str::from_utf8(&key[separator + 1..]).ok()?))
}

impl Dictionary {
    /// The ordinal of a pair.
    pub(super) fn find(
        &self,
        name: &str,
        value: &str,
        source: &PageSource,
    ) -> Result<Option<u32>, StorageError> {
        let wanted = [name.as_bytes(), &[SEPARATOR], value.as_bytes()].concat();
        let mut pages = self.fst.range().ge(&wanted).into_stream();
        let Some((_, number)) = pages.next() else { return Ok(None) };
        let page = usize::try_from(number).ok().and_then(|number| self.pages.get(number));
        let Some(page) = page else { return Ok(None) };
        let content = source.read(page.page)?;
        let (place, is_there) = find_in(&content, &wanted).ok_or_else(|| malformed(source, page))?;
        Ok(is_there.then(|| page.first * RUN as u32 + place))
    }

    /// Appends the key of a pair, replacing what is in `key`.
    pub(super) fn key(&self, pair: u32, key: &mut Vec<u8>, source: &PageSource) -> Result<(), StorageError> {
        key.clear();
        let place = list::find(&self.pages, pair / RUN as u32).filter(|_| pair < self.pairs);
        let Some((page, run)) = place else {
            return Err(source.damaged(source.end, "a set of labels names a pair that does not exist"));
        };
        let content = source.read(page.page)?;
        let read = |key: &mut Vec<u8>| {
            let mut run = Run { cursor: Cursor::new(list::get(&content, run)?) };
            (0..=pair as usize % RUN).try_for_each(|_| run.next(key))
        };
        read(key).ok_or_else(|| malformed(source, page))
    }

    /// Hands ordinals and values of the pairs of one name to `visit`.
    pub(super) fn visit(
        &self,
        pairs: Range<u32>,
        source: &PageSource,
        mut visit: impl FnMut(u32, &str),
    ) -> Result<(), StorageError> {
        let (mut pair, mut key) = (pairs.start, Vec::new());
        while pair < pairs.end.min(self.pairs) {
            let run = pair / RUN as u32;
            let Some((page, first)) = list::find(&self.pages, run) else { break };
            let content = source.read(page.page)?;
            let runs =
                list::count(&content).filter(|&runs| runs > first).ok_or_else(|| malformed(source, page))?;
            for run in first..runs {
                let start = (page.first + run as u32) * RUN as u32;
                let mut read = || {
                    let mut keys = Run { cursor: Cursor::new(list::get(&content, run)?) };
                    key.clear();
                    for at in (start..start + RUN as u32).take_while(|&at| at < pairs.end) {
                        keys.next(&mut key)?;
                        if at >= pair {
                            visit(at, split(&key)?.1);
                        }
                    }
                    Some(())
                };
                read().ok_or_else(|| malformed(source, page))?;
                pair = start + RUN as u32;
                if pair >= pairs.end {
                    break;
                }
            }
        }
        Ok(())
    }

    /// All label names, as keys sort.
    pub(super) fn names(&self, source: &PageSource) -> Result<Vec<Name>, StorageError> {
        let content = source.read(self.names)?;
        read_names(&content, self.pairs)
            .ok_or_else(|| source.damaged(self.names.offset, "the page of label names is malformed"))
    }
}

fn malformed(source: &PageSource, page: &ListPage) -> StorageError {
    source.damaged(page.page.offset, "a page of label pairs is malformed")
}

/// Where in a page of runs the first key that is not before a wanted one stands, and whether it is that; `None` is damage.
fn find_in(page: &[u8], wanted: &[u8]) -> Option<(u32, bool)> {
    let mut key = Vec::new();
    let (mut low, mut high) = (0, list::count(page)?);
    // The last run that does not begin behind the key.
    while low < high {
        let middle = low.midpoint(high);
        key.clear();
        Run { cursor: Cursor::new(list::get(page, middle)?) }.next(&mut key)?;
        if key.as_slice() <= wanted {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let Some(run) = low.checked_sub(1) else { return Some((0, false)) };
    let mut keys = Run { cursor: Cursor::new(list::get(page, run)?) };
    key.clear();
    let mut place = (run * RUN) as u32;
    while !keys.cursor.is_at_end() {
        keys.next(&mut key)?;
        if key.as_slice() >= wanted {
            return Some((place, key == wanted));
        }
        place += 1;
    }
    Some((place, false))
}

fn read_names(page: &[u8], pairs: u32) -> Option<Vec<Name>> {
    let mut cursor = Cursor::new(page);
    let count = cursor.varint()?;
    let (mut names, mut first) = (Vec::new(), 0u32);
    for _ in 0..count {
        let length = usize::try_from(cursor.varint()?).ok()?;
        let name = str::from_utf8(cursor.take(length)?).ok()?.to_owned();
        let end = first.checked_add(cursor.varint_u32()?)?;
        names.push(Name { name, pairs: first..end });
        first = end;
    }
    (first == pairs && cursor.is_at_end()).then_some(names)
}
