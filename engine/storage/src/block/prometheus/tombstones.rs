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
use super::meta::{self, Meta};
use crate::StorageError;
use crate::bytes::{Cursor, put_signed, put_varint};

pub(crate) const FILE_NAME: &str = "tombstones";
const MAGIC: [u8; 4] = [0x01, 0x30, 0xba, 0x30];
const VERSION: u8 = 1;
/// The largest file that is read.
const MAX_BYTES: u64 = 256 << 20;

/// Deleted time ranges, first and last ms, by row: ascending, disjoint, not adjacent.
pub(crate) type Ranges = BTreeMap<u32, Vec<(i64, i64)>>;

/// Reads the file in the directory of the block that has this index.
pub(crate) fn read(files: &dyn Files, dir: &Path, index: &IndexReader) -> Result<Ranges, StorageError> {
    let path = dir.join(FILE_NAME);
    let bytes = match files.read(&path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ranges::default()),
        Err(error) => return Err(StorageError::io("read", &path)(error)),
    };
    decode(&bytes, |reference| index.row_of(reference)).map_err(|error| match error {
        Damage::Version(found) => StorageError::Version {
            file: path.display().to_string(),
            found: u32::from(found),
            supported: u32::from(VERSION),
        },
        Damage::Bytes(what) => StorageError::corrupt(&path, 0, what),
    })
}

/// Puts the file into the directory of the block that has this index, in place of the one that is there, says in
/// `meta.json` how many there are, and makes both durable.
pub(crate) fn write(
    ranges: &Ranges,
    files: &dyn Files,
    dir: &Path,
    index: &IndexReader,
) -> Result<(), StorageError> {
    let path = dir.join(FILE_NAME);
    let bytes = encode(ranges, |row| index.reference_of(row))
        .ok_or_else(|| StorageError::corrupt(&path, 0, "a tombstone is of a row that does not exist"))?;
    meta::replace(files, &path, &bytes)?;
    files.sync_dir(dir).map_err(StorageError::io("sync", dir))?;
    let count = ranges.values().map(|ranges| ranges.len() as u64).sum();
    let mut meta = Meta::read(files, dir)?;
    if meta.stats.num_tombstones != count {
        meta.stats.num_tombstones = count;
        meta.write(files, dir)?;
        files.sync_dir(dir).map_err(StorageError::io("sync", dir))?;
    }
    Ok(())
}

/// Adds a range to others; again is no change.
fn add(ranges: &mut Vec<(i64, i64)>, min_ms: i64, max_ms: i64) {
    if min_ms > max_ms {
        return;
    }
    // Those that touch the new one become part of it.
    let first = ranges.partition_point(|&(_, last_ms)| last_ms < min_ms.saturating_sub(1));
    let after = ranges.partition_point(|&(first_ms, _)| first_ms <= max_ms.saturating_add(1));
    let (mut min_ms, mut max_ms) = (min_ms, max_ms);
    if first < after {
        min_ms = min_ms.min(ranges[first].0);
        max_ms = max_ms.max(ranges[after - 1].1);
    }
    ranges.splice(first..after.max(first), [(min_ms, max_ms)]);
}

/// The file of a block of which nothing was deleted.
pub(super) fn empty() -> Vec<u8> {
    encode(&Ranges::default(), Some).unwrap_or_default()
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
        if let Some(row) = row_of(reference) {
            add(ranges.entry(row).or_default(), min_ms, max_ms);
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
    fn ranges_that_touch_become_one_and_are_read_back() {
        let mut ranges = Ranges::default();
        for (min_ms, max_ms) in [(50, 60), (10, 20), (21, 30), (61, 61), (40, 45), (0, 5), (12, 14), (9, 8)] {
            add(ranges.entry(3).or_default(), min_ms, max_ms);
        }
        add(ranges.entry(9).or_default(), i64::MIN, i64::MAX);
        add(ranges.entry(9).or_default(), 4, 5);
        assert_eq!(ranges[&3], [(0, 5), (10, 30), (40, 45), (50, 61)]);
        assert_eq!(ranges[&9], [(i64::MIN, i64::MAX)]);
        let bytes = encode(&ranges, |row| Some(row * 2)).unwrap();
        assert_eq!(decode(&bytes, row_of), Ok(ranges));
    }

    #[test]
    fn ranges_agree_with_a_set_of_times() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 33) % below) as i64
        };
        for _ in 0..300 {
            let (mut ranges, mut times) = (Vec::new(), std::collections::BTreeSet::new());
            for _ in 0..8 {
                let min_ms = random(60);
                let max_ms = min_ms + random(12) - 1;
                add(&mut ranges, min_ms, max_ms);
                times.extend(min_ms..=max_ms);
            }
            assert!(ranges.is_sorted_by(|a, b| a.1 + 1 < b.0), "{ranges:?}");
            assert!(ranges.iter().flat_map(|&(min_ms, max_ms)| min_ms..=max_ms).eq(times));
        }
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
