//! Imports of directories that Prometheus wrote, whole and damaged, and of logs made here.
#![allow(clippy::unwrap_used, reason = "tests may panic")]
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_codec::checksum::crc32c;
use metricsstore_codec::varint;
use metricsstore_vfs::Files;
use metricsstore_vfs::sim::SimFiles;

use super::{Import, Options, Report, open};
use crate::StorageError;
use crate::block::prometheus::dump::{
    Dump, Sample, add, add_line, assert_same, data, expected, is_same, lines, sort,
};
use crate::block::{SeriesData, SeriesStream as _};

const RANGE_MS: i64 = 2 * 60 * 60 * 1000;
const DIR: &str = "/prometheus";

/// A copy of a directory on simulated files.
fn copy_of(name: &str) -> SimFiles {
    let files = SimFiles::new(1);
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        files.create_dir_all(&Path::new(DIR).join(&dir)).unwrap();
        for entry in std::fs::read_dir(data(name).join(&dir)).unwrap() {
            let entry = entry.unwrap();
            let path = dir.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                dirs.push(path);
            } else {
                write(&files, &path, &std::fs::read(entry.path()).unwrap());
            }
        }
    }
    files
}

fn write(files: &SimFiles, path: &Path, bytes: &[u8]) {
    let path = Path::new(DIR).join(path);
    if files.exists(&path).unwrap() {
        files.remove(&path).unwrap();
    }
    files.create(&path).unwrap().append(bytes).unwrap();
}

fn options(sort_bytes: usize) -> Options {
    Options { spill_dir: "/import".into(), range_ms: RANGE_MS, sort_bytes }
}

fn import(files: &SimFiles) -> Import {
    let files: Arc<dyn Files> = Arc::new(files.clone());
    open(&files, Path::new(DIR), &options(1 << 20), &mut |_| true).unwrap()
}

/// Everything of an import, with starts and exemplars by the text of the labels.
#[derive(Default)]
struct Found {
    samples: Dump,
    starts: BTreeMap<(String, i64), i64>,
    exemplars: Vec<String>,
}

fn found(import: &Import) -> Found {
    let (mut found, mut series) = (Found::default(), SeriesData::default());
    for range in import.ranges() {
        let mut stream = import.series(range.start).unwrap();
        let mut before: Option<String> = None;
        while stream.next_into(&mut series).unwrap() {
            let times = series
                .floats
                .iter()
                .map(|sample| sample.0)
                .chain(series.histograms.iter().map(|sample| sample.0));
            assert!(times.into_iter().all(|time| range.contains(&time)));
            let labels = series.labels.to_string();
            assert!(series.is_continuation || before.as_ref() < Some(&labels), "series are in order");
            for &(time, start) in &series.starts {
                found.starts.insert((labels.clone(), time), start);
            }
            for exemplar in &series.exemplars {
                found.exemplars.push(format!(
                    "# exemplar {labels} {} {} {}",
                    exemplar.labels, exemplar.value, exemplar.timestamp_ms
                ));
            }
            add(&mut found.samples, &series);
            before = Some(labels);
        }
    }
    found.samples.retain(|_, samples| !samples.is_empty());
    found
}

#[test]
fn a_log_of_prometheus_is_imported_without_loss() {
    let import = import(&copy_of("waldir"));
    assert_same(&found(&import).samples, &expected("snapshot.dump.gz"));
    let report = import.report();
    assert_eq!((report.series, report.damaged, report.without_series), (198, 0, 0));
    assert_eq!((report.invalid_histograms, report.unknown_records, report.in_blocks), (0, 0, 0));
}

/// What Prometheus says of `late_zstd`, what its block holds left out.
fn late_zstd() -> Found {
    const BASE_MS: i64 = 1_699_999_200_000;
    let is_in_block = |time: i64| time < BASE_MS + RANGE_MS && (time - BASE_MS) % 15_000 < 6;
    let mut wanted = Found::default();
    for line in lines("late_zstd.dump.gz") {
        let (rest, last) = line.rsplit_once(' ').unwrap();
        if line.starts_with('#') {
            if !is_in_block(last.parse().unwrap()) {
                wanted.exemplars.push(line);
            }
            continue;
        }
        let time = rest.rsplit_once(' ').unwrap().1.parse().unwrap();
        if !is_in_block(time) {
            add_line(&mut wanted.samples, rest);
            let labels = rest[..=rest.find('}').unwrap()].to_owned();
            let start = last.parse().unwrap();
            if start != 0 {
                wanted.starts.insert((labels, time), start);
            }
        }
    }
    sort(&mut wanted.samples);
    wanted
}

#[test]
fn checkpoint_late_samples_starts_exemplars_and_deletions_are_imported_as_prometheus_has_them() {
    let files = copy_of("late_zstd");
    let wanted = late_zstd();
    for sort_bytes in [1 << 30, 64 << 10, 4 << 10] {
        let shared: Arc<dyn Files> = Arc::new(files.clone());
        let mut last = None;
        let mut progress = |progress: super::Progress| {
            last = Some(progress);
            true
        };
        let import = open(&shared, Path::new(DIR), &options(sort_bytes), &mut progress).unwrap();
        assert!(last.is_some_and(|last| last.done_bytes <= last.total_bytes));
        let found = found(&import);
        assert_same(&found.samples, &wanted.samples);
        let differing = |(place, start): &(&(String, i64), &i64)| wanted.starts.get(place) != Some(start);
        assert_eq!(found.starts.iter().find(differing), None);
        assert_eq!(wanted.starts.len(), found.starts.len());
        assert_eq!(found.exemplars, wanted.exemplars);
        let report = import.report();
        assert_eq!((report.series, report.damaged, report.without_series), (8, 0, 0));
        assert!(report.deleted > 0 && report.in_blocks > 0);
        drop(import);
        assert!(!files.exists(Path::new("/import")).unwrap(), "nothing is left behind");
    }
}

#[test]
fn head_chunks_hold_what_the_log_has_lost() {
    let files = copy_of("late_zstd");
    // All of the log but the checkpoint, which names the series.
    for number in 3..8 {
        files.remove(&Path::new(DIR).join(format!("wal/{number:08}"))).unwrap();
    }
    let import = import(&files);
    let found = found(&import);
    let wanted = late_zstd();
    let mut held = 0;
    for (labels, samples) in &found.samples {
        held += samples.len();
        let wanted = &wanted.samples[labels];
        // The tombstone was in the log, too.
        let is_right = |sample| labels.contains("\"4\"") || wanted.iter().any(|other| is_same(sample, other));
        assert!(samples.iter().all(is_right));
    }
    let all: usize = wanted.samples.values().map(Vec::len).sum();
    assert!(held > all * 3 / 4, "{held} of {all}");
    assert_eq!(import.report().damaged, 0);
}

/// Whether everything of `found` is in `wanted`; how many samples are missing.
fn missing(found: &Found, wanted: &Dump) -> usize {
    for (labels, samples) in &found.samples {
        let mut others = wanted[labels].iter();
        let is_right = |sample| others.by_ref().any(|other| is_same(sample, other));
        assert!(samples.iter().all(is_right), "{labels} has samples that never were");
    }
    let count = |dump: &Dump| dump.values().map(Vec::len).sum::<usize>();
    count(wanted) - count(&found.samples)
}

#[test]
fn a_flipped_byte_costs_its_page_and_is_reported_where_it_is() {
    let files = copy_of("late_zstd");
    files.remove_dir_all(&Path::new(DIR).join("chunks_head")).unwrap();
    let wanted = late_zstd().samples;
    let whole = missing(&found(&import(&files)), &wanted);
    assert_eq!(whole, 0);
    let path = Path::new("wal/00000004");
    let bytes = files.read(&Path::new(DIR).join(path), 1 << 20).unwrap();
    for at in (0..7).chain((7..bytes.len()).step_by(911)) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x81;
        write(&files, path, &flipped);
        let import = import(&files);
        let missing = missing(&found(&import), &wanted);
        let report = import.report();
        assert!(report.damaged == 1 || missing == 0 && report.damaged == 0, "byte {at}: {report:?}");
        for place in &report.places {
            assert!(
                place.file.ends_with("wal/00000004") && place.offset <= at as u64,
                "byte {at}: {place:?}"
            );
        }
    }
}

#[test]
fn a_log_that_ends_anywhere_is_read_up_to_there() {
    let files = copy_of("waldir");
    files.remove_dir_all(&Path::new(DIR).join("chunks_head")).unwrap();
    let wanted = expected("snapshot.dump.gz");
    let path = Path::new("wal/00000000");
    let bytes = files.read(&Path::new(DIR).join(path), 1 << 20).unwrap();
    let mut before = usize::MAX;
    for cut in (0..bytes.len()).step_by(37_003) {
        write(&files, path, &bytes[..cut]);
        let import = import(&files);
        assert_eq!(import.report().damaged, 0, "cut at {cut}");
        let missing = missing(&found(&import), &wanted);
        assert!(missing <= before);
        before = missing;
    }
}

#[test]
fn an_import_can_be_broken_off() {
    let files: Arc<dyn Files> = Arc::new(copy_of("waldir"));
    let result = open(&files, Path::new(DIR), &options(1 << 20), &mut |_| false);
    assert!(matches!(result, Err(StorageError::ShuttingDown)));
    assert!(!files.exists(Path::new("/import")).unwrap());
}

#[test]
fn a_directory_without_a_log_holds_nothing() {
    let files = SimFiles::new(1);
    files.create_dir_all(Path::new(DIR)).unwrap();
    let import = import(&files);
    assert_eq!((import.ranges().count(), import.report()), (0, &Report::default()));
}

/// A segment being made.
#[derive(Default)]
struct Segment(Vec<u8>);

impl Segment {
    fn fragment(&mut self, kind: u8, data: &[u8]) -> &mut Segment {
        self.0.push(kind);
        self.0.extend((data.len() as u16).to_be_bytes());
        self.0.extend(crc32c(data).to_be_bytes());
        self.0.extend(data);
        self
    }

    fn record(&mut self, data: &[u8]) -> &mut Segment {
        let packed = snap::raw::Encoder::new().compress_vec(data).unwrap();
        if self.0.len().is_multiple_of(2) { self.fragment(1, data) } else { self.fragment(1 | 8, &packed) }
    }

    fn series(&mut self, reference: u64, name: &str) -> &mut Segment {
        let mut record = vec![1];
        record.extend(reference.to_be_bytes());
        varint::put(&mut record, 1);
        for text in ["__name__", name] {
            varint::put(&mut record, text.len() as u64);
            record.extend(text.as_bytes());
        }
        self.record(&record)
    }

    fn floats(&mut self, reference: u64, samples: &[(i64, f64)]) -> &mut Segment {
        let mut record = vec![2];
        record.extend(1000_u64.to_be_bytes());
        record.extend(50_u64.to_be_bytes());
        for &(time, value) in samples {
            varint::put(&mut record, varint::zigzag(reference as i64 - 1000));
            varint::put(&mut record, varint::zigzag(time - 50));
            record.extend(value.to_bits().to_be_bytes());
        }
        self.record(&record)
    }

    fn tombstone(&mut self, reference: u64, min_ms: i64, max_ms: i64) -> &mut Segment {
        let mut record = vec![3];
        record.extend(reference.to_be_bytes());
        varint::put(&mut record, varint::zigzag(min_ms));
        varint::put(&mut record, varint::zigzag(max_ms));
        self.record(&record)
    }
}

/// Imports a log of these segments; number and bytes.
fn import_of(segments: &[(u64, &Segment)]) -> Import {
    let files = SimFiles::new(1);
    files.create_dir_all(&Path::new(DIR).join("wal")).unwrap();
    for (number, segment) in segments {
        write(&files, Path::new(&format!("wal/{number:08}")), &segment.0);
    }
    import(&files)
}

/// Times and values by name.
fn floats(import: &Import) -> BTreeMap<String, Vec<(i64, f64)>> {
    let float = |(time, sample): &(i64, Sample)| match sample {
        Sample::Float(value) => (*time, *value),
        Sample::Histogram(_) => (*time, f64::NAN),
    };
    let name = |labels: &str| labels.split('"').nth(1).unwrap().to_owned();
    let samples = found(import).samples;
    samples.iter().map(|(labels, samples)| (name(labels), samples.iter().map(float).collect())).collect()
}

#[test]
fn references_mean_what_the_log_said_last() {
    let mut segment = Segment::default();
    segment.series(7, "b").series(8, "a").floats(7, &[(1, 1.0), (2, 2.0)]).floats(8, &[(1, 10.0)]);
    // Another reference for the same labels, and the same one for others.
    segment.series(9, "b").floats(9, &[(3, 3.0)]).series(8, "c").floats(8, &[(4, 4.0)]);
    segment.floats(9, &[(3, 33.0), (2, 22.0)]);
    let import = import_of(&[(0, &segment)]);
    let wanted = [("a", vec![(1, 10.0)]), ("b", vec![(1, 1.0), (2, 2.0), (3, 3.0)]), ("c", vec![(4, 4.0)])];
    assert_eq!(floats(&import), wanted.map(|(name, samples)| (name.to_owned(), samples)).into());
    assert_eq!(import.report().series, 3);
}

#[test]
fn deleted_samples_stay_deleted_and_a_series_that_went_to_a_block_early_does_not_take_its_successor_along() {
    let mut segment = Segment::default();
    segment.series(1, "a").series(2, "b").floats(1, &[(1, 1.0), (2, 2.0), (3, 3.0), (9, 9.0)]);
    segment.floats(2, &[(1, 1.0), (2, 2.0)]).tombstone(1, 2, 3).tombstone(2, i64::MIN, i64::MAX);
    segment.series(3, "b").floats(3, &[(7, 7.0)]);
    let import = import_of(&[(0, &segment)]);
    let wanted = [("a", vec![(1, 1.0), (9, 9.0)]), ("b", vec![(7, 7.0)])];
    assert_eq!(floats(&import), wanted.map(|(name, samples)| (name.to_owned(), samples)).into());
    let report = import.report();
    assert_eq!((report.series, report.floats, report.deleted), (2, 3, 4));
}

#[test]
fn what_cannot_be_read_is_counted_and_named() {
    let mut first = Segment::default();
    first.series(1, "a").fragment(1, &[99, 1, 2]).floats(5, &[(1, 1.0)]);
    let cut = first.0.len() as u64;
    first.fragment(1, &[2, 0, 0]);
    let lost = first.0.len() as u64;
    first.fragment(2, b"beginning").floats(1, &[(2, 2.0)]);
    let orphan = first.0.len() as u64;
    first.fragment(4, b"end").floats(1, &[(3, 3.0)]);
    let mut second = Segment::default();
    second.floats(1, &[(4, 4.0)]).fragment(2, b"the last record is torn");
    let import = import_of(&[(3, &first), (5, &second)]);
    assert_eq!(floats(&import), [("a".to_owned(), vec![(2, 2.0), (3, 3.0), (4, 4.0)])].into());
    let report = import.report();
    assert_eq!((report.unknown_records, report.without_series, report.damaged), (1, 1, 4));
    let places: Vec<(bool, u64)> =
        report.places.iter().map(|place| (place.file.ends_with('3'), place.offset)).collect();
    assert_eq!(places, [(true, cut), (true, lost), (true, orphan), (false, 0)]);
}
