//! Definitions of series beyond the life of the log.
//!
//! ```text
//! identity/00000003, immutable, named by the manifest
//!
//! header, 20 bytes                                           frames
//! ┌────────┬─────────────┬───────────────┬────────────────┐  ┌─────────┬────────────┬────────────────────┐
//! │ "MSID" │ version u32 │ number u64 LE │ crc32c u32 LE  │  │ len u32 │ crc32c u32 │ definitions, as    │
//! │        │ LE = 1      │               │ of all before  │  │ LE      │ LE         │ `identity` encodes │
//! └────────┴─────────────┴───────────────┴────────────────┘  └─────────┴────────────┴────────────────────┘
//! ```
//! The checksum covers number and body. The last frame has length 0: a file without it is cut short.
use std::path::{Path, PathBuf};

use metricsstore_vfs::Files;

use crate::StorageError;
use crate::counters::Counters;
use crate::identity::Identity;
use crate::quarantine;
use crate::store::Places;
use crate::sync::atomic::Ordering::Relaxed;

const MAGIC: &[u8; 4] = b"MSID";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 20;
const MAX_FRAME_BYTES: u64 = 64 << 20;
const SERIES_PER_FRAME: usize = 4096;

pub(crate) fn path(dir: &Path, number: u64) -> PathBuf {
    Places::identity(dir).join(format!("{number:08}"))
}

fn crc(number: u64, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), body)
}

/// Writes the series created from the mark `from` on to a new file, durably; returns the mark after them.
pub(crate) fn write(
    files: &dyn Files,
    dir: &Path,
    number: u64,
    identity: &Identity,
    from: u64,
) -> Result<u64, StorageError> {
    let path = path(dir, number);
    let file = files.create(&path).map_err(StorageError::io("create", &path))?;
    let append = |bytes: &[u8]| file.append(bytes).map_err(StorageError::io("write", &path));
    let mut frame = Vec::new();
    frame.extend_from_slice(MAGIC);
    frame.extend_from_slice(&VERSION.to_le_bytes());
    frame.extend_from_slice(&number.to_le_bytes());
    let header_crc = crc32c::crc32c(&frame);
    frame.extend_from_slice(&header_crc.to_le_bytes());
    append(&frame)?;
    let mut mark = from;
    loop {
        frame.clear();
        frame.resize(8, 0);
        let next = identity.encode_definitions(mark, SERIES_PER_FRAME, &mut frame);
        if frame.len() > 8 || next == mark {
            let (head, body) = frame.split_at_mut(8);
            head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
            head[4..].copy_from_slice(&crc(number, body).to_le_bytes());
            append(&frame)?;
        }
        if next == mark {
            break;
        }
        mark = next;
    }
    file.sync().map_err(StorageError::io("sync", &path))?;
    let place = Places::identity(dir);
    files.sync_dir(&place).map_err(StorageError::io("sync", &place))?;
    Ok(mark)
}

/// Loads a file and says whether all of it was there. Damage costs the frames from there on: they are left out, a copy
/// is kept.
pub(crate) fn load(
    files: &dyn Files,
    dir: &Path,
    number: u64,
    identity: &Identity,
    counters: &Counters,
) -> Result<bool, StorageError> {
    let path = path(dir, number);
    let read = read(files, &path, number, identity);
    identity.fit();
    match read {
        Ok(()) => Ok(true),
        Err(error @ StorageError::Corrupt { .. }) => {
            tracing::error!(%error, "series definitions are damaged; the rest of the file is left out");
            quarantine::copy(files, dir, &path, counters);
            Ok(false)
        }
        Err(StorageError::Io { error, file, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
            counters.quarantined.fetch_add(1, Relaxed);
            tracing::error!(file, "series definitions are missing");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn read(files: &dyn Files, path: &Path, number: u64, identity: &Identity) -> Result<(), StorageError> {
    let file = files.open(path).map_err(StorageError::io("open", path))?;
    let length = file.len().map_err(StorageError::io("read", path))?;
    let mut head = [0; HEADER_BYTES as usize];
    if length < HEADER_BYTES {
        return Err(StorageError::corrupt(path, length, "the header is cut short"));
    }
    file.read_exact_at(&mut head, 0).map_err(StorageError::io("read", path))?;
    let crc_matches = crc32c::crc32c(&head[..16]).to_le_bytes() == head[16..];
    if &head[..4] != MAGIC || head[8..16] != number.to_le_bytes() || !crc_matches {
        return Err(StorageError::corrupt(path, 0, "this is not the header of this identity file"));
    }
    let version = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    if version != VERSION {
        let file = path.display().to_string();
        return Err(StorageError::Version { file, found: version, supported: VERSION });
    }
    let mut offset = HEADER_BYTES;
    let mut frames = 0_u64;
    let mut body = Vec::new();
    loop {
        let mut frame = [0; 8];
        if offset + 8 > length {
            return Err(StorageError::corrupt(path, offset, "the file is cut short"));
        }
        file.read_exact_at(&mut frame, offset).map_err(StorageError::io("read", path))?;
        let bytes = u64::from(u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]));
        let expected = u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]);
        if bytes > MAX_FRAME_BYTES || offset + 8 + bytes > length {
            return Err(StorageError::corrupt(path, offset, "a frame reaches beyond the file"));
        }
        body.resize(bytes as usize, 0);
        file.read_exact_at(&mut body, offset + 8).map_err(StorageError::io("read", path))?;
        if crc(number, &body) != expected {
            return Err(StorageError::corrupt(path, offset, "a frame does not match its checksum"));
        }
        if body.is_empty() {
            return Ok(());
        }
        let before = identity.counts();
        let loaded = identity.load_definitions(&body);
        loaded.map_err(|error| StorageError::corrupt(path, offset + 8, error.to_string()))?;
        offset += 8 + bytes;
        frames += 1;
        // What all have in common is in the first frame: those behind the second will add about what it did.
        if frames == 2 {
            let after = identity.counts();
            let left = ((length - offset) / (8 + bytes)) as usize;
            identity.expect([0, 1].map(|count| after[count].saturating_sub(before[count]) * left));
        }
    }
}
