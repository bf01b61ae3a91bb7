//! `cargo xtask bench ingest`: the same work for each engine in turn, in the same control group, and every accepted
//! sample read back. Absolute times mean little on shared machines; the ratios of one run are what counts.
pub mod cgroup;
mod disk;
pub mod engine;
mod goals;
mod load;
pub mod population;
mod read_back;
mod report;
pub mod request;
mod run;
pub mod scenario;
mod watch;
pub mod wire;

pub use disk::{Options as DiskOptions, disk};

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use engine::{Engine, Kind};
use population::{Population, SCRAPE_INTERVAL_MS};
use run::{BATCH, Measured};
use scenario::{SCENARIOS, Scenario};

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Names or groups of scenarios; empty for all.
    pub scenarios: Vec<String>,
    /// A tenth of the series of every scenario: shows in minutes that all works, and no figure that counts.
    pub quick: bool,
    /// Memory limit of the control group, in bytes.
    pub memory_limit: u64,
    /// Seed of the populations.
    pub seed: u64,
    /// Runs of every engine in every scenario.
    pub runs: usize,
    /// Where data directories and logs go.
    pub work: PathBuf,
}

/// Runs the scenarios with every engine in turn, prints the figures of each and the table of what must be reached.
pub fn ingest(options: &Options, engines: &[Engine]) -> io::Result<()> {
    let chosen = options.chosen()?;
    describe(&chosen, engines, options.memory_limit, options.seed);
    let mut all = Vec::new();
    for run in 1..=options.runs {
        for scenario in &chosen {
            let population = Population::new(options.seed, scenario.series, scenario.shape);
            for engine in engines.iter().filter(|engine| scenario.engines.contains(&engine.kind)) {
                println!("run {run} of {}: {}, {} …", options.runs, scenario.name, engine.kind.name());
                let begun = Instant::now();
                let work = options.work.join(format!("run-{run}-{}", scenario.name));
                std::fs::create_dir_all(&work)?;
                let measured = run::run(run, scenario, &population, engine, &work, options.memory_limit)?;
                verify(&measured)?;
                println!("  {}; {:.0} s in all", report::line(&measured), begun.elapsed().as_secs_f64());
                all.push(measured);
            }
        }
    }
    report::print(&chosen, engines, &all);
    Ok(())
}

/// An error when something is missing that must not be.
fn verify(measured: &Measured) -> io::Result<()> {
    let may_lose = measured.restart.is_some() && measured.engine == Kind::VictoriaMetrics;
    if measured.found.missing > 0 && !may_lose {
        return Err(io::Error::other(format!(
            "{} accepted {} samples, but {} of them did not come back",
            measured.engine.name(),
            measured.sent.accepted,
            measured.found.missing
        )));
    }
    Ok(())
}

impl Options {
    fn chosen(&self) -> io::Result<Vec<Scenario>> {
        let wanted = |scenario: &Scenario, name: &String| scenario.name == name || scenario.group == name;
        if let Some(name) = self.scenarios.iter().find(|name| !SCENARIOS.iter().any(|s| wanted(s, name))) {
            let known: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            let message = format!("no scenario or group is called {name:?}; there are {}", known.join(", "));
            return Err(io::Error::other(message));
        }
        let chosen = SCENARIOS
            .iter()
            .filter(|s| self.scenarios.is_empty() || self.scenarios.iter().any(|name| wanted(s, name)));
        let share = if self.quick { 10 } else { 1 };
        Ok(chosen.map(|scenario| Scenario { series: scenario.series / share, ..*scenario }).collect())
    }
}

/// Says what runs, and with which settings.
fn describe(chosen: &[Scenario], engines: &[Engine], memory_limit: u64, seed: u64) {
    println!(
        "{} s between scrapes, {BATCH} series a request, control group of {} MiB, seed {}",
        SCRAPE_INTERVAL_MS / 1000,
        memory_limit >> 20,
        seed
    );
    for engine in engines {
        let environment = engine.environment.iter().map(|(name, value)| format!("{name}={value} "));
        let (binary, arguments) = (engine.binary.display(), engine.arguments.join(" "));
        println!("{:<16}{}{binary} {arguments}", engine.kind.name(), environment.collect::<String>());
    }
    for scenario in chosen {
        let (series, scrapes, senders) = (scenario.series, scenario.scrapes, scenario.senders);
        println!(
            "{:<16}{series} series × {scrapes} scrapes, {senders} senders: {}",
            scenario.name, scenario.title
        );
    }
}
