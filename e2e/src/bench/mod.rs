//! `cargo xtask bench ingest`: the same work for each engine in turn, in the same control group, and every accepted
//! sample read back. Absolute times mean little on shared machines; the ratios of one run are what counts.
mod cgroup;
pub mod engine;
pub mod population;
mod read_back;
mod report;
pub mod wire;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::{Engine, MemorySeen};
use population::{Population, SCRAPE_INTERVAL_MS, SERIES_PER_TARGET};
use wire::{Connection, EncodedLabels, put_series};

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of series.
    pub series: usize,
    /// Scrapes of every series.
    pub scrapes: usize,
    /// Series in one request.
    pub batch: usize,
    /// Connections that send side by side.
    pub senders: usize,
    /// Memory limit of the control group, in bytes.
    pub memory_limit: u64,
    /// Seed of the population.
    pub seed: u64,
    /// Runs of every engine.
    pub runs: usize,
    /// Where data directories and logs go.
    pub work: PathBuf,
}

/// What one engine needed for one run.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Engine.
    pub name: &'static str,
    /// Samples sent and answered 2xx.
    pub accepted: u64,
    /// Samples read back with the right labels, time and value.
    pub read_back: u64,
    /// Memory while ingesting.
    pub memory: MemorySeen,
    /// Control group's peak while ingesting, page cache included, in bytes.
    pub peak: u64,
    /// CPU time of the engine while ingesting.
    pub cpu: Duration,
    /// Wall time of ingesting.
    pub wall: Duration,
    /// Latency of every request, sorted.
    pub latencies: Vec<Duration>,
    /// Bytes of the data directory when everything was read back, before the stop.
    pub disk: u64,
}

/// Runs every engine in turn, prints each run and the table of ratios.
pub fn ingest(options: &Options, engines: &[Engine]) -> io::Result<()> {
    let population = Population::new(options.seed, options.series);
    println!(
        "{} series on {} targets, {} scrapes {} s apart, {} series a request, {} senders, memory limit {} MiB, seed {}",
        population.series(),
        population.targets(),
        options.scrapes,
        SCRAPE_INTERVAL_MS / 1000,
        options.batch,
        options.senders,
        options.memory_limit >> 20,
        options.seed
    );
    for engine in engines {
        println!("{:<14}{} {}", engine.name, engine.binary.display(), engine.arguments.join(" "));
        for (name, value) in &engine.environment {
            println!("{:<14}{name}={value}", "");
        }
    }
    let mut all = Vec::new();
    for run in 1..=options.runs {
        for engine in engines {
            println!("run {run} of {}: {} …", options.runs, engine.name);
            let work = options.work.join(format!("run-{run}"));
            let measured = run_one(options, &population, engine, &work)?;
            if measured.read_back != measured.accepted {
                return Err(io::Error::other(format!(
                    "{} accepted {} samples, but {} were read back",
                    engine.name, measured.accepted, measured.read_back
                )));
            }
            println!(
                "  {} samples in {:.1} s, all read back",
                measured.accepted,
                measured.wall.as_secs_f64()
            );
            all.push(measured);
        }
    }
    report::print(engines, &all);
    Ok(())
}

fn run_one(options: &Options, population: &Population, engine: &Engine, work: &Path) -> io::Result<Measured> {
    std::fs::create_dir_all(work)?;
    let running = engine.start(work, free_port()?, options.memory_limit)?;
    // The last scrape is a little before now, so that no engine sees the future.
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64);
    let start_ms = now_ms - (options.scrapes as i64 + 1) * SCRAPE_INTERVAL_MS;
    let cpu_before = running.cpu();
    let watch = running.watch();
    let begun = Instant::now();
    let sent = send_all(options, population, running.address, start_ms)?;
    let wall = begun.elapsed();
    let memory = watch.stop();
    let cpu = running.cpu().saturating_sub(cpu_before);
    let peak = running.peak();
    let read_back = read_back::count(population, running.address, options.scrapes, start_ms)?;
    let dir = running.dir.clone();
    let disk_before_stop = running.disk_bytes();
    running.stop()?;
    std::fs::remove_dir_all(&dir)?;
    Ok(Measured {
        name: engine.name,
        accepted: sent.accepted,
        read_back,
        memory,
        peak,
        cpu,
        wall,
        latencies: sent.latencies,
        disk: disk_before_stop,
    })
}

struct Sent {
    accepted: u64,
    latencies: Vec<Duration>,
}

/// Sends scrape after scrape; within one scrape the senders work side by side on their own targets.
fn send_all(
    options: &Options,
    population: &Population,
    address: SocketAddr,
    start_ms: i64,
) -> io::Result<Sent> {
    let barrier = Barrier::new(options.senders);
    let total = Mutex::new(Sent { accepted: 0, latencies: Vec::new() });
    let failure = Mutex::new(None);
    thread::scope(|scope| {
        for sender in 0..options.senders {
            let (barrier, total, failure) = (&barrier, &total, &failure);
            scope.spawn(move || {
                let share = |n: usize| population.targets() * n / options.senders;
                let targets = share(sender)..share(sender + 1);
                let sent = send_share(options, population, targets, address, start_ms, barrier, failure);
                let mut total = lock(total);
                total.accepted += sent.accepted;
                total.latencies.extend(sent.latencies);
            });
        }
    });
    if let Some(error) = lock(&failure).take() {
        return Err(error);
    }
    let mut sent = total.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    sent.latencies.sort_unstable();
    Ok(sent)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn send_share(
    options: &Options,
    population: &Population,
    targets: std::ops::Range<usize>,
    address: SocketAddr,
    start_ms: i64,
    barrier: &Barrier,
    failure: &Mutex<Option<io::Error>>,
) -> Sent {
    let labels = EncodedLabels::new(population, targets.clone());
    let mut sent = Sent { accepted: 0, latencies: Vec::new() };
    let mut connection = Connection::open(address);
    let (mut body, mut scratch, mut packed) = (Vec::new(), Vec::new(), Vec::new());
    let mut encoder = snap::raw::Encoder::new();
    let count = targets.len() * SERIES_PER_TARGET;
    for scrape in 0..options.scrapes {
        barrier.wait();
        if lock(failure).is_some() {
            continue;
        }
        for first in (0..count).step_by(options.batch) {
            body.clear();
            let range = first..(first + options.batch).min(count);
            for index in range.clone() {
                let target = targets.start + index / SERIES_PER_TARGET;
                let value = population.value(target, index % SERIES_PER_TARGET, scrape);
                let timestamp = population.timestamp_ms(target, scrape, start_ms);
                put_series(&mut body, &mut scratch, labels.series(index), timestamp, value);
            }
            packed.resize(snap::raw::max_compress_len(body.len()), 0);
            let outcome = encoder.compress(&body, &mut packed).map_err(io::Error::other).and_then(|length| {
                let connection =
                    connection.as_mut().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
                let begun = Instant::now();
                let answer = connection.write("/api/v1/write", &packed[..length])?;
                sent.latencies.push(begun.elapsed());
                Ok(answer)
            });
            match outcome {
                Ok(answer) if answer.status / 100 == 2 => sent.accepted += range.len() as u64,
                Ok(answer) => {
                    let text = String::from_utf8_lossy(&answer.body).into_owned();
                    *lock(failure) = Some(io::Error::other(format!("status {}: {text}", answer.status)));
                    break;
                }
                Err(error) => {
                    *lock(failure) = Some(error);
                    break;
                }
            }
        }
    }
    sent
}

fn free_port() -> io::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
