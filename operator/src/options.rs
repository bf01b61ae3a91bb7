//! The command line.

use std::net::SocketAddr;

use clap::{Args, Parser, Subcommand};

/// Turns `MetricsStores` into running, Prometheus-compatible time series stores.
#[derive(Debug, Parser)]
#[command(name = "metricsstore-operator", version, max_term_width = 110)]
pub struct Options {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the controller until SIGTERM.
    ///
    /// It watches `MetricsStores` and makes for each a `StatefulSet` with the bundled engine, its Services, configuration
    /// and secrets. Inside a pod it uses the pod's service account, elsewhere your kubeconfig. Run one at a time.
    ///
    /// Look around:
    ///   kubectl get mstore --all-namespaces     what each store is doing, and why
    ///   kubectl describe mstore NAME            its conditions and events, with the cure
    #[command(verbatim_doc_comment)]
    Run(RunOptions),
}

/// Flags of `run`; each can be set by its environment variable.
#[derive(Debug, Clone, Args)]
pub struct RunOptions {
    /// Image of the engine for stores that name none; normally the operator's own, as one image holds both.
    #[arg(long, env = "METRICSSTORE_IMAGE", value_name = "IMAGE")]
    pub image: String,

    /// Look only at stores in this namespace. By default at all namespaces, which needs a cluster-wide role.
    #[arg(long, env = "METRICSSTORE_NAMESPACE", value_name = "NAMESPACE")]
    pub namespace: Option<String>,

    /// Where /metrics, /healthz and /readyz are served.
    #[arg(long, env = "METRICSSTORE_LISTEN_ADDRESS", default_value = "0.0.0.0:8080", value_name = "ADDRESS")]
    pub listen_address: SocketAddr,

    /// How many stores are worked on at once.
    #[arg(long, env = "METRICSSTORE_CONCURRENCY", default_value_t = 8, value_name = "STORES",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,

    /// How logs are written.
    #[arg(long, env = "METRICSSTORE_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
}

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object per line.
    Json,
}
