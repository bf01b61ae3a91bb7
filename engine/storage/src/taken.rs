//! What a series has at a timestamp outside the open epoch: in the frozen one and in segments.
use std::sync::Arc;

use metricsstore_model::histogram::Histogram;

use crate::StorageError;
use crate::head::Layout;
use crate::kinds::{Kind, decode_histograms};
use crate::segment::{Segment, SegmentCursor};
use crate::view::View;

/// Looks up samples of one series after the other; what was decoded of a series serves all its samples.
pub(crate) struct Taken<'v> {
    view: &'v View,
    layout: Layout,
    /// One for each segment, made when its first sample is asked for.
    cursors: Vec<Option<SegmentCursor>>,
    /// The series asked for last, and its samples in the segments that were looked into.
    series: Option<u32>,
    decoded: Vec<Option<Vec<(i64, u64)>>>,
}

impl<'v> Taken<'v> {
    pub(crate) fn new(view: &'v View, layout: Layout) -> Taken<'v> {
        Taken { view, layout, cursors: Vec::new(), series: None, decoded: Vec::new() }
    }

    /// The bits of a series' sample at this time. An error says that a segment which may have it cannot be read.
    pub(crate) fn value_at(&mut self, series: u32, timestamp_ms: i64) -> Result<Option<u64>, StorageError> {
        if let Some(epoch) = self.view.frozen.get(self.layout.shard_of(series)) {
            let value = epoch.data.lock().value_at(self.layout.local(series), timestamp_ms);
            if value.is_some() {
                return Ok(value);
            }
        }
        if self.series != Some(series) {
            self.series = Some(series);
            self.decoded.clear();
            self.decoded.resize(self.view.segments.len(), None);
        }
        for (at, segment) in self.view.segments.iter().enumerate().rev() {
            if !(segment.min_ms..=segment.max_ms).contains(&timestamp_ms) || !segment.series.contains(series)
            {
                continue;
            }
            let samples = self.samples_in(at, series)?;
            if let Ok(found) = samples.binary_search_by_key(&timestamp_ms, |&(time, _)| time) {
                return Ok(Some(samples[found].1));
            }
        }
        Ok(None)
    }

    /// The histogram of a series at this time, likewise.
    pub(crate) fn histogram_at(
        &mut self,
        series: u32,
        timestamp_ms: i64,
    ) -> Result<Option<Histogram>, StorageError> {
        if let Some(epoch) = self.view.frozen.get(self.layout.shard_of(series)) {
            let found = epoch.data.lock().histogram_at(self.layout.local(series), timestamp_ms);
            if found.is_some() {
                return Ok(found);
            }
        }
        let may_have = |segment: &&Arc<Segment>| {
            (segment.min_ms..=segment.max_ms).contains(&timestamp_ms)
                && segment.series_with(Kind::Histograms).contains(series)
        };
        for segment in self.view.segments.iter().rev().filter(may_have) {
            let Some(column) =
                SegmentCursor::new(Arc::clone(segment)).kind_column(Kind::Histograms, series)?
            else {
                continue;
            };
            let mut found = None;
            decode_histograms(&column.payload, |time, histogram| {
                if time == timestamp_ms && found.is_none() {
                    found = Some(histogram);
                }
            })
            .map_err(|what| segment.damaged(what))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// A series' samples in one segment, ascending.
    fn samples_in(&mut self, at: usize, series: u32) -> Result<&[(i64, u64)], StorageError> {
        self.cursors.resize_with(self.view.segments.len(), || None);
        let segment = &self.view.segments[at];
        let cursor = self.cursors[at].get_or_insert_with(|| SegmentCursor::new(Arc::clone(segment)));
        let slot = &mut self.decoded[at];
        if slot.is_none() {
            *slot = Some(cursor.samples(series)?);
        }
        Ok(slot.as_deref().unwrap_or_default())
    }
}
