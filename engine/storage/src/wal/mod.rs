//! The write-ahead log: what was acknowledged and is not yet in a segment.
//!
//! ```text
//! wal/00000001, wal/00000002 …
//!
//! header, 36 bytes
//! ┌────────┬─────────────┬───────────────┬───────────────────┬────────────────────┬──────────────────────┐
//! │ "MSWL" │ version u32 │ number u64 LE │ bytes of the file │ how many of these  │ crc32c u32 LE of all │
//! │        │ LE = 1      │               │ before, u64 LE    │ are durable, u64   │ before               │
//! └────────┴─────────────┴───────────────┴───────────────────┴────────────────────┴──────────────────────┘
//! frames, one after the other
//! ┌────────────┬───────────────┬───────────────────────────┬─────────┬─────────────────────────┐
//! │ len u32 LE │ crc32c u32 LE │ durable bytes of this     │ kind u8 │ body: len bytes         │
//! │            │               │ file so far, u64 LE       │         │                         │
//! └────────────┴───────────────┴───────────────────────────┴─────────┴─────────────────────────┘
//! ```
//! Bodies are described in [`record`]. The frame's checksum covers the file's number, length, durable bytes, kind and
//! body: a frame stands for itself, whatever became of the header, and bytes of another file never pass.
//!
//! # What a crash leaves and what damage is
//! A file is begun empty and durable, before anybody waits for it; its header and its first frames are written
//! together. The log is durable up to a point: a file gets synced only after those before it. So a frame that says that
//! bytes of its own file are durable says that all of the file before is, too; the header tells how long that was
//! (bytes beyond are what a failed write left). With what frames say of their own file and headers of the one before,
//! every byte up to some point is known to have been durable, and what is wrong below that point is *damage*: the bad
//! frames are left out and reading goes on at the next valid one. What is wrong above it is *torn*, the trace of a
//! crash: nothing from there on was acknowledged, and reading of this file and of those that continue it ends, since
//! later samples of a series would keep the sender's repeated ones out. Either way each start reads the same.
//!
//! An empty or short file is valid. A file is never appended to after a start or a failure: writing goes on in a new
//! one. Each file defines the series that no identity file defined when it was begun: it can be read without the ones
//! before.
pub(crate) mod body;
pub(crate) mod exemplar_record;
pub(crate) mod histogram_record;
mod log;
pub(crate) mod metadata_record;
mod reader;
pub(crate) mod record;
pub(crate) mod start_record;
pub(crate) mod tombstone_record;

pub(crate) use log::{Cut, Log, Prepared};
pub(crate) use reader::{FileReport, Reader};

use std::io;
use std::path::{Path, PathBuf};

use metricsstore_vfs::Files;

const MAGIC: &[u8; 4] = b"MSWL";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 36;
pub(crate) const FRAME_BYTES: usize = 17;
/// No body is longer; a longer length in a file is damage.
pub(crate) const MAX_BODY_BYTES: usize = 32 << 20;

/// Path of a segment.
pub(crate) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:08}"))
}

/// Numbers and lengths of the segments in `dir`, ascending; other names are ignored.
pub(crate) fn list_segments(files: &dyn Files, dir: &Path) -> io::Result<Vec<(u64, u64)>> {
    let mut found: Vec<(u64, u64)> = files
        .list(dir)?
        .into_iter()
        .filter(|entry| !entry.is_dir && entry.name.len() >= 8)
        .filter_map(|entry| Some((entry.name.parse().ok()?, entry.len)))
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Checksum of one frame.
fn frame_crc(number: u64, durable: u64, kind: u8, body: &[u8]) -> u32 {
    let mut head = [0; 21];
    head[..8].copy_from_slice(&number.to_le_bytes());
    head[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[12..20].copy_from_slice(&durable.to_le_bytes());
    head[20] = kind;
    crc32c::crc32c_append(crc32c::crc32c(&head), body)
}

/// Fills in the header of a frame, whose first [`FRAME_BYTES`] are free.
fn fill_frame(number: u64, durable: u64, kind: u8, frame: &mut [u8]) {
    let (head, body) = frame.split_at_mut(FRAME_BYTES);
    head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[4..8].copy_from_slice(&frame_crc(number, durable, kind, body).to_le_bytes());
    head[8..16].copy_from_slice(&durable.to_le_bytes());
    head[16] = kind;
}

fn header(number: u64, bytes_before: u64, durable_before: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(MAGIC);
    header[4..8].copy_from_slice(&VERSION.to_le_bytes());
    header[8..16].copy_from_slice(&number.to_le_bytes());
    header[16..24].copy_from_slice(&bytes_before.to_le_bytes());
    header[24..32].copy_from_slice(&durable_before.to_le_bytes());
    let crc = crc32c::crc32c(&header[..32]);
    header[32..].copy_from_slice(&crc.to_le_bytes());
    header
}
