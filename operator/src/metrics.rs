//! What the operator says about itself, in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Counters and gauges.
#[derive(Default)]
pub struct Metrics {
    reconciles: AtomicU64,
    reconcile_micros: AtomicU64,
    stores: AtomicU64,
    synced: AtomicBool,
    errors: Mutex<BTreeMap<&'static str, u64>>,
    writes: Mutex<BTreeMap<String, u64>>,
}

fn count<K: Ord>(counters: &Mutex<BTreeMap<K, u64>>, key: K) {
    *counters.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
}

impl Metrics {
    /// A reconcile ended after so long; `error` is the label of what went wrong.
    pub fn reconciled(&self, took: Duration, error: Option<&'static str>) {
        self.reconciles.fetch_add(1, Relaxed);
        self.reconcile_micros.fetch_add(took.as_micros().try_into().unwrap_or(u64::MAX), Relaxed);
        if let Some(error) = error {
            count(&self.errors, error);
        }
    }

    /// A write request is sent about an object of this kind.
    pub fn wrote(&self, kind: &str) {
        count(&self.writes, kind.to_owned());
    }

    /// How many stores there are.
    pub fn stores(&self, stores: usize) {
        self.stores.store(stores as u64, Relaxed);
    }

    /// The first list of stores has arrived.
    pub fn set_synced(&self) {
        self.synced.store(true, Relaxed);
    }

    /// Whether the first list of stores has arrived.
    pub fn is_synced(&self) -> bool {
        self.synced.load(Relaxed)
    }

    /// The page of `/metrics`.
    pub fn render(&self) -> String {
        let mut page = String::new();
        let seconds = self.reconcile_micros.load(Relaxed) as f64 / 1e6;
        let plain = [
            (
                "metricsstore_operator_reconciles_total",
                "counter",
                "Reconciles that ended.",
                self.reconciles.load(Relaxed) as f64,
            ),
            ("metricsstore_operator_reconcile_seconds_total", "counter", "Time spent reconciling.", seconds),
            ("metricsstore_operator_stores", "gauge", "Stores that exist.", self.stores.load(Relaxed) as f64),
        ];
        for (name, kind, help, value) in plain {
            // Writing to a String cannot fail.
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        labelled(
            &mut page,
            "metricsstore_operator_reconcile_errors_total",
            "Reconciles that failed.",
            "error",
            &errors,
        );
        let writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        labelled(&mut page, "metricsstore_operator_writes_total", "Write requests sent.", "kind", &writes);
        page
    }
}

fn labelled<K: Ord + AsRef<str>>(
    page: &mut String,
    name: &str,
    help: &str,
    label: &str,
    values: &BTreeMap<K, u64>,
) {
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} counter");
    for (key, value) in values {
        let _ = writeln!(page, "{name}{{{label}=\"{}\"}} {value}", key.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_writes_are_labelled() {
        let metrics = Metrics::default();
        metrics.reconciled(Duration::from_millis(1500), Some("read"));
        metrics.wrote("Service");
        metrics.wrote("Service");
        let page = metrics.render();
        for line in [
            "metricsstore_operator_reconciles_total 1",
            "metricsstore_operator_reconcile_seconds_total 1.5",
            "metricsstore_operator_reconcile_errors_total{error=\"read\"} 1",
            "metricsstore_operator_writes_total{kind=\"Service\"} 2",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in {page}");
        }
    }
}
