//! What few series have beside float samples: native histograms and start timestamps. Both are columns of their own,
//! entries of a time and a content that stand in the order in which they came, so that a series without them pays
//! nothing and one with them needs no rows. The same bytes stand in the head, in segments and in what a select reads.
//!
//! Order and duplicates are settled where a column is read (`merge`): of several
//! entries of one time the first holds.
mod histogram_column;
mod merge;
mod select;
mod start_column;

pub(crate) use histogram_column::{HistogramColumn, decode_histograms};
pub(crate) use merge::{merge_kinds, merged_histograms, merged_starts};
pub(crate) use select::KindsSelect;
pub(crate) use start_column::{StartColumn, decode_starts};

use hashbrown::HashMap;

use crate::head::PAGE_SERIES;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Histograms,
    Starts,
}

impl Kind {
    pub(crate) const ALL: [Kind; 2] = [Kind::Histograms, Kind::Starts];
}

/// A column's bytes at one moment, with what a directory says of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KindColumn {
    pub(crate) min_ms: i64,
    pub(crate) max_ms: i64,
    pub(crate) entries: u64,
    pub(crate) payload: Vec<u8>,
}

/// The columns of the series of one shard that have any.
#[derive(Default)]
pub(crate) struct Kinds {
    histograms: HashMap<u32, Box<HistogramColumn>>,
    starts: HashMap<u32, Box<StartColumn>>,
    size: Size,
}

/// Bytes of columns.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// Held beside the tables' entries.
    heap: u64,
    /// Encoded.
    payload: u64,
}

impl Size {
    /// A column has grown or shrunk.
    fn add(&mut self, before: Size, after: Size) {
        self.heap = self.heap + after.heap - before.heap;
        self.payload = self.payload + after.payload - before.payload;
    }
}

impl Kinds {
    pub(crate) fn is_empty(&self) -> bool {
        self.histograms.is_empty() && self.starts.is_empty()
    }

    pub(crate) fn histograms(&self, local: u32) -> Option<&HistogramColumn> {
        self.histograms.get(&local).map(|column| &**column)
    }

    pub(crate) fn push_histogram(
        &mut self,
        local: u32,
        timestamp_ms: i64,
        histogram: &metricsstore_model::histogram::Histogram,
        is_late: bool,
    ) {
        let column = self.histograms.entry(local).or_default();
        let before = column.size();
        column.push(timestamp_ms, histogram, is_late);
        self.size.add(before, column.size());
    }

    pub(crate) fn push_start(&mut self, local: u32, timestamp_ms: i64, start_ms: i64) {
        let column = self.starts.entry(local).or_default();
        let before = column.size();
        column.push(timestamp_ms, start_ms);
        self.size.add(before, column.size());
    }

    /// Whether a sample at this time has a start timestamp.
    pub(crate) fn has_start(&self, local: u32, timestamp_ms: i64) -> bool {
        let Some(column) = self.column(Kind::Starts, local) else { return false };
        let mut found = false;
        let decoded = decode_starts(&column.payload, column.entries, |time, _| found |= time == timestamp_ms);
        debug_assert!(decoded.is_ok());
        found
    }

    /// A copy of the column of a series; `None` where there is nothing in it.
    pub(crate) fn column(&self, kind: Kind, local: u32) -> Option<KindColumn> {
        match kind {
            Kind::Histograms => self.histograms.get(&local)?.column(),
            Kind::Starts => self.starts.get(&local)?.column(),
        }
    }

    /// Local ids of the series that have histograms, in any order.
    pub(crate) fn locals(&self) -> impl Iterator<Item = u32> + '_ {
        self.histograms.iter().filter(|(_, column)| !column.is_empty()).map(|(&local, _)| local)
    }

    /// Whether a series has histograms.
    pub(crate) fn has_samples(&self, local: u32) -> bool {
        self.histograms.get(&local).is_some_and(|column| !column.is_empty())
    }

    /// Pages of series up to the last that has a column.
    pub(crate) fn page_count(&self) -> u32 {
        let last = self.histograms.keys().chain(self.starts.keys()).max();
        last.map_or(0, |last| last / PAGE_SERIES + 1)
    }

    /// What the next epoch begins with: the newest histogram of the series for which `keep` holds, to judge by.
    pub(crate) fn successor(&self, keep: impl Fn(u32) -> bool) -> Kinds {
        let mut next = Kinds::default();
        for (&local, column) in self.histograms.iter().filter(|(local, _)| keep(**local)) {
            let column = column.successor();
            next.size.add(Size::default(), column.size());
            next.histograms.insert(local, Box::new(column));
        }
        next
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> u64 {
        let tables = self.histograms.allocation_size() + self.starts.allocation_size();
        let boxes = self.histograms.len() * size_of::<HistogramColumn>()
            + self.starts.len() * size_of::<StartColumn>();
        (tables + boxes) as u64 + self.size.heap
    }

    /// Bytes of encoded columns.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.size.payload
    }
}
