//! What is stored of pages: samples, reports, staleness, limits, relabelling.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use base64::Engine as _;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use metricsstore_budget::{Budget, Part};
use metricsstore_contract::PromDuration;
use metricsstore_model::is_stale;
use metricsstore_scrape::{
    Action, Health, MetricKind, RelabelConfig, RelabelRegex, ScrapeManager, ScrapeOptions, ScrapeProtocol,
    TargetGroup,
};
use serde_json::{Value, json};
use support::{MemoryStore, job, of_job, page, scrape, scrape_into, serve, serve_script, status};

#[tokio::test]
async fn a_scrape_stores_its_samples_and_its_report_at_one_time() {
    let address = serve(|_| page("# TYPE a counter\n# HELP a Help.\na 1\nb{x=\"y\"} 2.5\n")).await;
    let (store, manager) = scrape(job(&address));
    store.wait_for_scrapes(&of_job("up"), 2).await;
    manager.stop().await;
    let first = store.samples(&of_job("a"))[0];
    assert_eq!(first.value, 1.0);
    let b = store.samples(r#"{__name__="b", instance="t", job="j", x="y"}"#)[0];
    assert_eq!((b.timestamp_ms, b.value), (first.timestamp_ms, 2.5));
    let reports = [
        ("up", 1.0),
        ("scrape_samples_scraped", 2.0),
        ("scrape_samples_post_metric_relabeling", 2.0),
        ("scrape_series_added", 2.0),
    ];
    for (name, value) in reports {
        let report = store.samples(&of_job(name))[0];
        assert_eq!((report.timestamp_ms, report.value), (first.timestamp_ms, value), "{name}");
    }
    assert_eq!(store.values(&of_job("scrape_series_added"))[1], Some(0.0));
    assert!(store.values(&of_job("scrape_duration_seconds"))[0].is_some_and(|seconds| seconds > 0.0));
    assert_eq!(store.newest().len(), 7);

    let target = manager.targets().active.remove(0);
    assert_eq!((target.health, target.last_error.as_str()), (Health::Up, ""));
    assert_eq!(target.scrape_url, format!("http://{address}/metrics"));
    let metadata = manager.metadata();
    let a = metadata["a"].first().unwrap();
    assert_eq!((a.kind, a.help.as_str()), (MetricKind::Counter, "Help."));
}

#[tokio::test]
async fn series_end_when_they_vanish_and_all_of_them_when_a_scrape_fails() {
    let pages: Vec<fn() -> support::Reply> = vec![
        || page("a 1\nb 2\n"),
        || page("a 3\n"),
        || page("b 4\na 5\n"),
        || status(503),
        || status(503),
        || page("a 6\n"),
        || page("a 7\nbroken {\n"),
        || page("a 8\n"),
    ];
    for is_forgetful in [false, true] {
        let store = MemoryStore { is_forgetful, ..MemoryStore::default() };
        let (store, manager) = scrape_into(store, job(&serve_script(pages.clone()).await));
        store.wait_for_scrapes(&of_job("up"), 8).await;
        manager.stop().await;
        let (some, end) = (|value: f64| Some(value), None);
        assert_eq!(
            store.values(&of_job("a"))[..7],
            [some(1.0), some(3.0), some(5.0), end, some(6.0), end, some(8.0)]
        );
        assert_eq!(store.values(&of_job("b")), [some(2.0), end, some(4.0), end]);
        let up = [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0];
        assert_eq!(store.values(&of_job("up"))[..8], up.map(Some));
        // The page that breaks after one sample reports it.
        let scraped = [2.0, 1.0, 2.0, 0.0, 0.0, 1.0, 1.0, 1.0];
        assert_eq!(store.values(&of_job("scrape_samples_scraped"))[..8], scraped.map(Some));
        let stale = store.samples(&of_job("b"))[1];
        assert_eq!(stale.timestamp_ms, store.samples(&of_job("a"))[1].timestamp_ms);
    }
}

#[tokio::test]
async fn series_with_timestamps_of_their_own_end_only_when_asked_for() {
    let pages: Vec<fn() -> support::Reply> = vec![|| page("a 1 1000\nb 1\n"), || page("\n"), || page("\n")];
    let (store, manager) = scrape(job(&serve_script(pages.clone()).await));
    store.wait_for_scrapes(&of_job("up"), 3).await;
    manager.stop().await;
    assert_eq!(store.samples(&of_job("a"))[0].timestamp_ms, 1000);
    assert_eq!(store.values(&of_job("a")), [Some(1.0)]);
    assert_eq!(store.values(&of_job("b")), [Some(1.0), None]);

    let mut tracking = job(&serve_script(pages.clone()).await);
    tracking.track_timestamps_staleness = true;
    let (store, manager) = scrape(tracking);
    store.wait_for_scrapes(&of_job("up"), 3).await;
    manager.stop().await;
    assert_eq!(store.values(&of_job("a")), [Some(1.0), None]);

    let mut ignoring = job(&serve_script(pages).await);
    ignoring.honor_timestamps = false;
    let (store, manager) = scrape(ignoring);
    store.wait_for_scrapes(&of_job("up"), 3).await;
    manager.stop().await;
    assert_ne!(store.samples(&of_job("a"))[0].timestamp_ms, 1000);
    assert_eq!(store.values(&of_job("a")), [Some(1.0), None]);
}

#[tokio::test]
async fn gzip_is_asked_for_and_read_and_an_empty_page_is_a_good_scrape() {
    let hits = AtomicUsize::new(0);
    let address = serve(move |request| {
        assert_eq!(request.headers()["accept-encoding"], "gzip");
        if hits.fetch_add(1, SeqCst) > 0 {
            // Without a body nobody asks for the Content-Type.
            return Response::new(Full::default());
        }
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(b"a 1\n").unwrap();
        Response::builder()
            .header("content-type", "text/plain")
            .header("content-encoding", "gzip")
            .body(Full::new(Bytes::from(encoder.finish().unwrap())))
            .unwrap()
    })
    .await;
    let (store, manager) = scrape(job(&address));
    store.wait_for_scrapes(&of_job("up"), 2).await;
    manager.stop().await;
    assert_eq!(store.values(&of_job("a")), [Some(1.0), None]);
    assert_eq!(store.values(&of_job("up"))[..2], [Some(1.0), Some(1.0)]);
}

/// Scrapes one page with a changed job, and returns the store, the target's error and the values of the reports.
async fn scrape_once(
    reply: fn() -> support::Reply,
    change: impl FnOnce(&mut metricsstore_scrape::ScrapeConfig),
) -> (Arc<MemoryStore>, String, [Option<f64>; 4]) {
    let mut config = job(&serve(move |_| reply()).await);
    change(&mut config);
    let (store, manager) = scrape(config);
    store.wait_for_scrapes(&of_job("up"), 2).await;
    manager.stop().await;
    let error = manager.targets().active.remove(0).last_error;
    let names =
        ["up", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling", "scrape_series_added"];
    let reports = names.map(|name| store.values(&of_job(name))[0]);
    (store, error, reports)
}

#[tokio::test]
async fn limits_fail_the_scrape() {
    let two = || page("a 1\nb{x=\"long value\"} 2\n");
    let (store, error, reports) = scrape_once(two, |c| c.sample_limit = 1).await;
    assert_eq!(error, "sample limit exceeded: 2 samples, limit 1");
    assert_eq!(reports, [0.0, 2.0, 2.0, 1.0].map(Some));
    assert_eq!(store.newest().len(), 5, "nothing but the report is stored");
    assert_eq!(scrape_once(two, |c| c.sample_limit = 2).await.1, "");

    let (store, error, reports) = scrape_once(two, |c| c.label_limit = 3).await;
    assert_eq!(error, "label_limit exceeded (metric: b, number of labels: 4, limit: 3)");
    assert_eq!(reports, [0.0, 2.0, 1.0, 1.0].map(Some));
    assert_eq!(store.newest().len(), 5);
    assert_eq!(scrape_once(two, |c| c.label_limit = 4).await.1, "");

    assert_eq!(
        scrape_once(two, |c| c.label_value_length_limit = 9).await.1,
        "label_value_length_limit exceeded (metric: b, label name: x, length: 10, limit: 9)"
    );
    assert_eq!(
        scrape_once(two, |c| c.label_name_length_limit = 7).await.1,
        "label_name_length_limit exceeded (metric: a, label name: __name__, length: 8, limit: 7)"
    );
    assert_eq!(scrape_once(two, |c| c.body_size_limit = 10).await.1, "body size limit exceeded");
    assert_eq!(scrape_once(two, |c| c.body_size_limit = 1000).await.1, "");
    let with_two_targets = |c: &mut metricsstore_scrape::ScrapeConfig| {
        c.target_limit = 1;
        c.static_configs.push(TargetGroup { targets: vec!["127.0.0.1:1".into()], labels: Vec::new() });
    };
    let error = scrape_once(two, with_two_targets).await.1;
    assert_eq!(error, "target_limit exceeded (number of targets: 2, limit: 1)");
}

#[tokio::test]
async fn a_page_that_does_not_fit_the_memory_fails_and_leaves_nothing() {
    // A long text, and a short one whose many rows take more than it.
    let long = || page(&format!("# {}\na 1\n", "x".repeat(300_000)));
    let rows = || page(&"a 1\n".repeat(20_000));
    for reply in [long, rows] as [fn() -> support::Reply; 2] {
        let mut options = ScrapeOptions::new(7);
        options.budget = Budget::new(1 << 20);
        let (budget, store) = (options.budget.clone(), Arc::new(MemoryStore::default()));
        let manager = ScrapeManager::new(store.clone(), options);
        manager.apply(vec![job(&serve(move |_| reply()).await)]);
        store.wait_for_scrapes(&of_job("up"), 2).await;
        manager.stop().await;
        assert_eq!(store.values(&of_job("up"))[0], Some(0.0));
        let error = manager.targets().active.remove(0).last_error;
        assert!(error.contains("pages may hold 262144 bytes together"), "{error}");
        assert!(store.values(&of_job("a")).is_empty());
        assert_eq!(budget.part(Part::Ingest), 0);
    }
}

#[tokio::test]
async fn a_page_of_unknown_type_needs_a_fallback() {
    let html = || Response::builder().header("content-type", "text/html").body(Full::from("a 1\n")).unwrap();
    let (_, error, reports) = scrape_once(html, |_| ()).await;
    assert!(error.contains("unsupported Content-Type \"text/html\""), "{error}");
    assert_eq!(reports[0], Some(0.0));
    let fallback = Some(ScrapeProtocol::PrometheusText0_0_4);
    let (store, error, _) = scrape_once(html, |c| c.fallback_scrape_protocol = fallback).await;
    assert_eq!(error, "");
    assert_eq!(store.values(&of_job("a"))[0], Some(1.0));
}

#[tokio::test]
async fn a_series_with_impossible_labels_fails_the_scrape() {
    let twice = || page("a 1\nb{x=\"1\",x=\"2\"} 2\nc 3\n");
    let (store, error, reports) = scrape_once(twice, |_| ()).await;
    assert!(error.contains(r#"label "x" stands twice"#), "{error}");
    assert_eq!(reports, [0.0, 2.0, 1.0, 1.0].map(Some));
    assert_eq!(store.newest().len(), 5);
}

#[tokio::test]
async fn relabelling_drops_and_renames_series() {
    let mut drop = RelabelConfig::new(Action::Drop).unwrap();
    drop.source_labels = vec!["__name__".into()];
    drop.regex = RelabelRegex::new("go_.*").unwrap();
    let mut rename = RelabelConfig::new(Action::Replace).unwrap();
    rename.source_labels = vec!["__name__".into()];
    rename.regex = RelabelRegex::new("old_(.*)").unwrap();
    rename.target_label = "__name__".into();
    rename.replacement = "new_$1".into();
    let address = serve(|_| page("go_a 1\nold_b 2\ngo_c 3\nd 4\n")).await;
    let mut config = job(&address);
    config.metric_relabel_configs = vec![drop, rename];
    let (store, manager) = scrape(config);
    store.wait_for_scrapes(&of_job("up"), 3).await;
    manager.stop().await;
    assert_eq!(store.values(&of_job("new_b"))[..2], [Some(2.0); 2]);
    assert_eq!(store.values(&of_job("d"))[..2], [Some(4.0); 2]);
    assert_eq!(store.newest().len(), 7);
    assert_eq!(store.values(&of_job("scrape_samples_scraped"))[..3], [Some(4.0); 3]);
    assert_eq!(store.values(&of_job("scrape_samples_post_metric_relabeling"))[..3], [Some(2.0); 3]);
    assert_eq!(store.values(&of_job("scrape_series_added"))[..3], [Some(2.0), Some(0.0), Some(0.0)]);
}

#[tokio::test]
async fn refusals_are_counted_and_a_refused_series_is_new_again() {
    let store = MemoryStore { refused_name: Some("b"), ..MemoryStore::default() };
    let address = serve_script(vec![|| page("a 1\na 2\nb 3\n"), || page("a 1\n"), || page("a 1\n")]).await;
    let (store, manager) = scrape_into(store, job(&address));
    store.wait_for_scrapes(&of_job("up"), 3).await;
    manager.stop().await;
    let stats = manager.stats();
    assert_eq!((stats.refused_duplicate, stats.refused_series_budget, stats.scrapes_failed), (1, 1, 0));
    assert!(stats.scrapes_succeeded >= 3);
    assert_eq!(store.values(&of_job("a"))[..2], [Some(1.0); 2]);
    assert!(store.samples(&of_job("b")).is_empty(), "a refused series gets no marker");
}

#[tokio::test]
async fn what_is_remembered_is_counted_and_given_back() {
    let address = serve(|_| page("a 1\n")).await;
    let store = Arc::new(MemoryStore::default());
    let options = ScrapeOptions::new(7);
    let budget = options.budget.clone();
    let manager = ScrapeManager::new(store.clone(), options);
    manager.apply(vec![job(&address)]);
    store.wait_for_scrapes(&of_job("up"), 2).await;
    manager.stop().await;
    assert!((1..200).contains(&budget.counted()), "{}", budget.counted());
    drop(manager);
    assert_eq!(budget.counted(), 0);
}

#[tokio::test]
async fn scrapes_are_skipped_under_pressure() {
    let address = serve(|_| page("a 1\n")).await;
    let store = Arc::new(MemoryStore::default());
    let is_short = Arc::new(AtomicBool::new(true));
    let asked = is_short.clone();
    let options =
        ScrapeOptions { skip_scrapes: Arc::new(move || asked.load(SeqCst)), ..ScrapeOptions::new(7) };
    let manager = ScrapeManager::new(store.clone(), options);
    manager.apply(vec![job(&address)]);
    store.wait("two skipped scrapes", |_| manager.stats().scrapes_skipped >= 2).await;
    assert!(store.newest().is_empty());
    is_short.store(false, SeqCst);
    store.wait_for_scrapes(&of_job("up"), 1).await;
    manager.stop().await;
}

/// Pages and results of the third-party corpus, scraped for real.
#[tokio::test]
async fn the_corpus_is_stored_as_prometheus_stores_it() {
    let corpus = include_str!("../../ingest/tests/data/text_corpus.json");
    let corpus: Value = serde_json::from_str(corpus).unwrap();
    let expected: Value = serde_json::from_str(include_str!("data/text_corpus_scraped.json")).unwrap();
    let cases: Vec<(String, Vec<u8>)> = corpus["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| {
            let page = match case["b64"].as_str() {
                Some(text) => base64::engine::general_purpose::STANDARD.decode(text).unwrap(),
                None => case["text"].as_str().unwrap().as_bytes().to_vec(),
            };
            (case["id"].as_str().unwrap().to_owned(), page)
        })
        .collect();
    let pages: Vec<Bytes> = cases.iter().map(|(_, page)| Bytes::from(page.clone())).collect();
    let address = serve(move |request| {
        let index: usize = request.uri().path()[1..].parse().unwrap();
        let reply = Response::builder().header("content-type", "text/plain; version=0.0.4");
        reply.body(Full::new(pages[index].clone())).unwrap()
    })
    .await;
    let mut config = job(&address);
    config.honor_timestamps = false;
    config.scrape_interval = PromDuration::from_ms(500);
    config.scrape_timeout = PromDuration::from_ms(500);
    config.static_configs = (0..cases.len())
        .map(|index| TargetGroup {
            targets: vec![address.clone()],
            labels: vec![
                ("__metrics_path__".into(), format!("/{index}")),
                ("case".into(), index.to_string()),
                ("instance".into(), "t".into()),
            ],
        })
        .collect();
    let (store, manager) = scrape(config);
    let up = |case: usize| format!(r#"{{__name__="up", case="{case}", instance="t", job="j"}}"#);
    store
        .wait("a scrape of each", |store| (0..cases.len()).all(|case| !store.samples(&up(case)).is_empty()))
        .await;
    manager.stop().await;

    let newest = store.newest();
    for (index, (id, _)) in cases.iter().enumerate() {
        let wanted = &expected[id];
        let report =
            |name: &str| newest[&up(index).replace(r#""up""#, &format!("{name:?}"))].value.to_string();
        assert_eq!(json!(report("up")), wanted["up"], "{id}");
        assert_eq!(json!(report("scrape_samples_scraped")), wanted["scraped"], "{id}");
        let own = format!(r#"case="{index}""#);
        let stored =
            newest.iter().filter(|(labels, sample)| labels.contains(&own) && !is_stale(sample.value));
        // The corpus has no series of its own called like a report, so counting is enough to find strangers.
        assert_eq!(stored.count() - 5, wanted["series"].as_array().unwrap().len(), "{id}");
        for series in wanted["series"].as_array().unwrap() {
            let mut labels = metricsstore_model::LabelBuf::new();
            for pair in series[0].as_array().unwrap() {
                labels.push(pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
            }
            for (name, value) in [("case", index.to_string().as_str()), ("instance", "t"), ("job", "j")] {
                labels.push(name, value);
            }
            labels.sort();
            let found = newest.get(&labels.to_string()).map(|sample| sample.value);
            let wanted: f64 = series[1].as_str().unwrap().parse().unwrap();
            assert!(
                found.is_some_and(|found| found == wanted || found.is_nan() && wanted.is_nan()),
                "{id}: {labels} is {found:?}, wanted {wanted}"
            );
        }
    }
}
