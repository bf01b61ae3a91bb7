//! Whole blocks: against what Prometheus wrote, and back and forth.
#![allow(clippy::unwrap_used, reason = "tests may panic")]
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_budget::{Budget, Part};
use metricsstore_model::histogram::{Counts, Histogram, HistogramCounts, ResetHint, Span};
use metricsstore_model::{LabelBuf, Matcher};
use metricsstore_vfs::Files;
use metricsstore_vfs::real::RealFiles;
use metricsstore_vfs::sim::SimFiles;

use super::dump::{Dump, add, assert_same, data, expected};
use super::{PrometheusBlock, PrometheusWriter};
use crate::StorageError;
use crate::block::{Block, BlockMeta, BlockSink, Format, NewBlock, Parent, SeriesData, Ulid};
use crate::kinds::{Kind, decode_histograms, decode_starts};

const ALWAYS: (i64, i64) = (i64::MIN, i64::MAX);
const SNAPSHOT: &str = "snapshot/01M8PQN08JPBB7KPSZQ0D3Y8MN";

fn budget() -> Budget {
    Budget::new(1 << 30)
}

fn open_data(path: &str) -> Arc<PrometheusBlock> {
    let files: Arc<dyn Files> = Arc::new(RealFiles);
    Arc::new(PrometheusBlock::open(&files, &data(path), &budget()).unwrap())
}

/// Everything in a block within a time.
fn read_within(block: &Arc<PrometheusBlock>, within_ms: (i64, i64)) -> Result<Vec<SeriesData>, StorageError> {
    let mut cursor = Arc::clone(block).cursor();
    let mut all = Vec::new();
    for row in 0..block.meta().series as u32 {
        let mut series = SeriesData::default();
        block.labels(row, &mut series.labels)?;
        let (mut payload, mut pieces) = (vec![7; 3], Vec::new());
        cursor.pieces_into(row, within_ms, &mut payload, &mut pieces)?;
        for piece in pieces {
            let times = cursor.times(piece.stream)?;
            let decoded =
                piece.decode_all(&payload, |row, bits| series.floats.push((times[row as usize], bits)));
            decoded.unwrap();
        }
        if let Some(column) = cursor.kind_column(Kind::Histograms, row, within_ms)? {
            decode_histograms(&column.payload, |time, histogram| series.histograms.push((time, histogram)))
                .unwrap();
            series.histograms.retain(|sample| within_ms.0 <= sample.0 && sample.0 <= within_ms.1);
        }
        if let Some(column) = cursor.kind_column(Kind::Starts, row, within_ms)? {
            decode_starts(&column.payload, column.entries, |time, start| series.starts.push((time, start)))
                .unwrap();
        }
        all.push(series);
    }
    Ok(all)
}

fn dump_of(all: &[SeriesData]) -> Dump {
    let mut dump = Dump::new();
    for series in all {
        add(&mut dump, series);
    }
    dump
}

fn ulid() -> Ulid {
    SNAPSHOT.split_once('/').unwrap().1.parse().unwrap()
}

fn new_block(start_ms: i64, end_ms: i64) -> NewBlock {
    NewBlock {
        ulid: ulid(),
        start_ms,
        end_ms,
        level: 1,
        sources: vec![ulid()],
        parents: Vec::new(),
        is_late: false,
        is_cold: false,
    }
}

fn dir() -> &'static Path {
    Path::new("/data")
}

fn new_files(seed: u64) -> SimFiles {
    let files = SimFiles::new(seed);
    files.create_dir_all(dir()).unwrap();
    files
}

fn write(files: &SimFiles, new: NewBlock, all: &[SeriesData]) -> Result<BlockMeta, StorageError> {
    let files: Arc<dyn Files> = Arc::new(files.clone());
    let mut writer = PrometheusWriter::create(&files, dir(), new)?;
    for series in all {
        writer.add(series)?;
    }
    Box::new(writer).finish()
}

fn open(files: &SimFiles) -> Result<Arc<PrometheusBlock>, StorageError> {
    let files: Arc<dyn Files> = Arc::new(files.clone());
    Ok(Arc::new(PrometheusBlock::open(&files, &dir().join(ulid().to_string()), &budget())?))
}

/// The files of a block by their names in it.
fn contents(files: &dyn Files, dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in files.list(dir).unwrap() {
        let path = dir.join(&entry.name);
        if entry.is_dir {
            let below = contents(files, &path);
            found.extend(below.into_iter().map(|(name, bytes)| (Path::new(&entry.name).join(name), bytes)));
        } else {
            found.insert(entry.name.into(), files.read(&path, 1 << 30).unwrap());
        }
    }
    found
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn histogram(number: u64) -> Histogram {
    Histogram {
        schema: 1,
        zero_threshold: 0.001,
        sum: number as f64 * 1.5,
        reset_hint: ResetHint::Unknown,
        positive_spans: vec![Span { offset: -1, length: 2 }],
        negative_spans: Vec::new(),
        custom_bounds: Vec::new(),
        counts: HistogramCounts::Integer(Counts {
            count: 3 * number + 1,
            zero: 1,
            positive: vec![number, 2 * number],
            negative: Vec::new(),
        }),
    }
}

/// Series of floats and some histograms from 0 to 2 h.
fn random_series(random: &mut Random, count: u64) -> Vec<SeriesData> {
    let mut all = Vec::new();
    for number in 0..count {
        let labels = LabelBuf::from_pairs([("__name__", "m"), ("n", &format!("{number:04}"))]);
        let mut series = SeriesData { labels, ..SeriesData::default() };
        let step = [15_000, 60_000, 1 + random.below(200_000) as i64][random.below(3) as usize];
        let kind = random.below(5);
        let mut time = random.below(60_000) as i64;
        let mut observed = 0;
        while time < 7_200_000 && series.samples() < 600 {
            observed += random.below(20);
            if kind == 0 || kind == 1 && (time / 1_000_000) % 2 == 1 {
                series.histograms.push((time, histogram(observed)));
            } else {
                series.floats.push((time, (observed as f64 * 0.1).to_bits()));
            }
            time += step;
        }
        all.push(series);
    }
    all
}

/// Counter resets are worked out anew where they are not known.
fn without_hints(mut all: Vec<SeriesData>) -> Vec<SeriesData> {
    for histogram in all.iter_mut().flat_map(|series| &mut series.histograms) {
        histogram.1.reset_hint = ResetHint::Unknown;
    }
    all
}

fn assert_equal(found: Vec<SeriesData>, want: &[SeriesData]) {
    let found = without_hints(found);
    assert_eq!(found.len(), want.len());
    for (found, want) in found.iter().zip(without_hints(want.to_vec())) {
        assert_eq!(found.labels, want.labels);
        assert_eq!(found.floats, want.floats, "{}", want.labels);
        assert_eq!(found.histograms, want.histograms, "{}", want.labels);
    }
}

#[test]
fn blocks_that_prometheus_wrote_are_read_as_it_dumps_them() {
    let block = open_data(SNAPSHOT);
    let all = read_within(&block, ALWAYS).unwrap();
    assert_same(&dump_of(&all), &expected("snapshot.dump.gz"));
    let meta = block.meta();
    assert_eq!(
        (meta.series, meta.float_samples, meta.histogram_samples, meta.chunks),
        (198, 44_756, 676, 390)
    );
    assert_eq!((meta.start_ms, meta.end_ms, meta.level), (1_700_006_400_000, 1_700_009_985_001, 1));
}

#[test]
fn a_block_of_another_tool_is_read_as_prometheus_dumps_it() {
    let block = open_data("openmetrics/01M8PQN23E00CRNCEY90SM3A3N");
    let mut want = expected("openmetrics.dump.gz");
    for samples in want.values_mut() {
        samples.retain(|sample| sample.0 < block.meta().end_ms);
    }
    assert_same(&dump_of(&read_within(&block, ALWAYS).unwrap()), &want);
}

#[test]
fn a_block_that_prometheus_wrote_is_written_again_byte_for_byte() {
    let block = open_data(SNAPSHOT);
    let files = new_files(1);
    let new = new_block(block.meta().start_ms, block.meta().end_ms);
    let all = read_within(&block, ALWAYS).unwrap();
    write(&files, new, &all).unwrap();
    assert_equal(read_within(&open(&files).unwrap(), ALWAYS).unwrap(), &all);
    let want = contents(&RealFiles, &data(SNAPSHOT));
    let found = contents(&files, &dir().join(ulid().to_string()));
    assert!(found.keys().eq(want.keys()), "{:?}", found.keys());
    for (name, bytes) in want {
        // What a chunk says of counter resets before it is worked out anew.
        let is_same = if name.starts_with("chunks") {
            found[&name].len() == bytes.len()
        } else {
            found[&name] == bytes
        };
        assert!(is_same, "{} differs", name.display());
    }
}

#[test]
fn a_block_with_an_index_of_version_1_is_read() {
    let all = read_within(&open_data("index_format_v1"), ALWAYS).unwrap();
    assert_eq!(all.len(), 102);
    assert!(all.iter().all(|series| series.floats.len() == 1 && series.floats[0].0 < 7_200_000));
}

#[test]
fn random_blocks_come_back_whole_in_slices_and_by_time() {
    for seed in 0..12 {
        let mut random = Random(seed);
        let all = random_series(&mut random, 40);
        let mut slices = Vec::new();
        for series in &all {
            let cut = random.below(8_000_000) as i64;
            let mut rest = series.clone();
            let mut first = series.clone();
            first.floats.retain(|sample| sample.0 < cut);
            first.histograms.retain(|sample| sample.0 < cut);
            rest.floats.retain(|sample| sample.0 >= cut);
            rest.histograms.retain(|sample| sample.0 >= cut);
            rest.is_continuation = true;
            slices.extend([first, rest]);
        }
        let files = new_files(seed);
        let new = NewBlock {
            level: 3,
            parents: vec![Parent { ulid: ulid(), start_ms: 0, end_ms: 5 }],
            is_late: true,
            ..new_block(0, 7_200_000)
        };
        let meta = write(&files, new, &slices).unwrap();
        let block = open(&files).unwrap();
        let found = block.meta();
        assert_eq!(
            BlockMeta { min_ms: found.min_ms, max_ms: found.max_ms, ..meta.clone() },
            found.clone(),
            "what was written is what is opened, but for the exact times, which stand nowhere"
        );
        assert!(found.min_ms <= meta.min_ms && meta.max_ms <= found.max_ms);
        let floats: Vec<i64> = all.iter().flat_map(|s| s.floats.iter().map(|sample| sample.0)).collect();
        let histograms: Vec<i64> =
            all.iter().flat_map(|s| s.histograms.iter().map(|sample| sample.0)).collect();
        let times = || floats.iter().chain(&histograms);
        assert_eq!((meta.min_ms, meta.max_ms), (*times().min().unwrap(), *times().max().unwrap()));
        assert_eq!(
            (meta.float_samples, meta.histogram_samples),
            (floats.len() as u64, histograms.len() as u64)
        );
        assert_eq!((meta.level, meta.is_late, meta.format), (3, true, Format::Prometheus));
        assert_equal(read_within(&block, ALWAYS).unwrap(), &all);
        for _ in 0..4 {
            let from = random.below(7_000_000) as i64;
            let within = (from, from + random.below(2_000_000) as i64);
            let mut want = all.clone();
            for series in &mut want {
                series.floats.retain(|sample| within.0 <= sample.0 && sample.0 <= within.1);
                series.histograms.retain(|sample| within.0 <= sample.0 && sample.0 <= within.1);
            }
            assert_equal(read_within(&block, within).unwrap(), &want);
        }
    }
}

#[test]
fn series_of_a_scrape_share_a_stream_and_old_streams_are_read_again() {
    let mut all = random_series(&mut Random(3), 30);
    let floats: Vec<(i64, u64)> = (0..40).map(|n| (n * 15_000 + 3, n as u64)).collect();
    for series in &mut all[10..20] {
        series.histograms.clear();
        series.floats.clone_from(&floats);
    }
    let files = new_files(1);
    write(&files, new_block(0, 7_200_000), &all).unwrap();
    let block = open(&files).unwrap();
    let mut cursor = Arc::clone(&block).cursor();
    let (mut payload, mut pieces) = (Vec::new(), Vec::new());
    for row in 10..20 {
        cursor.pieces_into(row, ALWAYS, &mut payload, &mut pieces).unwrap();
    }
    assert_eq!(pieces.len(), 10);
    assert!(pieces.iter().all(|piece| piece.stream == pieces[0].stream));
    // Enough others that what was decoded is let go.
    for end in 0..4000 {
        cursor.pieces_into(5, (0, 7_200_000 - end), &mut payload, &mut Vec::new()).unwrap();
    }
    let times: Vec<i64> = floats.iter().map(|sample| sample.0).collect();
    assert_eq!(*cursor.times(pieces[0].stream).unwrap(), *times);
}

#[test]
fn a_slice_that_does_not_fit_is_refused_and_leaves_the_block_as_it_was() {
    let series = |name: &str, times: &[i64]| SeriesData {
        labels: LabelBuf::from_pairs([("__name__", name)]),
        floats: times.iter().map(|&time| (time, 1)).collect(),
        ..SeriesData::default()
    };
    let more = |name: &str, times: &[i64]| SeriesData { is_continuation: true, ..series(name, times) };
    let sim = new_files(1);
    let files: Arc<dyn Files> = Arc::new(sim.clone());
    let mut writer = PrometheusWriter::create(&files, dir(), new_block(10, 100)).unwrap();
    writer.add(&series("b", &[10, 20])).unwrap();
    for refused in [more("b", &[20]), more("b", &[30, 30]), more("b", &[40, 100]), more("c", &[40])] {
        assert!(writer.add(&refused).is_err(), "{refused:?}");
    }
    writer.add(&more("b", &[30])).unwrap();
    for refused in [series("a", &[20]), series("b", &[40]), series("c", &[9]), series("c", &[100])] {
        assert!(writer.add(&refused).is_err(), "{refused:?}");
    }
    writer.add(&series("d", &[])).unwrap();
    writer.add(&series("e", &[99])).unwrap();
    let meta = Box::new(writer).finish().unwrap();
    assert_eq!((meta.series, meta.float_samples, meta.min_ms, meta.max_ms), (2, 4, 10, 99));
    let all = read_within(&open(&sim).unwrap(), ALWAYS).unwrap();
    assert_equal(all, &[series("b", &[10, 20, 30]), series("e", &[99])]);
}

#[test]
fn every_flipped_byte_gives_the_same_samples_or_an_error() {
    let all = random_series(&mut Random(5), 3);
    let files = new_files(1);
    write(&files, new_block(0, 7_200_000), &all).unwrap();
    let place = dir().join(ulid().to_string());
    let good = contents(&files, &place);
    let read = |name: &Path, bytes: &[u8]| {
        let changed = new_files(1);
        changed.create_dir_all(&place.join("chunks")).unwrap();
        for (other, good) in &good {
            let bytes = if other == name { bytes } else { good };
            changed.create(&place.join(other)).unwrap().append(bytes).unwrap();
        }
        read_within(&open(&changed)?, ALWAYS)
    };
    for (name, bytes) in &good {
        // Text that people may change has no checksum.
        if name.ends_with("meta.json") {
            continue;
        }
        let stride = if name.ends_with("index") { 1 } else { 5 };
        for at in (0..bytes.len()).step_by(stride) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            if let Ok(found) = read(name, &flipped) {
                assert_equal(found, &all);
            }
            if let Ok(found) = read(name, &bytes[..at]) {
                assert_equal(found, &all);
            }
        }
    }
}

#[test]
fn a_crash_at_any_call_leaves_the_whole_block_or_none() {
    let all = random_series(&mut Random(6), 4);
    let calls = {
        let files = new_files(1);
        let before = files.calls();
        write(&files, new_block(0, 7_200_000), &all).unwrap();
        files.calls() - before
    };
    let (mut whole, mut none) = (0, 0);
    for call in 0..=calls {
        let files = new_files(call);
        files.power_off_at(call);
        let written = write(&files, new_block(0, 7_200_000), &all);
        let after = files.crash();
        if after.exists(&dir().join(ulid().to_string())).unwrap() {
            assert_equal(read_within(&open(&after).unwrap(), ALWAYS).unwrap(), &all);
            whole += 1;
        } else {
            assert!(written.is_err(), "what was finished is durable");
            none += 1;
        }
    }
    assert!(whole > 0 && none > 0);
}

#[test]
fn a_full_disk_is_an_error_and_what_was_begun_can_be_removed() {
    let all = random_series(&mut Random(6), 4);
    let bytes = {
        let files = new_files(1);
        write(&files, new_block(0, 7_200_000), &all).unwrap().bytes
    };
    for room in (0..bytes).step_by(97) {
        let files = new_files(1);
        files.set_capacity(Some(room));
        let error = write(&files, new_block(0, 7_200_000), &all).unwrap_err();
        assert!(error.is_full_disk(), "{error}");
        assert!(!files.exists(&dir().join(ulid().to_string())).unwrap());
    }
    let files = new_files(1);
    let shared: Arc<dyn Files> = Arc::new(files.clone());
    let mut writer = PrometheusWriter::create(&shared, dir(), new_block(0, 7_200_000)).unwrap();
    writer.add(&all[0]).unwrap();
    Box::new(writer).abandon();
    assert_eq!(files.list(dir()).unwrap(), []);
}

#[test]
fn an_open_block_is_counted_and_answers_by_labels() {
    let budget = budget();
    let files: Arc<dyn Files> = Arc::new(RealFiles);
    let block = PrometheusBlock::open(&files, &data(SNAPSHOT), &budget).unwrap();
    assert!(budget.part(Part::Segments) > 0);
    let rows = block.rows(&[Matcher::equal("__name__", "up")]).unwrap();
    assert_eq!(block.label_values("instance", Some(&rows)).unwrap(), ["demo:1", "demo:2"]);
    assert_eq!(block.label_names(Some(&rows)).unwrap(), ["__name__", "instance", "job"]);
    let row = rows.min().unwrap();
    let mut labels = LabelBuf::new();
    block.labels(row, &mut labels).unwrap();
    assert_eq!(block.fingerprint(row).unwrap(), crate::block::series::fingerprint(&labels));
    assert_eq!(block.files().len(), 3);
    drop(block);
    assert_eq!(budget.part(Part::Segments), 0);
}
