//! `cargo xtask bench`: builds the engines as they are shipped and hands them to the measuring program.
use std::ffi::OsString;

use crate::{Result, image, packages, places, program, progress, tools};

/// Measures ingestion of our engine beside Prometheus and VictoriaMetrics; `arguments` are those of the measuring program.
pub fn ingest(arguments: &[OsString]) -> Result<()> {
    measure("ingest", arguments)
}

/// Measures what the same engines keep on disk of a day of data.
pub fn disk(arguments: &[OsString]) -> Result<()> {
    measure("disk", arguments)
}

fn measure(what: &str, arguments: &[OsString]) -> Result<()> {
    progress::step("Debian packages", packages::ensure)?;
    packages::require_root("the bench's control group")?;
    let ours = image::binaries()?.join("metricsstore");
    let prometheus = tools::PROMETHEUS.program("prometheus")?;
    let victoriametrics = tools::VICTORIA_METRICS.program("victoria-metrics")?;
    let mut bench = places::cargo();
    // Optimised, so that the load generator costs little beside what it measures.
    bench.args([
        "run",
        "--release",
        "--quiet",
        "--locked",
        "--package",
        "metricsstore-e2e",
        "--bin",
        "bench",
        "--",
    ]);
    bench.arg(what).arg("--metricsstore").arg(ours).arg("--prometheus").arg(prometheus);
    bench.arg("--victoriametrics").arg(victoriametrics).args(arguments);
    program::shown("the bench", &mut bench, "see above; the engines' logs are kept where it says")
}
