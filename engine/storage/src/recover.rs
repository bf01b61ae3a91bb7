//! The manifest to start with: the one that is there, the first one, or one built anew from the files.
//!
//! Built anew: every segment says where in sealed order it belongs, which segments it replaces and where the log goes
//! on after it; every identity file is loaded, and of two series with one id or with the same labels the later one
//! stays. Blocks name those that were merged into them. Whatever of a segment stands in blocks is read from both until
//! the next cut: the same samples, which are found once. What cannot be read is set aside. All that may bring back
//! series that had ended and segments whose removal was under way, and nothing else.
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use metricsstore_budget::Budget;
use metricsstore_vfs::Files;

use crate::block::BlockFiles;
use crate::counters::Counters;
use crate::manifest::{Loaded, Manifest, NamedBlock, NamedSegment};
use crate::segment::Segment;
use crate::store::Places;
use crate::sync::atomic::Ordering::Relaxed;
use crate::{StorageError, quarantine, wal};

/// What a start begins with.
pub(crate) struct Found {
    pub(crate) manifest: Manifest,
    /// Whether both slots of the manifest say this: only then may anything be removed that it does not name.
    pub(crate) settled: bool,
    /// Whether definitions may be missing that segments need.
    pub(crate) rebuilt: bool,
}

/// Finds the manifest and brings both of its slots to it.
pub(crate) fn find_manifest(
    files: &Arc<dyn Files>,
    dir: &Path,
    budget: &Budget,
    counters: &Counters,
) -> Result<Found, StorageError> {
    let loaded = Manifest::load(&**files, dir, counters)?;
    let (mut manifest, agree, rebuilt) = match loaded {
        Loaded::Found { manifest, agree } => (manifest, agree, false),
        Loaded::Absent if is_new(&**files, dir)? => (Manifest::empty(), false, false),
        Loaded::Absent | Loaded::Lost => {
            counters.quarantined.fetch_add(1, Relaxed);
            let manifest = rebuild(files, dir, budget, counters)?;
            tracing::error!(
                dir = %dir.display(),
                segments = manifest.segments.len(),
                identity_files = manifest.identity.len(),
                log_floor = manifest.log_floor,
                "both copies of the manifest are lost; it was built anew from the files that are there"
            );
            (manifest, false, true)
        }
    };
    let settled = agree || settle(&**files, dir, &mut manifest)?;
    Ok(Found { manifest, settled, rebuilt })
}

/// Writes a manifest to both slots and says whether there was space for it: a store on a full disk must answer.
pub(crate) fn settle(files: &dyn Files, dir: &Path, manifest: &mut Manifest) -> Result<bool, StorageError> {
    manifest.generation += 1;
    match manifest.store(files, dir) {
        Ok(()) => Ok(true),
        Err(error) if error.is_full_disk() => {
            tracing::error!(%error, "the manifest cannot be written until there is space");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Whether nothing was ever sealed here.
fn is_new(files: &dyn Files, dir: &Path) -> Result<bool, StorageError> {
    Ok(numbers(files, &Places::segments(dir))?.is_empty()
        && numbers(files, &Places::identity(dir))?.is_empty()
        && files
            .list(&Places::blocks(dir))
            .map_err(StorageError::io("list", &Places::blocks(dir)))?
            .is_empty()
        && log_begin(files, dir)? <= 1)
}

/// The first file of the log, 1 where there is none.
fn log_begin(files: &dyn Files, dir: &Path) -> Result<u64, StorageError> {
    let place = Places::wal(dir);
    let log = wal::list_segments(files, &place).map_err(StorageError::io("list", &place))?;
    Ok(log.first().map_or(1, |&(number, _)| number))
}

/// Numbers of the files in a directory, ascending.
fn numbers(files: &dyn Files, place: &Path) -> Result<Vec<u64>, StorageError> {
    let entries = files.list(place).map_err(StorageError::io("list", place))?;
    let mut numbers: Vec<u64> = entries.iter().filter_map(|entry| entry.name.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn rebuild(
    files: &Arc<dyn Files>,
    dir: &Path,
    budget: &Budget,
    counters: &Counters,
) -> Result<Manifest, StorageError> {
    let place = Places::segments(dir);
    let mut segments = Vec::new();
    for number in numbers(&**files, &place)? {
        match Segment::open(files, &place, number, budget) {
            Ok(segment) => segments.push(segment),
            Err(error @ StorageError::Corrupt { .. }) => {
                tracing::error!(%error, "a segment is damaged; it is moved to quarantine");
                quarantine::move_aside(&**files, dir, &place.join(format!("{number:08}")), counters)?;
            }
            Err(error) => return Err(error),
        }
    }
    let replaced: BTreeSet<u64> =
        segments.iter().flat_map(|segment| segment.origin.replaces.iter().copied()).collect();
    let log_floor = segments.iter().map(|segment| segment.origin.log_floor).max();
    segments.retain(|segment| !replaced.contains(&segment.number));
    segments.sort_by_key(|segment| (segment.origin.place, segment.number));
    let sealed: Vec<u64> = segments.iter().map(|segment| segment.number).collect();
    let segments = segments.iter().map(NamedSegment::from).collect();
    let blocks = find_blocks(&BlockFiles::new(files, dir, budget), counters)?;
    let identity = numbers(&**files, &Places::identity(dir))?;
    let last = [&sealed, &identity].into_iter().flatten().chain(&replaced).max();
    Ok(Manifest {
        generation: 0,
        next_file: last.map_or(1, |last| last + 1),
        log_floor: log_floor.map_or(log_begin(&**files, dir)?, |floor| floor.max(1)),
        identity,
        segments,
        blocks,
    })
}

/// The blocks that can be read, but for those that were merged into others.
fn find_blocks(files: &BlockFiles, counters: &Counters) -> Result<Vec<NamedBlock>, StorageError> {
    let (mut found, mut merged) = (Vec::new(), BTreeSet::new());
    for name in files.names()? {
        match files.open(name, counters) {
            Ok(live) => {
                merged.extend(live.block.meta().parents.iter().map(|parent| parent.ulid));
                found.push(name);
            }
            Err(error @ StorageError::Corrupt { .. }) => {
                tracing::error!(%error, "a block is damaged; it is moved to quarantine");
                files.move_aside(name, counters)?;
            }
            Err(error) => return Err(error),
        }
    }
    found.retain(|name| !merged.contains(&name.ulid));
    Ok(found)
}
