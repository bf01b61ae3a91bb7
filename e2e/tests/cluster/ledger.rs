//! A sender that writes down every sample that was acknowledged, and wants each of them back.
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use metricsstore_e2e::bench::request::Request;
use metricsstore_e2e::bench::wire::Connection;
use metricsstore_e2e::kubectl::Kubectl;
use metricsstore_e2e::wait::{self, Look};

use super::support::{LOOK, PATIENCE, Store, now_ms};

/// Series per request: enough to spread over shards.
const SERIES: usize = 20;

/// Pause between two requests; it paces the load, nothing waits for it.
const PACE: Duration = Duration::from_millis(20);

/// A running sender.
pub struct Ledger {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<Vec<Entry>>,
    acknowledged: Receiver<()>,
}

/// One acknowledged request: all its series had this time and value.
#[derive(Debug, Clone, Copy)]
struct Entry {
    timestamp_ms: i64,
    value: f64,
}

impl Ledger {
    /// Starts sending to the first pod, following it to other addresses.
    pub fn start(store: &Store) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (acknowledge, acknowledged) = mpsc::channel();
        let namespace = store.namespace.clone();
        let stopped = Arc::clone(&stop);
        let sender = std::thread::spawn(move || {
            let mut sender = Sender { namespace, connection: None, entries: Vec::new(), sent: 0 };
            while !stopped.load(Ordering::Relaxed) {
                if sender.send() {
                    let _ = acknowledge.send(());
                }
                std::thread::sleep(PACE);
            }
            sender.entries
        });
        Self { stop, sender, acknowledged }
    }

    /// Waits until as many more requests were acknowledged.
    pub fn wait_acknowledged(&self, requests: usize) {
        while self.acknowledged.try_recv().is_ok() {}
        for _ in 0..requests {
            self.acknowledged.recv_timeout(PATIENCE).expect("remote write must be acknowledged again");
        }
    }

    /// Stops, and finds every acknowledged sample in the store.
    pub fn settle(self, store: &Store) {
        self.stop.store(true, Ordering::Relaxed);
        let entries = self.sender.join().unwrap();
        assert!(!entries.is_empty());
        for series in 0..SERIES {
            check_series(store, series, &entries);
        }
    }
}

fn check_series(store: &Store, series: usize, entries: &[Entry]) {
    // A pod that has just come back answers before everybody else sees it; the deadline is for that alone.
    wait::until("every acknowledged sample", Duration::from_secs(20), LOOK, || {
        let rows = store.query(&format!("ledger{{series=\"{series}\"}}[1h]"));
        let values = rows.first().and_then(|row| row["values"].as_array().cloned()).unwrap_or_default();
        let found: std::collections::HashMap<i64, String> = values
            .iter()
            .map(|pair| {
                let timestamp_ms = (pair[0].as_f64().unwrap() * 1000.0).round() as i64;
                (timestamp_ms, pair[1].as_str().unwrap().to_owned())
            })
            .collect();
        let lost: Vec<&Entry> = entries
            .iter()
            .filter(|entry| found.get(&entry.timestamp_ms) != Some(&entry.value.to_string()))
            .collect();
        Ok(if lost.is_empty() {
            Look::Done(())
        } else {
            Look::NotYet(format!("{} of {} lost, first {:?}", lost.len(), entries.len(), lost[0]))
        })
    })
    .unwrap();
}

struct Sender {
    namespace: String,
    connection: Option<Connection>,
    entries: Vec<Entry>,
    sent: u32,
}

impl Sender {
    /// True when the request was acknowledged; then it is in the ledger.
    fn send(&mut self) -> bool {
        self.sent += 1;
        let last = self.entries.last().map_or(0, |entry| entry.timestamp_ms);
        let entry = Entry { timestamp_ms: now_ms().max(last + 1), value: f64::from(self.sent) };
        let Some(connection) = self.connect() else { return false };
        match connection.write("/api/v1/write", request(entry).packed()) {
            Ok(answer) if answer.status / 100 == 2 => {
                self.entries.push(entry);
                true
            }
            Ok(_) => false,
            Err(_) => {
                self.connection = None;
                false
            }
        }
    }

    fn connect(&mut self) -> Option<&mut Connection> {
        if self.connection.is_none() {
            let pod = Kubectl::inside().find(&["pod", "main-0", "--namespace", &self.namespace]).ok()??;
            let ip = pod["status"]["podIP"].as_str()?.parse().ok()?;
            self.connection = Connection::open(SocketAddr::new(ip, 9090)).ok();
        }
        self.connection.as_mut()
    }
}

fn request(entry: Entry) -> Request {
    let labels = |series: usize| vec![("__name__", "ledger".to_owned()), ("series", series.to_string())];
    let mut request = Request::new((0..SERIES).map(labels));
    for series in 0..SERIES {
        request.set(series, entry.timestamp_ms, entry.value);
    }
    request
}
