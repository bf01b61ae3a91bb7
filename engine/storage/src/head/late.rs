//! Late samples of an epoch: those taken although their series has newer ones.
//!
//! A series keeps them in *runs*, each ascending in a column and a timestamp stream of its own. A sample goes on in the
//! run that ends closest before it, else it begins another; too many runs are merged, the shortest first, so that any
//! order of arrival costs a logarithm.
use hashbrown::HashMap;

use super::streams::{STREAM_BYTES, Streams};
use crate::column::{Arena, Column, decode_column};

/// Runs of one series.
const MAX_RUNS: usize = 8;
/// A run with its stream.
const RUN_BYTES: u64 = (size_of::<Run>() + STREAM_BYTES) as u64;

/// Late samples in ascending order.
pub(super) struct Run {
    pub(super) column: Column,
    /// Followed by this run alone; it has a row for every sample.
    pub(super) stream: u32,
    pub(super) rows: u32,
}

/// The runs of the series that have any: few have.
#[derive(Default)]
pub(super) struct LateRuns {
    runs: HashMap<u32, Vec<Run>>,
    heap_bytes: u64,
    /// Runs that were ever begun, merged ones included: their streams stay.
    begun: u64,
}

impl LateRuns {
    /// The runs of a series.
    pub(super) fn of(&self, local: u32) -> &[Run] {
        self.runs.get(&local).map_or(&[], Vec::as_slice)
    }

    /// Takes a sample at a time that the series does not have. The streams of merged runs stay: a reader may still
    /// look at them.
    pub(super) fn push(
        &mut self,
        local: u32,
        (timestamp_ms, bits): (i64, u64),
        streams: &mut Streams,
        arena: &mut Arena,
    ) {
        let runs = self.runs.entry(local).or_default();
        let before = runs.capacity();
        let end = |run: &Run| streams.last_ms(run.stream);
        let open =
            (0..runs.len()).filter(|&at| end(&runs[at]) < timestamp_ms).max_by_key(|&at| end(&runs[at]));
        let open = open.unwrap_or_else(|| {
            if runs.len() == MAX_RUNS {
                merge_shortest(runs, streams, arena);
                self.begun += 1;
            }
            self.begun += 1;
            runs.push(Run::new(streams));
            runs.len() - 1
        });
        runs[open].push(timestamp_ms, bits, streams, arena);
        self.heap_bytes += ((runs.capacity() - before) * size_of::<Run>()) as u64;
    }

    /// What the runs cost beside the arena, as much of the samples' as their encoded values: what is sealed for its bytes
    /// must be sealed for these too.
    pub(super) fn overhead_bytes(&self) -> u64 {
        self.begun * RUN_BYTES
    }

    /// Bytes of memory held beside the arena.
    pub(super) fn bytes(&self) -> u64 {
        self.runs.allocation_size() as u64 + self.heap_bytes
    }
}

impl Run {
    fn new(streams: &mut Streams) -> Run {
        Run { column: Column::default(), stream: streams.add(true), rows: 0 }
    }

    fn push(&mut self, timestamp_ms: i64, bits: u64, streams: &mut Streams, arena: &mut Arena) {
        streams.push(self.stream, timestamp_ms, arena);
        self.column.push(arena, 0, bits);
        self.rows += 1;
    }

    fn samples_into(&self, streams: &Streams, arena: &Arena, out: &mut Vec<(i64, u64)>) {
        let (mut payload, mut times) = (Vec::new(), Vec::new());
        self.column.copy_payload(arena, &mut payload);
        streams.times_into(self.stream, arena, &mut times);
        let decoded =
            decode_column(&payload, 0..self.rows, |row, bits| out.push((times[row as usize], bits)));
        debug_assert!(decoded.is_ok());
    }
}

/// Makes one run of the two shortest, and of the next longer ones as long as that does not do most of the work for the
/// longest alone.
fn merge_shortest(runs: &mut Vec<Run>, streams: &mut Streams, arena: &mut Arena) {
    runs.sort_by_key(|run| run.rows);
    let mut rows = runs[0].rows;
    let mut count = 1;
    while count < runs.len() && (count < 2 || runs[count].rows <= rows) {
        rows += runs[count].rows;
        count += 1;
    }
    let mut samples = Vec::with_capacity(rows as usize);
    for run in runs.drain(..count) {
        run.samples_into(streams, arena, &mut samples);
        streams.leave(run.stream);
    }
    samples.sort_unstable_by_key(|&(time, _)| time);
    let mut merged = Run::new(streams);
    for (time, bits) in samples {
        merged.push(time, bits, streams, arena);
    }
    runs.push(merged);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes samples in this order, each with its place in it as value, and returns what the runs hold, sorted.
    fn runs_of(times: &[i64]) -> (LateRuns, Streams, Arena) {
        let (mut late, mut streams, mut arena) = (LateRuns::default(), Streams::default(), Arena::default());
        for (place, &time) in times.iter().enumerate() {
            late.push(7, (time, (place as f64).to_bits()), &mut streams, &mut arena);
        }
        (late, streams, arena)
    }

    fn check(times: &[i64], most_runs: usize, most_streams: usize) {
        let (late, streams, arena) = runs_of(times);
        let mut samples = Vec::new();
        for run in late.of(7) {
            run.samples_into(&streams, &arena, &mut samples);
        }
        samples.sort_unstable();
        let mut expected: Vec<(i64, u64)> =
            times.iter().enumerate().map(|(place, &time)| (time, (place as f64).to_bits())).collect();
        expected.sort_unstable();
        assert_eq!(samples, expected);
        let found = (late.of(7).len(), streams.count() as usize);
        assert!(found.0 <= most_runs && found.1 <= most_streams, "{found:?} runs and streams");
        assert!(late.of(8).is_empty());
    }

    #[test]
    fn ascending_samples_are_one_run() {
        check(&(0..5000).collect::<Vec<_>>(), 1, 1);
    }

    #[test]
    fn interleaved_senders_get_a_run_each() {
        let times: Vec<i64> = (0..3000).map(|n| n / 3 + n % 3 * 100_000).collect();
        check(&times, 3, 3);
    }

    #[test]
    fn descending_and_shuffled_samples_stay_in_few_runs() {
        let descending: Vec<i64> = (0..3000).rev().collect();
        check(&descending, MAX_RUNS, 3000 * 2);
        let shuffled: Vec<i64> = (0..4096).map(|n: i64| (n * 2731) % 4096).collect();
        check(&shuffled, MAX_RUNS, 4096 * 2);
    }
}
