//! A block as a stream of series, without what was deleted of it.
//!
//! A long series is read in windows of time, so that memory does not grow with the block: windows are as long as the
//! average series of the block makes a slice of, and shorter for a series that has more.
use std::ops::Range;
use std::sync::Arc;

use metricsstore_model::histogram::ResetHint;
use roaring::RoaringBitmap;

use crate::StorageError;
use crate::block::series::{SLICE_HISTOGRAMS, SLICE_SAMPLES};
use crate::block::{BlockCursor, SeriesData, SeriesStream};
use crate::column::Piece;
use crate::kinds::{Kind, decode_histograms, decode_starts};
use crate::tombstones::is_covered;
use crate::view::LiveBlock;

/// A window should fill this part of a slice: series differ.
const FILL: u64 = 4;

/// See the module's documentation.
pub(crate) struct BlockSeries {
    live: Arc<LiveBlock>,
    cursor: Box<dyn BlockCursor>,
    /// Rows with columns of a kind, by [`Kind`]; `None` where only the columns would say.
    with: [Option<RoaringBitmap>; 2],
    rows: u32,
    /// Windows that an average series without histograms is read in, and one with histograms.
    windows: [u64; 2],
    /// The row that is read, or the next one.
    row: u32,
    has_begun: bool,
    /// Where the next window of the row begins; `None` after the last.
    from_ms: Option<i64>,
    window_ms: i64,
    has_handed_out: bool,
    /// Whether the histogram before the next one was deleted.
    is_cut_off: bool,
    /// What was read and not handed out yet.
    window: SeriesData,
    payload: Vec<u8>,
    pieces: Vec<Piece>,
}

impl BlockSeries {
    pub(crate) fn new(live: &Arc<LiveBlock>) -> Result<BlockSeries, StorageError> {
        let meta = live.block.meta();
        let average = (meta.float_samples + meta.histogram_samples) / meta.series.max(1);
        let windows = |most: usize| (average * FILL).div_ceil(most as u64).max(1);
        Ok(BlockSeries {
            cursor: Arc::clone(&live.block).cursor(),
            with: [rows_with(live, Kind::Histograms)?, rows_with(live, Kind::Starts)?],
            rows: meta.series.min(u64::from(u32::MAX)) as u32,
            windows: [windows(SLICE_SAMPLES), windows(SLICE_HISTOGRAMS)],
            live: Arc::clone(live),
            row: 0,
            has_begun: false,
            from_ms: None,
            window_ms: i64::MAX,
            has_handed_out: false,
            is_cut_off: false,
            window: SeriesData::default(),
            payload: Vec::new(),
            pieces: Vec::new(),
        })
    }

    fn has(&self, kind: Kind) -> bool {
        self.with[kind as usize].as_ref().is_none_or(|rows| rows.contains(self.row))
    }

    fn begin_row(&mut self) -> Result<(), StorageError> {
        self.live.block.labels(self.row, &mut self.window.labels)?;
        let meta = self.live.block.meta();
        let windows = self.windows[usize::from(self.has(Kind::Histograms))];
        let span_ms = meta.max_ms.saturating_sub(meta.min_ms).unsigned_abs();
        self.window_ms = (span_ms / windows + 1).min(i64::MAX as u64) as i64;
        (self.has_begun, self.has_handed_out, self.is_cut_off) = (true, false, false);
        self.from_ms = Some(i64::MIN);
        Ok(())
    }

    fn end_row(&mut self) {
        self.row += 1;
        self.has_begun = false;
        self.window.clear();
    }

    /// Reads the next window of the row; `false` when there is none.
    fn read_window(&mut self) -> Result<bool, StorageError> {
        if !self.has_begun {
            self.begin_row()?;
        }
        let Some(from_ms) = self.from_ms else { return Ok(false) };
        let meta = self.live.block.meta();
        // The first and the last window have no bounds: an exemplar may be older or newer than all samples.
        let end_ms = from_ms.max(meta.min_ms).saturating_add(self.window_ms);
        self.from_ms = (end_ms <= meta.max_ms).then_some(end_ms);
        let to_ms = if self.from_ms.is_some() { end_ms - 1 } else { i64::MAX };
        self.window.clear_samples();
        self.read_floats((from_ms, to_ms))?;
        self.read_kinds((from_ms, to_ms))?;
        self.drop_deleted();
        let is_too_full =
            self.window.samples() > SLICE_SAMPLES || self.window.histograms.len() > SLICE_HISTOGRAMS;
        if is_too_full {
            self.window_ms = (self.window_ms / 2).max(1);
        }
        Ok(true)
    }

    fn read_floats(&mut self, within_ms: (i64, i64)) -> Result<(), StorageError> {
        self.payload.clear();
        self.pieces.clear();
        self.cursor.pieces_into(self.row, within_ms, &mut self.payload, &mut self.pieces)?;
        for piece in &self.pieces {
            let times = self.cursor.times(piece.stream)?;
            let rows = rows_within(&times, within_ms);
            let floats = &mut self.window.floats;
            let decoded = piece.decode(&self.payload, rows, |row, bits| {
                floats.extend(times.get(row as usize).map(|&time_ms| (time_ms, bits)));
            });
            decoded.map_err(|what| self.damaged(what))?;
        }
        Ok(())
    }

    fn read_kinds(&mut self, within_ms: (i64, i64)) -> Result<(), StorageError> {
        let is_within = |time_ms: i64| (within_ms.0..=within_ms.1).contains(&time_ms);
        if self.has(Kind::Histograms)
            && let Some(column) = self.cursor.kind_column(Kind::Histograms, self.row, within_ms)?
        {
            let histograms = &mut self.window.histograms;
            let decoded = decode_histograms(&column.payload, |time_ms, histogram| {
                if is_within(time_ms) {
                    histograms.push((time_ms, histogram));
                }
            });
            decoded.map_err(|what| self.damaged(what))?;
        }
        if self.has(Kind::Starts)
            && let Some(column) = self.cursor.kind_column(Kind::Starts, self.row, within_ms)?
        {
            let starts = &mut self.window.starts;
            let decoded = decode_starts(&column.payload, column.entries, |time_ms, start_ms| {
                if is_within(time_ms) {
                    starts.push((time_ms, start_ms));
                }
            });
            decoded.map_err(|what| self.damaged(what))?;
        }
        self.cursor.exemplars_into(self.row, within_ms, &mut self.window.exemplars)
    }

    fn damaged(&self, what: &str) -> StorageError {
        let file = self.live.block.files().into_iter().next().unwrap_or_default();
        StorageError::corrupt(&file, 0, format!("{what}, in the series of row {}", self.row))
    }

    /// Nothing is known of the counter of a histogram once the one before it is deleted.
    fn drop_deleted(&mut self) {
        let Some(deleted) = self.live.tombstones.of(self.row) else { return };
        let is_deleted = |time_ms: i64| is_covered(deleted, time_ms);
        let SeriesData { floats, histograms, starts, exemplars, .. } = &mut self.window;
        floats.retain(|sample| !is_deleted(sample.0));
        let is_cut_off = &mut self.is_cut_off;
        histograms.retain_mut(|(time_ms, histogram)| {
            let is_deleted = is_deleted(*time_ms);
            if std::mem::replace(is_cut_off, is_deleted) && histogram.reset_hint != ResetHint::Gauge {
                histogram.reset_hint = ResetHint::Unknown;
            }
            !is_deleted
        });
        starts.retain(|start| !is_deleted(start.0));
        exemplars.retain(|exemplar| !is_deleted(exemplar.timestamp_ms));
    }

    /// Moves as much of the window as fits into a slice.
    fn hand_out(&mut self, series: &mut SeriesData) {
        series.labels.clone_from(&self.window.labels);
        series.is_continuation = std::mem::replace(&mut self.has_handed_out, true);
        let until_ms = self.fitting_until();
        move_before(&mut self.window.floats, &mut series.floats, until_ms, |sample| sample.0);
        move_before(&mut self.window.histograms, &mut series.histograms, until_ms, |sample| sample.0);
        move_before(&mut self.window.starts, &mut series.starts, until_ms, |start| start.0);
        move_before(&mut self.window.exemplars, &mut series.exemplars, until_ms, |e| e.timestamp_ms);
    }

    /// The time before which the window fits into a slice; `None` where all of it does.
    fn fitting_until(&self) -> Option<i64> {
        let SeriesData { floats, histograms, .. } = &self.window;
        let is_mixed = !floats.is_empty() && !histograms.is_empty();
        let most = if is_mixed { SLICE_SAMPLES / 2 } else { SLICE_SAMPLES };
        let float = floats.get(most).map(|sample| sample.0);
        let histogram = histograms.get(most.min(SLICE_HISTOGRAMS)).map(|sample| sample.0);
        [float, histogram].into_iter().flatten().min()
    }

    fn is_window_empty(&self) -> bool {
        self.window.samples() == 0 && self.window.exemplars.is_empty()
    }
}

impl SeriesStream for BlockSeries {
    fn next_into(&mut self, series: &mut SeriesData) -> Result<bool, StorageError> {
        series.clear();
        while self.row < self.rows {
            if !self.is_window_empty() {
                self.hand_out(series);
                return Ok(true);
            }
            match self.read_window() {
                Ok(true) => {}
                Ok(false) => self.end_row(),
                Err(error) => {
                    self.end_row();
                    return Err(error);
                }
            }
        }
        Ok(false)
    }
}

/// Where it is damaged which rows these are, only their columns can say.
fn rows_with(live: &LiveBlock, kind: Kind) -> Result<Option<RoaringBitmap>, StorageError> {
    match live.block.rows_with(kind) {
        Err(StorageError::Corrupt { .. }) => Ok(None),
        rows => rows,
    }
}

/// The rows of a stream in a stretch of time, ends inclusive.
fn rows_within(times: &[i64], within_ms: (i64, i64)) -> Range<u32> {
    let from = times.partition_point(|&time_ms| time_ms < within_ms.0);
    let to = times.partition_point(|&time_ms| time_ms <= within_ms.1);
    from as u32..to as u32
}

/// Moves what is earlier than a time, or everything, to the end of another column.
fn move_before<T>(from: &mut Vec<T>, to: &mut Vec<T>, until_ms: Option<i64>, time_of: impl Fn(&T) -> i64) {
    let count = until_ms.map_or(from.len(), |until_ms| from.partition_point(|one| time_of(one) < until_ms));
    to.extend(from.drain(..count));
}
