//! Snapshots: directories of hard links that open as data directories.
//!
//! ```text
//! snapshots/<YYYYMMDD>T<HHMMSS>Z-<16 hex digits>/
//!     snapshot.json                    who wanted it, until when, and what is in it
//!     manifest, manifest-2             of its own
//!     segments, blocks, <ULID>, identity   second names of the files that the store had
//!     wal                              what only the log keeps: metadata, tombstones, exemplars
//!     clean
//! snapshots/<name>.tmp                 one that is being made
//! snapshots/<name>.expired             one that is being removed
//! ```
//! All of it is durable before it gets its name, so what has a name is whole. Appends wait for the seal alone, and
//! compaction lets a snapshot through between two slices of its work.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use metricsstore_vfs::Files;

use crate::block::Format;
use crate::maintain::Upkeep;
use crate::manifest::Manifest;
use crate::store::{Places, Store};
use crate::sync::atomic::Ordering::Relaxed;
use crate::wal::{Log, segment_path};
use crate::{Maintenance, StorageError, identity_files, shutdown};

mod inventory;

pub use inventory::{SnapshotFile, SnapshotInfo};
pub(crate) use inventory::{Snapshots, UNFINISHED};

/// What a snapshot is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Whether what is in memory only is left out.
    pub skip_head: bool,
    /// Who wants it; named in the inventory.
    pub owner: String,
    /// After which it is removed; `None`: never.
    pub ttl: Option<Duration>,
}

impl Store {
    /// Makes a snapshot: seals what is in memory unless it is to be left out, and gives every file of the store a second
    /// name in a directory of its own, which opens as a data directory. Returns once that is durable. Waits for
    /// background work only between two steps of it.
    pub fn snapshot(&self, wanted: &NewSnapshot) -> Result<SnapshotInfo, StorageError> {
        self.snapshots.ask(self, wanted)
    }

    /// The snapshots that there are, oldest first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.snapshots.all()
    }

    /// Makes the snapshots that are waited for. Whoever has upkeep for long calls this between its steps.
    pub(crate) fn serve_snapshots(&self, upkeep: &mut Upkeep) {
        self.snapshots.serve(|wanted| {
            if self.closed.load(Relaxed) {
                return Err(StorageError::ShuttingDown);
            }
            self.make_snapshot(upkeep, wanted)
        });
    }

    fn make_snapshot(&self, upkeep: &mut Upkeep, wanted: &NewSnapshot) -> Result<SnapshotInfo, StorageError> {
        if !wanted.skip_head {
            self.seal(upkeep, &mut Maintenance::default())?;
        }
        self.store_tombstones(upkeep)?;
        let now_ms = self.clock.now_ms();
        let mut info = SnapshotInfo::new(self.snapshots.new_name(now_ms), wanted, now_ms);
        info.describe(&self.view.load());
        let place = Places::snapshots(&self.options.dir);
        let unfinished = place.join(format!("{}{UNFINISHED}", info.name));
        let path = place.join(&info.name);
        let filled = self.fill_snapshot(upkeep, &unfinished, &mut info).and_then(|()| {
            self.files.rename(&unfinished, &path).map_err(StorageError::io("rename", &unfinished))?;
            self.files.sync_dir(&place).map_err(StorageError::io("sync", &place))
        });
        if let Err(error) = filled {
            for remains in [&unfinished, &path] {
                remove_dir(&*self.files, remains);
            }
            return Err(error);
        }
        tracing::info!(name = info.name, owner = info.owner, bytes = info.bytes, "snapshot");
        self.snapshots.add(info.clone(), self.clock.monotonic());
        Ok(info)
    }

    fn fill_snapshot(&self, upkeep: &Upkeep, to: &Path, info: &mut SnapshotInfo) -> Result<(), StorageError> {
        let (files, from) = (&*self.files, self.options.dir.as_path());
        let manifest = &upkeep.manifest;
        for place in [Places::segments(to), Places::blocks(to), Places::identity(to), Places::wal(to)] {
            files.create_dir_all(&place).map_err(StorageError::io("create", &place))?;
        }
        for segment in &manifest.segments {
            link(files, from, to, &self.segment_path(segment.number))?;
        }
        for &number in &manifest.identity {
            link(files, from, to, &identity_files::path(from, number))?;
        }
        self.link_blocks(to, manifest)?;
        self.write_log(upkeep, &Places::wal(to))?;
        for place in [Places::segments(to), Places::blocks(to), Places::identity(to), Places::wal(to)] {
            files.sync_dir(&place).map_err(StorageError::io("sync", &place))?;
        }
        manifest.store(files, to)?;
        shutdown::leave_mark(files, to);
        info.list_files(files, to)?;
        info.write(files, to)?;
        files.sync_dir(to).map_err(StorageError::io("sync", to))
    }

    fn link_blocks(&self, to: &Path, manifest: &Manifest) -> Result<(), StorageError> {
        let (files, from) = (&*self.files, self.options.dir.as_path());
        for &name in &manifest.blocks {
            let path = self.blocks.path(name);
            if name.format == Format::Prometheus {
                link_dir(files, from, to, &path)?;
            } else {
                link(files, from, to, &path)?;
            }
            for beside in self.blocks.files_beside(name) {
                if files.exists(&beside).map_err(StorageError::io("read", &beside))? {
                    link(files, from, to, &beside)?;
                }
            }
        }
        Ok(())
    }

    /// A log of nothing but what no segment and no block has; none where there is nothing of that.
    fn write_log(&self, upkeep: &Upkeep, place: &Path) -> Result<(), StorageError> {
        let floor = upkeep.manifest.log_floor;
        let identity = Arc::clone(&self.identity);
        let log = Log::new(Arc::clone(&self.files), place.to_owned(), identity, &[], floor);
        log.begin(0, upkeep.persisted_order)?;
        let written =
            self.write_extras(&log).and_then(|any| if any { log.sync().map(|()| any) } else { Ok(any) });
        let any = written.map_err(|reason| {
            StorageError::io("write", place)(if log.is_out_of_space() {
                std::io::ErrorKind::StorageFull.into()
            } else {
                std::io::Error::other(reason)
            })
        })?;
        if !any {
            self.remove_file(&segment_path(place, floor));
        }
        Ok(())
    }

    /// Removes the snapshots whose time is over.
    pub(crate) fn expire_snapshots(&self) {
        let (now_ms, monotonic) = (self.clock.now_ms(), self.clock.monotonic());
        for name in self.snapshots.expired(now_ms, monotonic) {
            match inventory::remove(&*self.files, &self.options.dir, &name) {
                Ok(()) => self.snapshots.forget(&name),
                Err(error) => tracing::warn!(%error, name, "an expired snapshot could not be removed"),
            }
        }
    }
}

/// Gives a file the same name below another directory.
fn link(files: &dyn Files, from: &Path, to: &Path, path: &Path) -> Result<(), StorageError> {
    let below = path.strip_prefix(from).unwrap_or(path);
    files.hard_link(path, &to.join(below)).map_err(StorageError::io("link", path))
}

/// Gives all files of a directory the same names below another one, durably.
fn link_dir(files: &dyn Files, from: &Path, to: &Path, path: &Path) -> Result<(), StorageError> {
    let copy = to.join(path.strip_prefix(from).unwrap_or(path));
    files.create_dir_all(&copy).map_err(StorageError::io("create", &copy))?;
    for entry in files.list(path).map_err(StorageError::io("list", path))? {
        let below = path.join(&entry.name);
        if entry.is_dir {
            link_dir(files, from, to, &below)?;
        } else {
            link(files, from, to, &below)?;
        }
    }
    files.sync_dir(&copy).map_err(StorageError::io("sync", &copy))
}

/// Removes what is left of a snapshot that could not be made; what stays goes at the next start.
fn remove_dir(files: &dyn Files, path: &Path) {
    match files.remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(dir = %path.display(), %error, "an unfinished snapshot could not be removed");
        }
        _ => {}
    }
}
