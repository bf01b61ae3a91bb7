//! Whether a data directory is whole: everything is read once, and what blocks say of themselves is counted again.
use std::collections::BTreeMap;
use std::sync::Arc;

use metricsstore_model::{LabelBuf, MatchOp, Matcher};

use super::DataDir;
use crate::block::{Block, SeriesData, SeriesStream};
use crate::compaction::BlockSeries;
use crate::cut::CutSeries;
use crate::store::Places;
use crate::view::LiveBlock;
use crate::{BlockMeta, LogReport, StorageError};

/// Problems of one part that are told, at most; all are counted.
const MAX_PROBLEMS: usize = 20;

/// Something that is not as it should be: one sentence.
pub type Problem = String;

/// What was found in a block, in the segments, or in the log and the manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartReport {
    /// Which part.
    pub name: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Series that were read.
    pub series: u64,
    /// Samples that were read.
    pub samples: u64,
    /// How many problems there are.
    pub problem_count: u64,
    /// The first of them.
    pub problems: Vec<Problem>,
}

impl PartReport {
    fn new(name: impl Into<String>, bytes: u64) -> PartReport {
        PartReport { name: name.into(), bytes, ..PartReport::default() }
    }

    fn note(&mut self, problem: &dyn ToString) {
        self.problem_count += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem.to_string());
        }
    }
}

impl DataDir {
    /// Reads everything and says what is wrong with each part, as it is done with it.
    pub fn verify(&self, mut done: impl FnMut(&PartReport)) -> Result<(), StorageError> {
        for (name, error) in &self.broken {
            let mut report = PartReport::new(name.clone(), 0);
            report.note(error);
            done(&report);
        }
        for live in &self.blocks {
            done(&check_block(live)?);
        }
        if self.store.is_some() {
            done(&self.check_recent()?);
            done(&self.check_start());
        }
        if let Some(log) = self.log_report() {
            done(&self.check_log(log));
        }
        Ok(())
    }

    fn check_recent(&self) -> Result<PartReport, StorageError> {
        let mut report = PartReport::new("segments", self.contents().segment_bytes);
        let Some(store) = &self.store else { return Ok(report) };
        let segments = store.view.load().segments.clone();
        if segments.is_empty() {
            return Ok(report);
        }
        let mut stream = CutSeries::new(store, &segments, (i64::MIN, i64::MAX));
        Reading::default().read(&mut stream, &mut report)?;
        for (_, damage) in stream.outcome() {
            if let Some(error) = damage {
                report.note(&error);
            }
        }
        Ok(report)
    }

    fn check_log(&self, log: &LogReport) -> PartReport {
        let mut report = PartReport::new("log and head chunks", self.contents().log_bytes);
        (report.series, report.samples) = (log.series, log.floats + log.histograms);
        for place in &log.places {
            report.note(&format!("{}, byte {}: {}", place.file, place.offset, place.what));
        }
        report.problem_count = log.damaged;
        report
    }

    /// What opening the directory had to set aside, which it does as a start does.
    fn check_start(&self) -> PartReport {
        let mut report = PartReport::new("manifest, identity and log", self.contents().log_bytes);
        let place = Places::quarantine(self.path());
        for entry in self.files().list(&place).unwrap_or_default() {
            if !self.aside.contains(&entry.name) {
                report.note(&format!("{} is damaged or missing: a start sets it aside", entry.name));
            }
        }
        let set_aside = self.store.as_ref().map_or(0, |store| store.stats().quarantined);
        for _ in report.problem_count..set_aside {
            report.note(&"a start finds damage and counts it");
        }
        report
    }
}

/// Reads a stream and counts what it has.
#[derive(Default)]
struct Reading {
    labels: LabelBuf,
    floats: u64,
    histograms: u64,
    /// Of the series at hand.
    newest_ms: Option<i64>,
    oldest_ms: Option<i64>,
    latest_ms: Option<i64>,
    /// Series by the names of their labels.
    with_name: BTreeMap<String, u64>,
}

impl Reading {
    fn read(&mut self, stream: &mut dyn SeriesStream, report: &mut PartReport) -> Result<(), StorageError> {
        let mut slice = SeriesData::default();
        loop {
            match stream.next_into(&mut slice) {
                Ok(true) => self.take(&slice, report),
                Ok(false) => break,
                Err(error @ StorageError::Corrupt { .. }) => report.note(&error),
                Err(error) => return Err(error),
            }
        }
        report.samples = self.floats + self.histograms;
        Ok(())
    }

    fn take(&mut self, slice: &SeriesData, report: &mut PartReport) {
        if !slice.is_continuation {
            if report.series > 0 && self.labels >= slice.labels {
                report.note(&format!("series {:?} is not after the one before", text(&slice.labels)));
            }
            let names: Vec<&str> = slice.labels.iter().map(|(name, _)| name).collect();
            if !names.is_sorted_by(|a, b| a < b) {
                report.note(&format!("the labels of {:?} are not sorted", text(&slice.labels)));
            }
            for name in names {
                *self.with_name.entry(name.to_owned()).or_default() += 1;
            }
            report.series += 1;
            self.labels.clone_from(&slice.labels);
            self.newest_ms = None;
        }
        let mut times: Vec<i64> = slice.floats.iter().map(|sample| sample.0).collect();
        times.extend(slice.histograms.iter().map(|sample| sample.0));
        times.sort_unstable();
        let is_rising = times.is_sorted_by(|a, b| a < b)
            && slice.floats.is_sorted_by(|a, b| a.0 < b.0)
            && slice.histograms.is_sorted_by(|a, b| a.0 < b.0);
        let follows =
            times.first().is_none_or(|&first| self.newest_ms.is_none_or(|newest_ms| first > newest_ms));
        if !is_rising || !follows {
            report.note(&format!("the samples of {:?} are not in the order of time", text(&slice.labels)));
        }
        for (_, histogram) in &slice.histograms {
            if let Err(error) = histogram.validate() {
                report.note(&format!("a histogram of {:?}: {error}", text(&slice.labels)));
            }
        }
        self.newest_ms = times.last().copied().or(self.newest_ms);
        self.oldest_ms = self.oldest_ms.into_iter().chain(times.first().copied()).min();
        self.latest_ms = self.latest_ms.max(times.last().copied());
        self.floats += slice.floats.len() as u64;
        self.histograms += slice.histograms.len() as u64;
    }
}

fn text(labels: &LabelBuf) -> String {
    labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

fn check_block(live: &Arc<LiveBlock>) -> Result<PartReport, StorageError> {
    let meta = live.block.meta();
    let mut report = PartReport::new(meta.ulid.to_string(), meta.bytes);
    let mut reading = Reading::default();
    match BlockSeries::new(live) {
        Ok(mut stream) => reading.read(&mut stream, &mut report)?,
        Err(error @ StorageError::Corrupt { .. }) => report.note(&error),
        Err(error) => return Err(error),
    }
    // What was deleted is not read, and what is damaged was told already.
    if live.tombstones.by_row.is_empty() && report.problem_count == 0 {
        check_counts(meta, &reading, &mut report);
        if let Err(error) = check_index(&*live.block, &reading, &mut report) {
            report.note(&error);
        }
    }
    Ok(report)
}

fn check_counts(meta: &BlockMeta, reading: &Reading, report: &mut PartReport) {
    for (what, said, found) in [
        ("series", meta.series, report.series),
        ("samples", meta.float_samples + meta.histogram_samples, report.samples),
    ] {
        if said != found {
            report.note(&format!("it says that it has {said} {what} and has {found}"));
        }
    }
    let outside = reading.oldest_ms.is_some_and(|ms| ms < meta.start_ms)
        || reading.latest_ms.is_some_and(|ms| ms >= meta.end_ms);
    if outside {
        report.note(&format!(
            "it is for {}..{} and has samples from {:?} to {:?}",
            meta.start_ms, meta.end_ms, reading.oldest_ms, reading.latest_ms
        ));
    }
}

/// Names, values and postings say the same as the labels of all series.
fn check_index(block: &dyn Block, reading: &Reading, report: &mut PartReport) -> Result<(), StorageError> {
    let names = block.label_names(None)?;
    if !names.iter().eq(reading.with_name.keys()) {
        report.note(&"the label names of its index are not those of its series");
    }
    for (name, &series) in &reading.with_name {
        if block.label_values(name, None)?.is_empty() {
            report.note(&format!("its index has no values of label {name:?}"));
        }
        let Ok(present) = Matcher::new(MatchOp::NotEqual, name, "") else { continue };
        let found = block.rows(&[present])?.len();
        if found != series {
            report.note(&format!("{series} series have label {name:?}, its index finds {found}"));
        }
    }
    Ok(())
}
