//! Admin calls: what they answer, on which listener, and what comes of them.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests may panic")]
mod support;

use support::{Engine, file, now_ms, request, write_request};

const SNAPSHOT: &str = "/api/v1/admin/tsdb/snapshot";

fn is_error(answer: &support::Answer, status: u16, kind: &str, message: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    let json = answer.json();
    assert_eq!((json["errorType"].as_str(), json["error"].as_str()), (Some(kind), Some(message)));
}

#[test]
fn without_the_flag_admin_calls_are_refused_as_prometheus_does() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start(dir.path(), &[]);
    for call in ["snapshot", "delete_series?match[]=up", "clean_tombstones"] {
        for method in ["POST", "PUT"] {
            let path = format!("/api/v1/admin/tsdb/{call}");
            let answer = request(&engine.web, method, &path, &[], b"");
            is_error(&answer, 500, "unavailable", "admin APIs disabled");
        }
    }
    assert_eq!(engine.get(SNAPSHOT).status, 405);
}

#[test]
fn a_snapshot_is_named_as_prometheus_names_it_and_serves_the_same_data() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start(dir.path(), &["--web.enable-admin-api", "--web.enable-remote-write-receiver"]);
    let now = now_ms();
    let body = write_request(&[(&[("__name__", "m"), ("a", "b")], &[(now - 1000, 1.5), (now, 2.5)])]);
    assert_eq!(engine.write(&body).status, 204);
    is_error(
        &request(&engine.web, "POST", &format!("{SNAPSHOT}?skip_head=maybe"), &[], b""),
        400,
        "bad_data",
        r#"invalid parameter "skip_head": unable to parse boolean: strconv.ParseBool: parsing "maybe": invalid syntax"#,
    );
    let answer = request(&engine.web, "POST", &format!("{SNAPSHOT}?ttl=1h&owner=me"), &[], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let name = answer.json()["data"]["name"].as_str().unwrap().to_owned();
    let place = dir.path().join("data/snapshots").join(&name);
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(place.join("snapshot.json")).unwrap()).unwrap();
    assert_eq!(record["owner"], "me");
    assert!(engine.get("/metrics").text().contains("\nmetricsstore_snapshots 1\n"));
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::rename(&place, elsewhere.path().join("data")).unwrap();
    let copy = Engine::start(elsewhere.path(), &[]);
    let time = format!("{}", now as f64 / 1000.0);
    assert_eq!(copy.value("sum_over_time(m[1m])", &time).as_deref(), Some("4"));
}

#[test]
fn deleted_samples_are_gone_at_once_and_stay_gone() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--web.enable-admin-api", "--web.enable-remote-write-receiver"];
    let engine = Engine::start(dir.path(), &flags);
    let now = now_ms();
    let series = |name| [("__name__", name), ("a", "b")];
    let samples = [(now - 2000, 1.0), (now - 1000, 2.0), (now, 4.0)];
    let body = write_request(&[(&series("m"), &samples), (&series("n"), &samples)]);
    assert_eq!(engine.write(&body).status, 204);
    let post = |path: &str| request(&engine.web, "POST", &format!("/api/v1/admin/tsdb/{path}"), &[], b"");
    is_error(&post("delete_series"), 400, "bad_data", "no match[] parameter provided");
    is_error(
        &post("delete_series?match[]=m&start=soon"),
        400,
        "bad_data",
        r#"invalid parameter "start": invalid time value for 'start': cannot parse "soon" to a valid timestamp"#,
    );
    assert!(
        post("delete_series?match[]=m{").json()["error"]
            .as_str()
            .unwrap()
            .starts_with(r#"invalid parameter "match[]": 1:3: parse error: "#)
    );
    assert_eq!(post("delete_series?match[]={}").status, 204);
    let middle = (now - 1000) as f64 / 1000.0;
    let answer = post(&format!("delete_series?match[]=m&start={middle}&end={middle}"));
    assert_eq!((answer.status, answer.text()), (204, String::new()));
    assert_eq!(post("clean_tombstones").status, 204);
    let time = format!("{}", now as f64 / 1000.0);
    assert_eq!(engine.value("sum_over_time(m[1m])", &time).as_deref(), Some("5"));
    assert_eq!(engine.value("sum_over_time(n[1m])", &time).as_deref(), Some("7"));
    engine.kill();
    let engine = Engine::start(dir.path(), &flags);
    assert_eq!(engine.value("sum_over_time(m[1m])", &time).as_deref(), Some("5"));
}

#[test]
fn the_operations_listener_serves_admin_calls_behind_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let token = file(dir.path(), "token", "secret\n");
    let engine = Engine::start(
        dir.path(),
        &["--ops.listen-address=127.0.0.1:0", &format!("--ops.token-file={token}")],
    );
    let ops = engine.ops.clone().unwrap();
    assert_eq!(request(&ops, "POST", SNAPSHOT, &[], b"").status, 401);
    let answer = request(&ops, "POST", SNAPSHOT, &[("Authorization", "Bearer secret")], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn flags_of_blocks_are_shown_as_they_were_given_and_blocks_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start(
        dir.path(),
        &["--storage.block-format=prometheus", "--storage.tsdb.retention.size=1GB"],
    );
    let flags = engine.get("/api/v1/status/flags").json()["data"].clone();
    assert_eq!(flags["storage.block-format"], "prometheus");
    assert_eq!(flags["storage.tsdb.min-block-duration"], "2h");
    assert_eq!(flags["storage.tsdb.delay-compact-file.path"], "");
    assert_eq!(engine.runtime_info()["storageRetention"], "1GiB");
    assert_eq!(engine.runtime_info()["retentionBytes"], 1 << 30);
    let blocks = engine.get("/api/v1/status/tsdb/blocks").json();
    assert_eq!(blocks["data"]["blocks"], serde_json::json!([]));
}
