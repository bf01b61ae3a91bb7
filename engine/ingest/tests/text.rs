//! The text format against the verdicts of Prometheus' parser and against arbitrary bytes.
#![allow(clippy::unwrap_used, clippy::panic)]

use base64::Engine as _;
use metricsstore_ingest::text::{Entry, MetricKind, Page, PageOptions, ParseError, Parser, TextLabels};
use metricsstore_model::{LabelBuf, LabelDecoder, LabelError, RawKeyHasher};
use proptest::prelude::*;
use serde_json::{Value, json};

fn options() -> PageOptions {
    PageOptions {
        hasher: RawKeyHasher::new(1, b"test"),
        timestamp_ms: 7,
        honor_timestamps: true,
        expected_rows: 0,
    }
}

fn decode(raw_labels: &[u8], target: &LabelBuf, honor_labels: bool) -> Result<Option<LabelBuf>, LabelError> {
    let mut labels = LabelBuf::new();
    let decoder = TextLabels { target, honor_labels, relabel: &|_| true };
    Ok(decoder.decode(raw_labels, &mut labels)?.then_some(labels))
}

/// A page as the corpus writes one down; empty label values, which are not stored, left out.
fn entries(page: &[u8]) -> (Vec<Value>, Option<ParseError>) {
    let mut out = Vec::new();
    let mut parser = Parser::new(page);
    loop {
        match parser.next_entry() {
            Ok(None) => return (out, None),
            Err(error) => return (out, Some(error)),
            Ok(Some(Entry::Comment(text))) => {
                out.push(json!({"k": "comment", "text": String::from_utf8_lossy(text)}));
            }
            Ok(Some(Entry::Help { name, text })) => out.push(
                json!({"k": "help", "name": String::from_utf8_lossy(name), "text": Entry::help_text(text)}),
            ),
            Ok(Some(Entry::Type { name, kind })) => {
                out.push(json!({"k": "type", "name": String::from_utf8_lossy(name), "text": kind.name()}));
            }
            Ok(Some(Entry::Series(_))) => out.push(json!({"k": "series"})),
        }
    }
}

fn series(page: &[u8]) -> Vec<(Value, f64, Option<i64>)> {
    let mut rewritten = Vec::new();
    let page = Page::parse(page, &mut rewritten, &options(), |_| ()).unwrap();
    let target = LabelBuf::new();
    let rows = page.rows.iter().enumerate().map(|(index, row)| {
        let labels = match decode(row.raw_labels, &target, false) {
            Ok(labels) => labels.unwrap().iter().map(|(n, v)| (n.to_owned(), json!(v))).collect(),
            Err(error) => json!({ "error": error.to_string() }),
        };
        let sample = page.samples[index];
        let timestamp = page.has_own_timestamp(index).then_some(sample.timestamp_ms);
        (labels, sample.value, timestamp)
    });
    rows.collect()
}

fn corpus() -> Vec<(String, Vec<u8>, Value)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/text_corpus.json");
    let corpus: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = corpus["cases"].as_array().unwrap().iter().map(|case| {
        let page = match case["b64"].as_str() {
            Some(text) => base64::engine::general_purpose::STANDARD.decode(text).unwrap(),
            None => case["text"].as_str().unwrap().as_bytes().to_vec(),
        };
        (case["id"].as_str().unwrap().to_owned(), page, case["prometheus"].clone())
    });
    cases.collect()
}

#[test]
fn every_page_of_the_corpus_gets_the_verdict_of_prometheus() {
    let mut accepted = 0;
    for (id, page, verdict) in corpus() {
        let (found, error) = entries(&page);
        assert_eq!(verdict["ok"].as_bool().unwrap(), error.is_none(), "{id}: {error:?}, wanted {verdict}");
        accepted += usize::from(error.is_none());
        let expected: Vec<Value> = verdict["entries"].as_array().unwrap().clone();
        let kinds =
            expected.iter().map(|e| if e["k"] == "series" { json!({"k": "series"}) } else { e.clone() });
        assert_eq!(found, kinds.collect::<Vec<_>>(), "{id}");
    }
    assert_eq!((corpus().len(), accepted), (79, 47));
}

#[test]
fn every_accepted_page_of_the_corpus_has_the_series_of_prometheus() {
    let mut compared = 0;
    for (id, page, verdict) in corpus() {
        if !verdict["ok"].as_bool().unwrap() {
            continue;
        }
        let expected = verdict["entries"].as_array().unwrap().iter().filter(|entry| entry["k"] == "series");
        let found = series(&page);
        assert_eq!(found.len(), expected.clone().count(), "{id}");
        for (entry, (labels, value, timestamp)) in expected.zip(found) {
            let mut wanted = entry["labels"].as_object().unwrap().clone();
            wanted.retain(|_, value| value != "");
            // A label `__name__` beside the metric's name: the parser lets it pass, the store refuses it.
            if id == "expfmt/text_parse_test.go:1037" {
                assert_eq!(labels, json!({"error": "label \"__name__\" stands twice in one series"}));
                continue;
            }
            assert_eq!(labels, Value::Object(wanted), "{id}");
            let number: f64 = entry["value"].as_str().unwrap().parse().unwrap();
            assert!(number == value || number.is_nan() && value.is_nan(), "{id}: {value}, wanted {number}");
            assert_eq!(entry["ts"].as_i64(), timestamp, "{id}");
            compared += 1;
        }
    }
    assert_eq!(compared, 120);
}

#[test]
fn a_real_page_is_read_whole() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/common-expfmt.text.prom");
    let page = std::fs::read(path).unwrap();
    let lines = page.split(|&b| b == b'\n').filter(|line| !line.is_empty() && line[0] != b'#').count();
    let series = series(&page);
    assert_eq!(series.len(), lines);
    assert!(series.iter().all(|(labels, ..)| labels.get("__name__").is_some()));
}

#[test]
fn errors_name_line_and_column_and_count_the_samples_before() {
    let (_, error) = entries(b"a 1\nb{x=\"1\"} 2\nc{x=1} 3\n");
    let error = error.unwrap();
    assert_eq!(error.to_string(), r#"3:5: expected label value, got "1} 3""#);
    assert_eq!(error.samples, 2);
    assert_eq!(entries(b"a").1.unwrap().to_string(), "1:2: expected value after metric, got end of page");
    assert_eq!(entries(b"a 1\n# TYPE b bla\n").1.unwrap().to_string(), r#"2:9: invalid metric type "bla""#);
}

#[test]
fn peculiarities_of_the_reference_are_kept() {
    // A line that begins with NUL ends the page; so does NUL in a comment without a blank.
    assert_eq!(entries(b"a 1\n\0b {").0.len(), 1);
    assert_eq!(entries(b"#\0\nb {").0.len(), 0);
    // Blanks before a name belong to it.
    assert_eq!(series(b"  a 1\n")[0].0, json!({"__name__": "  a"}));
    // A carriage return belongs to the value.
    assert!(entries(b"a 1\r\n").1.is_some());
    // Labels need no comma between them.
    assert_eq!(series(b"a{b=\"1\"c=\"2\"}3")[0].0, json!({"__name__": "a", "b": "1", "c": "2"}));
    // The name may stand between the labels.
    assert_eq!(series(b"{b=\"1\",\"a.b\"} 3")[0].0, json!({"__name__": "a.b", "b": "1"}));
    // HELP loses one byte behind the name.
    assert_eq!(entries(b"# HELP a{b\n").0, [json!({"k": "help", "name": "a", "text": "b"})]);
    for page in
        [&b"a{} {} 1"[..], b"a 1 -5", b"a 1 9999999999999999999", b"a 1e999", b"{\"a\",\"b\"} 1", b"{} 1"]
    {
        assert!(entries(page).1.is_some(), "{}", String::from_utf8_lossy(page));
    }
    assert!(entries(b"a{b=\"\xff\"} 1").1.is_some());
    assert!(entries(b"# HELP a \xff\n").1.is_some());
}

#[test]
fn raw_bytes_alone_determine_the_labels() {
    let text = b"# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"1.0\"} 1\n# TYPE g gauge\nh_bucket{le=\"1\"} 1\n";
    let mut rewritten = Vec::new();
    let page = Page::parse(text, &mut rewritten, &options(), |_| ()).unwrap();
    assert_eq!(page.rows[0].raw_labels, b"h_bucket{le=\"1.0\"}");
    assert_eq!(page.rows[0].key, page.rows[1].key);
    assert_eq!(page.rows[2].raw_labels, b"h_bucket{le=\"1\"}");
    assert_ne!(page.rows[2].key, page.rows[1].key);
}

#[test]
fn timestamps_are_honored_or_not() {
    let mut rewritten = Vec::new();
    let page = Page::parse(b"a 1\nb 2 5\nc 3\n", &mut rewritten, &options(), |_| ()).unwrap();
    assert_eq!(page.samples.iter().map(|s| s.timestamp_ms).collect::<Vec<_>>(), [7, 5, 7]);
    assert_eq!((0..3).map(|row| page.has_own_timestamp(row)).collect::<Vec<_>>(), [false, true, false]);
    let mut rewritten = Vec::new();
    let ignoring = PageOptions { honor_timestamps: false, ..options() };
    let page = Page::parse(b"a 1\nb 2 5\n", &mut rewritten, &ignoring, |_| ()).unwrap();
    assert_eq!(page.samples[1].timestamp_ms, 7);
    assert!(!page.has_own_timestamp(1));
}

#[test]
fn metadata_is_handed_over() {
    let mut seen = Vec::new();
    let mut rewritten = Vec::new();
    Page::parse(b"# HELP a x\\ny\n# TYPE a counter\na 1\n", &mut rewritten, &options(), |entry| {
        seen.push(entry.clone());
    })
    .unwrap();
    assert_eq!(
        seen,
        [Entry::Help { name: b"a", text: b"x\\ny" }, Entry::Type { name: b"a", kind: MetricKind::Counter }]
    );
    assert_eq!(Entry::help_text(b"x\\ny\\\\n\\t"), "x\ny\\n\\t");
}

/// Expected sets as Prometheus documents `honor_labels`.
#[test]
fn target_labels_meet_exposed_ones() {
    let target = LabelBuf::from_pairs([("instance", "t:1"), ("job", "j")]);
    let cases = [
        (r#"a{job="x"}"#, false, r#"{__name__="a", exported_job="x", instance="t:1", job="j"}"#),
        (r#"a{job="x"}"#, true, r#"{__name__="a", instance="t:1", job="x"}"#),
        (r#"a{job=""}"#, false, r#"{__name__="a", instance="t:1", job="j"}"#),
        (r#"a{job=""}"#, true, r#"{__name__="a", instance="t:1"}"#),
        (
            r#"a{job="x",exported_job="y"}"#,
            false,
            r#"{__name__="a", exported_exported_job="x", exported_job="y", instance="t:1", job="j"}"#,
        ),
    ];
    for (text, honor_labels, expected) in cases {
        let labels = decode(text.as_bytes(), &target, honor_labels).unwrap().unwrap();
        assert_eq!(labels.to_string(), expected, "{text}");
    }
}

#[test]
fn label_sets_that_are_no_series_are_refused() {
    let none = LabelBuf::new();
    let cases: [(&[u8], LabelError); 4] = [
        (b"{\"\"=\"x\",\"a\"}", LabelError::EmptyName),
        (b"{\"\"}", LabelError::NoMetricName),
        (b"a{b=\"1\",b=\"2\"}", LabelError::Duplicate("b".into())),
        (b"{\"\xff\"}", LabelError::NotUtf8("__name__".into())),
    ];
    for (text, expected) in cases {
        let decoded = decode(text, &LabelBuf::from_pairs([("job", "j")]), false);
        assert_eq!(decoded, Err(expected), "{}", String::from_utf8_lossy(text));
    }
    let dropping = TextLabels { target: &none, honor_labels: false, relabel: &|_| false };
    assert_eq!(dropping.decode(b"a", &mut LabelBuf::new()), Ok(false));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = entries(&bytes);
        let _ = decode(&bytes, &LabelBuf::new(), false);
    }

    #[test]
    fn text_that_nearly_is_a_page_never_panics(
        page in "(a|le|\\{|\\}|\"|\\\\|=|,| |\n|#|HELP |TYPE |histogram|1|\\.|e|0x|_|\u{0}|é){0,60}"
    ) {
        let mut rewritten = Vec::new();
        if let Ok(page) = Page::parse(page.as_bytes(), &mut rewritten, &options(), |_| ()) {
            for row in &page.rows {
                let _ = decode(row.raw_labels, &LabelBuf::new(), false);
            }
        }
    }

    /// Whatever a page's quoted texts hold, they come back.
    #[test]
    fn quoted_text_comes_back(name in "[a-z\"\\\\\n é]{1,8}", value in "[a-z\"\\\\\n {}=,é]{1,8}") {
        let quote = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let page = format!("{{\"{}\",\"l {}\"=\"{}\"}} 1", quote(&name), quote(&name), quote(&value));
        let found = series(page.as_bytes());
        prop_assert_eq!(&found[0].0, &json!({"__name__": name, format!("l {name}"): value}));
    }
}

/// Prints the time per row; run with `--ignored --nocapture` in a release build.
#[test]
#[ignore = "a measurement"]
fn time_per_row() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/common-expfmt.text.prom");
    let page = std::fs::read(path).unwrap().repeat(50);
    let mut best = f64::MAX;
    for _ in 0..20 {
        let mut rewritten = Vec::new();
        let start = std::time::Instant::now();
        let rows = Page::parse(&page, &mut rewritten, &options(), |_| ()).unwrap().rows.len();
        best = best.min(start.elapsed().as_nanos() as f64 / rows as f64);
    }
    println!("{best:.0} ns per row");
}
