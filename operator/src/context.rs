//! What every reconcile needs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::{Client, Config};

use crate::engines::Engines;
use crate::metrics::Metrics;
use crate::options::RunOptions;

/// First and longest pause after an error.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// A client that hands every answer on at once. kube's own retries would sit out a 429 for minutes: an eviction that a
/// disruption budget forbids would hold up its store without a word. Each reconcile is tried again anyway.
pub fn connect(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    Client::try_from(config)
}

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

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::StatusCode;
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::api::EvictParams;

    use super::*;

    #[tokio::test]
    async fn an_eviction_that_is_forbidden_for_now_is_told_at_once() {
        let refuse = || async {
            let status =
                r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"budget","code":429}"#;
            (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "10")], status)
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(refuse)).await });
        let pods: Api<Pod> = Api::namespaced(connect(Config::new(address)).unwrap(), "a");
        let params = EvictParams::default();
        let answer = tokio::time::timeout(Duration::from_secs(5), pods.evict("main-0", &params)).await;
        assert!(matches!(answer.unwrap(), Err(kube::Error::Api(status)) if status.code == 429));
    }
}
