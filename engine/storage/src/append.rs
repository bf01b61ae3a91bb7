//! A batch's way in: series, judgement per sample, log, columns.
use metricsstore_model::{Acknowledge, AppendError, Batch, Refusal, Refused, Verdicts};

use crate::WalSync;
use crate::append_extras::most_histogram_bytes;
use crate::head::{EpochData, Judgement, Limits};
use crate::identity::Resolved;
use crate::store::Store;
use crate::sync::atomic::Ordering::Relaxed;
use crate::taken::Taken;
use crate::wal::record::{self, LogSample, RowsEncoder};

/// How far a sample may lie in the future.
const FUTURE_MS: i64 = 10 * 60_000;
/// No sample may be older, whatever retention says: a double must hold its timestamp.
const FIRST_MS: i64 = -(1 << 52);
/// A record is written once it is this long, so that one batch never makes one too long for the reader.
const RECORD_BYTES: usize = 4 << 20;
/// Buffers that are kept between appends, and how long a kept one may be.
const KEPT_SCRATCHES: usize = 16;
const KEPT_RECORD_BYTES: usize = 1 << 20;

/// Buffers of one append, kept for the next.
pub(crate) struct Scratch {
    resolved: Vec<Result<Resolved, Refusal>>,
    rows: RowsEncoder,
    late_rows: RowsEncoder,
    /// Indexes of float samples with a start timestamp that were there already.
    duplicates: Vec<u32>,
}

impl Scratch {
    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.resolved.capacity() * size_of::<Result<Resolved, Refusal>>()
            + self.duplicates.capacity() * size_of::<u32>()
            + self.record_bytes()
    }

    fn record_bytes(&self) -> usize {
        self.rows.capacity() + self.late_rows.capacity()
    }
}

impl Store {
    pub(crate) fn append_batch(
        &self,
        batch: &Batch<'_>,
        acknowledge: Acknowledge,
    ) -> Result<Verdicts, AppendError> {
        let mut scratch = self.scratches.lock().pop().unwrap_or_else(|| Scratch {
            resolved: Vec::new(),
            rows: RowsEncoder::new(self.layout),
            late_rows: RowsEncoder::new(self.layout),
            duplicates: Vec::new(),
        });
        let result = self.append_with(batch, acknowledge, &mut scratch);
        if scratch.record_bytes() <= KEPT_RECORD_BYTES {
            let mut scratches = self.scratches.lock();
            if scratches.len() < KEPT_SCRATCHES {
                scratches.push(scratch);
            }
        }
        match &result {
            Ok(verdicts) => self.counters.count_verdicts(verdicts),
            Err(AppendError::Busy { .. }) => _ = self.counters.busy_requests.fetch_add(1, Relaxed),
            Err(AppendError::Log(_)) => {
                self.counters.log_failures.fetch_add(1, Relaxed);
                if self.log.is_out_of_space() {
                    self.ladder.disk.found_full();
                }
                self.report_read_only();
            }
            Err(_) => {}
        }
        result
    }

    fn append_with(
        &self,
        batch: &Batch<'_>,
        acknowledge: Acknowledge,
        scratch: &mut Scratch,
    ) -> Result<Verdicts, AppendError> {
        self.ladder.admit_writes()?;
        self.ladder.admit_histograms(most_histogram_bytes(batch))?;
        let (position, verdicts) = {
            // Keeps seals and the re-use of series ids out until the samples are in the log and the head.
            let _gate = self.gate.read();
            if self.closed.load(Relaxed) {
                return Err(AppendError::ShuttingDown);
            }
            if let Some(reason) = self.log.broken() {
                return Err(AppendError::Log(reason));
            }
            let verdicts = self.apply(batch, scratch).map_err(AppendError::Log)?;
            // A duplicate may be one of a sample that another append took and could not log. The gate keeps the seal
            // out that would make it durable, so that the log still tells.
            if let Some(reason) = self.log.broken() {
                return Err(AppendError::Log(reason));
            }
            (self.log.position(), verdicts)
        };
        if acknowledge == Acknowledge::Durable && self.options.wal_sync == WalSync::Commit {
            self.log.wait_durable(position).map_err(AppendError::Log)?;
        }
        Ok(verdicts)
    }

    fn apply(&self, batch: &Batch<'_>, scratch: &mut Scratch) -> Result<Verdicts, String> {
        self.identity.resolve(batch, self.ladder.admits_series(), &mut scratch.resolved);
        let mut verdicts = Verdicts::default();
        let mut shards = 0u64;
        for (row, resolved) in scratch.resolved.iter().enumerate() {
            match resolved {
                Ok(Resolved::Known(id)) => shards |= 1 << self.layout.shard_of(id.0),
                Ok(Resolved::Created(id)) => {
                    verdicts.series_created += 1;
                    shards |= 1 << self.layout.shard_of(id.0);
                }
                Ok(Resolved::Dropped) => verdicts.rows_dropped += 1,
                Err(refusal) => {
                    verdicts.refused.push(Refused {
                        row: row as u32,
                        sample: None,
                        refusal: refusal.clone(),
                    });
                }
            }
        }
        let mut limits = self.limits();
        scratch.duplicates.clear();
        let view = self.view.load();
        let metas = view.blocks.iter().map(|live| live.block.meta());
        let in_blocks = metas.filter(|meta| meta.min_ms <= limits.max_ms).map(|meta| meta.max_ms).max();
        limits.in_blocks_ms = in_blocks.unwrap_or(i64::MIN);
        let mut taken = Taken::new(&view, self.layout, &self.identity);
        while shards != 0 {
            let shard = shards.trailing_zeros() as usize;
            shards &= shards - 1;
            let mut data = view.open[shard].data.lock();
            self.apply_shard(batch, shard, limits, &mut data, &mut taken, scratch, &mut verdicts)?;
        }
        verdicts.refused.sort_by_key(|refused| (refused.row, refused.sample));
        if !batch.extras.is_empty() {
            let Scratch { resolved, duplicates, .. } = scratch;
            self.append_extras(batch, resolved, duplicates, limits, &view, &mut verdicts)?;
        }
        Ok(verdicts)
    }

    /// Bounds for one batch.
    fn limits(&self) -> Limits {
        let now_ms = self.clock.now_ms();
        let newest = self.credible_newest_ms();
        // Nothing is old in an empty store: `i64::MIN` stays what it is.
        let behind = |ms: i64| newest.saturating_sub(ms);
        let retained_ms = self.retained_from_ms(now_ms).max(FIRST_MS);
        let window_ms = self.out_of_order_window_ms.load(Relaxed);
        Limits {
            retained_ms,
            in_order_ms: behind(self.options.block_duration_ms / 2)
                .max(self.forgotten_ms.load(Relaxed))
                .max(retained_ms),
            late_ms: (window_ms > 0).then(|| behind(window_ms)),
            max_ms: now_ms.saturating_add(FUTURE_MS),
            in_blocks_ms: i64::MIN,
        }
    }

    /// The newest timestamp as far as others are judged by it: what a clock brought that ran ahead for a while closes the
    /// window to nobody.
    pub(crate) fn credible_newest_ms(&self) -> i64 {
        self.newest_ms.load(Relaxed).min(self.clock.now_ms().saturating_add(FUTURE_MS))
    }

    /// Judges, takes and logs the rows of one shard under its lock: the log has each series' samples in the order in
    /// which they were judged. When the log fails, what was taken is made durable by a seal before anything else is
    /// acknowledged (see [`Store::maintain`]).
    #[expect(clippy::too_many_arguments, reason = "the loop of `apply`, taken out")]
    fn apply_shard(
        &self,
        batch: &Batch<'_>,
        shard: usize,
        limits: Limits,
        data: &mut EpochData,
        taken: &mut Taken<'_>,
        scratch: &mut Scratch,
        verdicts: &mut Verdicts,
    ) -> Result<(), String> {
        let Scratch { resolved, rows, late_rows, duplicates } = scratch;
        rows.clear();
        late_rows.clear();
        let mut newest = i64::MIN;
        for (row, resolved) in resolved.iter().enumerate() {
            let Ok(Resolved::Known(id) | Resolved::Created(id)) = resolved else { continue };
            if self.layout.shard_of(id.0) != shard {
                continue;
            }
            let local = self.layout.local(id.0);
            let range = batch.rows[row].samples.clone();
            for (index, sample) in range.clone().zip(&batch.samples[range.start as usize..range.end as usize])
            {
                let (timestamp_ms, bits) = (sample.timestamp_ms, sample.value.to_bits());
                let sample = LogSample { series: id.0, timestamp_ms, bits };
                let judgement = match taken.judge_by_blocks(sample, limits) {
                    Some(judgement) => judgement,
                    None => data.append(local, timestamp_ms, bits, limits),
                };
                let written = match judgement {
                    Judgement::Written => Ok(Some(&mut *rows)),
                    Judgement::Duplicate => Ok(None),
                    Judgement::Refused(refusal) => Err(refusal),
                    Judgement::Older { is_last } => {
                        let judged = judge_older(data, taken, local, sample, is_last, limits);
                        judged.map(|late| late.then_some(&mut *late_rows))
                    }
                };
                match written {
                    Ok(record) => {
                        verdicts.written += 1;
                        if let Some(record) = record {
                            newest = newest.max(timestamp_ms);
                            record.push(sample);
                        } else if !batch.extras.starts_ms.is_empty() {
                            duplicates.push(index);
                        }
                    }
                    Err(refusal) => {
                        verdicts.refused.push(Refused { row: row as u32, sample: Some(index), refusal });
                    }
                }
            }
            if rows.len() + late_rows.len() >= RECORD_BYTES {
                self.newest_ms.fetch_max(newest, Relaxed);
                self.write(rows, late_rows)?;
            }
        }
        data.recount();
        self.newest_ms.fetch_max(newest, Relaxed);
        self.write(rows, late_rows)
    }

    /// Late rows come after the others: replay takes a row that is older than a late one of its series for a sealed one.
    fn write(&self, rows: &mut RowsEncoder, late_rows: &mut RowsEncoder) -> Result<(), String> {
        for (kind, encoder) in [(record::ROWS, rows), (record::LATE_ROWS, late_rows)] {
            let samples = u64::from(encoder.samples());
            if samples == 0 {
                continue;
            }
            self.log.append(kind, encoder.finish())?;
            self.counters.samples_appended.fetch_add(samples, Relaxed);
            if kind == record::LATE_ROWS {
                self.counters.late_samples.fetch_add(samples, Relaxed);
            }
            encoder.clear();
        }
        Ok(())
    }
}

/// Judges a sample that is not newer than its series' last by what the series has at its time, and takes it when it is
/// late. Says whether it was taken; a duplicate was not.
fn judge_older(
    data: &mut EpochData,
    taken: &mut Taken<'_>,
    local: u32,
    sample: LogSample,
    is_last: bool,
    limits: Limits,
) -> Result<bool, Refusal> {
    let LogSample { series, timestamp_ms, bits } = sample;
    let found = match data.value_at(local, timestamp_ms) {
        None => taken.value_at(series, timestamp_ms),
        found => Ok(found),
    };
    match found {
        Ok(Some(value)) if value == bits => Ok(false),
        Ok(None)
            if !is_last
                && limits.takes_late(timestamp_ms)
                && data.histogram_at(local, timestamp_ms).is_none()
                && matches!(taken.histogram_at(series, timestamp_ms), Ok(None)) =>
        {
            data.take_late(local, timestamp_ms, bits);
            Ok(true)
        }
        // Another value or a histogram. Where the series' samples cannot be read, nothing is the same or free.
        Ok(_) | Err(_) if is_last || limits.takes_late(timestamp_ms) => Err(Refusal::DuplicateTimestamp),
        _ => Err(limits.refusal_of_older(Refusal::OutOfOrder)),
    }
}
