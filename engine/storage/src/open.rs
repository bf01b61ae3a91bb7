//! Opening: lock, manifest, identity, segments, then the log.
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use metricsstore_budget::Budget;
use metricsstore_vfs::{Clock, Files};
use roaring::RoaringBitmap;

use crate::block::BlockFiles;
use crate::counters::Counters;
use crate::disk::Disk;
use crate::exemplars::Exemplars;
use crate::families::Families;
use crate::head::{Epoch, EpochData, Layout};
use crate::identity::{Identity, SeriesId};
use crate::kinds::Kind;
use crate::ladder::Ladder;
use crate::maintain::Upkeep;
use crate::manifest::{Manifest, NamedSegment};
use crate::recover::{self, Found};
use crate::segment::{Segment, SegmentCursor};
use crate::snapshot::Snapshots;
use crate::store::{Places, Store};
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::Relaxed};
use crate::sync::{ArcSwap, Mutex, RwLock};
use crate::tombstones::Tombstones;
use crate::view::{LiveBlock, View, sort_blocks};
use crate::wal::{self, Log};
use crate::{Progress, StorageError, StoreOptions, compact, identity_files, quarantine, shutdown};

pub(crate) fn open(
    options: StoreOptions,
    files: Arc<dyn Files>,
    clock: Arc<dyn Clock>,
    budget: Budget,
    progress: &Progress,
) -> Result<Store, StorageError> {
    let dir = options.dir.clone();
    let lock = prepare(&*files, &dir)?;
    let counters = Counters::default();
    shutdown::note_last_end(&*files, &dir, &counters);
    let Found { mut manifest, mut settled, rebuilt } =
        recover::find_manifest(&files, &dir, &budget, &counters)?;
    let block_files = BlockFiles::new(&files, &dir, &budget);
    if settled {
        remove_remains(&*files, &dir, &manifest)?;
        block_files.remove_remains(&manifest.blocks)?;
    }

    let identity = Arc::new(Identity::new(budget.clone()));
    let mut all_defined = !rebuilt;
    for &number in &manifest.identity {
        all_defined &= identity_files::load(&*files, &dir, number, &identity, &counters)?;
    }
    let named = manifest.segments.len() + manifest.blocks.len();
    let segments = open_segments(&files, &dir, &mut manifest, &budget, &counters)?;
    let blocks = open_blocks(&block_files, &mut manifest, &counters)?;
    if segments.len() + blocks.len() < named {
        settled = recover::settle(&*files, &dir, &mut manifest)?;
    }
    let persisted_order = identity.next_order();
    let wal_dir = Places::wal(&dir);
    let existing = wal::list_segments(&*files, &wal_dir).map_err(StorageError::io("list", &wal_dir))?;
    make_log_durable(&*files, &wal_dir, &existing)?;
    let log = Log::new(Arc::clone(&files), wal_dir, Arc::clone(&identity), &existing, manifest.log_floor);

    let snapshots = Snapshots::find(&files, &dir, (clock.now_ms(), clock.monotonic()))?;

    let layout = Layout::new(options.shards);
    let epochs = (0..layout.shards()).map(|_| Arc::new(Epoch { data: Mutex::new(EpochData::new(&budget)) }));
    let view = View { blocks, segments, frozen: Vec::new(), open: epochs.collect() };
    let now = clock.monotonic();
    let store = Store {
        retention_ms: AtomicI64::new(options.retention_ms.map_or(-1, |ms| ms.max(0))),
        out_of_order_window_ms: AtomicI64::new(options.out_of_order_window_ms.max(0)),
        layout,
        files,
        clock,
        ladder: Ladder::new(budget.clone(), Disk::new(options.retention_bytes, options.retention_share)),
        budget,
        identity,
        log,
        blocks: block_files,
        view: ArcSwap::from_pointee(view),
        gate: RwLock::new(()),
        upkeep: Mutex::new(Upkeep::new(manifest, settled, persisted_order, now)),
        waiting: AtomicU32::new(0),
        counters,
        scratches: Mutex::new(Vec::new()),
        newest_ms: AtomicI64::new(i64::MIN),
        forgotten_ms: AtomicI64::new(i64::MIN),
        families: Families::default(),
        exemplars: Exemplars::new(options.max_exemplars),
        tombstones: Tombstones::default(),
        snapshots,
        closed: AtomicBool::new(false),
        options,
        _lock: lock,
    };
    store.find_reserve();
    store.watch_disk();
    if !all_defined {
        store.drop_undefined_series()?;
    }
    store.remember_sealed()?;
    store.replay(&existing, progress)?;
    store.believe_clock();
    progress.done();
    Ok(store)
}

/// Creates the directories, takes the lock, and makes durable what an earlier process may have left to the kernel.
fn prepare(files: &dyn Files, dir: &Path) -> Result<Box<dyn Send + Sync>, StorageError> {
    files.create_dir_all(dir).map_err(StorageError::io("create", dir))?;
    let lock_path = dir.join("lock");
    let lock = files.lock(&lock_path).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => StorageError::Locked { dir: dir.display().to_string() },
        _ => StorageError::io("lock", &lock_path)(error),
    })?;
    let places = [
        Places::wal(dir),
        Places::segments(dir),
        Places::blocks(dir),
        Places::identity(dir),
        Places::quarantine(dir),
    ];
    for place in places {
        files.create_dir_all(&place).map_err(StorageError::io("create", &place))?;
        files.sync_dir(&place).map_err(StorageError::io("sync", &place))?;
    }
    files.sync_dir(dir).map_err(StorageError::io("sync", dir))?;
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        match files.sync_dir(parent) {
            // It is not ours, so neither is the directory's name in it.
            Err(error)
                if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {}
            synced => synced.map_err(StorageError::io("sync", parent))?,
        }
    }
    Ok(lock)
}

/// Removes the remains of unfinished seals and merges. Both slots of the manifest are the same, so that nothing depends
/// on a file that it does not name.
fn remove_remains(files: &dyn Files, dir: &Path, manifest: &Manifest) -> Result<(), StorageError> {
    let segments = manifest.segments.iter().map(|segment| segment.number).collect();
    for (place, live) in [(Places::segments(dir), &segments), (Places::identity(dir), &manifest.identity)] {
        for entry in files.list(&place).map_err(StorageError::io("list", &place))? {
            let path = place.join(&entry.name);
            let number = entry.name.parse::<u64>().ok().filter(|number| format!("{number:08}") == entry.name);
            match number.filter(|_| !entry.is_dir) {
                Some(number) if live.contains(&number) => {}
                Some(_) => files.remove(&path).map_err(StorageError::io("remove", &path))?,
                None => {
                    tracing::warn!(file = %path.display(), "this is not one of the store's files; it is left alone");
                }
            }
        }
    }
    Ok(())
}

/// Opens the live segments. A damaged one is moved aside: the rest of the store serves.
fn open_segments(
    files: &Arc<dyn Files>,
    dir: &Path,
    manifest: &mut Manifest,
    budget: &Budget,
    counters: &Counters,
) -> Result<Vec<Arc<Segment>>, StorageError> {
    let place = Places::segments(dir);
    let mut segments = Vec::new();
    for &NamedSegment { number, from_ms } in &manifest.segments {
        match Segment::open(files, &place, number, budget) {
            Ok(segment) => segments.push(cut_segment(segment, from_ms)?),
            Err(error @ StorageError::Corrupt { .. }) => {
                tracing::error!(%error, "a segment is damaged; it is moved to quarantine");
                quarantine::move_aside(&**files, dir, &place.join(format!("{number:08}")), counters)?;
            }
            Err(StorageError::Io { error, file, .. }) if error.kind() == ErrorKind::NotFound => {
                counters.quarantined.fetch_add(1, Relaxed);
                tracing::error!(file, "a segment is missing");
            }
            Err(error) => return Err(error),
        }
    }
    manifest.segments = segments.iter().map(|segment| NamedSegment::from(&**segment)).collect();
    Ok(segments)
}

/// A segment without what is read from blocks.
fn cut_segment(segment: Segment, from_ms: i64) -> Result<Arc<Segment>, StorageError> {
    if from_ms <= segment.min_ms {
        return Ok(Arc::new(segment));
    }
    let segment = Arc::new(segment);
    let series = match SegmentCursor::new(Arc::clone(&segment)).series_from(from_ms) {
        // Damage shows where the segment is read.
        Err(StorageError::Corrupt { .. }) => RoaringBitmap::clone(&segment.series),
        series => series?,
    };
    Ok(Arc::new(segment.cut(from_ms, i64::MIN, series)))
}

/// Opens the live blocks, likewise.
fn open_blocks(
    files: &BlockFiles,
    manifest: &mut Manifest,
    counters: &Counters,
) -> Result<Vec<Arc<LiveBlock>>, StorageError> {
    let mut blocks = Vec::new();
    for &name in &manifest.blocks {
        let error = match files.open(name, counters) {
            Ok(block) => {
                blocks.push(Arc::new(block));
                continue;
            }
            Err(error) => error,
        };
        let path = files.path(name);
        let is_there = || files.files.exists(&path).map_err(StorageError::io("read", &path));
        match error {
            StorageError::Io { error, file, .. } if error.kind() == ErrorKind::NotFound && !is_there()? => {
                counters.quarantined.fetch_add(1, Relaxed);
                tracing::error!(file, "a block is missing");
            }
            StorageError::Io { error, .. } if error.kind() != ErrorKind::NotFound => {
                return Err(StorageError::io("read", &path)(error));
            }
            // Of a directory, one file may be what is missing.
            error @ (StorageError::Corrupt { .. } | StorageError::Io { .. }) => {
                tracing::error!(%error, "a block is damaged; it is moved to quarantine");
                files.move_aside(name, counters)?;
            }
            error => return Err(error),
        }
    }
    sort_blocks(&mut blocks);
    manifest.blocks = blocks.iter().map(|block| block.name()).collect();
    Ok(blocks)
}

/// An earlier process may have died before its last sync: what is replayed must not be less durable than what is
/// acknowledged as its duplicate.
fn make_log_durable(files: &dyn Files, wal_dir: &Path, existing: &[(u64, u64)]) -> Result<(), StorageError> {
    for &(number, _) in existing {
        let path = wal::segment_path(wal_dir, number);
        let file = files.open(&path).map_err(StorageError::io("open", &path))?;
        file.sync().map_err(StorageError::io("sync", &path))?;
    }
    Ok(())
}

impl Store {
    /// Series whose definition is lost must not be taken for others that get their ids: segments are written anew
    /// without them, and the old files kept aside.
    fn drop_undefined_series(&self) -> Result<(), StorageError> {
        let mut upkeep = self.upkeep.lock();
        let mut segments = Vec::new();
        let mut replaced = Vec::new();
        for segment in &self.view.load().segments {
            let undefined = |&series: &u32| self.identity.series_ref(SeriesId(series)).is_none();
            let lost: RoaringBitmap = segment.series.iter().filter(undefined).collect();
            if lost.is_empty() {
                segments.push(Arc::clone(segment));
                continue;
            }
            tracing::error!(
                segment = segment.name(),
                series = lost.len(),
                "samples of undefined series are set aside"
            );
            let number = upkeep.take_number();
            compact::rewrite_without(self, number, segment, &lost)?;
            let place = Places::segments(&self.options.dir);
            let rewritten = Segment::open(&self.files, &place, number, &self.budget)?;
            segments.extend((rewritten.samples > 0).then(|| Arc::new(rewritten)));
            replaced.push(segment.number);
        }
        let mut manifest = upkeep.manifest.clone();
        manifest.segments = segments.iter().map(|segment| NamedSegment::from(&**segment)).collect();
        let old_identity = self.renew_identity(&mut upkeep, &mut manifest)?;
        self.commit(&mut upkeep, manifest)?;
        self.show_segments(segments);
        for number in old_identity {
            let path = identity_files::path(&self.options.dir, number);
            quarantine::remove_or_keep(&*self.files, &self.options.dir, &path);
        }
        for number in replaced {
            let path = self.segment_path(number);
            quarantine::move_aside(&*self.files, &self.options.dir, &path, &self.counters)?;
        }
        Ok(())
    }

    /// Writes the definitions that are left as one file, so that the next start does not find the same damage again;
    /// returns the files that it replaces. Where there is no space that has time.
    fn renew_identity(&self, upkeep: &mut Upkeep, manifest: &mut Manifest) -> Result<Vec<u64>, StorageError> {
        upkeep.renew_identity = true;
        match self.persist_series(upkeep, manifest) {
            Err(error) if error.is_full_disk() => Ok(Vec::new()),
            renewed => renewed,
        }
    }

    /// Tells the head the last sealed sample of every series that may still be judged by it.
    fn remember_sealed(&self) -> Result<(), StorageError> {
        let view = self.view.load();
        let in_blocks = view.blocks.iter().map(|live| live.block.meta().max_ms);
        let sealed = view.segments.iter().map(|segment| segment.max_ms);
        let Some(newest_ms) = sealed.chain(in_blocks).max() else { return Ok(()) };
        self.newest_ms.store(newest_ms, Relaxed);
        let credible_ms = self.credible_newest_ms();
        let from_ms = credible_ms.saturating_sub(self.options.block_duration_ms / 2);
        self.forgotten_ms.store(from_ms, Relaxed);
        for segment in view.segments.iter().filter(|segment| segment.max_ms >= from_ms) {
            match self.remember_segment(&view, segment, from_ms) {
                Ok(()) => {}
                Err(error @ StorageError::Corrupt { .. }) => {
                    self.counters.quarantined.fetch_add(1, Relaxed);
                    tracing::error!(%error, "the last samples of a segment cannot be read");
                }
                // What cannot be read now is no damage: without it, older samples would be taken for newer ones.
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Times before `from_ms` are left out: a segment that ends before may have a later one of the same series.
    fn remember_segment(
        &self,
        view: &View,
        segment: &Arc<Segment>,
        from_ms: i64,
    ) -> Result<(), StorageError> {
        // What was cut may have expired since.
        let from_ms = from_ms.max(segment.from_ms);
        let mut cursor = SegmentCursor::new(Arc::clone(segment));
        for series in segment.series_with(Kind::Histograms) {
            let Some(column) = cursor.kind_column(Kind::Histograms, series)? else { continue };
            if column.max_ms >= from_ms {
                let mut data = view.open[self.layout.shard_of(series)].data.lock();
                data.remember(self.layout.local(series), column.max_ms);
            }
        }
        let mut shards: Vec<_> = view.open.iter().map(|epoch| epoch.data.lock()).collect();
        cursor.last_times(|series, time| {
            if time >= from_ms {
                shards[self.layout.shard_of(series)].remember(self.layout.local(series), time);
            }
        })
    }
}
