//! Damaged files are copied aside, counted, and never deleted by us.
use std::io;
use std::path::{Path, PathBuf};

use metricsstore_vfs::Files;

use crate::StorageError;
use crate::counters::Counters;
use crate::store::Places;
use crate::sync::atomic::Ordering::Relaxed;

const CHUNK_BYTES: usize = 1 << 20;

/// Counts a damaged file, keeps a copy of it and says whether there is one. That the copy fails is logged.
pub(crate) fn copy(files: &dyn Files, dir: &Path, path: &Path, counters: &Counters) -> bool {
    counters.quarantined.fetch_add(1, Relaxed);
    let copied = try_copy(files, dir, path);
    if let Err(error) = &copied {
        tracing::warn!(file = %path.display(), %error, "no copy of a damaged file could be kept");
    }
    copied.is_ok()
}

/// Counts a damaged file and moves it, so that nothing deletes it.
pub(crate) fn move_aside(
    files: &dyn Files,
    dir: &Path,
    path: &Path,
    counters: &Counters,
) -> Result<(), StorageError> {
    counters.quarantined.fetch_add(1, Relaxed);
    rename(files, dir, path)
}

/// Moves a file into the quarantine, where nothing deletes it.
pub(crate) fn rename(files: &dyn Files, dir: &Path, path: &Path) -> Result<(), StorageError> {
    files.rename(path, &target(dir, path)).map_err(StorageError::io("move", path))?;
    let quarantine = Places::quarantine(dir);
    files.sync_dir(&quarantine).map_err(StorageError::io("sync", &quarantine))
}

/// Takes a file out of the way that was replaced because of damage: it goes where the quarantine has a copy of it, else
/// it is moved there.
pub(crate) fn remove_or_keep(files: &dyn Files, dir: &Path, path: &Path) {
    let target = target(dir, path);
    let removed = match files.exists(&target) {
        Ok(true) => files.remove(path),
        _ => files.rename(path, &target),
    };
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(file = %path.display(), %error, "a file that was replaced could not be removed");
    }
}

/// `quarantine/segments-00000005` for `segments/00000005`, `quarantine/<ULID>-chunks-000001` for `<ULID>/chunks/000001`.
fn target(dir: &Path, path: &Path) -> PathBuf {
    let below: Vec<_> =
        path.strip_prefix(dir).unwrap_or(path).iter().map(|part| part.to_string_lossy()).collect();
    if below.len() > 2 {
        return Places::quarantine(dir).join(below.join("-"));
    }
    let kind = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Places::quarantine(dir).join(format!("{kind}-{name}"))
}

/// Keeps a copy of a file, under its name in the quarantine only once all of it is there.
pub(crate) fn try_copy(files: &dyn Files, dir: &Path, path: &Path) -> io::Result<()> {
    let quarantine = Places::quarantine(dir);
    let target = target(dir, path);
    if files.exists(&target)? {
        return Ok(());
    }
    // Files are never changed once they are damaged: a second name keeps one even where no space is left for a copy.
    if files.hard_link(path, &target).is_ok() {
        return files.sync_dir(&quarantine);
    }
    let unfinished = target.with_extension("tmp");
    match files.remove(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let source = files.open(path)?;
    let length = source.len()?;
    let copy = files.create(&unfinished)?;
    let mut chunk = Vec::new();
    let mut offset = 0;
    while offset < length {
        chunk.resize(CHUNK_BYTES.min((length - offset) as usize), 0);
        source.read_exact_at(&mut chunk, offset)?;
        copy.append(&chunk)?;
        offset += chunk.len() as u64;
    }
    copy.sync()?;
    files.rename(&unfinished, &target)?;
    files.sync_dir(&quarantine)
}
