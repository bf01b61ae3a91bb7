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
    /// Where the values stand in the buffer they were copied to, and how.
    pub(crate) payload: Range<usize>,
    pub(crate) encoding: Encoding,
}

/// How the values of a piece stand in its payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// As the codec's column.
    #[default]
    Column,
    /// Decoded: one bit for each row, lowest first, set where there is no value, filled up to a byte; then for each row
    /// the bits of its value, little endian, any where there is none.
    Plain,
}

/// Appends values in [`Encoding::Plain`]: the bits of each row, `None` where it has no value.
pub(crate) fn put_plain(values: impl ExactSizeIterator<Item = Option<u64>> + Clone, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + values.len().div_ceil(8), 0);
    for (row, _) in values.clone().enumerate().filter(|(_, value)| value.is_none()) {
        out[start + row / 8] |= 1 << (row % 8);
    }
    out.extend(values.flat_map(|value| value.unwrap_or(0).to_le_bytes()));
}

/// Hands `(row, bits)` of every present row in `wanted` of plain values to `sink`, ascending.
fn decode_plain(
    payload: &[u8],
    rows: u32,
    wanted: Range<u32>,
    mut sink: impl FnMut(u32, u64),
) -> Result<(), &'static str> {
    let absent = payload.get(..rows.div_ceil(8) as usize).ok_or("plain values are cut short")?;
    let (values, rest) = payload[absent.len()..].as_chunks::<8>();
    if values.len() != rows as usize || !rest.is_empty() {
        return Err("plain values are not as many as the rows");
    }
    for row in wanted {
        if absent[row as usize / 8] >> (row % 8) & 1 == 0 {
            sink(row, u64::from_le_bytes(values[row as usize]));
        }
    }
    Ok(())
}

impl Piece {
    /// The row after its last.
    pub(crate) fn end_row(&self) -> u32 {
        self.first_row + self.rows
    }

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
        let sink = |row, bits| sink(self.first_row + row, bits);
        match self.encoding {
            Encoding::Column => decode_column(bytes, start..end, sink),
            Encoding::Plain => decode_plain(bytes, self.rows, start..end, sink),
        }
    }

    /// The same for all rows.
    pub(crate) fn decode_all(&self, payload: &[u8], sink: impl FnMut(u32, u64)) -> Result<(), &'static str> {
        self.decode(payload, 0..u32::MAX, sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_are_read_back_and_those_that_are_absent_left_out() {
        let values: Vec<Option<u64>> = (0..21).map(|row| (row % 3 != 1).then_some(row * 7)).collect();
        let mut payload = vec![9; 4];
        put_plain(values.iter().copied(), &mut payload);
        let piece =
            Piece { stream: 0, first_row: 5, rows: 21, payload: 4..payload.len(), encoding: Encoding::Plain };
        let mut found = Vec::new();
        piece.decode(&payload, 7..20, |row, bits| found.push((row, bits))).unwrap();
        let want: Vec<(u32, u64)> =
            (7..20).filter_map(|row| values[row as usize - 5].map(|bits| (row, bits))).collect();
        assert_eq!(found, want);
        assert!(Piece { rows: 22, ..piece }.decode_all(&payload, |_, _| ()).is_err());
    }
}
