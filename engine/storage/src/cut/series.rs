//! What segments have of one range of time, as series in the order of their labels.
//!
//! Segments have series in the order of their ids, blocks in the order of labels. So series are taken in *batches* of the
//! order of labels that fit into a bound: for each batch the encoded columns and the timestamps that belong to the range
//! are gathered from one segment after the other in the order of ids, then decoded series by series.
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use metricsstore_budget::Part as Memory;
use metricsstore_model::LabelBuf;
use roaring::RoaringBitmap;

use super::Left;
use crate::block::series::{SLICE_HISTOGRAMS, SLICE_SAMPLES};
use crate::block::{SeriesData, SeriesStream};
use crate::column::Piece;
use crate::identity::SeriesId;
use crate::kinds::{Kind, KindColumn, decode_histograms, merged_histograms, merged_starts};
use crate::segment::{Segment, SegmentCursor};
use crate::store::Store;
use crate::tombstones::{Masks, is_covered};
use crate::{StorageError, StoredExemplar};

/// What a batch may hold: this share of the budget, but always so many bytes.
const BATCH_SHARE: u64 = 32;
const MIN_BATCH_BYTES: usize = 1 << 20;
const MAX_BATCH_BYTES: usize = 256 << 20;
/// Series of the first batch, and of the largest.
const FIRST_BATCH_SERIES: usize = 4 << 10;
const MAX_BATCH_SERIES: usize = 64 << 10;

/// A segment that is read.
struct Input {
    cursor: SegmentCursor,
    /// What is wrong with it, where something is.
    damage: Option<StorageError>,
    /// Oldest sample after the range; `i64::MAX` where there is none.
    next_ms: i64,
    /// The series that have some after the range.
    left: RoaringBitmap,
}

impl Input {
    fn note(&mut self, error: StorageError, end_ms: i64) {
        // What could not be read may lie after the range.
        self.next_ms = self.next_ms.min(end_ms);
        self.left.clone_from(&self.cursor.segment().series);
        self.damage.get_or_insert(error);
    }
}

/// Float samples of the series at this place of the batch.
struct Found {
    place: u32,
    input: u32,
    piece: Piece,
}

/// What it has beside them.
struct FoundKind {
    place: u32,
    input: u32,
    kind: Kind,
    column: KindColumn,
}

/// A stream of an input.
type StreamKey = (u32, u32);

/// What was gathered for some series.
#[derive(Default)]
struct Batch {
    /// Which series, in the order of labels.
    series: Range<usize>,
    payload: Vec<u8>,
    found: Vec<Found>,
    kinds: Vec<FoundKind>,
    kind_bytes: usize,
    times: HashMap<StreamKey, Arc<[i64]>>,
    time_bytes: usize,
}

impl Batch {
    fn bytes(&self) -> usize {
        self.payload.len()
            + self.found.len() * size_of::<Found>()
            + self.kinds.len() * size_of::<FoundKind>()
            + self.kind_bytes
            + self.time_bytes
    }

    /// Begins another batch; timestamps are kept, as far as they take no more than half of it.
    fn restart(&mut self, series: Range<usize>, most_bytes: usize) {
        self.series = series;
        self.payload.clear();
        self.found.clear();
        self.kinds.clear();
        self.kind_bytes = 0;
        if self.time_bytes > most_bytes / 2 {
            self.times.clear();
            self.time_bytes = 0;
        }
    }
}

/// The series that is handed out.
struct Current {
    /// Place in the batch, and in the creation order.
    place: u32,
    order: u64,
    /// What stands before was handed out.
    from_ms: i64,
    /// Whether some of it was.
    is_continuation: bool,
}

/// See the module's documentation.
pub(crate) struct CutSeries<'s> {
    store: &'s Store,
    start_ms: i64,
    end_ms: i64,
    inputs: Vec<Input>,
    /// Ids in the order of labels.
    order: Vec<u32>,
    /// Series that no batch has taken begin here.
    next: usize,
    batch_series: usize,
    batch_bytes: usize,
    batch: Batch,
    /// Place in the batch of the series that comes next.
    place: u32,
    current: Option<Current>,
    masks: Arc<Masks>,
    exemplars: HashMap<Arc<LabelBuf>, Vec<StoredExemplar>>,
    /// Bytes counted in the budget.
    counted: u64,
}

impl<'s> CutSeries<'s> {
    /// The samples of `segments` from `start_ms` up to but without `end_ms`.
    pub(crate) fn new(
        store: &'s Store,
        segments: &[Arc<Segment>],
        (start_ms, end_ms): (i64, i64),
    ) -> CutSeries<'s> {
        let series = segments.iter().fold(RoaringBitmap::new(), |all, segment| all | &*segment.series);
        let share = usize::try_from(store.budget.limit() / BATCH_SHARE).unwrap_or(MAX_BATCH_BYTES);
        let batch_bytes = share.clamp(MIN_BATCH_BYTES, MAX_BATCH_BYTES);
        let counted = batch_bytes as u64 + series.len() * 20;
        store.budget.add(Memory::Segments, counted);
        let input = |segment: &Arc<Segment>| Input {
            cursor: SegmentCursor::new(Arc::clone(segment)),
            damage: None,
            next_ms: i64::MAX,
            left: RoaringBitmap::new(),
        };
        let order = store.identity.in_label_order(&series);
        let mut inputs: Vec<Input> = segments.iter().map(input).collect();
        if (order.len() as u64) < series.len() {
            // What belongs to no series that is known is left out as what is damaged is.
            for input in &mut inputs {
                let is_unknown = |id| store.identity.series_ref(SeriesId(id)).is_none();
                if input.cursor.segment().series.iter().any(is_unknown) {
                    let error = input.cursor.segment().damaged("it names a series that is not defined");
                    input.note(error, end_ms);
                }
            }
        }
        CutSeries {
            store,
            start_ms,
            end_ms,
            inputs,
            order,
            next: 0,
            batch_series: FIRST_BATCH_SERIES,
            batch_bytes,
            batch: Batch::default(),
            place: 0,
            current: None,
            masks: store.tombstones.masks(),
            exemplars: exemplars_within(store, start_ms, end_ms),
            counted,
        }
    }

    /// Once all was read: what is left of each segment, and what is wrong with it.
    pub(crate) fn outcome(&mut self) -> impl Iterator<Item = (Left, Option<StorageError>)> + '_ {
        self.inputs.iter_mut().map(|input| {
            let (number, series) = (input.cursor.segment().number, std::mem::take(&mut input.left));
            (Left { number, next_ms: input.next_ms, series }, input.damage.take())
        })
    }

    fn load_batch(&mut self) -> Result<(), StorageError> {
        loop {
            let end = (self.next + self.batch_series).min(self.order.len());
            self.batch.restart(self.next..end, self.batch_bytes);
            if self.gather()? {
                break;
            }
            // One series alone is taken whatever its size.
            self.batch_series = (self.batch_series / 2).max(1);
        }
        self.next = self.batch.series.end;
        self.place = 0;
        if self.batch.bytes() < self.batch_bytes / 3 {
            self.batch_series = (self.batch_series * 2).min(MAX_BATCH_SERIES);
        }
        self.batch.found.sort_by_key(|found| found.place);
        self.batch.kinds.sort_by_key(|found| found.place);
        Ok(())
    }

    /// Says whether everything fitted.
    fn gather(&mut self) -> Result<bool, StorageError> {
        let ids = &self.order[self.batch.series.clone()];
        let mut wanted: Vec<(u32, u32)> = ids.iter().copied().zip(0..).collect();
        wanted.sort_unstable();
        let (is_single, mut pieces) = (wanted.len() == 1, Vec::new());
        for input in 0..self.inputs.len() as u32 {
            for &(id, place) in &wanted {
                self.gather_floats(input, id, place, &mut pieces)?;
                for kind in Kind::ALL {
                    self.gather_kind(input, id, place, kind)?;
                }
                if !is_single && self.batch.bytes() > self.batch_bytes {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn gather_floats(
        &mut self,
        number: u32,
        id: u32,
        place: u32,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), StorageError> {
        let input = &mut self.inputs[number as usize];
        let (from_ms, begin) = (input.cursor.segment().from_ms, self.batch.payload.len());
        pieces.clear();
        if let Err(error) = input.cursor.pieces_into(id, &mut self.batch.payload, pieces) {
            pieces.clear();
            note_damage(input, error, self.end_ms)?;
        }
        let mut is_needed = false;
        for piece in pieces.drain(..) {
            let key = (number, piece.stream);
            let times = match self.batch.times.get(&key) {
                Some(times) => times,
                None => match input.cursor.times(piece.stream) {
                    Ok(times) => {
                        self.batch.time_bytes += size_of_val(&*times) + size_of::<(StreamKey, [u64; 4])>();
                        self.batch.times.entry(key).or_insert(times)
                    }
                    Err(error) => {
                        note_damage(input, error, self.end_ms)?;
                        continue;
                    }
                },
            };
            let Some(times) = rows_of(&piece, times) else {
                let error = input.cursor.segment().damaged("a series has more rows than its timestamps");
                input.note(error, self.end_ms);
                continue;
            };
            let after = times.partition_point(|&time| time < self.end_ms);
            if let Some(&next_ms) = times.get(after) {
                input.next_ms = input.next_ms.min(next_ms);
                input.left.insert(id);
            }
            let before = times.partition_point(|&time| time < self.start_ms.max(from_ms));
            if before < after {
                is_needed = true;
                self.batch.found.push(Found { place, input: number, piece });
            }
        }
        if !is_needed {
            self.batch.payload.truncate(begin);
        }
        Ok(())
    }

    fn gather_kind(&mut self, number: u32, id: u32, place: u32, kind: Kind) -> Result<(), StorageError> {
        let input = &mut self.inputs[number as usize];
        let column = match input.cursor.kind_column(kind, id) {
            Ok(column) => column,
            Err(error) => return note_damage(input, error, self.end_ms),
        };
        let Some(column) = column else { return Ok(()) };
        if column.max_ms >= self.end_ms && kind == Kind::Histograms {
            let next_ms = next_histogram(&column, self.end_ms);
            input.next_ms = input.next_ms.min(next_ms);
            input.left.insert(id);
        }
        if column.min_ms < self.end_ms && column.max_ms >= self.start_ms {
            self.batch.kind_bytes += column.payload.len();
            self.batch.kinds.push(FoundKind { place, input: number, kind, column });
        }
        Ok(())
    }

    /// Begins the next series of the batch that has something.
    fn begin_series(&mut self, labels: &mut LabelBuf) {
        let (place, id) = (self.place, self.order[self.batch.series.start + self.place as usize]);
        self.place += 1;
        let has_samples = self.batch.found.binary_search_by_key(&place, |found| found.place).is_ok()
            || self.batch.kinds.binary_search_by_key(&place, |found| found.place).is_ok();
        if !has_samples {
            return;
        }
        let order = self.store.identity.labels_of(SeriesId(id), labels);
        self.current =
            order.map(|order| Current { place, order, from_ms: self.start_ms, is_continuation: false });
    }

    /// Decodes the next slice of a series; says whether it was the last.
    fn slice_into(&mut self, current: &mut Current, series: &mut SeriesData) -> bool {
        series.clear_samples();
        series.is_continuation = current.is_continuation;
        let of_place = |place: u32| place == current.place;
        let found = slice_of(&self.batch.found, |found| found.place, current.place);
        let kinds = slice_of(&self.batch.kinds, |found| found.place, current.place);
        debug_assert!(found.iter().all(|found| of_place(found.place)));
        let window = Window { from_ms: current.from_ms, end_ms: self.end_ms };
        let window = window.shortened(found, kinds, &self.batch.times);
        let mask = self.masks.of(current.order);
        let is_kept = |from_ms: i64, time: i64| {
            time >= from_ms
                && window.contains(time)
                && !mask.is_some_and(|mask| is_covered(mask.ranges(), time))
        };
        for Found { input, piece, .. } in found {
            let Some(times) = self.batch.times.get(&(*input, piece.stream)) else { continue };
            let input = &mut self.inputs[*input as usize];
            let from_ms = input.cursor.segment().from_ms;
            let rows = window.rows_in(times);
            let decoded = piece.decode(&self.batch.payload, rows, |row, bits| {
                let time = times[row as usize];
                if is_kept(from_ms, time) {
                    series.floats.push((time, bits));
                }
            });
            if let Err(what) = decoded {
                input.note(input.cursor.segment().damaged(what), self.end_ms);
            }
        }
        if !series.floats.is_sorted_by(|a, b| a.0 < b.0) {
            series.floats.sort_by_key(|&(time, _)| time);
            series.floats.dedup_by_key(|&mut (time, _)| time);
        }
        add_kinds(&mut self.inputs, kinds, self.end_ms, is_kept, series);
        if let Some(exemplars) = self.exemplars.get(&series.labels) {
            let wanted = exemplars.iter().filter(|exemplar| window.contains(exemplar.timestamp_ms));
            series.exemplars.extend(wanted.cloned());
        }
        current.from_ms = window.end_ms;
        current.is_continuation |= series.samples() > 0;
        window.end_ms >= self.end_ms
    }
}

impl SeriesStream for CutSeries<'_> {
    fn next_into(&mut self, series: &mut SeriesData) -> Result<bool, StorageError> {
        loop {
            if let Some(mut current) = self.current.take() {
                let is_last = self.slice_into(&mut current, series);
                if !is_last {
                    self.current = Some(current);
                }
                if series.samples() > 0 {
                    return Ok(true);
                }
            } else if (self.place as usize) < self.batch.series.len() {
                self.begin_series(&mut series.labels);
            } else if self.next < self.order.len() {
                self.load_batch()?;
            } else {
                return Ok(false);
            }
        }
    }
}

impl Drop for CutSeries<'_> {
    fn drop(&mut self) {
        self.store.budget.sub(Memory::Segments, self.counted);
    }
}

/// A time range of which the samples of one series fit in a slice.
#[derive(Clone, Copy)]
struct Window {
    from_ms: i64,
    /// Not in it any more.
    end_ms: i64,
}

impl Window {
    fn contains(&self, time: i64) -> bool {
        (self.from_ms..self.end_ms).contains(&time)
    }

    /// Rows of a stream.
    fn rows_in(&self, times: &[i64]) -> Range<u32> {
        let place = |ms: i64| times.partition_point(|&time| time < ms) as u32;
        place(self.from_ms)..place(self.end_ms)
    }

    /// Ends earlier where a slice would get too long.
    fn shortened(
        mut self,
        found: &[Found],
        kinds: &[FoundKind],
        times: &HashMap<StreamKey, Arc<[i64]>>,
    ) -> Window {
        let rows_of = |found: &Found| {
            let times = times.get(&(found.input, found.piece.stream))?;
            let rows = self.rows_in(times);
            Some((&times[rows.start as usize..rows.end as usize], rows.len()))
        };
        let samples: usize = found.iter().filter_map(rows_of).map(|(_, rows)| rows).sum();
        let mut end_ms = self.end_ms;
        if samples > SLICE_SAMPLES {
            let most = (SLICE_SAMPLES / found.len()).max(1);
            let ends = found.iter().filter_map(|found| rows_of(found)?.0.get(most).copied());
            end_ms = ends.min().unwrap_or(end_ms);
        }
        let histograms = || kinds.iter().filter(|found| found.kind == Kind::Histograms);
        let entries = histograms().map(|found| found.column.entries).fold(0, u64::saturating_add);
        if entries > SLICE_HISTOGRAMS as u64 {
            let mut times = Vec::new();
            for found in histograms() {
                // Damage shows where the column is read.
                let _ = decode_histograms(&found.column.payload, |time, _| {
                    times.extend(self.contains(time).then_some(time));
                });
            }
            times.sort_unstable();
            times.dedup();
            end_ms = times.get(SLICE_HISTOGRAMS).map_or(end_ms, |&time| end_ms.min(time));
        }
        self.end_ms = end_ms;
        self
    }
}

/// Histograms and start timestamps for which `is_kept` holds, told the beginning of the input and the time. A histogram is
/// validated before it is handed on (grafana/mimir#16273).
fn add_kinds(
    inputs: &mut [Input],
    found: &[FoundKind],
    end_ms: i64,
    is_kept: impl Fn(i64, i64) -> bool,
    series: &mut SeriesData,
) {
    for kind in Kind::ALL {
        let mut columns: Vec<&FoundKind> = found.iter().filter(|found| found.kind == kind).collect();
        while !columns.is_empty() {
            let from_ms: Vec<i64> =
                columns.iter().map(|found| inputs[found.input as usize].cursor.segment().from_ms).collect();
            let wanted = |index: usize, time| is_kept(from_ms[index], time);
            let parts = columns.iter().map(|found| &found.column);
            let merged = match kind {
                Kind::Histograms => merged_histograms(parts, wanted).map(|all| series.histograms = all),
                Kind::Starts => merged_starts(parts, wanted).map(|all| series.starts = all),
            };
            // One that is damaged is left out, and the others are tried again.
            let Err((index, what)) = merged else { break };
            let input = &mut inputs[columns.remove(index).input as usize];
            input.note(input.cursor.segment().damaged(what), end_ms);
        }
    }
    let SeriesData { floats, histograms, starts, .. } = series;
    let has_float = |time: &i64| floats.binary_search_by_key(time, |&(time, _)| time).is_ok();
    histograms.retain(|(time, histogram)| histogram.validate().is_ok() && !has_float(time));
    let has_histogram = |time: &i64| histograms.binary_search_by_key(time, |&(time, _)| time).is_ok();
    starts.retain(|(time, _)| has_float(time) || has_histogram(time));
}

/// Damage is noted; any other error is the caller's.
fn note_damage(input: &mut Input, error: StorageError, end_ms: i64) -> Result<(), StorageError> {
    match error {
        error @ StorageError::Corrupt { .. } => {
            input.note(error, end_ms);
            Ok(())
        }
        error => Err(error),
    }
}

/// The timestamps of a piece's rows.
fn rows_of<'t>(piece: &Piece, times: &'t [i64]) -> Option<&'t [i64]> {
    times.get(piece.first_row as usize..(piece.first_row + piece.rows) as usize)
}

/// Those of `place`, of items that are sorted by it.
fn slice_of<T>(items: &[T], place_of: impl Fn(&T) -> u32, place: u32) -> &[T] {
    let start = items.partition_point(|item| place_of(item) < place);
    let end = start + items[start..].partition_point(|item| place_of(item) == place);
    &items[start..end]
}

/// Time of the first histogram from `end_ms` on; `end_ms` where that cannot be told.
fn next_histogram(column: &KindColumn, end_ms: i64) -> i64 {
    let mut next_ms = i64::MAX;
    let decoded = decode_histograms(&column.payload, |time, _| {
        if time >= end_ms {
            next_ms = next_ms.min(time);
        }
    });
    if decoded.is_ok() { next_ms } else { end_ms }
}

/// The exemplars of a time range by their series, oldest first.
fn exemplars_within(
    store: &Store,
    start_ms: i64,
    end_ms: i64,
) -> HashMap<Arc<LabelBuf>, Vec<StoredExemplar>> {
    let mut found: HashMap<Arc<LabelBuf>, Vec<StoredExemplar>> = HashMap::new();
    for exemplar in store.exemplars.all() {
        if (start_ms..end_ms).contains(&exemplar.timestamp_ms) {
            found.entry(exemplar.series).or_default().push(StoredExemplar {
                labels: exemplar.labels,
                timestamp_ms: exemplar.timestamp_ms,
                value: exemplar.value,
            });
        }
    }
    found.values_mut().for_each(|exemplars| exemplars.sort_by_key(|exemplar| exemplar.timestamp_ms));
    found
}
