//! The one atomic record of what is live.
//!
//! ```text
//! manifest (written as manifest.tmp, synced, renamed, directory synced)
//! ┌────────┬─────────────┬───────────┬───────────┬──────────────────────┬──────────────────────────┬────────────┐
//! │ "MSMF" │ version u32 │ next file │ log floor │ count, identity file │ count, segment number …  │ crc32c u32 │
//! │        │ LE = 1      │ varint    │ varint    │ numbers, varints     │ varints, in sealed order │ LE         │
//! └────────┴─────────────┴───────────┴───────────┴──────────────────────┴──────────────────────────┴────────────┘
//! ```
//! Files that it does not name are remains of unfinished work. The checksum covers everything before it.
use std::io::ErrorKind;
use std::path::Path;

use metricsstore_vfs::Files;

use crate::StorageError;
use crate::bytes::{Cursor, put_varint};

const MAGIC: &[u8; 4] = b"MSMF";
const VERSION: u32 = 1;
/// A manifest is small; a longer file is damage.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Number that the next segment or identity file gets.
    pub(crate) next_file: u64,
    /// First log file that is not wholly covered by segments.
    pub(crate) log_floor: u64,
    /// Identity files, to be loaded in this order.
    pub(crate) identity: Vec<u64>,
    /// Live segments, oldest samples of each series first.
    pub(crate) segments: Vec<u64>,
}

impl Manifest {
    pub(crate) fn empty() -> Manifest {
        Manifest { next_file: 1, log_floor: 1, identity: Vec::new(), segments: Vec::new() }
    }

    /// The manifest in `dir`; `None` when there is none.
    pub(crate) fn load(files: &dyn Files, dir: &Path) -> Result<Option<Manifest>, StorageError> {
        let path = dir.join("manifest");
        let bytes = match files.read(&path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StorageError::io("read", &path)(error)),
        };
        Manifest::decode(&bytes, &path).map(Some)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        put_varint(&mut out, self.next_file);
        put_varint(&mut out, self.log_floor);
        for numbers in [&self.identity, &self.segments] {
            put_varint(&mut out, numbers.len() as u64);
            for &number in numbers {
                put_varint(&mut out, number);
            }
        }
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8], path: &Path) -> Result<Manifest, StorageError> {
        let Some((content, crc)) = bytes.split_last_chunk::<4>() else {
            return Err(StorageError::corrupt(path, 0, "the manifest is too short"));
        };
        if crc32c::crc32c(content) != u32::from_le_bytes(*crc) {
            return Err(StorageError::corrupt(path, 0, "the manifest does not match its checksum"));
        }
        let mut cursor = Cursor::new(content);
        if cursor.take(4) != Some(MAGIC) {
            return Err(StorageError::corrupt(path, 0, "this is not a manifest"));
        }
        match cursor.u32() {
            Some(VERSION) => {}
            found => {
                let (file, found) = (path.display().to_string(), found.unwrap_or(0));
                return Err(StorageError::Version { file, found, supported: VERSION });
            }
        }
        let manifest = Manifest::decode_fields(&mut cursor).filter(|_| cursor.is_at_end());
        let offset = cursor.position() as u64;
        manifest.ok_or_else(|| StorageError::corrupt(path, offset, "the manifest holds a malformed number"))
    }

    fn decode_fields(cursor: &mut Cursor<'_>) -> Option<Manifest> {
        let (next_file, log_floor) = (cursor.varint()?, cursor.varint()?);
        let mut numbers = || -> Option<Vec<u64>> {
            let count = cursor.varint()?;
            (0..count).map(|_| cursor.varint()).collect()
        };
        let (identity, segments) = (numbers()?, numbers()?);
        Some(Manifest { next_file, log_floor, identity, segments })
    }

    /// Makes this the manifest of `dir`.
    pub(crate) fn store(&self, files: &dyn Files, dir: &Path) -> Result<(), StorageError> {
        write_atomically(files, dir, "manifest", &self.encode())
    }
}

/// Writes a file under a temporary name, makes it durable, and gives it its name durably.
pub(crate) fn write_atomically(
    files: &dyn Files,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<(), StorageError> {
    let (path, tmp) = (dir.join(name), dir.join(format!("{name}.tmp")));
    match files.remove(&tmp) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(StorageError::io("remove", &tmp)(error));
        }
        _ => {}
    }
    let file = files.create(&tmp).map_err(StorageError::io("create", &tmp))?;
    file.append(bytes).map_err(StorageError::io("write", &tmp))?;
    file.sync().map_err(StorageError::io("sync", &tmp))?;
    files.rename(&tmp, &path).map_err(StorageError::io("rename", &tmp))?;
    files.sync_dir(dir).map_err(StorageError::io("sync", dir))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Manifest;

    #[test]
    fn every_flipped_byte_and_every_truncation_is_an_error() {
        let manifest =
            Manifest { next_file: 900, log_floor: 7, identity: vec![1, 300], segments: vec![2, 4] };
        let bytes = manifest.encode();
        let path = Path::new("manifest");
        assert_eq!(Manifest::decode(&bytes, path).unwrap(), manifest);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x41;
            assert!(Manifest::decode(&damaged, path).is_err(), "byte {at}");
            assert!(Manifest::decode(&bytes[..at], path).is_err(), "cut at {at}");
        }
    }
}
