//! Prints the CRD's YAML.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let printed = metricsstore_crds::crd_yaml()
        .map_err(std::io::Error::other)
        .and_then(|yaml| std::io::stdout().write_all(yaml.as_bytes()));
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the CRD cannot be printed: {error}");
            ExitCode::FAILURE
        }
    }
}
