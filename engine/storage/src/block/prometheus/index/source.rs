//! Reads an index file at places.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_vfs::{File, Files};

use crate::StorageError;

/// Bytes that are read at once where more is wanted soon.
pub(super) const READ_AHEAD: usize = 64 << 10;
/// The longest text or series that is believed.
pub(super) const MAX_ITEM_BYTES: usize = 64 << 20;

/// Bytes of a section that have one checksum in memory.
const PAGE_BYTES: u64 = 4 << 10;

/// An open file.
pub(super) struct Source {
    file: Arc<dyn File>,
    path: PathBuf,
    len: u64,
}

impl Source {
    pub(super) fn open(files: &dyn Files, path: &Path) -> Result<Source, StorageError> {
        let file = files.open(path).map_err(StorageError::io("open", path))?;
        let len = file.len().map_err(StorageError::io("read", path))?;
        Ok(Source { file, path: path.to_owned(), len })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn damaged(&self, offset: u64, what: impl Into<String>) -> StorageError {
        StorageError::corrupt(&self.path, offset, what)
    }

    /// Fills `buffer` from `offset`.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > self.len) {
            return Err(self.damaged(offset, "what should stand here lies beyond the end of the file"));
        }
        self.file.read_exact_at(buffer, offset).map_err(StorageError::io("read", &self.path))
    }

    /// The content of the section that begins at `offset`, and where it begins and ends, not yet verified.
    pub(super) fn section(&self, offset: u64) -> Result<Scan<'_>, StorageError> {
        let mut length = [0; 4];
        self.read(offset, &mut length)?;
        let start = offset + 4;
        let end = start + u64::from(u32::from_be_bytes(length));
        if end + 4 > self.len {
            return Err(self.damaged(offset, "a section is longer than the file"));
        }
        Ok(Scan {
            source: self,
            buffer: Vec::new(),
            at: 0,
            loaded: start,
            start,
            end,
            crc: 0,
            pages: Vec::new(),
        })
    }
}

/// Reads a section front to back and verifies it at its end.
pub(super) struct Scan<'s> {
    source: &'s Source,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were taken.
    at: usize,
    /// Offset in the file of the end of the buffer.
    loaded: u64,
    start: u64,
    end: u64,
    crc: u32,
    /// Checksums of the pages loaded so far.
    pages: Vec<u32>,
}

impl Scan<'_> {
    /// Offset in the file of what is taken next.
    pub(super) fn offset(&self) -> u64 {
        self.loaded - (self.buffer.len() - self.at) as u64
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> u64 {
        self.end - self.offset()
    }

    pub(super) fn damaged(&self, what: &str) -> StorageError {
        self.source.damaged(self.offset(), what)
    }

    /// Loads at least `bytes`, fewer only at the end.
    fn load(&mut self, bytes: usize) -> Result<(), StorageError> {
        let held = self.buffer.len() - self.at;
        if held >= bytes || self.loaded == self.end {
            return Ok(());
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        let more = (bytes - held).max(READ_AHEAD).min((self.end - self.loaded) as usize);
        self.buffer.resize(held + more, 0);
        self.source.read(self.loaded, &mut self.buffer[held..])?;
        self.sum(held);
        self.loaded += more as u64;
        Ok(())
    }

    /// Adds what was loaded behind `held` to the checksums.
    fn sum(&mut self, held: usize) {
        let mut bytes = &self.buffer[held..];
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        let mut filled = ((self.loaded - self.start) % PAGE_BYTES) as usize;
        while !bytes.is_empty() {
            if filled == 0 {
                self.pages.push(0);
            }
            let (page, rest) = bytes.split_at(bytes.len().min(PAGE_BYTES as usize - filled));
            if let Some(crc) = self.pages.last_mut() {
                *crc = crc32c::crc32c_append(*crc, page);
            }
            (bytes, filled) = (rest, 0);
        }
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<&[u8], StorageError> {
        if bytes > MAX_ITEM_BYTES || bytes as u64 > self.left() {
            return Err(self.damaged("an entry is longer than its section"));
        }
        self.load(bytes)?;
        self.at += bytes;
        Ok(&self.buffer[self.at - bytes..self.at])
    }

    pub(super) fn u32(&mut self) -> Result<u32, StorageError> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(super) fn varint(&mut self) -> Result<u64, StorageError> {
        self.load(10)?;
        let mut cursor = crate::bytes::Cursor::new(&self.buffer[self.at..]);
        let Some(value) = cursor.varint() else { return Err(self.damaged("a number is malformed")) };
        self.at += cursor.position();
        Ok(value)
    }

    /// A text with its length in front.
    pub(super) fn text(&mut self) -> Result<&str, StorageError> {
        let offset = self.offset();
        let length = self.varint()?;
        let source = self.source;
        let bytes = self.take(usize::try_from(length).unwrap_or(usize::MAX))?;
        std::str::from_utf8(bytes).map_err(|_| source.damaged(offset, "a text is not UTF-8"))
    }

    /// Reads what is left, compares the checksum, and gives what later reads of the section are verified by.
    pub(super) fn verify(mut self) -> Result<Pages, StorageError> {
        while self.loaded < self.end {
            self.at = self.buffer.len();
            self.load(READ_AHEAD)?;
        }
        let mut crc = [0; 4];
        self.source.read(self.end, &mut crc)?;
        if u32::from_be_bytes(crc) == self.crc {
            self.pages.shrink_to_fit();
            return Ok(Pages { start: self.start, end: self.end, crcs: self.pages });
        }
        Err(self.source.damaged(self.end, "a section does not match its checksum"))
    }
}

/// The content of a section that was verified once, with checksums to verify parts of it again.
#[derive(Default)]
pub(super) struct Pages {
    pub(super) start: u64,
    pub(super) end: u64,
    crcs: Vec<u32>,
}

impl Pages {
    /// Reads from `offset` to `end` in the file.
    pub(super) fn read(&self, source: &Source, offset: u64, end: u64) -> Result<Vec<u8>, StorageError> {
        if offset < self.start || end < offset || end > self.end {
            return Err(source.damaged(offset, "an entry lies outside its section"));
        }
        let first = (offset - self.start) / PAGE_BYTES;
        let page_start = self.start + first * PAGE_BYTES;
        let page_end = (self.start + (end - self.start).next_multiple_of(PAGE_BYTES)).min(self.end);
        let mut bytes = vec![0; (page_end - page_start) as usize];
        source.read(page_start, &mut bytes)?;
        for (page, crc) in bytes.chunks(PAGE_BYTES as usize).zip(&self.crcs[first as usize..]) {
            if crc32c::crc32c(page) != *crc {
                return Err(source.damaged(offset, "the file is not what it was when the block was opened"));
            }
        }
        bytes.truncate((end - page_start) as usize);
        bytes.drain(..(offset - page_start) as usize);
        Ok(bytes)
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.crcs.capacity() * 4
    }
}

/// A part of the file that is held, for reads that go on where the last one ended.
pub(super) struct Window<'s> {
    source: &'s Source,
    read_ahead: usize,
    start: u64,
    bytes: Vec<u8>,
}

impl<'s> Window<'s> {
    pub(super) fn new(source: &'s Source) -> Window<'s> {
        Window { source, read_ahead: READ_AHEAD, start: 0, bytes: Vec::new() }
    }

    /// One that reads no more than it is asked for.
    pub(super) fn narrow(source: &'s Source) -> Window<'s> {
        Window { source, read_ahead: 0, start: 0, bytes: Vec::new() }
    }

    /// So many bytes at `offset`; where they are not held, they are read with what follows them.
    pub(super) fn get(&mut self, offset: u64, bytes: usize) -> Result<&[u8], StorageError> {
        let is_held = offset >= self.start
            && offset.saturating_add(bytes as u64) <= self.start + self.bytes.len() as u64;
        if !is_held {
            if bytes > MAX_ITEM_BYTES || offset.saturating_add(bytes as u64) > self.source.len() {
                return Err(self.source.damaged(offset, "an entry lies beyond the end of the file"));
            }
            let wanted = bytes.max(self.read_ahead).min((self.source.len() - offset) as usize);
            self.bytes.resize(wanted, 0);
            let read = self.source.read(offset, &mut self.bytes);
            self.start = offset;
            if read.is_err() {
                self.bytes.clear();
            }
            read?;
        }
        let at = (offset - self.start) as usize;
        Ok(&self.bytes[at..at + bytes])
    }

    /// The content of a section, verified.
    pub(super) fn section(&mut self, offset: u64) -> Result<&[u8], StorageError> {
        let head = self.get(offset, 4)?;
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let source = self.source;
        let bytes = self.get(offset + 4, length.saturating_add(4))?;
        let (content, crc) = bytes.split_at(length);
        if crc32c::crc32c(content).to_be_bytes() == *crc {
            return Ok(content);
        }
        Err(source.damaged(offset, "a section does not match its checksum"))
    }
}
