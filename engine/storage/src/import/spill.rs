//! Samples in the order of the log, sorted by range, series and time: in memory as far as it goes, beyond that in files
//! that are removed at the end.
//!
//! ```text
//! run     frames, ascending by range, series and time
//! frame   length of the body u32 | CRC32C of it u32 | body; little endian
//! body    rank of the series | 1 if it goes on with the series of the frame before | floats | histograms | starts |
//!         exemplars; each begins with how many there are
//! float       time | xor with the value before, its bits reversed
//! histogram   time | histogram against the one before
//! start       time | start, since the time
//! exemplar    time | value | how many labels | (length | name | length | value)*
//! ```
//! Numbers without a width are uvarints; times stand against the one before, zigzag.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use metricsstore_codec::checksum::crc32c;
use metricsstore_codec::varint;
use metricsstore_model::LabelBuf;
use metricsstore_model::histogram::{self, Histogram};
use metricsstore_model::stale_nan;
use metricsstore_vfs::{File, Files};

use super::catalog::Catalog;
use crate::block::series::{SLICE_HISTOGRAMS, SLICE_SAMPLES};
use crate::block::{SeriesData, SeriesStream};
use crate::{StorageError, StoredExemplar};

/// Bytes that are collected before they are written, and read at once.
const IO_BYTES: usize = 128 << 10;
const FRAME_HEADER: usize = 8;

/// Something of a series.
pub(super) enum Item {
    Float(u64),
    /// When the counter of the sample of this time began, in ms.
    Start(i64),
    Histogram(Box<Histogram>),
    Exemplar(Box<StoredExemplar>),
}

struct Entry {
    rank: u32,
    time_ms: i64,
    item: Item,
}

/// Where the samples of a range stand in a run.
#[derive(Debug, Clone, Copy)]
struct Part {
    run: u32,
    start: u64,
    end: u64,
}

/// Takes samples in any order.
pub(super) struct Spill {
    files: Arc<dyn Files>,
    dir: PathBuf,
    range_ms: i64,
    max_bytes: usize,
    entries: Vec<Entry>,
    /// Of what entries hold beside themselves.
    bytes: usize,
    runs: u32,
    /// By the start of the range.
    parts: BTreeMap<i64, Vec<Part>>,
}

impl Spill {
    /// Into an empty directory, which it removes when it is dropped. It takes twice `max_bytes` of memory, at most.
    pub(super) fn new(files: Arc<dyn Files>, dir: PathBuf, range_ms: i64, max_bytes: usize) -> Spill {
        let (entries, parts) = Default::default();
        Spill { files, dir, range_ms, max_bytes, entries, bytes: 0, runs: 0, parts }
    }

    /// What follows a start comes into the run that it is in.
    pub(super) fn push(&mut self, rank: u32, time_ms: i64, item: Item) -> Result<(), StorageError> {
        let is_start = matches!(item, Item::Start(_));
        self.bytes += match &item {
            Item::Float(_) | Item::Start(_) => 0,
            Item::Histogram(histogram) => size_of::<Histogram>() + histogram.heap_bytes(),
            Item::Exemplar(exemplar) => {
                let pairs = exemplar.labels.iter().map(|(name, value)| name.len() + value.len() + 16);
                size_of::<StoredExemplar>() + pairs.sum::<usize>()
            }
        };
        self.entries.push(Entry { rank, time_ms, item });
        if !is_start && self.entries.len() * size_of::<Entry>() + self.bytes >= self.max_bytes {
            self.write_run()?;
        }
        Ok(())
    }

    /// Sorts what is still in memory.
    pub(super) fn finish(&mut self) -> Result<(), StorageError> {
        self.write_run()?;
        self.entries = Vec::new();
        Ok(())
    }

    /// Starts of the ranges that hold anything, ascending.
    pub(super) fn ranges(&self) -> impl Iterator<Item = i64> + '_ {
        self.parts.keys().copied()
    }

    /// What the runs hold of a range, in the order in which they were pushed.
    pub(super) fn streams(
        &self,
        range: i64,
        catalog: &Arc<Catalog>,
    ) -> Result<Vec<Box<dyn SeriesStream>>, StorageError> {
        let parts = self.parts.get(&range).map_or(&[][..], |parts| parts);
        let open = |part: &Part| {
            let path = self.path(part.run);
            let file = self.files.open(&path).map_err(StorageError::io("open", &path))?;
            let reader = RunReader {
                file,
                path,
                at: part.start,
                end: part.end,
                buffer: Vec::new(),
                used: 0,
                catalog: Arc::clone(catalog),
            };
            Ok(Box::new(reader) as Box<dyn SeriesStream>)
        };
        parts.iter().map(open).collect()
    }

    fn path(&self, run: u32) -> PathBuf {
        self.dir.join(format!("{run:06}"))
    }

    fn write_run(&mut self) -> Result<(), StorageError> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let range_ms = self.range_ms;
        let range = |entry: &Entry| entry.time_ms.div_euclid(range_ms).saturating_mul(range_ms);
        // Stable: of the same time the one that came first holds.
        self.entries.sort_by_key(|entry| (range(entry), entry.rank, entry.time_ms));
        let path = self.path(self.runs);
        let file = self.files.create(&path).map_err(StorageError::io("create", &path))?;
        let mut out = RunWriter { file, path, buffer: Vec::new(), written: 0 };
        let mut entries = self.entries.drain(..).peekable();
        let mut series = SeriesData::default();
        while let Some(first) = entries.peek().map(range) {
            let start = out.at();
            while let Some(rank) =
                entries.peek().filter(|entry| range(entry) == first).map(|entry| entry.rank)
            {
                let mut is_continuation = false;
                series.clear();
                while let Some(entry) = entries.next_if(|entry| range(entry) == first && entry.rank == rank) {
                    if is_full(&series, entry.time_ms) {
                        out.frame(rank, is_continuation, &mut series)?;
                        is_continuation = true;
                    }
                    collect(&mut series, entry);
                }
                out.frame(rank, is_continuation, &mut series)?;
            }
            let part = Part { run: self.runs, start, end: out.at() };
            self.parts.entry(first).or_default().push(part);
        }
        drop(entries);
        out.write()?;
        self.runs += 1;
        self.bytes = 0;
        Ok(())
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        if let Err(error) = self.files.remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "files of an import could not be removed");
        }
    }
}

/// Whether something of this time begins another slice.
fn is_full(series: &SeriesData, time_ms: i64) -> bool {
    let newest =
        series.floats.last().map(|sample| sample.0).max(series.histograms.last().map(|sample| sample.0));
    let exemplars = series.exemplars.len();
    (series.floats.len() >= SLICE_SAMPLES
        || series.histograms.len() >= SLICE_HISTOGRAMS
        || exemplars >= SLICE_HISTOGRAMS)
        && newest < Some(time_ms)
        && series.exemplars.last().is_none_or(|exemplar| exemplar.timestamp_ms < time_ms)
}

/// Adds an entry that is not older than what is there. Of two samples of one time the first holds that is no staleness
/// marker.
fn collect(series: &mut SeriesData, entry: Entry) {
    let (time_ms, stale) = (entry.time_ms, stale_nan().to_bits());
    match entry.item {
        Item::Float(bits) => {
            let histogram = series.histograms.pop_if(|sample| sample.0 == time_ms && sample.1.is_stale());
            let is_taken = series.histograms.last().is_some_and(|sample| sample.0 == time_ms);
            match series.floats.last_mut().filter(|sample| sample.0 == time_ms) {
                Some(held) if held.1 == stale => held.1 = bits,
                Some(_) => (),
                None if is_taken => (),
                None if bits == stale => match histogram {
                    Some(held) => series.histograms.push(held),
                    None => series.floats.push((time_ms, bits)),
                },
                None => series.floats.push((time_ms, bits)),
            }
        }
        Item::Histogram(histogram) => {
            let float = series.floats.pop_if(|sample| sample.0 == time_ms && sample.1 == stale);
            let is_taken = series.floats.last().is_some_and(|sample| sample.0 == time_ms);
            match series.histograms.last_mut().filter(|sample| sample.0 == time_ms) {
                Some(held) if held.1.is_stale() => held.1 = *histogram,
                Some(_) => (),
                None if is_taken => (),
                None if histogram.is_stale() && float.is_some() => series.floats.extend(float),
                None => series.histograms.push((time_ms, *histogram)),
            }
        }
        Item::Start(start_ms) => {
            if series.starts.last().is_none_or(|start| start.0 < time_ms) {
                series.starts.push((time_ms, start_ms));
            }
        }
        Item::Exemplar(exemplar) => {
            if series.exemplars.last() != Some(&*exemplar) {
                series.exemplars.push(*exemplar);
            }
        }
    }
}

struct RunWriter {
    file: Arc<dyn File>,
    path: PathBuf,
    buffer: Vec<u8>,
    written: u64,
}

impl RunWriter {
    fn at(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Writes a slice and forgets it.
    fn frame(
        &mut self,
        rank: u32,
        is_continuation: bool,
        series: &mut SeriesData,
    ) -> Result<(), StorageError> {
        let start = self.buffer.len();
        self.buffer.resize(start + FRAME_HEADER, 0);
        varint::put(&mut self.buffer, u64::from(rank));
        self.buffer.push(u8::from(is_continuation));
        put_slice(&mut self.buffer, series);
        let body = &self.buffer[start + FRAME_HEADER..];
        let (length, crc) = (body.len() as u32, crc32c(body));
        self.buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
        self.buffer[start + 4..start + FRAME_HEADER].copy_from_slice(&crc.to_le_bytes());
        series.clear_samples();
        if self.buffer.len() >= IO_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), StorageError> {
        self.file.append(&self.buffer).map_err(StorageError::io("write", &self.path))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

fn put_slice(out: &mut Vec<u8>, series: &SeriesData) {
    let mut before_ms = 0_i64;
    let mut put_time = |out: &mut Vec<u8>, time_ms: i64| {
        varint::put(out, varint::zigzag(time_ms.wrapping_sub(before_ms)));
        before_ms = time_ms;
    };
    varint::put(out, series.floats.len() as u64);
    let mut bits_before = 0;
    for &(time_ms, bits) in &series.floats {
        put_time(out, time_ms);
        varint::put(out, (bits ^ bits_before).reverse_bits());
        bits_before = bits;
    }
    varint::put(out, series.histograms.len() as u64);
    let mut previous = None;
    for (time_ms, histogram) in &series.histograms {
        put_time(out, *time_ms);
        histogram::encode(histogram, previous, out);
        previous = Some(histogram);
    }
    varint::put(out, series.starts.len() as u64);
    for &(time_ms, start_ms) in &series.starts {
        put_time(out, time_ms);
        varint::put(out, varint::zigzag(start_ms.wrapping_sub(time_ms)));
    }
    varint::put(out, series.exemplars.len() as u64);
    for exemplar in &series.exemplars {
        put_time(out, exemplar.timestamp_ms);
        varint::put(out, exemplar.value.to_bits());
        varint::put(out, exemplar.labels.len() as u64);
        for text in exemplar.labels.iter().flat_map(|(name, value)| [name, value]) {
            varint::put(out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        }
    }
}

/// `None` where the bytes are not those that were written.
fn take_slice(bytes: &mut &[u8], series: &mut SeriesData) -> Option<()> {
    let mut before_ms = 0_i64;
    let mut take_time = |bytes: &mut &[u8]| {
        before_ms = before_ms.wrapping_add(varint::unzigzag(varint::take(bytes).ok()?));
        Some(before_ms)
    };
    let mut bits = 0;
    for _ in 0..varint::take(bytes).ok()? {
        let time_ms = take_time(bytes)?;
        bits ^= varint::take(bytes).ok()?.reverse_bits();
        series.floats.push((time_ms, bits));
    }
    for _ in 0..varint::take(bytes).ok()? {
        let time_ms = take_time(bytes)?;
        let previous = series.histograms.last().map(|sample| &sample.1);
        let histogram = histogram::decode(bytes, previous).ok()?;
        series.histograms.push((time_ms, histogram));
    }
    for _ in 0..varint::take(bytes).ok()? {
        let time_ms = take_time(bytes)?;
        let start_ms = time_ms.wrapping_add(varint::unzigzag(varint::take(bytes).ok()?));
        series.starts.push((time_ms, start_ms));
    }
    for _ in 0..varint::take(bytes).ok()? {
        let (timestamp_ms, value) = (take_time(bytes)?, f64::from_bits(varint::take(bytes).ok()?));
        let mut labels = LabelBuf::new();
        for _ in 0..varint::take(bytes).ok()? {
            let (name, value) = (take_text(bytes)?, take_text(bytes)?);
            labels.push(name, value);
        }
        series.exemplars.push(StoredExemplar { labels, timestamp_ms, value });
    }
    bytes.is_empty().then_some(())
}

fn take_text<'b>(bytes: &mut &'b [u8]) -> Option<&'b str> {
    let length = usize::try_from(varint::take(bytes).ok()?).ok()?;
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    std::str::from_utf8(text).ok()
}

/// Reads a range of a run.
struct RunReader {
    file: Arc<dyn File>,
    path: PathBuf,
    /// What is not in the buffer yet.
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    used: usize,
    catalog: Arc<Catalog>,
}

impl RunReader {
    /// Makes `length` bytes stand in the buffer behind what is used; `false` at the end of the range.
    fn fill(&mut self, length: usize) -> Result<bool, StorageError> {
        let held = self.buffer.len() - self.used;
        if held >= length {
            return Ok(true);
        }
        if held == 0 && self.at == self.end {
            return Ok(false);
        }
        let missing = (length - held) as u64;
        let bytes = missing.max(IO_BYTES as u64).min(self.end - self.at);
        if bytes < missing {
            return Err(StorageError::corrupt(&self.path, self.at, "a frame of an import is cut off"));
        }
        self.buffer.drain(..self.used);
        self.used = 0;
        self.buffer.resize(held + bytes as usize, 0);
        let read = self.file.read_exact_at(&mut self.buffer[held..], self.at);
        read.map_err(StorageError::io("read", &self.path))?;
        self.at += bytes;
        Ok(true)
    }
}

impl SeriesStream for RunReader {
    fn next_into(&mut self, series: &mut SeriesData) -> Result<bool, StorageError> {
        series.clear();
        if !self.fill(FRAME_HEADER)? {
            return Ok(false);
        }
        let header = &self.buffer[self.used..];
        let number = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let (length, crc) = (number(0) as usize, number(4));
        self.fill(FRAME_HEADER + length)?;
        let start = self.used + FRAME_HEADER;
        let mut body = &self.buffer[start..start + length];
        self.used = start + length;
        let place = self.at;
        let corrupt = || StorageError::corrupt(&self.path, place, "a frame of an import is damaged");
        if crc32c(body) != crc {
            return Err(corrupt());
        }
        let rank = varint::take(&mut body).map_err(|_| corrupt())?;
        self.catalog.labels(rank as u32, &mut series.labels);
        let (&flag, mut body) = body.split_first().ok_or_else(corrupt)?;
        series.is_continuation = flag == 1;
        take_slice(&mut body, series).ok_or_else(corrupt)?;
        Ok(true)
    }
}
