//! What `promtool tsdb dump` says of the committed data, to compare with.
#![allow(clippy::unwrap_used, reason = "tests may panic")]
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;

use flate2::read::GzDecoder;
use metricsstore_model::histogram::{CUSTOM_BUCKETS_SCHEMA, Histogram, HistogramCounts, Span};

use super::histogram_layout::indexes;
use crate::block::SeriesData;

/// Samples by the text of their labels.
pub(crate) type Dump = BTreeMap<String, Vec<(i64, Sample)>>;

#[derive(Debug, Clone)]
pub(crate) enum Sample {
    Float(f64),
    Histogram(Buckets),
}

/// A histogram as PromQL sees it: empty buckets are none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Buckets {
    count: f64,
    sum: f64,
    /// Bounds and count.
    filled: Vec<(f64, f64, f64)>,
}

/// Where the committed data lies.
pub(crate) fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/prometheus").join(path)
}

/// The lines of a committed file.
pub(crate) fn lines(name: &str) -> impl Iterator<Item = String> {
    BufReader::new(GzDecoder::new(File::open(data(name)).unwrap())).lines().map(Result::unwrap)
}

/// A committed dump.
pub(crate) fn expected(name: &str) -> Dump {
    let mut dump = Dump::new();
    for line in lines(name) {
        add_line(&mut dump, &line);
    }
    sort(&mut dump);
    dump
}

/// Adds a line of a dump.
pub(crate) fn add_line(dump: &mut Dump, line: &str) {
    let (rest, time) = line.rsplit_once(' ').unwrap();
    let (labels, value) = if let Some(end) = rest.find("} {") {
        (&rest[..=end], Sample::Histogram(Buckets::parse(&rest[end + 2..])))
    } else {
        let (labels, value) = rest.rsplit_once(' ').unwrap();
        (labels, Sample::Float(value.replace("+Inf", "inf").replace("-Inf", "-inf").parse().unwrap()))
    };
    dump.entry(labels.into()).or_default().push((time.parse().unwrap(), value));
}

/// Puts the samples of each series into the order of time.
pub(crate) fn sort(dump: &mut Dump) {
    for samples in dump.values_mut() {
        samples.sort_by_key(|sample| sample.0);
    }
}

/// Adds a series, or a slice of it.
pub(crate) fn add(dump: &mut Dump, series: &SeriesData) {
    let samples = dump.entry(series.labels.to_string()).or_default();
    let floats = series.floats.iter().map(|&(time, bits)| (time, Sample::Float(f64::from_bits(bits))));
    let histograms = series.histograms.iter();
    samples.extend(floats);
    samples.extend(histograms.map(|(time, histogram)| (*time, Sample::Histogram(Buckets::of(histogram)))));
    samples.sort_by_key(|sample| sample.0);
}

/// Fails where two dumps differ.
pub(crate) fn assert_same(actual: &Dump, expected: &Dump) {
    assert!(actual.keys().eq(expected.keys()), "other series: {:?}", actual.keys().collect::<Vec<_>>());
    for (labels, samples) in expected {
        let found = &actual[labels];
        assert_eq!(found.len(), samples.len(), "{labels}");
        for (found, sample) in found.iter().zip(samples) {
            assert!(is_same(found, sample), "{labels}: {found:?} instead of {sample:?}");
        }
    }
}

pub(crate) fn is_same(a: &(i64, Sample), b: &(i64, Sample)) -> bool {
    let is_near = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-12 * a.abs();
    a.0 == b.0
        && match (&a.1, &b.1) {
            (Sample::Float(a), Sample::Float(b)) => a == b || a.is_nan() && b.is_nan(),
            (Sample::Histogram(a), Sample::Histogram(b)) => {
                (a.count, a.filled.len()) == (b.count, b.filled.len())
                    && (a.sum == b.sum || a.sum.is_nan() && b.sum.is_nan())
                    && a.filled
                        .iter()
                        .zip(&b.filled)
                        .all(|(a, b)| is_near(a.0, b.0) && is_near(a.1, b.1) && a.2 == b.2)
            }
            _ => false,
        }
}

impl Buckets {
    fn parse(text: &str) -> Buckets {
        let mut parsed = Buckets::default();
        let text = text.trim_matches(['{', '}']).replace("Inf", "inf");
        for part in text.split(", ") {
            let (key, value) = part.rsplit_once(':').unwrap();
            let value = value.parse().unwrap();
            match key {
                "count" => parsed.count = value,
                "sum" => parsed.sum = value,
                _ => {
                    let (low, high) = key[1..key.len() - 1].split_once(',').unwrap();
                    parsed.filled.push((low.parse().unwrap(), high.parse().unwrap(), value));
                }
            }
        }
        parsed
    }

    fn of(histogram: &Histogram) -> Buckets {
        let (count, zero, positive, negative) = match &histogram.counts {
            HistogramCounts::Integer(counts) => {
                let floats = |counts: &[u64]| counts.iter().map(|&count| count as f64).collect();
                let (positive, negative): (Vec<f64>, Vec<f64>) =
                    (floats(&counts.positive), floats(&counts.negative));
                (counts.count as f64, counts.zero as f64, positive, negative)
            }
            HistogramCounts::Float(counts) => {
                (counts.count, counts.zero, counts.positive.clone(), counts.negative.clone())
            }
        };
        let bound = |index: i64| {
            if histogram.schema != CUSTOM_BUCKETS_SCHEMA {
                return (index as f64 * (-f64::from(histogram.schema)).exp2()).exp2();
            }
            let bounds = &histogram.custom_bounds;
            match usize::try_from(index) {
                Ok(index) => bounds.get(index).copied().unwrap_or(f64::INFINITY),
                Err(_) => f64::NEG_INFINITY,
            }
        };
        let side = |spans: &[Span], counts: &[f64]| -> Vec<(f64, f64, f64)> {
            let buckets = indexes(spans).zip(counts).map(|(at, &count)| (bound(at - 1), bound(at), count));
            buckets.filter(|bucket| bucket.2 != 0.0).collect()
        };
        let mut buckets: Vec<_> = side(&histogram.negative_spans, &negative)
            .into_iter()
            .rev()
            .map(|(low, high, count)| (-high, -low, count))
            .collect();
        if zero != 0.0 {
            buckets.push((-histogram.zero_threshold, histogram.zero_threshold, zero));
        }
        buckets.extend(side(&histogram.positive_spans, &positive));
        Buckets { count, sum: histogram.sum, filled: buckets }
    }
}
