//! `cargo xtask soak`: the proofs of the storage core for hours instead of minutes.
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{Error, Result, image, packages, places, progress, proofs, sabotage};

/// Seeds of the model test between two looks at the clock.
const SEEDS: u64 = 40;
/// Rounds of `kill -9` for each hour.
const KILL_ROUNDS_PER_HOUR: u64 = 200;
/// Share of the time that fuzzing takes, over its four formats.
const FUZZ_SHARE: u32 = 10;
const SEE_ABOVE: &str = "the failure and how to repeat it are printed above";

/// One line of the last table.
struct Row {
    what: &'static str,
    amount: String,
    took: Duration,
    failure: Option<String>,
}

/// Runs everything there is, the model with fresh seeds until the time is over, and ends with a table of what ran, how
/// much of it, and its verdict. A failure does not keep the rest from running.
pub fn run(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    let mut rows = Vec::new();
    let minutes = time.as_secs() / 60;
    row(&mut rows, "sabotage", || sabotage::run().map(|()| "every change turned its test red".into()));
    row(&mut rows, "fault sweep", || {
        test(&["--package", "metricsstore-storage", "--test", "faults"], &[])?;
        Ok("every call of the script".into())
    });
    row(&mut rows, "schedules", || proofs::races().map(|()| "every test of races".into()));
    row(&mut rows, "Miri", || {
        proofs::miri_if_installed()?;
        Ok(if proofs::has_miri() { "codec and vfs".into() } else { "SKIPPED: not installed".into() })
    });
    let seconds = u32::try_from(time.as_secs() / 4).unwrap_or(u32::MAX) / FUZZ_SHARE;
    row(&mut rows, "fuzzing", || {
        proofs::fuzz(seconds.max(1)).map(|()| format!("{seconds} s for each format"))
    });
    let rounds = KILL_ROUNDS_PER_HOUR * minutes.max(6) / 60;
    row(&mut rows, "kill -9", || {
        engine("kill", &[("ENGINE_KILL_ROUNDS", rounds)]).map(|()| format!("{rounds} rounds"))
    });
    row(&mut rows, "memory", || {
        engine("small_memory", &[("ENGINE_MEMORY_SCRAPES", 20), ("ENGINE_FLOOD_SCRAPES", 3)])?;
        Ok("20 scrapes of 500k series in 150 MiB, 3 of 1.3M".into())
    });
    row(&mut rows, "Thanos", || {
        engine("thanos", &[("ENGINE_THANOS", 1)]).map(|()| "blocks shipped and verified".into())
    });
    row(&mut rows, "model", || model(end));
    report(&rows)
}

fn row(rows: &mut Vec<Row>, what: &'static str, work: impl FnOnce() -> Result<String>) {
    let start = Instant::now();
    let result = progress::step(what, work);
    let failure = result.as_ref().err().map(ToString::to_string);
    rows.push(Row { what, amount: result.unwrap_or_default(), took: start.elapsed(), failure });
}

/// Runs tests of the checkout with settings in their environment.
fn test(arguments: &[&str], settings: &[(&str, String)]) -> Result<()> {
    let mut cargo = places::cargo();
    cargo.args(["test", "--locked"]).args(arguments);
    cargo.envs(settings.iter().map(|(name, value)| (name, value)));
    crate::program::shown("a test", &mut cargo, SEE_ABOVE)
}

/// Tests of the real binary, for longer than continuous integration runs them.
fn engine(filter: &str, settings: &[(&str, u64)]) -> Result<()> {
    packages::require_root("running the engine in control groups of its own")?;
    let binary = image::build()?.engine.display().to_string();
    let mut all = vec![("METRICSSTORE_ENGINE", binary)];
    all.extend(settings.iter().map(|(name, value)| (*name, value.to_string())));
    let package = ["--package", "metricsstore-e2e", "--features", "engine", "--test", "engine"];
    test(&[&package[..], &["--", "--test-threads=1", "--nocapture", filter]].concat(), &all)
}

/// Fresh seeds until the time is over, at least once.
fn model(end: Instant) -> Result<String> {
    // Any number does: seeds are printed with every failure.
    let first = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs()) << 20;
    let mut seeds = 0;
    while seeds == 0 || Instant::now() < end {
        progress::note(format!("seeds {} to {}", first + seeds, first + seeds + SEEDS - 1));
        let settings = [("MODEL_FIRST", (first + seeds).to_string()), ("MODEL_RUNS", SEEDS.to_string())];
        test(&["--quiet", "--package", "metricsstore-storage", "--test", "model"], &settings)?;
        seeds += SEEDS;
    }
    Ok(format!("{seeds} seeds from {first} on, 4000 operations each"))
}

fn report(rows: &[Row]) -> Result<()> {
    println!("\n{:<12} {:<8} {:<12} how much", "what", "verdict", "took");
    for row in rows {
        let verdict = if row.failure.is_none() { "passed" } else { "FAILED" };
        let amount = row.failure.as_deref().and_then(|text| text.lines().next()).unwrap_or(&row.amount);
        println!("{:<12} {verdict:<8} {:<12} {amount}", row.what, progress::seconds(row.took));
    }
    let failed: Vec<&str> = rows.iter().filter(|row| row.failure.is_some()).map(|row| row.what).collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Error::missing(format!("failed: {}", failed.join(", ")), SEE_ABOVE))
}
