//! What every reconcile needs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::Client;

use crate::engines::Engines;
use crate::metrics::Metrics;
use crate::options::RunOptions;

/// First and longest pause after an error.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// Shared by all reconciles; cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The API server.
    pub client: Client,
    /// The command line.
    pub options: Arc<RunOptions>,
    /// What the operator says about itself.
    pub metrics: Arc<Metrics>,
    /// The engines in the pods.
    pub engines: Engines,
    /// Errors in a row, by store.
    failures: Arc<Mutex<HashMap<(String, String), u32>>>,
}

impl Context {
    /// A context without a history.
    pub fn new(client: Client, options: RunOptions) -> Context {
        Context {
            client,
            options: Arc::new(options),
            metrics: Arc::default(),
            engines: Engines::new(),
            failures: Arc::default(),
        }
    }

    /// Notes an error of a store and says how long to wait: doubled with each error in a row, up to five minutes.
    pub fn pause_after_error(&self, namespace: &str, name: &str) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry((namespace.to_owned(), name.to_owned())).or_default();
        *count = count.saturating_add(1);
        FIRST_PAUSE.saturating_mul(2_u32.saturating_pow((*count - 1).min(16))).min(LONGEST_PAUSE)
    }

    /// How many errors of a store there were in a row.
    pub fn failures_in_a_row(&self, namespace: &str, name: &str) -> u32 {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.get(&(namespace.to_owned(), name.to_owned())).copied().unwrap_or(0)
    }

    /// Forgets the errors of a store.
    pub fn succeeded(&self, namespace: &str, name: &str) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.remove(&(namespace.to_owned(), name.to_owned()));
    }
}
