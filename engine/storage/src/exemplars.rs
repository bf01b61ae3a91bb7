//! Exemplars: one circular buffer for all series, bounded in number and bytes. It lives in memory and is filled again by
//! replay.
use std::collections::VecDeque;
use std::ops::DerefMut;
use std::sync::Arc;

use hashbrown::HashMap;
use metricsstore_model::{LabelBuf, MAX_EXEMPLAR_CHARS, Matcher, Refusal};

use crate::sync::Mutex;
use crate::wal::exemplar_record::LogExemplar;

/// Exemplars of one series, ascending by time.
#[derive(Debug, Clone, PartialEq)]
pub struct SeriesExemplars {
    /// The series' labels, sorted.
    pub series: LabelBuf,
    /// Its exemplars.
    pub exemplars: Vec<StoredExemplar>,
}

/// An exemplar as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredExemplar {
    /// Its own labels, sorted.
    pub labels: LabelBuf,
    /// Milliseconds since the Unix epoch.
    pub timestamp_ms: i64,
    /// Any f64.
    pub value: f64,
}

/// What became of an exemplar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taken {
    Written,
    /// The series' newest exemplar is the same.
    Duplicate,
    Refused(Refusal),
}

/// The circular buffer.
#[derive(Default)]
pub(crate) struct Exemplars {
    ring: Mutex<Ring>,
}

#[derive(Default)]
pub(crate) struct Ring {
    /// Exemplars that are kept at most; 0 keeps none.
    capacity: usize,
    /// In the order in which they came.
    all: VecDeque<LogExemplar>,
    /// The newest exemplar of each series that has one, and how many it has.
    series: HashMap<Arc<LabelBuf>, Newest>,
    label_bytes: u64,
}

struct Newest {
    timestamp_ms: i64,
    value: f64,
    labels: LabelBuf,
    count: usize,
}

impl Exemplars {
    pub(crate) fn new(capacity: usize) -> Exemplars {
        Exemplars { ring: Mutex::new(Ring { capacity, ..Ring::default() }) }
    }

    /// Whether any are kept.
    pub(crate) fn is_enabled(&self) -> bool {
        self.lock().is_enabled()
    }

    /// The buffer, for who pushes several.
    pub(crate) fn lock(&self) -> impl DerefMut<Target = Ring> {
        self.ring.lock()
    }

    /// Changes how many are kept; the newest stay.
    pub(crate) fn resize(&self, capacity: usize) {
        let mut ring = self.ring.lock();
        ring.capacity = capacity;
        while ring.all.len() > capacity {
            ring.drop_oldest();
        }
        ring.all.shrink_to(capacity);
    }

    /// All of them in the order in which they came.
    pub(crate) fn all(&self) -> Vec<LogExemplar> {
        self.ring.lock().all.iter().cloned().collect()
    }

    /// Exemplars in a time range, ends inclusive, of the series that pass one of the matcher lists, in the order of the
    /// series' labels.
    pub(crate) fn select(&self, any_of: &[Vec<Matcher>], start_ms: i64, end_ms: i64) -> Vec<SeriesExemplars> {
        let ring = self.ring.lock();
        let mut found: HashMap<&Arc<LabelBuf>, Vec<StoredExemplar>> = HashMap::new();
        for series in ring.series.keys().filter(|series| passes(any_of, series)) {
            found.insert(series, Vec::new());
        }
        for exemplar in ring.all.iter().filter(|e| (start_ms..=end_ms).contains(&e.timestamp_ms)) {
            if let Some(exemplars) = found.get_mut(&exemplar.series) {
                exemplars.push(StoredExemplar {
                    labels: exemplar.labels.clone(),
                    timestamp_ms: exemplar.timestamp_ms,
                    value: exemplar.value,
                });
            }
        }
        let mut all: Vec<SeriesExemplars> = found
            .into_iter()
            .filter(|(_, exemplars)| !exemplars.is_empty())
            .map(|(series, exemplars)| SeriesExemplars { series: LabelBuf::clone(series), exemplars })
            .collect();
        drop(ring);
        all.sort_by(|a, b| a.series.cmp(&b.series));
        all
    }

    /// Bytes of memory held, about.
    pub(crate) fn bytes(&self) -> u64 {
        let ring = self.ring.lock();
        let spare = ring.all.capacity() - ring.all.len();
        ring.bytes_kept() + (spare * size_of::<LogExemplar>()) as u64
    }
}

impl Ring {
    pub(crate) fn is_enabled(&self) -> bool {
        self.capacity > 0
    }

    /// Judges an exemplar and takes it; the oldest go until all that are kept fit into `room_bytes`.
    pub(crate) fn push(&mut self, exemplar: &LogExemplar, room_bytes: u64) -> Taken {
        let chars = |text: &str| text.chars().count();
        let length: usize = exemplar.labels.iter().map(|(name, value)| chars(name) + chars(value)).sum();
        if length > MAX_EXEMPLAR_CHARS {
            return Taken::Refused(Refusal::ExemplarLabels);
        }
        if let Some(newest) = self.series.get(&exemplar.series) {
            let is_older = exemplar.timestamp_ms < newest.timestamp_ms
                || (exemplar.timestamp_ms == newest.timestamp_ms && exemplar.value < newest.value);
            if exemplar.timestamp_ms == newest.timestamp_ms
                && exemplar.value.to_bits() == newest.value.to_bits()
                && exemplar.labels == newest.labels
            {
                return Taken::Duplicate;
            }
            if is_older {
                return Taken::Refused(Refusal::ExemplarOutOfOrder);
            }
        }
        if self.all.len() >= self.capacity {
            // One of a series that rarely has any must not drive out fresher ones (prometheus/prometheus#13577).
            let evicted = self.all.front().is_none_or(|oldest| exemplar.timestamp_ms < oldest.timestamp_ms);
            if evicted {
                return Taken::Refused(Refusal::ExemplarOutOfOrder);
            }
            self.drop_oldest();
        }
        self.take(exemplar);
        while self.bytes_kept() > room_bytes && !self.all.is_empty() {
            self.drop_oldest();
        }
        Taken::Written
    }

    /// Bytes of what is kept, without the room that the buffer has for more.
    fn bytes_kept(&self) -> u64 {
        let series = self.series.len() * (size_of::<Newest>() + 2 * size_of::<LabelBuf>());
        (self.all.len() * size_of::<LogExemplar>() + series) as u64 + self.label_bytes
    }

    fn take(&mut self, exemplar: &LogExemplar) {
        let known = self.series.get_key_value(&exemplar.series).map(|(series, _)| Arc::clone(series));
        let series = known.unwrap_or_else(|| {
            self.label_bytes += bytes_of(&exemplar.series);
            Arc::clone(&exemplar.series)
        });
        let count = self.series.get(&series).map_or(0, |newest| newest.count) + 1;
        let newest = Newest {
            timestamp_ms: exemplar.timestamp_ms,
            value: exemplar.value,
            labels: exemplar.labels.clone(),
            count,
        };
        self.series.insert(Arc::clone(&series), newest);
        self.label_bytes += bytes_of(&exemplar.labels);
        self.all.push_back(LogExemplar { series, ..exemplar.clone() });
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.all.pop_front() else { return };
        self.label_bytes -= bytes_of(&oldest.labels);
        if let Some(newest) = self.series.get_mut(&oldest.series) {
            newest.count -= 1;
            if newest.count == 0 {
                self.label_bytes -= bytes_of(&oldest.series);
                self.series.remove(&oldest.series);
            }
        }
    }
}

fn bytes_of(labels: &LabelBuf) -> u64 {
    labels.iter().map(|(name, value)| (name.len() + value.len() + 12) as u64).sum()
}

fn passes(any_of: &[Vec<Matcher>], series: &LabelBuf) -> bool {
    any_of
        .iter()
        .any(|all| all.iter().all(|matcher| matcher.matches(series.get(&matcher.name).unwrap_or(""))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exemplar(series: &str, timestamp_ms: i64, value: f64) -> LogExemplar {
        LogExemplar {
            series: Arc::new(LabelBuf::from_pairs([("__name__", series)])),
            labels: LabelBuf::from_pairs([("trace_id", "t")]),
            timestamp_ms,
            value,
        }
    }

    #[test]
    fn the_oldest_goes_when_the_buffer_is_full() {
        let exemplars = Exemplars::new(2);
        for time in 1..=3 {
            assert_eq!(exemplars.lock().push(&exemplar("a", time, 0.5), u64::MAX), Taken::Written);
        }
        let found = exemplars.select(&[vec![]], i64::MIN, i64::MAX);
        let times: Vec<i64> = found[0].exemplars.iter().map(|e| e.timestamp_ms).collect();
        assert_eq!((found.len(), times), (1, vec![2, 3]));
        assert_eq!(exemplars.select(&[vec![]], 3, 3)[0].exemplars.len(), 1);
    }

    #[test]
    fn the_oldest_go_when_the_bytes_are_spent() {
        let exemplars = Exemplars::new(100_000);
        let room_bytes = 10_000;
        for (series, time) in (0..1_000).zip(1..) {
            let taken = exemplars.lock().push(&exemplar(&format!("series_{series}"), time, 0.5), room_bytes);
            assert_eq!(taken, Taken::Written);
            assert!(exemplars.lock().bytes_kept() <= room_bytes);
        }
        let found = exemplars.select(&[vec![]], 1_000, 1_000);
        assert_eq!(found.len(), 1, "the newest stays");
        assert!(exemplars.all().len() > 10);
    }

    #[test]
    fn order_is_judged_by_series_and_the_same_again_is_silent() {
        // prometheus/prometheus#13577: two series, of which one is behind, are both in order.
        let exemplars = Exemplars::new(10);
        assert_eq!(exemplars.lock().push(&exemplar("a", 100, 0.5), u64::MAX), Taken::Written);
        assert_eq!(exemplars.lock().push(&exemplar("b", 50, 0.5), u64::MAX), Taken::Written);
        assert_eq!(exemplars.lock().push(&exemplar("a", 100, 0.5), u64::MAX), Taken::Duplicate);
        assert_eq!(exemplars.lock().push(&exemplar("a", 100, 0.75), u64::MAX), Taken::Written);
        let refused = Taken::Refused(Refusal::ExemplarOutOfOrder);
        assert_eq!(exemplars.lock().push(&exemplar("a", 100, 0.25), u64::MAX), refused);
        assert_eq!(exemplars.lock().push(&exemplar("a", 99, 0.5), u64::MAX), refused);
    }

    #[test]
    fn an_exemplar_older_than_the_one_it_would_evict_is_refused() {
        // prometheus/prometheus#19559: a sparse series sends its hours-old exemplar again and again.
        let exemplars = Exemplars::new(2);
        exemplars.lock().push(&exemplar("sparse", 1, 0.5), u64::MAX);
        exemplars.lock().push(&exemplar("busy", 100, 0.5), u64::MAX);
        exemplars.lock().push(&exemplar("busy", 101, 0.5), u64::MAX);
        let refused = Taken::Refused(Refusal::ExemplarOutOfOrder);
        assert_eq!(exemplars.lock().push(&exemplar("sparse", 1, 0.5), u64::MAX), refused);
        let found = exemplars.select(&[vec![]], i64::MIN, i64::MAX);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].exemplars.len(), 2);
    }

    #[test]
    fn labels_are_bounded_and_a_buffer_of_nothing_keeps_nothing() {
        let mut long = exemplar("a", 1, 0.5);
        long.labels = LabelBuf::from_pairs([("trace_id", "ü".repeat(MAX_EXEMPLAR_CHARS - 7))]);
        let exemplars = Exemplars::new(1);
        assert_eq!(exemplars.lock().push(&long, u64::MAX), Taken::Refused(Refusal::ExemplarLabels));
        long.labels = LabelBuf::from_pairs([("trace_id", "ü".repeat(MAX_EXEMPLAR_CHARS - 8))]);
        assert_eq!(exemplars.lock().push(&long, u64::MAX), Taken::Written);
        exemplars.resize(0);
        assert!(exemplars.all().is_empty() && !exemplars.is_enabled());
        assert_eq!(exemplars.bytes(), 0);
    }
}
