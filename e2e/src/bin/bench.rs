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
    /// Remote write of a made-up Kubernetes-like population; every accepted sample is read back.
    Ingest(Ingest),
}

#[derive(Args)]
struct Ingest {
    /// Our engine's binary.
    #[arg(long)]
    metricsstore: PathBuf,
    /// Prometheus' binary; without it only our engine runs.
    #[arg(long)]
    prometheus: Option<PathBuf>,
    /// Number of series.
    #[arg(long, default_value_t = 500_000)]
    series: usize,
    /// Scrapes of every series, 15 s of data time apart, sent as fast as they are taken.
    #[arg(long, default_value_t = 20)]
    scrapes: usize,
    /// Series in one request.
    #[arg(long, default_value_t = 2000)]
    batch: usize,
    /// Connections that send side by side.
    #[arg(long, default_value_t = 2)]
    senders: usize,
    /// Memory limit of the control group each engine runs in, in MiB.
    #[arg(long, default_value_t = 4096)]
    memory_mib: u64,
    /// Seed of the population.
    #[arg(long, default_value_t = 20_261_130)]
    seed: u64,
    /// Runs of every engine; the table shows the median and the spread.
    #[arg(long, default_value_t = 1)]
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
    let common = |more: &[&str]| {
        let mut flags = vec![
            "--config.file={config}".to_owned(),
            "--storage.tsdb.path={dir}".to_owned(),
            "--web.listen-address=127.0.0.1:{port}".to_owned(),
            "--web.enable-remote-write-receiver".to_owned(),
        ];
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        flags
    };
    let cpus = std::thread::available_parallelism()?.get();
    let mut ours = common(&[]);
    ours.insert(0, "serve".to_owned());
    ours.push(format!("--cpu.threads={cpus}"));
    ours.push("--ops.listen-address=127.0.0.1:0".to_owned());
    let mut engines = vec![Engine {
        name: "metricsstore",
        binary: args.metricsstore,
        arguments: ours,
        environment: vec![],
    }];
    if let Some(binary) = args.prometheus {
        let environment = vec![
            ("GOMAXPROCS".to_owned(), cpus.to_string()),
            // What its automatic setting would choose, said openly.
            ("GOMEMLIMIT".to_owned(), format!("{}MiB", args.memory_mib * 9 / 10)),
        ];
        engines.push(Engine { name: "prometheus", binary, arguments: common(&[]), environment });
    }
    let work = std::env::temp_dir().join(format!("metricsstore-bench-{}", std::process::id()));
    let options = Options {
        series: args.series,
        scrapes: args.scrapes,
        batch: args.batch,
        senders: args.senders,
        memory_limit: args.memory_mib << 20,
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
