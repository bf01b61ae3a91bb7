//! The child objects of a store, one file per object. Each is rendered completely: what a child does not say, it does not
//! own.

mod config_map;
mod secrets;
mod service_account;
mod services;
mod statefulset;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceAccount};

use super::storage::Storage;
use crate::reconcile::{Seen, Valid};

pub use secrets::piece_file;
pub use statefulset::{desired_resources, plan_hash};

/// The complete set. Whoever applies it takes it apart without `..`, so a kind that is forgotten does not compile.
#[derive(Debug, Clone)]
pub struct Children {
    /// Who the pods are.
    pub service_account: ServiceAccount,
    /// The token of the operations listener.
    pub ops: Secret,
    /// The rendered scrape configuration.
    pub scrape: Secret,
    /// `engine.yaml`.
    pub config_map: ConfigMap,
    /// For reading: ready pods only.
    pub web: Service,
    /// Headless: a name per pod, ready or not.
    pub pods: Service,
    /// The pods and their claims.
    pub statefulset: StatefulSet,
}

/// What could not be rendered.
#[derive(Debug, thiserror::Error)]
#[error("{what} cannot be rendered: {source}")]
pub struct RenderError {
    /// Which document.
    pub what: &'static str,
    /// Why.
    #[source]
    pub source: serde_yaml_ng::Error,
}

/// Renders every child. `fresh_token` is used only where no token exists yet.
pub fn render(
    valid: &Valid,
    seen: &Seen,
    storage: &Storage,
    fresh_token: &str,
) -> Result<Children, RenderError> {
    let config_map = config_map::render(valid, storage)?;
    let scrape = secrets::scrape(valid, seen)?;
    Ok(Children {
        service_account: service_account::render(valid),
        ops: secrets::ops(valid, seen, fresh_token),
        scrape,
        config_map,
        web: services::web(valid),
        pods: services::pods(valid),
        statefulset: statefulset::render(valid, storage, seen.existing.statefulset.as_ref()),
    })
}
