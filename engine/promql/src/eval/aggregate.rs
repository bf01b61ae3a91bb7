//! Aggregations that make new series: folded row after row in creation order, every step of a row at once.
use metricsstore_model::LabelBuf;

use crate::ast::{Aggregate, AggregateOp};
use crate::error::QueryError;
use crate::literal::{format_float, quote};
use crate::value::LabelTable;

use super::functions::kahan::{Mean, Sum};
use super::functions::quantile::{is_invalid, quantile};
use super::keys::{Grouping, Keys};
use super::vectors::{ABSENT, Labels, Vectors, is_absent};
use super::{Evaluation, Query, Steps};

/// Bytes of the largest state of a group at a step, with its result.
const LARGEST_STATE: usize = size_of::<Option<Mean>>() + size_of::<f64>();

/// The rows of an aggregation's input, sorted into groups.
pub(super) struct Groups {
    /// Group of each row.
    pub of_row: Vec<u32>,
    /// Label sets of the groups.
    pub labels: LabelTable,
}

/// What is known of one group at one step.
trait Fold: Copy {
    fn start(value: f64) -> Self;
    fn add(&mut self, value: f64);
    fn value(self) -> f64;
}

impl Fold for Sum {
    fn start(value: f64) -> Sum {
        Sum::starting_at(value)
    }
    fn add(&mut self, value: f64) {
        Sum::add(self, value);
    }
    fn value(self) -> f64 {
        self.total()
    }
}

impl Fold for Mean {
    fn start(value: f64) -> Mean {
        Mean::starting_at(value)
    }
    fn add(&mut self, value: f64) {
        Mean::add(self, value);
    }
    fn value(self) -> f64 {
        Mean::value(self)
    }
}

#[derive(Clone, Copy)]
struct Min(f64);

impl Fold for Min {
    fn start(value: f64) -> Min {
        Min(value)
    }
    fn add(&mut self, value: f64) {
        if self.0 > value || self.0.is_nan() {
            self.0 = value;
        }
    }
    fn value(self) -> f64 {
        self.0
    }
}

#[derive(Clone, Copy)]
struct Max(f64);

impl Fold for Max {
    fn start(value: f64) -> Max {
        Max(value)
    }
    fn add(&mut self, value: f64) {
        if self.0 < value || self.0.is_nan() {
            self.0 = value;
        }
    }
    fn value(self) -> f64 {
        self.0
    }
}

#[derive(Clone, Copy)]
struct Count(f64);

impl Fold for Count {
    fn start(_: f64) -> Count {
        Count(1.0)
    }
    fn add(&mut self, _: f64) {
        self.0 += 1.0;
    }
    fn value(self) -> f64 {
        self.0
    }
}

#[derive(Clone, Copy)]
struct Presence;

impl Fold for Presence {
    fn start(_: f64) -> Presence {
        Presence
    }
    fn add(&mut self, _: f64) {}
    fn value(self) -> f64 {
        1.0
    }
}

/// Welford's running variance.
#[derive(Clone, Copy)]
struct Variance {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Fold for Variance {
    fn start(value: f64) -> Variance {
        Variance { count: 1.0, mean: value, squares: if value.is_finite() { 0.0 } else { f64::NAN } }
    }
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        let delta = value - self.mean;
        self.mean += delta / self.count;
        self.squares += delta * (value - self.mean);
    }
    fn value(self) -> f64 {
        self.squares / self.count
    }
}

impl Query<'_> {
    pub(super) fn aggregate(&self, aggregate: &Aggregate, steps: Steps) -> Evaluation<Vectors> {
        if let (AggregateOp::CountValues, Some(param)) = (aggregate.op, &aggregate.param) {
            let label = self.text(param, steps)?;
            return self.count_values(aggregate, &label, steps);
        }
        let param = aggregate.param.as_ref().map(|param| self.scalar(param, steps)).transpose()?;
        let input = self.vector(&aggregate.expr, steps)?;
        let grouping = grouping_of(aggregate);
        let mut keys = Keys::new(grouping);
        let of_row = keys.assign(&input.labels);
        let groups = Groups { of_row, labels: keys.into_table() };
        let param = param.unwrap_or_default();
        let _scratch = self.scratch(groups.labels.len() * steps.count * LARGEST_STATE)?;
        if aggregate.op.picks_series() {
            return self.pick_series(aggregate, &param, input, &groups, steps);
        }
        let values = match aggregate.op {
            AggregateOp::Sum => fold::<Sum>(&input, &groups),
            AggregateOp::Avg => fold::<Mean>(&input, &groups),
            AggregateOp::Min => fold::<Min>(&input, &groups),
            AggregateOp::Max => fold::<Max>(&input, &groups),
            AggregateOp::Count => fold::<Count>(&input, &groups),
            AggregateOp::Stdvar => fold::<Variance>(&input, &groups),
            AggregateOp::Stddev => {
                let mut values = fold::<Variance>(&input, &groups);
                for value in values.iter_mut().filter(|value| !is_absent(**value)) {
                    *value = value.sqrt();
                }
                values
            }
            AggregateOp::Quantile => {
                self.warn_of_quantiles(aggregate, &param);
                quantiles(&input, &groups, &param)
            }
            _ => fold::<Presence>(&input, &groups),
        };
        self.grouped(aggregate, &input, groups, values)
    }

    fn grouped(
        &self,
        aggregate: &Aggregate,
        input: &Vectors,
        groups: Groups,
        values: Vec<f64>,
    ) -> Evaluation<Vectors> {
        let mut drop_name = vec![false; groups.labels.len()];
        for (row, &group) in groups.of_row.iter().enumerate() {
            drop_name[group as usize] |= input.drop_name[row];
        }
        let mut vectors = Vectors::new(Labels::owned(groups.labels), values, input.width, &self.account)?;
        vectors.drop_name = drop_name;
        vectors.one_name = !grouping_of(aggregate).keeps(metricsstore_model::METRIC_NAME);
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
        let mut keys = Keys::new(Grouping::everything());
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
                        keys.key(&buffer)
                    }
                };
                previous = Some((value.to_bits(), key));
                let cell = key as usize * input.width + step;
                if cell >= counts.len() {
                    scratch.grow(input.width as u64 * 8)?;
                    counts.resize((key as usize + 1) * input.width, ABSENT);
                }
                counts[cell] = if is_absent(counts[cell]) { 1.0 } else { counts[cell] + 1.0 };
            }
        }
        Vectors::new(Labels::owned(keys.into_table()), counts, input.width, &self.account)
    }
}

fn grouping_of(aggregate: &Aggregate) -> Grouping {
    if aggregate.without { Grouping::without(&aggregate.grouping) } else { Grouping::by(&aggregate.grouping) }
}

/// One row of cells per group.
fn fold<F: Fold>(input: &Vectors, groups: &Groups) -> Vec<f64> {
    let width = input.width;
    let mut states: Vec<Option<F>> = vec![None; groups.labels.len() * width];
    for (row, &group) in groups.of_row.iter().enumerate() {
        let states = &mut states[group as usize * width..][..width];
        for (state, &value) in states.iter_mut().zip(input.row(row)) {
            if is_absent(value) {
                continue;
            }
            match state {
                Some(state) => state.add(value),
                None => *state = Some(F::start(value)),
            }
        }
    }
    states.into_iter().map(|state| state.map_or(ABSENT, F::value)).collect()
}

fn quantiles(input: &Vectors, groups: &Groups, q: &[f64]) -> Vec<f64> {
    let width = input.width;
    let mut rows_of: Vec<Vec<usize>> = vec![Vec::new(); groups.labels.len()];
    for (row, &group) in groups.of_row.iter().enumerate() {
        rows_of[group as usize].push(row);
    }
    let mut values = Vec::with_capacity(groups.labels.len() * width);
    let mut scratch = Vec::new();
    for rows in &rows_of {
        for (step, &q) in q.iter().enumerate() {
            scratch.clear();
            let cells = rows.iter().map(|&row| input.row(row)[step]);
            scratch.extend(cells.filter(|value| !is_absent(*value)));
            values.push(if scratch.is_empty() { ABSENT } else { quantile(q, &mut scratch) });
        }
    }
    values
}
