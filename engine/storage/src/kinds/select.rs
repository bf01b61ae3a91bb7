//! The part of a select that reads histograms and start timestamps. There is none where no selected series has any.
use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use metricsstore_budget::Grant;
use metricsstore_model::histogram::Histogram;
use metricsstore_model::read::{Columns, HistogramColumns, ReadError, SeriesBatch, SeriesRef};

use super::merge::{merged_histograms, merged_starts};
use super::{Kind, KindColumn};
use crate::head::Layout;
use crate::identity::SeriesId;
use crate::segment::SegmentCursor;
use crate::tombstones::Masks;
use crate::view::View;

/// One part of the store, of which a series' samples are older than those in the next.
enum Part {
    Segment(SegmentCursor),
    /// Columns of the selected series as they were when the snapshot was taken.
    Head([HashMap<u32, KindColumn>; 2]),
}

pub(crate) struct KindsSelect {
    parts: Vec<Part>,
    masks: Arc<Masks>,
    start_ms: i64,
    end_ms: i64,
    /// Series with histograms that were not handed out yet.
    histograms: VecDeque<(u32, SeriesRef)>,
    /// Series with start timestamps.
    starts: HashMap<SeriesRef, u32>,
    grant: Grant,
    /// Bytes reserved for the columns of the head.
    held: u64,
    /// Bytes reserved for the batch handed out last.
    reserved: u64,
}

impl KindsSelect {
    /// A snapshot of `view`; `None` where the series have nothing of these kinds in the time range.
    pub(crate) fn new(
        view: &View,
        layout: Layout,
        series: &[(SeriesId, SeriesRef)],
        masks: &Arc<Masks>,
        (start_ms, end_ms): (i64, i64),
        grant: &Grant,
    ) -> Result<Option<Box<KindsSelect>>, ReadError> {
        let mut select = KindsSelect {
            parts: Vec::new(),
            masks: Arc::clone(masks),
            start_ms,
            end_ms,
            histograms: VecDeque::new(),
            starts: HashMap::new(),
            grant: grant.clone(),
            held: 0,
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
        if select.parts.is_empty() {
            return Ok(None);
        }
        for &(id, reference) in series {
            if select.has(Kind::Histograms, id.0) {
                select.histograms.push_back((id.0, reference));
            }
            if select.has(Kind::Starts, id.0) {
                select.starts.insert(reference, id.0);
            }
        }
        let is_needed = !select.histograms.is_empty() || !select.starts.is_empty();
        Ok(is_needed.then(|| Box::new(select)))
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
                self.grant.reserve(bytes)?;
                self.held += bytes;
                copied[kind as usize].insert(id, column);
            }
        }
        if copied.iter().any(|columns| !columns.is_empty()) {
            self.parts.push(Part::Head(copied));
        }
        Ok(())
    }

    fn has(&self, kind: Kind, series: u32) -> bool {
        self.parts.iter().any(|part| match part {
            Part::Segment(cursor) => cursor.segment().series_with(kind).contains(series),
            Part::Head(columns) => columns[kind as usize].contains_key(&series),
        })
    }

    /// The columns of a series, each with its part.
    fn columns(&mut self, kind: Kind, series: u32) -> Result<Vec<(usize, KindColumn)>, ReadError> {
        let mut columns = Vec::new();
        for (place, part) in self.parts.iter_mut().enumerate() {
            let column = match part {
                Part::Segment(cursor) => cursor.kind_column(kind, series)?,
                Part::Head(columns) => columns[kind as usize].get(&series).cloned(),
            };
            columns.extend(column.map(|column| (place, column)));
        }
        Ok(columns)
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
        while let Some((series, reference)) = self.histograms.pop_front() {
            let columns = self.columns(Kind::Histograms, series)?;
            let mask = self.masks.of(reference.order);
            let wanted = |index: usize, time| {
                (self.start_of(columns[index].0)..=self.end_ms).contains(&time)
                    && !mask.is_some_and(|mask| mask.covers(time))
            };
            let merged = merged_histograms(columns.iter().map(|(_, column)| column), wanted)
                .map_err(|(index, what)| self.damaged(columns[index].0, what))?;
            if merged.is_empty() {
                continue;
            }
            let (times, cells): (Vec<i64>, Vec<_>) =
                merged.into_iter().map(|(time, histogram)| (time, Some(histogram))).unzip();
            let heap: usize = cells.iter().flatten().map(Histogram::heap_bytes).sum();
            self.reserve(heap + cells.len() * (size_of_val(&cells[0]) + 8))?;
            let mut batch = SeriesBatch {
                times: times.into(),
                ids: vec![reference],
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
            let columns = self.columns(Kind::Starts, series)?;
            let wanted = |index: usize, time| (self.start_of(columns[index].0)..=self.end_ms).contains(&time);
            let entries = columns.iter().map(|(_, column)| column.entries).fold(0, u64::saturating_add);
            let scratch = entries.saturating_mul(size_of::<(i64, i64)>() as u64);
            self.grant.reserve(scratch)?;
            let starts = merged_starts(columns.iter().map(|(_, column)| column), wanted);
            self.grant.release(scratch);
            let starts = starts.map_err(|(index, what)| self.damaged(columns[index].0, what))?;
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

    /// What is wanted of a part begins here.
    fn start_of(&self, part: usize) -> i64 {
        match &self.parts[part] {
            Part::Segment(cursor) => self.start_ms.max(cursor.segment().from_ms),
            Part::Head(_) => self.start_ms,
        }
    }

    fn damaged(&self, part: usize, what: &str) -> ReadError {
        let file = match &self.parts[part] {
            Part::Segment(cursor) => cursor.segment().name(),
            Part::Head(_) => "memory".into(),
        };
        ReadError::Corrupt { file, offset: 0, what: what.into() }
    }
}

impl Drop for KindsSelect {
    fn drop(&mut self) {
        self.release();
        self.grant.release(self.held);
    }
}
