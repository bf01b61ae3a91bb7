//! `kill -9` at any moment costs nothing that was acknowledged, and invents nothing.
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::ledger::{Plan, Writer, check_strangers};
use super::process::{Engine, Folder, Random, Start, now_ms, setting, wait_until};

/// Rounds of continuous integration.
const ROUNDS: u64 = 12;
const WRITERS: usize = 3;
const SERIES: usize = 100;
/// Open columns so long make an early seal worth its while.
const SEALED_BYTES: f64 = 1_500_000.0;
/// Pause between two requests of a writer, so that reading all back takes seconds.
const PACE: Duration = Duration::from_millis(2);
/// Data time of a request: so little that no series lags an hour, which would be too old.
const STEP_MS: i64 = 20;
/// Within this time the engine measures its memory.
const MEASURED: Duration = Duration::from_millis(300);
const CONFIG: &str = "storage: {tsdb: {out_of_order_time_window: 10m}}\nscrape_configs: []\n";

#[test]
fn nothing_acknowledged_is_lost_and_nothing_unsent_is_read_after_kill_9() {
    let rounds = setting("ENGINE_KILL_ROUNDS", ROUNDS);
    let seed = setting("ENGINE_SEED", now_ms() as u64);
    println!("{rounds} rounds of kill -9, ENGINE_SEED={seed}");
    let mut random = Random::new(seed);
    let folder = Folder::new("kill");
    std::fs::write(folder.path().join("prometheus.yml"), CONFIG).unwrap();
    let budget = Budget(folder.path().join("engine.yaml"));
    budget.widen();
    let runtime_flag = format!("--runtime.config-file={}", budget.0.display());
    let start = Start::new(folder.path(), &["--web.enable-lifecycle", &runtime_flag]);
    let start_ms = now_ms() - 3_000_000;
    let plan = Plan { series: SERIES, start_ms, step_ms: STEP_MS, late: true, incompressible: false };
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, seed, plan)).collect();
    let (mut ready, mut seals) = (Vec::new(), 0.0);
    let mut engine = start.run();
    for round in 1..=rounds {
        let is_worth_a_seal =
            engine.metric("metricsstore_memory_bytes{part=\"head_payload\"}") > SEALED_BYTES;
        let squeezed = is_worth_a_seal.then_some(&budget);
        let delay = Duration::from_millis(random.below(if is_worth_a_seal { 60 } else { 1500 }));
        seals += write_until_killed(engine, &mut writers, squeezed, delay);
        if random.below(4) == 0 {
            // At its start, too.
            let starting = start.spawn();
            thread::sleep(Duration::from_millis(random.below(50)));
            starting.kill();
        }
        engine = start.spawn();
        watch_replay(&engine);
        ready.push(engine.wait_ready());
        budget.widen();
        reload(&engine);
        wait_until("queries", || engine.data("/api/v1/status/runtimeinfo")["pressure"] == "normal");
        let found = check(&engine, &writers);
        println!(
            "round {round}: ready after {:?}, {found} acknowledged samples found",
            ready[ready.len() - 1]
        );
    }
    let mean = ready.iter().sum::<Duration>() / ready.len() as u32;
    println!("{seals} seals; ready after {mean:?} on average, {:?} at most", ready.iter().max().unwrap());
    for writer in &writers {
        println!("answers by status: {:?}", writer.answers);
    }
    assert!(seals > 0.0, "no round met a seal");
}

/// Ingests side by side and kills the engine in the midst of it: after `delay`, and where a budget is given, not before it
/// was squeezed so much that the engine sealed. The number of seals.
fn write_until_killed(
    engine: Engine,
    writers: &mut [Writer],
    squeezed: Option<&Budget>,
    delay: Duration,
) -> f64 {
    let address = engine.address;
    thread::scope(|scope| {
        for writer in writers {
            scope.spawn(move || {
                while writer.send(address).is_some() {
                    thread::sleep(PACE);
                }
            });
        }
        if let Some(budget) = squeezed {
            wait_until("a seal", || {
                budget.squeeze(&engine);
                thread::sleep(MEASURED);
                engine.metric("metricsstore_seals_total") > 0.0
            });
        }
        thread::sleep(delay);
        let seals = engine.metric("metricsstore_seals_total");
        engine.kill();
        seals
    })
}

/// Replay tells how far it is from the first moment, and never goes back.
fn watch_replay(engine: &Engine) {
    let mut last = (0, 0);
    wait_until("the end of replay", || {
        let data = engine.data("/api/v1/status/walreplay");
        let number = |key: &str| data[key].as_u64().unwrap();
        let step = match data["state"].as_str().unwrap() {
            "waiting" => 0,
            "in progress" => 1,
            "done" => 2,
            state => panic!("{state}"),
        };
        assert!(number("min") <= number("current") && number("current") <= number("max"), "{data}");
        assert!((step, number("current")) >= last, "{data} after {last:?}");
        last = (step, number("current"));
        step == 2
    });
}

/// Everything that the writers know is read back; the number of acknowledged samples.
fn check(engine: &Engine, writers: &[Writer]) -> u64 {
    check_strangers(engine);
    thread::scope(|scope| {
        let checks: Vec<_> = writers.iter().map(|writer| scope.spawn(move || writer.check(engine))).collect();
        checks.into_iter().map(|check| check.join().unwrap()).sum()
    })
}

fn reload(engine: &Engine) {
    let answer = engine.connect().write("/-/reload", b"").unwrap();
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
}

/// `engine.yaml`, by which the budget changes while the engine runs.
struct Budget(std::path::PathBuf);

impl Budget {
    fn widen(&self) {
        write(&self.0, "schema: 1\n");
    }

    /// So little that it seals early.
    fn squeeze(&self, engine: &Engine) {
        let used = engine.data("/api/v1/status/runtimeinfo")["memoryUsedBytes"].as_u64().unwrap();
        let bytes = used * 100 / 86;
        write(
            &self.0,
            &format!("schema: 1\nbudget: {{policy: {bytes}, bytes: {bytes}, limitBytes: {}}}\n", 1u64 << 40),
        );
        reload(engine);
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}
