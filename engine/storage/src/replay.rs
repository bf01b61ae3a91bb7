//! Replay: the log back into the head, within the budget.
//!
//! One thread reads the files and applies what concerns the whole store; rows go in batches to threads that have the
//! shards among them (`workers`). Whatever must be seen in the order of the log waits for these.
mod kinds;
mod workers;

use std::path::Path;

use crate::store::{Places, Store};
use crate::sync::atomic::Ordering::Relaxed;
use crate::wal::record;
use crate::wal::{self, FileReport, Reader};
use crate::{Maintenance, Progress, StorageError, quarantine};
use workers::{Batch, Defined, Findings, Place, Workers};

/// Rows are handed on in batches of this length.
const BATCH_BYTES: usize = 256 << 10;
/// After so many bytes of rows, or this share of the budget if that is less, it is looked whether the head must be
/// sealed: what is in memory grows by no more. It is not looked more often, since the workers must stand still.
const SEAL_CHECK_BYTES: usize = 4 << 20;
const SEAL_CHECK_SHARE: u64 = 64;

struct Replay<'s> {
    store: &'s Store,
    workers: Workers<'s>,
    batch: Batch,
    /// Bytes of rows since the last look at the head, and after how many it is due.
    unsealed_bytes: usize,
    seal_check_bytes: usize,
    /// Series that are known to be defined.
    defined: Defined,
    /// Samples of series that are not.
    undefined: u64,
    /// Files in which something is damaged.
    damaged_files: Vec<u64>,
    /// Bytes of the last file that were of use.
    last_bytes: u64,
}

impl Store {
    /// Replays the files from the floor on and removes those below where nothing can need them, then begins the file
    /// for what comes.
    pub(crate) fn replay(&self, existing: &[(u64, u64)], progress: &Progress) -> Result<(), StorageError> {
        let (floor, settled) = {
            let upkeep = self.upkeep.lock();
            (upkeep.manifest.log_floor, upkeep.settled)
        };
        let numbers: Vec<u64> = existing.iter().map(|&(number, _)| number).filter(|&n| n >= floor).collect();
        progress.begin(numbers.first().copied().unwrap_or(floor), numbers.last().copied().unwrap_or(floor));
        let missing = self.count_missing(floor, &numbers);
        let (undefined, damaged, last_bytes) = std::thread::scope(|scope| {
            let mut replay = Replay {
                store: self,
                workers: Workers::start(self, scope),
                batch: Batch::default(),
                unsealed_bytes: 0,
                seal_check_bytes: SEAL_CHECK_BYTES.min((self.budget.limit() / SEAL_CHECK_SHARE) as usize),
                defined: Defined::default(),
                undefined: 0,
                damaged_files: Vec::new(),
                last_bytes: 0,
            };
            replay.files(&numbers, progress)?;
            Ok::<_, StorageError>((replay.undefined, !replay.damaged_files.is_empty(), replay.last_bytes))
        })?;
        self.note_replayed(existing);
        if settled {
            self.log.remove_below(floor)?;
        }
        self.log.begin(last_bytes, self.persist_replayed())?;
        if undefined > 0 {
            self.counters.quarantined.fetch_add(undefined, Relaxed);
            tracing::error!(samples = undefined, "the log holds samples of series whose definition is lost");
        }
        if undefined > 0 || damaged || missing > 0 {
            self.leave_damage_behind();
        }
        Ok(())
    }

    /// Notes how much of the log is not sealed.
    fn note_replayed(&self, existing: &[(u64, u64)]) {
        let mut upkeep = self.upkeep.lock();
        let floor = upkeep.manifest.log_floor;
        let unsealed = existing.iter().filter(|&&(number, _)| number >= floor);
        upkeep.replayed_bytes = unsealed.map(|&(_, bytes)| bytes).sum();
    }

    /// Files that ought to be there between the floor and the last one.
    fn count_missing(&self, floor: u64, numbers: &[u64]) -> u64 {
        let Some(&last) = numbers.last() else { return 0 };
        let missing = (last - floor + 1).saturating_sub(numbers.len() as u64);
        if missing > 0 {
            self.counters.quarantined.fetch_add(missing, Relaxed);
            tracing::error!(missing, floor, last, "files of the log are missing");
        }
        missing
    }

    /// Makes the series that were defined in the log independent of its old files; returns the mark up to which
    /// identity files define them.
    fn persist_replayed(&self) -> u64 {
        let mut upkeep = self.upkeep.lock();
        if let Err(error) = self.persist_definitions(&mut upkeep) {
            tracing::warn!(%error, "series definitions stay in the log");
        }
        upkeep.persisted_order
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
    fn files(&mut self, numbers: &[u64], progress: &Progress) -> Result<(), StorageError> {
        let store = self.store;
        let mut reader = Reader::new(&*store.files, &Places::wal(&store.options.dir));
        for &number in numbers {
            progress.at(number);
            let report =
                reader.read(number, |offset, kind, body| self.record((number, offset), kind, body))?;
            self.last_bytes = report.bytes;
            self.tell(number, report);
        }
        self.catch_up();
        Ok(())
    }

    fn tell(&mut self, number: u64, report: FileReport) {
        let file = self.path(number);
        if let Some(offset) = report.torn_at {
            tracing::info!(file = %file.display(), offset, "a log file ends in what a crash left");
        }
        for (offset, what) in report.damages {
            self.damage((number, offset), what);
        }
    }

    fn path(&self, number: u64) -> std::path::PathBuf {
        wal::segment_path(&Places::wal(&self.store.options.dir), number)
    }

    /// Something in a file is lost: a copy of the file is kept.
    fn damage(&mut self, (number, offset): Place, what: &str) {
        let file = self.path(number);
        tracing::error!(file = %file.display(), offset, what, "a part of a log file is lost");
        if !self.damaged_files.contains(&number) {
            self.damaged_files.push(number);
            self.keep(number, &file);
        }
    }

    /// Keeps a copy of a file; without one, the file itself goes to quarantine when the log is done with it.
    fn keep(&self, number: u64, file: &Path) {
        let store = self.store;
        if !quarantine::copy(&*store.files, &store.options.dir, file, &store.counters) {
            store.log.set_aside(number);
        }
    }

    /// Applies one record; one that makes no sense is lost, and nothing else.
    fn record(&mut self, place: Place, kind: u8, body: &[u8]) -> Result<(), StorageError> {
        if matches!(kind, record::ROWS | record::LATE_ROWS) {
            self.batch.push(place, kind, body);
            if self.batch.bytes() >= BATCH_BYTES {
                self.hand_on();
            }
            if self.unsealed_bytes >= self.seal_check_bytes {
                self.catch_up();
                self.unsealed_bytes = 0;
                self.store.seal_during_replay(place.0)?;
            }
            return Ok(());
        }
        // Series have what came before it, where it is about their samples.
        if !matches!(kind, record::EXEMPLARS | record::METADATA) {
            self.catch_up();
        }
        if let Err(what) = self.other_record(kind, body) {
            self.damage(place, &what);
        }
        Ok(())
    }

    /// Applies a record that is not of rows; says what is wrong with it. A kind that is unknown is
    /// damage of this record only.
    fn other_record(&mut self, kind: u8, body: &[u8]) -> Result<(), String> {
        match kind {
            record::DEFINITIONS => self.definitions(body),
            record::HISTOGRAMS => self.histograms(body),
            record::EXEMPLARS => self.exemplars(body),
            record::METADATA => self.metadata(body),
            record::TOMBSTONES => self.tombstones(body),
            record::START_TIMESTAMPS => self.starts(body),
            _ => Err(format!("records of kind {kind} are unknown")),
        }
    }

    fn definitions(&mut self, body: &[u8]) -> Result<(), String> {
        let loaded = self.store.identity.load_definitions(body);
        loaded.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Hands the batch on to the workers.
    fn hand_on(&mut self) {
        self.unsealed_bytes += self.batch.bytes();
        self.workers.apply(std::mem::take(&mut self.batch));
    }

    /// Waits until everything read so far is applied.
    fn catch_up(&mut self) {
        if self.batch.bytes() > 0 {
            self.hand_on();
        }
        let Findings { damages, undefined } = self.workers.finish();
        self.undefined += undefined;
        for (place, what) in damages {
            self.damage(place, what);
        }
    }
}
