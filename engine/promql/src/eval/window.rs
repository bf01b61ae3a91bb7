//! Range vectors as arguments: a function is called with the window of each series and step.
use std::ops::Range;

use metricsstore_model::is_stale;
use metricsstore_model::read::{Columns, FloatColumns};

use crate::ast::{Expr, ExprKind, RangeSelector, Subquery};
use crate::error::QueryError;

use super::account::Held;
use super::selector::{fixes_name, ids_bytes, in_creation_order, window_rows};
use super::vectors::{ABSENT, Vectors, is_absent};
use super::{Evaluation, Query, Steps};

/// The samples of one series in `(start_ms, end_ms]`; never empty, never stale.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window<'w> {
    pub times: &'w [i64],
    pub values: &'w [f64],
    pub start_ms: i64,
    pub end_ms: i64,
    /// When the expression is evaluated, which `@` and `offset` do not move.
    pub time_ms: i64,
    pub step: usize,
}

/// A function over a window; `None` gives no sample.
pub(super) type Kernel<'k> = dyn FnMut(&Window<'_>) -> Option<f64> + 'k;

/// Where the windows of all steps lie.
struct Plan {
    ends: Vec<i64>,
    length_ms: i64,
    steps: Steps,
}

impl Plan {
    /// Appends one cell per step; says whether any has a sample.
    fn apply(
        &self,
        times: &[i64],
        values: &[f64],
        rows: &[Range<u32>],
        kernel: &mut Kernel<'_>,
        into: &mut Vec<f64>,
    ) -> bool {
        let mut any = false;
        for (step, rows) in rows.iter().enumerate() {
            let rows = rows.start as usize..rows.end as usize;
            if rows.is_empty() {
                into.push(ABSENT);
                continue;
            }
            let end_ms = self.ends[step];
            let window = Window {
                times: &times[rows.clone()],
                values: &values[rows],
                start_ms: end_ms.saturating_sub(self.length_ms),
                end_ms,
                time_ms: self.steps.time(step),
                step,
            };
            let result = kernel(&window);
            any |= result.is_some();
            into.push(result.unwrap_or(ABSENT));
        }
        any
    }
}

/// The samples of one series without gaps and stale markers, copied only when there are any.
#[derive(Default)]
struct Dense {
    times: Vec<i64>,
    values: Vec<f64>,
}

impl Dense {
    /// Whether the column had to be copied.
    fn fill(&mut self, times: &[i64], columns: &FloatColumns, first_cell: usize) -> bool {
        let cells = &columns.values[first_cell..first_cell + times.len()];
        if columns.absent.is_empty() && !cells.iter().any(|value| is_stale(*value)) {
            return false;
        }
        self.times.clear();
        self.values.clear();
        for (row, (&time, &value)) in times.iter().zip(cells).enumerate() {
            if !is_stale(value) && columns.is_present(first_cell + row) {
                self.times.push(time);
                self.values.push(value);
            }
        }
        true
    }
}

impl Query<'_> {
    /// Calls the kernel for each series and step of a range vector. Rows without a result are left out.
    pub(super) fn over_windows(
        &self,
        expr: &Expr,
        steps: Steps,
        kernel: &mut Kernel<'_>,
    ) -> Evaluation<Vectors> {
        match &expr.unwrap_parens().kind {
            ExprKind::Range(range) => self.over_selected(range, steps, kernel),
            ExprKind::Subquery(subquery) => self.over_subquery(subquery, steps, kernel),
            _ => Err(super::type_mismatch(expr)),
        }
    }

    fn over_selected(
        &self,
        range: &RangeSelector,
        steps: Steps,
        kernel: &mut Kernel<'_>,
    ) -> Evaluation<Vectors> {
        let selector = &range.selector;
        let ends = self.looked_at(steps, selector.at, selector.offset_ms);
        let plan = Plan { ends, length_ms: range.range_ms, steps };
        let (mut ids, mut values) = (Vec::new(), Vec::new());
        let mut held = Held::new(&self.account);
        let mut dense = Dense::default();
        let labels = self.each_batch(&selector.matchers, &plan.ends, plan.length_ms, |batch| {
            held.grow(ids_bytes(batch.ids.len()))?;
            held.make_room(&mut values, batch.ids.len() * steps.count)?;
            let shared_rows = window_rows(&batch.times, &plan.ends, plan.length_ms);
            let Columns::Floats(columns) = &batch.columns else { return Ok(()) };
            for (series, &id) in batch.ids.iter().enumerate() {
                let start = values.len();
                let first_cell = series * batch.times.len();
                let any = if dense.fill(&batch.times, columns, first_cell) {
                    let rows = window_rows(&dense.times, &plan.ends, plan.length_ms);
                    plan.apply(&dense.times, &dense.values, &rows, kernel, &mut values)
                } else {
                    let cells = &columns.values[first_cell..first_cell + batch.times.len()];
                    plan.apply(&batch.times, cells, &shared_rows, kernel, &mut values)
                };
                if any {
                    ids.push(id);
                } else {
                    values.truncate(start);
                }
            }
            Ok(())
        })?;
        let mut vectors = in_creation_order(ids, values, steps.count, labels, held)?;
        vectors.one_name = fixes_name(&selector.matchers);
        Ok(vectors)
    }

    fn over_subquery(
        &self,
        subquery: &Subquery,
        steps: Steps,
        kernel: &mut Kernel<'_>,
    ) -> Evaluation<Vectors> {
        let ends = self.looked_at(steps, subquery.at, subquery.offset_ms);
        let plan = Plan { ends, length_ms: subquery.range_ms, steps };
        let inner_steps = self.subquery_steps(subquery, &plan.ends)?;
        let inner = self.vector(&subquery.expr, inner_steps)?;
        let times: Vec<i64> = inner_steps.times().collect();
        let shared_rows = window_rows(&times, &plan.ends, plan.length_ms);
        let mut held = Held::new(&self.account);
        held.grow((inner.len() * steps.count) as u64 * 8)?;
        let (mut kept, mut values) = (Vec::new(), Vec::with_capacity(inner.len() * steps.count));
        let mut dense = Dense::default();
        for row in 0..inner.len() {
            self.check_interrupt()?;
            let (start, cells) = (values.len(), inner.row(row));
            let any = if cells.iter().any(|value| is_absent(*value)) {
                dense.times.clear();
                dense.values.clear();
                for (&time, &value) in times.iter().zip(cells).filter(|(_, value)| !is_absent(**value)) {
                    dense.times.push(time);
                    dense.values.push(value);
                }
                let rows = window_rows(&dense.times, &plan.ends, plan.length_ms);
                plan.apply(&dense.times, &dense.values, &rows, kernel, &mut values)
            } else {
                plan.apply(&times, cells, &shared_rows, kernel, &mut values)
            };
            if any {
                kept.push(row as u32);
            } else {
                values.truncate(start);
            }
        }
        let mut vectors = Vectors::with_held(inner.labels.pick(&kept), values, steps.count, held)?;
        vectors.drop_name = kept.iter().map(|&row| inner.drop_name[row as usize]).collect();
        vectors.one_name = inner.one_name;
        Ok(vectors)
    }

    /// The steps of a subquery: multiples of its step, whatever the steps outside.
    fn subquery_steps(&self, subquery: &Subquery, ends: &[i64]) -> Evaluation<Steps> {
        let step_ms = subquery.step_ms.unwrap_or(self.options.default_step_ms).max(1);
        let first_end = ends.iter().min().copied().unwrap_or_default();
        let last_end = ends.iter().max().copied().unwrap_or_default();
        let before = first_end.saturating_sub(subquery.range_ms);
        let mut start_ms = step_ms * (before / step_ms);
        if start_ms <= before {
            start_ms += step_ms;
        }
        let count = if last_end < start_ms { 0 } else { last_end.saturating_sub(start_ms) / step_ms + 1 };
        if count as u64 > self.account.max_samples() {
            return Err(QueryError::TooManySamples);
        }
        Ok(Steps { start_ms, step_ms, count: count as usize })
    }
}
