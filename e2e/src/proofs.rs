//! `cargo xtask races|miri|fuzz`: proofs that need a compiler setting or a toolchain of their own.
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Result, places, program, progress};

const SEE_ABOVE: &str = "fix what is shown above";

/// Runs the tests of the store's concurrency under the schedules of a model checker.
pub fn races() -> Result<()> {
    let mut cargo = places::cargo();
    cargo.args(["test", "--locked", "--package", "metricsstore-storage", "--test", "races"]);
    // Everything is built with this setting: in a folder of its own, or each run would build the workspace anew.
    cargo.env("RUSTFLAGS", "--cfg shuttle").env("CARGO_TARGET_DIR", places::target().join("shuttle"));
    program::shown("a schedule", &mut cargo, "the failing schedule is printed above and can be replayed")
}

/// Whether the nightly toolchain and Miri are there; the project's own toolchain has none.
pub fn has_miri() -> bool {
    program::succeeds(Command::new("rustup").args(["run", "nightly", "cargo", "miri", "--version"]))
}

/// Runs the tests of the two crates that may be unsafe in the interpreter that finds undefined behaviour.
pub fn miri() -> Result<()> {
    if !has_miri() {
        let cure = "rustup toolchain install nightly --component miri,rust-src";
        return Err(Error::missing("the nightly toolchain with Miri is not installed", cure));
    }
    let mut cargo = Command::new("rustup");
    cargo.current_dir(places::workspace());
    cargo.args(["run", "nightly", "cargo", "miri", "test", "--locked", "--tests"]);
    cargo.args(["--package", "metricsstore-codec", "--package", "metricsstore-vfs"]);
    // Property tests ask for the working directory; each case takes a hundred times as long as it does natively.
    cargo.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "2");
    program::shown("a test under Miri", &mut cargo, SEE_ABOVE)
}

/// As [`miri`] where it is installed; elsewhere it says that it was left out.
pub fn miri_if_installed() -> Result<()> {
    if has_miri() {
        return miri();
    }
    progress::note("SKIPPED: the nightly toolchain with Miri is not installed here");
    Ok(())
}

/// The formats that are fuzzed, each a program.
const FUZZED: [&str; 9] =
    ["log", "segment", "manifest", "identity", "chunk", "import", "cold", "prometheus_index", "native"];

/// Instrumentation for the fuzzer's guidance, without sanitizers: the store has no `unsafe`, and so this needs no other
/// compiler.
const FUZZ_FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1";

/// Feeds each format with changed files for so many seconds, beginning with the golden ones.
pub fn fuzz(seconds: u32) -> Result<()> {
    let target = places::target().join("fuzz");
    // With a target named, build scripts and macros are left as they are.
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut cargo = places::cargo();
    cargo.args(["build", "--release", "--locked", "--target", &triple]);
    cargo.args(["--manifest-path", "engine/storage/fuzz/Cargo.toml"]);
    cargo.env("RUSTFLAGS", FUZZ_FLAGS).env("CARGO_TARGET_DIR", &target);
    progress::step("building the fuzz targets", || program::shown("cargo", &mut cargo, SEE_ABOVE))?;
    let programs = target.join(triple).join("release");
    for format in FUZZED {
        progress::step(&format!("fuzzing {format} files"), || fuzz_format(&programs, format, seconds))?;
    }
    Ok(())
}

fn fuzz_format(programs: &Path, format: &str, seconds: u32) -> Result<()> {
    let found = corpus(format)?;
    let mut command = Command::new(programs.join(format));
    command.arg(&found).arg(golden(format));
    command.arg(format!("-max_total_time={seconds}"));
    // A file may cost memory and time in proportion to its length, no more; what fails is kept in the corpus.
    command.args(["-rss_limit_mb=512", "-malloc_limit_mb=128", "-timeout=10", "-print_final_stats=1"]);
    command.arg(format!("-artifact_prefix={}/", found.display()));
    program::shown(
        format,
        &mut command,
        "the file that failed is named above; give it to the program to repeat it",
    )
}

/// What earlier runs found, kept between runs.
fn corpus(format: &str) -> Result<PathBuf> {
    let dir = places::cache()?.join("fuzz").join(format);
    places::create_dir(&dir)?;
    Ok(dir)
}

fn golden(format: &str) -> PathBuf {
    if format == "prometheus_index" {
        return places::in_workspace("engine/storage/tests/data/prometheus/index_format_v1");
    }
    let below = match format {
        "log" => "wal",
        "segment" => "segments",
        "identity" => "identity",
        "cold" => return places::in_workspace("engine/codec/tests/data"),
        _ => "",
    };
    places::in_workspace("engine/storage/tests/golden/v1").join(below)
}
