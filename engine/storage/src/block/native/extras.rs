//! What few rows have beside floats: histograms, start timestamps, exemplars.
//!
//! ```text
//! page of columns    count, then per column: row − row of the column before, zigzag(smallest ms),
//!                    largest − smallest ms, entries, bytes; then the columns (see `kinds`), each complete in itself
//! page of exemplars  the same; a column is, per exemplar: zigzag(ms − ms of the one before), 8 bytes of the double LE,
//!                    number of labels, then name and value of each: length in bytes, bytes
//! ```
//! All numbers are varints. Columns of histograms and start timestamps stand in pages of their part of the time, those of
//! one row in several of them where they are long; exemplars are not divided by time.
use std::ops::Range;

use metricsstore_model::LabelBuf;

use super::PAGE_BYTES;
use super::page::{PageSink, PageSource};
use super::table::{Entry, TableCursor, TableWriter};
use crate::bytes::{Cursor, put_signed, put_varint};
use crate::kinds::KindColumn;
use crate::{StorageError, StoredExemplar};

/// Writes columns of one kind.
#[derive(Default)]
pub(super) struct ExtrasWriter {
    table: TableWriter,
    columns: Vec<u8>,
    payload: Vec<u8>,
    previous_row: u32,
    entry: Entry,
}

impl ExtrasWriter {
    /// Adds a column; rows ascend.
    pub(super) fn push(
        &mut self,
        row: u32,
        column: &KindColumn,
        sink: &mut PageSink,
    ) -> Result<(), StorageError> {
        let grown = self.columns.len() + self.payload.len() + column.payload.len();
        if self.entry.columns > 0 && grown > PAGE_BYTES {
            self.close(sink)?;
        }
        if self.entry.columns == 0 {
            self.previous_row = 0;
            let (min_ms, max_ms) = (column.min_ms, column.max_ms);
            self.entry = Entry { first: row, min_ms, max_ms, ..Entry::default() };
        }
        put_varint(&mut self.columns, u64::from(row - self.previous_row));
        put_signed(&mut self.columns, column.min_ms);
        put_varint(&mut self.columns, column.max_ms.wrapping_sub(column.min_ms) as u64);
        put_varint(&mut self.columns, column.entries);
        put_varint(&mut self.columns, column.payload.len() as u64);
        self.payload.extend_from_slice(&column.payload);
        self.previous_row = row;
        let entry = &mut self.entry;
        entry.last = row;
        entry.columns += 1;
        entry.samples += column.entries;
        entry.min_ms = entry.min_ms.min(column.min_ms);
        entry.max_ms = entry.max_ms.max(column.max_ms);
        Ok(())
    }

    fn close(&mut self, sink: &mut PageSink) -> Result<(), StorageError> {
        let mut entry = std::mem::take(&mut self.entry);
        let mut content = Vec::new();
        put_varint(&mut content, entry.columns);
        content.append(&mut self.columns);
        content.append(&mut self.payload);
        entry.page = sink.put(&content)?;
        self.table.push(entry, sink)
    }

    pub(super) fn finish(mut self, sink: &mut PageSink) -> Result<Vec<Entry>, StorageError> {
        if self.entry.columns > 0 {
            self.close(sink)?;
        }
        self.table.finish(sink)
    }
}

struct PageColumn {
    row: u32,
    min_ms: i64,
    max_ms: i64,
    entries: u64,
    payload: Range<usize>,
}

/// `None` is damage.
fn read_columns(page: &[u8]) -> Option<Vec<PageColumn>> {
    let mut cursor = Cursor::new(page);
    let count = cursor.varint()?;
    let (mut columns, mut row, mut at) = (Vec::new(), 0u32, 0usize);
    for _ in 0..count {
        row = row.checked_add(cursor.varint_u32()?)?;
        let min_ms = cursor.signed()?;
        let max_ms = min_ms.wrapping_add(cursor.varint()? as i64);
        let entries = cursor.varint()?;
        let end = at.checked_add(usize::try_from(cursor.varint()?).ok()?)?;
        columns.push(PageColumn { row, min_ms, max_ms, entries, payload: at..end });
        at = end;
    }
    let base = cursor.position();
    if base.checked_add(at)? != page.len() {
        return None;
    }
    for column in &mut columns {
        column.payload = column.payload.start + base..column.payload.end + base;
    }
    Some(columns)
}

/// Reads columns of one kind in one part, and keeps the page that it read last.
#[derive(Default)]
pub(super) struct ExtrasCursor {
    table: TableCursor,
    place: Option<u64>,
    content: std::sync::Arc<[u8]>,
    columns: Vec<PageColumn>,
}

impl ExtrasCursor {
    /// Appends the columns of a row that have entries in that time, oldest first.
    pub(super) fn columns_into(
        &mut self,
        table: &[Entry],
        source: &PageSource,
        row: u32,
        within_ms: (i64, i64),
        columns: &mut Vec<KindColumn>,
    ) -> Result<(), StorageError> {
        for page in self.table.find(table, source, row)? {
            if !page.overlaps(within_ms) {
                continue;
            }
            if self.place != Some(page.page.offset) {
                self.place = None;
                self.content = source.read(page.page)?;
                self.columns = read_columns(&self.content)
                    .ok_or_else(|| source.damaged(page.page.offset, "a page of columns is malformed"))?;
                self.place = Some(page.page.offset);
            }
            let from = self.columns.partition_point(|column| column.row < row);
            let of_row = self.columns[from..].iter().take_while(|column| column.row == row);
            let wanted = of_row.filter(|column| column.min_ms <= within_ms.1 && column.max_ms >= within_ms.0);
            columns.extend(wanted.map(|column| KindColumn {
                min_ms: column.min_ms,
                max_ms: column.max_ms,
                entries: column.entries,
                payload: self.content[column.payload.clone()].to_vec(),
            }));
        }
        Ok(())
    }
}

/// Exemplars, of which there is one at least, as a column.
pub(super) fn exemplar_column(exemplars: &[StoredExemplar]) -> KindColumn {
    let (mut payload, mut previous_ms) = (Vec::new(), 0i64);
    for exemplar in exemplars {
        put_signed(&mut payload, exemplar.timestamp_ms.wrapping_sub(previous_ms));
        payload.extend_from_slice(&exemplar.value.to_bits().to_le_bytes());
        put_varint(&mut payload, exemplar.labels.len() as u64);
        for (name, value) in exemplar.labels.iter() {
            for text in [name, value] {
                put_varint(&mut payload, text.len() as u64);
                payload.extend_from_slice(text.as_bytes());
            }
        }
        previous_ms = exemplar.timestamp_ms;
    }
    let times = exemplars.iter().map(|exemplar| exemplar.timestamp_ms);
    KindColumn {
        min_ms: times.clone().min().unwrap_or(0),
        max_ms: times.max().unwrap_or(0),
        entries: exemplars.len() as u64,
        payload,
    }
}

/// The exemplars of a column; `None` is damage.
pub(super) fn read_exemplars(payload: &[u8], mut sink: impl FnMut(StoredExemplar)) -> Option<()> {
    let (mut cursor, mut time) = (Cursor::new(payload), 0i64);
    let text = |cursor: &mut Cursor<'_>| {
        let length = usize::try_from(cursor.varint()?).ok()?;
        Some(str::from_utf8(cursor.take(length)?).ok()?.to_owned())
    };
    while !cursor.is_at_end() {
        time = time.wrapping_add(cursor.signed()?);
        let value = f64::from_bits(cursor.u64()?);
        let mut labels = LabelBuf::new();
        for _ in 0..cursor.varint()? {
            let name = text(&mut cursor)?;
            labels.push(&name, &text(&mut cursor)?);
        }
        sink(StoredExemplar { labels, timestamp_ms: time, value });
    }
    Some(())
}
