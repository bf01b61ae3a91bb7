//! Pages of value columns at rest: entropy-coded, so that they take about what they say, and column by column, so that
//! one can be read without the others.
//!
//! ```text
//! page   = version:1 (1) | columns:varint | rows:varint | columns × length:varint | columns × column
//! column = head:1 | [rows:varint] | [absent] | [view:1 | body]
//! head   = 0 no value, 1 one value at all rows that have any, 2 values; + 4 rows of its own, + 8 absent rows,
//!          + 16 exceptions, + 32 against the column before, + order << 6
//! absent = runs:varint | runs × length:varint       rows with a value and rows without, in turns; those with a value first
//! body   = integer:varint                           zigzag, of one value
//!        = [exceptions] | order × integer:varint | [length:varint] | stream | [order:1 | stream]
//! exceptions = number:varint | number × (values between:varint | bits:8)
//! ```
//! `rows` of the page are those of every column that has none of its own. A *view* makes integers of all values but the
//! exceptions: counts of a unit as in [`crate::column`]; counts of a unit and how many floats a value is away from that
//! (sums of decimals with what rounding left of them), distances or their differences in a second stream; multiples of a
//! power of two; bit patterns. The stream has the integers (order 0), their differences, or the differences of those;
//! before that, the integers of the column before may have been taken off, where it has as many values. The encoder tries
//! what is possible and takes what is shortest.
//!
//! Chains of columns that need the one before are no longer than 8, which bounds what one column costs to read.
mod bins;
mod column;
mod stream;
mod view;

use crate::Damaged;
use crate::varint;

pub use column::Values;
use column::{ColumnDecoder, ColumnEncoder};

/// Rows of a column, at most: what bounds the memory of reading one.
pub const MAX_ROWS: usize = 1 << 16;
/// Columns that need the one before, in a row, at most.
const MAX_CHAIN: usize = 8;
const VERSION: u8 = 1;

/// A column on its way into a page.
#[derive(Debug, Clone, Copy)]
pub struct Column<'v> {
    /// The bits of the value at each row, any where there is none.
    pub values: &'v [u64],
    /// One bit for each row, lowest first, set where there is no value; or nothing, when all rows have one.
    pub absent: &'v [u8],
}

/// Columns of more than [`MAX_ROWS`] rows are for several pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a column of {rows} rows does not fit into a page of at most {MAX_ROWS}: cut it")]
pub struct TooLong {
    /// What it has.
    pub rows: usize,
}

/// Columns as a page. Neighbours should be alike: series in the order of their labels are.
pub fn encode_page(columns: &[Column<'_>]) -> Result<Vec<u8>, TooLong> {
    if let Some(rows) = columns.iter().map(|column| column.values.len()).find(|&rows| rows > MAX_ROWS) {
        return Err(TooLong { rows });
    }
    let rows = columns.first().map_or(0, |column| column.values.len());
    let mut encoder = ColumnEncoder::new(rows);
    let (mut lengths, mut bodies) = (Vec::new(), Vec::new());
    for column in columns {
        let start = bodies.len();
        encoder.put(*column, &mut bodies);
        varint::put(&mut lengths, (bodies.len() - start) as u64);
    }
    let mut page = vec![VERSION];
    varint::put(&mut page, columns.len() as u64);
    varint::put(&mut page, rows as u64);
    page.extend(lengths);
    page.extend(bodies);
    Ok(page)
}

/// Reads columns of a page, of which it holds or borrows the bytes. Columns are fastest in ascending order.
pub struct PageReader<B> {
    bytes: B,
    /// Where each column ends in `bytes`, and where the first one begins.
    ends: Vec<usize>,
    start: usize,
    rows: usize,
    decoder: ColumnDecoder,
    /// The column that the decoder holds.
    held: Option<usize>,
}

impl<B: AsRef<[u8]>> PageReader<B> {
    /// Opens a page; columns are looked at when they are asked for.
    pub fn new(page: B) -> Result<PageReader<B>, Damaged> {
        let mut bytes = page.as_ref();
        if bins::take_byte(&mut bytes)? != VERSION {
            return Err(Damaged::new("a cold page of an unknown version"));
        }
        let (columns, rows) = (varint::take(&mut bytes)?, varint::take(&mut bytes)?);
        if columns > bytes.len() as u64 || rows > MAX_ROWS as u64 || u32::try_from(bytes.len()).is_err() {
            return Err(Damaged::new("a cold page of more columns or rows than there may be"));
        }
        let mut lengths = Vec::with_capacity(columns as usize);
        let mut total = 0_u64;
        for _ in 0..columns {
            let length = varint::take(&mut bytes)?;
            total = total.saturating_add(length);
            lengths.push(length as usize);
        }
        if total != bytes.len() as u64 {
            return Err(Damaged::new("a cold page that is longer or shorter than its columns"));
        }
        let start = page.as_ref().len() - bytes.len();
        let ends = lengths.into_iter().scan(start, |end, length| {
            *end += length;
            Some(*end)
        });
        Ok(PageReader {
            ends: ends.collect(),
            bytes: page,
            start,
            rows: rows as usize,
            decoder: ColumnDecoder::default(),
            held: None,
        })
    }

    /// How many columns there are.
    pub fn columns(&self) -> usize {
        self.ends.len()
    }

    /// Puts a column into `values`.
    pub fn read(&mut self, column: usize, values: &mut Values) -> Result<(), Damaged> {
        if self.held != Some(column) {
            let first = self.begin_of_chain(column)?;
            for index in first..=column {
                // After an error it holds nothing that a column could be read against.
                self.held = None;
                let body = body(self.bytes.as_ref(), self.start, &self.ends, index)?;
                self.decoder.take(body, self.rows)?;
                self.held = Some(index);
            }
        }
        self.decoder.spread(values);
        Ok(())
    }

    /// The first column that must be read for this one.
    fn begin_of_chain(&self, column: usize) -> Result<usize, Damaged> {
        let mut first = column;
        while column::needs_neighbour(body(self.bytes.as_ref(), self.start, &self.ends, first)?) {
            if first > 0 && self.held == Some(first - 1) {
                return Ok(first);
            }
            if first == 0 || column - first == MAX_CHAIN {
                return Err(Damaged::new("a column against one that is not there"));
            }
            first -= 1;
        }
        Ok(first)
    }
}

/// The bytes of a column.
fn body<'b>(page: &'b [u8], start: usize, ends: &[usize], column: usize) -> Result<&'b [u8], Damaged> {
    let start = column.checked_sub(1).map_or(Some(start), |before| ends.get(before).copied());
    let range = start.zip(ends.get(column).copied());
    let body = range.and_then(|(start, end)| page.get(start..end));
    body.ok_or(Damaged::new("a column that is not in its page"))
}
