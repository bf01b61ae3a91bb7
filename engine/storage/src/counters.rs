//! Counts since the start.

use metricsstore_model::{Refusal, Verdicts};

use crate::RefusedCounts;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) samples_appended: AtomicU64,
    pub(crate) late_samples: AtomicU64,
    pub(crate) series_created: AtomicU64,
    pub(crate) series_removed: AtomicU64,
    pub(crate) seals: AtomicU64,
    /// Blocks that were cut.
    pub(crate) cuts: AtomicU64,
    pub(crate) merges: AtomicU64,
    pub(crate) compactions: AtomicU64,
    pub(crate) compactions_failed: AtomicU64,
    pub(crate) series_left_out: AtomicU64,
    pub(crate) quarantined: AtomicU64,
    pub(crate) busy_requests: AtomicU64,
    pub(crate) log_failures: AtomicU64,
    pub(crate) disk_bytes: AtomicU64,
    /// Those of them that only snapshots hold.
    pub(crate) snapshot_bytes: AtomicU64,
    /// Whether the process before this one was killed.
    pub(crate) unclean_start: AtomicBool,
    out_of_order: AtomicU64,
    duplicate_timestamp: AtomicU64,
    out_of_bounds: AtomicU64,
    too_old: AtomicU64,
    too_far_in_future: AtomicU64,
    labels: AtomicU64,
    series_budget: AtomicU64,
    histogram: AtomicU64,
    exemplar: AtomicU64,
}

impl Counters {
    pub(crate) fn count_verdicts(&self, verdicts: &Verdicts) {
        if verdicts.series_created > 0 {
            self.series_created.fetch_add(u64::from(verdicts.series_created), Relaxed);
        }
        let extras = verdicts.histograms.refused.iter().chain(&verdicts.exemplars.refused);
        for refused in verdicts.refused.iter().chain(extras) {
            let counter = match refused.refusal {
                Refusal::OutOfOrder => &self.out_of_order,
                Refusal::DuplicateTimestamp => &self.duplicate_timestamp,
                Refusal::OutOfBounds => &self.out_of_bounds,
                Refusal::TooOld => &self.too_old,
                Refusal::TooFarInFuture => &self.too_far_in_future,
                Refusal::Labels(_) => &self.labels,
                Refusal::SeriesBudget => &self.series_budget,
                Refusal::Histogram(_) => &self.histogram,
                Refusal::ExemplarOutOfOrder | Refusal::ExemplarLabels => &self.exemplar,
            };
            counter.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn refused(&self) -> RefusedCounts {
        RefusedCounts {
            out_of_order: self.out_of_order.load(Relaxed),
            duplicate_timestamp: self.duplicate_timestamp.load(Relaxed),
            out_of_bounds: self.out_of_bounds.load(Relaxed),
            too_old: self.too_old.load(Relaxed),
            too_far_in_future: self.too_far_in_future.load(Relaxed),
            labels: self.labels.load(Relaxed),
            series_budget: self.series_budget.load(Relaxed),
            histogram: self.histogram.load(Relaxed),
            exemplar: self.exemplar.load(Relaxed),
            busy_requests: self.busy_requests.load(Relaxed),
            log_failures: self.log_failures.load(Relaxed),
        }
    }
}
