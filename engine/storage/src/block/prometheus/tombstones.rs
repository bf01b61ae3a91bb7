//! The file `tombstones` of a Prometheus block: stretches of time that were deleted of its series.
//!
//! ```text
//! 01 30 BA 30 | 01 | × (reference of the series varint, first ms signed, last ms signed) | crc u32 of the entries
//! ```
//! The integers at both ends are big endian, the checksum is CRC32C. A block without the file has no tombstones.
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use metricsstore_vfs::Files;

use super::index::IndexReader;
use super::meta::Meta;
use crate::StorageError;
use crate::bytes::{Cursor, put_signed, put_varint};
use crate::manifest::write_atomically;
use crate::tombstones::add_range;

pub(crate) const FILE_NAME: &str = "tombstones";
const MAGIC: [u8; 4] = [0x01, 0x30, 0xba, 0x30];
const VERSION: u8 = 1;
/// The largest file that is read.
const MAX_BYTES: u64 = 256 << 20;

/// Deleted time ranges, first and last ms, by row: ascending, disjoint, not adjacent.
pub(crate) type Ranges = BTreeMap<u32, Vec<(i64, i64)>>;

/// Reads the file in the directory of a block.
pub(crate) fn read(files: &dyn Files, dir: &Path) -> Result<Ranges, StorageError> {
    let path = dir.join(FILE_NAME);
    let bytes = match files.read(&path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ranges::default()),
        Err(error) => return Err(StorageError::io("read", &path)(error)),
    };
    if bytes == empty() {
        return Ok(Ranges::default());
    }
    let index = IndexReader::open(files, dir)?;
    decode(&bytes, |reference| index.row_of(reference)).map_err(|error| match error {
        Damage::Version(found) => StorageError::Version {
            file: path.display().to_string(),
            found: u32::from(found),
            supported: u32::from(VERSION),
        },
        Damage::Bytes(what) => StorageError::corrupt(&path, 0, what),
    })
}

/// Puts the file into the directory of a block, in place of the one that is there, says in `meta.json` how many there
/// are, and makes both durable.
pub(crate) fn write(ranges: &Ranges, files: &dyn Files, dir: &Path) -> Result<(), StorageError> {
    let path = dir.join(FILE_NAME);
    let index = IndexReader::open(files, dir)?;
    let bytes = encode(ranges, |row| index.reference_of(row))
        .ok_or_else(|| StorageError::corrupt(&path, 0, "a tombstone is of a row that does not exist"))?;
    write_atomically(files, dir, FILE_NAME, &bytes)?;
    let count = ranges.values().map(|ranges| ranges.len() as u64).sum();
    let mut meta = Meta::read(files, dir)?;
    if meta.stats.num_tombstones != count {
        meta.stats.num_tombstones = count;
        meta.write(files, dir)?;
    }
    Ok(())
}

/// The file of a block of which nothing was deleted.
fn empty() -> Vec<u8> {
    encode(&Ranges::default(), Some).unwrap_or_default()
}

/// Writes the file of a block of which nothing was deleted. Gives its length in bytes.
pub(super) fn write_none(files: &dyn Files, dir: &Path) -> Result<u64, StorageError> {
    let bytes = empty();
    write_atomically(files, dir, FILE_NAME, &bytes)?;
    Ok(bytes.len() as u64)
}

#[derive(Debug, PartialEq, Eq)]
enum Damage {
    Version(u8),
    Bytes(&'static str),
}

fn encode(ranges: &Ranges, reference_of: impl Fn(u32) -> Option<u32>) -> Option<Vec<u8>> {
    let mut bytes = MAGIC.to_vec();
    bytes.push(VERSION);
    let start = bytes.len();
    for (&row, ranges) in ranges {
        let reference = reference_of(row)?;
        for &(min_ms, max_ms) in ranges {
            put_varint(&mut bytes, u64::from(reference));
            put_signed(&mut bytes, min_ms);
            put_signed(&mut bytes, max_ms);
        }
    }
    let crc = crc32c::crc32c(&bytes[start..]);
    bytes.extend_from_slice(&crc.to_be_bytes());
    Some(bytes)
}

/// Those of series that are not in the block are left out.
fn decode(bytes: &[u8], row_of: impl Fn(u64) -> Option<u32>) -> Result<Ranges, Damage> {
    let (header, rest) = bytes.split_first_chunk::<5>().ok_or(Damage::Bytes("the file is cut short"))?;
    let (entries, crc) = rest.split_last_chunk::<4>().ok_or(Damage::Bytes("the file is cut short"))?;
    if header[..4] != MAGIC {
        return Err(Damage::Bytes("these are not the tombstones of a Prometheus block"));
    }
    if header[4] != VERSION {
        return Err(Damage::Version(header[4]));
    }
    if crc32c::crc32c(entries).to_be_bytes() != *crc {
        return Err(Damage::Bytes("the tombstones do not match their checksum"));
    }
    let mut ranges = Ranges::default();
    let mut cursor = Cursor::new(entries);
    while !cursor.is_at_end() {
        let entry = (cursor.varint(), cursor.signed(), cursor.signed());
        let (Some(reference), Some(min_ms), Some(max_ms)) = entry else {
            return Err(Damage::Bytes("a tombstone is malformed"));
        };
        if let Some(row) = row_of(reference).filter(|_| min_ms <= max_ms) {
            add_range(ranges.entry(row).or_default(), min_ms, max_ms);
        }
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_of(reference: u64) -> Option<u32> {
        (reference.is_multiple_of(2) && reference < 200).then_some(reference as u32 / 2)
    }

    #[test]
    fn ranges_are_read_back_and_those_that_touch_become_one() {
        let ranges = Ranges::from([(3, vec![(0, 5), (10, 30)]), (9, vec![(i64::MIN, i64::MAX)])]);
        let bytes = encode(&ranges, |row| Some(row * 2)).unwrap();
        assert_eq!(decode(&bytes, row_of), Ok(ranges));
        let touching = Ranges::from([(3, vec![(10, 20), (15, 30), (9, 8), (31, 40)]), (101, vec![(1, 2)])]);
        let bytes = encode(&touching, |row| Some(row * 2)).unwrap();
        assert_eq!(decode(&bytes, row_of), Ok(Ranges::from([(3, vec![(10, 40)])])));
    }

    #[test]
    fn a_file_without_tombstones_is_what_prometheus_writes() {
        assert_eq!(empty(), [0x01, 0x30, 0xba, 0x30, 0x01, 0, 0, 0, 0]);
        assert_eq!(decode(&empty(), row_of), Ok(Ranges::default()));
    }

    #[test]
    fn every_flipped_byte_and_every_cut_is_an_error() {
        let ranges = Ranges::from([(1, vec![(-5, 1_700_000_000_000)]), (70, vec![(8, 9)])]);
        let bytes = encode(&ranges, |row| Some(row * 2)).unwrap();
        for place in 0..bytes.len() {
            assert!(decode(&bytes[..place], row_of).is_err(), "cut at {place}");
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[place] ^= 1 << bit;
                assert!(decode(&flipped, row_of).is_err(), "byte {place}, bit {bit}");
            }
        }
    }
}
