//! Merging segments into fewer, series by series in bounded memory.
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use roaring::RoaringBitmap;

use crate::column::{Encoder, Piece};
use crate::kinds::{Kind, merge_kinds};
use crate::segment::{NewPiece, Origin, Segment, SegmentCursor, SegmentWriter};
use crate::store::{Places, Store};
use crate::sync::atomic::Ordering::Relaxed;
use crate::{StorageError, quarantine};

/// Segments that are merged at once.
const FAN_IN: usize = 4;
/// More live segments than this are merged even where it is not worth the writing.
const MAX_SEGMENTS: usize = 12;
/// A merged segment is not made longer than this.
const MAX_OUTPUT_BYTES: u64 = 2 << 30;
/// Where segments are too many because none is cut, merged ones span at most a tenth of retention, late samples aside, but
/// may always span a block's time, or a quarter of retention if that is less: what they hold of ended series is kept until
/// all of it has expired.
const LONG_SHARE: i64 = 10;
const SHORT_SHARE: i64 = 4;
/// Output streams that are found again for further series, and how many of their timestamps are held at once.
const KNOWN_STREAMS: usize = 16 << 10;
const HELD_TIMES: usize = 512 << 10;
/// After so many series other work gets its turn.
const TURN_SERIES: usize = 512;

/// Neighbours to merge: the cheapest of those that are alike in size, are cut at the same time, and are together not too
/// long for retention.
pub(crate) fn choose(
    segments: &[Arc<Segment>],
    retention_ms: i64,
    block_duration_ms: i64,
) -> Option<Range<usize>> {
    let max_span_ms = match retention_ms {
        ..0 => i64::MAX,
        _ => (retention_ms / LONG_SHARE).max(block_duration_ms.min(retention_ms / SHORT_SHARE)),
    };
    let range_of = |segment: &Segment| segment.max_ms.div_euclid(block_duration_ms.max(1));
    let fits = |range: &Range<usize>| {
        let part = &segments[range.clone()];
        let min = part.iter().map(|segment| segment.min_ms).min().unwrap_or(0);
        let max = part.iter().map(|segment| segment.max_ms).max().unwrap_or(0);
        // What lies before the end of the segment before came late, and is few.
        let before = range.start.checked_sub(1).map_or(i64::MIN, |before| segments[before].max_ms);
        max.saturating_sub(min.max(before)) <= max_span_ms && bytes_of(part) <= MAX_OUTPUT_BYTES
    };
    let together = |range: &Range<usize>| {
        let part = &segments[range.clone()];
        part.iter().all(|segment| range_of(segment) == range_of(&part[0]))
    };
    let alike = |range: &Range<usize>| {
        let part = &segments[range.clone()];
        let largest = part.iter().map(|segment| segment.bytes).max().unwrap_or(0);
        largest <= bytes_of(part) / 2
    };
    let windows = |count: usize| {
        (0..(segments.len() + 1).saturating_sub(count)).map(move |first| first..first + count).filter(fits)
    };
    let cheapest = |range: &Range<usize>| bytes_of(&segments[range.clone()]);
    windows(FAN_IN)
        .filter(|range| together(range) && alike(range))
        .min_by_key(cheapest)
        .or_else(|| is_crowded(segments).then(|| windows(2).min_by_key(cheapest)).flatten())
}

/// Whether there are more segments than there should be.
pub(crate) fn is_crowded(segments: &[Arc<Segment>]) -> bool {
    segments.len() > MAX_SEGMENTS
}

fn bytes_of(segments: &[Arc<Segment>]) -> u64 {
    segments.iter().map(|segment| segment.bytes).sum()
}

/// Merges neighbours into the segment of this number, durably. Damaged columns are left out and counted; a copy of
/// their file is kept. `turn` is called now and then.
pub(crate) fn merge(
    store: &Store,
    number: u64,
    inputs: &[Arc<Segment>],
    turn: impl FnMut() -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    let series = inputs.iter().fold(RoaringBitmap::new(), |all, segment| all | &*segment.series);
    merge_series(store, number, inputs, &series, turn)
}

/// Writes a segment anew under this number, without some series.
pub(crate) fn rewrite_without(
    store: &Store,
    number: u64,
    segment: &Arc<Segment>,
    without: &RoaringBitmap,
) -> Result<(), StorageError> {
    let series = &*segment.series - without;
    merge_series(store, number, std::slice::from_ref(segment), &series, || Ok(()))
}

fn merge_series(
    store: &Store,
    number: u64,
    inputs: &[Arc<Segment>],
    series: &RoaringBitmap,
    mut turn: impl FnMut() -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    let place = Places::segments(&store.options.dir);
    let writer = SegmentWriter::create(&store.files, &place, number, Origin::merged(inputs))?;
    let mut merger = Merger {
        cursors: inputs.iter().map(|segment| SegmentCursor::new(Arc::clone(segment))).collect(),
        damaged: vec![false; inputs.len()],
        writer,
        streams: HashMap::new(),
        times: HashMap::new(),
        held_times: 0,
        payload: Vec::new(),
        found: Vec::new(),
    };
    for (count, series) in series.iter().enumerate() {
        if count % TURN_SERIES == TURN_SERIES - 1 {
            turn()?;
        }
        merger.collect(series)?;
        merger.write(series)?;
        merger.merge_kinds(series)?;
    }
    for (segment, _) in inputs.iter().zip(&merger.damaged).filter(|&(_, &damaged)| damaged) {
        // The file goes once it is merged: without a copy of what was left out nothing is merged.
        let path = store.segment_path(segment.number);
        quarantine::try_copy(&*store.files, &store.options.dir, &path)
            .map_err(StorageError::io("copy", &path))?;
        store.counters.quarantined.fetch_add(1, Relaxed);
    }
    merger.writer.finish().map(|_| ())
}

/// Streams of the inputs, in their order, that follow each other in one of the output.
type StreamsKey = Vec<(u32, u32)>;

/// Where the rows of each input's stream begin, and the times of all.
type BasesAndTimes = (Vec<u32>, Vec<i64>);

/// A stream of the output.
#[derive(Clone)]
struct Joined {
    stream: u32,
    /// Where the rows of each input's stream begin.
    bases: Vec<u32>,
}

struct Merger {
    cursors: Vec<SegmentCursor>,
    damaged: Vec<bool>,
    writer: SegmentWriter,
    /// `None`: these do not follow each other in time.
    streams: HashMap<StreamsKey, Option<Joined>>,
    /// Times of output streams, by number; those that are not held are read again.
    times: HashMap<u32, Arc<[i64]>>,
    held_times: usize,
    payload: Vec<u8>,
    found: Vec<(u32, Piece)>,
}

impl Merger {
    /// Reads the columns of a series from all inputs.
    fn collect(&mut self, series: u32) -> Result<(), StorageError> {
        self.payload.clear();
        self.found.clear();
        let mut pieces = Vec::new();
        for (input, cursor) in self.cursors.iter_mut().enumerate() {
            match cursor.pieces_into(series, &mut self.payload, &mut pieces) {
                Ok(()) => self.found.extend(pieces.drain(..).map(|piece| (input as u32, piece))),
                Err(error @ StorageError::Corrupt { .. }) => {
                    pieces.clear();
                    note_damage(&mut self.damaged[input], &error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Merges what the series has beside float samples.
    fn merge_kinds(&mut self, series: u32) -> Result<(), StorageError> {
        for kind in Kind::ALL {
            let (mut columns, mut inputs) = (Vec::new(), Vec::new());
            for (input, cursor) in self.cursors.iter_mut().enumerate() {
                match cursor.kind_column(kind, series) {
                    Ok(Some(column)) => {
                        columns.push(column);
                        inputs.push(input);
                    }
                    Ok(None) => {}
                    Err(error @ StorageError::Corrupt { .. }) => {
                        note_damage(&mut self.damaged[input], &error);
                    }
                    Err(error) => return Err(error),
                }
            }
            let (cursors, damaged) = (&self.cursors, &mut self.damaged);
            let from_ms = |index: usize| cursors[inputs[index]].segment().from_ms;
            let merged = merge_kinds(kind, columns, from_ms, |index, what| {
                let input = inputs[index];
                note_damage(&mut damaged[input], &cursors[input].segment().damaged(what));
            });
            let Some(column) = merged else { continue };
            if kind == Kind::Histograms {
                self.writer.count(column.entries, column.min_ms, column.max_ms);
            }
            self.writer.add_kind(kind, series, &column)?;
        }
        Ok(())
    }

    fn write(&mut self, series: u32) -> Result<(), StorageError> {
        if self.found.is_empty() {
            return Ok(());
        }
        let key: StreamsKey = self.found.iter().map(|(input, piece)| (*input, piece.stream)).collect();
        let joined = match self.streams.get(&key) {
            Some(joined) => joined.clone(),
            None => self.join(&key)?,
        };
        let Some(joined) = joined else { return self.write_alone(series) };
        let times = match self.times.get(&joined.stream) {
            Some(times) => Some(Arc::clone(times)),
            None => self.read_times(&key)?.map(|(_, times)| self.hold_times(joined.stream, times)),
        };
        match times {
            Some(times) => self.write_joined(series, &joined, &times),
            None => self.write_alone(series),
        }
    }

    /// Makes one stream of several, when each begins after the end of the one before.
    fn join(&mut self, key: &StreamsKey) -> Result<Option<Joined>, StorageError> {
        let Some((bases, times)) = self.read_times(key)? else { return Ok(None) };
        let ascending = times.is_sorted_by(|a, b| a < b);
        let joined = if ascending {
            let stream = self.writer.add_times(&times)?;
            self.hold_times(stream, times);
            Some(Joined { stream, bases })
        } else {
            None
        };
        if self.streams.len() >= KNOWN_STREAMS {
            self.streams.clear();
        }
        self.streams.insert(key.clone(), joined.clone());
        Ok(joined)
    }

    /// The times of streams one after the other, and where those of each begin; `None` where one is damaged.
    fn read_times(&mut self, key: &StreamsKey) -> Result<Option<BasesAndTimes>, StorageError> {
        let mut times = Vec::new();
        let mut bases = Vec::new();
        for &(input, stream) in key {
            bases.push(times.len() as u32);
            match self.cursors[input as usize].times(stream) {
                Ok(part) => times.extend_from_slice(&part),
                Err(error @ StorageError::Corrupt { .. }) => {
                    note_damage(&mut self.damaged[input as usize], &error);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some((bases, times)))
    }

    fn hold_times(&mut self, stream: u32, times: Vec<i64>) -> Arc<[i64]> {
        if self.held_times + times.len() > HELD_TIMES {
            self.times.clear();
            self.held_times = 0;
        }
        self.held_times += times.len();
        let times: Arc<[i64]> = times.into();
        self.times.insert(stream, Arc::clone(&times));
        times
    }

    fn write_joined(&mut self, series: u32, joined: &Joined, times: &[i64]) -> Result<(), StorageError> {
        let mut encoder = Encoder::default();
        let (mut first_row, mut samples) = (None, 0u64);
        let (mut min_ms, mut max_ms) = (i64::MAX, i64::MIN);
        for ((input, piece), &base) in self.found.iter().zip(&joined.bases) {
            let from_ms = self.cursors[*input as usize].segment().from_ms;
            let decoded = piece.decode_all(&self.payload, |row, bits| {
                let row = base + row;
                let Some(&time) = times.get(row as usize).filter(|&&time| time >= from_ms) else { return };
                encoder.set(row - *first_row.get_or_insert(row), bits);
                samples += 1;
                (min_ms, max_ms) = (min_ms.min(time), max_ms.max(time));
            });
            if let Err(what) = decoded {
                note_damage(
                    &mut self.damaged[*input as usize],
                    &self.cursors[*input as usize].segment().damaged(what),
                );
            }
        }
        let Some(first_row) = first_row else { return Ok(()) };
        self.writer.count(samples, min_ms, max_ms);
        let rows = encoder.rows();
        let mut payload = Vec::new();
        encoder.finish(&mut payload);
        self.writer
            .add_series(series, &[NewPiece { stream: joined.stream, first_row, rows, payload: &payload }])
    }

    /// A series whose pieces overlap in rows of others: it gets a stream of its own.
    fn write_alone(&mut self, series: u32) -> Result<(), StorageError> {
        let mut samples: Vec<(i64, u64)> = Vec::new();
        for (input, piece) in &self.found {
            let input = *input as usize;
            let times = match self.cursors[input].times(piece.stream) {
                Ok(times) => times,
                Err(error @ StorageError::Corrupt { .. }) => {
                    note_damage(&mut self.damaged[input], &error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let from_ms = self.cursors[input].segment().from_ms;
            let decoded = piece.decode_all(&self.payload, |row, bits| {
                let time = times.get(row as usize).filter(|&&time| time >= from_ms);
                samples.extend(time.map(|&time| (time, bits)));
            });
            if let Err(what) = decoded {
                note_damage(&mut self.damaged[input], &self.cursors[input].segment().damaged(what));
            }
        }
        samples.sort_by_key(|&(time, _)| time);
        samples.dedup_by_key(|&mut (time, _)| time);
        let (Some(&(min_ms, _)), Some(&(max_ms, _))) = (samples.first(), samples.last()) else {
            return Ok(());
        };
        let times: Vec<i64> = samples.iter().map(|&(time, _)| time).collect();
        let mut encoder = Encoder::default();
        for (row, &(_, bits)) in samples.iter().enumerate() {
            encoder.set(row as u32, bits);
        }
        let rows = encoder.rows();
        let mut payload = Vec::new();
        encoder.finish(&mut payload);
        let stream = self.writer.add_times(&times)?;
        self.writer.count(samples.len() as u64, min_ms, max_ms);
        self.writer.add_series(series, &[NewPiece { stream, first_row: 0, rows, payload: &payload }])
    }
}

fn note_damage(damaged: &mut bool, error: &StorageError) {
    if !std::mem::replace(damaged, true) {
        tracing::error!(%error, "damaged samples are left out of a merge; a copy of the file is kept");
    }
}
