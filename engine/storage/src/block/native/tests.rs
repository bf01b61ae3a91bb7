//! Blocks against a model: series as they were given, read back by every way there is.
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use metricsstore_budget::Budget;
use metricsstore_model::histogram::{Counts, Histogram, HistogramCounts, Span};
use metricsstore_model::{LabelBuf, MatchOp, Matcher, STALE_NAN_BITS};
use metricsstore_vfs::Files;
use metricsstore_vfs::sim::SimFiles;
use proptest::prelude::*;
use roaring::RoaringBitmap;

use super::{NativeBlock, NativeWriter};
use crate::block::page_cache::PageCache;
use crate::block::{Block, BlockMeta, BlockSink, NewBlock, SeriesData, Ulid, series::fingerprint};
use crate::kinds::{Kind, decode_histograms, decode_starts};
use crate::{StorageError, StoredExemplar};

pub(super) const DIR: &str = "/blocks";
pub(super) const HOUR_MS: i64 = 3_600_000;
const EVER: (i64, i64) = (i64::MIN, i64::MAX);

pub(super) fn new_block(hours: i64, is_cold: bool) -> NewBlock {
    let ulid = Ulid(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
    NewBlock {
        ulid,
        start_ms: 0,
        end_ms: hours * HOUR_MS,
        level: 1,
        sources: vec![ulid],
        parents: Vec::new(),
        is_late: false,
        is_cold,
    }
}

pub(super) fn write(
    files: &Arc<dyn Files>,
    new: NewBlock,
    series: &[SeriesData],
) -> Result<BlockMeta, StorageError> {
    let mut writer = Box::new(NativeWriter::create(files, Path::new(DIR), new)?);
    for series in series {
        writer.add(series)?;
    }
    writer.finish()
}

pub(super) fn open(files: &Arc<dyn Files>, ulid: Ulid) -> Result<Arc<NativeBlock>, StorageError> {
    NativeBlock::open(files, Path::new(DIR), ulid, &Arc::new(PageCache::new(&Budget::unlimited())))
        .map(Arc::new)
}

fn floats_of(
    block: &Arc<NativeBlock>,
    row: u32,
    within: (i64, i64),
) -> Result<Vec<(i64, u64)>, StorageError> {
    let mut cursor = Arc::clone(block).cursor();
    let (mut payload, mut pieces, mut floats) = (Vec::new(), Vec::new(), Vec::new());
    cursor.pieces_into(row, within, &mut payload, &mut pieces)?;
    for piece in pieces {
        let times = cursor.times(piece.stream)?;
        piece
            .decode_all(&payload, |row, bits| floats.push((times[row as usize], bits)))
            .map_err(|what| StorageError::corrupt(Path::new(DIR), 0, what))?;
    }
    Ok(floats)
}

/// All of a series, its exemplars too.
pub(super) fn series_of(block: &Arc<NativeBlock>, row: u32) -> Result<SeriesData, StorageError> {
    let mut series = SeriesData { floats: floats_of(block, row, EVER)?, ..SeriesData::default() };
    block.labels(row, &mut series.labels)?;
    let mut cursor = Arc::clone(block).cursor();
    let corrupt = |what| StorageError::corrupt(Path::new(DIR), 0, what);
    if let Some(column) = cursor.kind_column(Kind::Histograms, row, EVER)? {
        decode_histograms(&column.payload, |time, histogram| series.histograms.push((time, histogram)))
            .map_err(corrupt)?;
    }
    if let Some(column) = cursor.kind_column(Kind::Starts, row, EVER)? {
        decode_starts(&column.payload, column.entries, |time, start| series.starts.push((time, start)))
            .map_err(corrupt)?;
    }
    cursor.exemplars_into(row, EVER, &mut series.exemplars)?;
    Ok(series)
}

/// Slices of one series put together.
pub(super) fn joined(slices: &[SeriesData]) -> Vec<SeriesData> {
    let mut all: Vec<SeriesData> = Vec::new();
    for slice in slices {
        match all.last_mut().filter(|_| slice.is_continuation) {
            Some(series) => {
                series.floats.extend(&slice.floats);
                series.histograms.extend(slice.histograms.iter().cloned());
                series.starts.extend(&slice.starts);
                series.exemplars.extend(slice.exemplars.iter().cloned());
            }
            None => all.push(slice.clone()),
        }
    }
    all
}

pub(super) fn exemplar_bits(exemplar: &StoredExemplar) -> (i64, u64, String) {
    (exemplar.timestamp_ms, exemplar.value.to_bits(), exemplar.labels.to_string())
}

#[track_caller]
pub(super) fn assert_same(found: &SeriesData, want: &SeriesData) {
    assert_eq!(found.labels, want.labels);
    assert_eq!(found.floats, want.floats, "{}", want.labels);
    assert_eq!(found.histograms, want.histograms);
    assert_eq!(found.starts, want.starts);
    let bits = |series: &SeriesData| series.exemplars.iter().map(exemplar_bits).collect::<Vec<_>>();
    assert_eq!(bits(found), bits(want));
}

fn assert_holds(block: &Arc<NativeBlock>, slices: &[SeriesData]) {
    let want = joined(slices);
    assert_eq!(block.meta().series, want.len() as u64);
    let mut prints = Vec::new();
    let rows: Vec<u32> = (0..want.len() as u32).collect();
    block.fingerprints_into(&rows, &mut prints).unwrap();
    for (row, want) in rows.into_iter().zip(&want) {
        assert_same(&series_of(block, row).unwrap(), want);
        assert_eq!(prints[row as usize], fingerprint(&want.labels));
        for (kind, has) in
            [(Kind::Histograms, !want.histograms.is_empty()), (Kind::Starts, !want.starts.is_empty())]
        {
            assert_eq!(block.rows_with(kind).unwrap().unwrap().contains(row), has);
        }
    }
    let floats: usize = want.iter().map(|series| series.floats.len()).sum();
    let histograms: usize = want.iter().map(|series| series.histograms.len()).sum();
    assert_eq!(block.meta().float_samples, floats as u64);
    assert_eq!(block.meta().histogram_samples, histograms as u64);
    let times = || {
        let floats = want.iter().flat_map(|series| series.floats.iter().map(|sample| sample.0));
        floats.chain(want.iter().flat_map(|series| series.histograms.iter().map(|sample| sample.0)))
    };
    if let (Some(min), Some(max)) = (times().min(), times().max()) {
        assert_eq!((block.meta().min_ms, block.meta().max_ms), (min, max));
    }
}

// --- Generated series ------------------------------------------------------------------------------------------------

/// Values that a codec could get wrong.
pub(super) const BITS: [u64; 8] = [
    STALE_NAN_BITS,
    0x8000_0000_0000_0000,
    0x7ff8_0000_0000_0001,
    0xfff8_dead_beef_0000,
    0x7ff0_0000_0000_0000,
    0,
    0x0000_0000_0000_0001,
    0x3fb9_9999_9999_999a,
];

pub(super) fn histogram(count: u64) -> Histogram {
    Histogram {
        positive_spans: vec![Span { offset: 1, length: 2 }],
        counts: HistogramCounts::Integer(Counts {
            count: count * 3,
            zero: count,
            positive: vec![count, count],
            negative: Vec::new(),
        }),
        sum: count as f64 / 3.0,
        ..Histogram::default()
    }
}

#[derive(Debug, Clone)]
struct Plan {
    metric: u8,
    instance: u8,
    extra: Option<u8>,
    step_ms: i64,
    from: u32,
    samples: u32,
    /// Of 16 samples, those whose bits are 0 here are left out.
    kept: u16,
    odd_values: bool,
    extras: bool,
    slice: usize,
}

fn plan() -> impl Strategy<Value = Plan> {
    let label = (0..4_u8, 0..5_u8, prop::option::of(0..3_u8));
    let shape = (
        prop::sample::select(vec![15_000, 15_000, 60_000, 7_000]),
        0..40_u32,
        0..200_u32,
        any::<u16>(),
        any::<bool>(),
        prop::bool::weighted(0.2),
        prop::sample::select(vec![1, 7, 1000]),
    );
    (label, shape).prop_map(
        |((metric, instance, extra), (step_ms, from, samples, kept, odd, extras, slice))| Plan {
            metric,
            instance,
            extra,
            step_ms,
            from,
            samples,
            kept: kept | 0x0100,
            odd_values: odd,
            extras,
            slice,
        },
    )
}

fn labels_of(plan: &Plan) -> LabelBuf {
    let mut labels = LabelBuf::from_pairs([
        ("__name__", format!("metric_{}", plan.metric)),
        ("instance", format!("host-{}:9100", plan.instance)),
        ("job", if plan.instance < 3 { "node" } else { "other" }.to_owned()),
    ]);
    if let Some(extra) = plan.extra {
        labels.push(
            ["cpu", "joba", "ünïcode"][usize::from(extra)],
            ["0", "", "x\u{10ffff}"][usize::from(extra)],
        );
        labels.retain(|_, value| !value.is_empty());
        labels.sort();
    }
    labels
}

fn data_of(plan: &Plan) -> SeriesData {
    let mut series = SeriesData { labels: labels_of(plan), ..SeriesData::default() };
    for n in plan.from..plan.from + plan.samples {
        if plan.kept >> (n % 16) & 1 == 0 {
            continue;
        }
        let time = i64::from(n) * plan.step_ms
            + i64::from(n.wrapping_mul(2_654_435_761) % 5)
            + i64::from(plan.instance);
        if plan.extras && n % 3 == 0 {
            series.histograms.push((time, histogram(u64::from(n))));
            series.starts.push((time, 5));
            continue;
        }
        let odd = plan.odd_values && n % 5 == 0;
        let bits = if odd {
            BITS[n as usize / 5 % 8]
        } else {
            (f64::from(n * u32::from(plan.metric)) / 10.0).to_bits()
        };
        series.floats.push((time, bits));
        if plan.extras {
            series.starts.push((time, i64::from(n) / 20));
            if n % 4 == 0 {
                let labels = LabelBuf::from_pairs([("trace_id", format!("{n:x}"))]);
                series.exemplars.push(StoredExemplar {
                    labels,
                    timestamp_ms: time,
                    value: f64::from_bits(bits),
                });
            }
        }
    }
    series
}

/// Slices as a merge hands them out: of so many samples.
fn slices_of(series: &SeriesData, samples: usize) -> Vec<SeriesData> {
    let mut times: Vec<i64> = series.floats.iter().map(|sample| sample.0).collect();
    times.extend(series.histograms.iter().map(|sample| sample.0));
    times.sort_unstable();
    let mut from = i64::MIN;
    let mut slices = Vec::new();
    for chunk in times.chunks(samples) {
        let to = chunk[chunk.len() - 1];
        let inside = |time: i64| time > from && time <= to;
        slices.push(SeriesData {
            labels: series.labels.clone(),
            is_continuation: !slices.is_empty(),
            floats: series.floats.iter().copied().filter(|sample| inside(sample.0)).collect(),
            histograms: series.histograms.iter().filter(|sample| inside(sample.0)).cloned().collect(),
            starts: series.starts.iter().copied().filter(|start| inside(start.0)).collect(),
            exemplars: series.exemplars.iter().filter(|one| inside(one.timestamp_ms)).cloned().collect(),
        });
        from = to;
    }
    if slices.is_empty() {
        slices.push(series.clone());
    }
    slices
}

fn population(plans: &[Plan]) -> Vec<SeriesData> {
    let by_labels: BTreeMap<LabelBuf, &Plan> = plans.iter().map(|plan| (labels_of(plan), plan)).collect();
    by_labels.values().flat_map(|plan| slices_of(&data_of(plan), plan.slice)).collect()
}

fn matchers() -> impl Strategy<Value = Vec<Matcher>> {
    let op = prop::sample::select(vec![MatchOp::Equal, MatchOp::NotEqual, MatchOp::Regex, MatchOp::NotRegex]);
    let name = prop::sample::select(vec!["__name__", "instance", "job", "cpu", "missing", "ünïcode"]);
    let value = prop::sample::select(vec![
        "",
        "metric_1",
        "metric_[12]",
        "node",
        "node|other",
        "0",
        "host-.*",
        ".+",
        ".*",
        "x.",
        "|node",
        "zzz",
    ]);
    prop::collection::vec(
        (op, name, value).prop_map(|(op, name, value)| Matcher::new(op, name, value).unwrap()),
        0..4,
    )
}

fn passes(labels: &LabelBuf, matchers: &[Matcher]) -> bool {
    matchers.iter().all(|matcher| matcher.matches(labels.get(&matcher.name).unwrap_or("")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_series_come_back_bit_for_bit_with_their_labels(
        plans in prop::collection::vec(plan(), 0..30),
        hours in prop::sample::select(vec![2, 54, 2000]),
        is_cold: bool,
    ) {
        let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
        let slices = population(&plans);
        let meta = write(&files, new_block(hours, is_cold), &slices).unwrap();
        let block = open(&files, meta.ulid).unwrap();
        prop_assert_eq!(block.meta(), &meta);
        assert_holds(&block, &slices);
    }

    #[test]
    fn rows_names_and_values_are_those_that_a_look_at_every_series_finds(
        plans in prop::collection::vec(plan(), 1..40),
        matchers in matchers(),
    ) {
        let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
        let slices = population(&plans);
        let meta = write(&files, new_block(2, false), &slices).unwrap();
        let block = open(&files, meta.ulid).unwrap();
        let series = joined(&slices);
        let passing: Vec<(u32, &SeriesData)> =
            (0..).zip(&series).filter(|(_, series)| passes(&series.labels, &matchers)).collect();
        let rows = block.rows(&matchers).unwrap();
        prop_assert_eq!(rows.iter().collect::<Vec<_>>(), passing.iter().map(|(row, _)| *row).collect::<Vec<_>>());
        let every: RoaringBitmap = (0..series.len() as u32).collect();
        for (rows, of) in [(Some(&rows), passing), (Some(&every), (0..).zip(&series).collect()), (None, (0..).zip(&series).collect())] {
            let pairs = || of.iter().flat_map(|(_, series)| series.labels.iter());
            let mut names: Vec<String> = pairs().map(|pair| pair.0.to_owned()).collect();
            names.sort_unstable();
            names.dedup();
            prop_assert_eq!(block.label_names(rows).unwrap(), names);
            for name in ["__name__", "instance", "cpu", "missing"] {
                let mut values: Vec<String> = pairs().filter(|pair| pair.0 == name).map(|pair| pair.1.to_owned()).collect();
                values.sort_unstable();
                values.dedup();
                prop_assert_eq!(block.label_values(name, rows).unwrap(), values);
            }
        }
    }
}
