//! `cargo xtask`: build, try and test the whole of metricsstore on a real cluster.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use metricsstore_e2e::{
    Result, cluster, crds, demo, image, measure, packages, pipeline, proofs, sabotage, soak,
};

/// Build, try and test metricsstore on a real single-node Kubernetes of its own.
///
/// Everything is built from source (Rust crates and checksum-pinned Go modules) or comes from
/// Debian's packages; no container registry is involved. What is built is kept in
/// ~/.cache/metricsstore (or `$METRICSSTORE_CACHE`). Start with one of
///
///   cargo xtask demo      a cluster, the operator, a store, and queries about the cluster
///   cargo xtask test      every check and test, as continuous integration runs them
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", verbatim_doc_comment)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show metricsstore at work: cluster, chart, MetricsStore, scraping, queries
    ///
    /// Installs the Debian packages (as root; else prints the command that does), builds the image and the cluster's
    /// programs, brings the cluster up, installs the operator's Helm chart, applies a MetricsStore that scrapes the
    /// cluster's own components, waits until it is Ready and asks it some PromQL. Then it stays up until Ctrl-C, which
    /// takes the cluster down again; meanwhile `cargo xtask cluster kubectl …` works in a second terminal.
    Demo {
        /// Exit, and take the cluster down, after the queries
        #[arg(long)]
        once: bool,
    },
    /// Run every check and test, in the order of continuous integration
    ///
    /// Packages, format, clippy, licences and bans, CRDs, unit and model tests, schedules, Miri, image, engine tests,
    /// cluster up, cluster tests, and in any case cluster down. Stops at the first failure; each step prints how long it
    /// took.
    Test,
    /// Handle the real single-node Kubernetes that demo and tests run on
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Build the image with both static binaries
    ///
    /// Builds `metricsstore` and `metricsstore-operator` statically, puts them on an empty base with CA roots and time
    /// zones, and writes an OCI archive. When the cluster is up the image is imported into it.
    Image,
    /// Generate the CRD's YAML from the Rust types
    Crds {
        /// Change nothing; fail when the checked-in YAML differs
        #[arg(long)]
        check: bool,
    },
    /// Run the store's threads under thousands of schedules that a model checker chooses
    ///
    /// Locks, atomics and calls to the file system are its points of decision. `METRICSSTORE_SCHEDULES` sets how many
    /// schedules each test runs, `SHUTTLE_RANDOM_SEED` which.
    Races,
    /// Run the tests of `codec` and `vfs` under Miri, which finds undefined behaviour
    ///
    /// Needs the nightly toolchain with Miri, and several minutes: `test` leaves it out.
    Miri,
    /// Open stores with changed files: log, segment, manifest and identity file in turn
    ///
    /// Begins with the golden files of the format and keeps what it finds in the cache.
    Fuzz {
        /// For so long each
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Break the storage core in fourteen ways, one at a time, and demand that a named test notices each
    ///
    /// Works on a copy in the cache. A change that no longer fits the code, or that does not compile, is an error too:
    /// the table of changes is in `e2e/src/sabotage.rs`.
    Sabotage,
    /// Run the proofs of the storage core for a long time
    ///
    /// Sabotage, a failure at every single call, schedules, Miri, fuzzing (a tenth of the time), rounds of `kill -9` on
    /// the real binary and more series than it has memory for (as root), and in the time that is left the model test with seeds that nobody tried before. Ends
    /// with a table of what ran, how much of it, and its verdict. A seed that failed is run again with
    /// `MODEL_SEED=<seed> cargo test -p metricsstore-storage --test model`.
    Soak {
        /// For so many hours
        #[arg(long, conflicts_with = "minutes")]
        hours: Option<u64>,
        /// For so many minutes
        #[arg(long, default_value_t = 60)]
        minutes: u64,
    },
    /// Measure the engine beside others: same bytes, same control group, ratios of one run
    #[command(subcommand)]
    Bench(BenchCommand),
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Remote write of fixed-seed, Kubernetes-like populations to metricsstore, Prometheus and VictoriaMetrics
    ///
    /// Builds the engines, runs them in turn in the same memory cgroup, reads every accepted sample back, and prints
    /// RSS, working set, cgroup peak, CPU per sample, request times, bytes on disk and time to come back after a kill,
    /// with their ratios, and what must be reached. All flags are printed. Takes about an hour and a half with its three runs;
    /// `cargo xtask bench ingest -- --rows size,rate --runs 1` does a part of it, `-- --help` shows all settings.
    Ingest {
        /// Settings of the run, for example `-- --rows size,restart --runs 1`
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
    /// A day of 50k series, loaded as fast as metricsstore, Prometheus and VictoriaMetrics take it, and what is on disk then
    ///
    /// Waits after the load until compactions and merges are done, then prints bytes on disk for each sample, in all and by
    /// part of the data directory, bytes written, CPU and memory, with their ratios, and what must be reached. Samples
    /// are read back at some places. Needs about 8 GiB of disk; `cargo xtask bench disk -- --series 5000 --hours 12
    /// --engines metricsstore` does less.
    Disk {
        /// Settings of the run, for example `-- --series 5000`
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Build what is missing and bring the cluster up; does nothing when it is up
    ///
    /// etcd, the API server (with its audit log on), controller manager, scheduler, kubelet, kube-proxy, cluster DNS,
    /// dynamic volumes and containerd, in namespaces of their own: no packet leaves, and the host keeps its mounts,
    /// network and settings. A run that died is cleaned first.
    Up,
    /// Take the cluster down and leave nothing behind
    Down,
    /// Run the kubectl of the cluster's version against it, for example `cargo xtask cluster kubectl get pods -A`
    #[command(disable_help_flag = true)]
    Kubectl {
        /// Arguments for kubectl
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Run any program inside the cluster's namespaces, where pod and service addresses are reachable
    ///
    /// KUBECONFIG is the administrator's, and kubectl and helm are on the PATH. Example:
    /// `cargo xtask cluster exec curl http://10.96.0.10:9153/metrics`
    Exec {
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// The first process inside the namespaces; started by `up`
    #[command(hide = true)]
    Init {
        /// The cluster's state folder
        state: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo { once } => demo::run(once)?,
        Command::Test => pipeline::run()?,
        Command::Races => proofs::races()?,
        Command::Miri => proofs::miri()?,
        Command::Fuzz { seconds } => proofs::fuzz(seconds)?,
        Command::Sabotage => sabotage::run()?,
        Command::Soak { hours, minutes } => {
            soak::run(Duration::from_mins(hours.map_or(minutes, |hours| hours * 60)))?;
        }
        Command::Image => {
            packages::ensure()?;
            let image = image::build()?;
            if let Some(cluster) = cluster::Cluster::running()? {
                cluster.import(&image.archive)?;
            }
        }
        Command::Crds { check: true } => crds::check()?,
        Command::Crds { check: false } => {
            println!("{}", if crds::generate()? { "the CRD was written" } else { "the CRD is up to date" });
        }
        Command::Bench(BenchCommand::Ingest { arguments }) => measure::ingest(&arguments)?,
        Command::Bench(BenchCommand::Disk { arguments }) => measure::disk(&arguments)?,
        Command::Cluster(command) => return run_cluster(command),
    }
    Ok(ExitCode::SUCCESS)
}

fn run_cluster(command: ClusterCommand) -> Result<ExitCode> {
    match command {
        ClusterCommand::Up => {
            packages::ensure()?;
            cluster::up()?;
        }
        ClusterCommand::Down => cluster::down()?,
        ClusterCommand::Kubectl { arguments } => {
            let mut command = vec![OsString::from("kubectl")];
            command.extend(arguments);
            return cluster::Cluster::attach()?.run(&command);
        }
        ClusterCommand::Exec { command } => return cluster::Cluster::attach()?.run(&command),
        ClusterCommand::Init { state } => cluster::init(&state)?,
    }
    Ok(ExitCode::SUCCESS)
}
