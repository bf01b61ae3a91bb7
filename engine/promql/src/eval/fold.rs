//! Folds of a group's samples at each step.
use crate::ast::AggregateOp;

use super::aggregate::Groups;
use super::functions::kahan::{Mean, Sum};
use super::functions::quantile::quantile;
use super::vectors::{ABSENT, Vectors, is_absent};

/// Bytes of the largest state of a group at a step, with its result.
pub(super) const LARGEST_STATE: usize = size_of::<Option<Mean>>() + size_of::<f64>();

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

/// Folds the rows of each group, in their order, into one row; `param` has a value per step.
pub(super) fn fold_groups(op: AggregateOp, input: &Vectors, groups: &Groups, param: &[f64]) -> Vec<f64> {
    match op {
        AggregateOp::Sum => fold::<Sum>(input, groups),
        AggregateOp::Avg => fold::<Mean>(input, groups),
        AggregateOp::Min => fold::<Min>(input, groups),
        AggregateOp::Max => fold::<Max>(input, groups),
        AggregateOp::Count => fold::<Count>(input, groups),
        AggregateOp::Stdvar => fold::<Variance>(input, groups),
        AggregateOp::Stddev => {
            let mut values = fold::<Variance>(input, groups);
            for value in values.iter_mut().filter(|value| !is_absent(**value)) {
                *value = value.sqrt();
            }
            values
        }
        AggregateOp::Quantile => quantiles(input, groups, param),
        _ => fold::<Presence>(input, groups),
    }
}

/// One row of cells per group.
fn fold<F: Fold>(input: &Vectors, groups: &Groups) -> Vec<f64> {
    let width = input.width;
    let mut states: Vec<Option<F>> = vec![None; groups.count * width];
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
    let mut rows_of: Vec<Vec<usize>> = vec![Vec::new(); groups.count];
    for (row, &group) in groups.of_row.iter().enumerate() {
        rows_of[group as usize].push(row);
    }
    let mut values = Vec::with_capacity(groups.count * width);
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
