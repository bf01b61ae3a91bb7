//! Timestamp streams, each shared by the series that have samples at its times.
//!
//! ```text
//! page    count, then per stream: rows, zigzag(first ms − first ms of the stream before), last − first ms, bytes;
//!         then the encoded timestamps of each (all numbers varints; `codec::timestamps`)
//! ```
//! Streams are numbered in the order in which they stand in the file; each lies in one part of the block's time.
use std::ops::Range;
use std::sync::Arc;

use metricsstore_codec::timestamps;

use super::page::{PageSink, PageSource};
use super::table::{Entry, TableCursor, TableWriter};
use super::{MAX_STREAM_ROWS, PAGE_BYTES};
use crate::StorageError;
use crate::bytes::{Cursor, put_signed, put_varint};

/// Writes streams.
#[derive(Default)]
pub(super) struct TimesWriter {
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
    /// Adds a stream, which has a time, and returns its number.
    pub(super) fn push(&mut self, times: &[i64], sink: &mut PageSink) -> Result<u32, StorageError> {
        let (first, last) = (times[0], times[times.len() - 1]);
        let encoded = timestamps::encode(times);
        put_varint(&mut self.entries, times.len() as u64);
        put_signed(&mut self.entries, first.wrapping_sub(self.first_ms));
        put_varint(&mut self.entries, last.wrapping_sub(first) as u64);
        put_varint(&mut self.entries, encoded.len() as u64);
        self.payload.extend_from_slice(&encoded);
        self.first_ms = first;
        let (min, max) = self.bounds_ms.unwrap_or((first, last));
        self.bounds_ms = Some((min.min(first), max.max(last)));
        self.samples += times.len() as u64;
        self.count += 1;
        self.next += 1;
        if self.entries.len() + self.payload.len() >= PAGE_BYTES {
            self.close(sink)?;
        }
        Ok(self.next - 1)
    }

    fn content(&self) -> Vec<u8> {
        let mut content = Vec::new();
        put_varint(&mut content, u64::from(self.count));
        content.extend_from_slice(&self.entries);
        content.extend_from_slice(&self.payload);
        content
    }

    fn close(&mut self, sink: &mut PageSink) -> Result<(), StorageError> {
        let Some((min_ms, max_ms)) = self.bounds_ms.take() else { return Ok(()) };
        let entry = Entry {
            first: self.next - self.count,
            last: self.next - 1,
            page: sink.put(&self.content())?,
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
        let times = read_directory(&content)
            .and_then(|streams| streams.get((stream - first) as usize)?.times(&content));
        times.ok_or_else(|| StorageError::corrupt(&sink.path, offset, "a page of timestamps is malformed"))
    }

    /// Streams, and what the directory has of them.
    pub(super) fn finish(mut self, sink: &mut PageSink) -> Result<(u32, Vec<Entry>), StorageError> {
        self.close(sink)?;
        Ok((self.next, self.table.finish(sink)?))
    }
}

/// A stream in a page.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    pub(super) rows: u32,
    pub(super) first_ms: i64,
    pub(super) last_ms: i64,
    encoded: Range<usize>,
}

impl Stream {
    fn times(&self, page: &[u8]) -> Option<Arc<[i64]>> {
        let mut times = Vec::new();
        timestamps::decode(page.get(self.encoded.clone())?, self.rows, &mut times).ok()?;
        let agrees = times.first() == Some(&self.first_ms) && times.last() == Some(&self.last_ms);
        (agrees && times.is_sorted_by(|a, b| a < b)).then(|| times.into())
    }
}

fn read_directory(page: &[u8]) -> Option<Vec<Stream>> {
    let mut cursor = Cursor::new(page);
    let count = cursor.varint()?;
    let (mut streams, mut first_ms, mut at) = (Vec::new(), 0i64, 0usize);
    for _ in 0..count {
        let rows = cursor.varint_u32().filter(|rows| (1..=MAX_STREAM_ROWS).contains(rows))?;
        first_ms = first_ms.wrapping_add(cursor.signed()?);
        let last_ms = first_ms.wrapping_add(cursor.varint()? as i64);
        let end = at.checked_add(usize::try_from(cursor.varint()?).ok()?)?;
        streams.push(Stream { rows, first_ms, last_ms, encoded: at..end });
        at = end;
    }
    let base = cursor.position();
    if base.checked_add(at)? != page.len() {
        return None;
    }
    for stream in &mut streams {
        stream.encoded = stream.encoded.start + base..stream.encoded.end + base;
    }
    Some(streams)
}

/// Timestamps that a cursor keeps, at most.
const CACHED_TIMES: usize = 256 << 10;

/// Reads streams, and keeps those that it read last.
#[derive(Default)]
pub(super) struct TimesCursor {
    table: TableCursor,
    /// The page that is loaded: its first stream, its place, its content.
    page: Option<(Entry, Arc<[u8]>)>,
    streams: Vec<Stream>,
    decoded: hashbrown::HashMap<u32, Arc<[i64]>>,
    decoded_times: usize,
}

impl TimesCursor {
    /// What a page says of a stream.
    pub(super) fn stream(
        &mut self,
        stream: u32,
        table: &[Entry],
        source: &PageSource,
    ) -> Result<&Stream, StorageError> {
        let loaded = self.page.as_ref().is_some_and(|(page, _)| (page.first..=page.last).contains(&stream));
        if !loaded {
            self.page = None;
            let unknown =
                || source.damaged(source.end, "a series names a timestamp stream that does not exist");
            let entry = *self.table.find(table, source, stream)?.first().ok_or_else(unknown)?;
            let content = source.read(entry.page)?;
            let streams = read_directory(&content).ok_or_else(|| malformed(source, entry))?;
            if streams.len() as u64 != u64::from(entry.last - entry.first) + 1 {
                return Err(malformed(source, entry));
            }
            self.streams = streams;
            self.page = Some((entry, content));
        }
        let index = self.page.as_ref().map_or(0, |(page, _)| stream - page.first);
        Ok(&self.streams[index as usize])
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
        let entry = self.stream(stream, table, source)?.clone();
        let Some((page, content)) = &self.page else {
            return Err(source.damaged(source.end, "a timestamp stream is not there"));
        };
        let times = entry.times(content).ok_or_else(|| malformed(source, *page))?;
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
