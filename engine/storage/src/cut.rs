//! Cutting: what segments have of a range of time that is over becomes a block.
//!
//! Ranges are as long as blocks of the first level and aligned to that. One is over once the newest sample is half a range
//! past its end: then no sample of it is in order any more. Everything before its end is cut, what is in the head sealed
//! first, range by range from the oldest on; of a range that has a block already, what came late becomes another, which
//! compaction merges.
//!
//! The time is that of the data, bounded by the clock: one that runs ahead for a while makes blocks early, which loses
//! nothing, and what comes for their ranges later makes others. A change is committed by the manifest, which names the
//! block and says from when on the segments are read, in one step.
mod series;

use std::sync::Arc;

use metricsstore_budget::Level;
use roaring::RoaringBitmap;

use crate::block::{BlockSink, NewBlock, SeriesData, SeriesStream};
use crate::maintain::Upkeep;
use crate::segment::Segment;
use crate::store::Store;
use crate::sync::atomic::Ordering::Relaxed;
use crate::view::{LiveBlock, View, sort_blocks};
use crate::{DiskLevel, Maintenance, StorageError, compact, quarantine};
pub(crate) use series::CutSeries;

/// Ranges that are cut in one go, so that other background work gets its turn.
const MAX_RANGES: usize = 4;
/// After so many series other work gets its turn.
const TURN_SERIES: usize = 512;

/// What is left of a segment after a cut.
pub(crate) struct Left {
    number: u64,
    /// Its oldest sample after the range; `i64::MAX` where there is none.
    next_ms: i64,
    /// The series that have some after the range.
    series: RoaringBitmap,
}

impl Store {
    pub(crate) fn cut_when_due(
        &self,
        upkeep: &mut Upkeep,
        done: &mut Maintenance,
    ) -> Result<(), StorageError> {
        let now = self.clock.monotonic();
        // As merging: where memory or disk are short it waits, but not for ever.
        let short = self.ladder.level() >= Level::SealEarly || self.ladder.disk.level() > DiskLevel::Normal;
        let waits = short && !compact::is_crowded(&self.view.load().segments);
        if waits || !upkeep.cutting.is_due(now) {
            return Ok(());
        }
        let Some(end_ms) = self.due_cut(upkeep) else { return Ok(()) };
        let cut = self.cut_before(end_ms, upkeep, done);
        match upkeep.cutting.note(now, cut) {
            Err(StorageError::Interrupted) => Ok(()),
            cut => cut,
        }
    }

    /// The end of the last range that is over, unless everything before it was cut.
    fn due_cut(&self, upkeep: &mut Upkeep) -> Option<i64> {
        let length_ms = self.options.block_duration_ms.max(1);
        let newest_ms = self.credible_newest_ms();
        if newest_ms == i64::MIN {
            return None;
        }
        let end_ms = newest_ms.saturating_sub(length_ms / 2).div_euclid(length_ms) * length_ms;
        let cut_ms = upkeep.cut_ms.unwrap_or_else(|| {
            let ends =
                self.view.load().blocks.iter().map(|live| live.block.meta().end_ms).collect::<Vec<_>>();
            ends.into_iter().filter(|&ms| ms <= end_ms).max().unwrap_or(i64::MIN)
        });
        upkeep.cut_ms = Some(cut_ms);
        (cut_ms != end_ms).then_some(end_ms)
    }

    fn cut_before(
        &self,
        end_ms: i64,
        upkeep: &mut Upkeep,
        done: &mut Maintenance,
    ) -> Result<(), StorageError> {
        let head = self.head_figures();
        if upkeep.pending.is_some() || head.samples > 0 && head.min_ms < end_ms {
            self.seal(upkeep, done)?;
        }
        for _ in 0..MAX_RANGES {
            let oldest_ms = self.view.load().segments.iter().map(|segment| segment.min_ms).min();
            let Some(oldest_ms) = oldest_ms.filter(|&oldest_ms| oldest_ms < end_ms) else {
                upkeep.cut_ms = Some(end_ms);
                return Ok(());
            };
            let length_ms = self.options.block_duration_ms.max(1);
            let start_ms = oldest_ms.div_euclid(length_ms) * length_ms;
            if !self.cut_range((start_ms, start_ms + length_ms), upkeep, done)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Makes a block of what segments have of the oldest range that they have anything of; says whether there was space.
    fn cut_range(
        &self,
        range: (i64, i64),
        upkeep: &mut Upkeep,
        done: &mut Maintenance,
    ) -> Result<bool, StorageError> {
        let view = self.view.load_full();
        let inputs: Vec<Arc<Segment>> =
            view.segments.iter().filter(|segment| segment.min_ms < range.1).cloned().collect();
        if !self.ladder.disk.has_room_for(inputs.iter().map(|segment| segment.bytes).sum()) {
            return Ok(false);
        }
        let (block, left) = self.write_block(&inputs, range, upkeep, done)?;
        done.cut += u32::from(block.is_some());
        self.counters.cuts.fetch_add(u64::from(block.is_some()), Relaxed);
        self.show_cut(range.1, block, left, upkeep)?;
        Ok(true)
    }

    /// Writes the samples of a range durably into a block, where there are any.
    fn write_block(
        &self,
        inputs: &[Arc<Segment>],
        range: (i64, i64),
        upkeep: &mut Upkeep,
        done: &mut Maintenance,
    ) -> Result<(Option<LiveBlock>, Vec<Left>), StorageError> {
        let name = self.take_block(upkeep);
        let mut stream = CutSeries::new(self, inputs, range);
        let mut sink: Option<Box<dyn BlockSink>> = None;
        let begin = || {
            let overlaps = |live: &Arc<LiveBlock>| {
                let meta = live.block.meta();
                meta.start_ms < range.1 && meta.end_ms > range.0
            };
            let new = NewBlock {
                ulid: name.ulid,
                start_ms: range.0,
                end_ms: range.1,
                level: 1,
                sources: vec![name.ulid],
                parents: Vec::new(),
                is_late: self.view.load().blocks.iter().any(overlaps),
                is_cold: false,
            };
            self.blocks.create(name.format, new)
        };
        let poured = pour(&mut stream, &mut sink, begin, || self.take_turn(upkeep, done));
        if let Err(error) = poured {
            if let Some(sink) = sink {
                sink.abandon();
            }
            return Err(error);
        }
        let block = sink
            .map(|sink| sink.finish().and_then(|_| self.blocks.open(name, &self.counters)))
            .transpose()?;
        let mut left = Vec::new();
        for (of_segment, damage) in stream.outcome() {
            if let Some(error) = damage {
                self.keep_uncut(of_segment.number, &error)?;
            }
            left.push(of_segment);
        }
        Ok((block, left))
    }

    /// A segment's file goes once it is cut: without a copy of what could not be read nothing is.
    fn keep_uncut(&self, number: u64, error: &StorageError) -> Result<(), StorageError> {
        tracing::error!(%error, "damaged samples are left out of a block; a copy of the file is kept");
        let path = self.segment_path(number);
        quarantine::try_copy(&*self.files, &self.options.dir, &path)
            .map_err(StorageError::io("copy", &path))?;
        self.counters.quarantined.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Shows the block, and of the segments what lies after it.
    fn show_cut(
        &self,
        end_ms: i64,
        block: Option<LiveBlock>,
        mut left: Vec<Left>,
        upkeep: &mut Upkeep,
    ) -> Result<(), StorageError> {
        let view = self.view.load_full();
        let (mut segments, mut gone) = (Vec::new(), Vec::new());
        for segment in &view.segments {
            let of_segment = left.iter().position(|left| left.number == segment.number);
            match of_segment.map(|place| left.swap_remove(place)) {
                None => segments.push(Arc::clone(segment)),
                Some(left) if left.next_ms == i64::MAX => gone.push(Arc::clone(segment)),
                Some(left) => segments.push(Arc::new(segment.cut(end_ms, left.next_ms, left.series))),
            }
        }
        let mut blocks = view.blocks.clone();
        blocks.extend(block.map(Arc::new));
        sort_blocks(&mut blocks);
        self.commit_view(upkeep, View { blocks, segments, ..View::clone(&view) })?;
        self.remove_segments(upkeep, &gone);
        Ok(())
    }
}

/// Writes all series into a sink, which is begun with the first one.
fn pour(
    stream: &mut dyn SeriesStream,
    sink: &mut Option<Box<dyn BlockSink>>,
    begin: impl Fn() -> Result<Box<dyn BlockSink>, StorageError>,
    mut turn: impl FnMut() -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    let mut series = SeriesData::default();
    let mut count = 0;
    while stream.next_into(&mut series)? {
        if sink.is_none() {
            *sink = Some(begin()?);
        }
        if let Some(sink) = sink {
            sink.add(&series)?;
        }
        count += 1;
        if count % TURN_SERIES == 0 {
            turn()?;
        }
    }
    Ok(())
}
