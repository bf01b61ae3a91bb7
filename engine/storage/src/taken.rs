//! What a series has at a timestamp outside the open epoch: in the frozen one, in segments and in blocks.
mod in_blocks;

use std::sync::Arc;

use metricsstore_model::Refusal;
use metricsstore_model::histogram::Histogram;

use crate::StorageError;
use crate::head::{Judgement, Layout, Limits};
use crate::identity::Identity;
use crate::kinds::{Kind, decode_histograms};
use crate::segment::{Segment, SegmentCursor};
use crate::view::View;
use crate::wal::histogram_record::LogHistogram;
use crate::wal::record::LogSample;
use in_blocks::InBlocks;

/// Looks up samples of one series after the other; what was decoded of a series serves all its samples.
pub(crate) struct Taken<'v> {
    view: &'v View,
    layout: Layout,
    /// One for each segment, made when its first sample is asked for.
    cursors: Vec<Option<SegmentCursor>>,
    /// The series asked for last, and its samples in the segments that were looked into.
    series: Option<u32>,
    decoded: Vec<Option<Vec<(i64, u64)>>>,
    blocks: InBlocks<'v>,
}

impl<'v> Taken<'v> {
    pub(crate) fn new(view: &'v View, layout: Layout, identity: &'v Identity) -> Taken<'v> {
        let blocks = InBlocks::new(&view.blocks, identity);
        Taken { view, layout, cursors: Vec::new(), series: None, decoded: Vec::new(), blocks }
    }

    /// The bits of a series' sample at this time. An error says that what may have it cannot be read.
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
        self.blocks.value_at(series, timestamp_ms)
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
        self.blocks.histogram_at(series, timestamp_ms)
    }

    /// What blocks say of a sample in order: nothing, unless a clock ran ahead, so that samples as young as this one were
    /// cut and their series may be forgotten.
    pub(crate) fn judge_by_blocks(&mut self, sample: LogSample, limits: Limits) -> Option<Judgement> {
        if !limits.may_be_in_blocks(sample.timestamp_ms) {
            return None;
        }
        match self.blocks.value_at(sample.series, sample.timestamp_ms) {
            Ok(None) => None,
            Ok(Some(bits)) if bits == sample.bits => Some(Judgement::Duplicate),
            _ => Some(Judgement::Refused(Refusal::DuplicateTimestamp)),
        }
    }

    /// The same of a histogram.
    pub(crate) fn judge_histogram_by_blocks(
        &mut self,
        entry: &LogHistogram,
        limits: Limits,
    ) -> Option<Judgement> {
        if !limits.may_be_in_blocks(entry.timestamp_ms) {
            return None;
        }
        match self.blocks.histogram_at(entry.series, entry.timestamp_ms) {
            Ok(None) => None,
            Ok(Some(histogram)) if histogram == entry.histogram => Some(Judgement::Duplicate),
            _ => Some(Judgement::Refused(Refusal::DuplicateTimestamp)),
        }
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
