//! Writes a segment front to back in bounded memory.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_codec::timestamps;
use metricsstore_vfs::{File, Files};
use roaring::RoaringBitmap;

use super::{BLOCK_BYTES, BlockRef, END_MAGIC, HEADER_BYTES, Origin, block_crc, header};
use crate::StorageError;
use crate::bytes::{put_signed, put_varint};
use crate::kinds::{Kind, KindColumn};

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
    /// Columns of each kind, by [`Kind`].
    kinds: [KindBlocks; 2],
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

/// Columns of one kind.
#[derive(Default)]
struct KindBlocks {
    open: OpenBlock,
    previous_series: u32,
    members: RoaringBitmap,
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
            kinds: <[KindBlocks; 2]>::default(),
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

    /// Adds the column of a kind of a series, later than the one before of this kind by id.
    pub(crate) fn add_kind(
        &mut self,
        kind: Kind,
        series: u32,
        column: &KindColumn,
    ) -> Result<(), StorageError> {
        let KindBlocks { open, previous_series, members } = &mut self.kinds[kind as usize];
        if open.count == 0 {
            open.first = series;
            *previous_series = 0;
        }
        put_varint(&mut open.entries, u64::from(series - *previous_series));
        put_signed(&mut open.entries, column.min_ms);
        put_varint(&mut open.entries, column.max_ms.wrapping_sub(column.min_ms) as u64);
        put_varint(&mut open.entries, column.entries);
        put_varint(&mut open.entries, column.payload.len() as u64);
        open.payload.extend_from_slice(&column.payload);
        open.count += 1;
        *previous_series = series;
        members.insert(series);
        if kind == Kind::Histograms {
            self.members.insert(series);
        }
        if open.bytes() >= BLOCK_BYTES {
            flush(&*self.file, &self.path, self.number, &mut self.offset, open)?;
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
        let [histograms, starts] = &mut self.kinds;
        for block in [&mut self.times, &mut self.series, &mut histograms.open, &mut starts.open] {
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
        let [histograms, starts] = &self.kinds;
        for block in [&self.times, &self.series, &histograms.open, &starts.open] {
            put_varint(&mut index, block.written.len() as u64);
            let mut previous = BlockRef { first: 0, offset: 0, bytes: 0 };
            for &written in &block.written {
                put_varint(&mut index, u64::from(written.first - previous.first));
                put_varint(&mut index, written.offset - previous.offset);
                put_varint(&mut index, u64::from(written.bytes));
                previous = written;
            }
        }
        let [histograms, starts] = &mut self.kinds;
        for members in [&mut self.members, &mut histograms.members, &mut starts.members] {
            members.optimize();
            members.serialize_into(&mut index).map_err(StorageError::io("write", &self.path))?;
        }
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
