use std::collections::BTreeMap;
use std::path::Path;

use metricsstore_budget::Budget;
use metricsstore_model::{
    Acknowledge, Append, Batch, Extras, LabelDecoder, LabelError, Origin, RawKeyHasher, Row, Sample,
};
use metricsstore_vfs::Files;
use metricsstore_vfs::sim::{SimClock, SimFiles};

use super::*;
use crate::{Maintenance, StoreOptions};

const MINUTE_MS: i64 = 60_000;
/// Aligned to everything that the tests use.
const START_MS: i64 = 1_700_006_400_000;

/// Raw labels: the number of a series.
struct Numbers;

/// In the order of labels they are not in the order of numbers.
fn labels_of(number: u32) -> LabelBuf {
    let name = format!("metric_{}", number % 7);
    let instance = format!("host-{}", number * 31 % 101);
    let number = number.to_string();
    let mut labels =
        LabelBuf::from_pairs([("__name__", &*name), ("instance", &*instance), ("number", &*number)]);
    if number.len() == 1 {
        labels.push("zone", "a");
    }
    labels
}

impl LabelDecoder for Numbers {
    fn decode(&self, raw_labels: &[u8], labels: &mut LabelBuf) -> Result<bool, LabelError> {
        labels.clear();
        let number = u32::from_le_bytes(raw_labels.try_into().unwrap());
        labels_of(number).iter().for_each(|(name, value)| labels.push(name, value));
        Ok(true)
    }
}

fn open(window_ms: i64) -> Arc<Store> {
    let mut options = StoreOptions::new("/data");
    (options.shards, options.out_of_order_window_ms, options.retention_ms) = (2, window_ms, None);
    let (files, clock) = (SimFiles::new(1), SimClock::new(START_MS + 1_000 * MINUTE_MS));
    files.create_dir_all(Path::new("/data")).unwrap();
    Store::open(options, Arc::new(files), Arc::new(clock), Budget::unlimited(), Arc::default()).unwrap()
}

fn append(store: &Store, samples: &[(u32, i64, f64)]) {
    let raw: Vec<[u8; 4]> = samples.iter().map(|sample| sample.0.to_le_bytes()).collect();
    let keys = RawKeyHasher::new(1, b"numbers");
    let rows = raw.iter().zip(0..).map(|(raw, at): (_, u32)| Row {
        raw_labels: raw,
        key: keys.key(raw),
        samples: at..at + 1,
    });
    let batch = Batch {
        origin: Origin::RemoteWrite(0),
        decoder: &Numbers,
        rows: rows.collect(),
        samples: samples.iter().map(|&(_, timestamp_ms, value)| Sample { timestamp_ms, value }).collect(),
        extras: Extras::default(),
    };
    let verdicts = store.append(&batch, Acknowledge::Durable).unwrap();
    assert!(verdicts.refused.is_empty(), "{:?}", verdicts.refused);
}

fn seal(store: &Store) {
    store.seal(&mut store.upkeep.lock(), &mut Maintenance::default()).unwrap();
}

type Contents = BTreeMap<LabelBuf, Vec<(i64, u64)>>;

/// Everything of a stream, which must be in order.
fn collect(stream: &mut CutSeries<'_>) -> Contents {
    let (mut all, mut series) = (Contents::new(), SeriesData::default());
    let mut last: Option<LabelBuf> = None;
    while stream.next_into(&mut series).unwrap() {
        assert!(!series.floats.is_empty() && series.floats.len() <= SLICE_SAMPLES);
        assert_eq!(last.as_ref() == Some(&series.labels), series.is_continuation);
        assert!(last.is_none_or(|last| last <= series.labels));
        all.entry(series.labels.clone()).or_default().extend(&series.floats);
        last = Some(series.labels.clone());
    }
    assert!(all.values().all(|samples| samples.is_sorted_by(|a, b| a.0 < b.0)));
    all
}

#[test]
fn a_range_of_several_segments_comes_out_in_the_order_of_labels() {
    let store = open(0);
    let (start_ms, end_ms) = (START_MS + 10 * MINUTE_MS, START_MS + 50 * MINUTE_MS);
    let (mut expected, mut next_ms) = (Contents::new(), i64::MAX);
    for step in 0..60_i64 {
        let samples: Vec<(u32, i64, f64)> = (0..300_u32)
            .filter(|number| step % 3 != 1 || number % 2 == 0)
            .map(|number| (number, START_MS + step * MINUTE_MS + i64::from(number % 5), step as f64))
            .collect();
        append(&store, &samples);
        for (number, time, value) in samples {
            if (start_ms..end_ms).contains(&time) {
                expected.entry(labels_of(number)).or_default().push((time, value.to_bits()));
            } else if time >= end_ms {
                next_ms = next_ms.min(time);
            }
        }
        if step % 20 == 19 {
            seal(&store);
        }
    }
    let segments = store.view.load().segments.clone();
    assert_eq!(segments.len(), 3);
    let mut stream = CutSeries::new(&store, &segments, (start_ms, end_ms));
    // Several batches, and some that do not fit at first.
    (stream.batch_series, stream.batch_bytes) = (100, 20_000);
    assert_eq!(collect(&mut stream), expected);
    let outcome: Vec<(i64, bool)> =
        stream.outcome().map(|(left, damage)| (left.next_ms, damage.is_some())).collect();
    assert_eq!(outcome, [(i64::MAX, false), (i64::MAX, false), (next_ms, false)]);
}

#[test]
fn late_samples_are_put_where_they_belong_and_deleted_ones_are_left_out() {
    let store = open(1_000 * MINUTE_MS);
    let time = |minute: i64| START_MS + minute * MINUTE_MS;
    append(&store, &[(1, time(0), 0.0), (2, time(0), 0.5), (1, time(40), 4.0), (2, time(40), 4.5)]);
    seal(&store);
    append(&store, &[(1, time(10), 1.0), (2, time(20), 2.5), (1, time(50), 5.0), (1, time(5), 0.5)]);
    let all = [vec![metricsstore_model::Matcher::equal("number", "2")]];
    store.delete(&all, time(15), time(45)).unwrap();
    seal(&store);
    let segments = store.view.load().segments.clone();
    let mut stream = CutSeries::new(&store, &segments, (time(0), time(60)));
    let of = |samples: &[(i64, f64)]| {
        samples.iter().map(|&(minute, value)| (time(minute), value.to_bits())).collect::<Vec<_>>()
    };
    let expected = Contents::from([
        (labels_of(1), of(&[(0, 0.0), (5, 0.5), (10, 1.0), (40, 4.0), (50, 5.0)])),
        (labels_of(2), of(&[(0, 0.5)])),
    ]);
    assert_eq!(collect(&mut stream), expected);
}

#[test]
fn a_series_with_more_samples_than_a_slice_comes_in_several() {
    let store = open(0);
    let count = SLICE_SAMPLES as i64 * 2 + 10;
    for first in (0..count).step_by(10_000) {
        let samples: Vec<(u32, i64, f64)> =
            (first..count.min(first + 10_000)).map(|at| (3, START_MS + at * 7, at as f64)).collect();
        append(&store, &samples);
    }
    seal(&store);
    let segments = store.view.load().segments.clone();
    let mut stream = CutSeries::new(&store, &segments, (START_MS, START_MS + 24 * 60 * MINUTE_MS));
    let contents = collect(&mut stream);
    let expected: Vec<(i64, u64)> = (0..count).map(|at| (START_MS + at * 7, (at as f64).to_bits())).collect();
    assert_eq!(contents[&labels_of(3)], expected);
}
