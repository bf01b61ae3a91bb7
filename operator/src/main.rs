//! The binary `metricsstore-operator`.
#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use kube::Config;
use metricsstore_operator::context::{self, Context};
use metricsstore_operator::options::{Command, LogFormat, Options, RunOptions};
use metricsstore_operator::{controller, web};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    let Command::Run(options) = Options::parse().command;
    start_logging(options.log_format);
    match Box::pin(run(options)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn start_logging(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
}

async fn run(options: RunOptions) -> Result<(), String> {
    let no_access = |error: &dyn std::fmt::Display| {
        format!("no access to a cluster: {error}; run inside a pod or set KUBECONFIG")
    };
    let config = Config::infer().await.map_err(|error| no_access(&error))?;
    let client = context::connect(config).map_err(|error| no_access(&error))?;
    let address = options.listen_address;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| format!("cannot listen on {address}: {error}; choose another --listen-address"))?;
    let stop = stop_on_signal().map_err(|error| format!("signals cannot be handled: {error}"))?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), image = options.image, %address, "the operator starts");
    let ctx = Context::new(client, options);
    let pages = tokio::spawn(web::serve(listener, ctx.metrics.clone(), stop.clone().cancelled_owned()));
    Box::pin(controller::run(ctx, stop.clone())).await;
    let asked = stop.is_cancelled();
    stop.cancel();
    if let Ok(Err(error)) = pages.await {
        return Err(format!("the pages of {address} ended: {error}"));
    }
    tracing::info!("the operator has stopped");
    if asked { Ok(()) } else { Err("the controller ended without being asked to".into()) }
}

fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: reconciles under way are finished first");
        token.cancel();
    });
    Ok(stop)
}
