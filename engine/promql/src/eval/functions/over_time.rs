//! Aggregations over a window. Windows are never empty.
use crate::eval::window::Window;

use super::kahan::{Mean, Sum};
use super::quantile::quantile;

pub(in crate::eval) fn sum(values: &[f64]) -> f64 {
    let mut sum = Sum::default();
    values.iter().for_each(|value| sum.add(*value));
    if sum.sum.is_infinite() { sum.sum } else { sum.total() }
}

pub(in crate::eval) fn avg(values: &[f64]) -> f64 {
    let mut mean = Mean::starting_at(values[0]);
    values[1..].iter().for_each(|value| mean.add(*value));
    mean.value()
}

/// The index that `better(candidate, best)` picks; NaN only when there is nothing else.
pub(in crate::eval) fn best(values: &[f64], better: impl Fn(f64, f64) -> bool) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if better(*value, values[best]) || values[best].is_nan() {
            best = index;
        }
    }
    best
}

pub(in crate::eval) fn variance(values: &[f64]) -> f64 {
    let [mut mean, mut squares] = [Sum::default(); 2];
    let mut count = 0.0;
    for value in values {
        count += 1.0;
        let delta = value - mean.total();
        mean.add(delta / count);
        squares.add(delta * (value - mean.total()));
    }
    squares.total() / count
}

/// Median of the distances from the median.
pub(in crate::eval) fn median_absolute_deviation(values: &[f64], scratch: &mut Vec<f64>) -> f64 {
    if values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    scratch.clear();
    scratch.extend_from_slice(values);
    let median = quantile(0.5, scratch);
    scratch.iter_mut().for_each(|value| *value = (*value - median).abs());
    quantile(0.5, scratch)
}

/// A time of the window in seconds.
pub(in crate::eval) fn seconds(window: &Window<'_>, index: usize) -> f64 {
    window.times[index] as f64 / 1000.0
}
