//! The binary `metricsstore`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Gives memory back and says how much it holds, which the budget relies on.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    metricsstore_server::main(std::env::args_os())
}
