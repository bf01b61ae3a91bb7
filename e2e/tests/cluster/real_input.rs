//! The cluster's own components as input: the same bytes to our engine and to a real Prometheus.
//!
//! Pages of the API server, the kubelet and cluster DNS are recorded; a server replays them, the same page at the same
//! scrape to either engine, and then fails, so that both write staleness markers. At every scrape both must hold the
//! same series with the same values.
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metricsstore_e2e::bench::wire::Connection;
use metricsstore_e2e::kubectl::Kubectl;
use metricsstore_e2e::wait::{self, Look};
use serde_json::Value;

use super::support::{LOOK, data, encoded, text};

/// What is recorded, and its path at the API server.
const PAGES: [(&str, &str); 4] = [
    ("apiserver", "/metrics"),
    ("kubelet", "/api/v1/nodes/node-0/proxy/metrics"),
    ("cadvisor", "/api/v1/nodes/node-0/proxy/metrics/cadvisor"),
    ("coredns", "/api/v1/namespaces/kube-system/services/kube-dns:metrics/proxy/metrics"),
];

/// Scrapes of every page; between two recordings the cluster works on, so series come and go.
const SCRAPES: usize = 4;

#[test]
fn both_engines_hold_the_same_of_the_clusters_own_pages_at_every_scrape() {
    let ours = std::env::var("METRICSSTORE_ENGINE").expect("cargo xtask test names the engine");
    let peer = std::env::var("METRICSSTORE_PROMETHEUS").expect("cargo xtask test names Prometheus");
    let recording = Arc::new(record());
    let dir = Folder::new();
    let ours = Engine::start(
        &dir.0,
        "metricsstore",
        Path::new(&ours),
        &["serve", "--ops.listen-address=127.0.0.1:0"],
        &recording,
    );
    let peer = Engine::start(&dir.0, "prometheus", Path::new(&peer), &[], &recording);
    for (job, _) in PAGES {
        let (ours_at, peer_at) = (ours.scrape_times(job), peer.scrape_times(job));
        for scrape in 0..=SCRAPES {
            let found = ours.series_at(job, ours_at[scrape]);
            let wanted = peer.series_at(job, peer_at[scrape]);
            assert!(scrape == SCRAPES || wanted.len() > 50, "{job}: only {} series", wanted.len());
            compare(&format!("{job}, scrape {scrape}"), &found, &wanted);
        }
    }
}

fn compare(what: &str, found: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) {
    for (series, value) in wanted {
        assert_eq!(found.get(series), Some(value), "{what}: {series}");
    }
    let more: Vec<&String> = found.keys().filter(|series| !wanted.contains_key(*series)).take(3).collect();
    assert!(more.is_empty(), "{what}: series that Prometheus does not hold: {more:?}");
}

/// Page bytes by job, one for each scrape.
type Recording = BTreeMap<String, Vec<Vec<u8>>>;

fn record() -> Recording {
    let kubectl = Kubectl::inside();
    let mut recording = Recording::new();
    for scrape in 0..SCRAPES {
        for (job, path) in PAGES {
            recording.entry(job.to_owned()).or_default().push(kubectl.raw(path).unwrap().into_bytes());
        }
        // Something must happen between two recordings.
        kubectl.text(&["create", "namespace", &format!("recorded-{scrape}")]).unwrap();
        kubectl.text(&["delete", "namespace", &format!("recorded-{scrape}"), "--wait=false"]).unwrap();
    }
    recording
}

/// Serves a recording to one engine: its n-th scrape of a job gets the n-th page, and 503 when there is no more.
struct Replay {
    address: SocketAddr,
    served: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Replay {
    fn start(recording: &Arc<Recording>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let (recording, counts) = (Arc::clone(recording), Arc::clone(&served));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (recording, counts) = (Arc::clone(&recording), Arc::clone(&counts));
                std::thread::spawn(move || serve(stream, &recording, &counts));
            }
        });
        Self { address, served }
    }

    /// True when every job has had all its pages and a failure.
    fn is_done(&self) -> bool {
        let served = self.served.lock().unwrap();
        PAGES.iter().all(|(job, _)| served.get(*job).is_some_and(|count| *count > SCRAPES))
    }
}

/// Answers one request and closes.
fn serve(mut stream: TcpStream, recording: &Recording, counts: &Mutex<BTreeMap<String, usize>>) {
    let mut lines = BufReader::new(&stream).lines();
    let Some(Ok(request)) = lines.next() else { return };
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let job = request.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
    let scrape = {
        let mut counts = counts.lock().unwrap();
        let count = counts.entry(job.clone()).or_default();
        *count += 1;
        *count - 1
    };
    let page = recording.get(&job).and_then(|pages| pages.get(scrape));
    let (status, body) =
        page.map_or(("503 Service Unavailable", &b""[..]), |page| ("200 OK", page.as_slice()));
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

/// A running engine that has scraped the whole recording.
struct Engine {
    child: Child,
    address: SocketAddr,
}

impl Engine {
    fn start(dir: &Path, name: &str, binary: &Path, arguments: &[&str], recording: &Arc<Recording>) -> Self {
        let replay = Replay::start(recording);
        let address = free_address();
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let config = dir.join("prometheus.yml");
        std::fs::write(&config, configuration(replay.address)).unwrap();
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let child = Command::new(binary)
            .args(arguments)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let engine = Self { child, address };
        let cure = format!("read {}", dir.join("log").display());
        wait::until_true(&format!("{name} to scrape everything"), Duration::from_mins(1), &cure, || {
            replay.is_done()
        })
        .unwrap();
        for (job, _) in PAGES {
            wait::until_true("the failed scrape", Duration::from_secs(20), &cure, || {
                engine.scrape_times(job).len() > SCRAPES
            })
            .unwrap();
        }
        engine
    }

    /// Times of the scrapes of a job, in seconds, oldest first.
    fn scrape_times(&self, job: &str) -> Vec<f64> {
        let rows = self.result(&format!("up{{job=\"{job}\"}}[5m]"), None);
        let values = rows.first().and_then(|row| row["values"].as_array().cloned()).unwrap_or_default();
        values.iter().map(|pair| pair[0].as_f64().unwrap()).collect()
    }

    /// Series of a job and their values at a time; what a scrape adds by itself differs and is left out.
    fn series_at(&self, job: &str, time: f64) -> BTreeMap<String, String> {
        let rows = self.result(&format!("{{job=\"{job}\"}}"), Some(time));
        let own = |name: &str| name == "up" || name.starts_with("scrape_duration");
        rows.iter()
            .filter(|row| !own(row["metric"]["__name__"].as_str().unwrap_or_default()))
            .map(|row| {
                let mut labels = row["metric"].as_object().unwrap().clone();
                // Each engine has a replay server of its own.
                labels.remove("instance");
                let labels: BTreeMap<String, Value> = labels.into_iter().collect();
                (serde_json::to_string(&labels).unwrap(), row["value"][1].as_str().unwrap().to_owned())
            })
            .collect()
    }

    fn result(&self, query: &str, time: Option<f64>) -> Vec<Value> {
        let time = time.map(|time| format!("&time={time:.3}")).unwrap_or_default();
        let path = format!("/api/v1/query?query={}{time}", encoded(query));
        let data = wait::until(query, Duration::from_secs(30), LOOK, || {
            let answer = Connection::open(self.address).and_then(|mut connection| connection.get(&path));
            Ok(match answer {
                Ok(answer) if answer.status == 200 => Look::Done(data(&answer)),
                Ok(answer) => Look::NotYet(text(&answer)),
                Err(error) => Look::NotYet(error.to_string()),
            })
        })
        .unwrap();
        data["result"].as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(replay: SocketAddr) -> String {
    let jobs = PAGES.iter().map(|(job, _)| {
        format!(
            "- job_name: {job}\n  metrics_path: /{job}\n  fallback_scrape_protocol: PrometheusText0.0.4\n  \
             static_configs:\n  - targets: ['{replay}']\n"
        )
    });
    let jobs: Vec<String> = jobs.collect();
    format!("global:\n  scrape_interval: 2s\n  scrape_timeout: 2s\nscrape_configs:\n{}", jobs.concat())
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A temporary folder that goes away with the test, unless it failed.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("metricsstore-real-input-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
