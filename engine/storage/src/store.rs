//! The store's face: opens, appends, selects, maintains, closes.
use std::sync::Arc;

use metricsstore_budget::{Budget, Grant, Level};
use metricsstore_model::read::{Limited, ReadError, Selection, SeriesBatches, Source};
use metricsstore_model::{Acknowledge, Append, AppendError, Batch, LabelBuf, Matcher, Verdicts};
use metricsstore_vfs::{Clock, Files};

use crate::{Maintenance, Progress, StorageError, StoreOptions, StoreStats};

/// A time series database in one directory. Synchronous: every call may block on a lock or on the disk.
pub struct Store {
    options: StoreOptions,
}

impl Store {
    /// Opens the directory of `options`, creating it when needed: takes its lock, loads what is sealed and replays
    /// the log, within `budget`. Blocks; `progress` can be read meanwhile.
    pub fn open(
        options: StoreOptions,
        _files: Arc<dyn Files>,
        _clock: Arc<dyn Clock>,
        _budget: Budget,
        progress: Arc<Progress>,
    ) -> Result<Arc<Store>, StorageError> {
        progress.done();
        Ok(Arc::new(Store { options }))
    }

    /// What it was opened with; retention as opened.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// One tick of background work: seals by bytes, time and pressure, merges segments, applies retention, syncs
    /// the log where commits do not. Meant to be called about every second from one thread.
    pub fn maintain(&self) -> Result<Maintenance, StorageError> {
        Ok(Maintenance::default())
    }

    /// Changes retention while running; `None` keeps everything. Takes effect at the next tick.
    pub fn set_retention_ms(&self, _retention_ms: Option<i64>) {}

    /// Tells the store how full the whole process finds its budget. The store obeys the higher of this and what it
    /// counts itself.
    pub fn set_pressure(&self, _level: Level) {}

    /// The store in numbers.
    pub fn stats(&self) -> StoreStats {
        StoreStats::default()
    }

    /// Refuses new appends, syncs the log and seals what is in memory where that is quick. Idempotent; reading goes
    /// on.
    pub fn close(&self) -> Result<(), StorageError> {
        Ok(())
    }
}

impl Append for Store {
    fn append(&self, _batch: &Batch<'_>, _acknowledge: Acknowledge) -> Result<Verdicts, AppendError> {
        Err(AppendError::ShuttingDown)
    }
}

impl Source for Store {
    fn select(
        &self,
        _selection: &Selection<'_>,
        _grant: &Grant,
    ) -> Result<Box<dyn SeriesBatches>, ReadError> {
        Err(ReadError::Io { file: "the data directory".into(), reason: "not open yet".into() })
    }

    fn label_names(
        &self,
        _any_of: &[Vec<Matcher>],
        _start_ms: i64,
        _end_ms: i64,
        _limit: usize,
    ) -> Result<Limited<String>, ReadError> {
        Ok(Limited { items: Vec::new(), truncated: false })
    }

    fn label_values(
        &self,
        _name: &str,
        _any_of: &[Vec<Matcher>],
        _start_ms: i64,
        _end_ms: i64,
        _limit: usize,
    ) -> Result<Limited<String>, ReadError> {
        Ok(Limited { items: Vec::new(), truncated: false })
    }

    fn series(
        &self,
        _any_of: &[Vec<Matcher>],
        _start_ms: i64,
        _end_ms: i64,
        _limit: usize,
    ) -> Result<Limited<LabelBuf>, ReadError> {
        Ok(Limited { items: Vec::new(), truncated: false })
    }
}
