//! What a batch holds beside float samples, on its way in: histograms, start timestamps, exemplars, metadata.
use std::collections::HashSet;
use std::sync::Arc;

use metricsstore_model::histogram::Histogram;
use metricsstore_model::{Batch, LabelBuf, Refusal, Refused, Verdicts};

use crate::exemplars::Taken as Exemplar;
use crate::head::{EpochData, Judgement, Limits};
use crate::identity::{Resolved, SeriesId};
use crate::store::Store;
use crate::sync::atomic::Ordering::Relaxed;
use crate::taken::Taken;
use crate::view::View;
use crate::wal::Log;
use crate::wal::body::BodyWriter;
use crate::wal::exemplar_record::{ExemplarsWriter, LogExemplar};
use crate::wal::histogram_record::{HistogramsWriter, LogHistogram};
use crate::wal::metadata_record::push_metadata;
use crate::wal::record;
use crate::wal::start_record::{LogStart, StartsWriter};
use crate::wal::tombstone_record::push_tombstone;

/// A record is written once it is this long; one more entry never makes it too long for the reader.
const RECORD_BYTES: usize = 4 << 20;
/// One part in this many of the memory budget is what exemplars may take; metadata may take as much again.
const ANNOTATION_SHARE: u64 = 16;

/// A histogram takes at most this many times its decoded size in the head.
const HISTOGRAM_COPIES: u64 = 3;

/// What became of the rows of a batch.
type Rows = [Result<Resolved, Refusal>];

fn series_of(rows: &Rows, row: u32) -> Option<SeriesId> {
    match rows.get(row as usize)? {
        Ok(Resolved::Known(id) | Resolved::Created(id)) => Some(*id),
        _ => None,
    }
}

/// The most that the histograms of a batch add to the head: encoded, a bucket of 8 bytes takes at most 10; the newest of
/// a series is kept decoded as well.
pub(crate) fn most_histogram_bytes(batch: &Batch<'_>) -> u64 {
    let histograms = batch.extras.histograms.iter().filter_map(|sample| sample.histogram.as_ref().ok());
    let decoded: usize = histograms.map(|histogram| size_of::<Histogram>() + histogram.heap_bytes()).sum();
    decoded as u64 * HISTOGRAM_COPIES
}

impl Store {
    /// Judges, takes and logs the extras of a batch, whose float samples are in already; `duplicates` were before.
    pub(crate) fn append_extras(
        &self,
        batch: &Batch<'_>,
        rows: &Rows,
        duplicates: &[u32],
        limits: Limits,
        view: &View,
        verdicts: &mut Verdicts,
    ) -> Result<(), String> {
        let same_histograms = self.append_histograms(batch, rows, limits, view, verdicts)?;
        self.append_starts(batch, rows, (duplicates, &same_histograms), view, verdicts)?;
        self.append_exemplars(batch, rows, limits, verdicts)?;
        self.learn_families(batch)
    }

    /// Entries with their series, those of one shard together and else in their order.
    fn by_shard(&self, entries: impl Iterator<Item = (SeriesId, u32)>) -> Vec<(usize, SeriesId, u32)> {
        let mut all: Vec<_> =
            entries.map(|(series, index)| (self.layout.shard_of(series.0), series, index)).collect();
        all.sort_by_key(|&(shard, ..)| shard);
        all
    }

    /// Returns the indexes of those that were there already.
    fn append_histograms(
        &self,
        batch: &Batch<'_>,
        rows: &Rows,
        limits: Limits,
        view: &View,
        verdicts: &mut Verdicts,
    ) -> Result<Vec<u32>, String> {
        let histograms = &batch.extras.histograms;
        let entries = (0u32..).zip(histograms);
        let entries = entries.filter_map(|(index, sample)| Some((series_of(rows, sample.row)?, index)));
        let mut taken = Taken::new(view, self.layout, &self.identity);
        let mut duplicates = Vec::new();
        for shard in self.by_shard(entries).chunk_by(|a, b| a.0 == b.0) {
            let mut record = HistogramsWriter::default();
            let mut data = view.open[shard[0].0].data.lock();
            for &(_, series, index) in shard {
                let sample = &histograms[index as usize];
                let entry = sample.histogram.clone().map(|histogram| LogHistogram {
                    series: series.0,
                    timestamp_ms: sample.timestamp_ms,
                    is_late: false,
                    histogram,
                });
                let judged = entry
                    .map_err(Refusal::from)
                    .and_then(|entry| self.judge_histogram(&mut data, &mut taken, entry, limits));
                match judged {
                    Ok(written) => {
                        verdicts.histograms.written += 1;
                        if let Some(entry) = written {
                            // At once: what the log then fails to take is in the head all the same.
                            self.newest_ms.fetch_max(entry.timestamp_ms, Relaxed);
                            record.push(&entry);
                        } else {
                            duplicates.push(index);
                        }
                    }
                    Err(refusal) => {
                        verdicts.histograms.refused.push(Refused {
                            row: sample.row,
                            sample: Some(index),
                            refusal,
                        });
                    }
                }
                if record.body().len() >= RECORD_BYTES {
                    self.log_samples(record.take())?;
                }
            }
            data.recount();
            self.log_samples(record.take())?;
        }
        verdicts.histograms.refused.sort_by_key(|refused| refused.sample);
        Ok(duplicates)
    }

    fn log_samples(&self, body: BodyWriter) -> Result<(), String> {
        let samples = u64::from(body.entries());
        self.log_body(record::HISTOGRAMS, body)?;
        self.counters.samples_appended.fetch_add(samples, Relaxed);
        Ok(())
    }

    fn log_body(&self, kind: u8, body: BodyWriter) -> Result<(), String> {
        append_body(&self.log, kind, body)
    }

    /// Validates and judges a histogram and takes it; returns what is to be logged, nothing for a duplicate.
    fn judge_histogram(
        &self,
        data: &mut EpochData,
        taken: &mut Taken<'_>,
        mut entry: LogHistogram,
        limits: Limits,
    ) -> Result<Option<LogHistogram>, Refusal> {
        entry.histogram.validate()?;
        let (local, time) = (self.layout.local(entry.series), entry.timestamp_ms);
        let judgement = match taken.judge_histogram_by_blocks(&entry, limits) {
            Some(judgement) => judgement,
            None => data.append_histogram(local, time, &entry.histogram, limits),
        };
        let is_last = match judgement {
            Judgement::Written => return Ok(Some(entry)),
            Judgement::Duplicate => return Ok(None),
            Judgement::Refused(refusal) => return Err(refusal),
            Judgement::Older { is_last } => is_last,
        };
        let found = match data.histogram_at(local, time) {
            None => taken.histogram_at(entry.series, time),
            found => Ok(found),
        };
        match found {
            Ok(Some(histogram)) if histogram == entry.histogram => Ok(None),
            Ok(None)
                if !is_last
                    && limits.takes_late(time)
                    && data.value_at(local, time).is_none()
                    && matches!(taken.value_at(entry.series, time), Ok(None)) =>
            {
                data.take_late_histogram(local, time, &entry.histogram);
                entry.is_late = true;
                Ok(Some(entry))
            }
            // A sample of another kind, or one that cannot be read.
            Ok(_) | Err(_) if is_last || limits.takes_late(time) => Err(Refusal::DuplicateTimestamp),
            _ => Err(limits.refusal_of_older(Refusal::OutOfOrder)),
        }
    }

    /// Start timestamps of the samples that are in. One that is not before its sample says nothing and is left out in
    /// silence (cortexproject/cortex#7060). One of a duplicate, of the float samples or the histograms, is taken only
    /// where a crash may have come between the sample and it: a sender that repeats itself adds nothing.
    fn append_starts(
        &self,
        batch: &Batch<'_>,
        rows: &Rows,
        duplicates: (&[u32], &[u32]),
        view: &View,
        verdicts: &Verdicts,
    ) -> Result<(), String> {
        let mut starts: Vec<(LogStart, bool)> = Vec::new();
        let mut push = |series: Option<SeriesId>, timestamp_ms, start_ms, is_duplicate| {
            if let Some(series) = series.filter(|_| start_ms != 0 && start_ms < timestamp_ms) {
                starts.push((LogStart { series: series.0, timestamp_ms, start_ms }, is_duplicate));
            }
        };
        if !batch.extras.starts_ms.is_empty() {
            let refused: HashSet<u32> =
                verdicts.refused.iter().filter_map(|refused| refused.sample).collect();
            let same_floats: HashSet<u32> = duplicates.0.iter().copied().collect();
            for (row, range) in (0u32..).zip(batch.rows.iter().map(|row| row.samples.clone())) {
                for index in range.filter(|index| !refused.contains(index)) {
                    let start_ms = batch.extras.starts_ms.get(index as usize).copied().unwrap_or(0);
                    let timestamp_ms = batch.samples[index as usize].timestamp_ms;
                    push(series_of(rows, row), timestamp_ms, start_ms, same_floats.contains(&index));
                }
            }
        }
        let refused: HashSet<u32> =
            verdicts.histograms.refused.iter().filter_map(|refused| refused.sample).collect();
        let same_histograms: HashSet<u32> = duplicates.1.iter().copied().collect();
        for (index, sample) in (0u32..).zip(&batch.extras.histograms) {
            if !refused.contains(&index) {
                let is_duplicate = same_histograms.contains(&index);
                push(series_of(rows, sample.row), sample.timestamp_ms, sample.start_ms, is_duplicate);
            }
        }
        let entries = (0u32..).zip(&starts).map(|(index, (start, _))| (SeriesId(start.series), index));
        for shard in self.by_shard(entries).chunk_by(|a, b| a.0 == b.0) {
            let mut record = StartsWriter::default();
            let mut data = view.open[shard[0].0].data.lock();
            for &(_, series, index) in shard {
                let (start, is_duplicate) = starts[index as usize];
                let local = self.layout.local(series.0);
                if is_duplicate && !data.lacks_start(local, start.timestamp_ms) {
                    continue;
                }
                data.kinds.push_start(local, start.timestamp_ms, start.start_ms);
                record.push(start);
                if record.body().len() >= RECORD_BYTES {
                    self.log_body(record::START_TIMESTAMPS, record.take())?;
                }
            }
            data.recount();
            self.log_body(record::START_TIMESTAMPS, record.take())?;
        }
        Ok(())
    }

    /// Bytes that exemplars may take, and that metadata may take: they must not keep samples out.
    pub(crate) fn annotation_room_bytes(&self) -> u64 {
        self.budget.limit() / ANNOTATION_SHARE
    }

    fn append_exemplars(
        &self,
        batch: &Batch<'_>,
        rows: &Rows,
        limits: Limits,
        verdicts: &mut Verdicts,
    ) -> Result<(), String> {
        if batch.extras.exemplars.is_empty() || !self.exemplars.is_enabled() {
            return Ok(());
        }
        let mut record = ExemplarsWriter::default();
        let mut labels_of: Option<(u32, Arc<LabelBuf>)> = None;
        // Held until they are logged, so that the log has them in the order in which they were judged.
        let room_bytes = self.annotation_room_bytes();
        let mut ring = self.exemplars.lock();
        for (index, exemplar) in (0u32..).zip(&batch.extras.exemplars) {
            if series_of(rows, exemplar.row).is_none() {
                continue;
            }
            let series = match &labels_of {
                Some((row, series)) if *row == exemplar.row => Arc::clone(series),
                _ => {
                    let mut series = LabelBuf::new();
                    let raw_labels = batch.rows[exemplar.row as usize].raw_labels;
                    // It was decoded when the series was created.
                    let Ok(true) = batch.decoder.decode(raw_labels, &mut series) else { continue };
                    labels_of.insert((exemplar.row, Arc::new(series))).1.clone()
                }
            };
            let mut labels = LabelBuf::new();
            let decoded = batch.decoder.decode_exemplar(exemplar.raw_labels, &mut labels);
            let (timestamp_ms, value) = (exemplar.timestamp_ms, exemplar.value);
            let entry = LogExemplar { series, labels, timestamp_ms, value };
            let taken = match decoded {
                Err(error) => Exemplar::Refused(error.into()),
                Ok(()) if timestamp_ms > limits.max_ms => Exemplar::Refused(Refusal::TooFarInFuture),
                Ok(()) => ring.push(&entry, room_bytes),
            };
            match taken {
                Exemplar::Written => {
                    verdicts.exemplars.written += 1;
                    record.push(&entry);
                }
                Exemplar::Duplicate => verdicts.exemplars.written += 1,
                Exemplar::Refused(refusal) => {
                    verdicts.exemplars.refused.push(Refused {
                        row: exemplar.row,
                        sample: Some(index),
                        refusal,
                    });
                }
            }
            if record.body().len() >= RECORD_BYTES {
                self.log_body(record::EXEMPLARS, record.take())?;
            }
        }
        self.log_body(record::EXEMPLARS, record.take())
    }

    fn learn_families(&self, batch: &Batch<'_>) -> Result<(), String> {
        let mut body = BodyWriter::default();
        let room_bytes = self.annotation_room_bytes();
        for metadata in &batch.extras.metadata {
            if let Some(kept) = self.families.learn(metadata, room_bytes) {
                push_metadata(&mut body, &kept);
            }
            if body.len() >= RECORD_BYTES {
                self.log_body(record::METADATA, std::mem::take(&mut body))?;
            }
        }
        self.log_body(record::METADATA, body)
    }

    /// No sample in segments and in memory is older, whatever retention hides of them and whatever is read from blocks by
    /// now; `i64::MAX` where there is none.
    fn oldest_ms(&self) -> i64 {
        let view = self.view.load();
        let sealed = view.segments.iter().map(|segment| segment.first_ms());
        let epochs = view.frozen.iter().chain(&view.open);
        sealed.chain(epochs.map(|epoch| epoch.data.lock().min_ms)).min().unwrap_or(i64::MAX)
    }

    /// Writes what the log alone keeps, which no segment has, into its present file, durably: metadata, tombstones and
    /// exemplars. Then the files before can go.
    pub(crate) fn carry_over(&self) -> Result<(), String> {
        let order_of = |series| self.identity.series_ref(SeriesId(series)).map(|series| series.order);
        self.tombstones.retain(self.oldest_ms(), order_of);
        if self.write_extras(&self.log)? { self.log.sync() } else { Ok(()) }
    }

    /// Writes metadata, tombstones and exemplars into a log and says whether there was anything.
    pub(crate) fn write_extras(&self, log: &Log) -> Result<bool, String> {
        let mut any = false;
        let mut write = |kind, body: BodyWriter| {
            any |= !body.is_empty();
            append_body(log, kind, body)
        };
        let mut body = BodyWriter::default();
        for metadata in self.families.all() {
            push_metadata(&mut body, &metadata);
            if body.len() >= RECORD_BYTES {
                write(record::METADATA, std::mem::take(&mut body))?;
            }
        }
        write(record::METADATA, std::mem::take(&mut body))?;
        for tombstone in self.tombstones.all() {
            push_tombstone(&mut body, &tombstone);
            if body.len() >= RECORD_BYTES {
                write(record::TOMBSTONES, std::mem::take(&mut body))?;
            }
        }
        write(record::TOMBSTONES, body)?;
        let mut exemplars = ExemplarsWriter::default();
        for exemplar in self.exemplars.all() {
            exemplars.push(&exemplar);
            if exemplars.body().len() >= RECORD_BYTES {
                write(record::EXEMPLARS, exemplars.take())?;
            }
        }
        write(record::EXEMPLARS, exemplars.take())?;
        Ok(any)
    }
}

/// Appends a record unless there is nothing in it.
fn append_body(log: &Log, kind: u8, body: BodyWriter) -> Result<(), String> {
    if !body.is_empty() {
        log.append(kind, &mut body.finish())?;
    }
    Ok(())
}
