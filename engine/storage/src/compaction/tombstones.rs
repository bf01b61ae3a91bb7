//! What was deleted of a block and still stands in it: masked wherever it is read, left out by the next compaction.
//!
//! ```text
//! blocks/<ULID>.tombstones (written as *.tmp, synced, renamed, directory synced)
//! ┌────────┬─────────────┬──────────────────┬──────────────┬───────┬─────┬────────────┐
//! │ "MSBT" │ version u32 │ ULID of the      │ count of     │ row … │  …  │ crc32c u32 │
//! │        │ LE = 1      │ block, 16 bytes  │ rows, varint │       │     │ LE         │
//! │        │             │ big endian       │              │       │     │            │
//! └────────┴─────────────┴──────────────────┴──────────────┴───────┴─────┴────────────┘
//! row  row − previous row (the first: row), count of ranges; then per range, ascending:
//!      zigzag(first ms − last ms of the range before; the first: first ms), last ms − first ms; all varints
//! ```
//! The checksum covers everything before it. Blocks in Prometheus' format have Prometheus' own file instead.
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use crate::block::{BlockFiles, BlockMeta, Format, Ulid, prometheus};
use crate::bytes::{Cursor, put_signed, put_varint};
use crate::counters::Counters;
use crate::manifest::{NamedBlock, write_atomically};
use crate::store::Places;
use crate::tombstones::add_range;
use crate::{StorageError, quarantine};

const MAGIC: &[u8; 4] = b"MSBT";
const VERSION: u32 = 1;
/// The largest file that is believed: two ranges of each of ten million rows.
const MAX_BYTES: u64 = 256 << 20;

/// Deleted time ranges of a block, by row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BlockTombstones {
    /// First and last ms, ascending, disjoint.
    pub(crate) by_row: BTreeMap<u32, Vec<(i64, i64)>>,
}

impl BlockTombstones {
    /// Adds a range, ends inclusive; again is no change.
    pub(crate) fn add(&mut self, row: u32, min_ms: i64, max_ms: i64) {
        if min_ms <= max_ms {
            add_range(self.by_row.entry(row).or_default(), min_ms, max_ms);
        }
    }

    /// What was deleted of a row, if anything: first and last ms, ascending, disjoint.
    pub(crate) fn of(&self, row: u32) -> Option<&[(i64, i64)]> {
        self.by_row.get(&row).map(Vec::as_slice)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_row.is_empty()
    }

    /// About how much of a block is deleted, from 0 to 1: of each row the share of its time.
    pub(crate) fn share_of(&self, meta: &BlockMeta) -> f64 {
        if self.is_empty() {
            return 0.0;
        }
        let span = meta.max_ms.saturating_sub(meta.min_ms) as f64 + 1.0;
        let of_range = |&(min_ms, max_ms): &(i64, i64)| {
            let (min_ms, max_ms) = (min_ms.max(meta.min_ms), max_ms.min(meta.max_ms));
            if min_ms > max_ms { 0.0 } else { ((max_ms - min_ms) as f64 + 1.0) / span }
        };
        let deleted: f64 = self.by_row.values().flatten().map(of_range).sum();
        deleted / meta.series.max(1) as f64
    }

    /// What was deleted of a block; nothing where there is no file. A damaged file is kept aside, counted and logged: the
    /// block is served without it, since nothing that was acknowledged may be lost for it.
    pub(crate) fn load(
        files: &BlockFiles,
        name: NamedBlock,
        counters: &Counters,
    ) -> Result<BlockTombstones, StorageError> {
        let path = files.tombstones_path(name);
        match read(files, name, &path) {
            Err(error @ StorageError::Corrupt { .. }) => {
                quarantine::copy(&*files.files, &files.dir, &path, counters);
                tracing::error!(%error, "what was deleted of a block is not known any more: it is to be deleted again");
                Ok(BlockTombstones::default())
            }
            read => read,
        }
    }

    /// Makes this durably what was deleted of a block, in place of what was before.
    pub(crate) fn store(&self, files: &BlockFiles, name: NamedBlock) -> Result<(), StorageError> {
        if name.format == Format::Prometheus {
            return prometheus::tombstones::write(&self.by_row, &*files.files, &files.path(name));
        }
        let path = files.tombstones_path(name);
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        write_atomically(&*files.files, &Places::blocks(&files.dir), &file, &self.encode(name.ulid))
    }

    fn encode(&self, ulid: Ulid) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&ulid.0.to_be_bytes());
        put_varint(&mut out, self.by_row.len() as u64);
        let mut previous_row = 0;
        for (&row, ranges) in &self.by_row {
            put_varint(&mut out, u64::from(row - previous_row));
            previous_row = row;
            put_varint(&mut out, ranges.len() as u64);
            let mut previous_ms = 0i64;
            for &(min_ms, max_ms) in ranges {
                put_signed(&mut out, min_ms.wrapping_sub(previous_ms));
                put_varint(&mut out, max_ms.wrapping_sub(min_ms) as u64);
                previous_ms = max_ms;
            }
        }
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Says what is wrong, and which version stands there where that is it.
    fn decode(bytes: &[u8], ulid: Ulid) -> Result<BlockTombstones, (&'static str, Option<u32>)> {
        let damaged = |what| (what, None);
        let (content, crc) = bytes.split_last_chunk::<4>().ok_or(damaged("the file is cut short"))?;
        if crc32c::crc32c(content) != u32::from_le_bytes(*crc) {
            return Err(damaged("the tombstones do not match their checksum"));
        }
        let mut cursor = Cursor::new(content);
        if cursor.take(4) != Some(MAGIC) {
            return Err(damaged("these are not the tombstones of a block"));
        }
        match cursor.u32() {
            Some(VERSION) => {}
            found => return Err(("an unknown version", Some(found.unwrap_or(0)))),
        }
        if cursor.take(16) != Some(&ulid.0.to_be_bytes()) {
            return Err(damaged("these are the tombstones of another block"));
        }
        decode_rows(&mut cursor).filter(|_| cursor.is_at_end()).ok_or(damaged("a tombstone is malformed"))
    }
}

fn read(files: &BlockFiles, name: NamedBlock, path: &Path) -> Result<BlockTombstones, StorageError> {
    if name.format == Format::Prometheus {
        let by_row = prometheus::tombstones::read(&*files.files, &files.path(name))?;
        return Ok(BlockTombstones { by_row });
    }
    let bytes = match files.files.read(path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BlockTombstones::default()),
        Err(error) => return Err(StorageError::io("read", path)(error)),
    };
    BlockTombstones::decode(&bytes, name.ulid).map_err(|(what, version)| match version {
        Some(found) => StorageError::Version { file: path.display().to_string(), found, supported: VERSION },
        None => StorageError::corrupt(path, 0, what),
    })
}

fn decode_rows(cursor: &mut Cursor<'_>) -> Option<BlockTombstones> {
    let mut tombstones = BlockTombstones::default();
    let mut row = 0u32;
    for index in 0..cursor.varint()? {
        let step = cursor.varint_u32()?;
        if index > 0 && step == 0 {
            return None;
        }
        row = row.checked_add(step)?;
        let mut previous: Option<i64> = None;
        for _ in 0..cursor.varint()? {
            let min_ms = previous.unwrap_or(0).wrapping_add(cursor.signed()?);
            let max_ms = min_ms.checked_add_unsigned(cursor.varint()?)?;
            if previous.is_some_and(|previous| min_ms <= previous) {
                return None;
            }
            tombstones.add(row, min_ms, max_ms);
            previous = Some(max_ms);
        }
    }
    Some(tombstones)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use metricsstore_budget::Budget;
    use metricsstore_vfs::Files;
    use metricsstore_vfs::sim::SimFiles;

    use super::*;
    use crate::sync::atomic::Ordering::Relaxed;

    const DIR: &str = "/data";

    fn some() -> BlockTombstones {
        let mut tombstones = BlockTombstones::default();
        for (row, min_ms, max_ms) in [
            (0, -5, 5),
            (3, i64::MIN, i64::MIN + 3),
            (3, 0, 0),
            (3, i64::MAX - 9, i64::MAX),
            (u32::MAX, i64::MIN, i64::MAX),
        ] {
            tombstones.add(row, min_ms, max_ms);
        }
        tombstones
    }

    fn name() -> NamedBlock {
        NamedBlock { ulid: Ulid(77 << 80 | 5), format: Format::Native }
    }

    fn block_files(files: &SimFiles) -> BlockFiles {
        files.create_dir_all(&Path::new(DIR).join("blocks")).unwrap();
        files.create_dir_all(&Path::new(DIR).join("quarantine")).unwrap();
        let files: Arc<dyn Files> = Arc::new(files.clone());
        BlockFiles::new(&files, Path::new(DIR), &Budget::unlimited())
    }

    #[test]
    fn every_flipped_byte_and_every_cut_is_an_error() {
        let (tombstones, ulid) = (some(), name().ulid);
        let bytes = tombstones.encode(ulid);
        assert_eq!(BlockTombstones::decode(&bytes, ulid), Ok(tombstones));
        assert!(BlockTombstones::decode(&bytes, Ulid(1)).is_err(), "of another block");
        for at in 0..bytes.len() {
            assert!(BlockTombstones::decode(&bytes[..at], ulid).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert!(BlockTombstones::decode(&flipped, ulid).is_err(), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let mut tombstones = BlockTombstones::default();
        tombstones.add(2, 10, 20);
        tombstones.add(2, 30, 31);
        tombstones.add(5, -1, 200);
        let bytes = tombstones.encode(Ulid(1));
        let mut golden = b"MSBT\x01\x00\x00\x00\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01".to_vec();
        golden.extend_from_slice(&[2, 2, 2, 20, 10, 20, 1, 3, 1, 1, 0xc9, 1]);
        assert_eq!(&bytes[..bytes.len() - 4], golden);
    }

    #[test]
    fn a_crash_at_any_call_of_a_change_leaves_the_old_tombstones_or_the_new_ones() {
        let old = BlockTombstones { by_row: BTreeMap::from([(1, vec![(1, 2)])]) };
        let load = |files: &BlockFiles| BlockTombstones::load(files, name(), &Counters::default()).unwrap();
        let calls = {
            let sim = SimFiles::new(1);
            let files = block_files(&sim);
            assert!(load(&files).is_empty());
            old.store(&files, name()).unwrap();
            let before = sim.calls();
            some().store(&files, name()).unwrap();
            let calls = sim.calls() - before;
            assert_eq!(load(&files), some());
            calls
        };
        for call in 0..calls {
            let sim = SimFiles::new(call);
            let files = block_files(&sim);
            old.store(&files, name()).unwrap();
            sim.power_off_at(call);
            some().store(&files, name()).unwrap_err();
            let found = load(&block_files(&sim.crash()));
            assert!(found == old || found == some(), "call {call}: {found:?}");
        }
    }

    #[test]
    fn a_damaged_file_is_kept_aside_and_the_block_is_served() {
        let sim = SimFiles::new(1);
        let (files, counters) = (block_files(&sim), Counters::default());
        let path = files.tombstones_path(name());
        let file = sim.create(&path).unwrap();
        file.append(b"MSBT").unwrap();
        file.sync().unwrap();
        sim.sync_dir(&Path::new(DIR).join("blocks")).unwrap();
        assert!(BlockTombstones::load(&files, name(), &counters).unwrap().is_empty());
        assert_eq!(counters.quarantined.load(Relaxed), 1);
        assert_eq!(sim.list(&Path::new(DIR).join("quarantine")).unwrap().len(), 1);
        some().store(&files, name()).unwrap();
        assert_eq!(BlockTombstones::load(&files, name(), &counters).unwrap(), some());
    }
}
