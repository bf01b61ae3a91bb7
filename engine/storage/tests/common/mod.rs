//! What the tests of the store share: batches of plain labels, and reading everything back.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part, and tests may panic")]
pub mod changed;
pub mod formats;
pub mod golden;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use metricsstore_budget::{Budget, Grant};
use metricsstore_model::histogram::{Counts, Histogram, HistogramCounts, Span};
use metricsstore_model::read::{Columns, Selection, SeriesBatch, SeriesLabels, Source};
use metricsstore_model::{
    Acknowledge, Append, AppendError, Batch, Extras, HistogramSample, LabelBuf, LabelDecoder, LabelError,
    Matcher, Origin, RawKeyHasher, Row, STALE_NAN_BITS, Sample, Verdicts,
};
use metricsstore_storage::{Progress, StorageError, Store, StoreOptions};
use metricsstore_vfs::sim::{SimClock, SimFiles};

pub const DIR: &str = "/data";
/// An ordinary point in time.
pub const NOW_MS: i64 = 1_800_000_000_000;
pub const HOUR_MS: i64 = 3_600_000;

/// Labels written as `name=value;name=value`.
pub struct PlainLabels;

impl LabelDecoder for PlainLabels {
    fn decode(&self, raw_labels: &[u8], labels: &mut LabelBuf) -> Result<bool, LabelError> {
        labels.clear();
        let text = std::str::from_utf8(raw_labels).unwrap();
        for pair in text.split(';') {
            let (name, value) = pair.split_once('=').unwrap();
            labels.push(name, value);
        }
        labels.sort();
        Ok(true)
    }
}

/// Labels of a series that is told apart by a number, sorted by name.
pub fn labels_of(number: u32) -> [(String, String); 3] {
    [("__name__", format!("m{}", number % 7)), ("job", format!("j{}", number % 3)), ("n", number.to_string())]
        .map(|(name, value)| (name.to_owned(), value))
}

/// The same as raw bytes.
pub fn series(number: u32) -> String {
    labels_of(number).map(|(name, value)| format!("{name}={value}")).join(";")
}

/// Appends rows of one sample each.
pub fn append(
    store: &Store,
    rows: &[(u32, i64, f64)],
    acknowledge: Acknowledge,
) -> Result<Verdicts, AppendError> {
    let rows = rows.iter().map(|&(number, time, value)| (number, vec![(time, value)]));
    append_from(store, Origin::RemoteWrite(0), &rows.collect::<Vec<_>>(), |_| false, acknowledge)
}

/// The histogram that stands for a value: its sum is the value, and the rest follows from it.
pub fn histogram_of(value: f64) -> Histogram {
    if value.to_bits() == STALE_NAN_BITS {
        return Histogram::stale();
    }
    let low = value.to_bits() % 1000;
    let positive = vec![low, low / 3 + 1];
    let counts = Counts { count: low + low / 3 + 3, zero: 2, positive, negative: Vec::new() };
    Histogram {
        schema: (low % 5) as i32,
        sum: value,
        zero_threshold: 0.001,
        counts: HistogramCounts::Integer(counts),
        positive_spans: vec![Span { offset: (low % 7) as i32, length: 2 }],
        ..Histogram::default()
    }
}

/// Appends rows of any number of samples, those of some series as histograms.
pub fn append_from(
    store: &Store,
    origin: Origin,
    rows: &[(u32, Vec<(i64, f64)>)],
    is_histogram: impl Fn(u32) -> bool,
    acknowledge: Acknowledge,
) -> Result<Verdicts, AppendError> {
    let labels: Vec<String> = rows.iter().map(|&(number, _)| series(number)).collect();
    let hasher = RawKeyHasher::new(7, b"plain");
    let mut samples = Vec::new();
    let mut batch_rows = Vec::new();
    let mut extras = Extras::default();
    for ((number, row), raw) in rows.iter().zip(&labels) {
        let first = samples.len() as u32;
        if is_histogram(*number) {
            let index = batch_rows.len() as u32;
            extras.histograms.extend(row.iter().map(|&(timestamp_ms, value)| HistogramSample {
                row: index,
                timestamp_ms,
                start_ms: 0,
                histogram: Ok(histogram_of(value)),
            }));
        } else {
            samples.extend(row.iter().map(|&(timestamp_ms, value)| Sample { timestamp_ms, value }));
        }
        let (raw_labels, key) = (raw.as_bytes(), hasher.key(raw.as_bytes()));
        batch_rows.push(Row { raw_labels, key, samples: first..samples.len() as u32 });
    }
    let batch = Batch { origin, decoder: &PlainLabels, rows: batch_rows, samples, extras };
    store.append(&batch, acknowledge)
}

/// Samples by series number and time, values as bits.
pub type Contents = BTreeMap<u32, BTreeMap<i64, u64>>;

/// Reads a range; panics when a series stands in two batches or times do not ascend.
pub fn read(store: &Store, start_ms: i64, end_ms: i64) -> Contents {
    read_matching(store, &[], start_ms, end_ms)
}

/// The same of the series that pass.
pub fn read_matching(store: &Store, matchers: &[Matcher], start_ms: i64, end_ms: i64) -> Contents {
    let selection = Selection { matchers, start_ms, end_ms };
    let mut batches = store.select(&selection, &Grant::unlimited()).unwrap();
    let labels = batches.labels();
    let mut contents = Contents::new();
    while let Some(batch) = batches.next_batch().unwrap() {
        assert!(batch.times.iter().all(|time| (start_ms..=end_ms).contains(time)), "times lie in the range");
        read_batch(&batch, &*labels, &mut contents);
        assert_eq!(labels.failure(), None, "labels are read");
    }
    contents
}

/// Adds what a batch holds.
pub fn read_batch(batch: &SeriesBatch, labels: &dyn SeriesLabels, contents: &mut Contents) {
    assert!(batch.times.is_sorted_by(|a, b| a < b), "times ascend");
    let (mut times, mut values, mut label_buf) = (Vec::new(), Vec::new(), LabelBuf::new());
    for (index, id) in batch.ids.iter().enumerate() {
        batch.samples_into(index, &mut times, &mut values);
        if let Columns::Histograms(columns) = &batch.columns {
            let cells = &columns.cells[index * batch.times.len()..][..batch.times.len()];
            for (&time, histogram) in batch.times.iter().zip(cells) {
                let Some(histogram) = histogram else { continue };
                assert_eq!(*histogram, histogram_of(histogram.sum), "a histogram at {time}");
                times.push(time);
                values.push(histogram.sum);
            }
        }
        assert!(!times.is_empty(), "series without samples are left out");
        labels.labels(*id, &mut label_buf);
        if labels.failure().is_some() {
            // Says that labels could not be read; whoever asked for them looks.
            return;
        }
        let number = label_buf.get("n").unwrap().parse().unwrap();
        assert_eq!(label_buf.metric_name(), format!("m{}", number % 7), "labels belong to their series");
        let samples = times.iter().copied().zip(values.iter().map(|value| value.to_bits()));
        assert!(contents.insert(number, samples.collect()).is_none(), "a series is in one batch");
    }
}

pub fn read_all(store: &Store) -> Contents {
    read(store, i64::MIN, i64::MAX)
}

/// One series' samples as pairs, for literal comparisons.
pub fn samples_of(store: &Store, number: u32) -> Vec<(i64, f64)> {
    let contents = read_all(store);
    let samples = contents.get(&number).cloned().unwrap_or_default();
    samples.into_iter().map(|(time, bits)| (time, f64::from_bits(bits))).collect()
}

pub struct Machine {
    pub files: SimFiles,
    pub clock: SimClock,
    pub options: StoreOptions,
    pub budget: Budget,
}

impl Machine {
    pub fn new(seed: u64) -> Machine {
        Machine {
            files: SimFiles::new(seed),
            clock: SimClock::new(NOW_MS),
            options: StoreOptions::new(DIR),
            budget: Budget::unlimited(),
        }
    }

    /// The same on a volume of 1 GiB.
    pub fn on_a_small_volume(seed: u64) -> Machine {
        let machine = Machine::new(seed);
        machine.files.set_capacity(Some(1 << 30));
        machine
    }

    /// Fills the volume with somebody else's file, so that so many bytes are left.
    pub fn leave(&self, bytes: u64) {
        use metricsstore_vfs::Files;
        let other = Path::new("/other");
        if self.files.exists(other).unwrap() {
            self.files.remove(other).unwrap();
        }
        let available = self.files.space(Path::new("/")).unwrap().available;
        self.files.allocate(other, available - bytes).unwrap();
    }

    pub fn try_open(&self) -> Result<Arc<Store>, StorageError> {
        Store::open(
            self.options.clone(),
            Arc::new(self.files.clone()),
            Arc::new(self.clock.clone()),
            self.budget.clone(),
            Arc::new(Progress::default()),
        )
    }

    pub fn open(&self) -> Arc<Store> {
        self.try_open().unwrap()
    }

    /// Names of the files in a directory below the data directory.
    pub fn names(&self, below: &str) -> Vec<String> {
        use metricsstore_vfs::Files;
        let entries = self.files.list(&Path::new(DIR).join(below)).unwrap();
        entries.into_iter().map(|entry| entry.name).collect()
    }
}
