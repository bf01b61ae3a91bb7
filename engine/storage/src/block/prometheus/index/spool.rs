//! Series on their way into an index, in a file beside it: they come in order, but stand behind symbols that are known
//! only after the last one. The file is read several times, once for the series and once for each part of the postings.
//!
//! ```text
//! per series: length varint | pairs varint | × pair varint | chunks as in the index | crc u32 of all behind the length
//! ```
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_vfs::{File, Files};

use super::source::MAX_ITEM_BYTES;
use crate::StorageError;
use crate::bytes::{Cursor, put_varint};

const FILE_NAME: &str = "series.spool";
const BUFFER_BYTES: usize = 64 << 10;

pub(super) struct Spool {
    files: Arc<dyn Files>,
    file: Arc<dyn File>,
    path: PathBuf,
    buffer: Vec<u8>,
    len: u64,
    body: Vec<u8>,
}

/// A series that was read back.
pub(super) struct Entry<'b> {
    pub(super) pairs: &'b [u32],
    pub(super) chunks: &'b [u8],
}

impl Spool {
    pub(super) fn create(files: &Arc<dyn Files>, dir: &Path) -> Result<Spool, StorageError> {
        let path = dir.join(FILE_NAME);
        let file = files.create(&path).map_err(StorageError::io("create", &path))?;
        Ok(Spool { files: Arc::clone(files), file, path, buffer: Vec::new(), len: 0, body: Vec::new() })
    }

    pub(super) fn push(&mut self, pairs: &[u32], chunks: &[u8]) -> Result<(), StorageError> {
        self.body.clear();
        put_varint(&mut self.body, pairs.len() as u64);
        for &pair in pairs {
            put_varint(&mut self.body, u64::from(pair));
        }
        self.body.extend_from_slice(chunks);
        put_varint(&mut self.buffer, self.body.len() as u64);
        self.buffer.extend_from_slice(&self.body);
        self.buffer.extend_from_slice(&crc32c::crc32c(&self.body).to_le_bytes());
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        self.file.append(&self.buffer).map_err(StorageError::io("write", &self.path))?;
        self.len += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Hands every series, in order, to `visit`.
    pub(super) fn read(
        &mut self,
        mut visit: impl FnMut(Entry<'_>) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        self.flush()?;
        let (mut held, mut pairs) = (Vec::new(), Vec::new());
        let (mut loaded, mut at) = (0, 0);
        let damaged = |at| StorageError::corrupt(&self.path, at, "a series was not read as written");
        while loaded < self.len || at < held.len() {
            match take(&held[at..], &mut pairs) {
                Err(Damaged) => return Err(damaged(loaded)),
                Ok(Some(taken)) => {
                    visit(Entry { pairs: &pairs, chunks: &held[at..][taken.chunks] })?;
                    at += taken.bytes;
                }
                Ok(None) => {
                    held.drain(..at);
                    at = 0;
                    let start = held.len();
                    let more = start.max(BUFFER_BYTES).min((self.len - loaded) as usize);
                    if more == 0 {
                        return Err(damaged(loaded));
                    }
                    held.resize(start + more, 0);
                    let read = self.file.read_exact_at(&mut held[start..], loaded);
                    read.map_err(StorageError::io("read", &self.path))?;
                    loaded += more as u64;
                }
            }
        }
        Ok(())
    }

    pub(super) fn remove(self) -> Result<(), StorageError> {
        self.files.remove(&self.path).map_err(StorageError::io("remove", &self.path))
    }
}

struct Taken {
    chunks: std::ops::Range<usize>,
    bytes: usize,
}

/// The bytes are not those that were written.
struct Damaged;

/// The series at the front of `bytes`; `None` where it does not end in them.
fn take(bytes: &[u8], pairs: &mut Vec<u32>) -> Result<Option<Taken>, Damaged> {
    let mut cursor = Cursor::new(bytes);
    let Some(length) = cursor.varint() else { return Ok(None) };
    if length > MAX_ITEM_BYTES as u64 {
        return Err(Damaged);
    }
    let start = cursor.position();
    let (Some(body), Some(crc)) = (cursor.take(length as usize), cursor.u32()) else { return Ok(None) };
    if crc != crc32c::crc32c(body) {
        return Err(Damaged);
    }
    let mut within = Cursor::new(body);
    pairs.clear();
    for _ in 0..within.varint().ok_or(Damaged)? {
        pairs.push(within.varint_u32().ok_or(Damaged)?);
    }
    let chunks = start + within.position()..start + body.len();
    Ok(Some(Taken { chunks, bytes: cursor.position() }))
}
