//! Reads head, segments and blocks as one: batches of series that share a timeline.
//!
//! Matchers run on identity and on the index of every block that overlaps; `join` tells which series and rows are one.
//! Without a block, all is as in the head: series by id, folded in the order of their creation. With blocks, series go
//! by label sets ([`Roster`] says why), so that pages of blocks are read one after the other.
//!
//! A select is a snapshot, taken shard by shard: of what one append brought to a shard it sees everything or nothing,
//! however long it runs, and everything that was acknowledged before it began. Late samples are the exception: those
//! that come while it runs may be seen.
mod builder;
mod held;
mod join;
mod labels;
mod part;
mod roster;
mod rows;
mod source;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use metricsstore_budget::Grant;
use metricsstore_model::Matcher;
use metricsstore_model::read::{ReadError, SeriesBatch, SeriesBatches, SeriesLabels};

use builder::Builder;
use join::{Join, NOBODY};
use labels::JoinedLabels;
use part::Part;

use crate::block::Block;
use crate::column::Piece;
use crate::head::{ColumnEnd, Layout};
use crate::identity::{Labels, Selected};
use crate::kinds::KindsSelect;
use crate::segment::SegmentCursor;
use crate::sync::Mutex;
use crate::tombstones::{Mask, Masks, is_covered};
use crate::view::{LiveBlock, View};

pub(crate) use held::Held;
pub(crate) use part::block_name;
pub(crate) use roster::Roster;
pub(crate) use rows::BlockRow;

/// Series whose encoded columns are held at once, at most and at first.
const CHUNK_SERIES: usize = 1024;
const FIRST_CHUNK_SERIES: usize = 64;
/// Encoded bytes of a chunk; the size of the next one is chosen accordingly.
const CHUNK_BYTES: usize = 2 << 20;
/// Cells of one batch.
const BATCH_CELLS: usize = 512 << 10;
/// Timestamps of streams that are kept from chunk to chunk.
const CACHED_TIMES: usize = 512 << 10;

/// A stream of a part.
type StreamKey = (u32, u32);

/// A piece of the series at this index of the chunk.
struct Found {
    series: u32,
    part: u32,
    piece: Piece,
}

impl Found {
    fn key(&self) -> StreamKey {
        (self.part, self.piece.stream)
    }

    /// Whether `next` goes on with the same stream, as the next page of a block does.
    fn goes_on(&self, next: &Found) -> bool {
        self.key() == next.key() && self.piece.end_row() <= next.piece.first_row
    }
}

/// Pieces of one series that lie in one stream, one after the other.
fn runs(found: &[Found]) -> impl Iterator<Item = &[Found]> {
    found.chunk_by(Found::goes_on)
}

/// Series of a chunk that share a timeline.
struct Group {
    /// Pieces of each series, a range of `Select::found`.
    members: Vec<Range<usize>>,
}

pub(crate) struct Select {
    /// Blocks first, each in the place that [`BlockRow`] names.
    parts: Vec<Part>,
    layout: Layout,
    start_ms: i64,
    end_ms: i64,
    roster: Arc<Roster>,
    live_labels: Arc<Labels>,
    labels: Arc<dyn SeriesLabels>,
    grant: Grant,
    /// What was deleted of head and segments.
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
    held: Held,
}

impl Select {
    /// A snapshot of head and segments; the caller keeps maintenance from re-assigning series ids meanwhile.
    pub(crate) fn new(
        view: &View,
        layout: Layout,
        selected: Selected,
        (start_ms, end_ms): (i64, i64),
        masks: Arc<Masks>,
        grant: &Grant,
    ) -> Result<Select, ReadError> {
        let overlapping = view.segments.iter().filter(|s| s.min_ms <= end_ms && s.max_ms >= start_ms);
        let mut parts: Vec<Part> =
            overlapping.map(|segment| Part::Segment(SegmentCursor::new(Arc::clone(segment)))).collect();
        let mut held = Held::new(grant);
        held.grow(size_of_val(&*selected.series) as u64)?;
        for (epochs, is_open) in [(&view.frozen, false), (&view.open, true)] {
            for (shard, epoch) in epochs.iter().enumerate() {
                let of_shard = || selected.series.iter().filter(|(id, _)| layout.shard_of(id.0) == shard);
                let count = if is_open { of_shard().count() } else { 0 };
                let data = epoch.data.lock();
                if data.samples == 0 || data.min_ms > end_ms || data.max_ms < start_ms {
                    continue;
                }
                held.grow((count * size_of::<ColumnEnd>()) as u64)?;
                let mut ends = Vec::with_capacity(count);
                if is_open {
                    ends.extend(of_shard().map(|(id, _)| data.column_end(layout.local(id.0))));
                }
                drop(data);
                let ends = is_open.then(|| ends.into_iter());
                parts.push(Part::Head { epoch: Arc::clone(epoch), shard, ends });
            }
        }
        let Selected { series, labels } = selected;
        Ok(Select {
            parts,
            layout,
            start_ms,
            end_ms,
            roster: Arc::new(Roster::of_live(series)),
            live_labels: Arc::clone(&labels),
            labels,
            grant: grant.clone(),
            masks,
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

    /// Reads these blocks too, of what passes the matchers that the select was made with.
    pub(crate) fn join(
        mut self,
        blocks: &[Arc<LiveBlock>],
        matchers: &[Matcher],
    ) -> Result<Select, ReadError> {
        if blocks.is_empty() {
            return Ok(self);
        }
        let readers: Vec<Arc<dyn Block>> = blocks.iter().map(|live| Arc::clone(&live.block)).collect();
        let join = Join {
            live: self.roster.live(),
            labels: &self.live_labels,
            blocks: &readers,
            matchers,
            grant: &self.grant,
        };
        let joined = join.run()?;
        self.move_ends(&joined.was);
        self.parts.splice(..0, blocks.iter().map(Part::of_block));
        // The former roster and what it took go.
        self.roster = Arc::new(joined.roster);
        self.held = joined.held;
        self.labels = Arc::new(JoinedLabels {
            live: Arc::<Labels>::clone(&self.live_labels),
            blocks: readers,
            roster: Arc::clone(&self.roster),
            failure: Mutex::new(None),
        });
        Ok(self)
    }

    /// Puts the ends of columns into the order of the series, which stood in the places `was`.
    fn move_ends(&mut self, was: &[u32]) {
        let live = self.roster.live();
        let shard_of = |place: u32| self.layout.shard_of(live[place as usize].0.0);
        let mut counts = vec![0_u32; self.layout.shards()];
        let in_shard: Vec<u32> = (0..live.len() as u32)
            .map(|place| {
                let count = &mut counts[shard_of(place)];
                *count += 1;
                *count - 1
            })
            .collect();
        for part in &mut self.parts {
            let Part::Head { shard, ends: Some(ends), .. } = part else { continue };
            let places = was.iter().filter(|&&place| place != NOBODY && shard_of(place) == *shard);
            let before = ends.as_slice();
            let moved: Vec<ColumnEnd> =
                places.map(|&place| before[in_shard[place as usize] as usize]).collect();
            *ends = moved.into_iter();
        }
    }

    /// Reads these histograms and start timestamps too.
    pub(crate) fn with_kinds(
        mut self,
        kinds: KindsSelect,
        blocks: &[Arc<LiveBlock>],
    ) -> Result<Select, ReadError> {
        self.kinds = kinds.of(&self.roster, blocks)?;
        Ok(self)
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
        self.chunk = self.next..(self.next + self.chunk_series).min(self.roster.len());
        self.found.clear();
        self.payload.clear();
        self.grant.release(std::mem::take(&mut self.chunk_reserved));
        if self.cached_times > CACHED_TIMES {
            self.times.clear();
            self.cached_times = 0;
        }
        self.collect_blocks()?;
        let mut pieces = Vec::new();
        for part in 0..self.parts.len() {
            self.collect_part(part, &mut pieces)?;
        }
        self.next = self.chunk.end;
        self.hold_chunk()?;
        self.found.sort_by_key(|found| found.series);
        self.group()?;
        self.size_next_chunk();
        Ok(())
    }

    /// Reserves what the chunk takes.
    fn hold_chunk(&mut self) -> Result<(), ReadError> {
        let held = self.payload.len() + self.found.len() * size_of::<Found>() + self.cached_times * 8;
        let more = (held as u64).saturating_sub(self.chunk_reserved);
        self.grant.reserve(more)?;
        self.chunk_reserved += more;
        Ok(())
    }

    fn size_next_chunk(&mut self) {
        let is_large = self.payload.len() > CHUNK_BYTES || self.cached_times > CACHED_TIMES;
        let grown = if is_large { self.chunk_series / 2 } else { self.chunk_series * 4 };
        self.chunk_series = grown.clamp(1, CHUNK_SERIES);
    }

    /// Collects what blocks have; where that is much, the chunk ends early.
    fn collect_blocks(&mut self) -> Result<(), ReadError> {
        let within = (self.start_ms, self.end_ms);
        let mut pieces = Vec::new();
        for index in 0..self.chunk.len() {
            for row in self.roster.rows(self.chunk.start + index) {
                let Some(Part::Block { cursor, .. }) = self.parts.get_mut(row.block as usize) else {
                    continue;
                };
                cursor.pieces_into(row.row, within, &mut self.payload, &mut pieces)?;
                let found = pieces.drain(..);
                self.found.extend(found.map(|piece| Found { series: index as u32, part: row.block, piece }));
            }
            if self.payload.len() > CHUNK_BYTES {
                self.chunk.end = self.chunk.start + index + 1;
                break;
            }
        }
        self.hold_chunk()
    }

    fn collect_part(&mut self, part: usize, pieces: &mut Vec<Piece>) -> Result<(), ReadError> {
        let (roster, start) = (&self.roster, self.chunk.start);
        let ids = self.chunk.clone().filter_map(|place| {
            let id = roster.id(place)?;
            Some((id, (place - start) as u32))
        });
        match &mut self.parts[part] {
            Part::Block { .. } => {}
            Part::Segment(cursor) => {
                let mut ids: Vec<(u32, u32)> = ids.collect();
                // Its own order, so that each of its blocks is read once.
                ids.sort_unstable();
                for (id, series) in ids {
                    cursor.pieces_into(id, &mut self.payload, pieces)?;
                    let found = pieces.drain(..);
                    self.found.extend(found.map(|piece| Found { series, part: part as u32, piece }));
                }
            }
            Part::Head { epoch, shard, ends } => {
                let data = epoch.data.lock();
                for (id, series) in ids {
                    if self.layout.shard_of(id) != *shard {
                        continue;
                    }
                    let local = self.layout.local(id);
                    data.pieces_into(local, &mut self.payload, pieces);
                    if let Some(ends) = ends {
                        // Late samples are shown as they are by now: their runs may have been merged since.
                        let in_order = pieces.len() - data.late_runs(local);
                        ends.next().unwrap_or_default().cut(pieces, in_order);
                    }
                    let found = pieces.drain(..);
                    self.found.extend(found.map(|piece| Found { series, part: part as u32, piece }));
                }
            }
        }
        Ok(())
    }

    fn load_times(&mut self, key: StreamKey) -> Result<(), ReadError> {
        if self.times.contains_key(&key) {
            return Ok(());
        }
        let times = self.parts[key.0 as usize].times(key.1)?;
        let bytes = ((times.len() + 8) * 8) as u64;
        self.grant.reserve(bytes)?;
        self.chunk_reserved += bytes;
        self.cached_times += times.len() + 8;
        self.times.insert(key, times);
        Ok(())
    }

    /// Whether samples of a series were deleted and still stand somewhere.
    fn is_masked(&self, place: usize) -> bool {
        let of_row = |row: &BlockRow| self.deleted_of(*row).is_some();
        self.masks.of(self.roster.order(place)).is_some() || self.roster.rows(place).iter().any(of_row)
    }

    fn is_block(&self, part: u32) -> bool {
        matches!(self.parts[part as usize], Part::Block { .. })
    }

    /// What was deleted of a row.
    fn deleted_of(&self, row: BlockRow) -> Option<&[(i64, i64)]> {
        let Part::Block { live, .. } = &self.parts[row.block as usize] else { return None };
        live.tombstones.of(row.row)
    }

    /// What was deleted of a series in a part.
    fn deleted(&self, place: usize, part: u32) -> Option<&[(i64, i64)]> {
        if self.is_block(part) {
            let row = self.roster.rows(place).iter().find(|row| row.block == part)?;
            return self.deleted_of(*row);
        }
        self.masks.of(self.roster.order(place)).map(Mask::ranges)
    }

    /// Leaves out pieces without rows in the wanted time, then puts series with the same streams together.
    fn group(&mut self) -> Result<(), ReadError> {
        for at in 0..self.found.len() {
            let found = &self.found[at];
            let key = found.key();
            self.load_times(key)?;
        }
        let (end_ms, times, parts) = (self.end_ms, &self.times, &self.parts);
        self.found.retain(|found| {
            let start_ms = parts[found.part as usize].begin_ms().max(self.start_ms);
            let rows = found.piece.first_row as usize..found.piece.end_row() as usize;
            let times = times.get(&found.key()).and_then(|times| times.get(rows));
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
            key.extend(runs(&self.found[members.clone()]).map(|run| run[0].key()));
            let alone = self.is_masked(self.chunk.start + series as usize)
                || key.windows(2).any(|pair| pair[0].0 == pair[1].0 && !self.is_block(pair[0].0));
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

    /// The timeline of a group: for each run of pieces its rows in the stream, and all times. `None` when the parts
    /// overlap in time, so that the series cannot share rows.
    fn timeline(&self, group: &Group) -> Option<(Vec<Range<u32>>, Vec<i64>)> {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for members in &group.members {
            for (position, run) in runs(&self.found[members.clone()]).enumerate() {
                let (from, to) = (run[0].piece.first_row, run[run.len() - 1].piece.end_row());
                match ranges.get_mut(position) {
                    Some(range) => *range = range.start.min(from)..range.end.max(to),
                    None => ranges.push(from..to),
                }
            }
        }
        let mut timeline: Vec<i64> = Vec::new();
        for (run, range) in runs(&self.found[group.members[0].clone()]).zip(&mut ranges) {
            let times = self.times.get(&run[0].key())?;
            let rows = times.get(range.start as usize..range.end as usize)?;
            let start_ms = self.parts[run[0].part as usize].begin_ms().max(self.start_ms);
            let skipped = rows.partition_point(|&time| time < start_ms) as u32;
            let end = rows.partition_point(|&time| time <= self.end_ms) as u32;
            *range = range.start + skipped..range.start + end.max(skipped);
            let rows_times = &times[range.start as usize..range.end as usize];
            if let (Some(last), Some(next)) = (timeline.last(), rows_times.first())
                && last >= next
            {
                return None;
            }
            timeline.extend_from_slice(rows_times);
        }
        Some((ranges, timeline))
    }

    /// Builds the next batch of the first group; puts the rest of the group back.
    fn build(&mut self, mut group: Group) -> Result<Option<SeriesBatch>, ReadError> {
        let timeline =
            if self.is_masked(self.place(&group.members[0])) { None } else { self.timeline(&group) };
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
            let reference = self.roster.reference(self.place(members));
            let mut base = 0;
            for (run, rows) in runs(&self.found[members.clone()]).zip(&ranges) {
                for found in run {
                    let decoded = found.piece.decode(&self.payload, rows.clone(), |row, bits| {
                        builder.set(base + (row - rows.start) as usize, bits);
                    });
                    decoded.map_err(|what| self.damaged(found, what))?;
                }
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
        let place = self.place(members);
        for found in &self.found[members.clone()] {
            let Some(times) = self.times.get(&found.key()) else { continue };
            let start_ms = self.parts[found.part as usize].begin_ms().max(self.start_ms);
            let deleted = self.deleted(place, found.part).unwrap_or_default();
            let decoded = found.piece.decode_all(&self.payload, |row, bits| {
                if let Some(&time) = times.get(row as usize)
                    && (start_ms..=self.end_ms).contains(&time)
                    && !is_covered(deleted, time)
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
        builder.finish_series(self.roster.reference(place));
        Ok(builder.finish(samples.iter().map(|&(time, _)| time).collect()))
    }

    /// The place of a series whose pieces these are.
    fn place(&self, members: &Range<usize>) -> usize {
        self.chunk.start + self.found[members.start].series as usize
    }

    fn damaged(&self, found: &Found, what: &str) -> ReadError {
        let file = self.parts[found.part as usize].name();
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
            if self.next >= self.roster.len() {
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
        self.grant.release(self.chunk_reserved);
    }
}
