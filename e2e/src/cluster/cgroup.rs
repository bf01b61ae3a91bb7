//! The live cgroups of pods, from inside the cluster: what they may use and what they use.
use std::path::PathBuf;

use serde_json::Value;

use super::addresses::CGROUP_PREFIX;
use crate::{Error, Result};

/// Parent of all pods' cgroups, below every hierarchy's root: another one for each place of the cluster's state.
pub fn parent() -> Result<String> {
    let state = super::state()?;
    let hash = xxhash_rust::xxh3::xxh3_64(state.as_os_str().as_encoded_bytes());
    Ok(format!("{CGROUP_PREFIX}{:08x}", hash >> 32))
}

/// The folder of a running container in a hierarchy (`memory`, `cpu`; on cgroup v2 the one there is).
pub fn of_container(pod: &Value, container: &str, controller: &str) -> Result<PathBuf> {
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let statuses = pod["status"]["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let id = statuses
        .iter()
        .find(|status| status["name"] == container)
        .and_then(|status| status["containerID"].as_str())
        .and_then(|id| id.rsplit_once("//"))
        .map(|(_, id)| id)
        .ok_or_else(|| {
            Error::missing(format!("container {container} does not run"), "wait until the pod is Running")
        })?;
    let quality = match pod["status"]["qosClass"].as_str() {
        Some("Burstable") => "burstable/",
        Some("BestEffort") => "besteffort/",
        _ => "",
    };
    let below = format!("{}/kubepods/{quality}pod{uid}/{id}", parent()?);
    [PathBuf::from("/sys/fs/cgroup").join(controller), PathBuf::from("/sys/fs/cgroup")]
        .into_iter()
        .map(|root| root.join(&below))
        .find(|path| path.is_dir())
        .ok_or_else(|| {
            Error::missing(format!("there is no cgroup {below}"), "run inside `cargo xtask cluster exec`")
        })
}
