//! One series' values, encoded: a thin face over the codec, so that head, segments and selects share one encoding.
use std::ops::Range;

use metricsstore_codec::bits::{BitReader, BitWriter};
use metricsstore_codec::column::{Cell, ColumnReader, ColumnState};
use metricsstore_codec::fragments::Chain;

pub(crate) use metricsstore_codec::fragments::Arena;

/// The open column of one series.
#[derive(Default)]
pub(crate) struct Column {
    state: ColumnState,
    chain: Chain,
}

impl Column {
    /// Adds `absent` rows without a value and one with the value of these bits.
    #[inline]
    pub(crate) fn push(&mut self, arena: &mut Arena, absent: u32, bits: u64) {
        let mut sink = self.chain.sink(arena);
        if absent > 0 {
            self.state.append(Cell::Absent(absent), &mut sink);
        }
        self.state.append(Cell::Value(f64::from_bits(bits)), &mut sink);
    }

    /// Appends the encoded rows to `out`, complete in themselves.
    pub(crate) fn copy_payload(&self, arena: &Arena, out: &mut Vec<u8>) {
        if self.state.constant().is_none() {
            return self.chain.copy_to(arena, out);
        }
        let mut writer = BitWriter::new();
        self.state.clone().finish(&mut writer);
        out.extend_from_slice(&writer.into_bytes());
    }
}

/// Encodes a column anew: appends its payload to `out`.
#[derive(Default)]
pub(crate) struct Encoder {
    state: ColumnState,
    writer: BitWriter,
    rows: u32,
}

impl Encoder {
    /// Sets a row; rows come in ascending order, those left out are absent.
    pub(crate) fn set(&mut self, row: u32, bits: u64) {
        if row > self.rows {
            self.state.append(Cell::Absent(row - self.rows), &mut self.writer);
        }
        self.state.append(Cell::Value(f64::from_bits(bits)), &mut self.writer);
        self.rows = row + 1;
    }

    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    pub(crate) fn finish(mut self, out: &mut Vec<u8>) {
        self.state.finish(&mut self.writer);
        out.extend_from_slice(&self.writer.into_bytes());
    }
}

/// Hands `(row, bits)` of every present row in `rows` to `sink`, ascending. Says what is wrong.
pub(crate) fn decode_column(
    payload: &[u8],
    rows: Range<u32>,
    mut sink: impl FnMut(u32, u64),
) -> Result<(), &'static str> {
    let mut reader = ColumnReader::new(None, BitReader::of_slice(payload), rows.end);
    reader.skip(rows.start).map_err(|damaged| damaged.what)?;
    let mut row = rows.start;
    while let Some(cell) = reader.next().map_err(|damaged| damaged.what)? {
        match cell {
            Cell::Value(value) => {
                sink(row, value.to_bits());
                row += 1;
            }
            Cell::Absent(cells) => row += cells,
        }
    }
    Ok(())
}

/// Rows of one series in one timestamp stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) stream: u32,
    /// First row of the stream that the values cover.
    pub(crate) first_row: u32,
    /// Rows from there on, absent ones included.
    pub(crate) rows: u32,
    /// Where the encoded values stand in the buffer they were copied to.
    pub(crate) payload: Range<usize>,
}

impl Piece {
    /// Hands `(row, bits)` of every sample in these rows of the stream to `sink`.
    pub(crate) fn decode(
        &self,
        payload: &[u8],
        rows: Range<u32>,
        mut sink: impl FnMut(u32, u64),
    ) -> Result<(), &'static str> {
        let bytes = payload.get(self.payload.clone()).ok_or("column lies outside its payload")?;
        let start = rows.start.saturating_sub(self.first_row).min(self.rows);
        let end = rows.end.saturating_sub(self.first_row).min(self.rows);
        decode_column(bytes, start..end, |row, bits| sink(self.first_row + row, bits))
    }

    /// The same for all rows.
    pub(crate) fn decode_all(&self, payload: &[u8], sink: impl FnMut(u32, u64)) -> Result<(), &'static str> {
        self.decode(payload, 0..u32::MAX, sink)
    }
}
