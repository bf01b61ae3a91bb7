//! Chunks and their files: against what Prometheus wrote, and back and forth.
#![allow(clippy::unwrap_used, reason = "tests may panic")]
use std::path::Path;
use std::sync::Arc;

use metricsstore_codec::varint;
use metricsstore_model::histogram::{
    CUSTOM_BUCKETS_SCHEMA, Counts, Histogram, HistogramCounts, ResetHint, Span,
};
use metricsstore_model::stale_nan;
use metricsstore_vfs::Files;
use metricsstore_vfs::real::RealFiles;
use metricsstore_vfs::sim::SimFiles;
use proptest::prelude::*;

use super::chunk::{Chunk, Encoding, decode_chunk, encode_series};
use super::chunk_files::{ChunkReader, ChunkWriter};
use super::dump::{Sample, add, data, expected, is_same};
use crate::block::SeriesData;

/// Where chunks lie in a file, from its first on.
fn chunk_offsets(bytes: &[u8]) -> Vec<u64> {
    let (mut offsets, mut rest) = (Vec::new(), &bytes[8..]);
    while !rest.is_empty() {
        offsets.push((bytes.len() - rest.len()) as u64);
        let length = varint::take(&mut rest).unwrap() as usize;
        rest = &rest[length + 5..];
    }
    offsets
}

/// All chunks of the committed block of this name.
fn chunks_of(block: &str) -> Vec<(Encoding, Vec<u8>)> {
    let dir = data(block).join("chunks");
    let offsets = chunk_offsets(&std::fs::read(dir.join("000001")).unwrap());
    let reader = ChunkReader::open(&RealFiles, &dir).unwrap();
    let mut data = Vec::new();
    offsets
        .into_iter()
        .map(|offset| {
            let encoding = reader.read(offset, &mut data).unwrap();
            (encoding, data.clone())
        })
        .collect()
}

fn decoded(chunks: &[(Encoding, Vec<u8>)]) -> SeriesData {
    let mut series = SeriesData::default();
    for (encoding, bytes) in chunks {
        decode_chunk(*encoding, bytes, &mut series).unwrap();
    }
    series
}

fn encoded(series: &SeriesData) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    encode_series(series, &mut chunks);
    chunks
}

const SNAPSHOT: &str = "snapshot/01M8PQN08JPBB7KPSZQ0D3Y8MN";

#[test]
fn chunks_of_prometheus_hold_what_its_dump_says() {
    let mut found = super::dump::Dump::new();
    add(&mut found, &decoded(&chunks_of(SNAPSHOT)));
    let order = |samples: &mut Vec<(i64, Sample)>| {
        samples
            .sort_by(|a, b| (a.0, format!("{:?}", a.1)).partial_cmp(&(b.0, format!("{:?}", b.1))).unwrap());
    };
    let mut found: Vec<_> = found.into_values().flatten().collect();
    let mut wanted: Vec<_> = expected("snapshot.dump.gz").into_values().flatten().collect();
    assert_eq!(found.len(), wanted.len());
    order(&mut found);
    order(&mut wanted);
    for (found, wanted) in found.iter().zip(&wanted) {
        assert!(is_same(found, wanted), "{found:?} instead of {wanted:?}");
    }
}

#[test]
fn samples_of_a_chunk_are_encoded_as_prometheus_did() {
    for chunk in chunks_of(SNAPSHOT) {
        let found = encoded(&decoded(std::slice::from_ref(&chunk)));
        assert_eq!(found.len(), 1, "a chunk of {} bytes was cut", chunk.1.len());
        let mut wanted = chunk.1;
        if !chunk.0.is_float() && wanted[2] >> 6 != 3 {
            // Alone it knows of no chunk before.
            wanted[2] = 0;
        }
        assert_eq!(found[0].bytes, wanted);
    }
}

#[test]
fn chunks_with_start_timestamps_are_read() {
    let text = std::fs::read_to_string(data("chunks_with_starts.txt")).unwrap();
    let mut chunks = Vec::<(Encoding, SeriesData, Vec<String>)>::new();
    for line in text.lines() {
        let parts: Vec<&str> = line.split(' ').collect();
        if let [_, _, encoding, hex] = parts[..] {
            let bytes: Vec<u8> = (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect();
            let encoding = Encoding::from_number(encoding.parse().unwrap()).unwrap();
            chunks.push((encoding, decoded(&[(encoding, bytes)]), Vec::new()));
        } else {
            chunks.last_mut().unwrap().2.push(line.into());
        }
    }
    assert_eq!(chunks.len(), 13);
    for (encoding, series, lines) in chunks {
        let mut found = Vec::new();
        let start = |time: i64| series.starts.iter().find(|start| start.0 == time).map_or(0, |start| start.1);
        for &(time, bits) in &series.floats {
            found.push(format!("{time} {bits:016x} {}", start(time)));
        }
        for (time, histogram) in &series.histograms {
            let sum = histogram.sum.to_bits();
            let counts = match &histogram.counts {
                HistogramCounts::Integer(counts) => counts.clone(),
                HistogramCounts::Float(counts) => Counts {
                    count: counts.count as u64,
                    zero: counts.zero as u64,
                    positive: counts.positive.iter().map(|&count| count as u64).collect(),
                    negative: counts.negative.iter().map(|&count| count as u64).collect(),
                },
            };
            let is_float = matches!(histogram.counts, HistogramCounts::Float(_));
            assert_eq!(is_float, encoding == Encoding::FloatHistogramStart);
            let buckets: Vec<String> =
                counts.positive.iter().chain(&counts.negative).map(u64::to_string).collect();
            found.push(format!(
                "{time} {} {} {sum:016x} {} {}",
                counts.count,
                counts.zero,
                buckets.join(" "),
                start(*time)
            ));
        }
        assert_eq!(found, lines);
    }
}

/// Times with small, equal and large steps.
fn times(max: usize) -> impl Strategy<Value = Vec<i64>> {
    let step = prop_oneof![5 => Just(15_000_i64), 2 => 14_990..15_010_i64, 1 => 1..10_000_000_i64, 1 => 1..1_i64 << 40];
    (any::<i32>(), prop::collection::vec(step, 0..max)).prop_map(|(first, steps)| {
        let mut time = i64::from(first) * 1000;
        steps
            .into_iter()
            .map(|step| {
                time += step;
                time
            })
            .collect()
    })
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => Just(1.0_f64.to_bits()),
        3 => (0..1000_i32).prop_map(|value| f64::from(value).to_bits()),
        1 => any::<u64>(),
        1 => Just(stale_nan().to_bits()),
    ]
}

fn spans() -> impl Strategy<Value = Vec<Span>> {
    let first = (-20..20_i32, 0..4_u32);
    let others = prop::collection::vec((0..3_i32, 0..4_u32), 0..4);
    (first, others).prop_map(|(first, others)| {
        let span = |(offset, length)| Span { offset, length };
        std::iter::once(first).chain(others).map(span).collect()
    })
}

/// A histogram whose buckets hold a multiple of 0 to 3 of `scale`, so that counts mostly rise with it.
fn histogram(scale: u64) -> impl Strategy<Value = Histogram> {
    let parts = (spans(), spans(), prop::collection::vec(0..4_u64, 40), 0..12_u8, 0..4_u64);
    let floats = (any::<bool>(), value());
    (parts, floats).prop_map(
        move |((positive_spans, negative_spans, multiples, kind, zero), (is_float, sum))| {
            let length = |spans: &[Span]| spans.iter().map(|span| span.length as usize).sum::<usize>();
            let mut multiples = multiples.into_iter().map(|multiple| multiple * scale);
            let positive: Vec<u64> = multiples.by_ref().take(length(&positive_spans)).collect();
            let negative: Vec<u64> = multiples.take(length(&negative_spans)).collect();
            let zero = zero * scale;
            let count = zero + positive.iter().chain(&negative).sum::<u64>();
            let floats = |counts: &[u64]| counts.iter().map(|&count| count as f64 / 3.0).collect();
            let counts = if is_float {
                HistogramCounts::Float(Counts {
                    count: count as f64 / 3.0,
                    zero: zero as f64 / 3.0,
                    positive: floats(&positive),
                    negative: floats(&negative),
                })
            } else {
                HistogramCounts::Integer(Counts { count, zero, positive, negative })
            };
            let base = Histogram {
                schema: if kind == 1 { 3 } else { 0 },
                zero_threshold: [0.0, 0.001, 0.25][usize::from(kind % 3)],
                reset_hint: [ResetHint::Unknown, ResetHint::Gauge][usize::from(kind == 2)],
                // Of the values those that end a series are left out here.
                sum: if sum == stale_nan().to_bits() { 0.0 } else { f64::from_bits(sum) },
                counts,
                positive_spans,
                negative_spans,
                custom_bounds: Vec::new(),
            };
            match kind {
                3 => Histogram::stale(),
                4 => custom(base.sum, scale),
                _ => base,
            }
        },
    )
}

fn custom(sum: f64, scale: u64) -> Histogram {
    let counts = Counts { count: 3 * scale, zero: 0, positive: vec![scale, 2 * scale], negative: Vec::new() };
    Histogram {
        schema: CUSTOM_BUCKETS_SCHEMA,
        sum,
        counts: HistogramCounts::Integer(counts),
        positive_spans: vec![Span { offset: 1, length: 2 }],
        custom_bounds: vec![-1.5, -0.0, 0.005, 2.0, 1e9],
        ..Histogram::default()
    }
}

/// What a chunk keeps of a histogram.
fn kept(histogram: &Histogram) -> Histogram {
    let mut kept = histogram.clone();
    if kept.reset_hint != ResetHint::Gauge {
        kept.reset_hint = ResetHint::Unknown;
    }
    let (positive, negative) = match &mut kept.counts {
        HistogramCounts::Integer(counts) => (
            without_empty(&kept.positive_spans, &mut counts.positive),
            without_empty(&kept.negative_spans, &mut counts.negative),
        ),
        HistogramCounts::Float(counts) => (
            without_empty(&kept.positive_spans, &mut counts.positive),
            without_empty(&kept.negative_spans, &mut counts.negative),
        ),
    };
    (kept.positive_spans, kept.negative_spans) = (positive, negative);
    kept
}

/// Removes empty buckets; returns a span for each that is left.
fn without_empty<T: Default + PartialEq + Clone>(spans: &[Span], counts: &mut Vec<T>) -> Vec<Span> {
    let indexes = super::histogram_layout::indexes(spans);
    let full: Vec<_> =
        indexes.zip(counts.iter().cloned()).filter(|(_, count)| *count != T::default()).collect();
    *counts = full.iter().map(|(_, count)| count.clone()).collect();
    let mut end = 0;
    let span = |(index, _)| {
        let span = Span { offset: (index - end) as i32, length: 1 };
        end = index + 1;
        span
    };
    full.into_iter().map(span).collect()
}

/// Chunks follow each other, say what is in them, and stay within their bounds.
fn check_bounds(chunks: &[Chunk]) -> Result<(), TestCaseError> {
    prop_assert!(chunks.is_sorted_by(|a, b| a.max_ms < b.min_ms));
    for chunk in chunks {
        let series = decoded(&[(chunk.encoding, chunk.bytes.clone())]);
        let times: Vec<i64> = if chunk.encoding.is_float() {
            series.floats.iter().map(|sample| sample.0).collect()
        } else {
            series.histograms.iter().map(|sample| sample.0).collect()
        };
        prop_assert_eq!((times[0], *times.last().unwrap()), (chunk.min_ms, chunk.max_ms));
        prop_assert_eq!(times.len(), chunk.samples as usize);
        if chunk.encoding.is_float() {
            prop_assert!(chunk.bytes.len() <= 1024);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn samples_come_back(
        times in times(400),
        floats in prop::collection::vec(value(), 400),
        histograms in prop::collection::vec((1..60_u64).prop_flat_map(histogram), 1..60),
        kinds in prop::collection::vec(any::<bool>(), 1..6),
    ) {
        let mut series = SeriesData::default();
        for (at, &time) in times.iter().enumerate() {
            if kinds[at / 40 % kinds.len()] {
                series.floats.push((time, floats[at]));
            } else {
                series.histograms.push((time, histograms[at % histograms.len()].clone()));
            }
        }
        for (_, histogram) in &series.histograms {
            prop_assert!(histogram.validate().is_ok(), "the test makes histograms that are none");
        }
        let chunks = encoded(&series);
        check_bounds(&chunks)?;
        let chunks: Vec<_> = chunks.into_iter().map(|chunk| (chunk.encoding, chunk.bytes)).collect();
        let found = decoded(&chunks);
        prop_assert_eq!(&found.floats, &series.floats);
        prop_assert_eq!(found.histograms.len(), series.histograms.len());
        for (found, wanted) in found.histograms.iter().zip(&series.histograms) {
            prop_assert_eq!(found.0, wanted.0);
            prop_assert_eq!(kept(&found.1), kept(&wanted.1));
        }
    }

    #[test]
    fn no_bytes_break_the_decoder(encoding in 1..7_u8, bytes: Vec<u8>) {
        let mut series = SeriesData::default();
        let result = decode_chunk(Encoding::from_number(encoding).unwrap(), &bytes, &mut series);
        prop_assert!(result.is_ok() || series.samples() == 0);
    }
}

/// A histogram of one positive bucket.
fn counter(count: u64, hint: ResetHint, index: i32) -> Histogram {
    Histogram {
        reset_hint: hint,
        sum: 1.0,
        counts: HistogramCounts::Integer(Counts { count, positive: vec![count], ..Counts::default() }),
        positive_spans: vec![Span { offset: index, length: 1 }],
        ..Histogram::default()
    }
}

#[test]
fn a_chunk_of_histograms_says_whether_its_counters_were_reset() {
    let (unknown, reset, gauge) = (ResetHint::Unknown, ResetHint::Reset, ResetHint::Gauge);
    let histograms = [
        (counter(5, unknown, 0), 0), // The first: nothing is known.
        (counter(7, unknown, 0), 0),
        (counter(6, unknown, 0), 2),  // Less than before.
        (counter(9, reset, 0), 2),    // It says so itself.
        (counter(9, unknown, 1), 2),  // A bucket that held something is gone.
        (Histogram::stale(), 2),      // Ends the series in the same chunk;
        (counter(10, unknown, 1), 0), // what comes then is not compared.
        (counter(10, gauge, 1), 3),
        (counter(2, gauge, 7), 3), // Gauges may do anything.
        (counter(20, unknown, 7), 0),
        (Histogram { schema: 2, ..counter(30, unknown, 7) }, 0),
    ];
    let series = SeriesData {
        histograms: (0..).zip(&histograms).map(|(time, (histogram, _))| (time, histogram.clone())).collect(),
        ..SeriesData::default()
    };
    let chunks = encoded(&series);
    let found: Vec<u8> =
        chunks.iter().flat_map(|chunk| vec![chunk.bytes[2] >> 6; chunk.samples as usize]).collect();
    assert_eq!(found, histograms.iter().map(|(_, reset)| *reset).collect::<Vec<u8>>());
    assert_eq!(chunks.len(), 8);
    let hints: Vec<ResetHint> = chunks
        .iter()
        .flat_map(|chunk| decoded(&[(chunk.encoding, chunk.bytes.clone())]).histograms)
        .map(|(_, histogram)| histogram.reset_hint)
        .collect();
    let none = ResetHint::NoReset;
    let wanted = [unknown, none, unknown, unknown, unknown, unknown, unknown, gauge, gauge, unknown, unknown];
    assert_eq!(hints, wanted);
}

#[test]
fn a_chunk_that_is_full_says_that_the_next_goes_on_without_a_reset() {
    let series = SeriesData {
        histograms: (0..2000)
            .map(|at| (at, counter(at as u64 * 1_000_003 % 977 + at as u64 * 1000, ResetHint::Unknown, 3)))
            .collect(),
        ..SeriesData::default()
    };
    let chunks = encoded(&series);
    assert!(chunks.len() > 2);
    assert!(chunks[1..].iter().all(|chunk| chunk.bytes[2] >> 6 == 1));
    assert!(chunks.iter().all(|chunk| chunk.bytes.len() <= 2100));
}

#[test]
fn new_buckets_widen_the_chunk_that_is_open() {
    let counts = |positive: Vec<u64>| {
        HistogramCounts::Integer(Counts { count: positive.iter().sum(), positive, ..Counts::default() })
    };
    let first = counter(5, ResetHint::Unknown, 2);
    let second = Histogram {
        counts: counts(vec![1, 6, 0, 2]),
        positive_spans: vec![
            Span { offset: 0, length: 1 },
            Span { offset: 1, length: 2 },
            Span { offset: 4, length: 1 },
        ],
        ..first.clone()
    };
    let third = Histogram {
        counts: counts(vec![1, 6, 2]),
        positive_spans: vec![
            Span { offset: 0, length: 1 },
            Span { offset: 1, length: 1 },
            Span { offset: 5, length: 1 },
        ],
        ..first.clone()
    };
    let series =
        SeriesData { histograms: vec![(1, first), (2, second.clone()), (3, third)], ..SeriesData::default() };
    let chunks = encoded(&series);
    assert_eq!(chunks.len(), 1);
    let found = decoded(&[(chunks[0].encoding, chunks[0].bytes.clone())]);
    assert!(found.histograms.iter().all(|(_, histogram)| histogram.positive_spans == second.positive_spans));
    let buckets: Vec<HistogramCounts> =
        found.histograms.into_iter().map(|(_, histogram)| histogram.counts).collect();
    let wide = |positive: Vec<u64>| counts(positive);
    assert_eq!(buckets, [wide(vec![0, 5, 0, 0]), wide(vec![1, 6, 0, 2]), wide(vec![1, 6, 0, 2])]);
}

/// Random bytes in chunks of every length up to more than is read at once.
fn some_chunks() -> Vec<Chunk> {
    let bytes = |at: u32| (0..at * at % 3000).map(|byte| (byte * at) as u8).collect();
    let chunk =
        |at: u32| Chunk { min_ms: 0, max_ms: 1, samples: 1, encoding: Encoding::Xor, bytes: bytes(at) };
    (0..200).map(chunk).collect()
}

#[test]
fn chunks_are_read_by_their_references_from_as_many_files_as_they_need() {
    let files = Arc::new(SimFiles::new(1));
    let dir = Path::new("/block/chunks");
    files.create_dir_all(dir).unwrap();
    let mut writer = ChunkWriter::new(files.clone(), dir.into());
    writer.limit_files_to(64 << 10);
    let chunks = some_chunks();
    let references: Vec<u64> = chunks.iter().map(|chunk| writer.add(chunk).unwrap()).collect();
    assert_eq!(references[0], 8);
    assert!(references.is_sorted_by(|a, b| a < b));
    let bytes = writer.finish().unwrap();
    let names: Vec<String> = files.list(dir).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names[..2], ["000001", "000002"]);
    assert!(names.len() > 3);
    let files = files.crash();
    assert!(files.list(dir).unwrap().iter().all(|entry| entry.len <= 64 << 10));
    let reader = ChunkReader::open(&files, dir).unwrap();
    assert_eq!((reader.bytes(), reader.paths().count()), (bytes, names.len()));
    let mut data = vec![9; 5];
    for (chunk, &reference) in chunks.iter().zip(&references) {
        assert_eq!(reader.read(reference, &mut data).unwrap(), Encoding::Xor);
        assert_eq!(data, chunk.bytes);
    }
    files.remove(&dir.join("000002")).unwrap();
    let reader = ChunkReader::open(&files, dir).unwrap();
    for (chunk, &reference) in chunks.iter().zip(&references) {
        match reader.read(reference, &mut data) {
            Ok(_) => assert_eq!(data, chunk.bytes),
            Err(_) => assert_eq!(reference >> 32, 1),
        }
    }
}

/// Puts a file of chunks with these bytes into place.
fn reader_of(bytes: &[u8]) -> Result<ChunkReader, crate::StorageError> {
    let files = SimFiles::new(1);
    let dir = Path::new("/chunks");
    files.create_dir_all(dir).unwrap();
    files.create(&dir.join("000001")).unwrap().append(bytes).unwrap();
    ChunkReader::open(&files, dir)
}

#[test]
fn no_flipped_byte_and_no_cut_gives_other_data() {
    let path = data("openmetrics/01M8PQN23E00CRNCEY90SM3A3N/chunks/000001");
    let whole = std::fs::read(path).unwrap();
    let offsets = chunk_offsets(&whole);
    let read = |bytes: &[u8]| -> Option<Vec<Option<Vec<u8>>>> {
        let reader = reader_of(bytes).ok()?;
        let one = |&offset| {
            let mut data = Vec::new();
            reader.read(offset, &mut data).ok().map(|_| data)
        };
        Some(offsets.iter().map(one).collect())
    };
    let right = read(&whole).unwrap();
    assert!(right.iter().all(Option::is_some));
    for at in 0..whole.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            let Some(found) = read(&bytes) else {
                assert!(at < 5, "only the header makes a whole file unreadable, not byte {at}");
                continue;
            };
            let wrong = found.iter().zip(&right).filter(|(found, right)| found != right);
            let wrong: Vec<_> = wrong.map(|(found, _)| found).collect();
            assert!(
                wrong.len() == usize::from(at >= 8) && wrong.iter().all(|found| found.is_none()),
                "byte {at}"
            );
        }
        if let Some(found) = read(&whole[..at]) {
            assert!(
                found.iter().zip(&right).all(|(found, right)| found.is_none() || found == right),
                "byte {at}"
            );
            assert!(found.last().is_some_and(Option::is_none));
        }
    }
}
