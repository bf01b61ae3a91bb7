use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_model::{LabelBuf, MatchOp, Matcher};
use metricsstore_vfs::Files;
use metricsstore_vfs::real::RealFiles;
use metricsstore_vfs::sim::SimFiles;

use super::{ChunkMeta, FILE_NAME, IndexReader, IndexWriter};
use crate::StorageError;
use crate::block::series::fingerprint;

type Series = Vec<(LabelBuf, Vec<ChunkMeta>)>;

/// A file that Prometheus wrote.
fn handed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/prometheus").join(path)
}

fn dir() -> &'static Path {
    Path::new("/block")
}

fn new_files() -> Arc<dyn Files> {
    let files = SimFiles::new(1);
    files.create_dir_all(dir()).unwrap();
    Arc::new(files)
}

fn all_series(index: &IndexReader) -> Result<Series, StorageError> {
    let mut series = Vec::new();
    for row in 0..index.rows() {
        let (mut labels, mut chunks) = (LabelBuf::new(), Vec::new());
        index.labels(row, &mut labels)?;
        index.chunks(row, &mut chunks)?;
        series.push((labels, chunks));
    }
    Ok(series)
}

fn write(series: &Series, references_at_once: usize) -> Arc<dyn Files> {
    let files = new_files();
    let mut writer = IndexWriter::create(&files, dir()).unwrap().with_references_at_once(references_at_once);
    for (labels, chunks) in series {
        writer.add(labels, chunks).unwrap();
    }
    let bytes = writer.finish().unwrap();
    let names: Vec<(String, u64)> =
        files.list(dir()).unwrap().into_iter().map(|entry| (entry.name, entry.len)).collect();
    assert_eq!(names, [(FILE_NAME.to_owned(), bytes)]);
    files
}

fn content(files: &dyn Files) -> Vec<u8> {
    files.read(&dir().join(FILE_NAME), 1 << 30).unwrap()
}

/// Files with an index of these bytes.
fn with_content(bytes: &[u8]) -> Arc<dyn Files> {
    let files = new_files();
    files.create(&dir().join(FILE_NAME)).unwrap().append(bytes).unwrap();
    files
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn random_series(random: &mut Random) -> Series {
    let mut sets = BTreeSet::new();
    for _ in 0..random.below(120) {
        let mut labels = LabelBuf::new();
        for name in ["__name__", "a", "ä", "pod", "zone"] {
            let values = if name == "pod" { 200 } else { 4 };
            match random.below(values + 1) {
                0 => {}
                value => labels.push(name, &format!("v{value}")),
            }
        }
        labels.sort();
        if !labels.is_empty() {
            sets.insert(labels);
        }
    }
    let mut reference = 8;
    let mut chunks_of = |random: &mut Random| {
        let mut time = random.below(100) as i64 - 50;
        let mut chunks = Vec::new();
        for _ in 0..random.below(4) {
            let (min_ms, max_ms) = (time, time + random.below(1000) as i64);
            chunks.push(ChunkMeta { min_ms, max_ms, reference });
            time = max_ms + 1 + random.below(300) as i64;
            reference += 1 + random.below(1 << 30);
        }
        chunks
    };
    sets.into_iter().map(|labels| (labels, chunks_of(random))).collect()
}

fn random_matchers(random: &mut Random) -> Vec<Matcher> {
    let patterns = ["v1", "v2", "v150", "", "v1|v2", "v1|", ".*", ".+", "v[1-3]", "v1.*|", "x"];
    let ops = [MatchOp::Equal, MatchOp::NotEqual, MatchOp::Regex, MatchOp::NotRegex];
    let matcher = |random: &mut Random| {
        let name = ["__name__", "a", "ä", "pod", "zone", "missing", ""][random.below(7) as usize];
        let pattern = patterns[random.below(patterns.len() as u64) as usize];
        Matcher::new(ops[random.below(4) as usize], name, pattern).unwrap()
    };
    (0..random.below(4)).map(|_| matcher(random)).collect()
}

#[test]
fn what_prometheus_wrote_is_written_again_byte_for_byte() {
    for path in ["snapshot/01M8PQN08JPBB7KPSZQ0D3Y8MN", "openmetrics/01M8PQN23E00CRNCEY90SM3A3N"] {
        let path = handed(path);
        let index = IndexReader::open(&RealFiles, &path).unwrap();
        let want = std::fs::read(path.join(FILE_NAME)).unwrap();
        let series = all_series(&index).unwrap();
        for references_at_once in [1, 10, 100, 1 << 20] {
            assert!(content(&*write(&series, references_at_once)) == want, "{}", path.display());
        }
    }
}

#[test]
fn an_index_of_version_1_is_read() {
    let index = IndexReader::open(&RealFiles, &handed("index_format_v1")).unwrap();
    let series = all_series(&index).unwrap();
    assert_eq!(series.len(), 102);
    assert!(series.is_sorted_by(|a, b| a.0 < b.0));
    assert_eq!(index.label_names(None).unwrap(), ["bar", "foo"]);
    let mut values: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    values.sort();
    assert_eq!(index.label_values("bar", None).unwrap(), values);
    assert_eq!(index.label_values("foo", None).unwrap(), ["bar", "baz"]);
    let found = index.matching(&[Matcher::equal("bar", "42")]).unwrap();
    assert_eq!(found.len(), 1);
    let (labels, chunks) = &series[found.min().unwrap() as usize];
    assert_eq!(labels.get("bar"), Some("42"));
    assert_eq!(chunks.len(), 1);
}

#[test]
fn random_indexes_agree_with_a_plain_list() {
    for seed in 0..16 {
        let mut random = Random(seed);
        let series = random_series(&mut random);
        let references_at_once = [1, 7, 1 << 19][random.below(3) as usize];
        let files = write(&series, references_at_once);
        let index = IndexReader::open(&*files, dir()).unwrap();
        assert_eq!(all_series(&index).unwrap(), series);
        for row in 0..index.rows() {
            assert_eq!(index.row_of(u64::from(index.reference_of(row).unwrap())), Some(row));
        }
        let rows: Vec<u32> = (0..index.rows()).filter(|_| random.below(3) > 0).collect();
        let mut fingerprints = Vec::new();
        index.fingerprints_into(&rows, &mut fingerprints).unwrap();
        let want = rows.iter().map(|&row| fingerprint(&series[row as usize].0));
        assert!(fingerprints.into_iter().eq(want));
        for _ in 0..40 {
            compare_selection(&index, &series, &random_matchers(&mut random));
        }
    }
}

fn compare_selection(index: &IndexReader, series: &Series, matchers: &[Matcher]) {
    let passes = |labels: &LabelBuf| {
        matchers.iter().all(|matcher| matcher.matches(labels.get(&matcher.name).unwrap_or("")))
    };
    let want: Vec<usize> = (0..series.len()).filter(|&row| passes(&series[row].0)).collect();
    let rows = index.matching(matchers).unwrap();
    assert!(rows.iter().map(|row| row as usize).eq(want.iter().copied()), "{matchers:?}");
    let pairs = || want.iter().flat_map(|&row| series[row].0.iter());
    let names: BTreeSet<&str> = pairs().map(|(name, _)| name).collect();
    assert!(index.label_names(Some(&rows)).unwrap().iter().eq(&names), "{matchers:?}");
    for name in names.into_iter().chain(["missing"]) {
        let values: BTreeSet<&str> = pairs().filter(|pair| pair.0 == name).map(|pair| pair.1).collect();
        assert!(index.label_values(name, Some(&rows)).unwrap().iter().eq(&values), "{name} {matchers:?}");
    }
}

#[test]
fn a_series_that_does_not_belong_is_refused_and_leaves_the_index_as_it_was() {
    let chunk = |min_ms, max_ms, reference| ChunkMeta { min_ms, max_ms, reference };
    let labels = |pairs: &[(&str, &str)]| {
        let mut labels = LabelBuf::new();
        for (name, value) in pairs {
            labels.push(name, value);
        }
        labels
    };
    let good = |first| (labels(&[("a", first), ("b", "1")]), vec![chunk(0, 9, 8), chunk(10, 10, 20)]);
    let next = (labels(&[("a", "n")]), vec![chunk(3, 4, 21)]);
    let refused = [
        (labels(&[]), vec![]),
        (labels(&[("b", "1"), ("a", "2")]), vec![]),
        (labels(&[("m", "1"), ("m", "2")]), vec![]),
        (labels(&[("m", "")]), vec![]),
        (labels(&[("", "m")]), vec![]),
        (labels(&[("a", "m"), ("b", "1")]), vec![]),
        (labels(&[("a", "l")]), vec![]),
        (labels(&[("a", "n")]), vec![chunk(5, 4, 21)]),
        (labels(&[("a", "n")]), vec![chunk(3, 5, 21), chunk(5, 6, 22)]),
        (labels(&[("a", "n")]), vec![chunk(3, 4, 22), chunk(5, 6, 21)]),
        (labels(&[("a", "n")]), vec![chunk(3, 4, 20)]),
    ];
    let files = new_files();
    let mut writer = IndexWriter::create(&files, dir()).unwrap();
    writer.add(&good("m").0, &good("m").1).unwrap();
    for (labels, chunks) in &refused {
        assert!(writer.add(labels, chunks).is_err(), "{labels} {chunks:?}");
    }
    writer.add(&next.0, &next.1).unwrap();
    writer.finish().unwrap();
    assert_eq!(content(&*files), content(&*write(&vec![good("m"), next], 8)));
}

#[test]
fn every_flipped_byte_gives_the_same_data_or_an_error_and_every_cut_an_error() {
    let series = random_series(&mut Random(9));
    let bytes = content(&*write(&series, 64));
    let small: Series = series.into_iter().take(12).collect();
    let small_bytes = content(&*write(&small, 64));
    assert!(bytes.len() > small_bytes.len());
    let matchers = [
        vec![Matcher::equal("a", "v2")],
        vec![Matcher::new(MatchOp::NotRegex, "pod", "v1.*").unwrap()],
        vec![Matcher::new(MatchOp::Regex, "zone", ".+").unwrap()],
    ];
    let read = |bytes: &[u8]| -> Result<_, StorageError> {
        let files = with_content(bytes);
        let index = IndexReader::open(&*files, dir())?;
        let mut found = Vec::new();
        for matchers in &matchers {
            found.push(index.matching(matchers)?);
        }
        let names = index.label_names(None)?;
        Ok((all_series(&index)?, found, names, index.label_values("pod", None)?))
    };
    let want = read(&small_bytes).unwrap();
    for place in 0..small_bytes.len() {
        assert!(read(&small_bytes[..place]).is_err(), "cut at {place}");
        for bit in 0..8 {
            let mut flipped = small_bytes.clone();
            flipped[place] ^= 1 << bit;
            if let Ok(found) = read(&flipped) {
                assert!(found == want, "byte {place}, bit {bit}");
            }
        }
    }
}

#[test]
fn a_file_that_changes_under_an_open_index_is_found_out() {
    let series = random_series(&mut Random(4));
    let bytes = content(&*write(&series, 64));
    let path = tempfile::tempdir().unwrap();
    let file = path.path().join(FILE_NAME);
    for place in (0..bytes.len()).step_by(3) {
        std::fs::write(&file, &bytes).unwrap();
        let index = IndexReader::open(&RealFiles, path.path()).unwrap();
        let mut flipped = bytes.clone();
        flipped[place] ^= 0x10;
        std::fs::write(&file, &flipped).unwrap();
        if let Ok(found) = all_series(&index) {
            assert!(found == series, "byte {place}");
        }
        let want: Vec<u32> =
            (0..series.len() as u32).filter(|&row| series[row as usize].0.get("a") == Some("v2")).collect();
        if let Ok(found) = index.matching(&[Matcher::equal("a", "v2")]) {
            assert!(found.iter().eq(want), "byte {place}");
        }
    }
}

/// 20k series of 40 pods, 10 labels each, as a cluster has them.
#[test]
fn memory_is_a_few_bytes_for_each_series() {
    let mut series = Vec::new();
    for metric in 0..500 {
        for pod in 0..40 {
            let labels = LabelBuf::from_pairs([
                ("__name__", format!("container_network_something_{metric:03}_total")),
                ("cluster", "production-1".to_owned()),
                ("container", "main".to_owned()),
                ("endpoint", "metrics".to_owned()),
                ("instance", format!("10.0.{}.{}:8080", pod / 8, pod % 8)),
                ("job", format!("job-{}", pod / 8)),
                ("namespace", format!("namespace-{}", pod / 8)),
                ("pod", format!("deployment-{}-5d89bd6c9-{pod:05}", pod / 8)),
                ("service", format!("service-{}", pod / 8)),
                ("zone", "europe-1".to_owned()),
            ]);
            series.push(labels);
        }
    }
    series.sort();
    let files = new_files();
    let mut writer = IndexWriter::create(&files, dir()).unwrap();
    for (row, labels) in series.iter().enumerate() {
        let chunk = ChunkMeta { min_ms: 0, max_ms: 7_199_999, reference: 8 + 300 * row as u64 };
        writer.add(labels, &[chunk]).unwrap();
    }
    let fixed = IndexWriter::create(&new_files(), dir()).unwrap().bytes();
    let held = writer.bytes() - fixed;
    assert!(held < 5 * series.len(), "{held} bytes while it is written");
    writer.finish().unwrap();
    let index = IndexReader::open(&*files, dir()).unwrap();
    assert!(index.bytes() < 200_000, "{} bytes while it is read", index.bytes());
}
