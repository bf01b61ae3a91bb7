//! The reader: for replay, and for whoever else must look into a log file.
use std::path::Path;

use metricsstore_vfs::{File, Files};

use super::{FRAME_BYTES, HEADER_BYTES, MAGIC, MAX_BODY_BYTES, VERSION, frame_crc};
use crate::StorageError;

/// How the reading of one file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Every byte belongs to a valid frame.
    Whole,
    /// The file ends in a frame that was never completed: the normal trace of a crash.
    Torn {
        /// Where the incomplete frame begins.
        offset: u64,
    },
    /// Something is wrong that a crash does not explain.
    Damaged {
        /// Where.
        offset: u64,
        /// What.
        what: String,
    },
}

/// How many bytes of the file before were durable when this one was begun; `None` when that cannot be told, as after a
/// crash while it was created.
pub(crate) fn durable_before(files: &dyn Files, path: &Path, number: u64) -> Option<u64> {
    let file = files.open(path).ok()?;
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    check_header(&bytes, number).then(|| u64_at(&bytes, 16))
}

fn check_header(bytes: &[u8], number: u64) -> bool {
    &bytes[..4] == MAGIC && u64_at(bytes, 8) == number && crc32c::crc32c(&bytes[..24]) == u32_at(bytes, 24)
}

/// Reads the frames of `path` in order and hands `(offset, kind, body)` to `record`, which may refuse a body in words; the
/// first bad frame ends the reading. `durable` bytes must be there. Holds one frame in memory.
pub(crate) fn read_segment(
    files: &dyn Files,
    path: &Path,
    number: u64,
    durable: u64,
    mut record: impl FnMut(u64, u8, &[u8]) -> Result<(), RecordError>,
) -> Result<Outcome, StorageError> {
    let file = files.open(path).map_err(StorageError::io("open", path))?;
    let length = file.len().map_err(StorageError::io("read", path))?;
    let mut window = Window { file: &*file, length, start: 0, bytes: Vec::new() };
    let read = StorageError::io;
    let damaged = |offset, what: &str| Outcome::Damaged { offset, what: what.into() };
    if length < HEADER_BYTES as u64 {
        return Ok(if durable > 0 {
            damaged(length, "the header is cut short")
        } else {
            Outcome::Torn { offset: 0 }
        });
    }
    let header = window.at(0, HEADER_BYTES).map_err(read("read", path))?;
    let version = u32_at(header, 4);
    if !check_header(header, number) {
        let empty = durable == 0 && length == HEADER_BYTES as u64;
        return Ok(if empty { Outcome::Torn { offset: 0 } } else { damaged(0, "the header is damaged") });
    }
    if version != VERSION {
        let file = path.display().to_string();
        return Err(StorageError::Version { file, found: version, supported: VERSION });
    }
    let mut offset = HEADER_BYTES as u64;
    while offset < length {
        let frame = window.frame(offset, number).map_err(read("read", path))?;
        let Frame::Valid { kind, body_bytes, .. } = frame else {
            let lost =
                durable > offset || window.is_followed(offset, number, &frame).map_err(read("read", path))?;
            let what = "a record that was durable does not match its checksum";
            return Ok(if lost { damaged(offset, what) } else { Outcome::Torn { offset } });
        };
        let body = window.at(offset + FRAME_BYTES as u64, body_bytes).map_err(read("read", path))?;
        match record(offset, kind, body) {
            Ok(()) => {}
            Err(RecordError::Body(what)) => return Ok(Outcome::Damaged { offset, what }),
            Err(RecordError::Stop(error)) => return Err(error),
        }
        offset += (FRAME_BYTES + body_bytes) as u64;
    }
    if durable > length {
        return Ok(damaged(length, "the file is cut short"));
    }
    Ok(Outcome::Whole)
}

/// What a consumer of records says.
#[derive(Debug)]
pub(crate) enum RecordError {
    /// The body is damaged.
    Body(String),
    /// Reading must end for a reason that lies outside the file.
    Stop(StorageError),
}

enum Frame {
    Valid {
        kind: u8,
        body_bytes: usize,
        durable: u64,
    },
    /// It would reach beyond the end of the file.
    PastEnd,
    /// Complete by its length, but the checksum differs.
    Mismatch {
        bytes: u64,
    },
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// A forward-moving piece of the file.
struct Window<'f> {
    file: &'f dyn File,
    length: u64,
    start: u64,
    bytes: Vec<u8>,
}

const READ_AHEAD: usize = 256 << 10;

impl Window<'_> {
    fn at(&mut self, offset: u64, count: usize) -> std::io::Result<&[u8]> {
        let held = offset >= self.start && offset + count as u64 <= self.start + self.bytes.len() as u64;
        if !held {
            let wanted = count.max(READ_AHEAD).min((self.length - offset) as usize);
            self.bytes.resize(wanted, 0);
            self.start = offset;
            self.file.read_exact_at(&mut self.bytes, offset)?;
        }
        let from = (offset - self.start) as usize;
        Ok(&self.bytes[from..from + count])
    }

    fn frame(&mut self, offset: u64, number: u64) -> std::io::Result<Frame> {
        let left = self.length - offset;
        if left < FRAME_BYTES as u64 {
            return Ok(Frame::PastEnd);
        }
        let head = self.at(offset, FRAME_BYTES)?;
        let (body_bytes, crc) = (u32_at(head, 0) as usize, u32_at(head, 4));
        let (durable, kind) = (u64_at(head, 8), head[16]);
        let bytes = (FRAME_BYTES + body_bytes) as u64;
        if body_bytes > MAX_BODY_BYTES || bytes > left {
            return Ok(Frame::PastEnd);
        }
        let body = self.at(offset + FRAME_BYTES as u64, body_bytes)?;
        let valid = frame_crc(number, durable, kind, body) == crc;
        Ok(if valid { Frame::Valid { kind, body_bytes, durable } } else { Frame::Mismatch { bytes } })
    }

    /// Whether a valid frame behind the bad one at `offset` says that this one was durable.
    fn is_followed(&mut self, offset: u64, number: u64, bad: &Frame) -> std::io::Result<bool> {
        let Frame::Mismatch { bytes } = *bad else { return Ok(false) };
        let mut next = offset + bytes;
        while next < self.length {
            let bytes = match self.frame(next, number)? {
                Frame::Valid { durable, .. } if durable > offset => return Ok(true),
                Frame::Valid { body_bytes, .. } => (FRAME_BYTES + body_bytes) as u64,
                Frame::Mismatch { bytes } => bytes,
                Frame::PastEnd => return Ok(false),
            };
            next += bytes;
        }
        Ok(false)
    }
}
