//! Remote write and durability, against the real binary.
mod support;

use std::io::{Read as _, Write as _};

use support::{Engine, file, now_ms, request, write_request};

const RECEIVER: &str = "--web.enable-remote-write-receiver";

fn empty_config(dir: &std::path::Path) -> String {
    format!("--config.file={}", file(dir, "empty.yaml", ""))
}

#[test]
fn what_was_acknowledged_is_answered_after_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let config = empty_config(dir.path());
    let engine = Engine::start(dir.path(), &[RECEIVER, &config]);
    let now = now_ms();
    let time = format!("{}", now / 1000 + 1);
    let body = write_request(&[
        (&[("__name__", "a"), ("job", "x")], &[(now - 1000, 1.5), (now, -0.0)]),
        (&[("__name__", "b"), ("job", "x")], &[(now, f64::INFINITY)]),
    ]);
    let answer = engine.write(&body);
    assert_eq!((answer.status, answer.text().as_str()), (204, ""));
    let check = |engine: &Engine| {
        assert_eq!(engine.value("a", &time).as_deref(), Some("-0"));
        assert_eq!(engine.value("b", &time).as_deref(), Some("+Inf"));
        assert_eq!(engine.value("count_over_time(a[1m])", &time).as_deref(), Some("2"));
    };
    check(&engine);
    engine.kill();
    let engine = Engine::start(dir.path(), &[RECEIVER, &config]);
    check(&engine);
    // The same request again succeeds silently.
    assert_eq!(engine.write(&body).status, 204);
    check(&engine);
}

#[test]
fn good_samples_of_a_mixed_request_are_written_and_the_answer_counts_both() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start(dir.path(), &[RECEIVER, &empty_config(dir.path())]);
    let now = now_ms();
    assert_eq!(engine.write(&write_request(&[(&[("__name__", "a")], &[(now, 1.0)])])).status, 204);
    let mixed = write_request(&[
        (&[("__name__", "a")], &[(now, 2.0)]),
        (&[("__name__", "good")], &[(now, 7.0)]),
        (&[("__name__", "late")], &[(now + 3_600_000, 7.0)]),
        (&[("nameless", "x")], &[(now, 7.0)]),
    ]);
    let answer = engine.write(&mixed);
    let text = answer.text();
    assert_eq!(answer.status, 400, "{text}");
    assert!(text.starts_with("3 of 4 samples refused: "), "{text}");
    assert!(
        text.contains("1 duplicate sample for timestamp") && text.trim_end().ends_with("1 were written"),
        "{text}"
    );
    let time = (now / 1000 + 1).to_string();
    assert_eq!(engine.value("good", &time).as_deref(), Some("7"));
    assert_eq!(engine.value("a", &time).as_deref(), Some("1"));
}

#[test]
fn status_codes_of_remote_write_are_those_of_the_specification() {
    let dir = tempfile::tempdir().unwrap();
    let config = empty_config(dir.path());
    let engine = Engine::start(dir.path(), &[RECEIVER, &config]);
    let body = write_request(&[(&[("__name__", "a")], &[(now_ms(), 1.0)])]);
    assert_eq!(engine.get("/api/v1/write").status, 405);
    let with = |content_type: &str, encoding: &str, body: &[u8]| {
        let headers = [("Content-Type", content_type), ("Content-Encoding", encoding)];
        engine.post("/api/v1/write", &headers, body).status
    };
    assert_eq!(with("application/json", "snappy", &body), 415);
    assert_eq!(with("application/x-protobuf", "gzip", &body), 415);
    assert_eq!(with("application/x-protobuf;proto=io.prometheus.write.v2.Request", "snappy", &body), 415);
    assert_eq!(with("application/x-protobuf", "snappy", b"no snappy block"), 400);
    let garbage = snap::raw::Encoder::new().compress_vec(b"\xff\xff\xff").unwrap();
    assert_eq!(with("application/x-protobuf", "snappy", &garbage), 400);
    assert_eq!(with("application/x-protobuf;proto=prometheus.WriteRequest", "snappy", &body), 204);
    let engine = Engine::start(&dir.path().join("other"), &[&config]);
    let answer = engine.write(&body);
    assert_eq!(answer.status, 404);
    assert!(answer.text().contains("--web.enable-remote-write-receiver"));
}

#[test]
fn a_request_that_never_fits_the_budget_is_refused_at_once_and_not_to_be_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = empty_config(dir.path());
    let engine = Engine::start(dir.path(), &[RECEIVER, &config, "--memory.budget=96Mi"]);
    let began = std::time::Instant::now();
    // 24 MiB of one byte, as a bomb would be: a sixth of the budget is 16 MiB.
    let bomb = snap::raw::Encoder::new().compress_vec(&vec![b'x'; 24 << 20]).unwrap();
    let answer = engine.write(&bomb);
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert!(answer.text().contains("send smaller requests"), "{}", answer.text());
    assert!(began.elapsed() < std::time::Duration::from_secs(5));
    // As long compressed as decoded: by its length alone, and where only both together are too long.
    for mebibytes in [24, 8] {
        let mut state = 1_u32;
        let noise: Vec<u8> = (0..mebibytes << 20)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        let answer = engine.write(&snap::raw::Encoder::new().compress_vec(&noise).unwrap());
        assert_eq!(answer.status, 413, "{}", answer.text());
        assert!(answer.text().contains("requests may hold 16777216 bytes"), "{}", answer.text());
    }
    // What decodes to more than first reserved but fits is read.
    let small = snap::raw::Encoder::new().compress_vec(&vec![b'\n'; 1 << 20]).unwrap();
    assert_eq!(engine.write(&small).status, 400);
}

/// A client that is still sending when it is refused must read the refusal.
#[test]
fn a_refused_body_is_read_to_its_end_and_the_connection_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start(dir.path(), &[&empty_config(dir.path())]);
    let mut stream = std::net::TcpStream::connect(&engine.web).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    // More than the buffers of both ends hold.
    let body = vec![b'x'; 24 << 20];
    let head = format!("POST /api/v1/write HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    for _ in 0..2 {
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
        assert!(support::answer_head(&mut stream).starts_with("HTTP/1.1 404 "));
    }
    // Who asks first is answered before it sends.
    let asking = head.replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n");
    stream.write_all(asking.as_bytes()).unwrap();
    assert!(support::answer_head(&mut stream).starts_with("HTTP/1.1 404 "));
}

#[test]
fn with_replicas_only_the_pods_own_name_takes_writes() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = dir.path().join("engine.yaml");
    std::fs::write(
        &runtime,
        "schema: 1\nremoteWrite:\n  ownHost: {service: main-pods, namespace: m}\n  addresses: [http://main-0/w, http://main-1/w]\n",
    )
    .unwrap();
    let runtime = format!("--runtime.config-file={}", runtime.display());
    let engine = Engine::start(dir.path(), &[RECEIVER, &empty_config(dir.path()), &runtime]);
    let body = write_request(&[(&[("__name__", "a")], &[(now_ms(), 1.0)])]);
    let to = |host: &str| request(&engine.web, "POST", "/api/v1/write", &[("Host", host)], &body);
    let refused = to("main.m.svc:9090");
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("http://main-0/w, http://main-1/w"), "{}", refused.text());
    let pod = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert_eq!(to(&format!("{pod}.main-pods.m.svc:9090")).status, 204);
    assert_eq!(to("127.0.0.1").status, 204);
}

#[test]
fn lists_ranges_and_forms_answer_as_prometheus_does() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start(dir.path(), &[RECEIVER, &empty_config(dir.path())]);
    let base = now_ms() / 60_000 * 60_000;
    let labels: [&[(&str, &str)]; 3] = [
        &[("__name__", "m"), ("i", "1")],
        &[("__name__", "m"), ("i", "2")],
        &[("__name__", "my.metric"), ("a.b", "c")],
    ];
    let samples: Vec<(i64, f64)> = (0..4).map(|n| (base - 45_000 + n * 15_000, n as f64)).collect();
    let series: Vec<_> = labels.iter().map(|labels| (*labels, samples.as_slice())).collect();
    assert_eq!(engine.write(&write_request(&series)).status, 204);
    let data = |path: &str| engine.get(path).json()["data"].clone();
    assert_eq!(data("/api/v1/labels"), serde_json::json!(["__name__", "a.b", "i"]));
    assert_eq!(data("/api/v1/label/i/values"), serde_json::json!(["1", "2"]));
    assert_eq!(data("/api/v1/label/U__a_2e_b/values"), serde_json::json!(["c"]));
    assert_eq!(
        data("/api/v1/series?match[]=m"),
        serde_json::json!([{"__name__": "m", "i": "1"}, {"__name__": "m", "i": "2"}])
    );
    let cut = engine.get("/api/v1/series?match[]=m&limit=1").json();
    assert_eq!(cut["data"].as_array().unwrap().len(), 1);
    assert_eq!(cut["warnings"], serde_json::json!(["results truncated due to limit"]));
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let body = format!("query=sum(m)&start={}&end={}&step=15s", base / 1000 - 15, base / 1000);
    let range = engine.post("/api/v1/query_range", &form, body.as_bytes()).json();
    let points = serde_json::json!([[base / 1000 - 15, "4"], [base / 1000, "6"]]);
    assert_eq!(range["data"]["result"][0]["values"], points, "{range}");
    let far = engine.get("/api/v1/query_range?query=m&start=0&end=11001&step=1");
    assert_eq!(far.status, 400);
    assert_eq!(
        far.json()["error"],
        "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)"
    );
    let wrong = engine.get("/api/v1/query?query=sum(");
    assert_eq!((wrong.status, wrong.json()["errorType"].clone()), (400, "bad_data".into()));
    assert_eq!(engine.get("/api/v1/series").status, 400);
}

#[test]
fn answers_are_compressed_when_asked_and_carry_cors_headers() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start(dir.path(), &[&empty_config(dir.path())]);
    let headers = [("Accept-Encoding", "gzip"), ("Origin", "http://grafana.example")];
    let path = "/api/v1/query_range?query=vector(1)&start=0&end=5000&step=1";
    let answer = request(&engine.web, "GET", path, &headers, b"");
    let head = answer.head.to_ascii_lowercase();
    assert!(
        head.contains("content-encoding: gzip")
            && head.contains("access-control-allow-origin: http://grafana.example"),
        "{head}"
    );
    let body = unchunked(&answer);
    let mut text = String::new();
    flate2::read::GzDecoder::new(body.as_slice()).read_to_string(&mut text).unwrap();
    assert!(text.starts_with("{\"status\":\"success\"") && text.contains("[5000,\"1\"]"));
    assert_eq!(request(&engine.web, "OPTIONS", "/api/v1/query", &headers, b"").status, 204);
}

/// The body, which has a length here; a chunked one would start with its size instead of gzip's magic number.
fn unchunked(answer: &support::Answer) -> Vec<u8> {
    assert_eq!(answer.body[..2], [0x1f, 0x8b]);
    answer.body.clone()
}
