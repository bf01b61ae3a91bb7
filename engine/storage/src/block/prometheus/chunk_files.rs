//! Files of chunks: `chunks/000001` and so on.
//!
//! ```text
//! file       85 bd 40 dd | version 1 | 0 0 0 | chunks
//! chunk      length of the data uvarint | encoding u8 | data | CRC32C of encoding and data u32, big endian
//! reference  number of the file, from 0, u32 | offset of the chunk in it u32
//! ```
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_codec::checksum::crc32c;
use metricsstore_codec::varint;
use metricsstore_vfs::{File, Files};

use super::chunk::{Chunk, Encoding};
use crate::StorageError;

const MAGIC: [u8; 4] = [0x85, 0xbd, 0x40, 0xdd];
const VERSION: u8 = 1;
const HEADER: [u8; 8] = [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], VERSION, 0, 0, 0];
/// Bytes of a file, at most.
const MAX_FILE_BYTES: u64 = 512 << 20;
/// Bytes of the data of a chunk, at most: twice of what ten histograms of the most buckets take.
const MAX_CHUNK_BYTES: usize = 8 << 20;
/// Bytes that are collected before they are written.
const WRITE_BYTES: usize = 256 << 10;
/// Bytes that are read for a chunk whose length is not known yet: most are shorter.
const READ_BYTES: u64 = 1280;
/// Length and encoding of a chunk, and its checksum.
const MAX_LENGTH_BYTES: usize = 5;
const CRC_BYTES: usize = 4;
/// Files of a block, at most: 8 TiB.
const MAX_FILES: usize = 1 << 14;

/// Writes the chunks of a block, in the order of its series.
pub(crate) struct ChunkWriter {
    files: Arc<dyn Files>,
    dir: PathBuf,
    max_file_bytes: u64,
    open: Option<OpenFile>,
    /// Files that are complete.
    finished: u64,
    bytes: u64,
}

struct OpenFile {
    path: PathBuf,
    file: Arc<dyn File>,
    /// With what is still in the buffer.
    len: u64,
    buffer: Vec<u8>,
}

impl ChunkWriter {
    /// Into a directory that is there and empty.
    pub(crate) fn new(files: Arc<dyn Files>, dir: PathBuf) -> ChunkWriter {
        ChunkWriter { files, dir, max_file_bytes: MAX_FILE_BYTES, open: None, finished: 0, bytes: 0 }
    }

    /// Shorter files than Prometheus makes.
    #[cfg(test)]
    pub(super) fn limit_files_to(&mut self, bytes: u64) {
        self.max_file_bytes = bytes;
    }

    /// Adds a chunk and returns its reference.
    pub(crate) fn add(&mut self, chunk: &Chunk) -> Result<u64, StorageError> {
        let longest = (MAX_LENGTH_BYTES + 1 + chunk.bytes.len() + CRC_BYTES) as u64;
        if self.open.as_ref().is_some_and(|open| open.len + longest > self.max_file_bytes) {
            self.finish_file()?;
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(OpenFile::create(&*self.files, &self.dir, self.finished + 1)?),
        };
        let reference = self.finished << 32 | open.len;
        let start = open.buffer.len();
        varint::put(&mut open.buffer, chunk.bytes.len() as u64);
        let covered = open.buffer.len();
        open.buffer.push(chunk.encoding as u8);
        open.buffer.extend_from_slice(&chunk.bytes);
        let crc = crc32c(&open.buffer[covered..]);
        open.buffer.extend_from_slice(&crc.to_be_bytes());
        open.len += (open.buffer.len() - start) as u64;
        if open.buffer.len() >= WRITE_BYTES {
            open.write()?;
        }
        Ok(reference)
    }

    /// Makes files and names durable; returns the bytes of all files.
    pub(crate) fn finish(mut self) -> Result<u64, StorageError> {
        self.finish_file()?;
        self.files.sync_dir(&self.dir).map_err(StorageError::io("sync", &self.dir))?;
        Ok(self.bytes)
    }

    fn finish_file(&mut self) -> Result<(), StorageError> {
        if let Some(mut open) = self.open.take() {
            open.write()?;
            open.file.sync().map_err(StorageError::io("sync", &open.path))?;
            self.finished += 1;
            self.bytes += open.len;
        }
        Ok(())
    }
}

impl OpenFile {
    fn create(files: &dyn Files, dir: &Path, number: u64) -> Result<OpenFile, StorageError> {
        let path = dir.join(file_name(number));
        let file = files.create(&path).map_err(StorageError::io("create", &path))?;
        Ok(OpenFile { path, file, len: HEADER.len() as u64, buffer: HEADER.to_vec() })
    }

    fn write(&mut self) -> Result<(), StorageError> {
        self.file.append(&self.buffer).map_err(StorageError::io("write", &self.path))?;
        self.buffer.clear();
        Ok(())
    }
}

fn file_name(number: u64) -> String {
    format!("{number:06}")
}

/// Reads the chunks of a block.
pub(crate) struct ChunkReader {
    /// By their number, from 0.
    files: Vec<Option<ChunkFile>>,
}

struct ChunkFile {
    path: PathBuf,
    file: Arc<dyn File>,
    len: u64,
}

impl ChunkReader {
    /// Opens all files of the directory `chunks` of a block.
    pub(crate) fn open(files: &dyn Files, dir: &Path) -> Result<ChunkReader, StorageError> {
        let mut opened = Vec::new();
        for entry in files.list(dir).map_err(StorageError::io("list", dir))? {
            let number = entry.name.parse::<usize>().ok().filter(|number| (1..=MAX_FILES).contains(number));
            let Some(number) = number.filter(|_| !entry.is_dir) else { continue };
            if opened.len() < number {
                opened.resize_with(number, || None);
            }
            opened[number - 1] = Some(ChunkFile::open(files, dir.join(&entry.name), entry.len)?);
        }
        Ok(ChunkReader { files: opened })
    }

    /// Puts the data of a chunk into `data`, cleared first.
    pub(crate) fn read(&self, reference: u64, data: &mut Vec<u8>) -> Result<Encoding, StorageError> {
        let (number, offset) = ((reference >> 32) as usize, reference & 0xffff_ffff);
        match self.files.get(number) {
            Some(Some(file)) => file.read(offset, data),
            _ => Err(StorageError::corrupt(
                Path::new(&file_name(number as u64 + 1)),
                offset,
                "there are chunks in a file that is missing",
            )),
        }
    }

    /// The files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().flatten().map(|file| &*file.path)
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().flatten().map(|file| file.len).sum()
    }
}

impl ChunkFile {
    fn open(files: &dyn Files, path: PathBuf, len: u64) -> Result<ChunkFile, StorageError> {
        let file = files.open(&path).map_err(StorageError::io("open", &path))?;
        let mut header = [0; HEADER.len()];
        if len < header.len() as u64 {
            return Err(StorageError::corrupt(&path, 0, "a file of chunks without a header"));
        }
        file.read_exact_at(&mut header, 0).map_err(StorageError::io("read", &path))?;
        if header[..4] != MAGIC {
            return Err(StorageError::corrupt(&path, 0, "not a file of chunks"));
        }
        if header[4] != VERSION {
            let (file, found) = (path.display().to_string(), u32::from(header[4]));
            return Err(StorageError::Version { file, found, supported: u32::from(VERSION) });
        }
        Ok(ChunkFile { path, file, len })
    }

    fn read(&self, offset: u64, data: &mut Vec<u8>) -> Result<Encoding, StorageError> {
        let corrupt = |what| StorageError::corrupt(&self.path, offset, what);
        if offset < HEADER.len() as u64 || offset >= self.len {
            return Err(corrupt("a chunk lies outside its file"));
        }
        let first = READ_BYTES.min(self.len - offset) as usize;
        data.clear();
        self.fill(data, first, offset)?;
        let mut rest = data.as_slice();
        let length = varint::take(&mut rest).ok().and_then(|length| usize::try_from(length).ok());
        let length = length.filter(|&length| length <= MAX_CHUNK_BYTES);
        let length = length.ok_or_else(|| corrupt("the length of a chunk is damaged"))?;
        let start = data.len() - rest.len();
        let end = start + 1 + length;
        if (end + CRC_BYTES) as u64 > self.len - offset {
            return Err(corrupt("a chunk reaches beyond the end of its file"));
        }
        self.fill(data, end + CRC_BYTES, offset)?;
        let crc = data[end..].first_chunk().map_or(0, |crc| u32::from_be_bytes(*crc));
        if crc32c(&data[start..end]) != crc {
            return Err(corrupt("the checksum of a chunk does not match"));
        }
        let encoding = Encoding::from_number(data[start]);
        data.truncate(end);
        data.drain(..=start);
        encoding.ok_or_else(|| corrupt("a chunk has an encoding that is not known"))
    }

    /// Reads on until `data` holds `len` bytes from `offset` on.
    fn fill(&self, data: &mut Vec<u8>, len: usize, offset: u64) -> Result<(), StorageError> {
        let held = data.len();
        if len > held {
            data.resize(len, 0);
            let read = self.file.read_exact_at(&mut data[held..], offset + held as u64);
            read.map_err(StorageError::io("read", &self.path))?;
        }
        Ok(())
    }
}
