//! A small pod offered far more than it can hold.
use std::path::{Path, PathBuf};
use std::time::Duration;

use metricsstore_e2e::bench::population::{Population, SERIES_PER_TARGET};
use metricsstore_e2e::bench::wire::{Answer, Connection, EncodedLabels, put_series};
use metricsstore_e2e::cluster::cgroup;
use metricsstore_e2e::wait::{self, Look};
use serde_json::{Value, json};

use super::support::{LOOK, Store, encoded, now_ms, text};

/// What is offered, and how often.
const SERIES: usize = 500_000;
const ROUNDS: usize = 6;
const INTERVAL_MS: i64 = 15_000;
/// Targets of one request.
const TARGETS: usize = 10;
/// 128Mi - 32Mi.
const BUDGET: u64 = 100_663_296;

#[test]
fn a_128_mebibyte_pod_holds_what_it_took_of_half_a_million_series() {
    let spec = json!({
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}},
        "storage": {"size": "1Gi"},
    });
    let store = Store::ready("pressure", &spec);
    let group = cgroup::of_container(&store.pod(), "metricsstore", "memory").unwrap();
    let population = Population::new(7, SERIES);
    let start_ms = now_ms() - ROUNDS as i64 * INTERVAL_MS;
    let mut offer = Offer { store: &store, group, connection: None, first_refusal: None, packed: Vec::new() };
    for round in 0..ROUNDS {
        for first in (0..population.targets()).step_by(TARGETS) {
            let targets = first..(first + TARGETS).min(population.targets());
            offer.send(&population, targets, round, start_ms + round as i64 * INTERVAL_MS);
        }
    }
    let working_set = offer.first_refusal.expect("half a million series do not fit into 96Mi");
    assert!(working_set >= BUDGET * 6 / 10, "refused at a working set of {working_set} bytes");
    assert_eq!(store.incarnation().1, 0, "the engine restarted");

    let held = held_without_gaps(&store, &population);
    assert!(held >= 100_000, "{held} series held");

    let info = store.runtime_info();
    let refused = info["refusals"].as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>();
    assert!(refused > 0, "{info}");
    let metrics = Connection::open(store.address()).unwrap().get("/metrics").unwrap();
    let metrics = text(&metrics);
    assert!(metrics.lines().any(|line| line.contains("refus") && !line.starts_with('#')), "{metrics}");
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
    /// Sends one request until it is answered with something else than "later".
    fn send(
        &mut self,
        population: &Population,
        targets: std::ops::Range<usize>,
        round: usize,
        timestamp_ms: i64,
    ) {
        self.pack(population, targets, round, timestamp_ms);
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
        let labels = EncodedLabels::new(population, targets.clone());
        let (mut body, mut scratch) = (Vec::new(), Vec::new());
        for (index, (target, series)) in
            targets.flat_map(|target| (0..SERIES_PER_TARGET).map(move |series| (target, series))).enumerate()
        {
            let value = population.value(target, series, round);
            put_series(&mut body, &mut scratch, labels.series(index), timestamp_ms, value);
        }
        self.packed = snap::raw::Encoder::new().compress_vec(&body).unwrap();
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
fn held_without_gaps(store: &Store, population: &Population) -> usize {
    let mut held = 0;
    for target in 0..population.targets() {
        let query = format!("{{instance=\"{}\"}}[10m]", Population::instance(target));
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
        }
        held += rows.len();
    }
    held
}
