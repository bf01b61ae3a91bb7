//! The measuring program behind `cargo xtask bench`, built with optimisation so that the load costs little.
#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use metricsstore_e2e::bench::engine::Engine;
use metricsstore_e2e::bench::{self, DiskOptions, Options};

#[derive(Parser)]
#[command(about = "Measures engines side by side: same work, same control group, ratios of one run")]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Remote write of made-up Kubernetes-like populations; every accepted sample is read back.
    Ingest(Ingest),
    /// A day of data with times that vary: bytes on disk when all background work is done, and what that took.
    Disk(Disk),
}

/// Which engines take part, and how they run.
#[derive(Args)]
struct Engines {
    /// Our engine's binary.
    #[arg(long)]
    metricsstore: PathBuf,
    /// Prometheus' binary.
    #[arg(long)]
    prometheus: Option<PathBuf>,
    /// VictoriaMetrics' binary, single-node.
    #[arg(long)]
    victoriametrics: Option<PathBuf>,
    /// Engines to run, of those whose binary is given; all by default.
    #[arg(long = "engines", value_delimiter = ',')]
    names: Vec<String>,
    /// Memory limit of the control group each engine runs in, in MiB.
    #[arg(long, default_value_t = 4096)]
    memory_mib: u64,
    /// Seed of the populations.
    #[arg(long, default_value_t = 20_261_130)]
    seed: u64,
}

#[derive(Args)]
struct Ingest {
    #[command(flatten)]
    engines: Engines,
    /// Scenarios to run, by their names or groups (size, rate, jitter, churn, incompressible, restart); all by default.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// A tenth of the series: shows in minutes that everything works, but its figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Runs of everything; the tables show the median and the spread.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

#[derive(Args)]
struct Disk {
    #[command(flatten)]
    engines: Engines,
    /// Number of series.
    #[arg(long, default_value_t = 50_000)]
    series: usize,
    /// Hours of data, which end at about now.
    #[arg(long, default_value_t = 24)]
    hours: usize,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().what {
        What::Ingest(args) => ingest(args),
        What::Disk(args) => disk(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Engines {
    fn chosen(self) -> io::Result<Vec<Engine>> {
        let cpus = std::thread::available_parallelism()?.get();
        let memory_limit = self.memory_mib << 20;
        let mut engines = vec![Engine::metricsstore(self.metricsstore, cpus)];
        engines.extend(self.prometheus.map(|binary| Engine::prometheus(binary, cpus, memory_limit)));
        engines.extend(self.victoriametrics.map(|binary| Engine::victoriametrics(binary, cpus)));
        if let Some(name) = self.names.iter().find(|name| !engines.iter().any(|e| e.kind.name() == *name)) {
            return Err(io::Error::other(format!(
                "no engine is called {name:?}, or its binary is not given"
            )));
        }
        engines.retain(|engine| {
            self.names.is_empty() || self.names.iter().any(|name| name == engine.kind.name())
        });
        Ok(engines)
    }
}

fn ingest(args: Ingest) -> io::Result<()> {
    let (memory_limit, seed) = (args.engines.memory_mib << 20, args.engines.seed);
    let engines = args.engines.chosen()?;
    within(|work| {
        let options = Options {
            scenarios: args.rows,
            quick: args.quick,
            memory_limit,
            seed,
            runs: args.runs,
            work: work.to_owned(),
        };
        bench::ingest(&options, &engines)
    })
}

fn disk(args: Disk) -> io::Result<()> {
    let (memory_limit, seed) = (args.engines.memory_mib << 20, args.engines.seed);
    let engines = args.engines.chosen()?;
    within(|work| {
        let (series, hours) = (args.series, args.hours);
        bench::disk(&DiskOptions { series, hours, memory_limit, seed, work: work.to_owned() }, &engines)
    })
}

/// Gives a measurement a directory, which stays when it fails.
fn within(measure: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let work = std::env::temp_dir().join(format!("metricsstore-bench-{}", std::process::id()));
    let outcome = measure(&work);
    if outcome.is_ok() {
        std::fs::remove_dir_all(&work)?;
    } else {
        eprintln!("bench: logs are kept in {}", work.display());
    }
    outcome
}
