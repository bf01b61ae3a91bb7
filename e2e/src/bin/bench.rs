//! The measuring program behind `cargo xtask bench`, built with optimisation so that the load costs little.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use metricsstore_e2e::bench::engine::Engine;
use metricsstore_e2e::bench::{self, Options};

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
}

#[derive(Args)]
struct Ingest {
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
    #[arg(long, value_delimiter = ',')]
    engines: Vec<String>,
    /// Scenarios to run, by their names or groups (size, rate, jitter, churn, incompressible, restart); all by default.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// A tenth of the series: shows in minutes that everything works, but its figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Memory limit of the control group each engine runs in, in MiB.
    #[arg(long, default_value_t = 4096)]
    memory_mib: u64,
    /// Seed of the populations.
    #[arg(long, default_value_t = 20_261_130)]
    seed: u64,
    /// Runs of everything; the tables show the median and the spread.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

fn main() -> ExitCode {
    let What::Ingest(args) = Cli::parse().what;
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Ingest) -> std::io::Result<()> {
    let cpus = std::thread::available_parallelism()?.get();
    let memory_limit = args.memory_mib << 20;
    let mut engines = vec![Engine::metricsstore(args.metricsstore, cpus)];
    engines.extend(args.prometheus.map(|binary| Engine::prometheus(binary, cpus, memory_limit)));
    engines.extend(args.victoriametrics.map(|binary| Engine::victoriametrics(binary, cpus)));
    if let Some(name) = args.engines.iter().find(|name| !engines.iter().any(|e| e.kind.name() == *name)) {
        return Err(std::io::Error::other(format!(
            "no engine is called {name:?}, or its binary is not given"
        )));
    }
    engines.retain(|engine| {
        args.engines.is_empty() || args.engines.iter().any(|name| name == engine.kind.name())
    });
    let work = std::env::temp_dir().join(format!("metricsstore-bench-{}", std::process::id()));
    let options = Options {
        scenarios: args.rows,
        quick: args.quick,
        memory_limit,
        seed: args.seed,
        runs: args.runs,
        work: work.clone(),
    };
    let outcome = bench::ingest(&options, &engines);
    if outcome.is_ok() {
        std::fs::remove_dir_all(&work)?;
    } else {
        eprintln!("bench: logs are kept in {}", work.display());
    }
    outcome
}
