//! Limits become budgets and threads, and follow the live cgroup.
use std::time::Duration;

use metricsstore_e2e::bench::population::{Population, Shape};
use metricsstore_e2e::bench::wire::Connection;
use metricsstore_e2e::cluster::cgroup;
use metricsstore_e2e::wait::{self, Look};
use serde_json::{Value, json};

use super::support::{LOOK, Store, now_ms, write_request};

/// Within this time the engine follows a changed limit.
const FOLLOWS: Duration = Duration::from_secs(10);

/// The kubelet takes a while to hand a changed file to a pod.
const FILE_ARRIVES: Duration = Duration::from_mins(2);

fn spec(limits: &Value, more: &Value) -> Value {
    let mut spec = json!({
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": limits},
        "storage": {"size": "128Mi"},
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

#[test]
fn a_gibibyte_gives_90_percent_and_1500m_gives_two_threads() {
    let store = Store::ready("sizing-share", &spec(&json!({"memory": "1Gi", "cpu": "1500m"}), &json!({})));
    let info = store.runtime_info();
    assert_eq!(info["memoryBudgetBytes"], 966_367_641);
    assert_eq!(info["GOMEMLIMIT"], 966_367_641);
    assert_eq!(info["memoryLimitBytes"], 1_073_741_824);
    assert_eq!(info["GOMAXPROCS"], 2);
    let status = store.wait_ready()["status"].clone();
    assert_eq!(status["effective"]["memoryBudgetBytes"], 966_367_641);
    assert_eq!(status["effective"]["cpuThreads"], 2);
}

#[test]
fn the_smallest_limit_keeps_32_mebibytes_free() {
    let store = Store::ready("sizing-least", &spec(&json!({"memory": "128Mi"}), &json!({})));
    assert_eq!(store.runtime_info()["memoryBudgetBytes"], 100_663_296);
}

#[test]
fn an_absolute_budget_is_taken_as_it_is_and_without_a_cpu_limit_the_node_counts() {
    let more = json!({"memory": {"budget": "100Mi"}});
    let store = Store::ready("sizing-absolute", &spec(&json!({"memory": "256Mi"}), &more));
    let info = store.runtime_info();
    assert_eq!(info["memoryBudgetBytes"], 104_857_600);
    // max(4, 2 × 50m) = 4, or what the machine has if that is less.
    let processors = std::thread::available_parallelism().unwrap().get();
    assert_eq!(info["cpuThreads"], processors.min(4));
}

#[test]
fn the_budget_follows_the_live_limit_within_ten_seconds() {
    let store = Store::ready("sizing-live", &spec(&json!({"memory": "512Mi"}), &json!({})));
    assert_eq!(store.runtime_info()["memoryBudgetBytes"], 483_183_820);
    let before = store.incarnation();
    set_live_limit(&store, 256 << 20);
    // min(90 % of 256Mi, 256Mi - 32Mi)
    store.wait_runtime_info("the budget of the lower limit", FOLLOWS, |info| {
        info["memoryBudgetBytes"] == 234_881_024 && info["memoryLimitBytes"] == 268_435_456
    });
    assert_eq!(store.incarnation(), before);
}

#[test]
fn the_refusal_of_new_series_follows_the_live_limit() {
    let store = Store::ready("sizing-refusal", &spec(&json!({"memory": "512Mi"}), &json!({})));
    let population = Population::new(11, 300_000, Shape::USUAL);
    let mut targets = (0..population.targets()).step_by(10);
    // 200k series, and nothing of them refused.
    for first in targets.by_ref().take(100) {
        assert_eq!(offer(&store, &population, first) / 100, 2);
    }
    let used = store.runtime_info()["memoryUsedBytes"].as_u64().unwrap();
    set_live_limit(&store, used * 10 / 11 + (32 << 20));
    wait_status(&store, &population, &mut targets, "new series to be refused", |status| {
        matches!(status, 400 | 503)
    });
    set_live_limit(&store, 512 << 20);
    wait_status(&store, &population, &mut targets, "new series to be taken again", |status| {
        status / 100 == 2
    });
}

/// Offers ten targets that are new, and returns the status of the answer.
fn offer(store: &Store, population: &Population, first: usize) -> u16 {
    let request = write_request(population, first..first + 10, 0, now_ms());
    Connection::open(store.address()).unwrap().write("/api/v1/write", &request).unwrap().status
}

fn wait_status(
    store: &Store,
    population: &Population,
    targets: &mut impl Iterator<Item = usize>,
    what: &str,
    holds: impl Fn(u16) -> bool,
) {
    wait::until(what, FOLLOWS, LOOK, || {
        let status = offer(store, population, targets.next().expect("the engine must follow sooner"));
        Ok(if holds(status) { Look::Done(()) } else { Look::NotYet(format!("status {status}")) })
    })
    .unwrap();
}

/// What a vertical autoscaler or a hand does to a running container.
fn set_live_limit(store: &Store, bytes: u64) {
    let group = cgroup::of_container(&store.pod(), "metricsstore", "memory").unwrap();
    let limit = ["memory.limit_in_bytes", "memory.max"].map(|file| group.join(file));
    let limit = limit.iter().find(|file| file.exists()).unwrap();
    std::fs::write(limit, bytes.to_string()).unwrap();
}

#[test]
fn a_changed_budget_arrives_without_a_restart() {
    let store = Store::ready("sizing-change", &spec(&json!({"memory": "512Mi"}), &json!({})));
    let before = store.incarnation();
    store.patch(&json!({"memory": {"budget": "50%"}}));
    store.wait_runtime_info("half of the limit as the budget", FILE_ARRIVES, |info| {
        info["memoryBudgetBytes"] == 268_435_456
    });
    store.wait_ready();
    assert_eq!(store.incarnation(), before);
}
