//! The engine's own counters, and the page that shows them.
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::number::float_text;

/// Upper bounds of the request-duration histogram in seconds, as Prometheus'.
const BOUNDS: [f64; 9] = [0.1, 0.2, 0.4, 1.0, 3.0, 8.0, 20.0, 60.0, 120.0];

#[derive(Debug, Default, Clone)]
struct Durations {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum_seconds: f64,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// `n` more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of the server itself; the store keeps its own.
#[derive(Debug, Default)]
pub struct Metrics {
    http: Mutex<BTreeMap<(String, u16), u64>>,
    durations: Mutex<BTreeMap<String, Durations>>,
    /// Queries that run now.
    pub queries_running: AtomicU64,
    /// Queries that ended.
    pub queries: Counter,
    /// Time they took, in microseconds.
    pub query_micros: Counter,
    /// Samples that they read.
    pub query_samples: Counter,
    /// Queries refused for lack of memory or a slot.
    pub queries_refused: Counter,
    /// Remote-write requests that were answered 2xx.
    pub write_requests: Counter,
    /// Remote-write requests that could not be decoded.
    pub write_undecodable: Counter,
    /// Remote-write requests refused because something is full.
    pub write_busy: Counter,
    /// Remote-write requests that were not addressed to this pod.
    pub write_wrong_host: Counter,
    /// Changes of the level of memory pressure.
    pub pressure_changes: Counter,
    /// Reloads that failed.
    pub reload_failures: Counter,
}

impl Metrics {
    /// Counts an answered request.
    pub fn request(&self, handler: &str, status: u16, took: Duration) {
        *self.http.lock().entry((handler.to_owned(), status)).or_default() += 1;
        let seconds = took.as_secs_f64();
        let mut durations = self.durations.lock();
        let of = durations.entry(handler.to_owned()).or_default();
        of.count += 1;
        of.sum_seconds += seconds;
        for (bucket, bound) in of.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
    }

    /// Appends the requests' families.
    pub fn requests_page(&self, page: &mut Page) {
        page.family("prometheus_http_requests_total", "counter", "Counter of HTTP requests.");
        for ((handler, code), count) in &*self.http.lock() {
            let code = code.to_string();
            page.sample("", &[("code", &code), ("handler", handler)], *count as f64);
        }
        page.family("prometheus_http_request_duration_seconds", "histogram", "Latencies of HTTP requests.");
        for (handler, of) in &*self.durations.lock() {
            for (bound, count) in BOUNDS.iter().zip(of.buckets) {
                page.sample("_bucket", &[("handler", handler), ("le", &float_text(*bound))], count as f64);
            }
            page.sample("_bucket", &[("handler", handler), ("le", "+Inf")], of.count as f64);
            page.sample("_sum", &[("handler", handler)], of.sum_seconds);
            page.sample("_count", &[("handler", handler)], of.count as f64);
        }
    }
}

/// A page in Prometheus' text format 0.0.4.
#[derive(Debug, Default)]
pub struct Page {
    out: String,
    family: String,
}

impl Page {
    /// Starts a family.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        name.clone_into(&mut self.family);
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A sample of the family that was started last.
    pub fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        self.out.push_str(&self.family);
        self.out.push_str(suffix);
        if !labels.is_empty() {
            self.out.push('{');
            for (index, (name, text)) in labels.iter().enumerate() {
                if index > 0 {
                    self.out.push(',');
                }
                let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = write!(self.out, "{name}=\"{escaped}\"");
            }
            self.out.push('}');
        }
        self.out.push(' ');
        self.out.push_str(&float_text(value));
        self.out.push('\n');
    }

    /// A family of one sample without labels.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample("", &[], value);
    }

    /// A gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.single(name, "gauge", help, value);
    }

    /// A counter without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.single(name, "counter", help, value as f64);
    }

    /// The page.
    pub fn into_text(self) -> String {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::{Metrics, Page};
    use std::time::Duration;

    #[test]
    fn label_values_are_escaped_and_buckets_are_cumulative() {
        let metrics = Metrics::default();
        metrics.request("/a\"\\\n", 200, Duration::from_millis(300));
        let mut page = Page::default();
        metrics.requests_page(&mut page);
        let text = page.into_text();
        assert!(text.contains("prometheus_http_requests_total{code=\"200\",handler=\"/a\\\"\\\\\\n\"} 1\n"));
        assert!(text.contains("le=\"0.2\"} 0\n") && text.contains("le=\"0.4\"} 1\n"));
        assert!(text.contains("le=\"120\"} 1\n") && text.contains("_count{handler=\"/a\\\"\\\\\\n\"} 1\n"));
    }
}
