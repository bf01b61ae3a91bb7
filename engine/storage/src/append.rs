//! A batch's way in: series, judgement per sample, log, columns.
use std::sync::Arc;

use metricsstore_model::{Acknowledge, AppendError, Batch, Refusal, Refused, Verdicts};

use crate::WalSync;
use crate::head::{EpochData, Judgement, Limits};
use crate::identity::Resolved;
use crate::segment::{Segment, SegmentCursor};
use crate::store::Store;
use crate::sync::atomic::Ordering::Relaxed;
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
    record: RowsEncoder,
}

impl Scratch {
    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.resolved.capacity() * size_of::<Result<Resolved, Refusal>>() + self.record.capacity()
    }
}

impl Store {
    pub(crate) fn append_batch(
        &self,
        batch: &Batch<'_>,
        acknowledge: Acknowledge,
    ) -> Result<Verdicts, AppendError> {
        let mut scratch = self
            .scratches
            .lock()
            .pop()
            .unwrap_or_else(|| Scratch { resolved: Vec::new(), record: RowsEncoder::new() });
        let result = self.append_with(batch, acknowledge, &mut scratch);
        if scratch.record.capacity() <= KEPT_RECORD_BYTES {
            let mut scratches = self.scratches.lock();
            if scratches.len() < KEPT_SCRATCHES {
                scratches.push(scratch);
            }
        }
        match &result {
            Ok(verdicts) => self.counters.count_verdicts(verdicts),
            Err(AppendError::Busy { .. }) => _ = self.counters.busy_requests.fetch_add(1, Relaxed),
            Err(AppendError::Log(_)) => _ = self.counters.log_failures.fetch_add(1, Relaxed),
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
        let limits = self.limits();
        let view = self.view.load();
        while shards != 0 {
            let shard = shards.trailing_zeros() as usize;
            shards &= shards - 1;
            let mut data = view.open[shard].data.lock();
            self.apply_shard(batch, shard, limits, &mut data, scratch, &mut verdicts)?;
        }
        verdicts.refused.sort_by_key(|refused| (refused.row, refused.sample));
        Ok(verdicts)
    }

    /// Bounds for one batch.
    fn limits(&self) -> Limits {
        let now_ms = self.clock.now_ms();
        let newest = self.newest_ms.load(Relaxed);
        let lagging = if newest == i64::MIN {
            i64::MIN
        } else {
            newest.saturating_sub(self.options.block_duration_ms / 2)
        };
        Limits {
            min_ms: lagging.max(self.retained_from_ms(now_ms)).max(FIRST_MS),
            max_ms: now_ms.saturating_add(FUTURE_MS),
        }
    }

    /// Judges, takes and logs the rows of one shard under its lock: the log has each series' samples in the order in
    /// which they were judged. When the log fails, what was taken is made durable by a seal before anything else is
    /// acknowledged (see [`Store::maintain`]).
    fn apply_shard(
        &self,
        batch: &Batch<'_>,
        shard: usize,
        limits: Limits,
        data: &mut EpochData,
        scratch: &mut Scratch,
        verdicts: &mut Verdicts,
    ) -> Result<(), String> {
        let Scratch { resolved, record } = scratch;
        record.clear();
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
                let bits = sample.value.to_bits();
                let mut judgement = data.append(local, sample.timestamp_ms, bits, limits);
                if judgement == Judgement::Recall
                    && let Some(sealed) = self.sealed_value(id.0, sample.timestamp_ms)
                {
                    data.recall(local, sealed);
                    judgement = data.append(local, sample.timestamp_ms, bits, limits);
                }
                match judgement {
                    Judgement::Written => {
                        verdicts.written += 1;
                        newest = newest.max(sample.timestamp_ms);
                        record.push(LogSample { series: id.0, timestamp_ms: sample.timestamp_ms, bits });
                    }
                    Judgement::Duplicate => verdicts.written += 1,
                    // The sealed value cannot be read: nothing may be said to be the same.
                    Judgement::Recall => verdicts.refused.push(Refused {
                        row: row as u32,
                        sample: Some(index),
                        refusal: Refusal::DuplicateTimestamp,
                    }),
                    Judgement::Refused(refusal) => {
                        verdicts.refused.push(Refused { row: row as u32, sample: Some(index), refusal });
                    }
                }
            }
            if record.len() >= RECORD_BYTES {
                self.write(record)?;
            }
        }
        data.recount();
        self.newest_ms.fetch_max(newest, Relaxed);
        if record.is_empty() { Ok(()) } else { self.write(record) }
    }

    /// The value of a sealed sample, newest segments first.
    fn sealed_value(&self, series: u32, timestamp_ms: i64) -> Option<u64> {
        let view = self.view.load();
        let may_have = |segment: &&Arc<Segment>| (segment.min_ms..=segment.max_ms).contains(&timestamp_ms);
        view.segments.iter().rev().filter(may_have).find_map(|segment| {
            SegmentCursor::new(Arc::clone(segment)).value_at(series, timestamp_ms).ok().flatten()
        })
    }

    fn write(&self, rows: &mut RowsEncoder) -> Result<(), String> {
        let samples = u64::from(rows.samples());
        self.log.append(record::ROWS, rows.finish())?;
        self.counters.samples_appended.fetch_add(samples, Relaxed);
        rows.clear();
        Ok(())
    }
}
