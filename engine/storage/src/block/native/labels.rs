//! Which two sets of labels each row has.
//!
//! ```text
//! page    of 4096 rows, the last one shorter: numbers of the sets of places, then those of the others, each list
//!         padded to whole bytes. A number stands as its distance from the smallest of its list in the page, in as many
//!         bits as the largest needs, the lowest bit first.
//! list    in the directory, varints: count, then per page: offset − previous offset, bytes; of either list: smallest
//!         number, largest − smallest
//! ```
//! Sets are numbered in the order in which rows need them, and rows sort by their metric before anything else: the sets
//! of one metric stand in few pages, and a search for them passes over the others.
use super::interner::RowSets;
use super::page::{PageRef, PageSink};
use crate::StorageError;
use crate::bytes::{Cursor, put_varint};

pub(super) const ROWS_PER_PAGE: u32 = 4096;

/// Numbers of one list in one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) min: u32,
    pub(super) max: u32,
}

impl Span {
    fn of(numbers: impl Iterator<Item = u32> + Clone) -> Span {
        Span { min: numbers.clone().min().unwrap_or(0), max: numbers.max().unwrap_or(0) }
    }

    fn width(self) -> u32 {
        u32::BITS - (self.max - self.min).leading_zeros()
    }

    fn bytes(self, rows: usize) -> usize {
        (rows * self.width() as usize).div_ceil(8)
    }

    fn put(self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.min));
        put_varint(out, u64::from(self.max - self.min));
    }

    fn take(cursor: &mut Cursor<'_>) -> Option<Span> {
        let min = cursor.varint_u32()?;
        Some(Span { min, max: min.checked_add(cursor.varint_u32()?)? })
    }
}

/// A page of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowPage {
    pub(super) page: PageRef,
    pub(super) places: Span,
    pub(super) rests: Span,
}

/// Writes the sets of rows.
#[derive(Default)]
pub(super) struct RowsWriter {
    open: Vec<RowSets>,
    pages: Vec<RowPage>,
}

impl RowsWriter {
    pub(super) fn push(&mut self, sets: RowSets, sink: &mut PageSink) -> Result<(), StorageError> {
        self.open.push(sets);
        if self.open.len() >= ROWS_PER_PAGE as usize { self.close(sink) } else { Ok(()) }
    }

    fn close(&mut self, sink: &mut PageSink) -> Result<(), StorageError> {
        let (places, rests) =
            (self.open.iter().map(|sets| sets.place), self.open.iter().map(|sets| sets.rest));
        let (place_span, rest_span) = (Span::of(places.clone()), Span::of(rests.clone()));
        let mut content = Vec::new();
        pack(place_span, places, &mut content);
        pack(rest_span, rests, &mut content);
        self.pages.push(RowPage { page: sink.put(&content)?, places: place_span, rests: rest_span });
        self.open.clear();
        Ok(())
    }

    pub(super) fn finish(mut self, sink: &mut PageSink) -> Result<Vec<RowPage>, StorageError> {
        if !self.open.is_empty() {
            self.close(sink)?;
        }
        Ok(self.pages)
    }
}

fn pack(span: Span, numbers: impl Iterator<Item = u32>, out: &mut Vec<u8>) {
    let (mut word, mut held) = (0_u64, 0);
    for number in numbers {
        word |= u64::from(number - span.min) << held;
        held += span.width();
        while held >= 8 {
            out.push(word as u8);
            word >>= 8;
            held -= 8;
        }
    }
    if held > 0 {
        out.push(word as u8);
    }
}

fn unpack(span: Span, bytes: &[u8], index: usize) -> u32 {
    let width = span.width();
    let bit = index * width as usize;
    let mut word = [0; 8];
    let window = &bytes[(bit / 8).min(bytes.len())..];
    let length = window.len().min(8);
    word[..length].copy_from_slice(&window[..length]);
    let distance = u64::from_le_bytes(word) >> (bit % 8) & ((1 << width) - 1);
    span.min.saturating_add(distance as u32)
}

/// A page of rows that was read.
pub(super) struct Rows<'p> {
    page: &'p RowPage,
    places: &'p [u8],
    rests: &'p [u8],
}

impl<'p> Rows<'p> {
    /// `None` where the page does not have the length that so many rows have.
    pub(super) fn new(page: &'p RowPage, content: &'p [u8], rows: usize) -> Option<Rows<'p>> {
        let (places, rests) = content.split_at_checked(page.places.bytes(rows))?;
        (rests.len() == page.rests.bytes(rows)).then_some(Rows { page, places, rests })
    }

    pub(super) fn get(&self, index: usize) -> RowSets {
        RowSets {
            place: unpack(self.page.places, self.places, index),
            rest: unpack(self.page.rests, self.rests, index),
        }
    }
}

pub(super) fn put_pages(pages: &[RowPage], out: &mut Vec<u8>) {
    put_varint(out, pages.len() as u64);
    let mut previous = PageRef::default();
    for page in pages {
        page.page.put(out, previous);
        page.places.put(out);
        page.rests.put(out);
        previous = page.page;
    }
}

/// Pages of so many rows; `None` is damage.
pub(super) fn take_pages(cursor: &mut Cursor<'_>, end: u64, rows: u32) -> Option<Vec<RowPage>> {
    let count = cursor.varint()?;
    if count != u64::from(rows.div_ceil(ROWS_PER_PAGE)) {
        return None;
    }
    let (mut pages, mut previous) = (Vec::new(), PageRef::default());
    for _ in 0..count {
        previous = PageRef::take(cursor, previous, end)?;
        pages.push(RowPage { page: previous, places: Span::take(cursor)?, rests: Span::take(cursor)? });
    }
    Some(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_width_come_back() {
        for max in [0, 1, 2, 7, 8, 1000, u32::MAX - 3] {
            let numbers: Vec<u32> =
                (0..50).map(|n| 3 + (n * 2_654_435_761_u64 % (u64::from(max) + 1)) as u32).collect();
            let span = Span::of(numbers.iter().copied());
            let mut bytes = Vec::new();
            pack(span, numbers.iter().copied(), &mut bytes);
            assert_eq!(bytes.len(), span.bytes(numbers.len()));
            let unpacked: Vec<u32> = (0..numbers.len()).map(|index| unpack(span, &bytes, index)).collect();
            assert_eq!(unpacked, numbers);
        }
    }
}
