//! Reads series and streams of a segment, best in ascending order: one block of each kind is kept.
use std::ops::Range;
use std::sync::Arc;

use metricsstore_codec::timestamps;

use roaring::RoaringBitmap;

use super::Segment;
use super::kind_cursor::KindBlock;
use crate::StorageError;
use crate::bytes::Cursor;
use crate::column::{Encoding, Piece};
use crate::kinds::Kind;

/// Rows that one stream can have; more in a file is damage.
const MAX_ROWS: u32 = 1 << 28;

pub(crate) struct SegmentCursor {
    pub(super) segment: Arc<Segment>,
    series: SeriesBlock,
    times: TimesBlock,
    /// The stream that was asked for last: neighbouring series share it.
    last_times: Option<(u32, Arc<[i64]>)>,
    /// Blocks of each kind, by [`crate::kinds::Kind`].
    pub(super) kinds: Option<Box<[KindBlock; 2]>>,
}

#[derive(Default)]
struct SeriesBlock {
    /// Which block is loaded.
    loaded: Option<usize>,
    content: Vec<u8>,
    entries: Vec<(u32, Piece)>,
}

#[derive(Default)]
struct TimesBlock {
    loaded: Option<usize>,
    content: Vec<u8>,
    /// Rows, and where the encoded timestamps stand.
    entries: Vec<(u32, Range<usize>)>,
}

impl SegmentCursor {
    pub(crate) fn new(segment: Arc<Segment>) -> SegmentCursor {
        SegmentCursor {
            segment,
            series: SeriesBlock::default(),
            times: TimesBlock::default(),
            last_times: None,
            kinds: None,
        }
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Appends the columns of a series, oldest samples first. Rows before [`Segment::from_ms`] are the caller's to leave out.
    pub(crate) fn pieces_into(
        &mut self,
        series: u32,
        payload: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), StorageError> {
        if !self.segment.series.contains(series) {
            return Ok(());
        }
        let after = self.segment.blocks.partition_point(|block| block.first <= series);
        let Some(number) = after.checked_sub(1) else { return Ok(()) };
        if self.series.loaded != Some(number) {
            self.load_series(number)?;
        }
        let block = &self.series;
        let first = block.entries.partition_point(|&(id, _)| id < series);
        for (_, piece) in block.entries[first..].iter().take_while(|&&(id, _)| id == series) {
            let start = payload.len();
            payload.extend_from_slice(&block.content[piece.payload.clone()]);
            pieces.push(Piece { payload: start..payload.len(), ..*piece });
        }
        Ok(())
    }

    /// Calls `visit` with each series and the time of the last row of each of its pieces, which is never an absent one.
    pub(crate) fn last_times(&mut self, mut visit: impl FnMut(u32, i64)) -> Result<(), StorageError> {
        for number in 0..self.segment.blocks.len() {
            self.load_series(number)?;
            self.series.loaded = None;
            let entries = std::mem::take(&mut self.series.entries);
            for (series, piece) in &entries {
                let last_row = (piece.first_row + piece.rows - 1) as usize;
                let known = self.last_times.as_ref().filter(|(stream, _)| *stream == piece.stream);
                let time = match known {
                    Some((_, times)) => times.get(last_row).copied(),
                    None => self.times(piece.stream)?.get(last_row).copied(),
                };
                if let Some(time) = time {
                    visit(*series, time);
                }
            }
            self.series.entries = entries;
        }
        Ok(())
    }

    /// The series that have samples from `from_ms` on.
    pub(crate) fn series_from(&mut self, from_ms: i64) -> Result<RoaringBitmap, StorageError> {
        let mut found = RoaringBitmap::new();
        self.last_times(|series, time| {
            if time >= from_ms {
                found.insert(series);
            }
        })?;
        let with_histograms = self.segment.series_with(Kind::Histograms).clone();
        for series in with_histograms {
            let column = self.kind_column(Kind::Histograms, series)?;
            if column.is_some_and(|column| column.max_ms >= from_ms) {
                found.insert(series);
            }
        }
        Ok(found)
    }

    fn load_series(&mut self, number: usize) -> Result<(), StorageError> {
        self.series.loaded = None;
        self.series.entries.clear();
        let reference = self.segment.blocks[number];
        self.segment.read_block(reference, &mut self.series.content)?;
        if decode_series(&self.series.content, &mut self.series.entries).is_none() {
            return Err(self.segment.damaged_at(reference.offset, "a block of series is malformed"));
        }
        self.series.loaded = Some(number);
        Ok(())
    }

    /// All samples of a series that are read from here, ascending.
    pub(crate) fn samples(&mut self, series: u32) -> Result<Vec<(i64, u64)>, StorageError> {
        let (mut payload, mut pieces, mut samples) = (Vec::new(), Vec::new(), Vec::new());
        self.pieces_into(series, &mut payload, &mut pieces)?;
        for piece in &pieces {
            let times = self.times(piece.stream)?;
            piece
                .decode_all(&payload, |row, bits| {
                    samples.extend(times.get(row as usize).map(|&time| (time, bits)));
                })
                .map_err(|what| self.segment.damaged(what))?;
        }
        samples.retain(|&(time, _)| time >= self.segment.from_ms);
        samples.sort_unstable();
        Ok(samples)
    }

    /// The timestamps of a stream.
    pub(crate) fn times(&mut self, stream: u32) -> Result<Arc<[i64]>, StorageError> {
        if let Some((_, times)) = self.last_times.as_ref().filter(|(last, _)| *last == stream) {
            return Ok(Arc::clone(times));
        }
        let times = self.load_times(stream)?;
        self.last_times = Some((stream, Arc::clone(&times)));
        Ok(times)
    }

    fn load_times(&mut self, stream: u32) -> Result<Arc<[i64]>, StorageError> {
        let after = self.segment.times.partition_point(|block| block.first <= stream);
        let Some(number) = after.checked_sub(1) else {
            return Err(self.segment.damaged("a series names a timestamp stream that does not exist"));
        };
        let reference = self.segment.times[number];
        if self.times.loaded != Some(number) {
            self.times.loaded = None;
            self.times.entries.clear();
            self.segment.read_block(reference, &mut self.times.content)?;
            if decode_times(&self.times.content, &mut self.times.entries).is_none() {
                return Err(self.segment.damaged_at(reference.offset, "a block of timestamps is malformed"));
            }
            self.times.loaded = Some(number);
        }
        let malformed = || self.segment.damaged_at(reference.offset, "a timestamp stream is malformed");
        let entry = self.times.entries.get((stream - reference.first) as usize).ok_or_else(malformed)?;
        let mut times = Vec::new();
        timestamps::decode(&self.times.content[entry.1.clone()], entry.0, &mut times)
            .map_err(|_| malformed())?;
        if times.is_sorted_by(|a, b| a < b) { Ok(times.into()) } else { Err(malformed()) }
    }
}

fn decode_series(content: &[u8], entries: &mut Vec<(u32, Piece)>) -> Option<()> {
    let mut cursor = Cursor::new(content);
    let count = cursor.varint()?;
    let (mut series, mut stream, mut payload) = (0u32, 0i64, 0usize);
    for _ in 0..count {
        series = series.checked_add(cursor.varint_u32()?)?;
        stream = stream.checked_add(cursor.signed()?)?;
        let (first_row, rows) = (cursor.varint_u32()?, cursor.varint_u32()?);
        if rows == 0 || first_row.checked_add(rows)? > MAX_ROWS {
            return None;
        }
        let end = payload.checked_add(usize::try_from(cursor.varint()?).ok()?)?;
        entries.push((
            series,
            Piece {
                stream: u32::try_from(stream).ok()?,
                first_row,
                rows,
                payload: payload..end,
                encoding: Encoding::Column,
            },
        ));
        payload = end;
    }
    let base = cursor.position();
    if base.checked_add(payload)? != content.len() {
        return None;
    }
    for (_, piece) in entries {
        piece.payload = piece.payload.start + base..piece.payload.end + base;
    }
    Some(())
}

fn decode_times(content: &[u8], entries: &mut Vec<(u32, Range<usize>)>) -> Option<()> {
    let mut cursor = Cursor::new(content);
    let count = cursor.varint()?;
    let mut payload = 0usize;
    for _ in 0..count {
        let rows = cursor.varint_u32().filter(|&rows| rows <= MAX_ROWS)?;
        let end = payload.checked_add(usize::try_from(cursor.varint()?).ok()?)?;
        entries.push((rows, payload..end));
        payload = end;
    }
    let base = cursor.position();
    if base.checked_add(payload)? != content.len() {
        return None;
    }
    for (_, bytes) in entries {
        *bytes = bytes.start + base..bytes.end + base;
    }
    Some(())
}
