//! Blocks in Prometheus' format, judged by those who read them elsewhere: `promtool`, a Prometheus started on them, and
//! Thanos, whose sidecar ships them and whose tools verify them.
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use metricsstore_e2e::bench::request::Request;
use metricsstore_e2e::bench::wire::Connection;
use metricsstore_e2e::tools::{PROMETHEUS, THANOS};

use super::process::{Folder, Start, encoded, now_ms, setting, wait_until};

const SERIES: usize = 60;
const STEP_MS: i64 = 30_000;
const HOURS: i64 = 5;
const HOUR_MS: i64 = 3_600_000;
/// Both run on the same samples; what is folded in the order of series is left out, which is that of creation in one of
/// them and that of labels in the other.
const QUERIES: &[&str] = &[
    "m_total",
    "{__name__=~\"m_.*\",kind!=\"2\"}",
    "rate(m_total[5m])",
    "increase(m_total{kind=~\"0|3\"}[1h])",
    "max by (kind) (m_gauge)",
    "count(m_gauge) by (__name__, kind)",
    "topk(3, m_gauge)",
    "avg_over_time(m_gauge[10m])",
    "quantile_over_time(0.9, m_gauge[30m])",
    "stddev_over_time(m_gauge[15m])",
    "last_over_time(m_gauge[3h])",
    "changes(m_gauge[1h]) > 3",
    "m_total offset 2h",
    "label_replace(m_gauge, \"a\", \"$1\", \"kind\", \"(.*)\")",
    "absent(m_missing)",
    "m_total{kind=\"\"}",
    "max_over_time(rate(m_total[5m])[1h:5m])",
    "present_over_time(m_gauge[5m])",
];

#[test]
fn promtool_and_prometheus_read_what_is_exported() {
    let folder = Folder::new("blocks");
    let end_ms = now_ms() / (2 * HOUR_MS) * 2 * HOUR_MS;
    let exported = export(&folder, end_ms);
    let promtool = PROMETHEUS.program("promtool").unwrap();
    let listed = output(Command::new(&promtool).args(["tsdb", "list", "-r"]).arg(&exported));
    assert!(listed.lines().count() > 2, "{listed}");
    for block in blocks_in(&exported) {
        let analyzed = output(Command::new(&promtool).args(["tsdb", "analyze"]).arg(&exported).arg(&block));
        assert!(analyzed.contains(&format!("Total Series: {SERIES}")), "{analyzed}");
    }
    // A directory with blocks only is none of a server.
    std::fs::create_dir_all(exported.join("wal")).unwrap();
    let dumped = output(Command::new(&promtool).args(["tsdb", "dump"]).arg(&exported));
    let ours = output(engine().args(["tsdb", "dump"]).arg(folder.path().join("data")));
    assert_eq!(sorted(&dumped).len(), SERIES * (HOURS * HOUR_MS / STEP_MS) as usize);
    assert!(sorted(&dumped) == sorted(&ours), "the dumps differ");

    let on_blocks = prometheus(folder.path(), "on-blocks", &exported);
    let own = prometheus(folder.path(), "own", &folder.path().join("own"));
    fill(own.address, end_ms);
    let (start, end) = (end_ms / 1000 - 3 * 3600, end_ms / 1000 - 600);
    for query in QUERIES {
        let path = format!("/api/v1/query_range?query={}&start={start}&end={end}&step=60", encoded(query));
        let (found, want) = (answer(on_blocks.address, &path), answer(own.address, &path));
        assert_eq!(found, want, "{query}");
    }
}

/// Building Thanos takes minutes: `cargo xtask soak` sets `ENGINE_THANOS`.
#[test]
fn thanos_ships_and_verifies_blocks() {
    if setting("ENGINE_THANOS", 0) == 0 {
        println!("skipped: ENGINE_THANOS is not set");
        return;
    }
    let folder = Folder::new("thanos");
    let exported = export(&folder, now_ms() / (2 * HOUR_MS) * 2 * HOUR_MS);
    let blocks = blocks_in(&exported);
    let path = |name: &str| folder.path().join(name);
    std::fs::write(
        path("prometheus.yml"),
        "global: {external_labels: {cluster: test}}\nscrape_configs: []\n",
    )
    .unwrap();
    let durations = ["--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h"];
    let engine = Start::new(folder.path(), &durations).run();
    std::fs::create_dir_all(path("bucket")).unwrap();
    let bucket = format!("type: FILESYSTEM\nconfig: {{directory: '{}'}}\n", path("bucket").display());
    std::fs::write(path("bucket.yml"), bucket).unwrap();
    let thanos = THANOS.program("thanos").unwrap();
    let store = format!("--objstore.config-file={}", path("bucket.yml").display());
    let mut sidecar = Command::new(&thanos);
    sidecar.args(["sidecar", &store, &format!("--prometheus.url=http://{}", engine.address)]);
    sidecar.arg(format!("--tsdb.path={}", exported.display()));
    sidecar
        .args([format!("--http-address={}", free_address()), format!("--grpc-address={}", free_address())]);
    let _sidecar = spawn(sidecar, free_address(), &path("sidecar.log"));
    wait_until("shipping", || {
        let list = std::fs::read_to_string(exported.join("thanos.shipper.json")).unwrap_or_default();
        blocks.iter().all(|block| list.contains(block.as_str()))
    });
    assert_eq!(blocks_in(&path("bucket")), blocks);
    let verified = Command::new(&thanos).args(["tools", "bucket", "verify", &store]).output().unwrap();
    let log = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(verified.status.success(), "{log}");
    assert!(!log.contains("level=warn") && !log.contains("level=error"), "{log}");
}

/// Fills an engine and exports its data; where the blocks are.
fn export(folder: &Folder, end_ms: i64) -> PathBuf {
    let filled = Start::new(folder.path(), &[]).run();
    fill(filled.address, end_ms);
    filled.terminate();
    let exported = folder.path().join("exported");
    let output_flag = format!("--output={}", exported.display());
    output(engine().args(["tsdb", "export", &output_flag]).arg(folder.path().join("data")));
    assert!(blocks_in(&exported).len() >= 2);
    exported
}

fn engine() -> Command {
    Command::new(
        std::env::var_os("METRICSSTORE_ENGINE").expect("set METRICSSTORE_ENGINE to the engine's binary"),
    )
}

/// Sends counters and gauges up to a time.
fn fill(address: SocketAddr, end_ms: i64) {
    let labels = |index: usize| {
        let name = if index.is_multiple_of(2) { "m_total" } else { "m_gauge" };
        vec![
            ("__name__", name.into()),
            ("instance", format!("i-{index:03}")),
            ("kind", (index % 5).to_string()),
        ]
    };
    let mut request = Request::new((0..SERIES).map(labels));
    let mut connection = Connection::open(address).unwrap();
    for step in 0..HOURS * HOUR_MS / STEP_MS {
        for index in 0..SERIES {
            let value = match index % 4 {
                0 => (step * 3 + index as i64) as f64,
                2 => (step % 97) as f64,
                _ => (step * 31 % 1009) as f64 / 8.0 + index as f64,
            };
            request.set(index, end_ms - HOURS * HOUR_MS + step * STEP_MS, value);
        }
        assert_eq!(connection.write("/api/v1/write", request.packed()).unwrap().status, 204);
    }
}

/// Names of blocks in a directory, sorted.
fn blocks_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let with_meta = entries.filter(|entry| entry.path().join("meta.json").exists());
    let mut names: Vec<String> = with_meta.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// What a program that succeeds prints.
fn output(command: &mut Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// A running program, which ends with the test.
struct Program {
    child: Child,
    address: SocketAddr,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(mut command: Command, address: SocketAddr, log: &Path) -> Program {
    let log = std::fs::File::create(log).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Program { child: command.spawn().unwrap(), address }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A Prometheus that scrapes nothing, on a data directory.
fn prometheus(folder: &Path, name: &str, dir: &Path) -> Program {
    let config = folder.join("plain.yml");
    std::fs::write(&config, "scrape_configs: []\n").unwrap();
    let address = free_address();
    let mut command = Command::new(PROMETHEUS.program("prometheus").unwrap());
    command.arg("--web.enable-remote-write-receiver");
    command.arg(format!("--web.listen-address={address}"));
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", dir.display()));
    let program = spawn(command, address, &folder.join(format!("{name}.log")));
    wait_until("ready", || {
        let answer = Connection::open(address).and_then(|mut connection| connection.get("/-/ready"));
        answer.is_ok_and(|answer| answer.status == 200)
    });
    program
}

/// The result of a query, in the order of its series.
fn answer(address: SocketAddr, path: &str) -> serde_json::Value {
    let answer = Connection::open(address).unwrap().get(path).unwrap();
    let mut body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer.status, 200, "{path}: {body}");
    let mut result = body["data"]["result"].take();
    if let Some(series) = result.as_array_mut() {
        series.sort_by_key(|series| series["metric"].to_string());
    }
    result
}
