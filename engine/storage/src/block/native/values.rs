//! Float columns: those of neighbouring rows in one part of the block's time.
//!
//! ```text
//! page    kind u8: 0 packed, 1 cold; number of columns; first row; then per column: row − row of the column before,
//!         zigzag(stream − stream before), zigzag(first row of the stream − that of the column before),
//!         zigzag(rows − rows before), and in a packed page its bytes; all numbers varints
//! packed  then the encoded columns (`codec::column`)
//! cold    then the columns as `codec::cold` has them
//! ```
use std::ops::Range;
use std::sync::Arc;

use metricsstore_codec::cold::{Column, PageReader, Values, encode_page};

use super::page::{PageSink, PageSource};
use super::table::{Entry, TableCursor, TableWriter};
use super::{COLUMN_ROWS, MAX_STREAM_ROWS, PAGE_BYTES};
use crate::StorageError;
use crate::bytes::{Cursor, put_signed, put_varint};
use crate::column::{Encoding, Piece, decode_column, put_plain};

const PACKED: u8 = 0;
const COLD: u8 = 1;
/// Rows of all columns of a cold page, at most: what encoding one takes in memory.
const COLD_CELLS: u64 = 256 << 10;

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

impl PageColumn {
    /// Appends all but the payload.
    fn put(&self, previous: &PageColumn, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.row - previous.row));
        put_signed(out, i64::from(self.stream) - i64::from(previous.stream));
        put_signed(out, i64::from(self.first_row) - i64::from(previous.first_row));
        put_signed(out, i64::from(self.rows) - i64::from(previous.rows));
    }
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
pub(super) struct ValuesWriter {
    is_cold: bool,
    table: TableWriter,
    columns: Vec<u8>,
    payload: Vec<u8>,
    previous: PageColumn,
    /// Of the open page.
    entry: Entry,
    cells: u64,
}

impl ValuesWriter {
    pub(super) fn new(is_cold: bool) -> ValuesWriter {
        ValuesWriter {
            is_cold,
            table: TableWriter::default(),
            columns: Vec::new(),
            payload: Vec::new(),
            previous: PageColumn::default(),
            entry: Entry::default(),
            cells: 0,
        }
    }

    /// Adds a column; rows ascend.
    pub(super) fn push(&mut self, column: &NewColumn<'_>, sink: &mut PageSink) -> Result<(), StorageError> {
        let grown = self.columns.len() + self.payload.len() + column.payload.len();
        let cells = self.cells + u64::from(column.rows);
        if self.entry.columns > 0 && (grown > PAGE_BYTES || self.is_cold && cells > COLD_CELLS) {
            self.close(sink)?;
        }
        self.cells += u64::from(column.rows);
        if self.entry.columns == 0 {
            self.previous = PageColumn { row: column.row, ..PageColumn::default() };
            self.entry =
                Entry { first: column.row, min_ms: column.min_ms, max_ms: column.max_ms, ..Entry::default() };
        }
        let placed = PageColumn {
            row: column.row,
            stream: column.stream,
            first_row: column.first_row,
            rows: column.rows,
            payload: 0..0,
        };
        placed.put(&self.previous, &mut self.columns);
        put_varint(&mut self.columns, column.payload.len() as u64);
        self.payload.extend_from_slice(column.payload);
        self.previous = placed;
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
        self.cells = 0;
        let cold = if self.is_cold { cold_page(&content) } else { None };
        // Where little is to be gained the page that is faster to read stays.
        let content = cold.filter(|cold| cold.len() < content.len()).unwrap_or(content);
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

/// A packed page as a cold one.
fn cold_page(packed: &[u8]) -> Option<Vec<u8>> {
    let mut columns = Vec::new();
    read_columns(packed, &mut columns)?;
    let mut values: Vec<(Vec<u64>, Vec<u8>)> = Vec::with_capacity(columns.len());
    for column in &columns {
        let rows = column.rows as usize;
        let (mut bits, mut absent) = (vec![0; rows], vec![0xff; rows.div_ceil(8)]);
        decode_column(&packed[column.payload.clone()], 0..column.rows, |row, value| {
            bits[row as usize] = value;
            absent[row as usize / 8] &= !(1 << (row % 8));
        })
        .ok()?;
        values.push((bits, absent));
    }
    let all: Vec<Column<'_>> =
        values.iter().map(|(values, absent)| Column { values, absent: or_none(values, absent) }).collect();
    let mut page = vec![COLD];
    put_varint(&mut page, columns.len() as u64);
    let mut previous = PageColumn { row: columns.first()?.row, ..PageColumn::default() };
    put_varint(&mut page, u64::from(previous.row));
    for column in columns {
        column.put(&previous, &mut page);
        previous = column;
    }
    page.extend(encode_page(&all).ok()?);
    Some(page)
}

/// What says which rows are absent, or nothing where none is.
fn or_none<'a>(values: &[u64], absent: &'a [u8]) -> &'a [u8] {
    let any = (0..values.len()).any(|row| absent[row / 8] >> (row % 8) & 1 == 1);
    if any { absent } else { &[] }
}

/// Reads what a page says of its columns, and where that ends; `None` is damage.
fn read_columns(page: &[u8], columns: &mut Vec<PageColumn>) -> Option<usize> {
    let mut cursor = Cursor::new(page);
    let kind = cursor.u8().filter(|kind| matches!(*kind, PACKED | COLD))?;
    let count = cursor.varint()?;
    let mut previous = PageColumn { row: cursor.varint_u32()?, ..PageColumn::default() };
    for _ in 0..count {
        let row = previous.row.checked_add(cursor.varint_u32()?)?;
        let stream = moved(previous.stream, cursor.signed()?)?;
        let first_row = moved(previous.first_row, cursor.signed()?)?;
        let rows = moved(previous.rows, cursor.signed()?)?;
        if rows == 0 || rows > COLUMN_ROWS || first_row.checked_add(rows)? > MAX_STREAM_ROWS {
            return None;
        }
        let length = if kind == PACKED { usize::try_from(cursor.varint()?).ok()? } else { 0 };
        let start = previous.payload.end;
        previous = PageColumn { row, stream, first_row, rows, payload: start..start.checked_add(length)? };
        columns.push(previous.clone());
    }
    let base = cursor.position();
    if kind == PACKED && base.checked_add(previous.payload.end)? != page.len() {
        return None;
    }
    for column in columns {
        column.payload = column.payload.start + base..column.payload.end + base;
    }
    Some(base)
}

fn moved(from: u32, by: i64) -> Option<u32> {
    u32::try_from(i64::from(from).checked_add(by)?).ok()
}

/// The columns of a cold page.
pub(super) struct Tail {
    page: Arc<[u8]>,
    from: usize,
}

impl Tail {
    pub(super) fn new(page: &Arc<[u8]>, from: usize) -> Tail {
        Tail { page: Arc::clone(page), from }
    }
}

impl AsRef<[u8]> for Tail {
    fn as_ref(&self) -> &[u8] {
        self.page.get(self.from..).unwrap_or_default()
    }
}

/// A page that is loaded.
#[derive(Default)]
struct LoadedValues {
    place: Option<u64>,
    content: Arc<[u8]>,
    columns: Vec<PageColumn>,
    /// Reads a cold page.
    cold: Option<Box<PageReader<Tail>>>,
    values: Values,
}

impl LoadedValues {
    fn load(&mut self, page: &Entry, source: &PageSource) -> Result<(), StorageError> {
        if self.place == Some(page.page.offset) {
            return Ok(());
        }
        self.place = None;
        self.columns.clear();
        let content = source.read(page.page)?;
        self.open(&content)
            .ok_or_else(|| source.damaged(page.page.offset, "a page of values is malformed"))?;
        self.content = content;
        self.place = Some(page.page.offset);
        Ok(())
    }

    fn open(&mut self, content: &Arc<[u8]>) -> Option<()> {
        let from = read_columns(content, &mut self.columns)?;
        self.cold = match content[0] {
            COLD => {
                let reader = PageReader::new(Tail::new(content, from)).ok()?;
                (reader.columns() == self.columns.len()).then_some(())?;
                Some(Box::new(reader))
            }
            _ => None,
        };
        Some(())
    }

    /// Columns of a row.
    fn of_row(&self, row: u32) -> Range<usize> {
        let from = self.columns.partition_point(|column| column.row < row);
        from..self.columns.partition_point(|column| column.row <= row)
    }

    /// Appends a column; `None` is damage.
    fn append(&mut self, index: usize, payload: &mut Vec<u8>) -> Option<Encoding> {
        let column = self.columns.get(index)?;
        let Some(cold) = &mut self.cold else {
            payload.extend_from_slice(self.content.get(column.payload.clone())?);
            return Some(Encoding::Column);
        };
        let Values { values, absent } = &mut self.values;
        values.clear();
        absent.clear();
        cold.read(index, &mut self.values).ok()?;
        let Values { values, absent } = &self.values;
        if values.len() != column.rows as usize {
            return None;
        }
        let is_absent = |row: usize| absent.get(row / 8).is_some_and(|byte| byte >> (row % 8) & 1 == 1);
        put_plain(values.iter().enumerate().map(|(row, &bits)| (!is_absent(row)).then_some(bits)), payload);
        Some(Encoding::Plain)
    }
}

/// Reads the columns of one part, and keeps the page that it read last.
#[derive(Default)]
pub(super) struct ValuesCursor {
    table: TableCursor,
    loaded: LoadedValues,
}

impl ValuesCursor {
    /// Appends the columns of a row that `is_wanted`, of pages that have samples in that time.
    pub(super) fn pieces_into(
        &mut self,
        (table, source): (&[Entry], &PageSource),
        (row, within_ms): (u32, (i64, i64)),
        mut is_wanted: impl FnMut(&PageColumn) -> Result<bool, StorageError>,
        payload: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), StorageError> {
        for page in self.table.find(table, source, row)?.iter().filter(|page| page.overlaps(within_ms)) {
            self.loaded.load(page, source)?;
            for index in self.loaded.of_row(row) {
                if !is_wanted(&self.loaded.columns[index])? {
                    continue;
                }
                let start = payload.len();
                let encoding = self
                    .loaded
                    .append(index, payload)
                    .ok_or_else(|| source.damaged(page.page.offset, "a column of values is malformed"))?;
                let PageColumn { stream, first_row, rows, .. } = self.loaded.columns[index];
                pieces.push(Piece { stream, first_row, rows, payload: start..payload.len(), encoding });
            }
        }
        Ok(())
    }
}
