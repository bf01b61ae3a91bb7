//! The native histograms of one series.
//!
//! ```text
//! per histogram: zigzag(ms − previous ms), varint; histogram, against the one before (the first against none)
//! ```
use metricsstore_codec::varint::{put, take, unzigzag, zigzag};
use metricsstore_model::histogram::{self, Histogram};

use super::{KindColumn, Size};

/// An open column.
#[derive(Default)]
pub(crate) struct HistogramColumn {
    payload: Vec<u8>,
    entries: u64,
    min_ms: i64,
    max_ms: i64,
    /// Time of the last entry in the payload.
    last_ms: i64,
    /// What the next entry stands against; outlives the payload, since duplicates are found by the newest.
    last: Option<Box<Histogram>>,
    /// The newest by time, where that is not the last.
    newest: Option<Box<Histogram>>,
}

impl HistogramColumn {
    pub(crate) fn push(&mut self, timestamp_ms: i64, histogram: &Histogram, is_late: bool) {
        let is_first = self.entries == 0;
        put(&mut self.payload, zigzag(timestamp_ms.wrapping_sub(if is_first { 0 } else { self.last_ms })));
        let previous = self.last.as_deref().filter(|_| !is_first);
        histogram::encode(histogram, previous, &mut self.payload);
        self.min_ms = if is_first { timestamp_ms } else { self.min_ms.min(timestamp_ms) };
        self.max_ms = if is_first { timestamp_ms } else { self.max_ms.max(timestamp_ms) };
        self.last_ms = timestamp_ms;
        self.entries += 1;
        let last = self.last.replace(Box::new(histogram.clone()));
        if is_late {
            self.newest = self.newest.take().or(last);
        } else {
            self.newest = None;
        }
    }

    /// The newest histogram that was not late.
    pub(crate) fn newest(&self) -> Option<&Histogram> {
        self.newest.as_deref().or(self.last.as_deref())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    pub(crate) fn column(&self) -> Option<KindColumn> {
        (self.entries > 0).then(|| KindColumn {
            min_ms: self.min_ms,
            max_ms: self.max_ms,
            entries: self.entries,
            payload: self.payload.clone(),
        })
    }

    /// An empty column that still knows the newest histogram.
    pub(super) fn successor(&self) -> HistogramColumn {
        HistogramColumn { last: self.newest().cloned().map(Box::new), ..HistogramColumn::default() }
    }

    pub(super) fn size(&self) -> Size {
        let held = [&self.last, &self.newest].into_iter().flatten();
        let histograms: usize = held.map(|held| size_of::<Histogram>() + held.heap_bytes()).sum();
        Size { heap: (self.payload.capacity() + histograms) as u64, payload: self.payload.len() as u64 }
    }
}

/// Hands each `(ms, histogram)` of a column to `sink` in the order in which they came; says what is wrong.
pub(crate) fn decode_histograms(
    mut payload: &[u8],
    mut sink: impl FnMut(i64, Histogram),
) -> Result<(), &'static str> {
    let (mut time, mut previous): (i64, Option<Histogram>) = (0, None);
    while !payload.is_empty() {
        let step = take(&mut payload).map_err(|damaged| damaged.what)?;
        time = time.wrapping_add(unzigzag(step));
        let histogram = histogram::decode(&mut payload, previous.as_ref()).map_err(|damaged| damaged.what)?;
        sink(time, previous.insert(histogram).clone());
    }
    Ok(())
}
