//! Carries compaction out: plans, writes, replaces.
//!
//! A block is written anew in full before the manifest names it in the place of those it was made of, so that a crash at
//! any moment leaves either. Work that fails leaves no files and is tried again later, after a longer time each time.
use std::sync::Arc;

use metricsstore_budget::Level;

use super::plan::{self, Candidate, Lengths};
use super::shipped::Shipped;
use super::{BlockSeries, MergedSeries};
use crate::block::{BlockMeta, BlockSink, NewBlock, Parent, SeriesData, SeriesStream, Ulid};
use crate::maintain::Upkeep;
use crate::store::Store;
use crate::sync::atomic::Ordering::Relaxed;
use crate::view::LiveBlock;
use crate::{DiskLevel, Maintenance, StorageError, quarantine};

/// After so many slices of series other work gets its turn.
const TURN_SLICES: u32 = 512;

impl Store {
    /// Compacts the blocks that are due, once. Where memory or disk are short it waits.
    pub(crate) fn compact_when_due(
        &self,
        upkeep: &mut Upkeep,
        done: &mut Maintenance,
    ) -> Result<(), StorageError> {
        let now = self.clock.monotonic();
        let short = self.ladder.level() >= Level::SealEarly || self.ladder.disk.level() > DiskLevel::Normal;
        if short || !upkeep.compacting.is_due(now) {
            return Ok(());
        }
        let compacted = self.compact(upkeep, done);
        match upkeep.compacting.note(now, compacted) {
            Ok(()) | Err(StorageError::Interrupted | StorageError::ShuttingDown) => Ok(()),
            Err(error) => {
                self.counters.compactions_failed.fetch_add(1, Relaxed);
                Err(error)
            }
        }
    }

    fn compact(&self, upkeep: &mut Upkeep, done: &mut Maintenance) -> Result<(), StorageError> {
        let inputs = self.plan_compaction();
        if inputs.is_empty() || !self.has_room_for_blocks(&inputs) {
            return Ok(());
        }
        self.rewrite_blocks(upkeep, &inputs, done, Store::take_turn)
    }

    /// The blocks that are to be compacted next.
    fn plan_compaction(&self) -> Vec<Arc<LiveBlock>> {
        let view = self.view.load();
        let retention_ms = Some(self.retention_ms.load(Relaxed)).filter(|&ms| ms >= 0);
        let options = &self.options;
        let lengths = Lengths::new(options.block_duration_ms, options.max_block_duration_ms, retention_ms);
        let shipped = Shipped::read(&*self.files, options.delay_compact_file.as_deref());
        let candidates: Vec<Candidate<'_>> = view
            .blocks
            .iter()
            .map(|live| {
                let meta = live.block.meta();
                Candidate { meta, deleted: live.tombstones.share_of(meta), is_held: shipped.holds(meta) }
            })
            .collect();
        let places = plan::choose(&candidates, lengths).unwrap_or_default();
        places.into_iter().map(|place| Arc::clone(&view.blocks[place])).collect()
    }

    /// Whether a block as large as all of these together leaves room for a seal.
    fn has_room_for_blocks(&self, inputs: &[Arc<LiveBlock>]) -> bool {
        self.ladder.disk.has_room_for(inputs.iter().map(|live| live.block.meta().bytes).sum())
    }

    /// Writes every block anew of which something was deleted, one after the other, and says how many those were. Space
    /// for each is there before it is begun: without it the block stays as it is, and what was deleted stays hidden.
    pub fn clean_tombstones(&self) -> Result<u64, StorageError> {
        let mut cleaned = 0;
        loop {
            let mut upkeep = self.upkeep_soon();
            let view = self.view.load_full();
            let Some(live) = view.blocks.iter().find(|live| !live.tombstones.is_empty()) else {
                return Ok(cleaned);
            };
            self.watch_disk();
            let inputs = std::slice::from_ref(live);
            if !self.has_room_for_blocks(inputs) {
                return Err(StorageError::NoRoom {
                    what: format!("block {} without what was deleted of it", live.name().ulid),
                    needed: live.block.meta().bytes,
                    available: self.ladder.disk.available(),
                });
            }
            let mut done = Maintenance::default();
            self.rewrite_blocks(&mut upkeep, inputs, &mut done, |store, upkeep, done| {
                if store.closed.load(Relaxed) {
                    return Err(StorageError::ShuttingDown);
                }
                store.serve_snapshots(upkeep);
                store.seal_when_due(upkeep, done)
            })?;
            cleaned += 1;
        }
    }

    /// Writes one block of several, without what was deleted of them and what of them is damaged, and puts it into their
    /// place. On an error nothing has changed.
    fn rewrite_blocks(
        &self,
        upkeep: &mut Upkeep,
        inputs: &[Arc<LiveBlock>],
        done: &mut Maintenance,
        turn: impl Fn(&Store, &mut Upkeep, &mut Maintenance) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let name = self.take_block(upkeep);
        let metas: Vec<&BlockMeta> = inputs.iter().map(|live| live.block.meta()).collect();
        let written = self
            .blocks
            .create(name.format, merged_from(name.ulid, &metas))
            .and_then(|sink| self.write_merged(inputs, sink, || turn(self, upkeep, done)))
            .and_then(|meta| meta.map(|_| self.blocks.open(name, &self.counters)).transpose());
        let come = match written {
            Ok(live) => live.map(Arc::new),
            Err(error) => {
                // What cannot be removed now goes with the remains.
                let _ = self.blocks.remove(name);
                return Err(error);
            }
        };
        let gone: Vec<_> = inputs.iter().map(|live| live.name()).collect();
        self.replace_blocks(upkeep, &gone, come.into_iter().collect())?;
        self.counters.compactions.fetch_add(1, Relaxed);
        done.compacted += inputs.len() as u32;
        Ok(())
    }

    /// Writes what is left of the inputs; `None` where that is nothing. Copies of damaged inputs are kept before that.
    fn write_merged(
        &self,
        inputs: &[Arc<LiveBlock>],
        mut sink: Box<dyn BlockSink>,
        turn: impl FnMut() -> Result<(), StorageError>,
    ) -> Result<Option<BlockMeta>, StorageError> {
        let copied = copy_merged(inputs, &mut *sink, turn)
            .and_then(|(samples, damaged)| self.keep_damaged(inputs, &damaged).map(|()| samples));
        match copied {
            Ok(0) => {
                sink.abandon();
                Ok(None)
            }
            Ok(_) => sink.finish().map(Some),
            Err(error) => {
                sink.abandon();
                Err(error)
            }
        }
    }

    /// Keeps copies of the inputs of which something had to be left out: they go once they are merged.
    fn keep_damaged(&self, inputs: &[Arc<LiveBlock>], damaged: &[super::Damage]) -> Result<(), StorageError> {
        for (live, damage) in inputs.iter().zip(damaged).filter(|(_, damage)| damage.count > 0) {
            for path in live.block.files() {
                quarantine::try_copy(&*self.files, &self.options.dir, &path)
                    .map_err(StorageError::io("copy", &path))?;
            }
            self.counters.quarantined.fetch_add(1, Relaxed);
            self.counters.series_left_out.fetch_add(damage.count, Relaxed);
            tracing::error!(
                block = %live.name().ulid,
                left_out = damage.count,
                first = damage.first.as_deref().unwrap_or_default(),
                "damaged series are left out of a compaction; a copy of the block is kept in quarantine"
            );
        }
        Ok(())
    }
}

/// Merges the inputs into a sink. Returns the samples that were written, and the damage of each input.
fn copy_merged(
    inputs: &[Arc<LiveBlock>],
    sink: &mut dyn BlockSink,
    mut turn: impl FnMut() -> Result<(), StorageError>,
) -> Result<(u64, Vec<super::Damage>), StorageError> {
    let mut streams: Vec<Box<dyn SeriesStream>> = Vec::with_capacity(inputs.len());
    for live in inputs {
        streams.push(Box::new(BlockSeries::new(live)?));
    }
    let mut merged = MergedSeries::new(streams);
    let mut series = SeriesData::default();
    let (mut samples, mut slices) = (0u64, 0u32);
    while merged.next_into(&mut series)? {
        slices += 1;
        if slices % TURN_SLICES == 0 {
            turn()?;
        }
        // Exemplars go with their series.
        if series.samples() > 0 || series.is_continuation {
            samples += series.samples() as u64;
            sink.add(&series)?;
        }
    }
    Ok((samples, merged.damage().cloned().collect()))
}

/// What is settled about a block that is made of others.
fn merged_from(ulid: Ulid, inputs: &[&BlockMeta]) -> NewBlock {
    let mut sources: Vec<Ulid> = inputs.iter().flat_map(|meta| meta.sources.iter().copied()).collect();
    sources.sort_unstable();
    sources.dedup();
    let parent = |meta: &&BlockMeta| Parent { ulid: meta.ulid, start_ms: meta.start_ms, end_ms: meta.end_ms };
    NewBlock {
        ulid,
        start_ms: inputs.iter().map(|meta| meta.start_ms).min().unwrap_or(0),
        end_ms: inputs.iter().map(|meta| meta.end_ms).max().unwrap_or(0),
        level: inputs.iter().map(|meta| meta.level).max().unwrap_or(0) + 1,
        sources,
        parents: inputs.iter().map(parent).collect(),
        is_late: inputs.iter().all(|meta| meta.is_late),
        is_cold: true,
    }
}
