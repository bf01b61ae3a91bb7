//! A data directory that is looked at and not changed: of this store, running or not, a snapshot of it, or one of
//! Prometheus.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_budget::Budget;
use metricsstore_model::Matcher;
use metricsstore_vfs::overlay::OverlayFiles;
use metricsstore_vfs::{Clock, Files};

use crate::block::{BlockFiles, Format, SeriesData, SeriesStream};
use crate::compaction::{BlockSeries, MergedSeries};
use crate::counters::Counters;
use crate::cut::CutSeries;
use crate::import;
use crate::manifest::{NamedBlock, SLOTS};
use crate::segment::Segment;
use crate::store::{Places, Store};
use crate::view::{LiveBlock, View, sort_blocks};
use crate::{BlockMeta, LogReport, Maintenance, Progress, StorageError, StoreOptions, Ulid};

/// A running engine may change its files while they are opened: then they are opened again, so many times.
const ATTEMPTS: usize = 8;
/// A manifest is small.
const MAX_MANIFEST_BYTES: u64 = 16 << 20;
/// Samples of Prometheus' log are sorted in memory in parts of this size.
const SORT_BYTES: usize = 64 << 20;
/// Exemplars that are read of a log, at most.
const MAX_EXEMPLARS: usize = 1 << 20;

/// A live block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockInfo {
    /// What it says of itself.
    pub meta: BlockMeta,
    /// Deleted time ranges that still stand in it.
    pub tombstones: u64,
}

impl BlockInfo {
    pub(crate) fn of(live: &LiveBlock) -> BlockInfo {
        let tombstones = live.tombstones.by_row.values().map(|ranges| ranges.len() as u64).sum();
        BlockInfo { meta: live.block.meta().clone(), tombstones }
    }
}

impl Store {
    /// The live blocks, in the order of their time.
    pub fn blocks(&self) -> Vec<BlockInfo> {
        self.view.load().blocks.iter().map(|live| BlockInfo::of(live)).collect()
    }
}

/// What a data directory holds beside its blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    /// Sealed segments.
    pub segments: u64,
    /// Their bytes.
    pub segment_bytes: u64,
    /// Samples in segments and in the log; of Prometheus' log, once it was read.
    pub samples: u64,
    /// Series of them.
    pub series: u64,
    /// Oldest sample in segments and in the log.
    pub min_ms: Option<i64>,
    /// Newest sample likewise.
    pub max_ms: Option<i64>,
    /// Files of the log.
    pub log_files: u64,
    /// Their bytes.
    pub log_bytes: u64,
}

/// What is read of a data directory.
#[derive(Debug, Clone)]
pub struct Selected {
    /// Of this block only.
    pub block: Option<Ulid>,
    /// Series that pass one of these lists; all, where there is none.
    pub any_of: Vec<Vec<Matcher>>,
    /// From this time on, in ms.
    pub min_ms: i64,
    /// Up to and with this time.
    pub max_ms: i64,
}

impl Default for Selected {
    fn default() -> Selected {
        Selected { block: None, any_of: Vec::new(), min_ms: i64::MIN, max_ms: i64::MAX }
    }
}

/// See the module's documentation.
pub struct DataDir {
    dir: PathBuf,
    files: Arc<dyn Files>,
    pub(super) blocks: Vec<Arc<LiveBlock>>,
    /// Blocks that cannot be opened, and why.
    pub(super) broken: Vec<(String, StorageError)>,
    /// Where it is one of this store: opened on a view of the files that changes nothing.
    pub(super) store: Option<Arc<Store>>,
    /// Where it is one of Prometheus: what its log and the chunks of its head hold, once they were read.
    pub(super) log: Option<import::Import>,
    /// What was in quarantine before it was opened.
    pub(super) aside: BTreeSet<String>,
    contents: Contents,
}

impl DataDir {
    /// Opens a directory, whoever uses it.
    pub fn open(files: &Arc<dyn Files>, clock: &Arc<dyn Clock>, dir: &Path) -> Result<DataDir, StorageError> {
        let exists = |path: PathBuf| files.exists(&path).map_err(StorageError::io("read", &path));
        if exists(dir.join(SLOTS[0]))? || exists(dir.join(SLOTS[1]))? {
            return open_ours(files, clock, dir);
        }
        if exists(dir.join("meta.json"))? {
            return Err(StorageError::NoDataDirectory {
                dir: dir.display().to_string(),
                what: "it is a single block: name the directory above",
            });
        }
        let names = prometheus_blocks(&**files, dir)?;
        if names.is_empty() && !exists(Places::wal(dir))? {
            return Err(StorageError::NoDataDirectory {
                dir: dir.display().to_string(),
                what: "it has neither a manifest nor blocks nor a log: name what --storage.tsdb.path names",
            });
        }
        Ok(open_prometheus(files, dir, &names))
    }

    /// Reads what a directory of Prometheus holds beyond its blocks, sorted into a directory `scratch` for this alone, which
    /// is removed in the end. `progress` is told bytes that were read and that will have been read in all.
    pub fn read_log(
        &mut self,
        scratch: &Path,
        range_ms: i64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), StorageError> {
        if self.store.is_some() {
            return Ok(());
        }
        let options = import::Options {
            spill_dir: scratch.to_owned(),
            range_ms: range_ms.max(1),
            sort_bytes: SORT_BYTES,
        };
        let log = import::open(&self.files, &self.dir, &options, &mut |at| {
            progress(at.done_bytes, at.total_bytes);
            true
        })?;
        let report = log.report();
        self.contents.samples = report.floats + report.histograms;
        self.contents.series = report.series;
        self.contents.min_ms = log.ranges().map(|range| range.start).min();
        self.contents.max_ms = log.ranges().map(|range| range.end - 1).max();
        self.log = Some(log);
        Ok(())
    }

    /// What reading Prometheus' log came to.
    pub fn log_report(&self) -> Option<&LogReport> {
        self.log.as_ref().map(import::Import::report)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Whether Prometheus wrote it.
    pub fn is_of_prometheus(&self) -> bool {
        self.store.is_none()
    }

    /// Its blocks, in the order of their time.
    pub fn blocks(&self) -> Vec<BlockInfo> {
        self.blocks.iter().map(|live| BlockInfo::of(live)).collect()
    }

    /// Blocks that cannot be opened, and why.
    pub fn broken(&self) -> impl Iterator<Item = (&str, &StorageError)> {
        self.broken.iter().map(|(name, error)| (name.as_str(), error))
    }

    /// What it holds beside blocks.
    pub fn contents(&self) -> Contents {
        self.contents
    }

    /// Reads series in the order of their label sets, parts joined, what was deleted left out.
    pub fn series(&self, selected: Selected) -> Result<Series<'_>, StorageError> {
        let is_wanted = |live: &&Arc<LiveBlock>| {
            selected.block.is_none_or(|ulid| live.block.meta().ulid == ulid)
                && live.overlaps(selected.min_ms, selected.max_ms)
        };
        let mut streams: Vec<Box<dyn SeriesStream + '_>> = Vec::new();
        for live in self.blocks.iter().filter(is_wanted) {
            streams.push(Box::new(BlockSeries::new(live)?));
        }
        if selected.block.is_none() {
            streams.extend(self.recent((selected.min_ms, selected.max_ms.saturating_add(1)))?);
        }
        Ok(Series {
            merged: MergedSeries::new(streams),
            slice: SeriesData::default(),
            selected,
            is_wanted: false,
        })
    }

    /// What is in no block yet, from a time up to but without another. Of Prometheus' log whole ranges are read.
    pub(super) fn recent(&self, range: (i64, i64)) -> Result<Vec<Box<dyn SeriesStream + '_>>, StorageError> {
        let mut streams: Vec<Box<dyn SeriesStream + '_>> = Vec::new();
        if let Some(store) = self.store.as_deref() {
            let is_within = |segment: &&Arc<Segment>| segment.min_ms < range.1 && segment.max_ms >= range.0;
            let segments: Vec<_> = store.view.load().segments.iter().filter(is_within).cloned().collect();
            if !segments.is_empty() {
                streams.push(Box::new(CutSeries::new(store, &segments, range)));
            }
        }
        if let Some(log) = &self.log {
            for part in log.ranges().filter(|part| part.start < range.1 && part.end > range.0) {
                streams.push(Box::new(log.series(part.start)?));
            }
        }
        Ok(streams)
    }

    pub(super) fn files(&self) -> &Arc<dyn Files> {
        &self.files
    }
}

fn open_ours(files: &Arc<dyn Files>, clock: &Arc<dyn Clock>, dir: &Path) -> Result<DataDir, StorageError> {
    let slots = || SLOTS.map(|name| files.read(&dir.join(name), MAX_MANIFEST_BYTES).ok());
    let mut attempt = 1;
    loop {
        let before = slots();
        let opened = try_open_ours(files, clock, dir);
        if before == slots() || attempt >= ATTEMPTS {
            return opened;
        }
        attempt += 1;
    }
}

fn try_open_ours(
    files: &Arc<dyn Files>,
    clock: &Arc<dyn Clock>,
    dir: &Path,
) -> Result<DataDir, StorageError> {
    let aside = files.list(&Places::quarantine(dir)).unwrap_or_default();
    let aside = aside.into_iter().map(|entry| entry.name).collect();
    let over: Arc<dyn Files> = Arc::new(OverlayFiles::new(Arc::clone(files)));
    let options = StoreOptions { retention_ms: None, max_exemplars: MAX_EXEMPLARS, ..StoreOptions::new(dir) };
    let progress = Arc::new(Progress::default());
    let store = Store::open(options, Arc::clone(&over), Arc::clone(clock), Budget::unlimited(), progress)?;
    let mut contents = Contents::default();
    let view = store.view.load_full();
    contents.segments = view.segments.len() as u64;
    contents.segment_bytes = view.segments.iter().map(|segment| segment.bytes).sum();
    (contents.log_files, contents.log_bytes) = log_figures(&**files, dir);
    // What the log holds becomes a segment, in memory.
    store.seal(&mut store.upkeep.lock(), &mut Maintenance::default())?;
    let view = store.view.load_full();
    describe_recent(&view, &mut contents);
    Ok(DataDir {
        dir: dir.to_owned(),
        files: over,
        blocks: view.blocks.clone(),
        broken: Vec::new(),
        store: Some(store),
        log: None,
        aside,
        contents,
    })
}

fn log_figures(files: &dyn Files, dir: &Path) -> (u64, u64) {
    let entries = files.list(&Places::wal(dir)).unwrap_or_default();
    let lengths = || entries.iter().filter(|entry| !entry.is_dir).map(|entry| entry.len);
    (lengths().count() as u64, lengths().sum())
}

fn describe_recent(view: &View, contents: &mut Contents) {
    let mut series = roaring::RoaringBitmap::new();
    for segment in &view.segments {
        contents.samples += segment.samples;
        series |= &*segment.series;
        contents.min_ms = Some(contents.min_ms.map_or(segment.min_ms, |ms| ms.min(segment.min_ms)));
        contents.max_ms = Some(contents.max_ms.map_or(segment.max_ms, |ms| ms.max(segment.max_ms)));
    }
    contents.series = series.len();
}

/// Directories that are named as blocks are.
fn prometheus_blocks(files: &dyn Files, dir: &Path) -> Result<Vec<Ulid>, StorageError> {
    let entries = files.list(dir).map_err(StorageError::io("list", dir))?;
    Ok(entries.iter().filter(|entry| entry.is_dir).filter_map(|entry| entry.name.parse().ok()).collect())
}

fn open_prometheus(files: &Arc<dyn Files>, dir: &Path, names: &[Ulid]) -> DataDir {
    let block_files = BlockFiles::new(files, dir, &Budget::unlimited());
    let (mut blocks, mut broken) = (Vec::new(), Vec::new());
    for &ulid in names {
        match block_files.open(NamedBlock { ulid, format: Format::Prometheus }, &Counters::default()) {
            Ok(live) => blocks.push(Arc::new(live)),
            Err(error) => broken.push((ulid.to_string(), error)),
        }
    }
    sort_blocks(&mut blocks);
    let (log_files, log_bytes) = log_figures(&**files, dir);
    DataDir {
        dir: dir.to_owned(),
        files: Arc::clone(files),
        blocks,
        broken,
        store: None,
        log: None,
        aside: BTreeSet::new(),
        contents: Contents { log_files, log_bytes, ..Contents::default() },
    }
}

/// Series of a data directory, slice after slice.
pub struct Series<'d> {
    merged: MergedSeries<'d>,
    slice: SeriesData,
    selected: Selected,
    /// Whether the series at hand passes.
    is_wanted: bool,
}

impl Series<'_> {
    /// The next slice that has anything; `None` after the last.
    pub fn next_slice(&mut self) -> Result<Option<&SeriesData>, StorageError> {
        while self.merged.next_into(&mut self.slice)? {
            if !self.slice.is_continuation {
                self.is_wanted = passes(&self.slice, &self.selected.any_of);
            }
            if self.is_wanted {
                keep_within(&mut self.slice, (self.selected.min_ms, self.selected.max_ms));
                if self.slice.samples() > 0 {
                    return Ok(Some(&self.slice));
                }
            }
        }
        Ok(None)
    }

    /// How often something had to be left out because it is damaged, and what was wrong the first time.
    pub fn damage(&self) -> (u64, Option<String>) {
        let count = self.merged.damage().map(|damage| damage.count).sum();
        (count, self.merged.damage().find_map(|damage| damage.first.clone()))
    }
}

fn passes(series: &SeriesData, any_of: &[Vec<Matcher>]) -> bool {
    let value = |name: &str| series.labels.get(name).unwrap_or("");
    let all = |matchers: &Vec<Matcher>| matchers.iter().all(|matcher| matcher.matches(value(&matcher.name)));
    any_of.is_empty() || any_of.iter().any(all)
}

fn keep_within(series: &mut SeriesData, (min_ms, max_ms): (i64, i64)) {
    if (min_ms, max_ms) == (i64::MIN, i64::MAX) {
        return;
    }
    let is_within = |time_ms: i64| (min_ms..=max_ms).contains(&time_ms);
    series.floats.retain(|sample| is_within(sample.0));
    series.histograms.retain(|sample| is_within(sample.0));
    series.starts.retain(|start| is_within(start.0));
    series.exemplars.retain(|exemplar| is_within(exemplar.timestamp_ms));
}
