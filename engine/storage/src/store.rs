//! The store's face: opens, appends, selects, maintains, closes.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_budget::{Budget, Level};
use metricsstore_model::{Acknowledge, Append, AppendError, Batch, Matcher, Metadata, Verdicts};
use metricsstore_vfs::{Clock, Files};

use crate::append::Scratch;
use crate::block::BlockFiles;
use crate::counters::Counters;
use crate::exemplars::Exemplars;
use crate::families::Families;
use crate::head::Layout;
use crate::identity::Identity;
use crate::ladder::Ladder;
use crate::maintain::Upkeep;
use crate::snapshot::Snapshots;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::Relaxed};
use crate::sync::{ArcSwap, Mutex, RwLock};
use crate::tombstones::Tombstones;
use crate::view::View;
use crate::wal::Log;
use crate::{Maintenance, Progress, SeriesExemplars, StorageError, StoreOptions, StoreStats};

/// A time series database in one directory. Synchronous: every call may block on a lock or on the disk.
pub struct Store {
    pub(crate) options: StoreOptions,
    pub(crate) layout: Layout,
    pub(crate) files: Arc<dyn Files>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) budget: Budget,
    pub(crate) ladder: Ladder,
    pub(crate) identity: Arc<Identity>,
    pub(crate) log: Log,
    pub(crate) blocks: BlockFiles,
    pub(crate) view: ArcSwap<View>,
    /// Appends hold it shared from the resolution of series to the write of their samples, selects while they take
    /// their snapshot; sealing holds it alone while it swaps the head and gives series ids free.
    pub(crate) gate: RwLock<()>,
    pub(crate) upkeep: Mutex<Upkeep>,
    /// Requests that wait for that lock and for which long work is broken off.
    pub(crate) waiting: AtomicU32,
    pub(crate) counters: Counters,
    pub(crate) scratches: Mutex<Vec<Scratch>>,
    /// Newest timestamp ever appended; `i64::MIN` before the first.
    pub(crate) newest_ms: AtomicI64,
    /// Series whose last sample is older may have been forgotten by the head: nothing older is in order. `i64::MIN` when
    /// all are known.
    pub(crate) forgotten_ms: AtomicI64,
    /// Retention; negative keeps everything.
    pub(crate) retention_ms: AtomicI64,
    /// How far behind the newest sample late ones are accepted; 0 accepts none.
    pub(crate) out_of_order_window_ms: AtomicI64,
    pub(crate) families: Families,
    pub(crate) exemplars: Exemplars,
    pub(crate) tombstones: Tombstones,
    pub(crate) snapshots: Snapshots,
    pub(crate) closed: AtomicBool,
    pub(crate) _lock: Box<dyn Send + Sync>,
}

/// Where things are below the data directory.
pub(crate) struct Places;

impl Places {
    pub(crate) fn wal(dir: &Path) -> PathBuf {
        dir.join("wal")
    }
    pub(crate) fn segments(dir: &Path) -> PathBuf {
        dir.join("segments")
    }
    pub(crate) fn blocks(dir: &Path) -> PathBuf {
        dir.join("blocks")
    }
    pub(crate) fn identity(dir: &Path) -> PathBuf {
        dir.join("identity")
    }
    pub(crate) fn snapshots(dir: &Path) -> PathBuf {
        dir.join("snapshots")
    }
    pub(crate) fn quarantine(dir: &Path) -> PathBuf {
        dir.join("quarantine")
    }
}

impl Store {
    /// Opens the directory of `options`, creating it when needed: takes its lock, loads what is sealed and replays
    /// the log, within `budget`. Blocks; `progress` can be read meanwhile.
    #[expect(clippy::needless_pass_by_value, reason = "the caller's handle shall outlive the call")]
    pub fn open(
        options: StoreOptions,
        files: Arc<dyn Files>,
        clock: Arc<dyn Clock>,
        budget: Budget,
        progress: Arc<Progress>,
    ) -> Result<Arc<Store>, StorageError> {
        crate::open::open(options, files, clock, budget, &progress).map(Arc::new)
    }

    /// What it was opened with; retention and out-of-order window as opened.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// One tick of background work: syncs what nobody waits for, seals by bytes, time and pressure, merges segments,
    /// applies retention. Meant to be called at least every second from one thread.
    pub fn maintain(&self) -> Result<Maintenance, StorageError> {
        self.tick()
    }

    /// Changes retention while running; `None` keeps everything. Takes effect at the next tick.
    pub fn set_retention_ms(&self, retention_ms: Option<i64>) {
        self.retention_ms.store(retention_ms.map_or(-1, |ms| ms.max(0)), Relaxed);
    }

    /// Changes the bounds on what everything on disk may take, as [`StoreOptions::retention_bytes`] and
    /// [`StoreOptions::retention_share`] set them. Takes effect at the next tick.
    pub fn set_retention_size(&self, bytes: Option<u64>, share: Option<f64>) {
        self.ladder.disk.allow(bytes, share);
    }

    /// Changes the out-of-order window while running; 0 accepts nothing out of order. Samples that were accepted stay.
    pub fn set_out_of_order_window_ms(&self, window_ms: i64) {
        self.out_of_order_window_ms.store(window_ms.max(0), Relaxed);
    }

    /// What metric families are, by name: the latest statement on each.
    pub fn metadata(&self) -> Vec<Metadata> {
        self.families.all()
    }

    /// Whether exemplars are kept at present.
    pub fn keeps_exemplars(&self) -> bool {
        self.exemplars.is_enabled()
    }

    /// Changes how many exemplars are kept while running; the newest stay, 0 keeps none.
    pub fn set_max_exemplars(&self, max_exemplars: usize) {
        self.exemplars.resize(max_exemplars);
    }

    /// Exemplars in a time range, ends inclusive, in milliseconds, of the series that pass one of the matcher lists, in
    /// the order of the series' labels.
    pub fn exemplars(&self, any_of: &[Vec<Matcher>], start_ms: i64, end_ms: i64) -> Vec<SeriesExemplars> {
        self.exemplars.select(any_of, start_ms, end_ms)
    }

    /// Tells the store how full the whole process finds its budget. The store obeys the higher of this and what it
    /// counts itself.
    pub fn set_pressure(&self, level: Level) {
        self.ladder.tell(level);
        self.blocks.pages.obey(self.ladder.level());
    }

    /// Tells the store how much memory the whole process uses: what it does not count itself is room that its series
    /// and their samples do not have.
    pub fn set_used(&self, bytes: u64) {
        self.ladder.tell_used(bytes);
    }

    /// The store in numbers.
    pub fn stats(&self) -> StoreStats {
        crate::stats::collect(self)
    }

    /// Refuses new appends and seals what is in memory; where that fails, the log is synced instead. Idempotent;
    /// reading goes on.
    pub fn close(&self) -> Result<(), StorageError> {
        self.shut_down()
    }

    /// Samples before this time are hidden and refused.
    pub(crate) fn retained_from_ms(&self, now_ms: i64) -> i64 {
        match self.retention_ms.load(Relaxed) {
            ..0 => i64::MIN,
            retention_ms => now_ms.saturating_sub(retention_ms),
        }
    }
}

impl Append for Store {
    fn append(&self, batch: &Batch<'_>, acknowledge: Acknowledge) -> Result<Verdicts, AppendError> {
        self.append_batch(batch, acknowledge)
    }
}
