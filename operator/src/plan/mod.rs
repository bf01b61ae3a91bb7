//! Decisions, one file each: functions of what was observed, without a client and without a clock.

pub mod canonical;
pub mod children;
pub mod diff;
pub mod names;
pub mod rollout;
pub mod settle;
pub mod sizing;
pub mod status;
pub mod storage;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use metricsstore_contract::content_hash;

pub use children::{Children, RenderError};
pub use storage::Storage;

use crate::reconcile::{Seen, Valid};

/// What should be, and why where it is not what the spec says.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The complete set of child objects.
    pub children: Children,
    /// What the volumes come to.
    pub storage: Storage,
    /// Hash of everything that is mounted into the pods.
    pub config_hash: String,
}

/// Plans for a valid store. `fresh_token` is used only where no operations token exists yet.
pub fn plan(valid: &Valid, seen: &Seen, fresh_token: &str) -> Result<Plan, RenderError> {
    let storage = storage::plan(valid, seen.existing.statefulset.as_ref(), &seen.claims);
    let children = children::render(valid, seen, &storage, fresh_token)?;
    let config_hash = config_hash(&children.config_map, &children.scrape);
    Ok(Plan { children, storage, config_hash })
}

fn config_hash(runtime: &ConfigMap, scrape: &Secret) -> String {
    let runtime = runtime.data.iter().flatten().map(|(file, text)| (file, text.as_bytes()));
    let scrape = scrape.data.iter().flatten().map(|(file, bytes)| (file, bytes.0.as_slice()));
    let hashes: Vec<String> =
        runtime.chain(scrape).map(|(file, bytes)| format!("{file}={}", content_hash(bytes))).collect();
    content_hash(hashes.join("\n").as_bytes())
}
