//! `cargo xtask bench disk`: a day of data, loaded as fast as each engine takes it, and what is on disk when all background
//! work is done.
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::engine::{Engine, Kind, Running, Site};
use super::load::Load;
use super::population::{Population, SCRAPE_INTERVAL_MS, Shape, Times};
use super::read_back::{Found, ReadBack};
use super::report;
use super::run::{BATCH, Measured, Rest};
use super::scenario::{Scenario, Then};
use super::watch::own_cpu;
use super::wire::Connection;

/// Time between two looks at an engine that settles.
const LOOK: Duration = Duration::from_secs(1);
/// CPU time between two looks up to which an engine is idle.
const IDLE: Duration = Duration::from_millis(100);
/// How long background work may take.
const PATIENCE: Duration = Duration::from_mins(30);
/// Places, spread over series and time, at which samples are read back.
const PROBES: usize = 50;

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of series.
    pub series: usize,
    /// Hours of data, which end at about now.
    pub hours: usize,
    /// Memory limit of the control group, in bytes.
    pub memory_limit: u64,
    /// Seed of the population.
    pub seed: u64,
    /// Where data directories and logs go.
    pub work: PathBuf,
}

/// Runs every engine in turn, and prints the figures of each and what must be reached.
pub fn disk(options: &Options, engines: &[Engine]) -> io::Result<()> {
    let shape = Shape { times: Times::OfTargetVarying, ..Shape::USUAL };
    let scenario = Scenario {
        name: "disk",
        group: "disk",
        title: "the same series all the time, one time a target, which varies by up to 100 ms",
        shape,
        series: options.series,
        scrapes: options.hours * 3_600_000 / SCRAPE_INTERVAL_MS as usize,
        senders: 4,
        then: Then::ReadBack,
        engines: &[Kind::Metricsstore, Kind::Prometheus, Kind::VictoriaMetrics],
    };
    super::describe(&[scenario], engines, options.memory_limit, options.seed);
    std::fs::create_dir_all(&options.work)?;
    let mut all = Vec::new();
    for engine in engines {
        println!("{} …", engine.kind.name());
        let begun = Instant::now();
        let measured = run(options, &scenario, engine)?;
        println!("  {}; {:.0} s in all", report::line(&measured), begun.elapsed().as_secs_f64());
        print_parts(&measured);
        all.push(measured);
    }
    report::print(&[scenario], engines, &all);
    Ok(())
}

fn run(options: &Options, scenario: &Scenario, engine: &Engine) -> io::Result<Measured> {
    let population = Population::new(options.seed, scenario.series, scenario.shape);
    let site = engine.site(&options.work, options.memory_limit)?;
    let mut running = engine.start(&site)?;
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64);
    let start_ms = now_ms - (scenario.scrapes as i64 + 1) * SCRAPE_INTERVAL_MS;
    let load = Load {
        population: &population,
        scrapes: scenario.scrapes,
        batch: BATCH,
        senders: scenario.senders,
        start_ms,
    };
    let (cpu_began, sender_began) = (site.cpu(), own_cpu());
    let watch = running.watch();
    let sent = load.send(site.address, "/api/v1/write");
    let memory = watch.stop();
    running.check_alive()?;
    let sent = sent?;
    let (cpu, sender_cpu) = (site.cpu().saturating_sub(cpu_began), own_cpu().saturating_sub(sender_began));
    let (peak, disk) = (site.peak(), site.disk_bytes());
    let watch = running.watch();
    settle(engine.kind, &mut running, &site)?;
    let rest = Rest {
        memory: watch.stop(),
        parts: site.disk_parts(),
        written: running.written_bytes()?,
        cpu: site.cpu().saturating_sub(cpu_began),
    };
    let reader = ReadBack {
        population: &population,
        scrapes: scenario.scrapes,
        start_ms,
        engine: engine.kind,
        address: site.address,
    };
    probe(&reader)?;
    running.stop()?;
    let disk_stopped = site.disk_bytes();
    std::fs::remove_dir_all(&site.dir)?;
    Ok(Measured {
        run: 1,
        scenario: scenario.name,
        engine: engine.kind,
        sent,
        series: population.series(),
        found: Found::default(),
        memory,
        peak,
        cpu,
        sender_cpu,
        disk,
        disk_stopped,
        restart: None,
        rest: Some(rest),
    })
}

/// Waits until an engine has nothing more to do.
fn settle(kind: Kind, running: &mut Running, site: &Site) -> io::Result<()> {
    if kind == Kind::VictoriaMetrics {
        for path in ["/internal/force_flush", "/internal/force_merge"] {
            let answer = Connection::open(site.address)?.get(path)?;
            if answer.status != 200 {
                return Err(answer.error(path));
            }
        }
    }
    // Prometheus looks once a minute whether there is something to do.
    let quiet = if kind == Kind::Prometheus { 90 } else { 30 };
    let deadline = Instant::now() + PATIENCE;
    let (mut looks, mut bytes, mut cpu) = (0, site.disk_bytes(), site.cpu());
    while looks < quiet {
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the engine's background work did not end"));
        }
        running.check_alive()?;
        thread::sleep(LOOK);
        let (bytes_now, cpu_now) = (site.disk_bytes(), site.cpu());
        looks = if bytes_now == bytes && cpu_now.saturating_sub(cpu) < IDLE { looks + 1 } else { 0 };
        (bytes, cpu) = (bytes_now, cpu_now);
    }
    Ok(())
}

/// An error when a sample is missing or wrong at one of some places.
fn probe(reader: &ReadBack<'_>) -> io::Result<()> {
    let (targets, scrapes) = (reader.population.targets(), reader.scrapes);
    for number in 0..PROBES {
        let (target, scrape) = (number * 7919 % targets, number * (scrapes - 1) / (PROBES - 1));
        if !reader.is_right_at(target, scrape, false)? {
            return Err(io::Error::other(format!(
                "the series of target {target} did not come back as they were sent at scrape {scrape}"
            )));
        }
    }
    Ok(())
}

fn print_parts(measured: &Measured) {
    let Some(rest) = &measured.rest else { return };
    let per_sample = |bytes: u64| bytes as f64 / measured.sent.accepted as f64;
    let parts = rest.parts.iter().filter(|part| *part.1 > 0);
    let parts: Vec<String> = parts.map(|(name, bytes)| format!("{name} {:.4}", per_sample(*bytes))).collect();
    println!("  bytes per sample at rest: {}", parts.join(", "));
}
