//! Counters of all scrapes.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metricsstore_model::Refusal;

/// What has happened since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrapeStats {
    /// Scrapes that were written whole.
    pub scrapes_succeeded: u64,
    /// Scrapes that failed.
    pub scrapes_failed: u64,
    /// Scrapes that did not take place because memory is short.
    pub scrapes_skipped: u64,
    /// Scrapes whose samples the store did not take.
    pub appends_failed: u64,
    /// Samples written, reports and stale markers included.
    pub samples_written: u64,
    /// Samples refused as out of order.
    pub refused_out_of_order: u64,
    /// Samples refused for another value at their timestamp.
    pub refused_duplicate: u64,
    /// Samples refused as too old or too far in the future.
    pub refused_out_of_bounds: u64,
    /// Series refused because memory is short.
    pub refused_series_budget: u64,
    /// Series refused for their labels.
    pub refused_labels: u64,
}

/// The counters behind [`ScrapeStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) appends_failed: AtomicU64,
    written: AtomicU64,
    out_of_order: AtomicU64,
    duplicate: AtomicU64,
    out_of_bounds: AtomicU64,
    series_budget: AtomicU64,
    labels: AtomicU64,
}

impl Counters {
    pub(crate) fn count_refusal(&self, refusal: &Refusal) {
        let counter = match refusal {
            Refusal::OutOfOrder => &self.out_of_order,
            Refusal::DuplicateTimestamp => &self.duplicate,
            Refusal::OutOfBounds | Refusal::TooOld | Refusal::TooFarInFuture => &self.out_of_bounds,
            Refusal::Labels(_) => &self.labels,
            Refusal::SeriesBudget => &self.series_budget,
            // Pages hold float samples only.
            Refusal::Histogram(_) | Refusal::ExemplarOutOfOrder | Refusal::ExemplarLabels => return,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_written(&self, samples: u32) {
        self.written.fetch_add(samples.into(), Relaxed);
    }

    pub(crate) fn snapshot(&self) -> ScrapeStats {
        ScrapeStats {
            scrapes_succeeded: self.succeeded.load(Relaxed),
            scrapes_failed: self.failed.load(Relaxed),
            scrapes_skipped: self.skipped.load(Relaxed),
            appends_failed: self.appends_failed.load(Relaxed),
            samples_written: self.written.load(Relaxed),
            refused_out_of_order: self.out_of_order.load(Relaxed),
            refused_duplicate: self.duplicate.load(Relaxed),
            refused_out_of_bounds: self.out_of_bounds.load(Relaxed),
            refused_series_budget: self.series_budget.load(Relaxed),
            refused_labels: self.labels.load(Relaxed),
        }
    }
}
