//! Replay: the log back into the head, within the budget.
mod kinds;

use std::path::Path;

use roaring::RoaringBitmap;

use crate::head::{EpochData, Limits};
use crate::identity::SeriesId;
use crate::store::{Places, Store};
use crate::sync::atomic::Ordering::Relaxed;
use crate::wal::record::{self, LogSample};
use crate::wal::{self, Outcome, RecordError};
use crate::{Maintenance, Progress, StorageError, quarantine};

struct Replay<'s> {
    store: &'s Store,
    /// Samples of one record.
    samples: Vec<LogSample>,
    /// Series that are known to be defined.
    defined: RoaringBitmap,
    /// Samples of series that are not.
    undefined: u64,
    damaged_files: u64,
}

impl Store {
    /// Replays the files from the floor on and removes those below where nothing can need them.
    pub(crate) fn replay(
        &self,
        existing: &[(u64, u64)],
        settled: bool,
        progress: &Progress,
    ) -> Result<(), StorageError> {
        let floor = self.upkeep.lock().manifest.log_floor;
        let numbers: Vec<u64> = existing.iter().map(|&(number, _)| number).filter(|&n| n >= floor).collect();
        progress.begin(numbers.first().copied().unwrap_or(floor), numbers.last().copied().unwrap_or(floor));
        let mut replay = Replay {
            store: self,
            samples: Vec::new(),
            defined: RoaringBitmap::new(),
            undefined: 0,
            damaged_files: 0,
        };
        for &number in &numbers {
            progress.at(number);
            replay.file(number)?;
        }
        self.log.define_through(self.identity.next_order());
        if settled {
            self.log.remove_below(floor)?;
        }
        if replay.undefined > 0 {
            self.counters.quarantined.fetch_add(replay.undefined, Relaxed);
            tracing::error!(
                samples = replay.undefined,
                "the log holds samples of series whose definition is lost"
            );
        }
        if replay.undefined + replay.damaged_files > 0 {
            self.leave_damage_behind();
        }
        Ok(())
    }

    /// Seals, so that the next start does not read the damaged files again: it could take their samples for those of
    /// series that got the ids of lost ones.
    fn leave_damage_behind(&self) {
        let sealed = self.seal(&mut self.upkeep.lock(), &mut Maintenance::default());
        if let Err(error) = sealed {
            tracing::error!(%error, "what was read from a damaged log could not be sealed yet");
        }
    }
}

impl Replay<'_> {
    fn file(&mut self, number: u64) -> Result<(), StorageError> {
        let store = self.store;
        let dir = Places::wal(&store.options.dir);
        let path = wal::segment_path(&dir, number);
        let next = wal::segment_path(&dir, number + 1);
        let durable = wal::durable_before(&*store.files, &next, number + 1).unwrap_or(0);
        let mut refused = false;
        let outcome = wal::read_segment(&*store.files, &path, number, durable, |offset, kind, body| {
            match self.record(kind, body) {
                Err(RecordError::Body(what)) => {
                    tracing::error!(file = %path.display(), offset, what, "a record of the log is lost");
                    refused = true;
                }
                applied => applied?,
            }
            store.seal_during_replay(number).map_err(RecordError::Stop)
        })?;
        if refused {
            self.set_aside(&path);
        }
        match outcome {
            Outcome::Whole => {}
            Outcome::Torn { offset } => {
                tracing::info!(file = %path.display(), offset, "a log file ends in an unfinished record");
            }
            Outcome::Damaged { offset, what } => self.damage(&path, offset, &what),
        }
        Ok(())
    }

    fn damage(&mut self, path: &Path, offset: u64, what: &str) {
        tracing::error!(file = %path.display(), offset, what, "the rest of a log file is lost; a copy is kept");
        self.set_aside(path);
    }

    fn set_aside(&mut self, path: &Path) {
        self.damaged_files += 1;
        quarantine::copy(&*self.store.files, &self.store.options.dir, path, &self.store.counters);
    }

    /// Applies one record; a kind that is unknown is damage of this record only.
    fn record(&mut self, kind: u8, body: &[u8]) -> Result<(), RecordError> {
        match kind {
            record::DEFINITIONS => self.definitions(body),
            record::ROWS => self.rows(body),
            record::LATE_ROWS => self.late_rows(body),
            record::HISTOGRAMS => self.histograms(body),
            record::EXEMPLARS => self.exemplars(body),
            record::METADATA => self.metadata(body),
            record::TOMBSTONES => self.tombstones(body),
            record::START_TIMESTAMPS => self.starts(body),
            _ => Err(RecordError::Body(format!("records of kind {kind} are unknown"))),
        }
    }

    fn definitions(&mut self, body: &[u8]) -> Result<(), RecordError> {
        let loaded = self.store.identity.load_definitions(body);
        loaded.map(|_| ()).map_err(|error| RecordError::Body(error.to_string()))
    }

    fn rows(&mut self, body: &[u8]) -> Result<(), RecordError> {
        record::decode_rows(body, &mut self.samples).map_err(|what| RecordError::Body(what.into()))?;
        self.apply_samples(|data, local, sample| {
            // What is not newer than the series' last sample has been sealed already.
            data.append(local, sample.timestamp_ms, sample.bits, Limits::NONE);
        });
        Ok(())
    }

    fn late_rows(&mut self, body: &[u8]) -> Result<(), RecordError> {
        record::decode_rows(body, &mut self.samples).map_err(|what| RecordError::Body(what.into()))?;
        self.apply_samples(|data, local, sample| {
            // One that has been sealed already becomes a copy of itself: reads and merges keep one.
            if data.value_at(local, sample.timestamp_ms).is_none() {
                data.take_late(local, sample.timestamp_ms, sample.bits);
            }
        });
        Ok(())
    }

    fn apply_samples(&mut self, apply: impl Fn(&mut EpochData, u32, &LogSample)) {
        let store = self.store;
        let view = store.view.load();
        let shard_of = |sample: &LogSample| store.layout.shard_of(sample.series);
        let mut newest = i64::MIN;
        for part in self.samples.chunk_by(|a, b| shard_of(a) == shard_of(b)) {
            let mut data = view.open[shard_of(&part[0])].data.lock();
            for sample in part {
                if !self.defined.contains(sample.series) {
                    if store.identity.series_ref(SeriesId(sample.series)).is_none() {
                        self.undefined += 1;
                        continue;
                    }
                    self.defined.insert(sample.series);
                }
                apply(&mut data, store.layout.local(sample.series), sample);
                newest = newest.max(sample.timestamp_ms);
            }
            data.recount();
        }
        store.newest_ms.fetch_max(newest, Relaxed);
    }
}
