//! From any data directory into a store, block by block.
//!
//! A block keeps its name, so that an import that was interrupted goes on where it was: what the manifest names, or names
//! as the source of a block that was merged since, is not imported again.
use std::path::Path;
use std::sync::Arc;

use metricsstore_budget::Budget;
use metricsstore_vfs::{Clock, Files};
use xxhash_rust::xxh3::xxh3_128;

use super::dir::DataDir;
use crate::block::{BlockSink, Format, NewBlock, SeriesData, SeriesStream};
use crate::compaction::{BlockSeries, MergedSeries};
use crate::manifest::NamedBlock;
use crate::store::Store;
use crate::{BlockFormat, BlockMeta, Progress, StorageError, StoreOptions, Ulid};

/// Slices of series between two reports.
const SLICES: usize = 1024;

/// Where an import goes, and how.
pub struct Import<'i> {
    /// The data directory that gets the blocks; no engine may have it.
    pub to: &'i Path,
    /// Its file system.
    pub files: &'i Arc<dyn Files>,
    /// The clock.
    pub clock: &'i Arc<dyn Clock>,
    /// What the blocks become.
    pub format: BlockFormat,
    /// What is in no block yet is cut into ranges of this length.
    pub block_duration_ms: i64,
    /// Whether nothing is to be written.
    pub is_dry_run: bool,
}

/// What an import has just done.
#[derive(Debug, Clone)]
pub enum ImportStep {
    /// It has looked at everything: so many blocks and samples are to come, so many blocks are there already.
    Planned {
        /// Blocks to come.
        blocks: usize,
        /// Their samples, as far as that is known before.
        samples: u64,
        /// Blocks that are there already.
        present: usize,
    },
    /// Samples that were written so far.
    Samples(u64),
    /// A block is in the store: the name of its source, and what it became.
    Block(String, BlockMeta),
    /// Parts of series of a source were left out because they are damaged: how often, and what was wrong the first time.
    Damage(String, u64, String),
}

/// What an import came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Imported {
    /// Blocks that were imported, or would be.
    pub blocks: usize,
    /// Blocks that were there already.
    pub present: usize,
    /// Samples that were written.
    pub samples: u64,
    /// Times that something was left out because it is damaged.
    pub damaged: u64,
}

/// One block to come.
struct Planned {
    ulid: Ulid,
    /// The block that it is made of; `None`: what is in no block yet, of this range.
    source: Option<usize>,
    range: (i64, i64),
    samples: u64,
}

impl DataDir {
    /// Brings everything into a store: blocks, then what is in none yet. Every block is committed for itself.
    pub fn import_into(
        &self,
        import: &Import<'_>,
        step: &mut dyn FnMut(ImportStep),
    ) -> Result<Imported, StorageError> {
        // Retention is the engine's business: here nothing goes.
        let options = StoreOptions {
            retention_ms: None,
            block_format: import.format,
            block_duration_ms: import.block_duration_ms,
            ..StoreOptions::new(import.to)
        };
        let files: Arc<dyn Files> = if import.is_dry_run {
            Arc::new(metricsstore_vfs::overlay::OverlayFiles::new(Arc::clone(import.files)))
        } else {
            Arc::clone(import.files)
        };
        let clock = Arc::clone(import.clock);
        let store = Store::open(options, files, clock, Budget::unlimited(), Arc::new(Progress::default()))?;
        let imported = self.import_blocks(&store, import, step);
        let closed = store.close();
        let imported = imported?;
        closed?;
        Ok(imported)
    }

    fn import_blocks(
        &self,
        store: &Store,
        import: &Import<'_>,
        step: &mut dyn FnMut(ImportStep),
    ) -> Result<Imported, StorageError> {
        let (planned, present) = self.plan(store, import.block_duration_ms);
        let samples = planned.iter().map(|planned| planned.samples).sum();
        step(ImportStep::Planned { blocks: planned.len(), samples, present });
        let mut imported = Imported { blocks: planned.len(), present, ..Imported::default() };
        if import.is_dry_run {
            imported.samples = samples;
            return Ok(imported);
        }
        for planned in &planned {
            self.import_one(store, import, planned, &mut imported, step)?;
        }
        if let Some(report) = self.log_report()
            && let Some(place) = report.places.first()
        {
            imported.damaged += report.damaged;
            let first = format!("{}, byte {}: {}", place.file, place.offset, place.what);
            step(ImportStep::Damage("the log".into(), report.damaged, first));
        }
        Ok(imported)
    }

    /// What is not there yet, oldest first, and how many blocks are.
    fn plan(&self, store: &Store, block_duration_ms: i64) -> (Vec<Planned>, usize) {
        let there = store.blocks();
        let is_there =
            |ulid: Ulid| there.iter().any(|info| info.meta.ulid == ulid || info.meta.sources.contains(&ulid));
        let blocks = self.blocks.iter().enumerate().map(|(place, live)| {
            let meta = live.block.meta();
            Planned {
                ulid: meta.ulid,
                source: Some(place),
                range: (meta.start_ms, meta.end_ms),
                samples: meta.float_samples + meta.histogram_samples,
            }
        });
        let ranges = self.recent_ranges(block_duration_ms);
        // How many are in which range is not known before.
        let each = self.contents().samples / ranges.len().max(1) as u64;
        let recent = ranges.into_iter().map(|range| Planned {
            ulid: self.recent_ulid(range),
            source: None,
            range,
            samples: each,
        });
        let all: Vec<Planned> = blocks.chain(recent).collect();
        let count = all.len();
        let planned: Vec<Planned> = all.into_iter().filter(|planned| !is_there(planned.ulid)).collect();
        let present = count - planned.len();
        (planned, present)
    }

    /// The same name for the same contents.
    fn recent_ulid(&self, range: (i64, i64)) -> Ulid {
        let contents = self.contents();
        let what = format!("{range:?} {contents:?} {:?}", self.log_report());
        Ulid::new(range.1, xxh3_128(what.as_bytes()))
    }

    fn import_one(
        &self,
        store: &Store,
        import: &Import<'_>,
        planned: &Planned,
        imported: &mut Imported,
        step: &mut dyn FnMut(ImportStep),
    ) -> Result<(), StorageError> {
        let source = planned.source.map(|place| &self.blocks[place]);
        let label = source.map_or_else(
            || format!("the log from {} to {}", planned.range.0, planned.range.1),
            |live| live.block.meta().ulid.to_string(),
        );
        let name = NamedBlock { ulid: planned.ulid, format: import.format };
        // What is written where it stands has to be taken over: nothing can be written over it.
        let is_in_place = import.format == Format::Prometheus && self.path() == import.to;
        let mut damage = Damage::default();
        if is_in_place && source.is_some() {
            store.blocks.claim(planned.ulid)?;
        } else {
            let mut stream: Box<dyn SeriesStream + '_> = match source {
                Some(live) => Box::new(BlockSeries::new(live)?),
                None => Box::new(MergedSeries::new(self.recent(planned.range)?)),
            };
            let new = new_block(store, planned, source.map(|live| live.block.meta()));
            let sink = store.blocks.create(import.format, new)?;
            let mut progress = |samples| step(ImportStep::Samples(samples));
            let poured = pour(&mut *stream, sink, &mut imported.samples, &mut damage, &mut progress)?;
            if !poured {
                return Ok(());
            }
        }
        let live = Arc::new(store.blocks.open(name, &store.counters)?);
        let meta = live.block.meta().clone();
        store.replace_blocks(&mut store.upkeep.lock(), &[], vec![live])?;
        step(ImportStep::Block(label.clone(), meta));
        if let Some(first) = damage.first {
            imported.damaged += damage.count;
            step(ImportStep::Damage(label, damage.count, first));
        }
        Ok(())
    }
}

/// What was left out.
#[derive(Default)]
struct Damage {
    count: u64,
    first: Option<String>,
}

fn new_block(store: &Store, planned: &Planned, source: Option<&BlockMeta>) -> NewBlock {
    let overlaps =
        |info: &super::BlockInfo| info.meta.start_ms < planned.range.1 && info.meta.end_ms > planned.range.0;
    let mut sources = source.map_or_else(Vec::new, |meta| meta.sources.clone());
    // What it is merged into later names it among its sources.
    if !sources.contains(&planned.ulid) {
        sources.push(planned.ulid);
    }
    NewBlock {
        ulid: planned.ulid,
        start_ms: planned.range.0,
        end_ms: planned.range.1,
        level: source.map_or(1, |meta| meta.level),
        sources,
        parents: source.map_or_else(Vec::new, |meta| meta.parents.clone()),
        is_late: store.blocks().iter().any(overlaps),
        is_cold: source.is_some_and(|meta| meta.level > 1),
    }
}

/// Writes a stream into a block and says whether there was anything.
fn pour(
    stream: &mut dyn SeriesStream,
    mut sink: Box<dyn BlockSink>,
    samples: &mut u64,
    damage: &mut Damage,
    progress: &mut dyn FnMut(u64),
) -> Result<bool, StorageError> {
    let mut slice = SeriesData::default();
    let (mut slices, mut is_empty) = (0_usize, true);
    loop {
        let added = match stream.next_into(&mut slice) {
            Ok(true) => sink.add(&slice),
            Ok(false) => break,
            Err(StorageError::Corrupt { file, offset, what }) => {
                damage.count += 1;
                damage.first.get_or_insert(format!("{file}, byte {offset}: {what}"));
                continue;
            }
            Err(error) => Err(error),
        };
        if let Err(error) = added {
            sink.abandon();
            return Err(error);
        }
        is_empty = false;
        *samples += slice.samples() as u64;
        slices += 1;
        if slices.is_multiple_of(SLICES) {
            progress(*samples);
        }
    }
    progress(*samples);
    if is_empty {
        sink.abandon();
        return Ok(false);
    }
    sink.finish().map(|_| true)
}
