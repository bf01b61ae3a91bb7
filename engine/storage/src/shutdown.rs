//! Whether the last process ended in order: a file of no content, `clean`, that [`crate::Store::close`] leaves and the
//! next start takes away.
//!
//! Nothing depends on it: a start does the same work either way. It only lets operators see that a process was killed.
use std::io::{self, ErrorKind};
use std::path::Path;

use metricsstore_vfs::Files;

use crate::counters::Counters;
use crate::manifest::SLOTS;
use crate::sync::atomic::Ordering::Relaxed;

const NAME: &str = "clean";

/// Takes the mark away; notes when there should have been one.
pub(crate) fn note_last_end(files: &dyn Files, dir: &Path, counters: &Counters) {
    // Every store has a manifest from its first start on.
    let is_first = !SLOTS.iter().any(|name| files.exists(&dir.join(name)).unwrap_or(true));
    if take_mark(files, dir) || is_first {
        return;
    }
    counters.unclean_start.store(true, Relaxed);
    tracing::warn!("the last process did not shut down in order; what it left in the log is replayed");
}

/// Says whether the mark was there. Where it cannot be taken away, no end in order is claimed.
fn take_mark(files: &dyn Files, dir: &Path) -> bool {
    match files.remove(&dir.join(NAME)).and_then(|()| files.sync_dir(dir)) {
        Ok(()) => true,
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                tracing::warn!(%error, "the mark of the last shutdown could not be taken away");
            }
            false
        }
    }
}

/// Says to the next start that everything is in its place.
pub(crate) fn leave_mark(files: &dyn Files, dir: &Path) {
    if let Err(error) = try_leave(files, dir) {
        tracing::warn!(%error, "the next start will not know that this process ended in order");
    }
}

fn try_leave(files: &dyn Files, dir: &Path) -> io::Result<()> {
    match files.create(&dir.join(NAME)) {
        Ok(file) => file.sync()?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    files.sync_dir(dir)
}
