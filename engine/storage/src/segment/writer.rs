//! Writes a segment front to back in bounded memory.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_codec::timestamps;
use metricsstore_vfs::{File, Files};
use roaring::RoaringBitmap;

use super::{BLOCK_BYTES, BlockRef, END_MAGIC, HEADER_BYTES, Origin, block_crc, header};
use crate::StorageError;
use crate::bytes::{put_signed, put_varint};

/// A column to be written.
pub(crate) struct NewPiece<'b> {
    pub(crate) stream: u32,
    pub(crate) first_row: u32,
    pub(crate) rows: u32,
    pub(crate) payload: &'b [u8],
}

pub(crate) struct SegmentWriter {
    files: Arc<dyn Files>,
    file: Arc<dyn File>,
    dir: PathBuf,
    path: PathBuf,
    number: u64,
    origin: Origin,
    offset: u64,
    times: OpenBlock,
    series: OpenBlock,
    streams: u32,
    previous_series: u32,
    previous_stream: u32,
    members: RoaringBitmap,
    samples: u64,
    min_ms: i64,
    max_ms: i64,
}

/// A block that is being filled.
#[derive(Default)]
struct OpenBlock {
    entries: Vec<u8>,
    count: u64,
    payload: Vec<u8>,
    first: u32,
    written: Vec<BlockRef>,
}

impl OpenBlock {
    fn bytes(&self) -> usize {
        self.entries.len() + self.payload.len()
    }

    /// The block's bytes, with room for the checksum; empties it.
    fn take(&mut self) -> Vec<u8> {
        let mut block = vec![0; 4];
        put_varint(&mut block, self.count);
        block.append(&mut self.entries);
        block.append(&mut self.payload);
        self.count = 0;
        block
    }
}

impl SegmentWriter {
    /// Begins the file of a number that is not in use.
    pub(crate) fn create(
        files: &Arc<dyn Files>,
        dir: &Path,
        number: u64,
        origin: Origin,
    ) -> Result<SegmentWriter, StorageError> {
        let path = dir.join(format!("{number:08}"));
        let file = files.create(&path).map_err(StorageError::io("create", &path))?;
        file.append(&header(number)).map_err(StorageError::io("write", &path))?;
        Ok(SegmentWriter {
            files: Arc::clone(files),
            file,
            dir: dir.to_owned(),
            path,
            number,
            origin,
            offset: HEADER_BYTES as u64,
            times: OpenBlock::default(),
            series: OpenBlock::default(),
            streams: 0,
            previous_series: 0,
            previous_stream: 0,
            members: RoaringBitmap::new(),
            samples: 0,
            min_ms: i64::MAX,
            max_ms: i64::MIN,
        })
    }

    /// Number that the next timestamp stream gets.
    pub(crate) fn next_stream(&self) -> u32 {
        self.streams
    }

    /// Adds a timestamp stream and returns its number.
    pub(crate) fn add_times(&mut self, times: &[i64]) -> Result<u32, StorageError> {
        let stream = self.streams;
        if self.times.count == 0 {
            self.times.first = stream;
        }
        let encoded = timestamps::encode(times);
        put_varint(&mut self.times.entries, times.len() as u64);
        put_varint(&mut self.times.entries, encoded.len() as u64);
        self.times.payload.extend_from_slice(&encoded);
        self.times.count += 1;
        self.streams += 1;
        if self.times.bytes() >= BLOCK_BYTES {
            flush(&*self.file, &self.path, self.number, &mut self.offset, &mut self.times)?;
        }
        Ok(stream)
    }

    /// Adds a series, later than the one before by id, with all its pieces.
    pub(crate) fn add_series(&mut self, series: u32, pieces: &[NewPiece<'_>]) -> Result<(), StorageError> {
        if pieces.is_empty() {
            return Ok(());
        }
        if self.series.count == 0 {
            self.series.first = series;
            self.previous_series = 0;
            self.previous_stream = 0;
        }
        let block = &mut self.series;
        for piece in pieces {
            put_varint(&mut block.entries, u64::from(series - self.previous_series));
            put_signed(&mut block.entries, i64::from(piece.stream) - i64::from(self.previous_stream));
            put_varint(&mut block.entries, u64::from(piece.first_row));
            put_varint(&mut block.entries, u64::from(piece.rows));
            put_varint(&mut block.entries, piece.payload.len() as u64);
            block.payload.extend_from_slice(piece.payload);
            block.count += 1;
            self.previous_series = series;
            self.previous_stream = piece.stream;
        }
        self.members.insert(series);
        if self.series.bytes() >= BLOCK_BYTES {
            flush(&*self.file, &self.path, self.number, &mut self.offset, &mut self.series)?;
        }
        Ok(())
    }

    /// Counts samples in, with the smallest and the largest of their timestamps.
    pub(crate) fn count(&mut self, samples: u64, min_ms: i64, max_ms: i64) {
        self.samples += samples;
        self.min_ms = self.min_ms.min(min_ms);
        self.max_ms = self.max_ms.max(max_ms);
    }

    /// Writes the index and makes file and name durable.
    pub(crate) fn finish(mut self) -> Result<u64, StorageError> {
        for block in [&mut self.times, &mut self.series] {
            if block.count > 0 {
                flush(&*self.file, &self.path, self.number, &mut self.offset, block)?;
            }
        }
        let index = self.index()?;
        let mut footer = Vec::new();
        footer.extend_from_slice(&self.offset.to_le_bytes());
        footer.extend_from_slice(&(index.len() as u32).to_le_bytes());
        footer.extend_from_slice(&block_crc(self.number, self.offset, &index).to_le_bytes());
        footer.extend_from_slice(END_MAGIC);
        let crc = crc32c::crc32c(&footer);
        footer.extend_from_slice(&crc.to_le_bytes());
        self.file.append(&index).map_err(StorageError::io("write", &self.path))?;
        self.file.append(&footer).map_err(StorageError::io("write", &self.path))?;
        self.file.sync().map_err(StorageError::io("sync", &self.path))?;
        self.files.sync_dir(&self.dir).map_err(StorageError::io("sync", &self.dir))?;
        Ok(self.number)
    }

    fn index(&mut self) -> Result<Vec<u8>, StorageError> {
        let mut index = Vec::new();
        put_varint(&mut index, self.origin.place);
        put_varint(&mut index, self.origin.log_floor);
        put_varint(&mut index, self.origin.replaces.len() as u64);
        self.origin.replaces.iter().for_each(|&number| put_varint(&mut index, number));
        put_signed(&mut index, self.min_ms);
        put_signed(&mut index, self.max_ms);
        put_varint(&mut index, self.samples);
        for block in [&self.times, &self.series] {
            put_varint(&mut index, block.written.len() as u64);
            let mut previous = BlockRef { first: 0, offset: 0, bytes: 0 };
            for &written in &block.written {
                put_varint(&mut index, u64::from(written.first - previous.first));
                put_varint(&mut index, written.offset - previous.offset);
                put_varint(&mut index, u64::from(written.bytes));
                previous = written;
            }
        }
        self.members.optimize();
        self.members.serialize_into(&mut index).map_err(StorageError::io("write", &self.path))?;
        Ok(index)
    }
}

fn flush(
    file: &dyn File,
    path: &Path,
    number: u64,
    offset: &mut u64,
    open: &mut OpenBlock,
) -> Result<(), StorageError> {
    let first = open.first;
    let mut block = open.take();
    let crc = block_crc(number, *offset, &block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
    file.append(&block).map_err(StorageError::io("write", path))?;
    open.written.push(BlockRef { first, offset: *offset, bytes: block.len() as u32 });
    *offset += block.len() as u64;
    Ok(())
}
