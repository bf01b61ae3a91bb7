//! `chunks_head`: chunks that Prometheus wrote from its head, to read them memory-mapped.
//!
//! ```text
//! file    01 30 bc 91 | version 1 | 0 0 0 | chunks, then zeros
//! chunk   reference of the series u64 | first ms u64 | last ms u64 | late:1 encoding:7 | length uvarint | data |
//!         CRC32C of all that u32; all big endian
//! ```
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_codec::checksum::crc32c;
use metricsstore_codec::varint;
use metricsstore_vfs::{File, Files};

use super::report::Report;
use crate::StorageError;
use crate::block::prometheus::chunk::Encoding;

const MAGIC: [u8; 4] = [0x01, 0x30, 0xbc, 0x91];
const VERSION: u8 = 1;
const FILE_HEADER: u64 = 8;
const FIXED_BYTES: usize = 8 + 8 + 8 + 1;
const MAX_LENGTH_BYTES: usize = 5;
const CRC_BYTES: usize = 4;
const LATE: u8 = 0x80;
const MAX_CHUNK_BYTES: usize = 8 << 20;
/// Bytes that are read at once.
const READ_BYTES: u64 = 256 << 10;
/// Damaged chunks in a row before the rest of a file is given up: where one ends, another must begin.
const MAX_DAMAGED: u32 = 2;

/// A chunk, its checksum verified.
pub(super) struct HeadChunk<'d> {
    pub(super) reference: u64,
    pub(super) max_ms: i64,
    /// Whether its samples came late, so that the log of late samples holds them, too.
    pub(super) is_late: bool,
    pub(super) encoding: Encoding,
    pub(super) data: &'d [u8],
}

/// Takes chunks, and how many bytes were read since the last time.
pub(super) trait Chunks {
    /// Says what is wrong with a chunk if it is none.
    fn chunk(&mut self, chunk: &HeadChunk) -> Result<Result<(), &'static str>, StorageError>;
    fn read(&mut self, bytes: u64);
}

/// Hands the chunks of these files to `chunks`. That the newest file ends in the middle of a chunk is normal.
pub(super) fn read_files(
    files: &dyn Files,
    segments: &[(u64, PathBuf, u64)],
    report: &mut Report,
    chunks: &mut dyn Chunks,
) -> Result<(), StorageError> {
    for (index, (_, path, len)) in segments.iter().enumerate() {
        let file = files.open(path).map_err(StorageError::io("open", path))?;
        let is_newest = index + 1 == segments.len();
        let mut window = Window { file, path, len: *len, start: 0, bytes: Vec::new() };
        read_file(&mut window, is_newest, report, chunks)?;
    }
    Ok(())
}

fn read_file(
    window: &mut Window,
    is_newest: bool,
    report: &mut Report,
    chunks: &mut dyn Chunks,
) -> Result<(), StorageError> {
    let (path, mut offset) = (window.path, FILE_HEADER);
    let header = window.at(0, FILE_HEADER as usize)?;
    if header.iter().all(|&byte| byte == 0) {
        return Ok(()); // Empty, or space that was set aside and never used.
    }
    if header.len() < FILE_HEADER as usize || header[..4] != MAGIC || header[4] != VERSION {
        report.damage(path, 0, "not a file of head chunks of version 1");
        return Ok(());
    }
    // Damage that nothing follows may be where the last process died.
    let mut damaged = Vec::new();
    while offset < window.len && damaged.len() < MAX_DAMAGED as usize {
        let (what, next) = match parse(window, offset)? {
            Parsed::End => break,
            Parsed::Chunk(length) => {
                let bytes = window.at(offset, length)?;
                chunks.read(length as u64);
                match head_chunk(bytes) {
                    Some(chunk) => {
                        for (offset, what) in damaged.drain(..) {
                            report.damage(path, offset, what);
                        }
                        (chunks.chunk(&chunk)?.err(), offset + length as u64)
                    }
                    None => (Some("a chunk whose checksum or encoding is damaged"), offset + length as u64),
                }
            }
            Parsed::Cut => (Some("a chunk without its end"), window.len),
        };
        damaged.extend(what.map(|what| (offset, what)));
        offset = next;
    }
    if !is_newest || offset < window.len {
        for (offset, what) in damaged {
            report.damage(path, offset, what);
        }
    }
    Ok(())
}

enum Parsed {
    /// Bytes of it in all.
    Chunk(usize),
    Cut,
    End,
}

fn parse(window: &mut Window, offset: u64) -> Result<Parsed, StorageError> {
    let head = window.at(offset, FIXED_BYTES + MAX_LENGTH_BYTES)?;
    if head.iter().take(FIXED_BYTES).all(|&byte| byte == 0) {
        return Ok(Parsed::End);
    }
    let Some(mut rest) = head.get(FIXED_BYTES..) else { return Ok(Parsed::Cut) };
    let (held, length) = (rest.len(), varint::take(&mut rest));
    let length = length.ok().and_then(|length| usize::try_from(length).ok());
    let Some(length) = length.filter(|&length| length <= MAX_CHUNK_BYTES) else { return Ok(Parsed::Cut) };
    let length = FIXED_BYTES + (held - rest.len()) + length + CRC_BYTES;
    Ok(if length as u64 > window.len - offset { Parsed::Cut } else { Parsed::Chunk(length) })
}

/// A whole chunk, its checksum behind it.
fn head_chunk(bytes: &[u8]) -> Option<HeadChunk<'_>> {
    let (covered, crc) = bytes.split_last_chunk::<CRC_BYTES>()?;
    let (&reference, rest) = covered.split_first_chunk()?;
    let (_, rest) = rest.split_first_chunk::<8>()?;
    let (&max_ms, rest) = rest.split_first_chunk()?;
    let (&encoding, mut data) = rest.split_first()?;
    varint::take(&mut data).ok()?;
    (crc32c(covered) == u32::from_be_bytes(*crc)).then_some(())?;
    Some(HeadChunk {
        reference: u64::from_be_bytes(reference),
        max_ms: i64::from_be_bytes(max_ms),
        is_late: encoding & LATE != 0,
        encoding: Encoding::from_number(encoding & !LATE)?,
        data,
    })
}

/// A part of a file in memory.
struct Window<'p> {
    file: Arc<dyn File>,
    path: &'p Path,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// The bytes there; fewer at the end of the file.
    fn at(&mut self, offset: u64, length: usize) -> Result<&[u8], StorageError> {
        let end = (offset + length as u64).min(self.len);
        if offset < self.start || end > self.start + self.bytes.len() as u64 {
            let read = READ_BYTES.max(end - offset).min(self.len - offset);
            self.bytes.resize(read as usize, 0);
            self.start = offset;
            let result = self.file.read_exact_at(&mut self.bytes, offset);
            result.map_err(StorageError::io("read", self.path))?;
        }
        let start = (offset - self.start) as usize;
        Ok(&self.bytes[start..start + (end - offset) as usize])
    }
}
