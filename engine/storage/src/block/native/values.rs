//! Float columns: those of neighbouring rows in one part of the block's time.
//!
//! ```text
//! page    kind u8: 0 packed; number of columns; first row; then per column: row − row of the column before,
//!         zigzag(stream − stream before), zigzag(first row of the stream − that of the column before),
//!         zigzag(rows − rows before), bytes; then the encoded columns (`codec::column`). All numbers varints.
//! ```
use std::ops::Range;
use std::sync::Arc;

use super::page::{PageSink, PageSource};
use super::table::{Entry, TableCursor, TableWriter};
use super::{MAX_STREAM_ROWS, PAGE_BYTES};
use crate::StorageError;
use crate::bytes::{Cursor, put_signed, put_varint};

const PACKED: u8 = 0;

/// A column in a page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PageColumn {
    pub(super) row: u32,
    pub(super) stream: u32,
    /// Rows of the stream that it covers.
    pub(super) first_row: u32,
    pub(super) rows: u32,
    /// Where its encoding stands in the page.
    pub(super) payload: Range<usize>,
}

/// A column to be written.
pub(super) struct NewColumn<'c> {
    pub(super) row: u32,
    pub(super) stream: u32,
    pub(super) first_row: u32,
    pub(super) rows: u32,
    pub(super) payload: &'c [u8],
    pub(super) samples: u64,
    pub(super) min_ms: i64,
    pub(super) max_ms: i64,
}

/// Writes the columns of one part.
#[derive(Default)]
pub(super) struct ValuesWriter {
    table: TableWriter,
    columns: Vec<u8>,
    payload: Vec<u8>,
    previous: PageColumn,
    /// Of the open page.
    entry: Entry,
}

impl ValuesWriter {
    /// Adds a column; rows ascend.
    pub(super) fn push(&mut self, column: &NewColumn<'_>, sink: &mut PageSink) -> Result<(), StorageError> {
        let grown = self.columns.len() + self.payload.len() + column.payload.len();
        if self.entry.columns > 0 && grown > PAGE_BYTES {
            self.close(sink)?;
        }
        if self.entry.columns == 0 {
            self.previous = PageColumn { row: column.row, ..PageColumn::default() };
            self.entry =
                Entry { first: column.row, min_ms: column.min_ms, max_ms: column.max_ms, ..Entry::default() };
        }
        let previous = &self.previous;
        put_varint(&mut self.columns, u64::from(column.row - previous.row));
        put_signed(&mut self.columns, i64::from(column.stream) - i64::from(previous.stream));
        put_signed(&mut self.columns, i64::from(column.first_row) - i64::from(previous.first_row));
        put_signed(&mut self.columns, i64::from(column.rows) - i64::from(previous.rows));
        put_varint(&mut self.columns, column.payload.len() as u64);
        self.payload.extend_from_slice(column.payload);
        self.previous = PageColumn {
            row: column.row,
            stream: column.stream,
            first_row: column.first_row,
            rows: column.rows,
            payload: 0..0,
        };
        let entry = &mut self.entry;
        entry.last = column.row;
        entry.columns += 1;
        entry.samples += column.samples;
        entry.min_ms = entry.min_ms.min(column.min_ms);
        entry.max_ms = entry.max_ms.max(column.max_ms);
        Ok(())
    }

    fn close(&mut self, sink: &mut PageSink) -> Result<(), StorageError> {
        let mut entry = std::mem::take(&mut self.entry);
        let mut content = vec![PACKED];
        put_varint(&mut content, entry.columns);
        put_varint(&mut content, u64::from(entry.first));
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

/// `None` is damage.
fn read_columns(page: &[u8], columns: &mut Vec<PageColumn>) -> Option<()> {
    let mut cursor = Cursor::new(page);
    if cursor.u8()? != PACKED {
        return None;
    }
    let count = cursor.varint()?;
    let mut previous = PageColumn { row: cursor.varint_u32()?, ..PageColumn::default() };
    for _ in 0..count {
        let row = previous.row.checked_add(cursor.varint_u32()?)?;
        let stream = moved(previous.stream, cursor.signed()?)?;
        let first_row = moved(previous.first_row, cursor.signed()?)?;
        let rows = moved(previous.rows, cursor.signed()?)?;
        let length = usize::try_from(cursor.varint()?).ok()?;
        if rows == 0 || first_row.checked_add(rows)? > MAX_STREAM_ROWS {
            return None;
        }
        let start = previous.payload.end;
        previous = PageColumn { row, stream, first_row, rows, payload: start..start.checked_add(length)? };
        columns.push(previous.clone());
    }
    let base = cursor.position();
    if base.checked_add(previous.payload.end)? != page.len() {
        return None;
    }
    for column in columns {
        column.payload = column.payload.start + base..column.payload.end + base;
    }
    Some(())
}

fn moved(from: u32, by: i64) -> Option<u32> {
    u32::try_from(i64::from(from).checked_add(by)?).ok()
}

/// A page that is loaded.
#[derive(Default)]
pub(super) struct LoadedValues {
    place: Option<u64>,
    content: Arc<[u8]>,
    columns: Vec<PageColumn>,
}

impl LoadedValues {
    fn load(&mut self, page: &Entry, source: &PageSource) -> Result<(), StorageError> {
        if self.place == Some(page.page.offset) {
            return Ok(());
        }
        self.place = None;
        self.columns.clear();
        let content = source.read(page.page)?;
        read_columns(&content, &mut self.columns)
            .ok_or_else(|| source.damaged(page.page.offset, "a page of values is malformed"))?;
        self.content = content;
        self.place = Some(page.page.offset);
        Ok(())
    }

    /// The encoding of a column of this page.
    pub(super) fn payload(&self, column: &PageColumn) -> &[u8] {
        &self.content[column.payload.clone()]
    }

    /// Columns of a row.
    pub(super) fn of_row(&self, row: u32) -> &[PageColumn] {
        let from = self.columns.partition_point(|column| column.row < row);
        let to = self.columns.partition_point(|column| column.row <= row);
        &self.columns[from..to]
    }
}

/// Reads the columns of one part, and keeps the page that it read last.
#[derive(Default)]
pub(super) struct ValuesCursor {
    table: TableCursor,
    loaded: LoadedValues,
}

impl ValuesCursor {
    /// Hands each page that has columns of a row, with samples in that time, to `visit`.
    pub(super) fn visit(
        &mut self,
        table: &[Entry],
        source: &PageSource,
        row: u32,
        within_ms: (i64, i64),
        mut visit: impl FnMut(&LoadedValues) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        for page in self.table.find(table, source, row)? {
            if page.overlaps(within_ms) {
                self.loaded.load(page, source)?;
                visit(&self.loaded)?;
            }
        }
        Ok(())
    }
}
