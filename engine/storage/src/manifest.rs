//! The one atomic record of what is live, kept twice.
//!
//! ```text
//! manifest, manifest-2 (each written as *.tmp, synced, renamed, directory synced; in this order)
//! ┌────────┬─────────────┬────────────┬───────────┬───────────┬──────────────────────┬──────────┬────────┬────────────┐
//! │ "MSMF" │ version u32 │ generation │ next file │ log floor │ count, identity file │ segments │ blocks │ crc32c u32 │
//! │        │ LE = 1      │ varint     │ varint    │ varint    │ numbers, varints     │          │        │ LE         │
//! └────────┴─────────────┴────────────┴───────────┴───────────┴──────────────────────┴──────────┴────────┴────────────┘
//! segments  count varint, then for each in sealed order: number varint; zigzag(ms), varint: samples before stand in
//!           blocks (the least number there is: none do)
//! blocks    count varint, then for each: format u8 (1 native, 2 Prometheus), ULID 16 bytes big endian
//! ```
//! Files that it does not name are remains of unfinished work. The checksum covers everything before it.
//!
//! # Why one slot is enough
//! The newest valid slot counts. A change is committed when *both* slots have it; only then is anything removed that
//! the state before still named: inputs of a merge, files of the log, older identity files. So at any time, whichever
//! slot is lost:
//! - both are the same: the other one says the same;
//! - a crash came between the two: the first one names what is new, the second one what was there before, and the
//!   files of both are there. Where the first is lost, what it added is still in the log or in the inputs of the
//!   merge; where it counts, nothing the second one names is needed.
//!
//! So that the second case never lasts, a start brings both slots to the same state before it removes anything. A slot
//! can therefore neither bring deleted segments back nor lose sealed ones. Every store has both slots from its first
//! start on: where both are lost and there are files, [`crate::recover`] builds the manifest anew from them.
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use metricsstore_vfs::Files;

use crate::block::{Format, Ulid};
use crate::bytes::{Cursor, put_signed, put_varint};
use crate::counters::Counters;
use crate::segment::Segment;
use crate::{StorageError, quarantine};

/// In the order in which they are written.
pub(crate) const SLOTS: [&str; 2] = ["manifest", "manifest-2"];
const MAGIC: &[u8; 4] = b"MSMF";
const VERSION: u32 = 1;
/// A manifest is small; a longer file is damage.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Grows with every change.
    pub(crate) generation: u64,
    /// Number that the next segment or identity file gets.
    pub(crate) next_file: u64,
    /// First log file that is not wholly covered by segments.
    pub(crate) log_floor: u64,
    /// Identity files, to be loaded in this order.
    pub(crate) identity: Vec<u64>,
    /// Live segments, oldest samples of each series first.
    pub(crate) segments: Vec<NamedSegment>,
    /// Live blocks, in the order in which they are read.
    pub(crate) blocks: Vec<NamedBlock>,
}

/// A live segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamedSegment {
    pub(crate) number: u64,
    /// Samples before stand in blocks and are not read from the segment; `i64::MIN` for none.
    pub(crate) from_ms: i64,
}

impl From<&Segment> for NamedSegment {
    fn from(segment: &Segment) -> NamedSegment {
        NamedSegment { number: segment.number, from_ms: segment.from_ms }
    }
}

/// A live block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NamedBlock {
    pub(crate) ulid: Ulid,
    pub(crate) format: Format,
}

impl Manifest {
    pub(crate) fn empty() -> Manifest {
        Manifest {
            generation: 0,
            next_file: 1,
            log_floor: 1,
            identity: Vec::new(),
            segments: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// What the slots in `dir` say. A slot that cannot be believed is logged, counted and copied aside.
    pub(crate) fn load(files: &dyn Files, dir: &Path, counters: &Counters) -> Result<Loaded, StorageError> {
        let slots = Manifest::read_slots(files, dir);
        let newest = slots
            .iter()
            .filter_map(|(_, slot)| slot.as_ref().ok()?.as_ref())
            .max_by_key(|manifest| manifest.generation)
            .cloned();
        let agree = slots.iter().all(|(_, slot)| slot.as_ref().is_ok_and(|slot| *slot == newest));
        let (mut absent, mut failure) = (0, None);
        for (path, slot) in slots {
            match slot {
                Ok(Some(_)) => {}
                Ok(None) => absent += 1,
                Err(error @ StorageError::Version { .. }) => return Err(error),
                Err(error) => {
                    tracing::error!(%error, other_slot_serves = newest.is_some(), "a copy of the manifest is lost");
                    quarantine::copy(files, dir, &path, counters);
                    failure = failure.or(Some(error));
                }
            }
        }
        match (newest, failure) {
            (Some(manifest), _) => Ok(Loaded::Found { manifest, agree }),
            // What cannot be read now may be readable later.
            (None, Some(error @ StorageError::Io { .. })) => Err(error),
            (None, _) if absent == SLOTS.len() => Ok(Loaded::Absent),
            (None, _) => Ok(Loaded::Lost),
        }
    }

    /// Whether both slots say exactly this.
    pub(crate) fn is_in(&self, files: &dyn Files, dir: &Path) -> bool {
        let slots = Manifest::read_slots(files, dir);
        slots.iter().all(|(_, slot)| slot.as_ref().is_ok_and(|slot| slot.as_ref() == Some(self)))
    }

    fn read_slots(files: &dyn Files, dir: &Path) -> Vec<(PathBuf, Result<Option<Manifest>, StorageError>)> {
        let read = |path: &Path| match files.read(path, MAX_BYTES) {
            Ok(bytes) => Manifest::decode(&bytes, path).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::io("read", path)(error)),
        };
        let paths = SLOTS.iter().map(|name| dir.join(name));
        paths
            .map(|path| {
                let slot = read(&path);
                (path, slot)
            })
            .collect()
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        put_varint(&mut out, self.generation);
        put_varint(&mut out, self.next_file);
        put_varint(&mut out, self.log_floor);
        put_varint(&mut out, self.identity.len() as u64);
        for &number in &self.identity {
            put_varint(&mut out, number);
        }
        put_varint(&mut out, self.segments.len() as u64);
        for segment in &self.segments {
            put_varint(&mut out, segment.number);
            put_signed(&mut out, segment.from_ms);
        }
        put_varint(&mut out, self.blocks.len() as u64);
        for block in &self.blocks {
            out.push(block.format as u8);
            out.extend_from_slice(&block.ulid.0.to_be_bytes());
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
        let (generation, next_file, log_floor) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
        let count = cursor.varint()?;
        let identity = (0..count).map(|_| cursor.varint()).collect::<Option<_>>()?;
        let count = cursor.varint()?;
        let mut segment = || Some(NamedSegment { number: cursor.varint()?, from_ms: cursor.signed()? });
        let segments = (0..count).map(|_| segment()).collect::<Option<_>>()?;
        let count = cursor.varint()?;
        let blocks = (0..count).map(|_| decode_block(cursor)).collect::<Option<_>>()?;
        Some(Manifest { generation, next_file, log_floor, identity, segments, blocks })
    }

    /// Makes this the manifest of `dir`: in both slots, or it is an error.
    pub(crate) fn store(&self, files: &dyn Files, dir: &Path) -> Result<(), StorageError> {
        let bytes = self.encode();
        SLOTS.iter().try_for_each(|name| write_atomically(files, dir, name, &bytes))
    }
}

fn decode_block(cursor: &mut Cursor<'_>) -> Option<NamedBlock> {
    let (format, ulid) = cursor.take(17)?.split_first()?;
    let format = Format::ALL.into_iter().find(|&known| known as u8 == *format)?;
    Some(NamedBlock { ulid: Ulid(u128::from_be_bytes(ulid.try_into().ok()?)), format })
}

/// What a directory says of its manifest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Loaded {
    /// There is none: nothing was ever made durable here, or both slots were removed.
    Absent,
    /// The newest valid one.
    Found {
        manifest: Manifest,
        /// Whether both slots say so.
        agree: bool,
    },
    /// There was one.
    Lost,
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
    use std::sync::atomic::Ordering::Relaxed;

    use metricsstore_vfs::Files;
    use metricsstore_vfs::sim::{Call, Fault, SimFiles};

    use super::{Loaded, Manifest, NamedBlock, NamedSegment, SLOTS};
    use crate::block::{Format, Ulid};
    use crate::counters::Counters;

    const DIR: &str = "/data";

    fn manifest(generation: u64) -> Manifest {
        let segment = |number, from_ms| NamedSegment { number, from_ms };
        let block = |ulid, format| NamedBlock { ulid: Ulid(ulid), format };
        Manifest {
            generation,
            next_file: 900,
            log_floor: 7,
            identity: vec![1, 300],
            segments: vec![segment(2, -7), segment(4, i64::MIN)],
            blocks: vec![block(u128::MAX, Format::Native), block(5 << 90, Format::Prometheus)],
        }
    }

    fn dir() -> SimFiles {
        let files = SimFiles::new(1);
        files.create_dir_all(Path::new(DIR)).unwrap();
        files.create_dir_all(&Path::new(DIR).join("quarantine")).unwrap();
        files
    }

    fn load(files: &SimFiles) -> (Loaded, u64) {
        let counters = Counters::default();
        let loaded = Manifest::load(files, Path::new(DIR), &counters).unwrap();
        (loaded, counters.quarantined.load(Relaxed))
    }

    fn damage(files: &SimFiles, slot: &str) {
        let path = Path::new(DIR).join(slot);
        let mut bytes = files.read(&path, 1 << 20).unwrap();
        bytes[9] ^= 1;
        files.remove(&path).unwrap();
        let file = files.create(&path).unwrap();
        file.append(&bytes).unwrap();
        file.sync().unwrap();
    }

    #[test]
    fn every_flipped_byte_and_every_truncation_is_an_error() {
        let manifest = manifest(77);
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

    #[test]
    fn either_slot_alone_says_the_same_and_the_damaged_one_is_counted() {
        let files = dir();
        assert_eq!(load(&files), (Loaded::Absent, 0));
        manifest(5).store(&files, Path::new(DIR)).unwrap();
        assert_eq!(load(&files), (Loaded::Found { manifest: manifest(5), agree: true }, 0));
        for slot in SLOTS {
            let files = files.image();
            damage(&files, slot);
            assert_eq!(load(&files), (Loaded::Found { manifest: manifest(5), agree: false }, 1), "{slot}");
            assert_eq!(files.list(&Path::new(DIR).join("quarantine")).unwrap().len(), 1);
        }
        for slot in SLOTS {
            damage(&files, slot);
        }
        assert_eq!(load(&files), (Loaded::Lost, 2));
    }

    #[test]
    fn a_crash_at_any_call_of_a_change_leaves_the_old_state_or_the_new_one() {
        let calls = {
            let files = dir();
            manifest(5).store(&files, Path::new(DIR)).unwrap();
            let before = files.calls();
            manifest(6).store(&files, Path::new(DIR)).unwrap();
            files.calls() - before
        };
        for call in 0..calls {
            let files = dir();
            manifest(5).store(&files, Path::new(DIR)).unwrap();
            files.power_off_at(call);
            manifest(6).store(&files, Path::new(DIR)).unwrap_err();
            let (loaded, counted) = load(&files.crash());
            let Loaded::Found { manifest: found, .. } = loaded else { panic!("call {call}: {loaded:?}") };
            assert!(found == manifest(5) || found == manifest(6), "call {call}");
            assert_eq!(counted, 0, "call {call}");
        }
    }

    #[test]
    fn a_slot_that_cannot_be_read_is_no_reason_to_take_the_store_for_empty() {
        let files = dir();
        manifest(5).store(&files, Path::new(DIR)).unwrap();
        files.fail_when(Fault::Io, |call, path| {
            call == Call::Read && path.file_name().is_some_and(|name| name == "manifest")
        });
        assert_eq!(load(&files).0, Loaded::Found { manifest: manifest(5), agree: false });
        files.fail_when(Fault::Io, |call, _| call == Call::Read);
        assert!(Manifest::load(&files, Path::new(DIR), &Counters::default()).is_err());
    }
}
