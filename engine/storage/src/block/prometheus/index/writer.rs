//! Writes an index in one pass over series that come in order, in memory that does not grow with their number but with
//! that of label pairs: see [`super::pairs`]; beside them half a byte for each series, and [`LIST_BYTES`].
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_model::LabelBuf;
use metricsstore_vfs::{File, Files};
use roaring::RoaringBitmap;

use super::pairs::{Order, Pairs, varint_bytes};
use super::spool::Spool;
use super::{ChunkMeta, Contents, FILE_NAME, HEADER_BYTES, MAGIC, SERIES_ALIGN, VERSION};
use crate::StorageError;
use crate::bytes::{put_signed, put_varint};

/// Bytes of postings that are collected in one pass over the series.
const LIST_BYTES: usize = 2 << 20;
const BUFFER_BYTES: usize = 256 << 10;
/// Bytes of a postings list beside the references: length, count, checksum.
const LIST_OVERHEAD: u64 = 12;

pub(crate) struct IndexWriter {
    files: Arc<dyn Files>,
    path: PathBuf,
    spool: Spool,
    pairs: Pairs,
    last: LabelBuf,
    last_reference: Option<u64>,
    ids: Vec<u32>,
    chunks: Vec<u8>,
    series: u32,
    /// References that are collected in one pass over the series.
    references_at_once: usize,
}

impl IndexWriter {
    /// Begins the index in the directory of a block.
    pub(crate) fn create(files: &Arc<dyn Files>, dir: &Path) -> Result<IndexWriter, StorageError> {
        Ok(IndexWriter {
            files: Arc::clone(files),
            path: dir.join(FILE_NAME),
            spool: Spool::create(files, dir)?,
            pairs: Pairs::new(),
            last: LabelBuf::new(),
            last_reference: None,
            ids: Vec::new(),
            chunks: Vec::new(),
            series: 0,
            references_at_once: LIST_BYTES / 4,
        })
    }

    #[cfg(test)]
    pub(super) fn with_references_at_once(self, references_at_once: usize) -> IndexWriter {
        IndexWriter { references_at_once, ..self }
    }

    /// Adds a series, later than the one before by its labels, with all its chunks, oldest first. One that does not
    /// belong here is refused and leaves the index as it was.
    pub(crate) fn add(&mut self, labels: &LabelBuf, chunks: &[ChunkMeta]) -> Result<(), StorageError> {
        self.check_labels(labels)?;
        self.check_chunks(chunks).map_err(|what| self.refused(labels, what))?;
        self.ids.clear();
        for (name, value) in labels.iter() {
            self.ids.push(self.pairs.add(name, value));
        }
        self.chunks.clear();
        put_chunks(chunks, &mut self.chunks);
        self.spool.push(&self.ids, &self.chunks)?;
        self.last.clear();
        labels.iter().for_each(|(name, value)| self.last.push(name, value));
        self.last_reference = chunks.last().map(|chunk| chunk.reference).or(self.last_reference);
        self.series += 1;
        Ok(())
    }

    fn refused(&self, labels: &LabelBuf, what: &str) -> StorageError {
        StorageError::corrupt(&self.path, 0, format!("the series {labels} does not fit into it: {what}"))
    }

    /// Whether a series with these labels may come next.
    pub(crate) fn check_labels(&self, labels: &LabelBuf) -> Result<(), StorageError> {
        self.fits(labels).map_err(|what| self.refused(labels, what))
    }

    fn fits(&self, labels: &LabelBuf) -> Result<(), &'static str> {
        if labels.is_empty() {
            return Err("it has no labels");
        }
        if !labels.iter().is_sorted_by(|a, b| a.0 < b.0) {
            return Err("its labels are not sorted by name");
        }
        if labels.iter().any(|(name, value)| name.is_empty() || value.is_empty()) {
            return Err("a label is empty");
        }
        if self.series > 0 && *labels <= self.last {
            return Err("it comes after one that is not less");
        }
        if self.series == u32::MAX {
            return Err("there are too many series");
        }
        if !self.pairs.has_room(labels.iter().map(|(name, value)| name.len() + value.len()).sum()) {
            return Err("there is too much text");
        }
        Ok(())
    }

    fn check_chunks(&self, chunks: &[ChunkMeta]) -> Result<(), &'static str> {
        if chunks.iter().any(|chunk| chunk.min_ms > chunk.max_ms) {
            return Err("a chunk ends before it begins");
        }
        if !chunks.is_sorted_by(|a, b| a.max_ms < b.min_ms) {
            return Err("its chunks overlap");
        }
        let references = self.last_reference.into_iter().chain(chunks.iter().map(|chunk| chunk.reference));
        if !references.is_sorted_by(|a, b| a < b) {
            return Err("its chunks do not stand in its order");
        }
        Ok(())
    }

    /// Series so far.
    pub(crate) fn series(&self) -> u32 {
        self.series
    }

    /// Bytes of memory held.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.pairs.bytes() + self.chunks.capacity() + BUFFER_BYTES
    }

    /// Writes what is known now and makes the file durable. Gives its length in bytes.
    pub(crate) fn finish(mut self) -> Result<u64, StorageError> {
        let order = self.pairs.order();
        let mut out = Output::create(&*self.files, &self.path)?;
        out.put(&MAGIC)?;
        out.put(&[VERSION])?;
        self.put_symbols(&order, &mut out)?;
        let mut contents = Contents { symbols: HEADER_BYTES, series: out.offset, ..Contents::default() };
        let references = self.put_series(&order, &mut out)?;
        contents.label_indices = out.offset;
        contents.postings = out.offset;
        out.align(4)?;
        let lists_start = out.offset;
        self.put_postings(&order, &references, &mut out)?;
        contents.label_table = out.offset;
        contents.postings_table = out.offset;
        self.put_table(&order, lists_start, &mut out)?;
        out.put(&contents.encode())?;
        self.spool.remove()?;
        out.finish()
    }

    fn put_symbols(&self, order: &Order, out: &mut Output) -> Result<(), StorageError> {
        out.begin_section(4 + self.pairs.symbol_bytes())?;
        out.put(&(order.symbols.len() as u32).to_be_bytes())?;
        let mut entry = Vec::new();
        for &symbol in &order.symbols {
            entry.clear();
            put_text(self.pairs.text(symbol), &mut entry);
            out.put(&entry)?;
        }
        out.end_section()
    }

    /// Gives the references of the series.
    fn put_series(&mut self, order: &Order, out: &mut Output) -> Result<RoaringBitmap, StorageError> {
        let IndexWriter { spool, pairs, path, .. } = self;
        let (mut references, mut body, mut length) = (RoaringBitmap::new(), Vec::new(), Vec::new());
        spool.read(|entry| {
            out.align(SERIES_ALIGN)?;
            let reference = u32::try_from(out.offset / SERIES_ALIGN).map_err(|_| {
                StorageError::corrupt(path, out.offset, "an index cannot be larger than 64 GiB")
            })?;
            references.insert(reference);
            body.clear();
            put_varint(&mut body, entry.pairs.len() as u64);
            for &id in entry.pairs {
                let pair = pairs.pair(id);
                put_varint(&mut body, u64::from(order.places[pair.name as usize]));
                put_varint(&mut body, u64::from(order.places[pair.value as usize]));
            }
            body.extend_from_slice(entry.chunks);
            length.clear();
            put_varint(&mut length, body.len() as u64);
            out.put(&length)?;
            let crc = crc32c::crc32c(&body).to_be_bytes();
            out.put(&body)?;
            out.put(&crc)
        })?;
        Ok(references)
    }

    fn put_postings(
        &mut self,
        order: &Order,
        references: &RoaringBitmap,
        out: &mut Output,
    ) -> Result<(), StorageError> {
        out.begin_list(self.series)?;
        for reference in references {
            out.put(&reference.to_be_bytes())?;
        }
        out.end_section()?;
        let mut rest = &order.pairs[..];
        while !rest.is_empty() {
            let (mut lists, mut room) = (0, self.references_at_once);
            for &pair in rest {
                let series = self.pairs.pair(pair).series as usize;
                if series > room {
                    break;
                }
                room -= series;
                lists += 1;
            }
            let (part, after) = rest.split_at(lists.max(1));
            if lists == 0 {
                self.put_long_list(part[0], references, out)?;
            } else {
                self.put_lists(part, references, out)?;
            }
            rest = after;
        }
        Ok(())
    }

    /// Collects the lists of some pairs and writes them.
    fn put_lists(
        &mut self,
        part: &[u32],
        references: &RoaringBitmap,
        out: &mut Output,
    ) -> Result<(), StorageError> {
        const OTHER: u32 = u32::MAX;
        let IndexWriter { spool, pairs, .. } = self;
        // Where the next series of each pair goes.
        let mut places = vec![OTHER; pairs.len()];
        let mut total = 0;
        for &pair in part {
            places[pair as usize] = total;
            total += pairs.pair(pair).series;
        }
        let mut lists = vec![0u32; total as usize];
        let mut next = references.iter();
        spool.read(|entry| {
            let reference = next.next().unwrap_or_default();
            for &pair in entry.pairs {
                let place = &mut places[pair as usize];
                if *place != OTHER {
                    lists[*place as usize] = reference;
                    *place += 1;
                }
            }
            Ok(())
        })?;
        let mut rest = &lists[..];
        for &pair in part {
            let (list, after) = rest.split_at(pairs.pair(pair).series as usize);
            rest = after;
            out.begin_list(list.len() as u32)?;
            for reference in list {
                out.put(&reference.to_be_bytes())?;
            }
            out.end_section()?;
        }
        Ok(())
    }

    /// Writes a list that is too long to be collected.
    fn put_long_list(
        &mut self,
        pair: u32,
        references: &RoaringBitmap,
        out: &mut Output,
    ) -> Result<(), StorageError> {
        out.begin_list(self.pairs.pair(pair).series)?;
        let mut next = references.iter();
        self.spool.read(|entry| {
            let reference = next.next().unwrap_or_default();
            if entry.pairs.contains(&pair) { out.put(&reference.to_be_bytes()) } else { Ok(()) }
        })?;
        out.end_section()
    }

    fn put_table(&self, order: &Order, lists_start: u64, out: &mut Output) -> Result<(), StorageError> {
        let all_bytes = LIST_OVERHEAD + 4 * u64::from(self.series);
        let mut length = 4 + 3 + varint_bytes(lists_start) as u64;
        let mut offset = lists_start + all_bytes;
        for &id in &order.pairs {
            let pair = self.pairs.pair(id);
            let texts = self.pairs.text_bytes(pair.name) + self.pairs.text_bytes(pair.value);
            length += 1 + texts + varint_bytes(offset) as u64;
            offset += LIST_OVERHEAD + 4 * u64::from(pair.series);
        }
        out.begin_section(length)?;
        out.put(&(order.pairs.len() as u32 + 1).to_be_bytes())?;
        let mut entry = Vec::new();
        let mut put = |name, value, offset, out: &mut Output| {
            entry.clear();
            entry.push(2);
            put_text(name, &mut entry);
            put_text(value, &mut entry);
            put_varint(&mut entry, offset);
            out.put(&entry)
        };
        put("", "", lists_start, out)?;
        let mut offset = lists_start + all_bytes;
        for &id in &order.pairs {
            let pair = self.pairs.pair(id);
            put(self.pairs.text(pair.name), self.pairs.text(pair.value), offset, out)?;
            offset += LIST_OVERHEAD + 4 * u64::from(pair.series);
        }
        out.end_section()
    }
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_chunks(chunks: &[ChunkMeta], out: &mut Vec<u8>) {
    put_varint(out, chunks.len() as u64);
    let mut last: Option<&ChunkMeta> = None;
    for chunk in chunks {
        match last {
            None => put_signed(out, chunk.min_ms),
            Some(last) => put_varint(out, chunk.min_ms.wrapping_sub(last.max_ms) as u64),
        }
        put_varint(out, chunk.max_ms.wrapping_sub(chunk.min_ms) as u64);
        match last {
            None => put_varint(out, chunk.reference),
            Some(last) => put_signed(out, chunk.reference.wrapping_sub(last.reference) as i64),
        }
        last = Some(chunk);
    }
}

/// The file that is written front to back.
struct Output {
    file: Arc<dyn File>,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Bytes written, those of the buffer too.
    offset: u64,
    crc: u32,
    /// Where the section ends that is being written.
    section_end: u64,
}

impl Output {
    fn create(files: &dyn Files, path: &Path) -> Result<Output, StorageError> {
        let file = files.create(path).map_err(StorageError::io("create", path))?;
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        Ok(Output { file, path: path.to_owned(), buffer, offset: 0, crc: 0, section_end: 0 })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        self.buffer.extend_from_slice(bytes);
        self.offset += bytes.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        self.file.append(&self.buffer).map_err(StorageError::io("write", &self.path))?;
        self.buffer.clear();
        Ok(())
    }

    fn align(&mut self, to: u64) -> Result<(), StorageError> {
        let padding = self.offset.next_multiple_of(to) - self.offset;
        self.put(&[0; SERIES_ALIGN as usize][..padding as usize])
    }

    /// Begins a section with so many bytes of content.
    fn begin_section(&mut self, length: u64) -> Result<(), StorageError> {
        let length32 = u32::try_from(length).map_err(|_| {
            StorageError::corrupt(&self.path, self.offset, "a section cannot be larger than 4 GiB")
        })?;
        self.put(&length32.to_be_bytes())?;
        self.crc = 0;
        self.section_end = self.offset + length;
        Ok(())
    }

    fn begin_list(&mut self, series: u32) -> Result<(), StorageError> {
        self.begin_section(4 + 4 * u64::from(series))?;
        self.put(&series.to_be_bytes())
    }

    fn end_section(&mut self) -> Result<(), StorageError> {
        if self.offset != self.section_end {
            return Err(StorageError::corrupt(
                &self.path,
                self.offset,
                "a section is not as long as announced",
            ));
        }
        let crc = self.crc.to_be_bytes();
        self.put(&crc)
    }

    fn finish(mut self) -> Result<u64, StorageError> {
        self.flush()?;
        self.file.sync().map_err(StorageError::io("sync", &self.path))?;
        Ok(self.offset)
    }
}
