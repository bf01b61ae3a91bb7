//! The part of a select that reads histograms and start timestamps. There is none where no selected series has any.
use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use metricsstore_budget::Grant;
use metricsstore_model::histogram::Histogram;
use metricsstore_model::read::{Columns, HistogramColumns, ReadError, SeriesBatch, SeriesRef};
use roaring::RoaringBitmap;

use super::merge::{merged_histograms, merged_starts};
use super::{Kind, KindColumn};
use crate::StorageError;
use crate::block::BlockCursor;
use crate::head::Layout;
use crate::identity::SeriesId;
use crate::segment::SegmentCursor;
use crate::select::{BlockRow, Held, Roster, block_name};
use crate::tombstones::{Masks, is_covered};
use crate::view::{LiveBlock, View};

/// One part of the store, of which a series' samples are older than those in the next.
enum Part {
    Block(BlockPart),
    Segment(SegmentCursor),
    /// Columns of the selected series as they were when the snapshot was taken.
    Head([HashMap<u32, KindColumn>; 2]),
}

struct BlockPart {
    live: Arc<LiveBlock>,
    /// Its place, as [`BlockRow`] names it.
    place: u32,
    cursor: Box<dyn BlockCursor>,
    /// Rows that have columns of each kind; `None` where every one may.
    with: [Option<RoaringBitmap>; 2],
}

pub(crate) struct KindsSelect {
    /// Blocks, then segments, then the head.
    parts: Vec<Part>,
    roster: Arc<Roster>,
    masks: Arc<Masks>,
    start_ms: i64,
    end_ms: i64,
    /// Places of series with histograms that were not handed out yet.
    histograms: VecDeque<u32>,
    /// Places of series with start timestamps.
    starts: HashMap<SeriesRef, u32>,
    grant: Grant,
    /// What the columns of the head take, and the tables of series.
    held: Held,
    /// Bytes reserved for the batch handed out last.
    reserved: u64,
}

/// A column of a series, and which part it is from.
struct Found {
    part: usize,
    column: KindColumn,
    /// What was deleted of the series there.
    deleted: Vec<(i64, i64)>,
}

impl BlockPart {
    fn new(live: &Arc<LiveBlock>, place: u32) -> Result<BlockPart, StorageError> {
        let mut with = [const { None }; 2];
        for kind in Kind::ALL {
            let has_none = kind == Kind::Histograms && live.block.meta().histogram_samples == 0;
            with[kind as usize] =
                if has_none { Some(RoaringBitmap::new()) } else { live.block.rows_with(kind)? };
        }
        let cursor = Arc::clone(&live.block).cursor();
        Ok(BlockPart { live: Arc::clone(live), place, cursor, with })
    }

    fn has_any(&self) -> bool {
        self.with.iter().any(|rows| rows.as_ref().is_none_or(|rows| !rows.is_empty()))
    }

    fn row_of(&self, kind: Kind, rows: &[BlockRow]) -> Option<u32> {
        let row = rows.iter().find(|row| row.block == self.place)?.row;
        self.with[kind as usize].as_ref().is_none_or(|with| with.contains(row)).then_some(row)
    }
}

impl KindsSelect {
    /// A snapshot of head and segments.
    pub(crate) fn new(
        view: &View,
        layout: Layout,
        series: &[(SeriesId, SeriesRef)],
        masks: &Arc<Masks>,
        (start_ms, end_ms): (i64, i64),
        grant: &Grant,
    ) -> Result<KindsSelect, ReadError> {
        let mut select = KindsSelect {
            parts: Vec::new(),
            roster: Arc::default(),
            masks: Arc::clone(masks),
            start_ms,
            end_ms,
            histograms: VecDeque::new(),
            starts: HashMap::new(),
            grant: grant.clone(),
            held: Held::new(grant),
            reserved: 0,
        };
        for segment in view.segments.iter().filter(|s| s.min_ms <= end_ms && s.max_ms >= start_ms) {
            if Kind::ALL.iter().any(|&kind| !segment.series_with(kind).is_empty()) {
                select.parts.push(Part::Segment(SegmentCursor::new(Arc::clone(segment))));
            }
        }
        for epochs in [&view.frozen, &view.open] {
            for (shard, epoch) in epochs.iter().enumerate() {
                let data = epoch.data.lock();
                if !data.kinds.is_empty() {
                    let of_shard = series.iter().filter(|(id, _)| layout.shard_of(id.0) == shard);
                    let locals = of_shard.map(|(id, _)| (id.0, layout.local(id.0)));
                    select.copy_head(&data.kinds, locals)?;
                }
            }
        }
        Ok(select)
    }

    /// Reads what these series have, in these blocks too; `None` where that is nothing.
    pub(crate) fn of(
        mut self,
        roster: &Arc<Roster>,
        blocks: &[Arc<LiveBlock>],
    ) -> Result<Option<Box<KindsSelect>>, ReadError> {
        let mut parts = Vec::new();
        for (place, live) in (0..).zip(blocks) {
            let part = BlockPart::new(live, place)?;
            if part.has_any() {
                parts.push(Part::Block(part));
            }
        }
        self.parts.splice(..0, parts);
        if self.parts.is_empty() {
            return Ok(None);
        }
        self.roster = Arc::clone(roster);
        for place in 0..roster.len() {
            if self.has(Kind::Histograms, place) {
                self.held.grow(size_of::<u32>() as u64 * 2)?;
                self.histograms.push_back(place as u32);
            }
            if self.has(Kind::Starts, place) {
                self.held.grow(size_of::<(SeriesRef, u32)>() as u64 * 2)?;
                self.starts.insert(roster.reference(place), place as u32);
            }
        }
        let is_needed = !self.histograms.is_empty() || !self.starts.is_empty();
        Ok(is_needed.then(|| Box::new(self)))
    }

    fn copy_head(
        &mut self,
        kinds: &super::Kinds,
        series: impl Iterator<Item = (u32, u32)>,
    ) -> Result<(), ReadError> {
        let mut copied = <[HashMap<u32, KindColumn>; 2]>::default();
        for (id, local) in series {
            for kind in Kind::ALL {
                let column = kinds.column(kind, local);
                let overlaps = |c: &KindColumn| c.min_ms <= self.end_ms && c.max_ms >= self.start_ms;
                let Some(column) = column.filter(overlaps) else { continue };
                let bytes = (size_of::<KindColumn>() + column.payload.len()) as u64;
                self.held.grow(bytes)?;
                copied[kind as usize].insert(id, column);
            }
        }
        if copied.iter().any(|columns| !columns.is_empty()) {
            self.parts.push(Part::Head(copied));
        }
        Ok(())
    }

    fn has(&self, kind: Kind, place: usize) -> bool {
        let id = self.roster.id(place);
        self.parts.iter().any(|part| match part {
            Part::Block(block) => block.row_of(kind, self.roster.rows(place)).is_some(),
            Part::Segment(cursor) => id.is_some_and(|id| cursor.segment().series_with(kind).contains(id)),
            Part::Head(columns) => id.is_some_and(|id| columns[kind as usize].contains_key(&id)),
        })
    }

    /// The columns of a series.
    fn columns(&mut self, kind: Kind, place: usize) -> Result<Vec<Found>, ReadError> {
        let (id, rows) = (self.roster.id(place), self.roster.rows(place));
        let masked = self.masks.of(self.roster.order(place)).map_or(&[][..], |mask| mask.ranges());
        let within = (self.start_ms, self.end_ms);
        let mut found = Vec::new();
        for (index, part) in self.parts.iter_mut().enumerate() {
            let mut deleted = masked;
            let column = match (part, id) {
                (Part::Block(block), _) => {
                    let Some(row) = block.row_of(kind, rows) else { continue };
                    deleted = block.live.tombstones.of(row).unwrap_or_default();
                    block.cursor.kind_column(kind, row, within)?
                }
                (Part::Segment(cursor), Some(id)) => cursor.kind_column(kind, id)?,
                (Part::Head(columns), Some(id)) => columns[kind as usize].get(&id).cloned(),
                (Part::Segment(_) | Part::Head(_), None) => None,
            };
            found.extend(column.map(|column| Found { part: index, column, deleted: deleted.to_vec() }));
        }
        Ok(found)
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), ReadError> {
        self.grant.reserve(bytes as u64)?;
        self.reserved += bytes as u64;
        Ok(())
    }

    /// Gives back what the batch handed out last took.
    pub(crate) fn release(&mut self) {
        self.grant.release(std::mem::take(&mut self.reserved));
    }

    /// The histograms of the next series that has some; `None` after the last.
    pub(crate) fn next_histograms(&mut self) -> Result<Option<SeriesBatch>, ReadError> {
        self.release();
        while let Some(place) = self.histograms.pop_front() {
            let found = self.columns(Kind::Histograms, place as usize)?;
            let scratch = scratch_bytes(&found, size_of::<(i64, Histogram)>() + size_of::<Option<i64>>());
            self.grant.reserve(scratch)?;
            let wanted = |index: usize, time| self.is_wanted(&found[index], time);
            let merged = merged_histograms(found.iter().map(|found| &found.column), wanted);
            self.grant.release(scratch);
            let merged = merged.map_err(|(index, what)| self.damaged(found[index].part, what))?;
            if merged.is_empty() {
                continue;
            }
            let (times, cells): (Vec<i64>, Vec<_>) =
                merged.into_iter().map(|(time, histogram)| (time, Some(histogram))).unzip();
            let heap: usize = cells.iter().flatten().map(Histogram::heap_bytes).sum();
            self.reserve(heap + cells.len() * (size_of_val(&cells[0]) + 8))?;
            let mut batch = SeriesBatch {
                times: times.into(),
                ids: vec![self.roster.reference(place as usize)],
                columns: Columns::Histograms(HistogramColumns { cells }),
                starts_ms: Vec::new(),
            };
            self.fill_starts(&mut batch)?;
            return Ok(Some(batch));
        }
        Ok(None)
    }

    /// Adds the start timestamps of the samples of a batch.
    pub(crate) fn fill_starts(&mut self, batch: &mut SeriesBatch) -> Result<(), ReadError> {
        let rows = batch.times.len();
        for place in 0..batch.ids.len() {
            let Some(&series) = self.starts.get(&batch.ids[place]) else { continue };
            let found = self.columns(Kind::Starts, series as usize)?;
            let scratch = scratch_bytes(&found, size_of::<(i64, i64)>());
            self.grant.reserve(scratch)?;
            let wanted = |index: usize, time| self.is_wanted(&found[index], time);
            let starts = merged_starts(found.iter().map(|found| &found.column), wanted);
            self.grant.release(scratch);
            let starts = starts.map_err(|(index, what)| self.damaged(found[index].part, what))?;
            if starts.is_empty() {
                continue;
            }
            if batch.starts_ms.is_empty() {
                self.reserve(rows * batch.ids.len() * 8)?;
                batch.starts_ms = vec![0; rows * batch.ids.len()];
            }
            for (time, start) in starts {
                let Ok(row) = batch.times.binary_search(&time) else { continue };
                let cell = place * rows + row;
                let is_present = match &batch.columns {
                    Columns::Floats(columns) => columns.is_present(cell),
                    _ => true,
                };
                if is_present {
                    batch.starts_ms[cell] = start;
                }
            }
        }
        Ok(())
    }

    fn is_wanted(&self, found: &Found, time_ms: i64) -> bool {
        let start_ms = match &self.parts[found.part] {
            Part::Segment(cursor) => self.start_ms.max(cursor.segment().from_ms),
            Part::Block(_) | Part::Head(_) => self.start_ms,
        };
        (start_ms..=self.end_ms).contains(&time_ms) && !is_covered(&found.deleted, time_ms)
    }

    fn damaged(&self, part: usize, what: &str) -> ReadError {
        let file = match &self.parts[part] {
            Part::Block(block) => block_name(&block.live),
            Part::Segment(cursor) => cursor.segment().name(),
            Part::Head(_) => "memory".into(),
        };
        ReadError::Corrupt { file, offset: 0, what: what.into() }
    }
}

/// What it takes to decode columns whose entries take so many bytes each.
fn scratch_bytes(found: &[Found], entry_bytes: usize) -> u64 {
    let of_column = |found: &Found| {
        found.column.payload.len() as u64 + found.column.entries.saturating_mul(entry_bytes as u64)
    };
    found.iter().map(of_column).fold(0, u64::saturating_add)
}

impl Drop for KindsSelect {
    fn drop(&mut self) {
        self.release();
    }
}
