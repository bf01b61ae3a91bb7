//! Opens a segment: the index stays in memory, blocks are read when needed.
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_budget::{Budget, Part};
use metricsstore_vfs::{File, Files};
use roaring::RoaringBitmap;

use super::{
    BlockRef, END_MAGIC, FOOTER_BYTES, HEADER_BYTES, MAGIC, MAX_BLOCK_BYTES, Origin, VERSION, block_crc,
};
use crate::StorageError;
use crate::bytes::Cursor;

/// An open segment. Its file may be removed while it is read.
pub(crate) struct Segment {
    pub(crate) number: u64,
    /// Samples before stand in blocks and are not read from here any more; `i64::MIN` for none.
    pub(crate) from_ms: i64,
    /// No sample that is read from here is older.
    pub(crate) min_ms: i64,
    /// The series that have samples that are read from here; others are not read.
    pub(crate) series: Arc<RoaringBitmap>,
    content: Arc<Content>,
}

/// What is in the file.
pub(crate) struct Content {
    pub(crate) origin: Origin,
    /// Oldest and newest sample.
    pub(crate) min_ms: i64,
    pub(crate) max_ms: i64,
    pub(crate) samples: u64,
    /// Length of the file.
    pub(crate) bytes: u64,
    /// The series that have samples in it, those that are read from blocks included.
    pub(crate) all_series: Arc<RoaringBitmap>,
    pub(super) times: Vec<BlockRef>,
    pub(super) blocks: Vec<BlockRef>,
    /// Columns of each kind, by [`crate::kinds::Kind`].
    pub(super) kinds: [KindDirectory; 2],
    file: Arc<dyn File>,
    path: PathBuf,
    budget: Budget,
    counted: u64,
}

impl Deref for Segment {
    type Target = Content;

    fn deref(&self) -> &Content {
        &self.content
    }
}

/// Where the columns of one kind are.
#[derive(Default)]
pub(super) struct KindDirectory {
    pub(super) blocks: Vec<BlockRef>,
    pub(super) series: RoaringBitmap,
}

impl KindDirectory {
    fn bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<BlockRef>() + self.series.serialized_size()
    }
}

struct Index {
    origin: Origin,
    min_ms: i64,
    max_ms: i64,
    samples: u64,
    times: Vec<BlockRef>,
    blocks: Vec<BlockRef>,
    series: RoaringBitmap,
    kinds: [KindDirectory; 2],
}

impl Segment {
    pub(crate) fn open(
        files: &Arc<dyn Files>,
        dir: &Path,
        number: u64,
        budget: &Budget,
    ) -> Result<Segment, StorageError> {
        let path = dir.join(format!("{number:08}"));
        let file = files.open(&path).map_err(StorageError::io("open", &path))?;
        let bytes = file.len().map_err(StorageError::io("read", &path))?;
        check_header(&*file, &path, number, bytes)?;
        let index = read_index(&*file, &path, number, bytes)?;
        let counted = (index.times.capacity() + index.blocks.capacity()) * size_of::<BlockRef>()
            + index.series.serialized_size()
            + index.kinds.iter().map(KindDirectory::bytes).sum::<usize>();
        budget.add(Part::Segments, counted as u64);
        let content = Content {
            origin: index.origin,
            min_ms: index.min_ms,
            max_ms: index.max_ms,
            samples: index.samples,
            bytes,
            all_series: Arc::new(index.series),
            times: index.times,
            blocks: index.blocks,
            kinds: index.kinds,
            file,
            path,
            budget: budget.clone(),
            counted: counted as u64,
        };
        let (min_ms, series) = (content.min_ms, Arc::clone(&content.all_series));
        Ok(Segment { number, from_ms: i64::MIN, min_ms, series, content: Arc::new(content) })
    }

    /// The same without the samples before `from_ms`. Those that are left begin at `min_ms` or later, and these series
    /// have some.
    pub(crate) fn cut(&self, from_ms: i64, min_ms: i64, series: RoaringBitmap) -> Segment {
        Segment {
            number: self.number,
            from_ms,
            min_ms: min_ms.max(from_ms).max(self.min_ms),
            series: Arc::new(series),
            content: Arc::clone(&self.content),
        }
    }

    /// Oldest sample in the file, whatever is read from it.
    pub(crate) fn first_ms(&self) -> i64 {
        self.content.min_ms
    }

    /// Its file, for messages.
    pub(crate) fn name(&self) -> String {
        format!("segments/{:08}", self.number)
    }

    /// Damage that cannot be told more exactly.
    pub(crate) fn damaged(&self, what: &str) -> StorageError {
        StorageError::corrupt(&self.path, 0, what)
    }

    pub(super) fn damaged_at(&self, offset: u64, what: &str) -> StorageError {
        StorageError::corrupt(&self.path, offset, what)
    }

    /// Reads a block's content into `content`.
    pub(super) fn read_block(&self, block: BlockRef, content: &mut Vec<u8>) -> Result<(), StorageError> {
        let mut crc = [0; 4];
        let read = StorageError::io;
        self.file.read_exact_at(&mut crc, block.offset).map_err(read("read", &self.path))?;
        content.resize(block.bytes as usize - 4, 0);
        self.file.read_exact_at(content, block.offset + 4).map_err(read("read", &self.path))?;
        if block_crc(self.number, block.offset, content) == u32::from_le_bytes(crc) {
            return Ok(());
        }
        Err(self.damaged_at(block.offset, "a block does not match its checksum"))
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        self.budget.sub(Part::Segments, self.counted);
    }
}

fn check_header(file: &dyn File, path: &Path, number: u64, bytes: u64) -> Result<(), StorageError> {
    if bytes < (HEADER_BYTES + FOOTER_BYTES) as u64 {
        return Err(StorageError::corrupt(path, bytes, "the file is cut short"));
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).map_err(StorageError::io("read", path))?;
    let mut cursor = Cursor::new(&header);
    let fields = (cursor.take(4), cursor.u32(), cursor.u64(), cursor.u32());
    let (Some(magic), Some(version), Some(found), Some(crc)) = fields else {
        return Err(StorageError::corrupt(path, 0, "the header is cut short"));
    };
    if magic != MAGIC || found != number || crc32c::crc32c(&header[..HEADER_BYTES - 4]) != crc {
        return Err(StorageError::corrupt(path, 0, "this is not the header of this segment"));
    }
    if version != VERSION {
        let file = path.display().to_string();
        return Err(StorageError::Version { file, found: version, supported: VERSION });
    }
    Ok(())
}

fn read_index(file: &dyn File, path: &Path, number: u64, bytes: u64) -> Result<Index, StorageError> {
    let footer_at = bytes - FOOTER_BYTES as u64;
    let mut footer = [0; FOOTER_BYTES];
    file.read_exact_at(&mut footer, footer_at).map_err(StorageError::io("read", path))?;
    let mut cursor = Cursor::new(&footer);
    let fields = (cursor.u64(), cursor.u32(), cursor.u32(), cursor.take(4), cursor.u32());
    let (Some(offset), Some(length), Some(index_crc), Some(magic), Some(crc)) = fields else {
        return Err(StorageError::corrupt(path, footer_at, "the footer is cut short"));
    };
    if magic != END_MAGIC || crc32c::crc32c(&footer[..FOOTER_BYTES - 4]) != crc {
        return Err(StorageError::corrupt(path, footer_at, "the footer does not match its checksum"));
    }
    if u64::from(length) > MAX_BLOCK_BYTES || offset.checked_add(u64::from(length)) != Some(footer_at) {
        return Err(StorageError::corrupt(path, footer_at, "the footer names an impossible index"));
    }
    let mut index = vec![0; length as usize];
    file.read_exact_at(&mut index, offset).map_err(StorageError::io("read", path))?;
    if block_crc(number, offset, &index) != index_crc {
        return Err(StorageError::corrupt(path, offset, "the index does not match its checksum"));
    }
    decode_index(&index, offset).ok_or_else(|| StorageError::corrupt(path, offset, "the index is malformed"))
}

fn decode_index(bytes: &[u8], end: u64) -> Option<Index> {
    let mut cursor = Cursor::new(bytes);
    let (place, log_floor, count) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
    let replaces = (0..count).map(|_| cursor.varint()).collect::<Option<Vec<u64>>>()?;
    let origin = Origin { place, log_floor, replaces };
    let (min_ms, max_ms, samples) = (cursor.signed()?, cursor.signed()?, cursor.varint()?);
    let times = decode_blocks(&mut cursor, end)?;
    let blocks = decode_blocks(&mut cursor, end)?;
    let (histograms, starts) = (decode_blocks(&mut cursor, end)?, decode_blocks(&mut cursor, end)?);
    let mut rest = &bytes[cursor.position()..];
    let mut bitmap = || RoaringBitmap::deserialize_from(&mut rest).ok();
    let series = bitmap()?;
    let histograms = KindDirectory { blocks: histograms, series: bitmap()? };
    let starts = KindDirectory { blocks: starts, series: bitmap()? };
    Some(Index { origin, min_ms, max_ms, samples, times, blocks, series, kinds: [histograms, starts] })
}

/// Blocks in ascending order, each within the file.
fn decode_blocks(cursor: &mut Cursor<'_>, end: u64) -> Option<Vec<BlockRef>> {
    let count = cursor.varint()?;
    let mut blocks = Vec::new();
    let mut previous = BlockRef { first: 0, offset: 0, bytes: 0 };
    for _ in 0..count {
        let first = previous.first.checked_add(cursor.varint_u32()?)?;
        let offset = previous.offset.checked_add(cursor.varint()?)?;
        let bytes = cursor.varint_u32().filter(|&bytes| bytes >= 4 && u64::from(bytes) <= MAX_BLOCK_BYTES)?;
        if offset.checked_add(u64::from(bytes))? > end {
            return None;
        }
        previous = BlockRef { first, offset, bytes };
        blocks.push(previous);
    }
    blocks.shrink_to_fit();
    Some(blocks)
}
