//! Lists of byte strings that are found by their index, over as many pages as it takes.
//!
//! ```text
//! page    width of an end u8 = 2 or 4, count u32 LE, then per entry: where it ends, counted from the first entry; entries
//! ```
use super::PAGE_BYTES;
use super::page::{PageRef, PageSink};
use crate::StorageError;
use crate::bytes::{Cursor, put_varint};

const HEAD_BYTES: usize = 5;

/// A page of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ListPage {
    /// Index of the first entry in it.
    pub(super) first: u32,
    pub(super) page: PageRef,
}

/// Writes a list.
pub(super) struct ListWriter {
    page_bytes: usize,
    ends: Vec<u32>,
    payload: Vec<u8>,
    first: u32,
    pages: Vec<ListPage>,
}

impl ListWriter {
    pub(super) fn new(page_bytes: usize) -> ListWriter {
        let page_bytes = page_bytes.min(PAGE_BYTES);
        ListWriter { page_bytes, ends: Vec::new(), payload: Vec::new(), first: 0, pages: Vec::new() }
    }

    /// Appends the entry that `write` appends to the buffer; true when it was the first of a page.
    pub(super) fn push(
        &mut self,
        sink: &mut PageSink,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<bool, StorageError> {
        let is_first = self.ends.is_empty();
        write(&mut self.payload);
        self.ends.push(self.payload.len() as u32);
        if self.payload.len() + 2 * self.ends.len() >= self.page_bytes {
            self.close(sink)?;
        }
        Ok(is_first)
    }

    /// Ends the page, unless nothing is in it.
    pub(super) fn close(&mut self, sink: &mut PageSink) -> Result<(), StorageError> {
        if self.ends.is_empty() {
            return Ok(());
        }
        let wide = self.payload.len() > usize::from(u16::MAX);
        let mut content = vec![if wide { 4 } else { 2 }];
        content.extend_from_slice(&(self.ends.len() as u32).to_le_bytes());
        for &end in &self.ends {
            content.extend_from_slice(&end.to_le_bytes()[..if wide { 4 } else { 2 }]);
        }
        content.append(&mut self.payload);
        self.pages.push(ListPage { first: self.first, page: sink.put(&content)? });
        self.first += self.ends.len() as u32;
        self.ends.clear();
        Ok(())
    }

    pub(super) fn finish(mut self, sink: &mut PageSink) -> Result<Vec<ListPage>, StorageError> {
        self.close(sink)?;
        Ok(self.pages)
    }
}

/// Entries in a page; `None` is damage.
pub(super) fn count(page: &[u8]) -> Option<usize> {
    let count = u32::from_le_bytes(page.get(1..HEAD_BYTES)?.try_into().ok()?) as usize;
    let width = usize::from(*page.first()?);
    let ends = count.checked_mul(width)?.checked_add(HEAD_BYTES)?;
    (matches!(width, 2 | 4) && ends <= page.len()).then_some(count)
}

/// An entry of a page; `None` is damage.
pub(super) fn get(page: &[u8], index: usize) -> Option<&[u8]> {
    let count = count(page)?;
    if index >= count {
        return None;
    }
    let width = usize::from(page[0]);
    let end_of = |index: usize| {
        let at = HEAD_BYTES + index * width;
        let mut end = [0; 4];
        end[..width].copy_from_slice(&page[at..at + width]);
        u32::from_le_bytes(end) as usize
    };
    let payload = &page[HEAD_BYTES + count * width..];
    payload.get(if index == 0 { 0 } else { end_of(index - 1) }..end_of(index))
}

pub(super) fn put_pages(pages: &[ListPage], out: &mut Vec<u8>) {
    put_varint(out, pages.len() as u64);
    let mut previous = ListPage::default();
    for &page in pages {
        put_varint(out, u64::from(page.first - previous.first));
        page.page.put(out, previous.page);
        previous = page;
    }
}

/// `None` is damage.
pub(super) fn take_pages(cursor: &mut Cursor<'_>, end: u64) -> Option<Vec<ListPage>> {
    let count = cursor.varint()?;
    let mut pages = Vec::new();
    let mut previous = ListPage::default();
    for _ in 0..count {
        let first = previous.first.checked_add(cursor.varint_u32()?)?;
        previous = ListPage { first, page: PageRef::take(cursor, previous.page, end)? };
        pages.push(previous);
    }
    pages.shrink_to_fit();
    Some(pages)
}

/// The page that has an entry, and its index in it.
pub(super) fn find(pages: &[ListPage], index: u32) -> Option<(&ListPage, usize)> {
    let place = pages.partition_point(|page| page.first <= index).checked_sub(1)?;
    Some((&pages[place], (index - pages[place].first) as usize))
}
