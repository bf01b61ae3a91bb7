//! Puts decoded columns together into a batch.
use metricsstore_model::read::{Columns, FloatColumns, SeriesBatch, SeriesRef};

/// Series without a sample are left out.
pub(super) struct Builder {
    rows: usize,
    values: Vec<f64>,
    absent: Vec<u64>,
    any_absent: bool,
    ids: Vec<SeriesRef>,
    /// Where the present series begins, and its first row that is not set or left out yet.
    base: usize,
    next_row: usize,
}

impl Builder {
    pub(super) fn new(rows: usize, series: usize) -> Builder {
        let cells = rows * series;
        Builder {
            rows,
            values: vec![0.0; cells],
            absent: vec![0; cells.div_ceil(64)],
            any_absent: false,
            ids: Vec::with_capacity(series),
            base: 0,
            next_row: 0,
        }
    }

    /// Sets a row of the present series; rows come in ascending order.
    #[inline]
    pub(super) fn set(&mut self, row: usize, bits: u64) {
        if row > self.next_row {
            self.leave_out(row);
        }
        self.values[self.base + row] = f64::from_bits(bits);
        self.next_row = row + 1;
    }

    /// The rows up to `end` have no sample.
    #[cold]
    fn leave_out(&mut self, end: usize) {
        self.any_absent = true;
        for cell in self.base + self.next_row..self.base + end {
            self.absent[cell / 64] |= 1 << (cell % 64);
        }
    }

    pub(super) fn finish_series(&mut self, reference: SeriesRef) {
        if self.next_row == 0 {
            return;
        }
        if self.next_row < self.rows {
            self.leave_out(self.rows);
        }
        self.ids.push(reference);
        self.base += self.rows;
        self.next_row = 0;
    }

    pub(super) fn finish(mut self, timeline: Vec<i64>) -> Option<SeriesBatch> {
        if self.ids.is_empty() {
            return None;
        }
        self.values.truncate(self.base);
        self.absent.truncate(if self.any_absent { self.base.div_ceil(64) } else { 0 });
        let columns = Columns::Floats(FloatColumns { values: self.values, absent: self.absent });
        Some(SeriesBatch { times: timeline.into(), ids: self.ids, columns, starts_ms: Vec::new() })
    }
}
