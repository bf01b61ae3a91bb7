//! What a series costs in memory; `cargo test -- footprint --nocapture` prints the parts.
use metricsstore_model::LabelBuf;

use super::{Identity, identity, resolve};

fn report(what: &str, identity: &Identity) -> f64 {
    let footprint = identity.footprint();
    let each = |bytes: u64| bytes as f64 / identity.len() as f64;
    let named = footprint.symbols + footprint.identity + footprint.postings;
    println!(
        "{what}: {} series, bytes per series: symbols {:.2} + identity {:.2} + postings {:.2} = {:.2}, raw keys {:.2}",
        identity.len(),
        each(footprint.symbols),
        each(footprint.identity),
        each(footprint.postings),
        each(named),
        each(footprint.raw_cache),
    );
    each(named)
}

/// Eight labels of the target, three of the series' own.
fn target_series(target: usize, series: usize) -> LabelBuf {
    let (namespace, node) = (format!("namespace-{}", target % 40), format!("node-{}", target % 25));
    let (app, pod) = (
        format!("application-{}", target % 60),
        format!("application-{}-7d9f8b6c5d-{target:05}", target % 60),
    );
    let instance = format!("10.{}.{}.17:9090", target / 200, target % 200);
    let (metric, code) =
        (format!("component_subsystem_{}_total", series / 4), format!("{}", 200 + series % 4));
    let handler = format!("/api/v1/resource/{}", series % 25);
    LabelBuf::from_pairs([
        ("__name__", metric.as_str()),
        ("code", &code),
        ("handler", &handler),
        ("app", &app),
        ("cluster", "production-eu-west"),
        ("instance", &instance),
        ("job", &app),
        ("namespace", &namespace),
        ("node", &node),
        ("pod", &pod),
        ("team", ["red", "green", "blue"][target % 3]),
    ])
}

fn load(batches: impl Iterator<Item = Vec<LabelBuf>>) -> Identity {
    let identity = identity();
    let (mut mark, mut record) = (0, Vec::new());
    batches.for_each(|batch| {
        resolve(&identity, &batch);
        // As the log does.
        mark = identity.encode_definitions(mark, usize::MAX, &mut record);
    });
    println!("definitions: {:.1} bytes per series", record.len() as f64 / identity.len() as f64);
    identity
}

fn scraped(targets: usize, series: usize) -> Identity {
    load((0..targets).map(|target| (0..series).map(|series| target_series(target, series)).collect()))
}

/// Requests of 500 series that begin and end anywhere and mix two targets.
fn remote_write(targets: usize) -> Identity {
    let request = |request: usize| {
        let (lane, step) = (request / 4, request % 4);
        (0..500).map(|n| target_series(lane * 2 + n % 2, step * 250 + n / 2)).collect()
    };
    load((0..targets * 2).map(request))
}

#[test]
fn footprint_of_scraped_targets_is_small() {
    assert!(report("50 targets x 400 series, a batch per target", &scraped(50, 400)) < 30.0);
}

#[test]
fn footprint_of_mixed_remote_write_requests_is_small() {
    assert!(report("20 targets x 1000 series in mixed requests", &remote_write(20)) < 30.0);
}

#[test]
#[ignore = "half a million series twice: run it optimised, with --nocapture for the figures"]
fn footprint_of_half_a_million_series_is_at_most_25_bytes_each() {
    assert!(report("500 targets x 1000 series, a batch per target", &scraped(500, 1000)) <= 25.0);
    assert!(report("500 targets x 1000 series in mixed requests", &remote_write(500)) <= 25.0);
}

#[test]
fn footprint_of_unrelated_label_sets_is_bounded() {
    let unrelated = |n: usize| {
        LabelBuf::from_pairs([
            ("__name__", format!("metric_{}", n % 300).as_str()),
            ("account", &format!("{}", n / 50)),
            ("flow", &format!("{n:08x}")),
            ("kind", ["a", "b", "c"][n % 3]),
            ("region", &format!("r{}", n % 12)),
        ])
    };
    let identity = load((0..10).map(|batch| (batch * 1000..batch * 1000 + 1000).map(unrelated).collect()));
    assert!(report("10k series with a unique value each", &identity) < 200.0);
}
