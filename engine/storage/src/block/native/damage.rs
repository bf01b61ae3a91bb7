//! Damaged, cut and unfinished blocks; the golden files; how well streams are shared.
use std::path::Path;
use std::sync::Arc;

use metricsstore_budget::{Budget, Part};
use metricsstore_model::{LabelBuf, MatchOp, Matcher};
use metricsstore_vfs::Files;
use metricsstore_vfs::sim::{Fault, SimFiles};

use super::tests::{BITS, DIR, HOUR_MS, assert_same, histogram, joined, new_block, open, series_of, write};
use super::{END_MAGIC, FOOTER_BYTES, HEADER_BYTES, NativeBlock, NativeWriter, forged};
use crate::block::page_cache::PageCache;
use crate::block::{Block, BlockSink, NewBlock, SeriesData};
use crate::{StorageError, StoredExemplar};

const EVER: (i64, i64) = (i64::MIN, i64::MAX);

fn labels(metric: &str, instance: &str) -> LabelBuf {
    LabelBuf::from_pairs([("__name__", metric), ("instance", instance), ("job", "node")])
}

/// A little of everything.
fn small() -> Vec<SeriesData> {
    let mut all = Vec::new();
    for (metric, instance) in [("a_total", "h:1"), ("a_total", "h:2"), ("b", "h:1"), ("c_seconds", "h:2")] {
        let mut series = SeriesData { labels: labels(metric, instance), ..SeriesData::default() };
        for n in 0..24_i64 {
            let time = n * 15_000 + n % 3 + i64::from(instance == "h:2") * 7;
            match metric {
                "c_seconds" if n % 2 == 0 => series.histograms.push((time, histogram(n as u64))),
                "b" if n % 4 == 3 => {}
                "b" => series.floats.push((time, BITS[n as usize % BITS.len()])),
                _ => series.floats.push((time, ((n * n) as f64 / 10.0).to_bits())),
            }
            if metric == "a_total" {
                series.starts.push((time, 5));
            }
        }
        if metric == "b" {
            let labels = LabelBuf::from_pairs([("trace_id", "abc")]);
            series.exemplars.push(StoredExemplar { labels, timestamp_ms: 15_001, value: -0.0 });
        }
        all.push(series);
    }
    all
}

fn name() -> String {
    new_block(2, false).ulid.to_string()
}

fn bytes_of(new: NewBlock, series: &[SeriesData]) -> Vec<u8> {
    let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
    let ulid = new.ulid;
    write(&files, new, series).unwrap();
    files.read(&Path::new(DIR).join(ulid.to_string()), 1 << 30).unwrap()
}

fn open_bytes(bytes: &[u8]) -> Result<Arc<NativeBlock>, StorageError> {
    let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
    files.create_dir_all(Path::new(DIR)).unwrap();
    let file = files.create(&Path::new(DIR).join(name())).unwrap();
    file.append(bytes).unwrap();
    open(&files, new_block(2, false).ulid)
}

fn is_damage(error: &StorageError) -> bool {
    matches!(error, StorageError::Corrupt { .. } | StorageError::Version { .. })
}

/// Reads everything there is; says how many rows came back as they were.
#[track_caller]
fn read_all(block: &Arc<NativeBlock>, want: &[SeriesData]) -> usize {
    let mut whole = 0;
    for (row, want) in (0..).zip(want) {
        match series_of(block, row) {
            Ok(found) => {
                assert_same(&found, want);
                whole += 1;
            }
            Err(error) => assert!(is_damage(&error), "{error}"),
        }
    }
    let matcher = Matcher::new(MatchOp::Regex, "__name__", "a_.*").unwrap();
    match block.rows(&[matcher]) {
        Ok(rows) => assert_eq!(rows.iter().collect::<Vec<_>>(), [0, 1]),
        Err(error) => assert!(is_damage(&error), "{error}"),
    }
    match block.label_values("instance", None) {
        Ok(values) => assert_eq!(values, ["h:1", "h:2"]),
        Err(error) => assert!(is_damage(&error), "{error}"),
    }
    whole
}

#[test]
fn every_flipped_byte_gives_the_right_data_or_an_error() {
    let series = small();
    for is_cold in [false, true] {
        let bytes = bytes_of(new_block(2, is_cold), &series);
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << (at % 8);
            match open_bytes(&bytes) {
                Ok(block) => _ = read_all(&block, &series),
                Err(error) => assert!(is_damage(&error), "byte {at}: {error}"),
            }
        }
    }
}

#[test]
fn a_block_that_is_cut_anywhere_does_not_open() {
    let bytes = bytes_of(new_block(2, false), &small());
    for length in 0..bytes.len() {
        match open_bytes(&bytes[..length]) {
            Err(error) => assert!(is_damage(&error), "{length} bytes: {error}"),
            Ok(_) => panic!("{length} of {} bytes are taken for a block", bytes.len()),
        }
    }
}

/// Whatever a block says behind right checksums: nothing panics, and no answer takes memory beyond proportion.
#[test]
fn contents_that_no_writer_wrote_are_answers_or_errors_and_never_a_panic() {
    let series = small();
    let ulid = new_block(2, false).ulid;
    for is_cold in [false, true] {
        let bytes = bytes_of(new_block(2, is_cold), &series);
        let pages = forged::pages(&bytes, ulid).unwrap();
        let mut state = 1_u64;
        for round in 0..600 {
            let mut changed = bytes.clone();
            for _ in 0..=round % 3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = HEADER_BYTES + (state >> 33) as usize % (bytes.len() - HEADER_BYTES - FOOTER_BYTES);
                changed[at] =
                    if round % 2 == 0 { (state >> 25) as u8 } else { bytes[at] ^ 1 << (state >> 61) };
            }
            forged::reseal(&mut changed, &pages, ulid);
            let Ok(block) = open_bytes(&changed) else { continue };
            let matcher = |name, value| Matcher::new(MatchOp::Regex, name, value).unwrap();
            let matchers =
                [matcher("__name__", "a_.*"), matcher("instance", "|h:1"), Matcher::equal("job", "node")];
            forged::read_everything(&block, &matchers);
        }
    }
}

#[test]
fn a_damaged_page_of_values_costs_its_rows_and_no_others() {
    // Nothing compresses these: a page holds a few series.
    let mut state = 7_u64;
    let series: Vec<SeriesData> = (0..40)
        .map(|n| {
            let mut series =
                SeriesData { labels: labels("noise", &format!("h:{n:03}")), ..SeriesData::default() };
            series.floats = (0..480)
                .map(|step| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (step * 15_000, state)
                })
                .collect();
            series
        })
        .collect();
    for is_cold in [false, true] {
        let mut bytes = bytes_of(new_block(2, is_cold), &series);
        bytes[HEADER_BYTES + 50_000] ^= 4;
        let block = open_bytes(&bytes).unwrap();
        let whole = (0..40).filter(|&row| series_of(&block, row).is_ok()).count();
        assert!((20..40).contains(&whole), "{whole} of 40 rows are left");
        for (row, want) in (0..).zip(&series) {
            if let Ok(found) = series_of(&block, row) {
                assert_same(&found, want);
            }
        }
    }
}

#[test]
fn a_write_that_fails_leaves_nothing_under_the_name_of_a_block() {
    let (series, path) = (small(), Path::new(DIR).join(name()));
    for fault in [Fault::Io, Fault::NoSpace, Fault::LostAnswer] {
        for call in 0.. {
            let sim = SimFiles::new(call);
            let files: Arc<dyn Files> = Arc::new(sim.clone());
            sim.fail_nth(call, fault);
            let written = write(&files, new_block(2, false), &series);
            if sim.calls() <= call {
                break;
            }
            // Naming the directory again is no failure.
            if written.is_ok() {
                assert!(open(&files, new_block(2, false).ulid).is_ok());
                continue;
            }
            assert!(!files.exists(&path).unwrap(), "call {call}");
            assert!(call < 1000);
        }
    }
}

#[test]
fn a_block_is_durable_when_it_is_finished_and_half_of_one_is_not_seen() {
    let (series, path) = (small(), Path::new(DIR).join(name()));
    let sim = SimFiles::new(3);
    let files: Arc<dyn Files> = Arc::new(sim.clone());
    let mut writer = NativeWriter::create(&files, Path::new(DIR), new_block(2, false)).unwrap();
    writer.add(&series[0]).unwrap();
    assert!(!sim.image().exists(&path).unwrap());
    Box::new(writer).abandon();
    write(&files, new_block(2, false), &series).unwrap();
    let after: Arc<dyn Files> = Arc::new(sim.crash());
    let block = open(&after, new_block(2, false).ulid).unwrap();
    assert_eq!(read_all(&block, &series), series.len());
}

#[test]
fn series_out_of_order_are_refused() {
    let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
    let mut writer = NativeWriter::create(&files, Path::new(DIR), new_block(2, false)).unwrap();
    let series = small();
    writer.add(&series[1]).unwrap();
    assert!(writer.add(&series[0]).is_err());
    assert!(writer.add(&series[1]).is_err());
    let mut backwards = series[2].clone();
    backwards.floats.reverse();
    assert!(writer.add(&backwards).is_err());
}

#[test]
fn series_with_gaps_and_those_that_come_and_go_share_the_stream_of_their_target() {
    let times: Vec<i64> = (0..480_i64).map(|n| n * 15_000 + n * 7919 % 5).collect();
    let of = |n: usize, keep: &dyn Fn(usize) -> bool| SeriesData {
        labels: labels(&format!("metric_{n:03}"), "h:1"),
        floats: times
            .iter()
            .enumerate()
            .filter(|(row, _)| keep(*row))
            .map(|(row, &time)| (time, row as u64))
            .collect(),
        ..SeriesData::default()
    };
    let mut series = vec![of(0, &|_| true)];
    for n in 1..60 {
        series.push(match n % 4 {
            0 => of(n, &|row| row % 7 != n % 7),
            1 => of(n, &|row| row > 3 * n),
            2 => of(n, &|row| row < 400 - n),
            // Neither end is that of the stream.
            _ => of(n, &|row| (2 * n..300 + n).contains(&row) && row != 200),
        });
    }
    let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
    write(&files, new_block(2, false), &series).unwrap();
    let block = open(&files, new_block(2, false).ulid).unwrap();
    assert_eq!(block.directory.streams, 1);
    assert_eq!(
        read_all_floats(&block),
        series.iter().map(|series| series.floats.clone()).collect::<Vec<_>>()
    );
}

fn read_all_floats(block: &Arc<NativeBlock>) -> Vec<Vec<(i64, u64)>> {
    (0..block.meta().series as u32).map(|row| series_of(block, row).unwrap().floats).collect()
}

#[test]
fn a_select_of_an_hour_reads_few_pages_of_a_long_block() {
    let step = |n: i64| (n * 60_000, (n as f64 / 10.0).to_bits());
    let series = SeriesData {
        labels: labels("long", "h:1"),
        floats: (0..30 * 24 * 60).map(step).collect(),
        ..SeriesData::default()
    };
    let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
    write(&files, new_block(30 * 24, false), std::slice::from_ref(&series)).unwrap();
    let block = open(&files, new_block(2, false).ulid).unwrap();
    let mut cursor = Arc::clone(&block).cursor();
    let (mut payload, mut pieces) = (Vec::new(), Vec::new());
    cursor.pieces_into(0, (100 * HOUR_MS, 101 * HOUR_MS), &mut payload, &mut pieces).unwrap();
    assert_eq!(pieces.len(), 1);
    cursor.pieces_into(0, EVER, &mut payload, &mut pieces).unwrap();
    assert_eq!(pieces.len(), 1 + 40);
    assert_eq!(joined(&[series])[0].floats, read_all_floats(&block)[0]);
}

#[test]
fn the_directory_is_counted_while_the_block_is_open() {
    let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
    write(&files, new_block(2, false), &small()).unwrap();
    let budget = Budget::unlimited();
    let pages = Arc::new(PageCache::new(&budget));
    let block = NativeBlock::open(&files, Path::new(DIR), new_block(2, false).ulid, &pages).unwrap();
    assert!((200..4096).contains(&budget.part(Part::Segments)));
    drop(block);
    assert_eq!(budget.part(Part::Segments), 0);
}

/// Set this to write the golden files anew.
const WRITE_GOLDEN: &str = "METRICSSTORE_WRITE_GOLDEN";

#[test]
fn golden_blocks_are_read_and_written_again_byte_for_byte() {
    for (file, is_cold) in [("hot", false), ("cold", true)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/native-v1").join(file);
        let bytes = bytes_of(new_block(2, is_cold), &small());
        if std::env::var_os(WRITE_GOLDEN).is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        let golden = std::fs::read(&path).unwrap();
        assert_eq!(&golden[golden.len() - 8..golden.len() - 4], END_MAGIC);
        assert_eq!(read_all(&open_bytes(&golden).unwrap(), &small()), small().len());
        assert!(golden == bytes, "the writer writes another file than the golden one, {file}");
    }
}
