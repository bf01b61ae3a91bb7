//! Reads head and segments as one: batches of series that share a timeline.
//!
//! A select is a snapshot, taken shard by shard: of what one append brought to a shard it sees everything or nothing,
//! however long it runs, and everything that was acknowledged before it began. Late samples are the exception: those
//! that come while it runs may be seen.
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use metricsstore_budget::Grant;
use metricsstore_model::read::{
    Columns, FloatColumns, ReadError, SeriesBatch, SeriesBatches, SeriesLabels, SeriesRef,
};

use crate::column::Piece;
use crate::head::{ColumnEnd, Epoch, Layout};
use crate::identity::{Selected, SeriesId};
use crate::kinds::KindsSelect;
use crate::segment::SegmentCursor;
use crate::tombstones::Masks;
use crate::view::View;

/// Series whose encoded columns are held at once, at most and at first.
const CHUNK_SERIES: usize = 1024;
const FIRST_CHUNK_SERIES: usize = 64;
/// Encoded bytes of a chunk; the size of the next one is chosen accordingly.
const CHUNK_BYTES: usize = 2 << 20;
/// Cells of one batch.
const BATCH_CELLS: usize = 512 << 10;
/// Timestamps of streams that are kept from chunk to chunk.
const CACHED_TIMES: usize = 512 << 10;

/// One part of the store. What a series has in order in it is older than what it has in the next.
enum Part {
    Segment(SegmentCursor),
    /// An epoch of one shard. For an open one, where the columns of the selected series in it ended when the snapshot
    /// was taken, in their order; chunks take them from the front.
    Head {
        epoch: Arc<Epoch>,
        shard: usize,
        ends: Option<std::vec::IntoIter<ColumnEnd>>,
    },
}

impl Part {
    /// What is older is not read from it.
    fn begin_ms(&self) -> i64 {
        match self {
            Part::Segment(cursor) => cursor.segment().from_ms,
            Part::Head { .. } => i64::MIN,
        }
    }
}

/// A stream of a part.
type StreamKey = (u32, u32);

/// A piece of the series at this index of the chunk.
struct Found {
    series: u32,
    part: u32,
    piece: Piece,
}

/// Series of a chunk that share a timeline.
struct Group {
    /// Pieces of each series, a range of `Select::found`.
    members: Vec<Range<usize>>,
}

pub(crate) struct Select {
    parts: Vec<Part>,
    layout: Layout,
    start_ms: i64,
    end_ms: i64,
    series: Vec<(SeriesId, SeriesRef)>,
    labels: Arc<dyn SeriesLabels>,
    grant: Grant,
    /// What was deleted.
    masks: Arc<Masks>,
    /// Histograms and start timestamps, where there are any.
    kinds: Option<Box<KindsSelect>>,
    /// Series that no chunk has taken yet begin here.
    next: usize,
    chunk: Range<usize>,
    chunk_series: usize,
    found: Vec<Found>,
    payload: Vec<u8>,
    groups: VecDeque<Group>,
    times: HashMap<StreamKey, Arc<[i64]>>,
    cached_times: usize,
    /// Bytes reserved for the batch handed out last.
    reserved: u64,
    /// Bytes reserved for the chunk.
    chunk_reserved: u64,
    /// Bytes reserved for the snapshot.
    held: u64,
}

impl Select {
    /// A snapshot of `view`; the caller keeps maintenance from re-assigning series ids meanwhile.
    pub(crate) fn new(
        view: &View,
        layout: Layout,
        selected: Selected,
        start_ms: i64,
        end_ms: i64,
        grant: &Grant,
    ) -> Result<Select, ReadError> {
        let overlapping = view.segments.iter().filter(|s| s.min_ms <= end_ms && s.max_ms >= start_ms);
        let mut parts: Vec<Part> =
            overlapping.map(|segment| Part::Segment(SegmentCursor::new(Arc::clone(segment)))).collect();
        let mut held = (selected.series.capacity() * size_of::<(SeriesId, SeriesRef)>()) as u64;
        for (epochs, is_open) in [(&view.frozen, false), (&view.open, true)] {
            for (shard, epoch) in epochs.iter().enumerate() {
                let of_shard = || selected.series.iter().filter(|(id, _)| layout.shard_of(id.0) == shard);
                let count = if is_open { of_shard().count() } else { 0 };
                let data = epoch.data.lock();
                if data.samples == 0 || data.min_ms > end_ms || data.max_ms < start_ms {
                    continue;
                }
                let mut ends = Vec::with_capacity(count);
                if is_open {
                    ends.extend(of_shard().map(|(id, _)| data.column_end(layout.local(id.0))));
                }
                drop(data);
                held += (ends.capacity() * size_of::<ColumnEnd>()) as u64;
                let ends = is_open.then(|| ends.into_iter());
                parts.push(Part::Head { epoch: Arc::clone(epoch), shard, ends });
            }
        }
        grant.reserve(held)?;
        Ok(Select {
            parts,
            layout,
            start_ms,
            end_ms,
            series: selected.series,
            labels: selected.labels,
            grant: grant.clone(),
            masks: Arc::default(),
            kinds: None,
            next: 0,
            chunk: 0..0,
            chunk_series: FIRST_CHUNK_SERIES,
            found: Vec::new(),
            payload: Vec::new(),
            groups: VecDeque::new(),
            times: HashMap::new(),
            cached_times: 0,
            reserved: 0,
            chunk_reserved: 0,
            held,
        })
    }

    /// Leaves out what was deleted.
    pub(crate) fn without(mut self, masks: Arc<Masks>) -> Select {
        self.masks = masks;
        self
    }

    /// Reads these histograms and start timestamps too.
    pub(crate) fn with_kinds(mut self, kinds: Option<Box<KindsSelect>>) -> Select {
        self.kinds = kinds;
        self
    }

    fn reserve(&mut self, bytes: u64) -> Result<(), ReadError> {
        self.grant.reserve(bytes)?;
        self.reserved += bytes;
        Ok(())
    }

    fn release(&mut self) {
        self.grant.release(std::mem::take(&mut self.reserved));
    }

    /// Collects the encoded columns of the next series and sorts them into groups.
    fn load_chunk(&mut self) -> Result<(), ReadError> {
        self.chunk = self.next..(self.next + self.chunk_series).min(self.series.len());
        self.next = self.chunk.end;
        self.found.clear();
        self.payload.clear();
        if self.cached_times > CACHED_TIMES {
            self.times.clear();
            self.cached_times = 0;
        }
        let mut pieces = Vec::new();
        for part in 0..self.parts.len() {
            self.collect_part(part, &mut pieces)?;
        }
        self.grant.release(std::mem::take(&mut self.chunk_reserved));
        let held =
            (self.payload.len() + self.found.len() * size_of::<Found>() + self.cached_times * 8) as u64;
        self.grant.reserve(held)?;
        self.chunk_reserved = held;
        self.found.sort_by_key(|found| found.series);
        self.group()?;
        self.size_next_chunk();
        Ok(())
    }

    fn size_next_chunk(&mut self) {
        let is_large = self.payload.len() > CHUNK_BYTES || self.cached_times > CACHED_TIMES;
        let grown = if is_large { self.chunk_series / 2 } else { self.chunk_series * 4 };
        self.chunk_series = grown.clamp(1, CHUNK_SERIES);
    }

    fn collect_part(&mut self, part: usize, pieces: &mut Vec<Piece>) -> Result<(), ReadError> {
        let chunk = &self.series[self.chunk.clone()];
        match &mut self.parts[part] {
            Part::Segment(cursor) => {
                for (index, (id, _)) in chunk.iter().enumerate() {
                    cursor.pieces_into(id.0, &mut self.payload, pieces)?;
                    let found = pieces.drain(..);
                    self.found.extend(found.map(|piece| Found {
                        series: index as u32,
                        part: part as u32,
                        piece,
                    }));
                }
            }
            Part::Head { epoch, shard, ends } => {
                let data = epoch.data.lock();
                for (index, (id, _)) in chunk.iter().enumerate() {
                    if self.layout.shard_of(id.0) != *shard {
                        continue;
                    }
                    let local = self.layout.local(id.0);
                    data.pieces_into(local, &mut self.payload, pieces);
                    if let Some(ends) = ends {
                        // Late samples are shown as they are by now: their runs may have been merged since.
                        let in_order = pieces.len() - data.late_runs(local);
                        ends.next().unwrap_or_default().cut(pieces, in_order);
                    }
                    self.found.extend(pieces.drain(..).map(|piece| Found {
                        series: index as u32,
                        part: part as u32,
                        piece,
                    }));
                }
            }
        }
        Ok(())
    }

    fn load_times(&mut self, key: StreamKey) -> Result<(), ReadError> {
        if self.times.contains_key(&key) {
            return Ok(());
        }
        let times: Arc<[i64]> = match &mut self.parts[key.0 as usize] {
            Part::Segment(cursor) => cursor.times(key.1)?,
            Part::Head { epoch, .. } => {
                let mut times = Vec::new();
                epoch.data.lock().times_into(key.1, &mut times);
                times.into()
            }
        };
        let bytes = ((times.len() + 8) * 8) as u64;
        self.grant.reserve(bytes)?;
        self.chunk_reserved += bytes;
        self.cached_times += times.len() + 8;
        self.times.insert(key, times);
        Ok(())
    }

    /// Leaves out pieces without rows in the wanted time, then puts series with the same streams together.
    fn group(&mut self) -> Result<(), ReadError> {
        for at in 0..self.found.len() {
            let found = &self.found[at];
            let key = (found.part, found.piece.stream);
            self.load_times(key)?;
        }
        let (end_ms, times, parts) = (self.end_ms, &self.times, &self.parts);
        self.found.retain(|found| {
            let start_ms = parts[found.part as usize].begin_ms().max(self.start_ms);
            let rows = found.piece.first_row as usize..(found.piece.first_row + found.piece.rows) as usize;
            let times = times.get(&(found.part, found.piece.stream)).and_then(|times| times.get(rows));
            times.is_some_and(|times| times[0] <= end_ms && times[times.len() - 1] >= start_ms)
        });
        let mut by_streams: HashMap<Vec<StreamKey>, usize> = HashMap::new();
        let mut groups: Vec<Group> = Vec::new();
        let mut key: Vec<StreamKey> = Vec::new();
        let mut at = 0;
        while at < self.found.len() {
            let series = self.found[at].series;
            let count = self.found[at..].iter().take_while(|found| found.series == series).count();
            let members = at..at + count;
            at += count;
            key.clear();
            key.extend(self.found[members.clone()].iter().map(|found| (found.part, found.piece.stream)));
            let masked = self.masks.of(self.series[self.chunk.start + series as usize].1.order).is_some();
            let alone = masked || key.windows(2).any(|pair| pair[0].0 == pair[1].0);
            match by_streams.get(&key) {
                Some(&group) if !alone => groups[group].members.push(members),
                _ => {
                    if !alone {
                        by_streams.insert(key.clone(), groups.len());
                    }
                    groups.push(Group { members: vec![members] });
                }
            }
        }
        self.groups = groups.into();
        Ok(())
    }

    /// The timeline of a group: for each piece its rows in the stream, and all times. `None` when the parts overlap
    /// in time, so that the series cannot share rows.
    fn timeline(&self, group: &Group) -> Option<(Vec<Range<u32>>, Vec<i64>)> {
        let first = &self.found[group.members[0].clone()];
        let mut ranges = Vec::with_capacity(first.len());
        let mut timeline: Vec<i64> = Vec::new();
        for (position, found) in first.iter().enumerate() {
            let pieces = group.members.iter().map(|members| &self.found[members.start + position].piece);
            let (from, to) = pieces.fold((u32::MAX, 0), |(from, to), piece| {
                (from.min(piece.first_row), to.max(piece.first_row + piece.rows))
            });
            let times = self.times.get(&(found.part, found.piece.stream))?;
            let rows = times.get(from as usize..to as usize)?;
            let start_ms = self.parts[found.part as usize].begin_ms().max(self.start_ms);
            let skipped = rows.partition_point(|&time| time < start_ms) as u32;
            let end = rows.partition_point(|&time| time <= self.end_ms) as u32;
            let rows = from + skipped..from + end.max(skipped);
            let rows_times = &times[rows.start as usize..rows.end as usize];
            if let (Some(last), Some(next)) = (timeline.last(), rows_times.first())
                && last >= next
            {
                return None;
            }
            timeline.extend_from_slice(rows_times);
            ranges.push(rows);
        }
        Some((ranges, timeline))
    }

    /// Builds the next batch of the first group; puts the rest of the group back.
    fn build(&mut self, mut group: Group) -> Result<Option<SeriesBatch>, ReadError> {
        let first = self.series[self.chunk.start + self.found[group.members[0].start].series as usize].1;
        let timeline = if self.masks.of(first.order).is_some() { None } else { self.timeline(&group) };
        let Some((ranges, timeline)) = timeline else {
            let rest = group.members.split_off(1);
            if !rest.is_empty() {
                self.groups.push_front(Group { members: rest });
            }
            return self.build_alone(&group.members[0]);
        };
        let rows = timeline.len();
        let most = (BATCH_CELLS / rows.max(1)).clamp(1, CHUNK_SERIES);
        if group.members.len() > most {
            let rest = group.members.split_off(most);
            self.groups.push_front(Group { members: rest });
        }
        let cells = rows * group.members.len();
        self.reserve((cells * 8 + cells / 8 + rows * 9 + group.members.len() * 16) as u64)?;
        let mut builder = Builder::new(rows, group.members.len());
        for members in &group.members {
            let reference = self.series[self.chunk.start + self.found[members.start].series as usize].1;
            let mut base = 0;
            for (found, rows) in self.found[members.clone()].iter().zip(&ranges) {
                let decoded = found.piece.decode(&self.payload, rows.clone(), |row, bits| {
                    builder.set(base + (row - rows.start) as usize, bits);
                });
                decoded.map_err(|what| self.damaged(found, what))?;
                base += rows.len();
            }
            builder.finish_series(reference);
        }
        Ok(builder.finish(timeline))
    }

    /// A series whose pieces interleave with others in ways that rows cannot express: its own samples only.
    fn build_alone(&mut self, members: &Range<usize>) -> Result<Option<SeriesBatch>, ReadError> {
        let rows: u64 = self.found[members.clone()].iter().map(|found| u64::from(found.piece.rows)).sum();
        self.reserve(rows * 33 + 16)?;
        let mut samples: Vec<(i64, u64)> = Vec::new();
        let reference = self.series[self.chunk.start + self.found[members.start].series as usize].1;
        let mask = self.masks.of(reference.order);
        for found in &self.found[members.clone()] {
            let Some(times) = self.times.get(&(found.part, found.piece.stream)) else { continue };
            let start_ms = self.parts[found.part as usize].begin_ms().max(self.start_ms);
            let decoded = found.piece.decode_all(&self.payload, |row, bits| {
                if let Some(&time) = times.get(row as usize)
                    && (start_ms..=self.end_ms).contains(&time)
                    && !mask.is_some_and(|mask| mask.covers(time))
                {
                    samples.push((time, bits));
                }
            });
            decoded.map_err(|what| self.damaged(found, what))?;
        }
        samples.sort_by_key(|&(time, _)| time);
        samples.dedup_by_key(|&mut (time, _)| time);
        let mut builder = Builder::new(samples.len(), 1);
        for (row, &(_, bits)) in samples.iter().enumerate() {
            builder.set(row, bits);
        }
        builder.finish_series(self.series[self.chunk.start + self.found[members.start].series as usize].1);
        Ok(builder.finish(samples.iter().map(|&(time, _)| time).collect()))
    }

    fn damaged(&self, found: &Found, what: &str) -> ReadError {
        let file = match &self.parts[found.part as usize] {
            Part::Segment(cursor) => cursor.segment().name(),
            Part::Head { .. } => "memory".into(),
        };
        ReadError::Corrupt { file, offset: 0, what: what.into() }
    }
}

impl SeriesBatches for Select {
    fn next_batch(&mut self) -> Result<Option<SeriesBatch>, ReadError> {
        self.release();
        loop {
            while let Some(group) = self.groups.pop_front() {
                if let Some(mut batch) = self.build(group)? {
                    if let Some(kinds) = &mut self.kinds {
                        kinds.release();
                        kinds.fill_starts(&mut batch)?;
                    }
                    return Ok(Some(batch));
                }
                self.release();
            }
            if self.next >= self.series.len() {
                return self.kinds.as_mut().map_or(Ok(None), |kinds| kinds.next_histograms());
            }
            self.load_chunk()?;
        }
    }

    fn labels(&self) -> Arc<dyn SeriesLabels> {
        Arc::clone(&self.labels)
    }
}

impl Drop for Select {
    fn drop(&mut self) {
        self.release();
        self.grant.release(self.chunk_reserved + self.held);
    }
}

/// Puts decoded columns together; series without a sample are left out.
struct Builder {
    rows: usize,
    values: Vec<f64>,
    absent: Vec<u64>,
    any_absent: bool,
    ids: Vec<SeriesRef>,
    /// Where the present series begins, and its first row that is not set or left out yet.
    base: usize,
    next_row: usize,
}

impl Builder {
    fn new(rows: usize, series: usize) -> Builder {
        let cells = rows * series;
        Builder {
            rows,
            values: vec![0.0; cells],
            absent: vec![0; cells.div_ceil(64)],
            any_absent: false,
            ids: Vec::with_capacity(series),
            base: 0,
            next_row: 0,
        }
    }

    /// Sets a row of the present series; rows come in ascending order.
    #[inline]
    fn set(&mut self, row: usize, bits: u64) {
        if row > self.next_row {
            self.leave_out(row);
        }
        self.values[self.base + row] = f64::from_bits(bits);
        self.next_row = row + 1;
    }

    /// The rows up to `end` have no sample.
    #[cold]
    fn leave_out(&mut self, end: usize) {
        self.any_absent = true;
        for cell in self.base + self.next_row..self.base + end {
            self.absent[cell / 64] |= 1 << (cell % 64);
        }
    }

    fn finish_series(&mut self, reference: SeriesRef) {
        if self.next_row == 0 {
            return;
        }
        if self.next_row < self.rows {
            self.leave_out(self.rows);
        }
        self.ids.push(reference);
        self.base += self.rows;
        self.next_row = 0;
    }

    fn finish(mut self, timeline: Vec<i64>) -> Option<SeriesBatch> {
        if self.ids.is_empty() {
            return None;
        }
        self.values.truncate(self.base);
        self.absent.truncate(if self.any_absent { self.base.div_ceil(64) } else { 0 });
        let columns = Columns::Floats(FloatColumns { values: self.values, absent: self.absent });
        Some(SeriesBatch { times: timeline.into(), ids: self.ids, columns, starts_ms: Vec::new() })
    }
}
