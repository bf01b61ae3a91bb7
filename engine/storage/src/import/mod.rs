//! What a data directory of Prometheus holds beyond its blocks: the log with its newest checkpoint (`wal`), the log of
//! late samples (`wbl`) and the chunks that the head wrote (`chunks_head`), as series in the order of their label sets,
//! one range of time after the other.
//!
//! Nothing there is changed. What the blocks hold already is left out as Prometheus leaves it out when it starts: samples
//! in the log and in head chunks before the end of the newest block that was not made of late samples, or before what the
//! checkpoint says. Tombstones of the log are applied. The log is read twice: first for series and tombstones, then for
//! samples, which are sorted in runs of [`Options::sort_bytes`] and merged from there.
//!
//! Memory: the labels of the series that the log names (8 bytes for each label, 40 for each series, each distinct text
//! once), one record, twice `sort_bytes` while sorting; while a range is read, 128 KiB and a slice for each
//! run that has samples in it. Disk: about as much as the log takes, in [`Options::spill_dir`], until the [`Import`] is
//! dropped.
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_model::LabelBuf;
use metricsstore_model::histogram::Histogram;
use metricsstore_vfs::Files;

use crate::block::SeriesData;
use crate::block::prometheus::chunk::decode_chunk;
use crate::block::prometheus::meta::{self, Meta};
use crate::compaction::MergedSeries;
use crate::{StorageError, StoredExemplar};
use catalog::Catalog;
use head_chunks::{Chunks, HeadChunk};
use log::Records;
use record::{Place, Sink};
use spill::{Item, Spill};

mod catalog;
mod head_chunks;
mod log;
mod record;
mod report;
mod spill;
#[cfg(test)]
mod tests;

pub use report::{DamagedPlace, Report};

/// Blocks with one of these hints say nothing about what the log is for.
const PARTIAL: [&str; 3] = ["from-out-of-order", "from-stale-series", "from-selected-series"];
const CHECKPOINT: &str = "checkpoint.";

/// How to import.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// A directory for this import alone, made anew: what is in it is removed.
    pub(crate) spill_dir: PathBuf,
    /// Length of a range; ranges begin at its multiples.
    pub(crate) range_ms: i64,
    /// Samples are sorted in memory in parts of about this size.
    pub(crate) sort_bytes: usize,
}

/// Bytes of the directory that were read, and that will have been read in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
}

/// What was read, sorted.
pub(crate) struct Import {
    catalog: Arc<Catalog>,
    spill: Spill,
    range_ms: i64,
    report: Report,
}

/// Reads a data directory beyond its blocks. `progress` is called now and then; where it returns `false`, the import is
/// broken off with [`StorageError::ShuttingDown`].
pub(crate) fn open(
    files: &Arc<dyn Files>,
    dir: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Import, StorageError> {
    let spill_dir = &options.spill_dir;
    if files.exists(spill_dir).map_err(StorageError::io("look for", spill_dir))? {
        files.remove_dir_all(spill_dir).map_err(StorageError::io("remove", spill_dir))?;
    }
    files.create_dir_all(spill_dir).map_err(StorageError::io("create", spill_dir))?;
    let spill = Spill::new(Arc::clone(files), spill_dir.clone(), options.range_ms, options.sort_bytes);
    let sources = Sources::find(&**files, dir)?;
    let mut meter = Meter { done_bytes: 0, total_bytes: sources.bytes(), progress };
    let mut report = Report::default();

    let mut names = Names { catalog: Catalog::default(), valid_since_ms: blocks_end(&**files, dir) };
    // What is damaged is reported by the second reading.
    sources.read_log(&**files, &mut Report::default(), &mut names, &mut meter)?;
    names.catalog.sort();

    let mut samples = Samples {
        catalog: names.catalog,
        definitions: 0,
        valid_since_ms: names.valid_since_ms,
        spill,
        counted: Report::default(),
        series: SeriesData::default(),
    };
    sources.read_log(&**files, &mut report, &mut samples, &mut meter)?;
    // Late samples are older than blocks, and no block holds them as long as their log does.
    samples.valid_since_ms = i64::MIN;
    log::read_segments(&**files, &sources.late, &mut report, &mut Reading::new(&mut samples, &mut meter))?;
    samples.valid_since_ms = names.valid_since_ms;
    let mut reading = Reading::new(&mut samples, &mut meter);
    head_chunks::read_files(&**files, &sources.head_chunks, &mut report, &mut reading)?;
    samples.spill.finish()?;
    let report = Report {
        series: samples.catalog.series() as u64,
        damaged: report.damaged + samples.counted.damaged,
        places: report.places,
        ..samples.counted
    };
    let catalog = Arc::new(samples.catalog);
    Ok(Import { catalog, spill: samples.spill, range_ms: options.range_ms, report })
}

impl Import {
    /// The ranges that hold samples or exemplars, ascending, `start..end` in ms.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<i64>> + '_ {
        self.spill.ranges().map(|start| start..start.saturating_add(self.range_ms))
    }

    /// The series of the range that begins there.
    pub(crate) fn series(&self, start_ms: i64) -> Result<MergedSeries<'static>, StorageError> {
        Ok(MergedSeries::new(self.spill.streams(start_ms, &self.catalog)?))
    }

    /// What was found, and what could not be read.
    pub(crate) fn report(&self) -> &Report {
        &self.report
    }
}

/// The files of a data directory, with their lengths.
struct Sources {
    checkpoint: Vec<(u64, PathBuf, u64)>,
    log: Vec<(u64, PathBuf, u64)>,
    late: Vec<(u64, PathBuf, u64)>,
    head_chunks: Vec<(u64, PathBuf, u64)>,
}

impl Sources {
    fn find(files: &dyn Files, dir: &Path) -> Result<Sources, StorageError> {
        let wal = dir.join("wal");
        let mut log = log::segments(files, &wal)?;
        let mut checkpoint = Vec::new();
        if let Some((number, path)) = newest_checkpoint(files, &wal)? {
            checkpoint = log::segments(files, &path)?;
            // What it covers was about to be removed.
            log.retain(|segment| segment.0 > number);
        }
        Ok(Sources {
            checkpoint,
            log,
            late: log::segments(files, &dir.join("wbl"))?,
            head_chunks: log::segments(files, &dir.join("chunks_head"))?,
        })
    }

    /// Of everything, the log twice.
    fn bytes(&self) -> u64 {
        let sum = |segments: &[(u64, PathBuf, u64)]| segments.iter().map(|segment| segment.2).sum::<u64>();
        2 * (sum(&self.checkpoint) + sum(&self.log)) + sum(&self.late) + sum(&self.head_chunks)
    }

    fn read_log<S: Sink>(
        &self,
        files: &dyn Files,
        report: &mut Report,
        sink: &mut S,
        meter: &mut Meter,
    ) -> Result<(), StorageError> {
        log::read_segments(files, &self.checkpoint, report, &mut Reading::new(sink, meter))?;
        log::read_segments(files, &self.log, report, &mut Reading::new(sink, meter))
    }
}

/// The last of `checkpoint.NNNNNNNN`, and up to which segment it covers the log.
fn newest_checkpoint(files: &dyn Files, wal: &Path) -> Result<Option<(u64, PathBuf)>, StorageError> {
    if !files.exists(wal).map_err(StorageError::io("look for", wal))? {
        return Ok(None);
    }
    let entries = files.list(wal).map_err(StorageError::io("list", wal))?;
    let checkpoint = |entry: &metricsstore_vfs::DirEntry| {
        let number = entry.name.strip_prefix(CHECKPOINT)?.parse().ok()?;
        entry.is_dir.then(|| (number, wal.join(&entry.name)))
    };
    Ok(entries.iter().filter_map(checkpoint).max())
}

/// The end of the newest block that holds all samples up to its end.
fn blocks_end(files: &dyn Files, dir: &Path) -> i64 {
    let entries = files.list(dir).unwrap_or_default();
    let blocks = entries.into_iter().filter(|entry| entry.is_dir).map(|entry| dir.join(entry.name));
    let metas = blocks
        .filter(|block| files.exists(&block.join(meta::FILE_NAME)).unwrap_or(false))
        .filter_map(|block| Meta::read(files, &block).ok());
    let whole = metas.filter(|meta| !meta.compaction.hints.iter().any(|hint| PARTIAL.contains(&&**hint)));
    whole.map(|meta| meta.max_time).max().unwrap_or(i64::MIN)
}

struct Meter<'p> {
    done_bytes: u64,
    total_bytes: u64,
    progress: &'p mut dyn FnMut(Progress) -> bool,
}

/// Reads records and chunks into a sink.
struct Reading<'r, 'p, S> {
    sink: &'r mut S,
    meter: &'r mut Meter<'p>,
    is_broken_off: bool,
}

impl<'r, 'p, S> Reading<'r, 'p, S> {
    fn new(sink: &'r mut S, meter: &'r mut Meter<'p>) -> Reading<'r, 'p, S> {
        Reading { sink, meter, is_broken_off: false }
    }

    fn count(&mut self, bytes: u64) {
        self.meter.done_bytes += bytes;
        let Meter { done_bytes, total_bytes, .. } = *self.meter;
        self.is_broken_off |= !(self.meter.progress)(Progress { done_bytes, total_bytes });
    }

    fn check(&self) -> Result<(), StorageError> {
        if self.is_broken_off { Err(StorageError::ShuttingDown) } else { Ok(()) }
    }
}

impl<S: Sink> Records for Reading<'_, '_, S> {
    fn record(&mut self, bytes: &[u8]) -> Result<Result<(), &'static str>, StorageError> {
        self.check()?;
        record::decode(bytes, self.sink)
    }

    fn read(&mut self, bytes: u64) {
        self.count(bytes);
    }
}

impl Chunks for Reading<'_, '_, Samples> {
    fn chunk(&mut self, chunk: &HeadChunk) -> Result<Result<(), &'static str>, StorageError> {
        self.check()?;
        self.sink.chunk(chunk)
    }

    fn read(&mut self, bytes: u64) {
        self.count(bytes);
    }
}

/// The first reading: which series there are, what was deleted of them, and what blocks hold.
struct Names {
    catalog: Catalog,
    valid_since_ms: i64,
}

impl Sink for Names {
    const SAMPLES: bool = false;

    fn series(&mut self, reference: u64, labels: &LabelBuf) {
        self.catalog.define(reference, labels);
    }

    fn tombstone(&mut self, reference: u64, min_ms: i64, max_ms: i64) {
        self.catalog.delete(reference, min_ms, max_ms);
    }

    fn valid_since(&mut self, time_ms: i64) {
        self.valid_since_ms = self.valid_since_ms.max(time_ms);
    }

    fn unknown(&mut self) {}

    fn float(&mut self, _: Place, _: u64) -> Result<(), StorageError> {
        Ok(())
    }

    fn histogram(&mut self, _: Place, _: Histogram) -> Result<(), StorageError> {
        Ok(())
    }

    fn exemplar(&mut self, _: u64, _: StoredExemplar) -> Result<(), StorageError> {
        Ok(())
    }
}

/// The second reading: samples.
struct Samples {
    catalog: Catalog,
    /// Definitions that were read.
    definitions: usize,
    /// Older samples stand in blocks.
    valid_since_ms: i64,
    spill: Spill,
    counted: Report,
    /// The samples of a chunk.
    series: SeriesData,
}

impl Samples {
    /// The place of the series in the order of label sets, if its sample of this time is wanted.
    fn wanted(&mut self, reference: u64, time_ms: i64) -> Option<u32> {
        if time_ms < self.valid_since_ms {
            self.counted.in_blocks += 1;
            return None;
        }
        let Some(series) = self.catalog.resolve(reference) else {
            self.counted.without_series += 1;
            return None;
        };
        if self.catalog.is_deleted(series, time_ms) {
            self.counted.deleted += 1;
            return None;
        }
        Some(self.catalog.rank(series))
    }

    /// Comes before its sample, so that both come into one run.
    fn start(&mut self, rank: u32, place: Place) -> Result<(), StorageError> {
        if place.start_ms == 0 {
            return Ok(());
        }
        self.spill.push(rank, place.time_ms, Item::Start(place.start_ms))
    }

    fn chunk(&mut self, chunk: &HeadChunk) -> Result<Result<(), &'static str>, StorageError> {
        if self.catalog.resolve(chunk.reference).is_none() {
            // Of a series that left the log after all its samples had come to blocks.
            return Ok(Ok(()));
        }
        let valid_since_ms = self.valid_since_ms;
        if chunk.is_late {
            self.valid_since_ms = i64::MIN;
        } else if chunk.max_ms < valid_since_ms {
            return Ok(Ok(()));
        }
        let mut series = std::mem::take(&mut self.series);
        series.clear();
        let decoded = decode_chunk(chunk.encoding, chunk.data, &mut series);
        let pushed = self.push_chunk(chunk.reference, &mut series);
        self.series = series;
        self.valid_since_ms = valid_since_ms;
        pushed?;
        Ok(decoded)
    }

    fn push_chunk(&mut self, reference: u64, series: &mut SeriesData) -> Result<(), StorageError> {
        let mut starts = series.starts.iter().peekable();
        let mut place = |time_ms| {
            let start = starts.next_if(|start| start.0 == time_ms);
            Place { reference, time_ms, start_ms: start.map_or(0, |start| start.1) }
        };
        // A chunk has samples of one kind.
        for &(time_ms, bits) in &series.floats {
            self.float(place(time_ms), bits)?;
        }
        for (time_ms, histogram) in series.histograms.drain(..) {
            self.histogram(place(time_ms), histogram)?;
        }
        Ok(())
    }
}

impl Sink for Samples {
    const SAMPLES: bool = true;

    fn series(&mut self, reference: u64, _: &LabelBuf) {
        self.catalog.define_again(reference, self.definitions);
        self.definitions += 1;
    }

    fn tombstone(&mut self, _: u64, _: i64, _: i64) {}

    fn valid_since(&mut self, _: i64) {}

    fn unknown(&mut self) {
        self.counted.unknown_records += 1;
    }

    fn float(&mut self, place: Place, bits: u64) -> Result<(), StorageError> {
        let Some(rank) = self.wanted(place.reference, place.time_ms) else { return Ok(()) };
        self.counted.floats += 1;
        self.start(rank, place)?;
        self.spill.push(rank, place.time_ms, Item::Float(bits))
    }

    fn histogram(&mut self, place: Place, histogram: Histogram) -> Result<(), StorageError> {
        let Some(rank) = self.wanted(place.reference, place.time_ms) else { return Ok(()) };
        if !histogram.is_stale() && histogram.validate().is_err() {
            self.counted.invalid_histograms += 1;
            return Ok(());
        }
        self.counted.histograms += 1;
        self.start(rank, place)?;
        self.spill.push(rank, place.time_ms, Item::Histogram(Box::new(histogram)))
    }

    fn exemplar(&mut self, reference: u64, exemplar: StoredExemplar) -> Result<(), StorageError> {
        let Some(rank) = self.wanted(reference, exemplar.timestamp_ms) else { return Ok(()) };
        self.counted.exemplars += 1;
        self.spill.push(rank, exemplar.timestamp_ms, Item::Exemplar(Box::new(exemplar)))
    }
}
