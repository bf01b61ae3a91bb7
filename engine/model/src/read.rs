//! What is selected: batches of many series that share one timestamp stream. No per-sample iterator and no label
//! set per series crosses a crate.
use std::sync::Arc;

use metricsstore_budget::{Exhausted, Grant};

use crate::histogram::Histogram;
use crate::{LabelBuf, Matcher};

/// One series in what a select returned. Ids mean something only to the [`SeriesLabels`] of the same select.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesRef {
    /// Place in the global creation sequence: the reference order in which sums are folded.
    pub order: u64,
    /// Row in the table of groups (label pairs that all series of a target share).
    pub group: u32,
    /// Row in the table of residuals (the other pairs, `__name__` among them).
    pub residual: u32,
}

/// What to select. All matchers must pass; at least one is expected not to match the empty string (checked by
/// the language, not here).
#[derive(Debug, Clone, Copy)]
pub struct Selection<'q> {
    /// Conditions on the labels.
    pub matchers: &'q [Matcher],
    /// First timestamp wanted, inclusive, in milliseconds.
    pub start_ms: i64,
    /// Last timestamp wanted, inclusive, in milliseconds.
    pub end_ms: i64,
}

/// Series of one batch: for each a dense column over the batch's rows, and which cells are absent.
#[derive(Debug, Clone, Default)]
pub struct FloatColumns {
    /// Series after series: the cell of series `s` at row `r` is `values[s * rows + r]`. An absent cell holds any
    /// value. Stale markers are values here ([`crate::is_stale`]).
    pub values: Vec<f64>,
    /// One bit per cell, same layout, set where the series has no sample at that row; empty when every cell is
    /// present.
    pub absent: Vec<u64>,
}

impl FloatColumns {
    /// Whether the cell at `index` (`s * rows + r`) holds a sample.
    pub fn is_present(&self, index: usize) -> bool {
        self.absent.get(index / 64).is_none_or(|word| word >> (index % 64) & 1 == 0)
    }
}

/// Native histograms of one batch: the cell of series `s` at row `r` is `cells[s * rows + r]`, `None` where there is
/// none. Those that end a series are values here ([`Histogram::is_stale`]).
#[derive(Debug, Clone, Default)]
pub struct HistogramColumns {
    /// Series after series.
    pub cells: Vec<Option<Histogram>>,
}

/// The kinds of columns. A series that has samples of both kinds is in one batch of each.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Columns {
    /// Float samples.
    Floats(FloatColumns),
    /// Native histograms.
    Histograms(HistogramColumns),
}

/// Many series that share one timestamp stream.
#[derive(Debug, Clone)]
pub struct SeriesBatch {
    /// Strictly increasing timestamps of the rows, in milliseconds, all inside the selection.
    pub times: Arc<[i64]>,
    /// The series, one per column.
    pub ids: Vec<SeriesRef>,
    /// Their samples.
    pub columns: Columns,
    /// When the counters behind them began, in milliseconds, one for each cell of the columns, 0 where that is unknown;
    /// empty when it is unknown for all of them.
    pub starts_ms: Vec<i64>,
}

impl SeriesBatch {
    /// Copies the float samples of series `index` into `times` and `values` (cleared first), absent cells left out. A
    /// batch of histograms has none.
    pub fn samples_into(&self, index: usize, times: &mut Vec<i64>, values: &mut Vec<f64>) {
        times.clear();
        values.clear();
        let rows = self.times.len();
        let Columns::Floats(columns) = &self.columns else { return };
        let cells = index * rows..(index + 1) * rows;
        if columns.absent.is_empty() {
            times.extend_from_slice(&self.times);
            values.extend_from_slice(&columns.values[cells]);
            return;
        }
        for (row, cell) in cells.enumerate() {
            if columns.is_present(cell) {
                times.push(self.times[row]);
                values.push(columns.values[cell]);
            }
        }
    }
}

/// Labels of the series of one select.
pub trait SeriesLabels: Send + Sync {
    /// Appends the pairs of a group to `labels`, in any order, without clearing it.
    fn push_group(&self, group: u32, labels: &mut LabelBuf);
    /// Appends the pairs of a residual to `labels`, in any order, without clearing it.
    fn push_residual(&self, residual: u32, labels: &mut LabelBuf);
    /// The whole label set of a series: cleared, filled, sorted.
    fn labels(&self, series: SeriesRef, labels: &mut LabelBuf) {
        labels.clear();
        self.push_group(series.group, labels);
        self.push_residual(series.residual, labels);
        labels.sort();
    }
    /// Why labels that were asked for could not be read; they were left out then, and what was made of them is not
    /// right. Asked once all labels are read.
    fn failure(&self) -> Option<ReadError> {
        None
    }
}

/// What one select found. Every series is in exactly one batch of each kind of columns that it has samples of, with all
/// of them that the selection covers; series without a sample there are left out. Batches come in no particular order.
pub trait SeriesBatches: Send {
    /// The next batch; `None` after the last.
    fn next_batch(&mut self) -> Result<Option<SeriesBatch>, ReadError>;
    /// Labels of what the batches name.
    fn labels(&self) -> Arc<dyn SeriesLabels>;
}

/// Why something could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The query's grant or the budget has no bytes left.
    #[error(transparent)]
    Memory(#[from] Exhausted),
    /// Stored data are damaged; the rest of the store is readable.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Corrupt {
        /// File name below the data directory.
        file: String,
        /// Byte offset.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// The file system failed.
    #[error("cannot read {file}: {reason}")]
    Io {
        /// File name below the data directory.
        file: String,
        /// The system's words.
        reason: String,
    },
}

/// A bounded list and whether the bound cut it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limited<T> {
    /// At most the bound's number of items.
    pub items: Vec<T>,
    /// Whether there were more.
    pub truncated: bool,
}

/// The read side of a store.
pub trait Source: Send + Sync {
    /// Samples of every series that passes the matchers. Takes a snapshot: never blocks a writer and is not
    /// affected by what is written later.
    fn select(&self, selection: &Selection<'_>, grant: &Grant) -> Result<Box<dyn SeriesBatches>, ReadError>;

    /// Sorted names of the labels of all series that pass one of the matcher lists (all series when there is none)
    /// and may have samples in the time range, inclusive, in milliseconds.
    fn label_names(
        &self,
        any_of: &[Vec<Matcher>],
        start_ms: i64,
        end_ms: i64,
        limit: usize,
    ) -> Result<Limited<String>, ReadError>;

    /// Sorted values of one label, chosen likewise.
    fn label_values(
        &self,
        name: &str,
        any_of: &[Vec<Matcher>],
        start_ms: i64,
        end_ms: i64,
        limit: usize,
    ) -> Result<Limited<String>, ReadError>;

    /// Label sets, chosen likewise, in Prometheus' order of label sets.
    fn series(
        &self,
        any_of: &[Vec<Matcher>],
        start_ms: i64,
        end_ms: i64,
        limit: usize,
    ) -> Result<Limited<LabelBuf>, ReadError>;
}
