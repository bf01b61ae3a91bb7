//! Start, configuration, signals, against the real binary.
mod support;

use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::{Engine, failure, file, request, wait_for};

const GOOD: &str = "scrape_configs:\n- job_name: one\n";
const BAD: &str = "global:\n  scrape_intervall: 5s\n";

#[test]
fn a_bad_configuration_ends_the_start_with_file_line_and_nearest_key() {
    let dir = tempfile::tempdir().unwrap();
    let config = file(dir.path(), "scrape.yaml", BAD);
    let message = failure(dir.path(), &[&format!("--config.file={config}")]);
    let expected = format!(
        "metricsstore: {config}:2:3: unknown key \"scrape_intervall\", did you mean \"scrape_interval\"?"
    );
    assert_eq!(message, expected);
}

#[test]
fn a_start_that_cannot_be_says_why_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("--web.listen-address={}", taken.local_addr().unwrap());
    let message = failure(&dir.path().join("a"), &[&address]);
    assert!(message.starts_with("metricsstore: cannot listen on 127.0.0.1:"), "{message}");
    let not_a_dir = file(dir.path(), "file", "");
    let message = failure(dir.path(), &[&format!("--storage.tsdb.path={not_a_dir}/data")]);
    assert!(message.starts_with("metricsstore: cannot create"), "{message}");
    let config = format!("--config.file={}", file(dir.path(), "empty.yaml", ""));
    let running = Engine::start(dir.path(), &[&config]);
    let message = failure(dir.path(), &[&config]);
    assert!(message.contains("is in use by another process"), "{message}");
    drop(running);
    let message = failure(dir.path(), &["--web.listen-addres=x"]);
    assert!(message.contains("did you mean \"--web.listen-address\"?"), "{message}");
}

#[test]
fn a_bad_reload_answers_500_and_keeps_the_last_good_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let config = file(dir.path(), "scrape.yaml", GOOD);
    let flag = format!("--config.file={config}");
    let engine = Engine::start(dir.path(), &[&flag, "--web.enable-lifecycle"]);
    std::fs::write(&config, BAD).unwrap();
    let answer = engine.post("/-/reload", &[], b"");
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("scrape.yaml:2:3: unknown key"), "{}", answer.text());
    let info = engine.runtime_info();
    assert_eq!(info["reloadConfigSuccess"], false);
    assert!(info["configFiles"][0]["error"].as_str().unwrap().contains("scrape_intervall"));
    assert!(engine.get("/metrics").text().contains("\nprometheus_config_last_reload_successful 0\n"));
    let yaml = engine.get("/api/v1/status/config").json()["data"]["yaml"].clone();
    assert!(yaml.as_str().unwrap().contains("job_name: one"));
    // A file that becomes good again comes into force without anybody asking.
    std::fs::write(&config, GOOD.replace("one", "two")).unwrap();
    wait_for("the good file in force", || engine.runtime_info()["reloadConfigSuccess"] == true);
    let pools = engine.get("/api/v1/scrape_pools").json();
    assert_eq!(pools["data"]["scrapePools"], serde_json::json!(["two"]));
}

#[test]
fn hangup_reloads() {
    let dir = tempfile::tempdir().unwrap();
    let config = file(dir.path(), "scrape.yaml", GOOD);
    let engine = Engine::start(dir.path(), &[&format!("--config.file={config}")]);
    std::fs::write(&config, BAD).unwrap();
    engine.signal(Signal::HUP);
    wait_for("a verdict", || engine.runtime_info()["reloadConfigSuccess"] == false);
}

#[test]
fn sigterm_makes_unready_at_once_serves_on_and_ends_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("--config.file={}", file(dir.path(), "empty.yaml", ""));
    let mut engine = Engine::start(dir.path(), &[&config]);
    let asked = Instant::now();
    engine.signal(Signal::TERM);
    wait_for("unready", || engine.get("/-/ready").status == 503);
    assert!(asked.elapsed() < Duration::from_secs(3));
    assert_eq!(engine.get("/api/v1/query?query=vector(1)").status, 200);
    assert_eq!(engine.get("/-/healthy").status, 200);
    let mut status = None;
    wait_for("the end", || {
        status = engine.child.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
    let took = asked.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(15), "{took:?}");
}

#[test]
fn the_operations_listener_wants_its_token_for_all_but_health() {
    let dir = tempfile::tempdir().unwrap();
    let token = file(dir.path(), "token", "s3cret\n");
    let config = format!("--config.file={}", file(dir.path(), "scrape.yaml", GOOD));
    let token = format!("--ops.token-file={token}");
    let mut engine = Engine::start(dir.path(), &[&config, &token, "--ops.listen-address=127.0.0.1:0"]);
    let ops = engine.ops.clone().unwrap();
    assert_eq!(request(&ops, "GET", "/-/ready", &[], b"").status, 200);
    assert_eq!(request(&ops, "GET", "/api/v1/labels", &[], b"").status, 404);
    let reload = |token: &str| request(&ops, "POST", "/-/reload", &[("Authorization", token)], b"").status;
    assert_eq!((reload("Bearer wrong"), reload("Bearer s3cret")), (401, 200));
    assert_eq!(engine.post("/-/reload", &[], b"").status, 403);
    let quit = request(&ops, "POST", "/-/quit", &[("Authorization", "Bearer s3cret")], b"");
    assert_eq!(quit.status, 200);
    wait_for("the end", || engine.child.try_wait().unwrap().is_some());
}

#[test]
fn a_changed_engine_yaml_comes_into_force_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("--config.file={}", file(dir.path(), "empty.yaml", ""));
    let path = file(dir.path(), "engine.yaml", "schema: 1\nthreads: {count: 3}\nretention: {time: 2d}\n");
    let runtime = format!("--runtime.config-file={path}");
    let engine = Engine::start(dir.path(), &[&config, &runtime, "--memory.budget=200Mi"]);
    let info = engine.runtime_info();
    assert_eq!((&info["GOMAXPROCS"], &info["storageRetention"]), (&3.into(), &"2d".into()));
    assert_eq!(info["memoryBudgetBytes"], 200 << 20);
    let next = "schema: 1\nretention: {time: 5d}\ncolour: red\n\
                budget: {policy: 300Mi, bytes: 314572800, limitBytes: 17179869184}\n";
    std::fs::write(&path, next).unwrap();
    wait_for("the new budget", || engine.runtime_info()["memoryBudgetBytes"] == 300 << 20);
    let info = engine.runtime_info();
    assert_eq!(info["storageRetention"], "5d");
    assert_eq!(info["unknownRuntimeKeys"], serde_json::json!(["colour"]));
    assert!(engine.get("/metrics").text().contains("\nmetricsstore_runtime_config_unknown_keys 1\n"));
}

#[test]
fn without_configuration_the_engine_scrapes_itself() {
    let dir = tempfile::tempdir().unwrap();
    // The port must be known beforehand, as the engine names itself by it.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let engine = Engine::start(dir.path(), &[&format!("--web.listen-address={free}")]);
    let targets = engine.get("/api/v1/targets").json();
    let url = format!("http://localhost:{}/metrics", free.port());
    assert_eq!(targets["data"]["activeTargets"][0]["scrapeUrl"], url.as_str());
    wait_for("a scrape of itself", || {
        let now = jiff::Timestamp::now().as_second();
        engine.value("up{job=\"metricsstore\"}", &now.to_string()).as_deref() == Some("1")
    });
}

#[test]
fn a_log_that_nobody_reads_any_more_does_not_end_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = support::command(dir.path(), &["--web.listen-address=127.0.0.1:0"]).spawn().unwrap();
    // The pipe closes: from now on every line fails to be written.
    drop(child.stderr.take());
    wait_for("the lock", || dir.path().join("data/lock").exists());
    let pid = rustix::process::Pid::from_child(&child);
    wait_for("the end", || {
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
