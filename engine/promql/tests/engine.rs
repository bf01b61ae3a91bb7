//! The engine: limits, order, and what the scripts do not cover.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#[path = "scripts/store.rs"]
mod store;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use metricsstore_budget::{Budget, Grant, Part};
use metricsstore_model::{LabelBuf, stale_nan};
use metricsstore_promql::{
    Engine, EngineOptions, ErrorKind, Features, Interrupt, QueryError, QueryOptions, QueryOutput, Value,
    range_points,
};
use store::Store;

fn labels(pairs: &[(&str, &str)]) -> LabelBuf {
    LabelBuf::from_pairs(pairs.iter().copied())
}

/// `up` of two jobs and ten instances each: a sample a minute for an hour.
fn filled() -> Store {
    let mut store = Store::default();
    for job in ["a", "b"] {
        for instance in 0..10 {
            let instance_text = instance.to_string();
            let set = labels(&[("__name__", "up"), ("job", job), ("instance", &instance_text)]);
            store.append(&set, (0..60).map(|minute| (minute * 60_000, f64::from(instance))));
        }
    }
    store
}

fn ask(store: &Store, engine: &Engine, query: &str, time_ms: i64) -> Result<QueryOutput, QueryError> {
    engine.instant(store, query, time_ms, &QueryOptions::default(), &Grant::unlimited())
}

fn samples(output: &QueryOutput) -> Vec<(String, f64)> {
    let Value::Vector(vector) = &output.value else { panic!("no vector: {output:?}") };
    let texts = (0..vector.labels.len()).map(|index| vector.labels.to_labels(index).to_string());
    texts.zip(vector.points.iter().map(|point| point.value)).collect()
}

fn plain() -> Engine {
    Engine::new(EngineOptions::default())
}

#[test]
fn sums_are_folded_in_the_order_in_which_series_were_created() {
    // Without compensation for an infinite sum the order decides; here it shows in the rounding of stddev.
    let values = [1e17, 1.0, -1e17, 3.0, 7.5];
    let mut store = Store::default();
    for (index, value) in values.iter().enumerate() {
        // Different times put the series into different batches, which come in no order.
        let set = labels(&[("__name__", "m"), ("name", &format!("{}", 9 - index))]);
        store.append(&set, [(index as i64 % 2 * 1000, *value), (5000, *value)]);
    }
    let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for value in values {
        count += 1.0;
        let delta = value - mean;
        mean += delta / count;
        squares += delta * (value - mean);
    }
    let output = ask(&store, &plain(), "stdvar(m)", 5000).unwrap();
    assert_eq!(samples(&output)[0].1.to_bits(), (squares / count).to_bits());
}

#[test]
fn names_are_dropped_at_once_or_at_the_end() {
    let mut store = Store::default();
    store.append(&labels(&[("__name__", "a_total"), ("x", "1")]), [(0, 1.0)]);
    store.append(&labels(&[("__name__", "b_total"), ("x", "1")]), [(0, 2.0)]);
    let query = "count by (__name__) (abs({x=\"1\"}))";
    let at_once = ask(&store, &plain(), query, 0).unwrap_err();
    assert_eq!(at_once.to_string(), "vector cannot contain metrics with the same labelset");
    assert_eq!(at_once.kind(), ErrorKind::Execution);
    let features = Features { delayed_name_removal: true, ..Features::default() };
    let delayed = Engine::new(EngineOptions { features, ..EngineOptions::default() });
    let output =
        ask(&store, &delayed, "label_replace(abs({x=\"1\"}), \"n\", \"$1\", \"__name__\", \"(.*)\")", 0)
            .unwrap();
    assert_eq!(
        samples(&output),
        [("{n=\"a_total\", x=\"1\"}".to_owned(), 1.0), ("{n=\"b_total\", x=\"1\"}".to_owned(), 2.0)]
    );
}

#[test]
fn a_stale_marker_ends_a_series_and_is_no_sample_of_a_range() {
    let mut store = Store::default();
    store.append(&labels(&[("__name__", "m")]), [(0, 1.0), (60_000, 3.0), (120_000, stale_nan())]);
    let engine = plain();
    assert_eq!(samples(&ask(&store, &engine, "m", 119_999).unwrap()).len(), 1);
    assert!(samples(&ask(&store, &engine, "m", 120_000).unwrap()).is_empty());
    assert_eq!(samples(&ask(&store, &engine, "count_over_time(m[5m])", 120_000).unwrap())[0].1, 2.0);
}

#[test]
fn lookback_and_ranges_leave_out_their_left_end() {
    let mut store = Store::default();
    store.append(&labels(&[("__name__", "m")]), [(0, 1.0), (60_000, 2.0)]);
    let engine = plain();
    assert!(samples(&ask(&store, &engine, "m", 360_000).unwrap()).is_empty());
    assert_eq!(samples(&ask(&store, &engine, "m", 359_999).unwrap())[0].1, 2.0);
    assert_eq!(samples(&ask(&store, &engine, "sum_over_time(m[1m])", 60_000).unwrap())[0].1, 2.0);
    let options = QueryOptions { lookback_ms: Some(1000), ..QueryOptions::default() };
    let output = engine.instant(&store, "m", 61_000, &options, &Grant::unlimited()).unwrap();
    assert!(samples(&output).is_empty());
}

#[test]
fn topk_is_chosen_anew_at_each_step_of_a_range() {
    let mut store = Store::default();
    store.append(&labels(&[("__name__", "m"), ("a", "1")]), [(0, 1.0), (60_000, 5.0)]);
    store.append(&labels(&[("__name__", "m"), ("a", "2")]), [(0, 2.0), (60_000, 3.0)]);
    let output = plain()
        .range(&store, "topk(1, m)", 0, 60_000, 60_000, &QueryOptions::default(), &Grant::unlimited())
        .unwrap();
    let Value::Matrix(matrix) = output.value else { panic!("no matrix") };
    let points = |index: usize| matrix.series(index).iter().map(|p| (p.t_ms, p.value)).collect::<Vec<_>>();
    assert_eq!((points(0), points(1)), (vec![(60_000, 5.0)], vec![(0, 2.0)]));
}

#[test]
fn a_query_over_too_many_samples_is_stopped() {
    let engine = Engine::new(EngineOptions { max_samples: 100, ..EngineOptions::default() });
    let store = filled();
    assert!(ask(&store, &engine, "up", 60_000).is_ok());
    let range = |query| {
        engine.range(&store, query, 0, 600_000, 60_000, &QueryOptions::default(), &Grant::unlimited())
    };
    assert_eq!(range("up").unwrap_err(), QueryError::TooManySamples);
    assert_eq!(
        range("count_over_time(up{job=\"a\",instance=\"1\"}[1h:1s])").unwrap_err(),
        QueryError::TooManySamples
    );
    assert_eq!(QueryError::TooManySamples.kind(), ErrorKind::Execution);
    // Samples of an operand are given back with it.
    let output = range("sum(up{instance=\"1\"}) + sum(up{instance=\"2\"})").unwrap();
    assert!(output.peak_samples <= 100 && output.peak_samples >= 22, "{}", output.peak_samples);
}

#[test]
fn a_query_over_its_memory_is_stopped_and_gives_it_back() {
    let budget = Budget::new(1 << 30);
    let store = filled();
    let ask_with = |bytes| {
        let grant = budget.grant(Part::Query, bytes);
        plain().range(&store, "up + 0", 0, 3_600_000, 1000, &QueryOptions::default(), &grant)
    };
    let error = ask_with(10_000).unwrap_err();
    assert!(matches!(error, QueryError::Memory(_)), "{error}");
    assert!(error.to_string().contains("10000 bytes") && error.kind() == ErrorKind::Execution, "{error}");
    assert!(ask_with(100 << 20).is_ok());
    assert_eq!(budget.part(Part::Query), 0);
}

#[test]
fn an_aggregation_is_evaluated_in_parts_when_its_series_do_not_fit() {
    let mut store = filled();
    // A group that only the second half of the steps meets, though its first series is the oldest but one.
    let late = labels(&[("__name__", "up"), ("job", "late"), ("instance", "0")]);
    store.append(&late, (50..60).map(|minute| (minute * 60_000, 0.1)));
    let engine = plain();
    for (query, bytes) in [
        ("sum by (job) (up / 3)", 600_000),
        ("avg(sum by (job) (rate(up[5m])))", 600_000),
        ("quantile(0.3, up)", 600_000),
        ("stddev without (job) (up)", 1_300_000),
    ] {
        let answer = |bytes| {
            let grant = Budget::new(1 << 30).grant(Part::Query, bytes);
            engine.range(&store, query, 0, 3_540_000, 1000, &QueryOptions::default(), &grant)
        };
        let points = |output: QueryOutput| {
            let Value::Matrix(matrix) = output.value else { panic!("no matrix") };
            let series = (0..matrix.len()).map(|index| {
                let points = matrix.series(index).iter().map(|point| (point.t_ms, point.value.to_bits()));
                (matrix.labels.to_labels(index).to_string(), points.collect::<Vec<_>>())
            });
            series.collect::<Vec<_>>()
        };
        // All series at once take 21 × 3541 × 8 bytes and more.
        let (whole, parts) = (answer(1 << 30).unwrap(), answer(bytes).unwrap());
        assert_eq!(points(parts), points(whole), "{query}");
    }
    let grant = Grant::unlimited();
    assert!(engine.range(&store, "up", 0, 3_540_000, 1000, &QueryOptions::default(), &grant).is_ok());
    let grant = Budget::new(1 << 30).grant(Part::Query, 500_000);
    assert!(engine.range(&store, "up", 0, 3_540_000, 1000, &QueryOptions::default(), &grant).is_err());
}

#[test]
fn labels_and_raw_samples_count_as_memory_too() {
    let budget = Budget::new(1 << 30);
    let mut store = Store::default();
    for series in 0..500 {
        let long = format!("{series}{}", "x".repeat(1000));
        store.append(&labels(&[("__name__", "m"), ("long", &long)]), (0..100).map(|tick| (tick * 1000, 1.0)));
    }
    let ask_with = |query: &str, bytes| {
        let grant = budget.grant(Part::Query, bytes);
        plain().instant(&store, query, 99_000, &QueryOptions::default(), &grant)
    };
    for query in
        ["m", "m + 1", "m + m", "m or vector(1)", "count by (long) (m)", "m[100s]", "abs({long=~\".+\"})"]
    {
        assert!(matches!(ask_with(query, 300_000), Err(QueryError::Memory(_))), "{query}");
        assert!(ask_with(query, 10_000_000).is_ok(), "{query}");
    }
    // What is not asked for is not decoded.
    assert!(ask_with("sum(m)", 300_000).is_ok());
    assert_eq!(budget.part(Part::Query), 0);
}

#[test]
fn a_cancelled_query_and_one_past_its_deadline_stop() {
    let store = filled();
    let interrupt = Interrupt::default();
    interrupt.cancelled.store(true, Relaxed);
    let cancelled = QueryOptions { interrupt, ..QueryOptions::default() };
    let error = plain().instant(&store, "sum(up)", 0, &cancelled, &Grant::unlimited()).unwrap_err();
    assert_eq!(error, QueryError::Canceled);
    let interrupt = Interrupt { deadline: Some(Instant::now()), ..Interrupt::default() };
    let late = QueryOptions { interrupt, ..QueryOptions::default() };
    let error = plain().instant(&store, "sum(up)", 0, &late, &Grant::unlimited()).unwrap_err();
    assert_eq!((error.kind(), error), (ErrorKind::Timeout, QueryError::Timeout));
}

#[test]
fn a_range_query_has_bounds() {
    assert_eq!(range_points(0, 11_000_000, 1000), Ok(11_001));
    assert!(
        range_points(0, 11_001_000, 1000).unwrap_err().to_string().starts_with("exceeded maximum resolution")
    );
    assert!(range_points(1, 0, 1000).is_err() && range_points(0, 1, 0).is_err());
    let error = plain()
        .range(&filled(), "up[5m]", 0, 1000, 1000, &QueryOptions::default(), &Grant::unlimited())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid expression type \"range vector\" for range query, must be Scalar or instant Vector"
    );
    assert_eq!(error.kind(), ErrorKind::BadData);
}

#[test]
fn a_range_vector_is_answered_as_it_is() {
    let output = ask(&filled(), &plain(), "up{job=\"a\",instance=\"3\"}[3m]", 120_000).unwrap();
    let Value::Matrix(matrix) = output.value else { panic!("no matrix") };
    let times: Vec<i64> = matrix.series(0).iter().map(|point| point.t_ms).collect();
    assert_eq!(times, [0, 60_000, 120_000]);
}

#[test]
fn a_rate_of_what_is_not_named_as_a_counter_is_remarked_once() {
    let output = ask(&filled(), &plain(), "rate(up[5m]) + rate(up[5m])", 600_000).unwrap();
    assert_eq!(
        output.infos,
        [
            "PromQL info: metric might not be a counter, name does not end in _total/_sum/_count/_bucket: \"up\" (1:21)"
        ]
    );
}

#[test]
fn many_to_many_matches_are_refused_in_the_words_of_prometheus() {
    let engine = plain();
    let error =
        ask(&filled(), &engine, "up{instance=\"1\"} + on(job) up{job=\"a\"}", 0).unwrap_err().to_string();
    assert!(
        error.starts_with("found duplicate series for the match group {job=\"a\"} on the right hand-side of the operation: [{__name__=\"up\", instance=\""),
        "{error}"
    );
    assert!(
        error.ends_with("];many-to-many matching not allowed: matching labels must be unique on one side"),
        "{error}"
    );
    let error =
        ask(&filled(), &engine, "up{job=\"a\"} + on(job) up{instance=\"1\"}", 0).unwrap_err().to_string();
    assert_eq!(
        error,
        "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
    );
    assert_eq!(
        samples(
            &ask(&filled(), &engine, "up{job=\"a\"} + on(job) group_left() up{instance=\"1\"}", 0).unwrap()
        )
        .len(),
        10
    );
}

#[test]
fn the_deepest_expressions_are_evaluated_within_the_stack_of_a_worker() {
    let run = || {
        let (store, engine) = (filled(), plain());
        for query in [
            vec!["up"; 190].join(" or "),
            vec!["up"; 190].join(" + "),
            format!("{}up{}", "abs(".repeat(95), ")".repeat(95)),
            format!("{}up{}", "sum(".repeat(95), ")".repeat(95)),
            format!("{}up{}", "sum_over_time(".repeat(40), "[2m:1m])".repeat(40)),
        ] {
            ask(&store, &engine, &query, 60_000).unwrap();
        }
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
}
