//! Deleting samples: tombstones, durable before a deletion returns, masked wherever they are read from then on. Those of
//! head and segments stand in the log, those of a block beside it. The samples leave the disk when they are cut into a
//! block, and from blocks with the next compaction.
use std::sync::Arc;

use metricsstore_model::{AppendError, Matcher};
use roaring::RoaringBitmap;

use crate::StorageError;
use crate::compaction::tombstones::BlockTombstones;
use crate::head::Layout;
use crate::identity::SeriesId;
use crate::maintain::Upkeep;
use crate::store::Store;
use crate::sync::atomic::Ordering::Relaxed;
use crate::view::{LiveBlock, View};
use crate::wal::body::BodyWriter;
use crate::wal::record;
use crate::wal::tombstone_record::{Tombstone, push_tombstone};

/// A record of tombstones is written once it is this long.
const RECORD_BYTES: usize = 4 << 20;

impl Store {
    /// Deletes the samples in a time range, ends inclusive, in milliseconds, of every series that passes one of the
    /// matcher lists; returns once that is durable. What comes later is not touched, unless it is late and its time was
    /// deleted. On an error part of it may be deleted, and what is hidden then may be seen again if the process ends before
    /// maintenance has run.
    pub fn delete(&self, any_of: &[Vec<Matcher>], start_ms: i64, end_ms: i64) -> Result<(), AppendError> {
        // Nothing is on its way from a segment to a block or from one block to another.
        let mut upkeep = self.upkeep_soon();
        self.delete_in_blocks(&mut upkeep, any_of, start_ms, end_ms)
            .map_err(|error| AppendError::Log(error.to_string()))?;
        let position = {
            // Alone: every sample is before or after it.
            let _gate = self.gate.write();
            if self.closed.load(Relaxed) {
                return Err(AppendError::ShuttingDown);
            }
            let view = self.view.load();
            let forgotten_ms = self.forgotten_ms.load(Relaxed);
            let mut tombstones: Vec<Tombstone> = Vec::new();
            for matchers in any_of {
                for (series, reference) in self.identity.select(matchers).series {
                    let newest_ms = newest_ms_of(&view, self.layout, series, forgotten_ms);
                    let Some(newest_ms) = newest_ms else { continue };
                    let max_ms = end_ms.min(newest_ms);
                    if start_ms <= max_ms {
                        let order = reference.order;
                        tombstones.push(Tombstone { series: series.0, order, min_ms: start_ms, max_ms });
                    }
                }
            }
            self.log_tombstones(&tombstones).map_err(AppendError::Log)?;
            self.tombstones.add(&tombstones);
            self.log.position()
        };
        drop(upkeep);
        self.log.wait_durable(position).map_err(AppendError::Log)
    }

    /// The same in blocks. One whose index is damaged does not keep the others from it. What could not be stored is hidden
    /// all the same and stored by maintenance: it may be on disk, and a start must not be what makes samples go.
    fn delete_in_blocks(
        &self,
        upkeep: &mut Upkeep,
        any_of: &[Vec<Matcher>],
        start_ms: i64,
        end_ms: i64,
    ) -> Result<(), StorageError> {
        let mut view = View::clone(&self.view.load());
        let mut failed = Ok(());
        for live in view.blocks.iter_mut().filter(|live| live.overlaps(start_ms, end_ms)) {
            match without_in_block(live, any_of, start_ms, end_ms) {
                Ok(Some(changed)) => {
                    upkeep.unstored.push(changed.name());
                    *live = Arc::new(changed);
                }
                Ok(None) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        self.view.store(Arc::new(view));
        failed.and(self.store_tombstones(upkeep))
    }

    /// Stores what was deleted of blocks and is not known to be on disk. What fails is tried again by the next tick.
    pub(crate) fn store_tombstones(&self, upkeep: &mut Upkeep) -> Result<(), StorageError> {
        let view = self.view.load();
        let mut failed = Ok(());
        upkeep.unstored.retain(|&name| {
            let Some(live) = view.blocks.iter().find(|live| live.name() == name) else { return false };
            let stored = live.tombstones.store(&self.blocks, name);
            let is_unstored = stored.is_err();
            if failed.is_ok() {
                failed = stored;
            }
            is_unstored
        });
        failed
    }

    fn log_tombstones(&self, tombstones: &[Tombstone]) -> Result<(), String> {
        let mut body = BodyWriter::default();
        for (index, tombstone) in tombstones.iter().enumerate() {
            push_tombstone(&mut body, tombstone);
            if body.len() >= RECORD_BYTES || index + 1 == tombstones.len() {
                self.log.append(record::TOMBSTONES, &mut std::mem::take(&mut body).finish())?;
            }
        }
        Ok(())
    }
}

/// The block with what is deleted now; `None` where that is no change.
fn without_in_block(
    live: &LiveBlock,
    any_of: &[Vec<Matcher>],
    start_ms: i64,
    end_ms: i64,
) -> Result<Option<LiveBlock>, StorageError> {
    let mut rows = RoaringBitmap::new();
    for matchers in any_of {
        rows |= live.block.rows(matchers)?;
    }
    let meta = live.block.meta();
    let mut tombstones = BlockTombstones::clone(&live.tombstones);
    for row in rows {
        tombstones.add(row, start_ms.max(meta.min_ms), end_ms.min(meta.max_ms));
    }
    if tombstones == *live.tombstones {
        return Ok(None);
    }
    Ok(Some(LiveBlock { block: Arc::clone(&live.block), tombstones: Arc::new(tombstones) }))
}

/// No sample of the series is newer; `None` where it has none. What the head knows holds from `forgotten_ms` on: before,
/// it may have forgotten a newer one that is sealed, which is older than that all the same.
fn newest_ms_of(view: &View, layout: Layout, series: SeriesId, forgotten_ms: i64) -> Option<i64> {
    let open = &view.open[layout.shard_of(series.0)];
    let remembered = open.data.lock().newest_ms_of(layout.local(series.0));
    if remembered.is_some_and(|ms| ms >= forgotten_ms) {
        return remembered;
    }
    let frozen = view.frozen.get(layout.shard_of(series.0)).map(|epoch| epoch.data.lock().max_ms);
    let sealed = view.segments.iter().filter(|segment| segment.all_series.contains(series.0));
    let newest_ms = sealed.map(|segment| segment.max_ms).chain(frozen).chain(remembered).max();
    if forgotten_ms == i64::MIN { newest_ms } else { newest_ms.map(|ms| ms.min(forgotten_ms)) }
}
