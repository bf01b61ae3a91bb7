//! The operator on the cluster, installed from its Helm chart as a user does it.
use std::time::Duration;

use crate::cluster::Cluster;
use crate::image::Image;
use crate::{Error, Result, places, program, progress, tools};

/// The namespace of the operator.
pub const NAMESPACE: &str = "metricsstore-system";
/// The release, its Deployment and its service account.
pub const NAME: &str = "metricsstore-operator";
/// The operator as the audit log names it.
pub const USER: &str = "system:serviceaccount:metricsstore-system:metricsstore-operator";
/// The chart in the checkout.
pub const CHART: &str = "charts/metricsstore-operator";

/// Installs the chart, or brings an installed release to it, and waits until the operator is ready.
///
/// The image must have been imported; another one under the same name restarts the operator.
pub fn install(cluster: &Cluster, image: &Image) -> Result<()> {
    let content = std::fs::read(&image.archive).map_err(Error::file("read", &image.archive))?;
    let content = xxhash_rust::xxh3::xxh3_64(&content);
    progress::step("install the operator's chart", || {
        let mut helm = cluster.command("helm")?;
        helm.args(["upgrade", "--install", NAME]).arg(places::in_workspace(CHART));
        helm.args(["--namespace", NAMESPACE, "--create-namespace"]);
        helm.arg("--set-string")
            .arg(format!("podAnnotations.metricsstore\\.dev/image-content={content:016x}"));
        program::quiet("helm upgrade --install", &mut helm, LOOK)?;
        let deployment = format!("deployment/{NAME}");
        cluster.kubectl().wait_for_rollout(NAMESPACE, &deployment, Duration::from_mins(2))
    })
}

/// `helm lint`, strictly.
pub fn lint_chart() -> Result<()> {
    let mut helm = std::process::Command::new(tools::HELM.program("helm")?);
    helm.args(["lint", "--strict"]).arg(places::in_workspace(CHART));
    program::quiet("helm lint", &mut helm, "fix what it names in the chart").map(drop)
}

const LOOK: &str = "look at `cargo xtask cluster kubectl --namespace metricsstore-system get pods,events`";
