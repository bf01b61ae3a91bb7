//! The symbols of an index that is read: one in [`SPARSE`] is known by its offset, the others are walked to.
use std::sync::Arc;

use super::SPARSE;
use super::source::{Pages, Source};
use crate::StorageError;
use crate::bytes::Cursor;
use crate::sync::Mutex;

/// Groups of [`SPARSE`] symbols that are kept as they were read.
const KEPT_GROUPS: usize = 32;
/// The largest group that is kept.
const KEPT_BYTES: usize = 4 << 10;

/// A group and its bytes.
type Kept = (u32, Arc<[u8]>);

pub(super) struct Symbols {
    is_by_offset: bool,
    count: u32,
    /// Offset in the file of the first symbol.
    start: u64,
    /// Offsets from there of one symbol in [`SPARSE`].
    groups: Vec<u32>,
    pages: Pages,
    kept: Mutex<Vec<Option<Kept>>>,
}

impl Symbols {
    pub(super) fn read(source: &Source, version: u8, offset: u64) -> Result<Symbols, StorageError> {
        let mut scan = source.section(offset)?;
        let count = scan.u32()?;
        if u64::from(count) > scan.left() {
            return Err(scan.damaged("there are more symbols than bytes"));
        }
        let start = scan.offset();
        let mut groups = Vec::with_capacity(count as usize / SPARSE + 1);
        for place in 0..count as usize {
            if place.is_multiple_of(SPARSE) {
                groups.push((scan.offset() - start) as u32);
            }
            let length = scan.varint()?;
            scan.take(usize::try_from(length).unwrap_or(usize::MAX))?;
        }
        if scan.left() > 0 {
            return Err(scan.damaged("there are more bytes than symbols"));
        }
        let pages = scan.verify()?;
        let kept = Mutex::new(vec![None; KEPT_GROUPS]);
        Ok(Symbols { is_by_offset: version == 1, count, start, groups, pages, kept })
    }

    /// Hands the text of a symbol to `take`.
    pub(super) fn get<T>(
        &self,
        source: &Source,
        symbol: u32,
        take: impl FnOnce(&str) -> T,
    ) -> Result<T, StorageError> {
        let (group, group_start, within) = self.place(source, symbol)?;
        let bytes = self.group(source, group)?;
        let text =
            text_in(&bytes, within).ok_or_else(|| source.damaged(group_start, "a symbol is malformed"))?;
        let text =
            std::str::from_utf8(text).map_err(|_| source.damaged(group_start, "a symbol is not UTF-8"))?;
        Ok(take(text))
    }

    /// Group of a symbol, where that begins in the file, and how to get to the symbol in it.
    fn place(&self, source: &Source, symbol: u32) -> Result<(u32, u64, Within), StorageError> {
        let unknown = || source.damaged(self.start, format!("a series has the unknown symbol {symbol}"));
        if self.is_by_offset {
            let from_start = u64::from(symbol).checked_sub(self.start).ok_or_else(unknown)? as u32;
            let after = self.groups.partition_point(|&group| group <= from_start);
            let group = after.checked_sub(1).ok_or_else(unknown)?;
            let group_start = self.start + u64::from(self.groups[group]);
            return Ok((
                group as u32,
                group_start,
                Within::Bytes((from_start - self.groups[group]) as usize),
            ));
        }
        if symbol >= self.count {
            return Err(unknown());
        }
        let group = symbol / SPARSE as u32;
        let group_start = self.start + u64::from(self.groups[group as usize]);
        Ok((group, group_start, Within::Symbols(symbol % SPARSE as u32)))
    }

    fn group(&self, source: &Source, group: u32) -> Result<Arc<[u8]>, StorageError> {
        let slot = group as usize % KEPT_GROUPS;
        if let Some((_, bytes)) = self.kept.lock()[slot].as_ref().filter(|(kept, _)| *kept == group) {
            return Ok(Arc::clone(bytes));
        }
        let start = self.start + u64::from(self.groups[group as usize]);
        let next = self.groups.get(group as usize + 1);
        let end = next.map_or(self.pages.end, |&next| self.start + u64::from(next));
        let bytes: Arc<[u8]> = self.pages.read(source, start, end)?.into();
        if bytes.len() <= KEPT_BYTES {
            self.kept.lock()[slot] = Some((group, Arc::clone(&bytes)));
        }
        Ok(bytes)
    }

    /// Bytes of memory held, at most.
    pub(super) fn bytes(&self) -> usize {
        self.groups.capacity() * 4
            + self.pages.bytes()
            + KEPT_GROUPS * (size_of::<Option<Kept>>() + KEPT_BYTES)
    }
}

/// The way from the beginning of a group to a symbol.
#[derive(Clone, Copy)]
enum Within {
    Bytes(usize),
    Symbols(u32),
}

fn text_in(group: &[u8], within: Within) -> Option<&[u8]> {
    let (from, symbols) = match within {
        Within::Bytes(bytes) => (bytes, 0),
        Within::Symbols(symbols) => (0, symbols),
    };
    let mut cursor = Cursor::new(group.get(from..)?);
    for _ in 0..symbols {
        let length = usize::try_from(cursor.varint()?).ok()?;
        cursor.take(length)?;
    }
    let length = usize::try_from(cursor.varint()?).ok()?;
    cursor.take(length)
}
