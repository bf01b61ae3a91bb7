//! What snapshots there are, who wants them, and what of the disk only they hold.
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use jiff::Timestamp;
use metricsstore_vfs::Files;
use serde::{Deserialize, Serialize};

use super::NewSnapshot;
use crate::StorageError;
use crate::block::{Format, Ulid};
use crate::manifest::Manifest;
use crate::store::{Places, Store};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Condvar, Mutex};
use crate::view::View;

/// What the name of a snapshot ends with while it is made, and while it is removed.
pub(crate) const UNFINISHED: &str = ".tmp";
const GOING: &str = ".expired";
const RECORD: &str = "snapshot.json";
/// A record names every file of a snapshot; a longer one is none of ours.
const MAX_RECORD_BYTES: u64 = 16 << 20;
const VERSION: u32 = 1;
/// A start may be the first to see a clock that was set wrongly: what it finds expired stays so much longer.
const GRACE: Duration = Duration::from_hours(1);
/// Requests that wait at most; more are refused.
const MAX_WAITING: usize = 64;

/// A snapshot. Its times are milliseconds since the epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotInfo {
    version: u32,
    /// Name of its directory in `snapshots`.
    pub name: String,
    /// Who wanted it.
    pub owner: String,
    /// When it was made.
    pub created_ms: i64,
    /// From when on it is removed; `None`: it stays.
    pub expires_ms: Option<i64>,
    /// Whether what was in memory only was left out.
    pub skip_head: bool,
    /// Oldest sample in it.
    pub min_ms: Option<i64>,
    /// Newest sample in it.
    pub max_ms: Option<i64>,
    /// Blocks in it.
    pub blocks: u64,
    /// Segments in it.
    pub segments: u64,
    /// Bytes of all its files, those that it shares with the store included.
    pub bytes: u64,
    /// All its files but the one that says this.
    pub files: Vec<SnapshotFile>,
}

/// A file of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotFile {
    /// Below the snapshot's directory, and for shared files below the data directory.
    pub path: String,
    /// Its length.
    pub bytes: u64,
}

impl SnapshotInfo {
    pub(super) fn new(name: String, wanted: &NewSnapshot, now_ms: i64) -> SnapshotInfo {
        let ttl_ms = wanted.ttl.map(|ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX));
        SnapshotInfo {
            version: VERSION,
            name,
            owner: wanted.owner.clone(),
            created_ms: now_ms,
            expires_ms: ttl_ms.map(|ttl_ms| now_ms.saturating_add(ttl_ms)),
            skip_head: wanted.skip_head,
            min_ms: None,
            max_ms: None,
            blocks: 0,
            segments: 0,
            bytes: 0,
            files: Vec::new(),
        }
    }

    /// Takes down what a view has.
    pub(super) fn describe(&mut self, view: &View) {
        (self.blocks, self.segments) = (view.blocks.len() as u64, view.segments.len() as u64);
        let blocks = view.blocks.iter().map(|live| (live.block.meta().min_ms, live.block.meta().max_ms));
        let segments = view.segments.iter().map(|segment| (segment.min_ms, segment.max_ms));
        for (min_ms, max_ms) in blocks.chain(segments) {
            self.min_ms = Some(self.min_ms.map_or(min_ms, |ms| ms.min(min_ms)));
            self.max_ms = Some(self.max_ms.map_or(max_ms, |ms| ms.max(max_ms)));
        }
    }

    /// Takes down what is in a directory.
    pub(super) fn list_files(&mut self, files: &dyn Files, dir: &Path) -> Result<(), StorageError> {
        let mut pending = vec![(dir.to_owned(), String::new())];
        while let Some((place, below)) = pending.pop() {
            for entry in files.list(&place).map_err(StorageError::io("list", &place))? {
                let path = format!("{below}{}", entry.name);
                if entry.is_dir {
                    pending.push((place.join(&entry.name), format!("{path}/")));
                } else {
                    self.files.push(SnapshotFile { path, bytes: entry.len });
                }
            }
        }
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        self.bytes = self.files.iter().map(|file| file.bytes).sum();
        Ok(())
    }

    pub(super) fn write(&self, files: &dyn Files, dir: &Path) -> Result<(), StorageError> {
        let path = dir.join(RECORD);
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| StorageError::io("write", &path)(std::io::Error::other(error)))?;
        let file = files.create(&path).map_err(StorageError::io("create", &path))?;
        file.append(&text).map_err(StorageError::io("write", &path))?;
        file.sync().map_err(StorageError::io("sync", &path))
    }

    /// `None` where there is no record that can be understood: somebody else's.
    fn read(files: &dyn Files, dir: &Path) -> Option<SnapshotInfo> {
        let text = files.read(&dir.join(RECORD), MAX_RECORD_BYTES).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// What the file of a snapshot is the second name of: the part of the store that keeps it, if any does.
fn part_of(path: &str) -> Option<&str> {
    let (first, rest) = path.split_once('/')?;
    match first {
        // What was deleted of a block is replaced while the block stays.
        "blocks" if rest.contains('.') => None,
        "segments" | "identity" | "blocks" => Some(path),
        _ if rest == "tombstones" => None,
        _ => first.parse::<Ulid>().is_ok().then_some(first),
    }
}

/// The parts that a manifest names, as [`part_of`] calls them.
fn parts_of(manifest: &Manifest) -> BTreeSet<String> {
    let segments = manifest.segments.iter().map(|segment| format!("segments/{:08}", segment.number));
    let identity = manifest.identity.iter().map(|number| format!("identity/{number:08}"));
    let blocks = manifest.blocks.iter().map(|name| match name.format {
        Format::Native => format!("blocks/{}", name.ulid),
        Format::Prometheus => name.ulid.to_string(),
    });
    segments.chain(identity).chain(blocks).collect()
}

/// A request and what came of it.
struct Request {
    wanted: NewSnapshot,
    answer: Mutex<Option<Result<SnapshotInfo, StorageError>>>,
}

struct Kept {
    info: SnapshotInfo,
    /// Not removed before, in monotonic time, whatever the wall clock says.
    not_before: Option<Duration>,
}

/// The snapshots of a store.
#[derive(Default)]
pub(crate) struct Snapshots {
    kept: Mutex<BTreeMap<String, Kept>>,
    waiting: Mutex<Vec<Arc<Request>>>,
    answered: Condvar,
    seed: DefaultHashBuilder,
    names: AtomicU64,
    made: AtomicU64,
    failures: AtomicU64,
    removed: AtomicU64,
}

impl Snapshots {
    /// Removes the remains of those that were being made or removed, and finds the others; `now` is wall clock in ms
    /// and monotonic time.
    pub(crate) fn find(
        files: &Arc<dyn Files>,
        dir: &Path,
        (now_ms, monotonic): (i64, Duration),
    ) -> Result<Snapshots, StorageError> {
        let place = Places::snapshots(dir);
        let entries = match files.list(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            entries => entries.map_err(StorageError::io("list", &place))?,
        };
        let mut kept = BTreeMap::new();
        for entry in entries {
            let path = place.join(&entry.name);
            let ended = [UNFINISHED, GOING].iter().find_map(|ending| entry.name.strip_suffix(ending));
            if ended.is_some_and(is_name) {
                files.remove_dir_all(&path).map_err(StorageError::io("remove", &path))?;
            } else if is_name(&entry.name) {
                let Some(info) = SnapshotInfo::read(&**files, &path) else { continue };
                let left_ms = info.expires_ms.map(|ms| ms.saturating_sub(now_ms).max(0).unsigned_abs());
                let not_before = left_ms.map(|ms| monotonic + Duration::from_millis(ms).max(GRACE));
                kept.insert(entry.name, Kept { info, not_before });
            }
        }
        Ok(Snapshots { kept: Mutex::new(kept), ..Snapshots::default() })
    }

    /// Asks for a snapshot and waits for it, making it where nobody else has upkeep.
    pub(super) fn ask(&self, store: &Store, wanted: &NewSnapshot) -> Result<SnapshotInfo, StorageError> {
        let request = Arc::new(Request { wanted: wanted.clone(), answer: Mutex::new(None) });
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MAX_WAITING {
            return Err(StorageError::Busy { what: "too many snapshots are waited for" });
        }
        waiting.push(Arc::clone(&request));
        loop {
            drop(waiting);
            if let Some(mut upkeep) = store.upkeep.try_lock() {
                store.serve_snapshots(&mut upkeep);
            }
            waiting = self.waiting.lock();
            if let Some(answer) = request.answer.lock().take() {
                return answer;
            }
            // Whoever has upkeep serves between its steps, and a tick of maintenance does at its start.
            self.answered.wait(&mut waiting);
        }
    }

    /// Answers the requests that wait.
    pub(super) fn serve(&self, mut make: impl FnMut(&NewSnapshot) -> Result<SnapshotInfo, StorageError>) {
        loop {
            let Some(request) = self.next() else { return };
            let answer = make(&request.wanted);
            match &answer {
                Ok(_) => self.made.fetch_add(1, Relaxed),
                Err(_) => self.failures.fetch_add(1, Relaxed),
            };
            if let Err(error) = &answer {
                tracing::error!(%error, owner = request.wanted.owner, "no snapshot could be made");
            }
            *request.answer.lock() = Some(answer);
            let _waiting = self.waiting.lock();
            self.answered.notify_all();
        }
    }

    fn next(&self) -> Option<Arc<Request>> {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() { None } else { Some(waiting.remove(0)) }
    }

    /// A name as Prometheus gives it.
    pub(super) fn new_name(&self, now_ms: i64) -> String {
        let number = self.names.fetch_add(1, Relaxed);
        let random = self.seed.hash_one((now_ms, number));
        format!("{}-{random:016x}", basic_time(now_ms))
    }

    pub(super) fn add(&self, info: SnapshotInfo, monotonic: Duration) {
        let left_ms = info.expires_ms.map(|ms| ms.saturating_sub(info.created_ms).max(0).unsigned_abs());
        let not_before = left_ms.map(|ms| monotonic + Duration::from_millis(ms));
        self.kept.lock().insert(info.name.clone(), Kept { info, not_before });
    }

    pub(super) fn all(&self) -> Vec<SnapshotInfo> {
        let mut all: Vec<_> = self.kept.lock().values().map(|kept| kept.info.clone()).collect();
        all.sort_by_key(|info| info.created_ms);
        all
    }

    /// Names of those whose time is over by the wall clock and, so that a clock that jumps removes nothing, by the time
    /// that has passed.
    pub(super) fn expired(&self, now_ms: i64, monotonic: Duration) -> Vec<String> {
        let is_over = |kept: &&Kept| {
            kept.info.expires_ms.is_some_and(|ms| ms <= now_ms)
                && kept.not_before.is_some_and(|time| time <= monotonic)
        };
        self.kept.lock().values().filter(is_over).map(|kept| kept.info.name.clone()).collect()
    }

    pub(super) fn forget(&self, name: &str) {
        self.kept.lock().remove(name);
        self.removed.fetch_add(1, Relaxed);
    }

    /// Bytes on disk that only snapshots hold: files that the store does not name any more, once each, and their own.
    pub(crate) fn held_bytes(&self, manifest: &Manifest) -> u64 {
        let kept = self.kept.lock();
        if kept.is_empty() {
            return 0;
        }
        let live = parts_of(manifest);
        let (mut own_bytes, mut held) = (0, BTreeMap::new());
        for file in kept.values().flat_map(|kept| &kept.info.files) {
            match part_of(&file.path) {
                None => own_bytes += file.bytes,
                Some(part) if live.contains(part) => {}
                Some(_) => _ = held.insert(file.path.as_str(), file.bytes),
            }
        }
        own_bytes + held.values().sum::<u64>()
    }

    /// Snapshots there are, made, removed because their time was over, and requests that failed.
    pub(crate) fn figures(&self) -> [u64; 4] {
        let count = self.kept.lock().len() as u64;
        [count, self.made.load(Relaxed), self.removed.load(Relaxed), self.failures.load(Relaxed)]
    }

    /// When the newest was made.
    pub(crate) fn newest_ms(&self) -> Option<i64> {
        self.kept.lock().values().map(|kept| kept.info.created_ms).max()
    }
}

/// Takes the name of a snapshot away, then its files.
pub(super) fn remove(files: &dyn Files, dir: &Path, name: &str) -> Result<(), StorageError> {
    let place = Places::snapshots(dir);
    let (path, going): (PathBuf, PathBuf) = (place.join(name), place.join(format!("{name}{GOING}")));
    match files.rename(&path, &going) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(StorageError::io("rename", &path)(error));
        }
        _ => {}
    }
    files.sync_dir(&place).map_err(StorageError::io("sync", &place))?;
    match files.remove_dir_all(&going) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(StorageError::io("remove", &going)(error)),
        _ => Ok(()),
    }
}

/// Whether this is what [`Snapshots::new_name`] makes.
fn is_name(text: &str) -> bool {
    const SHAPE: &str = "00000000T000000Z-hhhhhhhhhhhhhhhh";
    text.len() == SHAPE.len()
        && text.bytes().zip(SHAPE.bytes()).all(|(byte, shape)| match shape {
            b'0' => byte.is_ascii_digit(),
            b'h' => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
            _ => byte == shape,
        })
}

/// `20171210T211224Z`; the epoch for a time that no calendar has.
fn basic_time(ms: i64) -> String {
    Timestamp::from_millisecond(ms.max(0)).unwrap_or_default().strftime("%Y%m%dT%H%M%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::{Snapshots, basic_time, is_name, part_of};

    #[test]
    fn names_are_those_of_prometheus() {
        assert_eq!(basic_time(1_512_940_344_000), "20171210T211224Z");
        assert_eq!(basic_time(951_782_400_000), "20000229T000000Z");
        assert_eq!(basic_time(4_102_444_799_999), "20991231T235959Z");
        assert!(is_name("20171210T211224Z-2be650b6d019eb54"));
        assert!(is_name(&Snapshots::default().new_name(1_800_000_000_000)));
        for text in
            ["20171210T211224Z-2be650b6d019eb5", "20171210T211224Z-2be650b6d019eb54.tmp", "lost+found", ""]
        {
            assert!(!is_name(text), "{text}");
        }
    }

    #[test]
    fn a_file_of_a_snapshot_is_the_second_name_of_a_part_or_its_own() {
        assert_eq!(part_of("segments/00000004"), Some("segments/00000004"));
        assert_eq!(part_of("blocks/01ARZ3NDEKTSV4RRFFQ69G5FAV"), Some("blocks/01ARZ3NDEKTSV4RRFFQ69G5FAV"));
        assert_eq!(part_of("blocks/01ARZ3NDEKTSV4RRFFQ69G5FAV.tombstones"), None);
        assert_eq!(part_of("01ARZ3NDEKTSV4RRFFQ69G5FAV/chunks/000001"), Some("01ARZ3NDEKTSV4RRFFQ69G5FAV"));
        assert_eq!(part_of("01ARZ3NDEKTSV4RRFFQ69G5FAV/tombstones"), None);
        assert_eq!((part_of("wal/00000001"), part_of("manifest")), (None, None));
    }
}
