//! The engine's server: command line, configuration, HTTP API, and the wiring of all rooms into the binary
//! `metricsstore`.
#![forbid(unsafe_code)]

mod api;
mod app;
mod background;
mod block_json;
mod config;
mod features;
mod flags;
mod http;
mod log;
mod memory;
mod metrics;
mod number;
mod options;
mod reload;
mod retention;
mod runtime_file;
mod scraping;
mod serve;
mod suggest;
mod tsdb;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use config::load::InForce;
use flags::{FlagError, Invocation};

/// The whole program, from its arguments to its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match flags::parse(args) {
        Ok(Invocation::Serve(flags)) => serve::run(&flags),
        Ok(Invocation::CheckConfig(file)) => check_config(&file),
        Ok(Invocation::Tsdb(matches)) => tsdb::run(&matches),
        Err(FlagError::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(FlagError::Wrong(message)) => {
            serve::fail(&message);
            // What shells and promtool use for a wrong command line.
            ExitCode::from(2)
        }
    }
}

fn check_config(file: &str) -> ExitCode {
    let mut in_force = InForce::default();
    in_force.reload(Path::new(file));
    match in_force.error() {
        None => {
            println!("{file}: good, {} scrape jobs", in_force.jobs().len());
            ExitCode::SUCCESS
        }
        Some(error) => serve::fail(&error),
    }
}
