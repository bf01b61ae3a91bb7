//! The start timestamps of one series' samples. Those of a counter that is not reset are all the same, and its samples
//! mostly come at one distance, so that a run of any length takes two bytes or three.
//!
//! ```text
//! per run, varints: 0, zigzag(step = ms of the sample − previous ms), zigzag(start − previous start)
//!                or n, n more samples, each one step after the one before, with the same start
//! ```
use metricsstore_codec::varint::{put, take, unzigzag, zigzag};

use super::{KindColumn, Size};

/// Longest run, so that damage cannot make few bytes into very many samples.
const MAX_RUN: u64 = 1 << 16;

/// Most entries of one column that are believed.
const MAX_ENTRIES: u64 = 1 << 24;

/// An open column.
#[derive(Default)]
pub(crate) struct StartColumn {
    payload: Vec<u8>,
    entries: u64,
    min_ms: i64,
    max_ms: i64,
    last_ms: i64,
    step_ms: i64,
    start_ms: i64,
    /// Samples that continue the last entry and are not in the payload yet.
    run: u64,
}

impl StartColumn {
    pub(crate) fn push(&mut self, timestamp_ms: i64, start_ms: i64) {
        let is_first = self.entries == 0;
        let step = timestamp_ms.wrapping_sub(self.last_ms);
        if !is_first && step == 0 {
            // The same sample again.
            return;
        }
        if !is_first && step == self.step_ms && start_ms == self.start_ms && self.run < MAX_RUN {
            self.run += 1;
        } else {
            self.flush_run();
            put(&mut self.payload, 0);
            put(&mut self.payload, zigzag(step));
            put(&mut self.payload, zigzag(start_ms.wrapping_sub(self.start_ms)));
        }
        self.min_ms = if is_first { timestamp_ms } else { self.min_ms.min(timestamp_ms) };
        self.max_ms = if is_first { timestamp_ms } else { self.max_ms.max(timestamp_ms) };
        (self.last_ms, self.step_ms, self.start_ms) = (timestamp_ms, step, start_ms);
        self.entries += 1;
    }

    fn flush_run(&mut self) {
        let run = std::mem::take(&mut self.run);
        if run > 0 {
            put(&mut self.payload, run);
        }
    }

    pub(crate) fn column(&self) -> Option<KindColumn> {
        if self.entries == 0 {
            return None;
        }
        let mut payload = self.payload.clone();
        if self.run > 0 {
            put(&mut payload, self.run);
        }
        Some(KindColumn { min_ms: self.min_ms, max_ms: self.max_ms, entries: self.entries, payload })
    }

    pub(super) fn size(&self) -> Size {
        Size { heap: self.payload.capacity() as u64, payload: self.payload.len() as u64 }
    }
}

/// Hands each `(ms of the sample, start ms)` of a column of so many `entries` to `sink` in the order in which they came;
/// says what is wrong.
pub(crate) fn decode_starts(
    mut payload: &[u8],
    entries: u64,
    mut sink: impl FnMut(i64, i64),
) -> Result<(), &'static str> {
    let (mut time, mut step, mut start) = (0i64, 0i64, 0i64);
    // Few bytes may stand for very many entries: those that the directory does not know of are damage.
    let mut left = entries.min(MAX_ENTRIES);
    let next = |payload: &mut &[u8]| take(payload).map_err(|damaged| damaged.what);
    while !payload.is_empty() {
        let mut run = next(&mut payload)?;
        if run > MAX_RUN {
            return Err("a run of start timestamps that is too long");
        }
        if run == 0 {
            step = unzigzag(next(&mut payload)?);
            start = start.wrapping_add(unzigzag(next(&mut payload)?));
            run = 1;
        }
        left = left.checked_sub(run).ok_or("more start timestamps than there are samples")?;
        for _ in 0..run {
            time = time.wrapping_add(step);
            sink(time, start);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(entries: &[(i64, i64)]) -> (Vec<(i64, i64)>, usize) {
        let mut column = StartColumn::default();
        for &(time, start) in entries {
            column.push(time, start);
        }
        let column = column.column().unwrap();
        let mut decoded = Vec::new();
        decode_starts(&column.payload, column.entries, |time, start| decoded.push((time, start))).unwrap();
        assert_eq!(column.entries, decoded.len() as u64);
        (decoded, column.payload.len())
    }

    #[test]
    fn a_steady_counter_costs_a_few_bytes_however_long_it_runs() {
        let steady: Vec<(i64, i64)> =
            (0..10_000).map(|n| (1_700_000_000_000 + n * 15_000, 1_600_000_000_000)).collect();
        let (decoded, bytes) = round_trip(&steady);
        assert_eq!(decoded, steady);
        assert!(bytes <= 13 + 5 + 2, "{bytes} bytes");
    }

    #[test]
    fn resets_gaps_jitter_and_late_samples_come_back() {
        let mut entries =
            vec![(i64::MIN, i64::MAX), (i64::MAX, i64::MIN), (0, 0), (5, 0), (10, 0), (15, 3), (12, 1)];
        entries.extend((0..50).map(|n| (1000 + n * 17 + n * n % 5, n / 10)));
        assert_eq!(round_trip(&entries).0, entries);
    }

    #[test]
    fn garbage_is_an_error_or_entries_and_never_a_panic() {
        let mut state = 1u64;
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..12)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    ((state >> 33) as u8) & if state >> 63 == 0 { 0x0f } else { 0xff }
                })
                .collect();
            let mut count = 0u64;
            let _ = decode_starts(&bytes[..6], u64::MAX, |_, _| count += 1);
        }
        assert!(decode_starts(&[0xff, 0xff, 0xff, 0xff, 0x7f], u64::MAX, |_, _| {}).is_err());
    }
}
