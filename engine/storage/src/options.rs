//! What the store is told, and what it tells about itself.
use std::path::PathBuf;

use crate::BlockFormat;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// When an append with [`metricsstore_model::Acknowledge::Durable`] may return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalSync {
    /// After a sync of the log that covers its samples (the default).
    Commit,
    /// After the write; [`crate::Store::maintain`] syncs the log. A power failure may cost the last second.
    Interval,
}

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The data directory; created when it does not exist.
    pub dir: PathBuf,
    /// Writers in memory; 0 stands for 1. May differ at every start.
    pub shards: usize,
    /// How long samples are kept, by the wall clock; `None` keeps everything.
    pub retention_ms: Option<i64>,
    /// Bytes that everything in the data directory may take, except for damaged files in quarantine; above it the
    /// oldest segments and blocks go. `None`: no bound.
    pub retention_bytes: Option<u64>,
    /// The same as a share of the data volume, above 0 and at most 1; the lower of both bounds holds.
    pub retention_share: Option<f64>,
    /// How far behind the newest sample of the store a sample is accepted that is older than its series' newest, or
    /// too far behind to be in order; 0 accepts none. Exact duplicates succeed whatever the window.
    pub out_of_order_window_ms: i64,
    /// `--storage.tsdb.min-block-duration`: half of it is how far a lagging series may stay behind the newest
    /// sample of the store.
    pub block_duration_ms: i64,
    /// `--storage.tsdb.max-block-duration`: blocks are not merged into longer ones. `None`: a tenth of retention, at
    /// most 31 days.
    pub max_block_duration_ms: Option<i64>,
    /// Format of the blocks that are written; those of the other one are read all the same.
    pub block_format: BlockFormat,
    /// `--storage.tsdb.delay-compact-file.path`: a JSON file of a shipper (`thanos.shipper.json`); blocks of level 1 are
    /// not merged before its list `uploaded` names them.
    pub delay_compact_file: Option<PathBuf>,
    /// Exemplars that are kept in memory for all series together; 0 keeps none.
    pub max_exemplars: usize,
    /// When an append is acknowledged.
    pub wal_sync: WalSync,
}

impl StoreOptions {
    /// Prometheus' defaults for a directory: 15 days, blocks of 2 hours, nothing out of order.
    pub fn new(dir: impl Into<PathBuf>) -> StoreOptions {
        StoreOptions {
            dir: dir.into(),
            shards: 1,
            retention_ms: Some(15 * 24 * 3_600_000),
            retention_bytes: None,
            retention_share: None,
            out_of_order_window_ms: 0,
            block_duration_ms: 2 * 3_600_000,
            max_block_duration_ms: None,
            block_format: BlockFormat::Native,
            delay_compact_file: None,
            max_exemplars: 0,
            wal_sync: WalSync::Commit,
        }
    }
}

/// How far a start has come; read by others while [`crate::Store::open`] runs. Counts log segments.
#[derive(Debug, Default)]
pub struct Progress {
    first: AtomicU64,
    last: AtomicU64,
    current: AtomicU64,
    state: AtomicU32,
}

/// Where a start stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressState {
    /// Replay has not begun.
    Waiting,
    /// Replay runs.
    InProgress,
    /// The store serves.
    Done,
}

impl Progress {
    /// Where the start stands.
    pub fn state(&self) -> ProgressState {
        match self.state.load(Relaxed) {
            0 => ProgressState::Waiting,
            1 => ProgressState::InProgress,
            _ => ProgressState::Done,
        }
    }

    /// Numbers of the first, the last and the present log segment.
    pub fn segments(&self) -> (u64, u64, u64) {
        (self.first.load(Relaxed), self.last.load(Relaxed), self.current.load(Relaxed))
    }

    pub(crate) fn begin(&self, first: u64, last: u64) {
        self.first.store(first, Relaxed);
        self.last.store(last, Relaxed);
        self.current.store(first, Relaxed);
        self.state.store(1, Relaxed);
    }

    pub(crate) fn at(&self, segment: u64) {
        self.current.store(segment, Relaxed);
    }

    pub(crate) fn done(&self) {
        self.current.store(self.last.load(Relaxed), Relaxed);
        self.state.store(2, Relaxed);
    }
}

/// Samples refused since the start, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RefusedCounts {
    /// Older than the series' newest sample, without an out-of-order window.
    pub out_of_order: u64,
    /// Another value at a timestamp that is taken.
    pub duplicate_timestamp: u64,
    /// Before what is accepted of any series, or past retention, without an out-of-order window.
    pub out_of_bounds: u64,
    /// Before the out-of-order window, or past retention.
    pub too_old: u64,
    /// Later than now + 10 minutes.
    pub too_far_in_future: u64,
    /// Rows whose labels do not form a series.
    pub labels: u64,
    /// Rows of new series that the memory budget did not admit.
    pub series_budget: u64,
    /// Native histograms whose parts contradict each other.
    pub histogram: u64,
    /// Exemplars: out of order, or with labels that are too long.
    pub exemplar: u64,
    /// Whole requests refused by the memory or the disk ladder.
    pub busy_requests: u64,
    /// Whole requests that failed because the log could not be written or synced.
    pub log_failures: u64,
}

/// How full the data volume is. Each level includes what the lower ones do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskLevel {
    /// Nothing is shed.
    #[default]
    Normal,
    /// Merging pauses, the head is sealed early.
    Tight,
    /// Writes are refused.
    ReadOnly,
}

impl DiskLevel {
    /// Its name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            DiskLevel::Normal => "normal",
            DiskLevel::Tight => "tight",
            DiskLevel::ReadOnly => "read_only",
        }
    }
}

/// Why a store takes no writes. Both end by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ReadOnly {
    /// The data volume has too little space left.
    DiskFull = 1,
    /// The log could not be written or synced, and no seal has made up for that yet.
    LogFailed,
}

impl ReadOnly {
    /// Every reason.
    pub const ALL: [ReadOnly; 2] = [ReadOnly::DiskFull, ReadOnly::LogFailed];

    /// Its name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            ReadOnly::DiskFull => "disk_full",
            ReadOnly::LogFailed => "log_failed",
        }
    }

    /// What ends it.
    pub const fn cure(self) -> &'static str {
        match self {
            ReadOnly::DiskFull => "free space on the data volume or enlarge it",
            ReadOnly::LogFailed => "see to the data volume; it is tried again every second",
        }
    }
}

/// The store in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Series that have an open column or samples on disk.
    pub series: u64,
    /// Series created since the start.
    pub series_created: u64,
    /// Series removed since the start because nothing of them was left.
    pub series_removed: u64,
    /// Timestamp streams in memory, private ones included.
    pub streams: u64,
    /// Streams that only one series uses.
    pub private_streams: u64,
    /// Samples appended since the start, without exact duplicates.
    pub samples_appended: u64,
    /// Those of them that were accepted out of order.
    pub late_samples: u64,
    /// Samples in memory that are not yet sealed.
    pub head_samples: u64,
    /// Oldest timestamp in memory or on disk; `None` when there are no samples.
    pub min_time_ms: Option<i64>,
    /// Newest timestamp.
    pub max_time_ms: Option<i64>,
    /// Oldest timestamp in memory.
    pub head_min_time_ms: Option<i64>,
    /// Bytes of the write-ahead log.
    pub wal_bytes: u64,
    /// Files of the write-ahead log.
    pub wal_segments: u64,
    /// Syncs of the log since the start.
    pub wal_syncs: u64,
    /// Live sealed segments.
    pub segment_count: u64,
    /// Their bytes.
    pub segment_bytes: u64,
    /// Pages of blocks that were asked for and were in memory, since the start.
    pub page_cache_hits: u64,
    /// Those that had to be read from disk.
    pub page_cache_misses: u64,
    /// Everything in the data directory.
    pub disk_bytes: u64,
    /// Live blocks.
    pub block_count: u64,
    /// Their bytes.
    pub block_bytes: u64,
    /// Snapshots that there are.
    pub snapshots: u64,
    /// Made since the start.
    pub snapshots_made: u64,
    /// Removed since the start because their time was over.
    pub snapshots_expired: u64,
    /// Could not be made since the start.
    pub snapshot_failures: u64,
    /// Bytes on disk that only snapshots hold.
    pub snapshot_bytes: u64,
    /// When the newest snapshot was made.
    pub newest_snapshot_ms: Option<i64>,
    /// Seals since the start.
    pub seals: u64,
    /// Blocks cut from segments since the start.
    pub cuts: u64,
    /// Merges since the start.
    pub merges: u64,
    /// Compactions of blocks since the start.
    pub compactions: u64,
    /// Those that failed.
    pub compactions_failed: u64,
    /// Damaged series, or parts of them, that compactions had to leave out.
    pub series_left_out: u64,
    /// Damaged files and log records that were set aside since the start.
    pub quarantined: u64,
    /// Whether the last process that had the directory ended without [`crate::Store::close`]: it was killed, or the
    /// machine went down.
    pub unclean_start: bool,
    /// Why writes are refused at present; `None` while they are taken.
    pub read_only: Option<ReadOnly>,
    /// Times that writes began to be refused.
    pub read_only_entered: u64,
    /// How full the data volume is.
    pub disk_level: DiskLevel,
    /// Bytes that everything in the data directory may take at present; `None`: no bound.
    pub retention_bytes: Option<u64>,
    /// Bytes of the file that keeps space back for a full volume; 0 while it is given up.
    pub reserve_bytes: u64,
    /// What was refused.
    pub refused: RefusedCounts,
}

/// What one tick of [`crate::Store::maintain`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Maintenance {
    /// Whether the head was sealed into a segment.
    pub sealed: bool,
    /// Blocks that were cut from segments.
    pub cut: u32,
    /// Segments that were merged into others.
    pub merged: u32,
    /// Blocks that were compacted.
    pub compacted: u32,
    /// Segments removed by retention.
    pub expired: u32,
    /// Files of the log that were removed because segments cover them.
    pub wal_removed: u32,
    /// Series removed because nothing of them was left.
    pub series_removed: u64,
}
