//! Background work, all of it under one lock: expire, seal, cut, merge, tidy up.
use std::sync::Arc;
use std::time::Duration;

use metricsstore_budget::{Level, Part};

use crate::append::Scratch;
use crate::compact;
use crate::ended::RemovalMark;
use crate::manifest::{Manifest, NamedBlock};
use crate::retention::Believed;
use crate::segment::Segment;
use crate::store::{Places, Store};
use crate::sync::atomic::Ordering::Relaxed;
use crate::usage::Usage;
use crate::view::{LiveBlock, View, sort_blocks};
use crate::wal::Cut;
use crate::{DiskLevel, Maintenance, StorageError, identity_files, shutdown};

/// A file of the log is closed at this length: it bounds what the loss of one file costs, to a minute or less of a
/// large store, at the price of one more file every time.
const LOG_FILE_BYTES: u64 = 16 << 20;
/// Identity files are written anew as one when there are more.
const MAX_IDENTITY_FILES: usize = 8;
/// Work that fails is tried again at least this often.
const RETRY_AT_MOST: Duration = Duration::from_mins(5);

/// What background work must remember.
pub(crate) struct Upkeep {
    /// As it stands in the file.
    pub(crate) manifest: Manifest,
    /// Whether both slots of the file say so. Before, the older one may be needed: no file that it names is removed.
    pub(crate) settled: bool,
    /// Series created before this mark stand in identity files.
    pub(crate) persisted_order: u64,
    /// When the open epochs began, in monotonic time.
    pub(crate) epoch_began: Duration,
    /// Position of the log at which they began, and bytes of earlier processes' files that they were replayed from.
    pub(crate) log_began: u64,
    pub(crate) replayed_bytes: u64,
    /// Where the log was cut when the epochs were frozen that wait to be written.
    pub(crate) pending: Option<Cut>,
    /// Number of the next file; runs ahead of the manifest's when a write fails.
    next_file: u64,
    /// Generation of the next manifest; runs ahead likewise.
    next_generation: u64,
    /// Blocks that were begun in this process.
    next_block: u64,
    /// When ended series were last removed.
    pub(crate) removal: RemovalMark,
    /// Whether the identity files are to be written anew: one of them is damaged, or defines a series that was removed.
    /// Its id is given out again, and where the definition of the later series is lost it must not be taken for this.
    pub(crate) renew_identity: bool,
    /// Whether files of the log stay although segments cover them: they may name series that were removed.
    pub(crate) log_lags: bool,
    /// Numbers of files that no manifest names, or not yet: remains of work that failed.
    unnamed: Vec<u64>,
    /// Blocks that no manifest names, likewise.
    unnamed_blocks: Vec<NamedBlock>,
    /// What everything on disk takes, as it was counted last.
    pub(crate) usage: Usage,
    /// The wall clock as far as it is believed.
    pub(crate) believed: Believed,
    /// Blocks of which more is deleted in the view than is known to be on disk.
    pub(crate) unstored: Vec<NamedBlock>,
    pub(crate) expiry: Retry,
    merging: Retry,
    pub(crate) compacting: Retry,
    pub(crate) cutting: Retry,
    /// Everything before was cut into blocks; unknown at first.
    pub(crate) cut_ms: Option<i64>,
}

/// When work that failed is tried again: after a second, then after twice as long each time, up to a bound. Work that
/// fails for long must not keep the disk busy.
#[derive(Default)]
pub(crate) struct Retry {
    failures: u32,
    not_before: Duration,
}

impl Retry {
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now >= self.not_before
    }

    pub(crate) fn note<T>(
        &mut self,
        now: Duration,
        result: Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        match result {
            Ok(_) | Err(StorageError::ShuttingDown | StorageError::Interrupted) => *self = Retry::default(),
            Err(_) => {
                self.not_before = now + RETRY_AT_MOST.min(Duration::from_secs(1 << self.failures.min(16)));
                self.failures += 1;
            }
        }
        result
    }
}

impl Upkeep {
    pub(crate) fn new(manifest: Manifest, settled: bool, persisted_order: u64, now: Duration) -> Upkeep {
        let next_file = manifest.next_file;
        let next_generation = manifest.generation + 1;
        Upkeep {
            manifest,
            settled,
            persisted_order,
            epoch_began: now,
            log_began: 0,
            replayed_bytes: 0,
            pending: None,
            next_file,
            next_generation,
            next_block: 0,
            removal: RemovalMark::before_any(now),
            renew_identity: false,
            log_lags: false,
            unnamed: Vec::new(),
            unnamed_blocks: Vec::new(),
            usage: Usage::default(),
            believed: Believed::at_start(i64::MIN, i64::MIN, now),
            unstored: Vec::new(),
            expiry: Retry::default(),
            merging: Retry::default(),
            compacting: Retry::default(),
            cutting: Retry::default(),
            cut_ms: None,
        }
    }

    /// Whether there may be files that no manifest names, or not yet.
    pub(crate) fn has_remains(&self) -> bool {
        !self.unnamed.is_empty() || !self.unnamed_blocks.is_empty()
    }

    pub(crate) fn take_number(&mut self) -> u64 {
        self.next_file += 1;
        self.unnamed.push(self.next_file - 1);
        self.next_file - 1
    }
}

impl Store {
    pub(crate) fn tick(&self) -> Result<Maintenance, StorageError> {
        let mut upkeep = self.upkeep.lock();
        let mut done = Maintenance::default();
        self.watch_disk();
        // What only saves time goes first when memory is short.
        self.blocks.pages.obey(self.ladder.level());
        if self.ladder.level() >= Level::RefuseWrites {
            self.identity.shed_raw_keys();
        }
        // What nobody waited for. A failure shows in the log's state and is cured by the seal below.
        let _ = self.log.sync();
        let stored = self.store_tombstones(&mut upkeep);
        self.expire_snapshots();
        self.serve_snapshots(&mut upkeep);
        // What fails does not keep what comes after it from running: a seal heals the log.
        let expired = self.expire_when_due(&mut upkeep, &mut done);
        let sealed = self.seal_when_due(&mut upkeep, &mut done).and_then(|()| {
            let full = self.log.open_bytes() > LOG_FILE_BYTES;
            if full { self.next_log_file(&mut upkeep) } else { Ok(()) }
        });
        let cut = self.cut_when_due(&mut upkeep, &mut done);
        let merged = self.merge_when_due(&mut upkeep, &mut done);
        let compacted = self.compact_when_due(&mut upkeep, &mut done);
        // What could not be removed after a seal is tried again, and an error until it is gone.
        let floor = if upkeep.settled { upkeep.manifest.log_floor } else { 0 };
        let covered = self.log.remove_below(floor);
        self.remove_remains(&mut upkeep);
        self.serve_snapshots(&mut upkeep);
        self.watch_disk();
        self.count_disk(&mut upkeep);
        let scratch: usize = self.scratches.lock().iter().map(Scratch::bytes).sum();
        self.budget.set(Part::Wal, scratch as u64);
        self.budget.set(Part::Annotations, self.exemplars.bytes() + self.families.bytes());
        done.wal_removed +=
            stored.and(expired).and(sealed).and(cut).and(merged).and(compacted).and(covered)?;
        Ok(done)
    }

    pub(crate) fn shut_down(&self) -> Result<(), StorageError> {
        self.closed.store(true, Relaxed);
        let mut upkeep = self.upkeep.lock();
        // Appends that got past the flag are through once the gate was held alone.
        drop(self.gate.write());
        if let Err(error) = self.store_tombstones(&mut upkeep) {
            tracing::warn!(%error, "a deletion that failed is not on disk: its samples may be seen again");
        }
        let idle =
            self.head_figures().samples == 0 && upkeep.pending.is_none() && self.log.broken().is_none();
        // No segment holds exemplars and metadata: the log must, durably.
        if idle && self.log.sync().is_ok() {
            shutdown::leave_mark(&*self.files, &self.options.dir);
            return Ok(());
        }
        let sealed = self.seal(&mut upkeep, &mut Maintenance::default());
        // Either is enough for what was acknowledged.
        let synced = self.log.sync();
        let closed = if synced.is_ok() { Ok(()) } else { sealed };
        if closed.is_ok() {
            shutdown::leave_mark(&*self.files, &self.options.dir);
        }
        closed
    }

    fn count_disk(&self, upkeep: &mut Upkeep) {
        upkeep.usage = Usage::of(&*self.files, &self.options.dir);
        self.counters.disk_bytes.store(upkeep.usage.bytes, Relaxed);
        let held = self.snapshots.held_bytes(&upkeep.manifest);
        self.counters.snapshot_bytes.store(held, Relaxed);
    }

    /// Writes a changed manifest, then makes it the present one.
    pub(crate) fn commit(&self, upkeep: &mut Upkeep, mut manifest: Manifest) -> Result<(), StorageError> {
        (manifest.next_file, manifest.generation) = (upkeep.next_file, upkeep.next_generation);
        upkeep.next_generation += 1;
        manifest.store(&*self.files, &self.options.dir)?;
        let is_named = |number: u64| {
            manifest.identity.contains(&number)
                || manifest.segments.iter().any(|segment| segment.number == number)
        };
        upkeep.unnamed.retain(|&number| !is_named(number));
        upkeep.unnamed_blocks.retain(|name| !manifest.blocks.contains(name));
        upkeep.manifest = manifest;
        upkeep.settled = true;
        Ok(())
    }

    /// Removes what unfinished work of this process left behind, unless a slot of the manifest may name it.
    fn remove_remains(&self, upkeep: &mut Upkeep) {
        let dir = &self.options.dir;
        if !upkeep.has_remains() || !upkeep.manifest.is_in(&*self.files, dir) {
            return;
        }
        upkeep.unnamed_blocks.retain(|&name| !self.remove_block(name));
        upkeep.unnamed.retain(|&number| {
            let gone = self.remove_file(&self.segment_path(number));
            !(self.remove_file(&identity_files::path(dir, number)) && gone)
        });
    }

    /// The name of a block that is to be written. Until a manifest names it, what there is of it goes with the remains.
    pub(crate) fn take_block(&self, upkeep: &mut Upkeep) -> NamedBlock {
        upkeep.next_block += 1;
        let ulid = self.blocks.new_ulid(self.clock.now_ms(), upkeep.next_block);
        let name = NamedBlock { ulid, format: self.options.block_format };
        upkeep.unnamed_blocks.push(name);
        name
    }

    /// Shows blocks in the place of others, durably, and removes the files of those. On an error nothing has changed.
    pub(crate) fn replace_blocks(
        &self,
        upkeep: &mut Upkeep,
        gone: &[NamedBlock],
        come: Vec<Arc<LiveBlock>>,
    ) -> Result<(), StorageError> {
        let view = self.view.load_full();
        let mut blocks: Vec<Arc<LiveBlock>> =
            view.blocks.iter().filter(|live| !gone.contains(&live.name())).cloned().chain(come).collect();
        sort_blocks(&mut blocks);
        self.commit_view(upkeep, View { blocks, ..View::clone(&view) })?;
        self.remove_blocks(upkeep, gone);
        Ok(())
    }

    /// Makes the blocks and segments of a view those of the manifest, then shows it.
    pub(crate) fn commit_view(&self, upkeep: &mut Upkeep, view: View) -> Result<(), StorageError> {
        let (segments, blocks) = view.names();
        let manifest = Manifest { segments, blocks, ..upkeep.manifest.clone() };
        self.commit(upkeep, manifest)?;
        self.view.store(Arc::new(view));
        Ok(())
    }

    /// Removes the files of blocks that the manifest does not name any more; what cannot be removed is tried again.
    pub(crate) fn remove_blocks(&self, upkeep: &mut Upkeep, names: &[NamedBlock]) {
        for &name in names {
            if !self.remove_block(name) {
                upkeep.unnamed_blocks.push(name);
            }
        }
    }

    /// Removes what there is of a block that the manifest does not name and says whether it is gone.
    fn remove_block(&self, name: NamedBlock) -> bool {
        let removed = self.blocks.remove(name);
        if let Err(error) = &removed {
            tracing::warn!(%error, "a block that is no longer needed could not be removed");
        }
        removed.is_ok()
    }

    /// Puts segments into the place of others in the view. The manifest is the caller's.
    pub(crate) fn show_segments(&self, segments: Vec<Arc<Segment>>) {
        let view = self.view.load_full();
        self.view.store(Arc::new(View { segments, ..View::clone(&view) }));
    }

    /// Series without an identity file get one; many files become one. Changes `manifest` and returns the files that
    /// it no longer names.
    pub(crate) fn persist_series(
        &self,
        upkeep: &mut Upkeep,
        manifest: &mut Manifest,
    ) -> Result<Vec<u64>, StorageError> {
        let rewrite = upkeep.renew_identity || manifest.identity.len() >= MAX_IDENTITY_FILES;
        let from = if rewrite { 0 } else { upkeep.persisted_order };
        if !rewrite && self.identity.next_order() == from {
            return Ok(Vec::new());
        }
        let number = upkeep.take_number();
        let mark = identity_files::write(&*self.files, &self.options.dir, number, &self.identity, from)?;
        upkeep.persisted_order = mark;
        let old = if rewrite { std::mem::take(&mut manifest.identity) } else { Vec::new() };
        upkeep.renew_identity &= !rewrite;
        manifest.identity.push(number);
        Ok(old)
    }

    /// Goes on in a new file of the log, so that damage in the present one costs no more.
    fn next_log_file(&self, upkeep: &mut Upkeep) -> Result<(), StorageError> {
        self.persist_definitions(upkeep)?;
        let next = self.log.prepare()?;
        {
            let _gate = self.gate.write();
            self.log.rotate(next, upkeep.persisted_order)?;
        }
        // A failure shows in the log's state and is cured by the next seal.
        let _ = self.log.sync();
        Ok(())
    }

    /// Makes the definitions of the series that there are independent of the log.
    pub(crate) fn persist_definitions(&self, upkeep: &mut Upkeep) -> Result<(), StorageError> {
        let mut manifest = upkeep.manifest.clone();
        let before = (upkeep.persisted_order, upkeep.renew_identity);
        let committed = self.persist_series(upkeep, &mut manifest).and_then(|old| {
            if manifest != upkeep.manifest {
                self.commit(upkeep, manifest)?;
            }
            Ok(old)
        });
        match committed {
            Ok(old) => self.remove_identity_files(&old),
            Err(error) => {
                (upkeep.persisted_order, upkeep.renew_identity) = before;
                return Err(error);
            }
        }
        Ok(())
    }

    pub(crate) fn remove_identity_files(&self, numbers: &[u64]) {
        for &number in numbers {
            self.remove_file(&identity_files::path(&self.options.dir, number));
        }
    }

    /// Removes a file that the manifest does not name and says whether it is gone; if not, it goes at the next start.
    pub(crate) fn remove_file(&self, path: &std::path::Path) -> bool {
        match self.files.remove(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(file = %path.display(), %error, "a file that is no longer needed could not be removed");
                false
            }
            _ => true,
        }
    }

    pub(crate) fn segment_path(&self, number: u64) -> std::path::PathBuf {
        Places::segments(&self.options.dir).join(format!("{number:08}"))
    }

    /// Removes the files of segments that the manifest does not name any more; what cannot be removed is tried again.
    pub(crate) fn remove_segments(&self, upkeep: &mut Upkeep, segments: &[Arc<Segment>]) {
        for segment in segments {
            if !self.remove_file(&self.segment_path(segment.number)) {
                upkeep.unnamed.push(segment.number);
            }
        }
    }

    fn merge_when_due(&self, upkeep: &mut Upkeep, done: &mut Maintenance) -> Result<(), StorageError> {
        let now = self.clock.monotonic();
        // Where memory or disk are short merging waits, but never so long that there are too many segments.
        let short = self.ladder.level() >= Level::SealEarly || self.ladder.disk.level() > DiskLevel::Normal;
        let waits = short && !compact::is_crowded(&self.view.load().segments);
        if waits || !upkeep.merging.is_due(now) {
            return Ok(());
        }
        let merged = self.merge(upkeep, done);
        match upkeep.merging.note(now, merged) {
            Err(StorageError::Interrupted) => Ok(()),
            merged => merged,
        }
    }

    fn merge(&self, upkeep: &mut Upkeep, done: &mut Maintenance) -> Result<(), StorageError> {
        let view = self.view.load_full();
        let retention_ms = self.retention_ms.load(Relaxed);
        let Some(range) = compact::choose(&view.segments, retention_ms, self.options.block_duration_ms)
        else {
            return Ok(());
        };
        let inputs = &view.segments[range];
        if !self.ladder.disk.has_room_for(inputs.iter().map(|segment| segment.bytes).sum()) {
            return Ok(());
        }
        let number = upkeep.take_number();
        let merged = compact::merge(self, number, inputs, || self.take_turn(upkeep, done));
        let place = Places::segments(&self.options.dir);
        let opened = merged.and_then(|()| Segment::open(&self.files, &place, number, &self.budget));
        let output = opened.inspect_err(|_| _ = self.remove_file(&self.segment_path(number)))?;
        self.replace_merged(upkeep, inputs, output)?;
        self.counters.merges.fetch_add(1, Relaxed);
        done.merged += inputs.len() as u32;
        Ok(())
    }

    fn replace_merged(
        &self,
        upkeep: &mut Upkeep,
        inputs: &[Arc<Segment>],
        output: Segment,
    ) -> Result<(), StorageError> {
        let first = inputs.first().map(|segment| segment.number);
        let is_input = |number: u64| inputs.iter().any(|segment| segment.number == number);
        let output = (output.samples > 0).then(|| Arc::new(output));
        let mut segments = Vec::new();
        for segment in &self.view.load().segments {
            if Some(segment.number) == first {
                segments.extend(output.clone());
            }
            if !is_input(segment.number) {
                segments.push(Arc::clone(segment));
            }
        }
        let view = View { segments, ..View::clone(&self.view.load()) };
        self.commit_view(upkeep, view)?;
        self.remove_segments(upkeep, inputs);
        Ok(())
    }
}
