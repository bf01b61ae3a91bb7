//! From any data directory to blocks as Prometheus writes them.
use std::path::Path;
use std::sync::Arc;

use metricsstore_vfs::{Clock, Files};

use super::dir::{DataDir, Selected};
use crate::block::prometheus::PrometheusWriter;
use crate::block::{BlockFiles, BlockSink, NewBlock};
use crate::import::Import;
use crate::{BlockMeta, StorageError};

/// Where blocks go, and how.
pub struct Export<'e> {
    /// The directory that gets them.
    pub to: &'e Path,
    /// Its file system.
    pub files: &'e Arc<dyn Files>,
    /// Names them.
    pub clock: &'e dyn Clock,
    /// What is in no block yet is cut into ranges of this length.
    pub block_duration_ms: i64,
}

/// What an export has just done.
#[derive(Debug, Clone, Copy)]
pub enum ExportStep<'e> {
    /// Samples that were written of the range at hand, `done` of `ranges` being over.
    Samples {
        /// In all ranges so far.
        samples: u64,
        /// Ranges that are over.
        done: usize,
        /// Ranges there are.
        ranges: usize,
    },
    /// A block is there.
    Block(&'e BlockMeta),
    /// Parts of series were left out because they are damaged: how often, and what was wrong the first time.
    Damage(u64, &'e str),
}

/// Slices of series between two reports.
const SLICES: usize = 1024;

impl DataDir {
    /// Writes what is selected as blocks of Prometheus: one for each block of its own (overlapping ones become one),
    /// and one for each range of time of what is in none.
    pub fn export(
        &self,
        export: &Export<'_>,
        selected: &Selected,
        step: &mut dyn FnMut(ExportStep<'_>),
    ) -> Result<Vec<BlockMeta>, StorageError> {
        export.files.create_dir_all(export.to).map_err(StorageError::io("create", export.to))?;
        let names = BlockFiles::new(export.files, export.to, &metricsstore_budget::Budget::unlimited());
        let ranges = self.ranges(export.block_duration_ms, selected);
        let (mut written, mut samples) = (Vec::new(), 0);
        for (done, &(start_ms, end_ms)) in ranges.iter().enumerate() {
            let ulid = names.new_ulid(export.clock.now_ms(), done as u64);
            let new = NewBlock {
                ulid,
                start_ms,
                end_ms,
                level: 1,
                sources: vec![ulid],
                parents: Vec::new(),
                is_late: false,
                is_cold: false,
            };
            let within = Selected {
                min_ms: start_ms.max(selected.min_ms),
                max_ms: (end_ms - 1).min(selected.max_ms),
                ..selected.clone()
            };
            let progress = &mut |samples| step(ExportStep::Samples { samples, done, ranges: ranges.len() });
            if let Some((meta, damage)) = self.write_range(export, &new, within, &mut samples, progress)? {
                step(ExportStep::Block(&meta));
                if let (count @ 1.., Some(first)) = damage {
                    step(ExportStep::Damage(count, &first));
                }
                written.push(meta);
            }
        }
        Ok(written)
    }

    #[expect(clippy::type_complexity, reason = "a block and what is missing of it")]
    fn write_range(
        &self,
        export: &Export<'_>,
        new: &NewBlock,
        within: Selected,
        samples: &mut u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<(BlockMeta, (u64, Option<String>))>, StorageError> {
        let mut series = self.series(within)?;
        let mut sink: Option<PrometheusWriter> = None;
        let mut slices = 0_usize;
        while let Some(slice) = series.next_slice()? {
            let sink = match &mut sink {
                Some(sink) => sink,
                none => none.insert(PrometheusWriter::create(export.files, export.to, new.clone())?),
            };
            sink.add(slice)?;
            *samples += slice.samples() as u64;
            slices += 1;
            if slices.is_multiple_of(SLICES) {
                progress(*samples);
            }
        }
        progress(*samples);
        let damage = series.damage();
        sink.map(|sink| Ok((Box::new(sink).finish()?, damage))).transpose()
    }

    /// The stretches of time that blocks are written for.
    pub(super) fn ranges(&self, length_ms: i64, selected: &Selected) -> Vec<(i64, i64)> {
        let is_wanted = |ulid| selected.block.is_none_or(|wanted| wanted == ulid);
        let metas = self.blocks.iter().map(|live| live.block.meta()).filter(|meta| is_wanted(meta.ulid));
        let mut ranges: Vec<(i64, i64)> = metas.map(|meta| (meta.start_ms, meta.end_ms)).collect();
        if selected.block.is_none() {
            ranges.extend(self.recent_ranges(length_ms));
        }
        ranges.retain(|&(start_ms, end_ms)| start_ms <= selected.max_ms && end_ms > selected.min_ms);
        ranges.sort_unstable();
        ranges.dedup_by(|next, kept| {
            let overlaps = next.0 < kept.1;
            if overlaps {
                kept.1 = kept.1.max(next.1);
            }
            overlaps
        });
        ranges
    }

    /// Aligned ranges in which segments have samples.
    pub(super) fn recent_ranges(&self, length_ms: i64) -> Vec<(i64, i64)> {
        let length_ms = length_ms.max(1);
        let mut ranges: Vec<(i64, i64)> =
            self.log.iter().flat_map(Import::ranges).map(|range| (range.start, range.end)).collect();
        let Some(store) = &self.store else { return ranges };
        for segment in &store.view.load().segments {
            let mut start_ms = segment.min_ms.div_euclid(length_ms) * length_ms;
            while start_ms <= segment.max_ms {
                ranges.push((start_ms, start_ms.saturating_add(length_ms)));
                start_ms = start_ms.saturating_add(length_ms);
            }
        }
        ranges.sort_unstable();
        ranges.dedup();
        ranges
    }
}
