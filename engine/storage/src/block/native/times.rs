//! Timestamp streams, each shared by the series that have samples at its times.
//!
//! ```text
//! page    kind u8: 0 packed, 1 cold; count, then per stream: rows, zigzag(first ms − first ms of the stream before),
//!         last − first ms, and in a packed page its bytes; all numbers varints
//! packed  then the encoded timestamps of each (`codec::timestamps`)
//! cold    then the timestamps, as the bits of values, of each as a column (`codec::cold`)
//! ```
//! Streams are numbered in the order in which they stand in the file; each lies in one part of the block's time.
use std::ops::Range;
use std::sync::Arc;

use metricsstore_codec::cold::{Column, PageReader, Values, encode_page};
use metricsstore_codec::timestamps;

use super::page::{PageSink, PageSource};
use super::table::{Entry, TableCursor, TableWriter};
use super::values::Tail;
use super::{MAX_STREAM_ROWS, PAGE_BYTES};
use crate::StorageError;
use crate::bytes::{Cursor, put_signed, put_varint};

const PACKED: u8 = 0;
const COLD: u8 = 1;
/// Rows of all streams of a cold page, at most: what encoding one takes in memory.
const COLD_CELLS: u64 = 64 << 10;

/// Writes streams.
pub(super) struct TimesWriter {
    is_cold: bool,
    table: TableWriter,
    /// The open page.
    entries: Vec<u8>,
    payload: Vec<u8>,
    count: u32,
    first_ms: i64,
    bounds_ms: Option<(i64, i64)>,
    samples: u64,
    /// Number of the next stream.
    next: u32,
    /// First stream and place of each page.
    written: Vec<Entry>,
}

impl TimesWriter {
    pub(super) fn new(is_cold: bool) -> TimesWriter {
        TimesWriter {
            is_cold,
            table: TableWriter::default(),
            entries: Vec::new(),
            payload: Vec::new(),
            count: 0,
            first_ms: 0,
            bounds_ms: None,
            samples: 0,
            next: 0,
            written: Vec::new(),
        }
    }

    /// Adds a stream, which has a time, and returns its number.
    pub(super) fn push(&mut self, times: &[i64], sink: &mut PageSink) -> Result<u32, StorageError> {
        let (first, last) = (times[0], times[times.len() - 1]);
        let encoded = timestamps::encode(times);
        let span_ms = last.wrapping_sub(first) as u64;
        put_stream(times.len() as u32, first.wrapping_sub(self.first_ms), span_ms, &mut self.entries);
        put_varint(&mut self.entries, encoded.len() as u64);
        self.payload.extend_from_slice(&encoded);
        self.first_ms = first;
        let (min, max) = self.bounds_ms.unwrap_or((first, last));
        self.bounds_ms = Some((min.min(first), max.max(last)));
        self.samples += times.len() as u64;
        self.count += 1;
        self.next += 1;
        let is_full = self.entries.len() + self.payload.len() >= PAGE_BYTES;
        if is_full || self.is_cold && self.samples >= COLD_CELLS {
            self.close(sink)?;
        }
        Ok(self.next - 1)
    }

    fn content(&self) -> Vec<u8> {
        let mut content = vec![PACKED];
        put_varint(&mut content, u64::from(self.count));
        content.extend_from_slice(&self.entries);
        content.extend_from_slice(&self.payload);
        content
    }

    fn close(&mut self, sink: &mut PageSink) -> Result<(), StorageError> {
        let Some((min_ms, max_ms)) = self.bounds_ms.take() else { return Ok(()) };
        let packed = self.content();
        let cold = if self.is_cold { cold_page(&packed) } else { None };
        let content = cold.filter(|cold| cold.len() < packed.len()).unwrap_or(packed);
        let entry = Entry {
            first: self.next - self.count,
            last: self.next - 1,
            page: sink.put(&content)?,
            min_ms,
            max_ms,
            columns: u64::from(self.count),
            samples: self.samples,
        };
        self.entries.clear();
        self.payload.clear();
        (self.count, self.first_ms, self.samples) = (0, 0, 0);
        self.written.push(entry);
        self.table.push(entry, sink)
    }

    /// The times of a stream that was added.
    pub(super) fn read(&self, stream: u32, sink: &PageSink) -> Result<Arc<[i64]>, StorageError> {
        let place = self.written.partition_point(|page| page.last < stream);
        let (first, offset, content) = match self.written.get(place) {
            Some(page) => (page.first, page.page.offset, sink.read(page.page)?),
            None => (self.next - self.count, sink.offset, self.content()),
        };
        let times = Page::open(content.into()).and_then(|mut page| page.times((stream - first) as usize));
        times.ok_or_else(|| StorageError::corrupt(&sink.path, offset, "a page of timestamps is malformed"))
    }

    /// Streams, and what the directory has of them.
    pub(super) fn finish(mut self, sink: &mut PageSink) -> Result<(u32, Vec<Entry>), StorageError> {
        self.close(sink)?;
        Ok((self.next, self.table.finish(sink)?))
    }
}

/// A packed page as a cold one.
fn cold_page(packed: &[u8]) -> Option<Vec<u8>> {
    let mut page = Page::open(packed.into())?;
    let times: Vec<Arc<[i64]>> =
        (0..page.streams.len()).map(|index| page.times(index)).collect::<Option<_>>()?;
    let bits: Vec<Vec<u64>> =
        times.iter().map(|times| times.iter().map(|&time| time as u64).collect()).collect();
    let columns: Vec<Column<'_>> = bits.iter().map(|values| Column { values, absent: &[] }).collect();
    let mut cold = vec![COLD];
    put_varint(&mut cold, times.len() as u64);
    let mut first_ms = 0;
    for stream in &page.streams {
        put_stream(stream.rows, stream.first_ms.wrapping_sub(first_ms), stream.span_ms(), &mut cold);
        first_ms = stream.first_ms;
    }
    cold.extend(encode_page(&columns).ok()?);
    Some(cold)
}

fn put_stream(rows: u32, moved_ms: i64, span_ms: u64, out: &mut Vec<u8>) {
    put_varint(out, u64::from(rows));
    put_signed(out, moved_ms);
    put_varint(out, span_ms);
}

/// A stream in a page.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    pub(super) rows: u32,
    pub(super) first_ms: i64,
    pub(super) last_ms: i64,
    /// Where its encoding stands in a packed page.
    encoded: Range<usize>,
}

impl Stream {
    fn span_ms(&self) -> u64 {
        self.last_ms.wrapping_sub(self.first_ms) as u64
    }
}

/// A page that was read.
struct Page {
    content: Arc<[u8]>,
    streams: Vec<Stream>,
    /// Reads a cold page.
    cold: Option<Box<PageReader<Tail>>>,
}

impl Page {
    /// `None` is damage.
    fn open(content: Arc<[u8]>) -> Option<Page> {
        let mut cursor = Cursor::new(&content);
        let kind = cursor.u8().filter(|kind| matches!(*kind, PACKED | COLD))?;
        let count = cursor.varint()?;
        let (mut streams, mut first_ms, mut at) = (Vec::new(), 0i64, 0usize);
        for _ in 0..count {
            let rows = cursor.varint_u32().filter(|rows| (1..=MAX_STREAM_ROWS).contains(rows))?;
            first_ms = first_ms.wrapping_add(cursor.signed()?);
            let last_ms = first_ms.wrapping_add(cursor.varint()? as i64);
            let length = if kind == PACKED { usize::try_from(cursor.varint()?).ok()? } else { 0 };
            let end = at.checked_add(length)?;
            streams.push(Stream { rows, first_ms, last_ms, encoded: at..end });
            at = end;
        }
        let base = cursor.position();
        for stream in &mut streams {
            stream.encoded = stream.encoded.start + base..stream.encoded.end + base;
        }
        let mut cold = None;
        if kind == COLD {
            let reader = PageReader::new(Tail::new(&content, base)).ok()?;
            (reader.columns() == streams.len()).then_some(())?;
            cold = Some(Box::new(reader));
        } else if base.checked_add(at)? != content.len() {
            return None;
        }
        Some(Page { content, streams, cold })
    }

    /// `None` is damage.
    fn times(&mut self, index: usize) -> Option<Arc<[i64]>> {
        let stream = self.streams.get(index)?;
        let mut times = Vec::new();
        if let Some(cold) = &mut self.cold {
            let mut values = Values::default();
            cold.read(index, &mut values).ok()?;
            values.absent.is_empty().then_some(())?;
            times.extend(values.values.iter().map(|&bits| bits as i64));
        } else {
            timestamps::decode(self.content.get(stream.encoded.clone())?, stream.rows, &mut times).ok()?;
        }
        let agrees = times.len() == stream.rows as usize
            && times.first() == Some(&stream.first_ms)
            && times.last() == Some(&stream.last_ms);
        (agrees && times.is_sorted_by(|a, b| a < b)).then(|| times.into())
    }
}

/// Timestamps that a cursor keeps, at most.
const CACHED_TIMES: usize = 256 << 10;

/// Reads streams, and keeps those that it read last.
#[derive(Default)]
pub(super) struct TimesCursor {
    table: TableCursor,
    /// The page that is loaded, and where it is.
    page: Option<(Entry, Page)>,
    decoded: hashbrown::HashMap<u32, Arc<[i64]>>,
    decoded_times: usize,
}

impl TimesCursor {
    /// The page that has a stream, and the place of the stream in it.
    fn load(
        &mut self,
        stream: u32,
        table: &[Entry],
        source: &PageSource,
    ) -> Result<(Entry, &mut Page, usize), StorageError> {
        let unknown = || source.damaged(source.end, "a series names a timestamp stream that does not exist");
        let held = self.page.take().filter(|(page, _)| (page.first..=page.last).contains(&stream));
        let held = if let Some(held) = held {
            held
        } else {
            let entry = *self.table.find(table, source, stream)?.first().ok_or_else(unknown)?;
            let page = Page::open(source.read(entry.page)?);
            let is_whole = |page: &Page| page.streams.len() as u64 == u64::from(entry.last - entry.first) + 1;
            (entry, page.filter(is_whole).ok_or_else(|| malformed(source, entry))?)
        };
        let (entry, page) = self.page.insert(held);
        Ok((*entry, page, (stream - entry.first) as usize))
    }

    /// What a page says of a stream.
    pub(super) fn stream(
        &mut self,
        stream: u32,
        table: &[Entry],
        source: &PageSource,
    ) -> Result<&Stream, StorageError> {
        let (_, page, index) = self.load(stream, table, source)?;
        Ok(&page.streams[index])
    }

    pub(super) fn times(
        &mut self,
        stream: u32,
        table: &[Entry],
        source: &PageSource,
    ) -> Result<Arc<[i64]>, StorageError> {
        if let Some(times) = self.decoded.get(&stream) {
            return Ok(Arc::clone(times));
        }
        let (entry, page, index) = self.load(stream, table, source)?;
        let times = page.times(index).ok_or_else(|| malformed(source, entry))?;
        if self.decoded_times + times.len() > CACHED_TIMES {
            self.decoded.clear();
            self.decoded_times = 0;
        }
        self.decoded_times += times.len();
        self.decoded.insert(stream, Arc::clone(&times));
        Ok(times)
    }
}

fn malformed(source: &PageSource, page: Entry) -> StorageError {
    source.damaged(page.page.offset, "a page of timestamps is malformed")
}
