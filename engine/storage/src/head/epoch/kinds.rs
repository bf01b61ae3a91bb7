//! Native histograms and start timestamps of an epoch. Histograms are judged by the same last time as float samples:
//! order is a series' own, whatever the kind of its samples.
use metricsstore_model::Refusal;
use metricsstore_model::histogram::Histogram;

use super::{EpochData, Judgement, Known, Limits};
use crate::kinds::decode_histograms;

impl EpochData {
    /// Judges a valid histogram and takes it when it is in order.
    pub(crate) fn append_histogram(
        &mut self,
        local: u32,
        timestamp_ms: i64,
        histogram: &Histogram,
        limits: Limits,
    ) -> Judgement {
        if let Some(judgement) = limits.judge(timestamp_ms) {
            return judgement;
        }
        let last = self.lasts.get_mut(local);
        if last.known != Known::Nothing && timestamp_ms <= last.timestamp_ms {
            let is_last = timestamp_ms == last.timestamp_ms;
            let known = last.known;
            return match known {
                Known::Time => Judgement::Older { is_last },
                _ if !is_last => Judgement::Older { is_last },
                Known::Histogram if self.newest_histogram(local) == Some(histogram) => Judgement::Duplicate,
                _ => Judgement::Refused(Refusal::DuplicateTimestamp),
            };
        }
        (last.timestamp_ms, last.known) = (timestamp_ms, Known::Histogram);
        self.series += u32::from(!self.kinds.has_samples(local));
        self.kinds.push_histogram(local, timestamp_ms, histogram, false);
        self.count(timestamp_ms);
        Judgement::Written
    }

    /// Takes a histogram that is not in order, at a time that the series does not have.
    pub(crate) fn take_late_histogram(&mut self, local: u32, timestamp_ms: i64, histogram: &Histogram) {
        // One of a series without newer ones: what follows is judged by it.
        let last = self.lasts.get_mut(local);
        let is_newest = last.known == Known::Nothing || last.timestamp_ms < timestamp_ms;
        if is_newest {
            (last.timestamp_ms, last.known) = (timestamp_ms, Known::Histogram);
        }
        self.series += u32::from(!self.kinds.has_samples(local));
        self.kinds.push_histogram(local, timestamp_ms, histogram, !is_newest);
        self.count(timestamp_ms);
    }

    fn newest_histogram(&self, local: u32) -> Option<&Histogram> {
        self.kinds.histograms(local)?.newest()
    }

    /// The histogram of a series at this time.
    pub(crate) fn histogram_at(&self, local: u32, timestamp_ms: i64) -> Option<Histogram> {
        let mut found = None;
        let decoded = decode_histograms(self.kinds.histograms(local)?.payload(), |time, histogram| {
            if time == timestamp_ms && found.is_none() {
                found = Some(histogram);
            }
        });
        debug_assert!(decoded.is_ok());
        found
    }

    /// The time of the newest sample of a series, of earlier epochs too, as far as it is remembered.
    pub(crate) fn newest_ms_of(&self, local: u32) -> Option<i64> {
        self.lasts.get(local).filter(|last| last.known != Known::Nothing).map(|last| last.timestamp_ms)
    }
}
