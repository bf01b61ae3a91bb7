//! Native histograms, exemplars and metadata by remote write, against the real binary.
#![allow(clippy::unwrap_used, reason = "tests may panic")]
mod support;

use support::{Engine, file, now_ms};

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(field: u8, value: u64) -> Vec<u8> {
    let mut out = vec![field << 3];
    varint(value, &mut out);
    out
}

fn double(field: u8, value: f64) -> Vec<u8> {
    [&[field << 3 | 1][..], &value.to_le_bytes()].concat()
}

fn bytes(field: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    varint(body.len() as u64, &mut out);
    [out, body.to_vec()].concat()
}

fn label(name: &str, value: &str) -> Vec<u8> {
    bytes(1, &[bytes(1, name.as_bytes()), bytes(2, value.as_bytes())].concat())
}

#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
fn request(parts: &[Vec<u8>]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(&parts.concat()).unwrap()
}

fn series(name: &str, parts: &[Vec<u8>]) -> Vec<u8> {
    bytes(1, &[label("__name__", name), parts.concat()].concat())
}

/// Four observations in one bucket; `count` is what the histogram says.
fn histogram(time: i64, count: u64) -> Vec<u8> {
    let span = bytes(11, &[number(1, 2), number(2, 1)].concat());
    bytes(4, &[number(1, count), double(3, 8.5), span, bytes(12, &[8]), number(15, time as u64)].concat())
}

#[test]
fn histograms_exemplars_and_metadata_are_taken_and_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let config = file(dir.path(), "p.yaml", "storage: {exemplars: {max_exemplars: 10}}\n");
    let args = [
        "--web.enable-remote-write-receiver",
        "--enable-feature=exemplar-storage",
        &format!("--config.file={config}"),
    ];
    let engine = Engine::start(dir.path(), &args);
    let now = now_ms();
    let exemplar = [label("trace_id", "abc"), double(2, 0.25), number(3, now as u64)].concat();
    let metadata = [number(1, 3), bytes(2, b"h"), bytes(4, b"How long."), bytes(5, b"seconds")].concat();
    let body = request(&[
        series("h", &[histogram(now - 1000, 4), histogram(now, 4)]),
        series("h", &[bytes(3, &exemplar)]),
        bytes(3, &metadata),
    ]);
    let answer = engine.write(&body);
    assert_eq!((answer.status, answer.text().as_str()), (204, ""));
    let check = |engine: &Engine| {
        // The same again succeeds silently, another one at the same time does not.
        assert_eq!(engine.write(&body).status, 204);
        let other = engine.write(&request(&[series("h", &[histogram(now, 4), histogram(now, 5)])]));
        assert_eq!(other.status, 400);
        let text = other.text();
        assert!(text.starts_with("1 of 2 samples refused: 1 histogram's observation count"), "{text}");
        let families = engine.get("/api/v1/metadata").json();
        let expected = serde_json::json!([{"type": "histogram", "help": "How long.", "unit": "seconds"}]);
        assert_eq!(families["data"]["h"], expected);
        let found = engine.get("/api/v1/query_exemplars?query=rate(h[5m])").json();
        let expected = serde_json::json!([{
            "seriesLabels": {"__name__": "h"},
            "exemplars": [{"labels": {"trace_id": "abc"}, "value": "0.25", "timestamp": now as f64 / 1000.0}],
        }]);
        assert_eq!(found["data"], expected);
        let names = engine.get("/api/v1/label/__name__/values").json();
        assert_eq!(names["data"], serde_json::json!(["h"]));
    };
    check(&engine);
    engine.kill();
    let engine = Engine::start(dir.path(), &args);
    check(&engine);
}
