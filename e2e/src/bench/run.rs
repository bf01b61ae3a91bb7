//! One scenario with one engine.
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::engine::{Engine, Kind, Running, Site};
use super::load::{Load, Sent};
use super::population::{Population, SCRAPE_INTERVAL_MS};
use super::read_back::{Found, ReadBack};
use super::scenario::{Scenario, Then};
use super::watch::{MemorySeen, own_cpu};

/// Time between two questions to an engine that starts.
const POLL: Duration = Duration::from_millis(5);
/// How long an engine may take until it answers right.
const PATIENCE: Duration = Duration::from_mins(3);

/// What an engine needed for one run of a scenario.
pub struct Measured {
    /// Which run, from 1.
    pub run: usize,
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Which engine.
    pub engine: Kind,
    /// What was sent.
    pub sent: Sent,
    /// Series at any time.
    pub series: usize,
    /// What was read back.
    pub found: Found,
    /// Memory while loading.
    pub memory: MemorySeen,
    /// Control group's peak while loading, page cache included, in bytes.
    pub peak: u64,
    /// CPU time of the engine while loading.
    pub cpu: Duration,
    /// CPU time of the senders, which share the machine.
    pub sender_cpu: Duration,
    /// Bytes on disk after the last answer.
    pub disk: u64,
    /// Bytes on disk after it was asked to stop, and did.
    pub disk_stopped: u64,
    /// After `kill -9`.
    pub restart: Option<Restart>,
    /// After its background work was done.
    pub rest: Option<Rest>,
}

/// How an engine came back.
pub struct Restart {
    /// From the start until it said it is ready.
    pub ready: Duration,
    /// From the start until it was ready and answered a query right.
    pub right: Duration,
    /// CPU time it used until then.
    pub cpu: Duration,
}

/// An engine whose background work is done.
pub struct Rest {
    /// Bytes on disk, by entry of the data directory.
    pub parts: BTreeMap<String, u64>,
    /// Bytes written to disk from the start until then.
    pub written: u64,
    /// CPU time from the start until then.
    pub cpu: Duration,
    /// Memory from the last answer until then.
    pub memory: MemorySeen,
}

/// Loads, kills and starts again if so wanted, reads back, stops; the data directory is removed.
pub fn run(
    run: usize,
    scenario: &Scenario,
    population: &Population,
    engine: &Engine,
    work: &Path,
    memory_limit: u64,
) -> io::Result<Measured> {
    let site = engine.site(work, memory_limit)?;
    let mut running = engine.start(&site)?;
    // The last scrape is a little before now, so that no engine sees the future.
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64);
    let start_ms = now_ms - (scenario.scrapes as i64 + 1) * SCRAPE_INTERVAL_MS;
    let load =
        Load { population, scrapes: scenario.scrapes, batch: BATCH, senders: scenario.senders, start_ms };
    let (cpu, sender_cpu) = (site.cpu(), own_cpu());
    let watch = running.watch();
    let sent = load.send(site.address, "/api/v1/write");
    let memory = watch.stop();
    running.check_alive()?;
    let sent = sent?;
    let (cpu, sender_cpu) = (site.cpu().saturating_sub(cpu), own_cpu().saturating_sub(sender_cpu));
    let (peak, disk) = (site.peak(), site.disk_bytes());
    let reader = ReadBack {
        population,
        scrapes: scenario.scrapes,
        start_ms,
        engine: engine.kind,
        address: site.address,
    };
    let mut restart = None;
    if scenario.then == Then::KillAndReadBack {
        running.kill()?;
        let (again, figures) = start_again(engine, &site, &reader)?;
        (running, restart) = (again, Some(figures));
    }
    let found = reader.all()?;
    running.stop()?;
    let disk_stopped = site.disk_bytes();
    std::fs::remove_dir_all(&site.dir)?;
    Ok(Measured {
        run,
        scenario: scenario.name,
        engine: engine.kind,
        sent,
        series: population.series(),
        found,
        memory,
        peak,
        cpu,
        sender_cpu,
        disk,
        disk_stopped,
        restart,
        rest: None,
    })
}

/// Series in one request.
pub const BATCH: usize = 2000;

fn start_again(engine: &Engine, site: &Site, reader: &ReadBack<'_>) -> io::Result<(Running, Restart)> {
    // VictoriaMetrics acknowledges before it is durable: it is asked for the first scrape, the others for the last.
    let may_lose = engine.kind == Kind::VictoriaMetrics;
    let scrape = if may_lose { 0 } else { reader.scrapes - 1 };
    let target = reader.population.targets() / 2;
    let cpu = site.cpu();
    let begun = Instant::now();
    let mut running = engine.spawn(site)?;
    let mut ready = None;
    loop {
        if ready.is_none() && engine.is_ready(site) {
            ready = Some(begun.elapsed());
        }
        if let Some(ready) = ready
            && reader.is_right_at(target, scrape, may_lose).is_ok_and(|right| right)
        {
            let restart = Restart { ready, right: begun.elapsed(), cpu: site.cpu().saturating_sub(cpu) };
            return Ok((running, restart));
        }
        running.check_alive()?;
        if begun.elapsed() > PATIENCE {
            return Err(io::Error::other("the engine gave no right answer after its restart"));
        }
        thread::sleep(POLL);
    }
}
