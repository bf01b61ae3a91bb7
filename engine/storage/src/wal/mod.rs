//! The write-ahead log: what was acknowledged and is not yet in a segment.
//!
//! ```text
//! wal/00000001, wal/00000002 …
//!
//! header, 16 bytes                        frames, one after the other
//! ┌───────────┬────────────┬───────────┐  ┌─────────┬───────────┬─────────┬────────────────┐
//! │ "MSWL"    │ version    │ number    │  │ len u32 │ crc32c u32│ kind u8 │ body: len bytes│
//! │ 4 bytes   │ u32 LE = 1 │ u64 LE    │  │ LE      │ LE        │         │                │
//! └───────────┴────────────┴───────────┘  └─────────┴───────────┴─────────┴────────────────┘
//! ```
//! The checksum covers number, length, kind and body, so that bytes of another file never pass. Bodies are described
//! in [`record`]. A file is never appended to after a start or a failure: writing goes on in a new one.
mod log;
mod reader;
pub(crate) mod record;

pub(crate) use log::Log;
pub(crate) use reader::{Outcome, RecordError, read_segment};

use std::io;
use std::path::{Path, PathBuf};

use metricsstore_vfs::Files;

pub(crate) const MAGIC: &[u8; 4] = b"MSWL";
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 16;
pub(crate) const FRAME_BYTES: usize = 9;
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
pub(crate) fn frame_crc(number: u64, kind: u8, body: &[u8]) -> u32 {
    let mut head = [0; 13];
    head[..8].copy_from_slice(&number.to_le_bytes());
    head[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[12] = kind;
    crc32c::crc32c_append(crc32c::crc32c(&head), body)
}
