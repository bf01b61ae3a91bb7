//! Aggregations that make new series: folded row after row in creation order, every step of a row at once.
use metricsstore_model::{LabelBuf, METRIC_NAME};

use crate::ast::{Aggregate, AggregateOp};
use crate::error::QueryError;
use crate::literal::{format_float, quote};

use super::account::Held;
use super::fold::{LARGEST_STATE, fold_groups};
use super::functions::quantile::is_invalid;
use super::keys::{Grouping, Keys};
use super::vectors::{ABSENT, Labels, Vectors, is_absent};
use super::{Evaluation, Query, Steps};

/// The rows of an aggregation's input, sorted into groups.
pub(super) struct Groups {
    /// Group of each row.
    pub of_row: Vec<u32>,
    /// Number of groups.
    pub count: usize,
}

/// What is known of the groups of an aggregation while parts of its steps are evaluated.
struct Folded {
    keys: Keys,
    /// For each group, whether its name goes at the end.
    drop_name: Vec<bool>,
    /// For each group, the first of its series in the order of creation; only as long as rows are stored series.
    first_series: Option<Vec<u64>>,
    /// Consecutive parts of the steps: their number and one row of them per group known by then.
    parts: Vec<(usize, Vec<f64>)>,
    held: Held,
}

impl Query<'_> {
    pub(super) fn aggregate(&self, aggregate: &Aggregate, steps: Steps) -> Evaluation<Vectors> {
        if let (AggregateOp::CountValues, Some(param)) = (aggregate.op, &aggregate.param) {
            let label = self.text(param, steps)?;
            return self.count_values(aggregate, &label, steps);
        }
        let param = aggregate.param.as_ref().map(|param| self.scalar(param, steps)).transpose()?;
        let param = param.unwrap_or_default();
        if aggregate.op.picks_series() {
            let input = self.vector(&aggregate.expr, steps)?;
            let mut keys = Keys::new(grouping_of(aggregate), &self.account);
            let groups = Groups { of_row: keys.assign(&input.labels)?, count: keys.len() };
            return self.pick_series(aggregate, &param, input, &groups, steps);
        }
        if aggregate.op == AggregateOp::Quantile {
            self.warn_of_quantiles(aggregate, &param);
        }
        let mut folded = Folded {
            keys: Keys::new(grouping_of(aggregate), &self.account),
            drop_name: Vec::new(),
            first_series: Some(Vec::new()),
            parts: Vec::new(),
            held: self.scratch(0)?,
        };
        self.fold_steps(aggregate, &param, steps, &mut folded)?;
        self.groups(aggregate, steps, folded)
    }

    /// Folds all steps at once or, when the rows of all series do not fit into the query's memory, in two halves:
    /// what stays of each half is one row per group.
    fn fold_steps(
        &self,
        aggregate: &Aggregate,
        param: &[f64],
        steps: Steps,
        folded: &mut Folded,
    ) -> Evaluation<()> {
        let annotations = self.annotations.borrow().clone();
        match self.fold_at_once(aggregate, param, steps, folded) {
            Err(QueryError::Memory(_)) if steps.count > 1 => {
                self.annotations.replace(annotations);
                let (first, second) = steps.halves();
                let (first_param, second_param) = param.split_at(first.count.min(param.len()));
                self.fold_steps(aggregate, first_param, first, folded)?;
                self.fold_steps(aggregate, second_param, second, folded)
            }
            outcome => outcome,
        }
    }

    fn fold_at_once(
        &self,
        aggregate: &Aggregate,
        param: &[f64],
        steps: Steps,
        folded: &mut Folded,
    ) -> Evaluation<()> {
        let input = self.vector(&aggregate.expr, steps)?;
        let of_row = folded.keys.assign(&input.labels)?;
        let groups = Groups { of_row, count: folded.keys.len() };
        let _scratch = self.scratch(groups.count * steps.count * LARGEST_STATE)?;
        folded.held.grow((groups.count * steps.count) as u64 * 8)?;
        folded.parts.push((steps.count, fold_groups(aggregate.op, &input, &groups, param)));
        folded.note_rows(&input, &groups);
        Ok(())
    }

    fn groups(&self, aggregate: &Aggregate, steps: Steps, folded: Folded) -> Evaluation<Vectors> {
        let order = folded.order();
        let Folded { keys, mut drop_name, parts, .. } = folded;
        drop_name.resize(keys.len(), false);
        let held = self.scratch(keys.len() * steps.count * size_of::<f64>())?;
        let values = joined(parts, keys.len(), steps.count);
        let mut vectors = Vectors::with_held(keys.into_labels(), values, steps.count, held)?;
        vectors.drop_name = drop_name;
        vectors.one_name = !grouping_of(aggregate).keeps(METRIC_NAME);
        let vectors = if order.is_sorted() { vectors } else { vectors.pick(&order) };
        Ok(vectors.without_empty_rows())
    }

    fn warn_of_quantiles(&self, aggregate: &Aggregate, param: &[f64]) {
        let span = aggregate.param.as_ref().map(|param| param.span).unwrap_or_default();
        let greatest = param.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = param.iter().copied().fold(f64::INFINITY, f64::min);
        let mut annotations = self.annotations.borrow_mut();
        if param.iter().any(|q| q.is_nan()) {
            annotations.invalid_quantile(f64::NAN, span);
        }
        for q in [greatest, least] {
            if q.is_finite() && is_invalid(q) || q.is_infinite() && param.contains(&q) {
                annotations.invalid_quantile(q, span);
            }
        }
    }

    fn count_values(&self, aggregate: &Aggregate, label: &str, steps: Steps) -> Evaluation<Vectors> {
        if label.is_empty() {
            return Err(QueryError::Execution(format!("invalid label name {}", quote(label))));
        }
        let input = self.vector(&aggregate.expr, steps)?;
        let base = grouping_of(aggregate);
        // `without` may name the label itself, which then takes no part.
        let labelled = !aggregate.without || base.keeps(label);
        let mut keys = Keys::new(Grouping::everything(), &self.account);
        let mut counts: Vec<f64> = Vec::new();
        let mut scratch = self.scratch(0)?;
        let mut buffer = LabelBuf::new();
        for row in 0..input.len() {
            let mut previous: Option<(u64, u32)> = None;
            for (step, &value) in input.row(row).iter().enumerate() {
                if is_absent(value) {
                    continue;
                }
                let key = match previous {
                    Some((bits, key)) if bits == value.to_bits() => key,
                    _ => {
                        input.labels.get(row, &mut buffer);
                        buffer.retain(|name, _| name != label && base.keeps(name));
                        if labelled {
                            buffer.push(label, &format_float(value));
                        }
                        buffer.sort();
                        keys.key(&buffer)?
                    }
                };
                previous = Some((value.to_bits(), key));
                let cell = key as usize * input.width + step;
                if cell >= counts.len() {
                    let needed = (key as usize + 1) * input.width;
                    let more = needed - counts.len();
                    scratch.make_room(&mut counts, more)?;
                    counts.resize(needed, ABSENT);
                }
                counts[cell] = if is_absent(counts[cell]) { 1.0 } else { counts[cell] + 1.0 };
            }
        }
        Vectors::new(keys.into_labels(), counts, input.width, &self.account)
    }
}

fn grouping_of(aggregate: &Aggregate) -> Grouping {
    if aggregate.without { Grouping::without(&aggregate.grouping) } else { Grouping::by(&aggregate.grouping) }
}

impl Folded {
    /// Groups by their first series. One part alone met them in that order; several may have met them in another.
    fn order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.keys.len() as u32).collect();
        if let (Some(first_series), true) = (&self.first_series, self.parts.len() > 1) {
            order.sort_by_key(|&group| first_series.get(group as usize).copied().unwrap_or(u64::MAX));
        }
        order
    }

    fn note_rows(&mut self, input: &Vectors, groups: &Groups) {
        self.drop_name.resize(groups.count, false);
        for (row, &group) in groups.of_row.iter().enumerate() {
            self.drop_name[group as usize] |= input.drop_name[row];
        }
        let Labels::Stored { ids, .. } = &input.labels else {
            self.first_series = None;
            return;
        };
        let Some(first_series) = &mut self.first_series else { return };
        first_series.resize(groups.count, u64::MAX);
        for (id, &group) in ids.iter().zip(&groups.of_row) {
            let first = &mut first_series[group as usize];
            *first = id.order.min(*first);
        }
    }
}

/// The parts of each group side by side.
fn joined(mut parts: Vec<(usize, Vec<f64>)>, groups: usize, width: usize) -> Vec<f64> {
    if let [(_, values)] = &mut parts[..]
        && values.len() == groups * width
    {
        return std::mem::take(values);
    }
    let mut joined = vec![ABSENT; groups * width];
    let mut first_step = 0;
    for (steps, values) in parts.iter().filter(|(steps, _)| *steps > 0) {
        for (group, row) in values.chunks_exact(*steps).enumerate() {
            joined[group * width + first_step..][..*steps].copy_from_slice(row);
        }
        first_step += steps;
    }
    joined
}
