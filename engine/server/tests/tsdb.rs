//! `metricsstore tsdb …` on data that Prometheus wrote, on its own, and beside a running engine.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests may panic")]
mod support;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{Engine, now_ms, write_request};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../storage/tests/data/prometheus").join(name)
}

fn tsdb(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_metricsstore")).arg("tsdb").args(args).output().unwrap()
}

/// What a command prints that succeeds.
fn stdout(args: &[&str]) -> String {
    let output = tsdb(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Lines of a dump, sorted.
fn sorted(dump: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = dump.lines().collect();
    lines.sort_unstable();
    lines
}

/// What `promtool tsdb dump` says.
fn expected(name: &str) -> String {
    let mut text = String::new();
    let file = std::fs::File::open(data(name)).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}

fn dump(dir: &Path) -> String {
    stdout(&["dump", text(dir)])
}

fn to(dir: &Path) -> String {
    format!("--storage.tsdb.path={}", dir.display())
}

/// Every file below a directory with its contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            all.extend(files(&entry.path()));
        } else {
            all.insert(entry.path(), std::fs::read(entry.path()).unwrap());
        }
    }
    all
}

#[test]
fn blocks_are_listed_in_columns_that_align() {
    let dir = data("openmetrics");
    assert_eq!(
        stdout(&["list", text(&dir)]),
        "\
BLOCK ULID                  MIN TIME       MAX TIME       DURATION     NUM SAMPLES  NUM CHUNKS   NUM SERIES   SIZE         FORMAT       LEVEL
01M8PQN23E00CRNCEY90SM3A3N  1700006400000  1700013480001  1h58m0.001s  480          8            8            3428         prometheus   1
"
    );
    assert_eq!(
        stdout(&["list", "-r", text(&dir)]),
        "\
BLOCK ULID                  MIN TIME                       MAX TIME                       DURATION     NUM SAMPLES  NUM CHUNKS   NUM SERIES   SIZE         FORMAT       LEVEL
01M8PQN23E00CRNCEY90SM3A3N  2023-11-15 00:00:00 +0000 UTC  2023-11-15 01:58:00 +0000 UTC  1h58m0.001s  480          8            8            3KiB356B     prometheus   1
"
    );
}

#[test]
fn a_dump_is_line_by_line_that_of_promtool_whatever_was_imported_and_exported_in_between() {
    let source = data("snapshot");
    let wanted = expected("snapshot.dump.gz");
    assert_eq!(sorted(&dump(&source)), sorted(&wanted));
    let work = tempfile::tempdir().unwrap();
    let store = work.path().join("store");
    let out = stdout(&["import", &to(&store), text(&source)]);
    assert!(out.contains("imported 1 blocks with 45432 samples"), "{out}");
    assert_eq!(sorted(&dump(&store)), sorted(&wanted));
    assert!(stdout(&["list", text(&store)]).contains("native"));
    let exported = work.path().join("exported");
    let output = format!("--output={}", exported.display());
    assert!(stdout(&["export", &output, text(&store)]).contains("exported 1 blocks with 45432 samples"));
    assert_eq!(sorted(&dump(&exported)), sorted(&wanted));
    assert!(stdout(&["list", text(&exported)]).contains("prometheus"));
    for dir in [&source, &store, &exported] {
        let report = stdout(&["verify", text(dir)]);
        assert!(report.contains("good  ") && !report.contains("BAD"), "{report}");
    }
}

#[test]
fn a_log_and_head_chunks_of_prometheus_are_read_imported_and_exported_like_blocks() {
    let source = data("waldir");
    let wanted = expected("snapshot.dump.gz");
    let before = files(&source);
    assert_eq!(sorted(&dump(&source)), sorted(&wanted));
    let report = stdout(&["verify", text(&source)]);
    assert!(report.contains("good  log and head chunks: 198 series"), "{report}");
    let work = tempfile::tempdir().unwrap();
    let store = work.path().join("store");
    stdout(&["import", &to(&store), text(&source)]);
    assert_eq!(sorted(&dump(&store)), sorted(&wanted));
    let again = tsdb(&["import", &to(&store), text(&source)]);
    assert!(stderr(&again).contains("0 blocks to import, 1 are there already"), "{}", stderr(&again));
    let exported = work.path().join("exported");
    stdout(&["export", &format!("--output={}", exported.display()), text(&source)]);
    assert_eq!(sorted(&dump(&exported)), sorted(&wanted));
    assert_eq!(files(&source), before);
    for dir in [&store, &exported] {
        assert!(!dir.join("import.tmp").exists(), "what was sorted is removed");
    }
}

#[test]
fn a_selection_of_series_and_time_is_dumped_and_exported() {
    let source = data("openmetrics");
    let all = dump(&source);
    let first = all.lines().next().unwrap();
    let (labels, rest) = first.split_at(first.find('}').unwrap() + 1);
    let time: i64 = rest.rsplit_once(' ').unwrap().1.parse().unwrap();
    let selector = labels.replace(", ", ",");
    let bounds = [format!("--min-time={time}"), format!("--max-time={time}")];
    let one = stdout(&["dump", text(&source), "--match", &selector, &bounds[0], &bounds[1]]);
    assert_eq!(one.trim_end(), first);
    let metrics = stdout(&["export", "--format=openmetrics", "--match", &selector, text(&source)]);
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    assert_eq!(metrics.lines().count(), 1 + all.lines().filter(|line| line.starts_with(labels)).count());
    let (sample, seconds) = metrics.lines().next().unwrap().rsplit_once(' ').unwrap();
    assert_eq!(seconds, format!("{}.{:03}", time / 1000, time % 1000));
    assert!(!sample.starts_with('{') && sample.contains('{'));
}

#[test]
fn an_import_goes_on_where_it_was_and_a_dry_run_writes_nothing() {
    let work = tempfile::tempdir().unwrap();
    let store = work.path().join("store");
    let dry = stdout(&["import", "--dry-run", &to(&store), text(&data("snapshot"))]);
    assert!(dry.contains("would import 1 blocks with 45432 samples"), "{dry}");
    assert!(!store.exists());
    stdout(&["import", &to(&store), text(&data("openmetrics"))]);
    let again = tsdb(&["import", &to(&store), text(&data("openmetrics"))]);
    assert!(stderr(&again).contains("0 blocks to import, 1 are there already"), "{}", stderr(&again));
    stdout(&["import", &to(&store), text(&data("snapshot"))]);
    assert_eq!(stdout(&["list", text(&store)]).lines().filter(|line| line.contains("native")).count(), 2);
}

#[test]
fn blocks_of_prometheus_are_taken_over_where_they_stand() {
    let work = tempfile::tempdir().unwrap();
    let store = work.path().join("store");
    let export = format!("--output={}", store.display());
    stdout(&["export", &export, text(&data("openmetrics"))]);
    let wanted = dump(&store);
    let before = files(&store);
    let format = "--storage.block-format=prometheus";
    assert!(stdout(&["import", format, &to(&store), text(&store)]).contains("imported 1 blocks"));
    let after = files(&store);
    assert!(before.iter().all(|(path, bytes)| after[path] == *bytes));
    assert_eq!(dump(&store), wanted);
}

#[test]
fn damage_is_found_named_and_left_as_it_is() {
    let work = tempfile::tempdir().unwrap();
    let store = work.path().join("store");
    stdout(&["import", &to(&store), text(&data("snapshot"))]);
    let block = store.join("blocks/01M8PQN08JPBB7KPSZQ0D3Y8MN");
    let good = std::fs::read(&block).unwrap();
    for at in [40, good.len() / 3, good.len() / 2] {
        let mut bytes = good.clone();
        bytes[at] ^= 0x20;
        std::fs::write(&block, &bytes).unwrap();
        let before = files(&store);
        let output = tsdb(&["verify", text(&store)]);
        assert_eq!(output.status.code(), Some(1), "byte {at}");
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(report.contains("BAD"), "byte {at}: {report}");
        assert!(stderr(&output).contains("restore it from a snapshot"), "{}", stderr(&output));
        assert_eq!(files(&store), before, "byte {at}");
    }
}

#[test]
fn tools_read_beside_a_running_engine_what_is_only_in_its_log_too() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start(dir.path(), &["--web.enable-remote-write-receiver", "--web.enable-admin-api"]);
    let now = now_ms();
    let body = write_request(&[(&[("__name__", "m"), ("a", "b")], &[(now - 1000, 1.5), (now, 2.5)])]);
    assert_eq!(engine.write(&body).status, 204);
    let store = dir.path().join("data");
    let lines =
        format!("{{__name__=\"m\", a=\"b\"}} 1.5 {}\n{{__name__=\"m\", a=\"b\"}} 2.5 {now}\n", now - 1000);
    assert_eq!(stdout(&["dump", text(&store), "--match", "m"]), lines);
    let refused = tsdb(&["import", &to(&store), text(&data("snapshot"))]);
    assert!(stderr(&refused).contains("is in use by another process; stop it"), "{}", stderr(&refused));
    // And the snapshot that it makes, in which all of it is sealed.
    let answer = engine.post("/api/v1/admin/tsdb/snapshot", &[], b"");
    let name = answer.json()["data"]["name"].as_str().unwrap().to_owned();
    let snapshot = store.join("snapshots").join(name);
    assert_eq!(stdout(&["dump", text(&snapshot), "--match", "m"]), lines);
    assert!(stdout(&["list", text(&snapshot)]).contains("segments: 1 with"));
    assert_eq!(engine.value("m", &format!("{}", now as f64 / 1000.0)).as_deref(), Some("2.5"));
}

#[test]
fn what_cannot_be_done_is_said_with_the_cure() {
    let work = tempfile::tempdir().unwrap();
    for (args, words) in [
        (vec!["list", text(work.path())], "it has neither a manifest nor blocks nor a log"),
        (vec!["list", text(&data("snapshot/01M8PQN08JPBB7KPSZQ0D3Y8MN"))], "name the directory above"),
        (
            vec!["analyze", text(&data("snapshot")), "x"],
            "x is no name of a block: metricsstore tsdb list shows them",
        ),
        (vec!["export", text(&data("snapshot"))], "name a directory for the blocks: --output=DIR"),
        (vec!["dump", text(&data("snapshot")), "--match", "{"], "--match {: "),
        (vec!["dump", text(&data("snapshot")), "--min-time=now"], "write milliseconds since the epoch"),
        (vec!["dump", "--macth=up", "x"], "unknown flag \"--macth\", did you mean \"--match\"?"),
    ] {
        let output = tsdb(&args);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}");
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
    let help = stdout(&["--help"]);
    for name in ["list", "analyze", "verify", "dump", "export", "import"] {
        assert!(help.contains(name), "{help}");
    }
}

#[test]
fn an_analysis_counts_series_labels_and_pairs() {
    let text = stdout(&["analyze", text(&data("snapshot")), "--limit=2"]);
    for line in [
        "Block ID: 01M8PQN08JPBB7KPSZQ0D3Y8MN (prometheus, level 1)",
        "Duration: 59m45.001s",
        "Total Series: 198",
        "Total Samples: 45432",
        "186 job=demo",
        "132 demo_api_request_duration_seconds_bucket",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}
