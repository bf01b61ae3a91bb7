//! A small pod offered far more than it can hold.
use std::path::{Path, PathBuf};
use std::time::Duration;

use metricsstore_e2e::bench::population::{Population, SERIES_PER_TARGET, Shape};
use metricsstore_e2e::bench::wire::{Answer, Connection};
use metricsstore_e2e::cluster::cgroup;
use metricsstore_e2e::wait::{self, Look};
use serde_json::json;

use super::support::{LOOK, Store, encoded, now_ms, text, write_request};

/// What is offered at 15 s; then ever more series come, until the pod refuses.
const TARGETS: usize = 500_000 / SERIES_PER_TARGET;
const ROUNDS: usize = 6;
const INTERVAL_MS: i64 = 15_000;
/// More than any pod of this size can hold.
const MOST_TARGETS: usize = 8 * TARGETS;
/// Targets of one request.
const AT_ONCE: usize = 10;
/// Every one of so many targets is read back: 100k series.
const READ_BACK: usize = 5;
/// Series of those offered at 15 s that such a pod holds without a gap, at least.
const FEWEST_HELD: usize = 300_000;
/// 128Mi - 32Mi.
const BUDGET: u64 = 100_663_296;

#[test]
fn a_128_mebibyte_pod_keeps_what_it_took_and_refuses_what_is_too_much() {
    let spec = json!({
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}},
        "storage": {"size": "1Gi"},
    });
    let store = Store::ready("pressure", &spec);
    let group = cgroup::of_container(&store.pod(), "metricsstore", "memory").unwrap();
    let population = Population::new(7, MOST_TARGETS * SERIES_PER_TARGET, Shape::USUAL);
    let start_ms = now_ms() - ROUNDS as i64 * INTERVAL_MS;
    let mut offer = Offer { store: &store, group, connection: None, first_refusal: None, packed: Vec::new() };
    for round in 0..ROUNDS {
        offer.send_all(&population, 0..TARGETS, round, start_ms);
    }
    let known = if offer.first_refusal.is_none() { TARGETS } else { 0 };
    let mut more = (TARGETS..MOST_TARGETS).step_by(AT_ONCE);
    while offer.first_refusal.is_none() {
        let first =
            more.next().expect("the pod must refuse before it holds eight times half a million series");
        offer.send(&population, first..first + AT_ONCE, ROUNDS - 1, start_ms);
    }
    let working_set = offer.first_refusal.unwrap();
    assert!(working_set >= BUDGET * 6 / 10, "refused at a working set of {working_set} bytes");
    // What it knows goes on while new series are refused.
    offer.first_refusal = None;
    offer.send_all(&population, 0..known, ROUNDS, start_ms);
    assert_eq!(offer.first_refusal, None, "a known series was refused");

    let info = store.runtime_info();
    assert!(info["seriesCount"].as_u64().unwrap() >= 100_000, "{info}");
    assert!(info["refusals"]["new_series"].as_u64().unwrap() > 0, "{info}");
    let metrics = Connection::open(store.address()).unwrap().get("/metrics").unwrap();
    let metrics = text(&metrics);
    let refused =
        metrics.lines().find(|line| line.starts_with("metricsstore_refused_total{reason=\"new_series\"}"));
    assert!(refused.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");

    let last_round = if known > 0 { ROUNDS } else { ROUNDS - 1 };
    let held = held_without_gaps(&store, &population, start_ms + last_round as i64 * INTERVAL_MS);
    // The first burst may be faster than seals make room: what is refused then comes with the next round, with a gap.
    assert!(held * READ_BACK >= FEWEST_HELD, "{held} series held of every fifth target");
    store.wait_for("metricsstore", "main", "the refusals in status", |store| {
        store["status"]["conditions"].to_string().contains("refus")
    });
    assert_eq!(store.incarnation().1, 0, "the engine restarted");
}

struct Offer<'s> {
    store: &'s Store,
    group: PathBuf,
    connection: Option<Connection>,
    /// Working set in bytes when the first series was refused.
    first_refusal: Option<u64>,
    packed: Vec<u8>,
}

impl Offer<'_> {
    /// Sends a round of targets.
    fn send_all(
        &mut self,
        population: &Population,
        targets: std::ops::Range<usize>,
        round: usize,
        start_ms: i64,
    ) {
        for first in targets.clone().step_by(AT_ONCE) {
            self.send(population, first..(first + AT_ONCE).min(targets.end), round, start_ms);
        }
    }

    /// Sends one request until it is answered with something else than "later".
    fn send(
        &mut self,
        population: &Population,
        targets: std::ops::Range<usize>,
        round: usize,
        start_ms: i64,
    ) {
        self.pack(population, targets, round, start_ms + round as i64 * INTERVAL_MS);
        let answer = wait::until("an answer to remote write", Duration::from_mins(2), LOOK, || {
            Ok(match self.write() {
                Ok(answer) if answer.status != 503 => Look::Done(answer),
                Ok(answer) => Look::NotYet(text(&answer)),
                Err(error) => Look::NotYet(error.to_string()),
            })
        })
        .unwrap();
        if answer.status == 400 {
            self.first_refusal.get_or_insert_with(|| working_set(&self.group));
        } else {
            assert_eq!(answer.status / 100, 2, "{}", text(&answer));
        }
    }

    fn pack(
        &mut self,
        population: &Population,
        targets: std::ops::Range<usize>,
        round: usize,
        timestamp_ms: i64,
    ) {
        self.packed = write_request(population, targets, round, timestamp_ms);
    }

    fn write(&mut self) -> std::io::Result<Answer> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.store.address())?,
        };
        let answer = connection.write("/api/v1/write", &self.packed)?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

/// As the kubelet counts it: usage without the page cache that can go at once.
fn working_set(group: &Path) -> u64 {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let usage = read("memory.usage_in_bytes").or_else(|| read("memory.current")).unwrap();
    let stat = read("memory.stat").unwrap();
    let inactive = ["total_inactive_file ", "inactive_file "]
        .iter()
        .find_map(|key| stat.lines().find_map(|line| line.strip_prefix(key)))
        .unwrap();
    usage.trim().parse::<u64>().unwrap() - inactive.parse::<u64>().unwrap()
}

/// Series that are there, after checking that each has a sample of every round since its first.
fn held_without_gaps(store: &Store, population: &Population, last_ms: i64) -> usize {
    let mut held = 0;
    for target in (0..TARGETS).step_by(READ_BACK) {
        let query = format!("{{instance=\"{}\"}}[10m]", population.instance(&population.life_at(target, 0)));
        let data = store.api(&format!("/api/v1/query?query={}", encoded(&query)));
        let rows = data["result"].as_array().unwrap();
        for row in rows {
            let times: Vec<i64> = row["values"]
                .as_array()
                .unwrap()
                .iter()
                .map(|pair| (pair[0].as_f64().unwrap() * 1000.0).round() as i64)
                .collect();
            let gap = times.windows(2).find(|pair| pair[1] - pair[0] != INTERVAL_MS);
            assert!(gap.is_none(), "gap {gap:?} in {}", row["metric"]);
            assert_eq!(times.last(), Some(&last_ms), "{} ends early", row["metric"]);
        }
        held += rows.len();
    }
    held
}
