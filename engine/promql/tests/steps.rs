//! A range query is its instant queries, step by step and bit by bit: the two are evaluated by one code over columns
//! of different widths, from windows that are shared or not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#[path = "scripts/store.rs"]
mod store;

use std::collections::BTreeMap;

use metricsstore_budget::Grant;
use metricsstore_model::{LabelBuf, stale_nan};
use metricsstore_promql::{Engine, EngineOptions, QueryOptions, Value};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use store::Store;

const QUERIES: [&str; 38] = [
    "a_total",
    "gauge offset 1m",
    "gauge @ 900",
    "gauge @ end()",
    "rate(a_total[2m])",
    "increase(a_total[47s] offset 30s)",
    "irate(a_total[5m])",
    "delta(gauge[3m])",
    "deriv(gauge[4m])",
    "predict_linear(gauge[4m], 600)",
    "sum_over_time(gauge[77s])",
    "avg_over_time(gauge[3m] @ 800)",
    "stddev_over_time(gauge[3m])",
    "quantile_over_time(0.7, gauge[3m])",
    "last_over_time(gauge[1m])",
    "changes(a_total[3m])",
    "absent_over_time(gauge{instance=\"3\"}[13s])",
    "max_over_time(rate(a_total[1m])[5m:20s])",
    "sum_over_time(sum(gauge)[5m:])",
    "sum(gauge)",
    "avg by (job) (gauge)",
    "stddev without (instance) (gauge)",
    "count(gauge > 0)",
    "quantile by (job) (0.3, gauge)",
    "count_values(\"value\", round(gauge, 20))",
    "topk(2, gauge)",
    "bottomk by (job) (1, gauge)",
    "gauge / on (job, instance) a_total",
    "a_total * ignoring (code, le) group_left () gauge",
    "gauge and on (job, instance) (a_total > 100)",
    "gauge or a_total",
    "gauge unless on (job, instance) (a_total > 100)",
    "1 - gauge",
    "gauge == bool 3",
    "timestamp(gauge)",
    "scalar(sum(gauge)) + time()",
    "label_replace(gauge, \"x\", \"$1\", \"job\", \"(.).*\")",
    "histogram_quantile(0.9, sum by (le) (rate(a_total[1m])))",
];

fn filled() -> Store {
    let mut random = SmallRng::seed_from_u64(42);
    let mut store = Store::default();
    for instance in 0..6 {
        let job = if instance % 2 == 0 { "even" } else { "odd" };
        let instance_text = instance.to_string();
        let times: Vec<i64> =
            (0..120).map(|tick| tick * 15_000 + random.random_range(-50..50) + 500).collect();
        let (mut counter, mut counts, mut gauges) = (0.0, Vec::new(), Vec::new());
        for &time in &times {
            counter = if random.random_bool(0.03) { 0.0 } else { counter + random.random_range(0.0..10.0) };
            // Some series miss samples, so that they leave the stream that they share.
            if instance < 3 || random.random_bool(0.9) {
                counts.push((time, counter));
            }
            let stale = random.random_bool(0.05);
            gauges.push((time, if stale { stale_nan() } else { random.random_range(-50.0..50.0) }));
        }
        let set = |name: &str, more: &[(&str, &str)]| {
            let common = [("__name__", name), ("job", job), ("instance", &*instance_text)];
            LabelBuf::from_pairs(common.iter().chain(more).copied())
        };
        store.append(&set("a_total", &[("code", "200"), ("le", "1")]), counts.iter().copied());
        store.append(&set("gauge", &[]), gauges);
    }
    store
}

type Answer = BTreeMap<String, u64>;

#[test]
fn a_range_query_gives_what_instant_queries_give() {
    let (store, engine) = (filled(), Engine::new(EngineOptions::default()));
    let (options, grant) = (QueryOptions::default(), Grant::unlimited());
    let (start, end, step) = (300_000, 1_500_000, 61_000);
    for query in QUERIES {
        // What `end()` means must not differ.
        let query = query.replace("end()", "1500");
        let range = engine.range(&store, &query, start, end, step, &options, &grant).unwrap();
        let Value::Matrix(matrix) = range.value else { panic!("{query} gives no matrix") };
        let mut by_time: BTreeMap<i64, Answer> = BTreeMap::new();
        for index in 0..matrix.len() {
            for point in matrix.series(index) {
                let labels = matrix.labels.to_labels(index).to_string();
                by_time.entry(point.t_ms).or_default().insert(labels, point.value.to_bits());
            }
        }
        let mut samples = 0;
        for time in (start..=end).step_by(step as usize) {
            let instant = engine.instant(&store, &query, time, &options, &grant).unwrap();
            let mut answer = Answer::new();
            match instant.value {
                Value::Vector(vector) => {
                    for (index, point) in vector.points.iter().enumerate() {
                        answer.insert(vector.labels.to_labels(index).to_string(), point.value.to_bits());
                    }
                }
                Value::Scalar(point) => {
                    answer.insert("{}".into(), point.value.to_bits());
                }
                other => panic!("{query} gives {other:?}"),
            }
            samples += answer.len();
            assert_eq!(by_time.remove(&time).unwrap_or_default(), answer, "{query} at {time}");
        }
        assert!(samples > 0, "{query} gives nothing");
        assert!(by_time.is_empty(), "{query} gives more: {by_time:?}");
    }
}
