//! Instant vector selectors: the newest sample of each series in the lookback window of each step.
use std::ops::Range;

use metricsstore_model::read::{Columns, FloatColumns, Selection, SeriesBatch, SeriesRef};
use metricsstore_model::{METRIC_NAME, MatchOp, Matcher, is_stale};

use crate::ast::Selector;

use super::account::Held;
use super::vectors::{ABSENT, Labels, Vectors, is_absent};
use super::{Evaluation, Query, Steps};

/// Bytes of the references to a batch's series.
pub(super) fn ids_bytes(series: usize) -> u64 {
    (series * size_of::<SeriesRef>()) as u64
}

/// What is wanted of the sample that a step finds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Value,
    /// Its time in seconds.
    Timestamp,
}

/// For each end, the rows in `(end - length, end]`. Ends need not be sorted, but the scan is short when they are.
pub(super) fn window_rows(times: &[i64], ends: &[i64], length_ms: i64) -> Vec<Range<u32>> {
    let (mut low, mut high) = (0, 0);
    ends.iter()
        .map(|&end| {
            low = advance(times, low, end.saturating_sub(length_ms));
            high = advance(times, high, end);
            low as u32..high as u32
        })
        .collect()
}

/// The first row later than `limit`, looked for from a guess.
fn advance(times: &[i64], guess: usize, limit: i64) -> usize {
    if guess > 0 && times[guess - 1] > limit {
        return times.partition_point(|&time| time <= limit);
    }
    let rest = &times[guess..];
    let near = rest.iter().take(16).take_while(|&&time| time <= limit).count();
    if near < 16 { guess + near } else { guess + rest.partition_point(|&time| time <= limit) }
}

/// Whether all series that pass have one name.
pub(super) fn fixes_name(matchers: &[Matcher]) -> bool {
    matchers.iter().any(|matcher| &*matcher.name == METRIC_NAME && matcher.op == MatchOp::Equal)
}

impl Query<'_> {
    pub(super) fn instant_selector(&self, selector: &Selector, steps: Steps) -> Evaluation<Vectors> {
        self.select_instants(selector, steps, Wanted::Value)
    }

    pub(super) fn select_instants(
        &self,
        selector: &Selector,
        steps: Steps,
        wanted: Wanted,
    ) -> Evaluation<Vectors> {
        let ends = self.looked_at(steps, selector.at, selector.offset_ms);
        let (mut ids, mut values) = (Vec::new(), Vec::new());
        let mut held = Held::new(&self.account);
        let labels = self.each_batch(&selector.matchers, &ends, self.lookback_ms, |batch| {
            held.grow(ids_bytes(batch.ids.len()))?;
            held.make_room(&mut values, batch.ids.len() * ends.len())?;
            let rows = window_rows(&batch.times, &ends, self.lookback_ms);
            let Columns::Floats(columns) = &batch.columns else { return Ok(()) };
            for (series, &id) in batch.ids.iter().enumerate() {
                let start = values.len();
                let first_cell = series * batch.times.len();
                values.extend(rows.iter().map(|rows| {
                    newest(columns, first_cell, rows.clone()).map_or(ABSENT, |row| match wanted {
                        Wanted::Value => columns.values[first_cell + row],
                        Wanted::Timestamp => batch.times[row] as f64 / 1000.0,
                    })
                }));
                if values[start..].iter().all(|value| is_absent(*value)) {
                    values.truncate(start);
                } else {
                    ids.push(id);
                }
            }
            Ok(())
        })?;
        let mut vectors = in_creation_order(ids, values, ends.len(), labels, held)?;
        vectors.one_name = fixes_name(&selector.matchers);
        Ok(vectors)
    }

    /// Selects once for all windows and hands over batch after batch.
    pub(super) fn each_batch(
        &self,
        matchers: &[Matcher],
        ends: &[i64],
        length_ms: i64,
        mut take: impl FnMut(&SeriesBatch) -> Evaluation<()>,
    ) -> Evaluation<LabelSource> {
        let first = ends.iter().min().copied().unwrap_or_default();
        let last = ends.iter().max().copied().unwrap_or_default();
        let start_ms = first.saturating_sub(length_ms).saturating_add(1);
        let selection = Selection { matchers, start_ms, end_ms: last };
        let mut batches = self.source.select(&selection, self.grant)?;
        while let Some(batch) = batches.next_batch()? {
            self.check_interrupt()?;
            self.account.add_read((batch.times.len() * batch.ids.len()) as u64);
            take(&batch)?;
        }
        let labels = batches.labels();
        self.label_sources.borrow_mut().push(LabelSource::clone(&labels));
        Ok(labels)
    }
}

pub(super) type LabelSource = std::sync::Arc<dyn metricsstore_model::read::SeriesLabels>;

/// The row of the newest sample, unless that is a stale marker.
fn newest(columns: &FloatColumns, first_cell: usize, rows: Range<u32>) -> Option<usize> {
    let row = rows.rev().map(|row| row as usize).find(|row| columns.is_present(first_cell + row))?;
    (!is_stale(columns.values[first_cell + row])).then_some(row)
}

/// Rows as they came, put into the order in which their series were created: the order of every fold.
pub(super) fn in_creation_order(
    ids: Vec<SeriesRef>,
    values: Vec<f64>,
    width: usize,
    labels: LabelSource,
    mut held: Held,
) -> Evaluation<Vectors> {
    let sorted = ids.is_sorted_by_key(|id| id.order);
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    order.sort_by_key(|&row| ids[row as usize].order);
    // Sorting copies the values.
    let copy_bytes = if sorted { 0 } else { values.len() as u64 * 8 };
    held.grow(copy_bytes)?;
    let labels = Labels::Stored { labels, ids, nameless: false };
    let mut vectors = Vectors::with_held(labels, values, width, held)?;
    if !sorted {
        vectors = vectors.pick(&order);
        vectors.release(copy_bytes);
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::window_rows;

    #[test]
    fn windows_are_open_at_the_left_and_closed_at_the_right() {
        let times = [10, 20, 30, 40];
        assert_eq!(window_rows(&times, &[20, 30, 45], 10), [1..2, 2..3, 3..4]);
        assert_eq!(window_rows(&times, &[40, 10], 20), [2..4, 0..1]);
        assert!(window_rows(&times, &[5], 3)[0].is_empty());
        assert!(window_rows(&[], &[5], 3)[0].is_empty());
    }
}
