//! Sealing: freeze the open epochs, write them to a segment, forget the log that they cover.
//!
//! A seal is also the cure of a failed log: what was taken but perhaps not logged becomes durable in the segment, and
//! only then is anything acknowledged again.
use std::sync::Arc;
use std::time::Duration;

use crate::head::{Epoch, PAGE_SERIES};
use crate::identity::{Removal, Removed};
use crate::kinds::Kind;
use crate::maintain::Upkeep;
use crate::manifest::{Manifest, NamedSegment};
use crate::segment::{NewPiece, Origin, Segment, SegmentWriter};
use crate::store::{Places, Store};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::Relaxed;
use crate::view::View;
use crate::wal::{Cut, Prepared};
use crate::{Maintenance, StorageError};

/// Payload from which the head is sealed: this, or so much for each of its series if that is more.
const SEAL_BYTES: u64 = 8 << 20;
const SEAL_BYTES_PER_SERIES: u64 = 64;
/// Bytes of log from which it is sealed as well, with the same choice: they are what a start has to read. Without samples
/// to seal, too: what else the log took, exemplars above all, must not fill the disk.
const SEAL_LOG_BYTES: u64 = 24 << 20;
const SEAL_LOG_BYTES_PER_SERIES: u64 = 48;
/// The head is sealed after this time, by the clock or by its data.
pub(crate) const SEAL_AFTER: Duration = Duration::from_mins(30);
/// A head whose data span a long time is sealed once it has this share of the payload of a full one.
const SEAL_SPAN_SHARE: u64 = 4;
/// Below so much payload, and below this share of the budget, sealing relieves no pressure: it would only make many
/// small segments.
const SEAL_EARLY_BYTES: u64 = 256 << 10;
const SEAL_EARLY_SHARE: u64 = 64;

/// The open epochs in sum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadFigures {
    /// Series with samples in them.
    series: u64,
    pub(crate) samples: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) min_ms: i64,
    pub(crate) max_ms: i64,
}

impl Store {
    pub(crate) fn head_figures(&self) -> HeadFigures {
        let mut sum =
            HeadFigures { series: 0, samples: 0, payload_bytes: 0, min_ms: i64::MAX, max_ms: i64::MIN };
        for epoch in &self.view.load().open {
            let data = epoch.data.lock();
            sum.series += u64::from(data.series);
            sum.samples += data.samples;
            sum.payload_bytes += data.payload_bytes();
            sum.min_ms = sum.min_ms.min(data.min_ms);
            sum.max_ms = sum.max_ms.max(data.max_ms);
        }
        sum
    }

    fn is_seal_due(&self, upkeep: &Upkeep) -> bool {
        let head = self.head_figures();
        let log_bytes = self.log_growth(upkeep);
        if head.samples == 0 {
            return log_bytes >= SEAL_LOG_BYTES;
        }
        let full = SEAL_BYTES.max(SEAL_BYTES_PER_SERIES * head.series);
        let long_log = log_bytes >= SEAL_LOG_BYTES.max(SEAL_LOG_BYTES_PER_SERIES * head.series);
        let age = self.clock.monotonic().saturating_sub(upkeep.epoch_began);
        let span_ms = head.max_ms.saturating_sub(head.min_ms);
        let long = span_ms >= SEAL_AFTER.as_millis() as i64 && head.payload_bytes >= full / SEAL_SPAN_SHARE;
        let worthwhile = SEAL_EARLY_BYTES.max(self.budget.limit() / SEAL_EARLY_SHARE).min(full);
        let relieves = self.ladder.wants_seal() && head.payload_bytes >= worthwhile;
        head.payload_bytes >= full || long_log || age >= SEAL_AFTER || long || relieves
    }

    /// Whether sealing shortens a log that takes space which is short.
    fn frees_disk(&self, upkeep: &Upkeep) -> bool {
        let worthwhile = || self.head_figures().samples > 0 || self.log_growth(upkeep) >= SEAL_EARLY_BYTES;
        self.ladder.disk.wants_seal(self.log.figures().1) && worthwhile()
    }

    /// Bytes of the log beyond those that the last seal left, what an earlier process left included.
    fn log_growth(&self, upkeep: &Upkeep) -> u64 {
        upkeep.replayed_bytes + self.log.position().saturating_sub(upkeep.log_began)
    }

    pub(crate) fn seal_when_due(
        &self,
        upkeep: &mut Upkeep,
        done: &mut Maintenance,
    ) -> Result<(), StorageError> {
        self.serve_snapshots(upkeep);
        let has_failed = upkeep.pending.is_some() || self.log.broken().is_some();
        if has_failed
            || self.is_seal_due(upkeep)
            || self.frees_disk(upkeep)
            || self.is_idle_removal_due(upkeep)
        {
            self.seal(upkeep, done)?;
        }
        Ok(())
    }

    /// Seals what is pending, then what is open, if need be with the space that is kept back.
    pub(crate) fn seal(&self, upkeep: &mut Upkeep, done: &mut Maintenance) -> Result<(), StorageError> {
        match self.try_seal(upkeep, done) {
            Err(error) if error.is_full_disk() && self.give_up_reserve() => self.try_seal(upkeep, done),
            sealed => sealed,
        }
    }

    /// A second pending epoch never piles up.
    fn try_seal(&self, upkeep: &mut Upkeep, done: &mut Maintenance) -> Result<(), StorageError> {
        if upkeep.pending.is_some() {
            self.write_frozen(upkeep, done)?;
        }
        // What needs the disk comes before appends are kept out: the next file of the log defines only the series that
        // no identity file does.
        self.persist_definitions(upkeep)?;
        let next = self.log.prepare()?;
        let removal = self.begin_removal(upkeep);
        drop(self.freeze(upkeep, next, done, removal)?);
        self.write_frozen(upkeep, done)
    }

    /// The same while the log file `number` is replayed: it stays needed, and no series may go whose samples may still
    /// come.
    pub(crate) fn seal_during_replay(&self, number: u64) -> Result<(), StorageError> {
        let mut upkeep = self.upkeep.lock();
        if self.head_figures().samples == 0 || !self.is_seal_due(&upkeep) {
            return Ok(());
        }
        self.watch_disk();
        let disk = &self.ladder.disk;
        let has_room = || disk.available() >= disk.seal_bytes();
        if !has_room() && self.give_up_reserve() {
            self.watch_disk();
        }
        if !has_room() {
            // It stays in the log and in memory, as before the restart.
            return Ok(());
        }
        let view = self.view.load_full();
        self.swap_epochs(&view, &|_| true);
        upkeep.pending = Some(Cut::before_file(number));
        upkeep.epoch_began = self.clock.monotonic();
        self.write_frozen(&mut upkeep, &mut Maintenance::default())
    }

    /// Returns what held the removed series, to be dropped with the gate open.
    fn freeze(
        &self,
        upkeep: &mut Upkeep,
        next: Prepared,
        done: &mut Maintenance,
        removal: Option<Removal>,
    ) -> Result<Option<Removed>, StorageError> {
        let _gate = self.gate.write();
        let cut = self.log.rotate(next, upkeep.persisted_order)?;
        self.ladder.note_sealing();
        let view = self.view.load_full();
        let removed = removal.map(|removal| self.finish_removal(&view, removal));
        let is_removed = |id| removed.as_ref().is_some_and(|removed| removed.series.contains(id));
        self.swap_epochs(&view, &|series| !is_removed(series));
        let count = removed.as_ref().map_or(0, |removed| removed.series.len());
        upkeep.renew_identity |= count > 0;
        upkeep.pending = Some(cut);
        upkeep.epoch_began = self.clock.monotonic();
        self.counters.series_removed.fetch_add(count, Relaxed);
        done.series_removed += count;
        Ok(removed)
    }

    /// Goes on with fresh epochs; those that were open are shown as frozen.
    fn swap_epochs(&self, view: &View, live: &dyn Fn(u32) -> bool) {
        let remember_from_ms = self.credible_newest_ms().saturating_sub(self.options.block_duration_ms / 2);
        self.forgotten_ms.fetch_max(remember_from_ms, Relaxed);
        let open = view.open.iter().enumerate().map(|(shard, epoch)| {
            let is_live = |local| live(self.layout.global(shard, local));
            Arc::new(Epoch { data: Mutex::new(epoch.data.lock().succeed(remember_from_ms, is_live)) })
        });
        let open = open.collect();
        self.view.store(Arc::new(View { frozen: view.open.clone(), open, ..View::clone(view) }));
    }

    /// Makes the frozen epochs a durable segment, then drops them and the log that they cover.
    fn write_frozen(&self, upkeep: &mut Upkeep, done: &mut Maintenance) -> Result<(), StorageError> {
        let Some(cut) = upkeep.pending else { return Ok(()) };
        let view = self.view.load_full();
        let mut manifest = upkeep.manifest.clone();
        let before = (upkeep.persisted_order, upkeep.renew_identity);
        // Where the log fails, its files stay until it does not.
        if self.carry_over().is_ok() {
            manifest.log_floor = manifest.log_floor.max(cut.number);
        }
        let written = self.write_segment(upkeep, &view.frozen, manifest.log_floor).and_then(|segment| {
            manifest.segments.extend(segment.as_ref().map(NamedSegment::from));
            let old = self.persist_series(upkeep, &mut manifest)?;
            self.commit(upkeep, manifest)?;
            Ok((segment, old))
        });
        let (segment, old_identity) = match written {
            Ok(written) => written,
            Err(error) => {
                // What was written is not named by the manifest and goes at the next start.
                (upkeep.persisted_order, upkeep.renew_identity) = before;
                return Err(error);
            }
        };
        let sealed = segment.is_some();
        if let Some(segment) = &segment {
            self.identity.forget_raw_keys_but(&segment.series);
        }
        let segments = view.segments.iter().cloned().chain(segment.map(Arc::new)).collect();
        self.view.store(Arc::new(View { segments, frozen: Vec::new(), ..View::clone(&view) }));
        upkeep.pending = None;
        self.log.cover(cut, upkeep.persisted_order);
        self.remove_identity_files(&old_identity);
        let raised = self.raise_log_floor(upkeep, cut);
        upkeep.log_lags = upkeep.manifest.log_floor < cut.number;
        raised?;
        done.wal_removed += self.log.remove_below(upkeep.manifest.log_floor)?;
        (upkeep.log_began, upkeep.replayed_bytes) = (self.log.position(), 0);
        if sealed {
            self.counters.seals.fetch_add(1, Relaxed);
            done.sealed = true;
        }
        Ok(())
    }

    /// Lets go of the files before the cut, where that could not be done because the log had failed.
    fn raise_log_floor(&self, upkeep: &mut Upkeep, cut: Cut) -> Result<(), StorageError> {
        if upkeep.manifest.log_floor >= cut.number {
            return Ok(());
        }
        if let Err(error) = self.carry_over() {
            tracing::error!(error, "what only the log keeps cannot be written anew: its files stay");
            return Ok(());
        }
        let manifest = Manifest { log_floor: cut.number, ..upkeep.manifest.clone() };
        self.commit(upkeep, manifest)
    }

    fn write_segment(
        &self,
        upkeep: &mut Upkeep,
        epochs: &[Arc<Epoch>],
        log_floor: u64,
    ) -> Result<Option<Segment>, StorageError> {
        if epochs.iter().all(|epoch| epoch.data.lock().samples == 0) {
            return Ok(None);
        }
        let number = upkeep.take_number();
        let dir = Places::segments(&self.options.dir);
        let mut writer = SegmentWriter::create(&self.files, &dir, number, Origin::sealed(number, log_floor))?;
        let written = self.write_columns(&mut writer, epochs).and_then(|()| writer.finish());
        match written {
            Ok(_) => Segment::open(&self.files, &dir, number, &self.budget).map(Some),
            Err(error) => {
                self.remove_file(&self.segment_path(number));
                Err(error)
            }
        }
    }

    fn write_columns(&self, writer: &mut SegmentWriter, epochs: &[Arc<Epoch>]) -> Result<(), StorageError> {
        let mut first_streams = Vec::new();
        let mut times = Vec::new();
        let mut pages = 0;
        for epoch in epochs {
            let data = epoch.data.lock();
            first_streams.push(writer.next_stream());
            for stream in 0..data.stream_count() {
                times.clear();
                data.times_into(stream, &mut times);
                writer.add_times(&times)?;
            }
            if data.samples > 0 {
                writer.count(data.samples, data.min_ms, data.max_ms);
            }
            pages = pages.max(data.page_count());
        }
        let (mut payload, mut pieces) = (Vec::new(), Vec::new());
        for page in 0..pages {
            for (shard, epoch) in epochs.iter().enumerate() {
                let data = epoch.data.lock();
                for local in page * PAGE_SERIES..(page + 1) * PAGE_SERIES {
                    payload.clear();
                    pieces.clear();
                    data.pieces_into(local, &mut payload, &mut pieces);
                    let new: Vec<NewPiece<'_>> = pieces
                        .iter()
                        .map(|piece| NewPiece {
                            stream: piece.stream + first_streams[shard],
                            first_row: piece.first_row,
                            rows: piece.rows,
                            payload: &payload[piece.payload.clone()],
                        })
                        .collect();
                    let series = self.layout.global(shard, local);
                    writer.add_series(series, &new)?;
                    for kind in Kind::ALL {
                        if let Some(column) = data.kinds.column(kind, local) {
                            writer.add_kind(kind, series, &column)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
