//! `cargo xtask test`: every check and test, in the order of continuous integration.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::cluster::{self, Cluster};
use crate::{Result, crds, image, packages, places, program, progress, proofs, release, tools};

/// Licences and bans are judged by this release.
const CARGO_DENY: &str = "0.20.2";

/// What one names when cargo has said what is wrong.
const SEE_ABOVE: &str = "fix what is shown above";

/// Runs everything; the first failure ends it, and the cluster is taken down in any case.
pub fn run() -> Result<()> {
    let start = Instant::now();
    progress::step("Debian packages", packages::ensure)?;
    packages::require_root("the test cluster")?;
    let _down = cluster::DownAtEnd::armed()?;
    progress::step("format", || cargo("cargo fmt", &["fmt", "--all", "--check"], "cargo fmt --all"))?;
    progress::step("clippy", || cargo("clippy", &CLIPPY, SEE_ABOVE))?;
    progress::step("licences and bans", check_licences)?;
    progress::step("CRDs", crds::check)?;
    progress::step("chart", release::lint_chart)?;
    progress::step("unit and model tests", || {
        cargo("the tests", &["test", "--workspace", "--locked", "--no-fail-fast"], SEE_ABOVE)
    })?;
    progress::step("schedules of the store's threads", proofs::races)?;
    // Cluster tests compare with it.
    tools::PROMETHEUS.ensure()?;
    let image = image::build()?;
    progress::step("engine tests", || run_engine_tests(&image.engine))?;
    let cluster = cluster::up()?;
    cluster.import(&image.archive)?;
    release::install(&cluster, &image)?;
    let engine = image.engine.clone();
    progress::step("cluster tests", || run_cluster_tests(&cluster, &engine))?;
    println!("==> all passed in {}", progress::seconds(start.elapsed()));
    Ok(())
}

const CLIPPY: [&str; 10] = [
    "clippy",
    "--workspace",
    "--all-targets",
    "--locked",
    "--features",
    "metricsstore-e2e/cluster,metricsstore-e2e/engine",
    "--quiet",
    "--",
    "-D",
    "warnings",
];

/// One after the other: each wants the machine for itself. `--nocapture` shows what was measured.
fn run_engine_tests(engine: &Path) -> Result<()> {
    let mut command = places::cargo();
    command.args(["test", "--locked", "--package", "metricsstore-e2e", "--features", "engine"]);
    command.args(["--test", "engine", "--", "--test-threads=1", "--nocapture"]);
    command.env("METRICSSTORE_ENGINE", engine);
    program::shown("the engine tests", &mut command, SEE_ABOVE)
}

/// The test binary runs inside the cluster's namespaces, where pods, services and cgroups are within reach.
fn run_cluster_tests(cluster: &Cluster, engine: &Path) -> Result<()> {
    let runner = serde_json::json!([cluster.own_program()?, "cluster", "exec", "--"]);
    let runner = format!("target.{}-unknown-linux-gnu.runner={runner}", std::env::consts::ARCH);
    let mut command = places::cargo();
    command.args(["--config", &runner, "test", "--locked", "--package", "metricsstore-e2e"]);
    command.args(["--features", "cluster", "--test", "cluster"]);
    command.env("METRICSSTORE_ENGINE", engine);
    command.env("METRICSSTORE_PROMETHEUS", tools::PROMETHEUS.program("prometheus")?);
    let result = program::shown("the cluster tests", &mut command, SEE_ABOVE);
    if result.is_err() {
        show_state(cluster);
    }
    result
}

/// What one would look at first.
fn show_state(cluster: &Cluster) {
    for arguments in [
        &["get", "metricsstores,pods,persistentvolumeclaims", "--all-namespaces", "--output=wide"][..],
        &["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"],
        &["logs", "--namespace", release::NAMESPACE, "deployment/metricsstore-operator", "--tail=40"],
    ] {
        println!("$ kubectl {}", arguments.join(" "));
        match cluster.kubectl().text(arguments) {
            Ok(text) => println!("{}", program::tail(&text, 60)),
            Err(error) => println!("{error}"),
        }
    }
}

fn check_licences() -> Result<()> {
    let mut command = Command::new(cargo_deny()?);
    command.current_dir(places::workspace()).args(["--locked", "check", "--hide-inclusion-graph"]);
    command.args(["licenses", "bans", "sources"]);
    program::shown("cargo deny", &mut command, "fix what is shown above, or argue for it in deny.toml")
}

/// The pinned cargo-deny, built into the cache at the first call.
fn cargo_deny() -> Result<PathBuf> {
    let root = places::cache()?.join("bin").join(format!("cargo-deny-{CARGO_DENY}"));
    let program = root.join("bin/cargo-deny");
    if !program.exists() {
        let mut install = places::cargo();
        install.args(["install", "cargo-deny", "--locked", "--version", CARGO_DENY, "--root"]).arg(&root);
        // Its dependencies are nobody else's: a folder that goes away with the build.
        install.env_remove("CARGO_TARGET_DIR");
        program::shown("building cargo-deny", &mut install, "crates.io must be reachable")?;
    }
    Ok(program)
}

fn cargo(what: &str, arguments: &[&str], cure: &str) -> Result<()> {
    program::shown(what, places::cargo().args(arguments), cure)
}
