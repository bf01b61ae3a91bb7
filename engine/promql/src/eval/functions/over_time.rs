//! Aggregations over a window. Windows are never empty.
use crate::eval::window::Window;

use super::kahan::{Mean, Sum};
use super::quantile::quantile;

pub(in crate::eval) fn sum(values: &[f64]) -> f64 {
    let mut sum = Sum::default();
    for value in values {
        sum.add(*value);
    }
    if sum.sum.is_infinite() { sum.sum } else { sum.total() }
}

pub(in crate::eval) fn avg(values: &[f64]) -> f64 {
    let mut mean = Mean::starting_at(values[0]);
    for value in &values[1..] {
        mean.add(*value);
    }
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
    for value in scratch.iter_mut() {
        *value = (*value - median).abs();
    }
    quantile(0.5, scratch)
}

/// A time of the window in seconds.
pub(in crate::eval) fn seconds(window: &Window<'_>, index: usize) -> f64 {
    window.times[index] as f64 / 1000.0
}

/// How an integral takes the values between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::eval) enum Quadrature {
    Left,
    Right,
    Trapezoidal,
}

impl Quadrature {
    /// By its number in the language.
    pub fn from_number(number: f64) -> Option<Quadrature> {
        [Quadrature::Left, Quadrature::Right, Quadrature::Trapezoidal]
            .into_iter()
            .zip([0.0, 1.0, 2.0])
            .find(|(_, known)| *known == number)
            .map(|(quadrature, _)| quadrature)
    }

    /// The mean height between two samples, with its rounding error.
    fn height(self, before: f64, after: f64) -> Sum {
        match self {
            Quadrature::Left => Sum::starting_at(before),
            Quadrature::Right => Sum::starting_at(after),
            Quadrature::Trapezoidal => {
                let both = Sum::starting_at(before).plus(after);
                if both.sum.is_infinite() && before.is_finite() && after.is_finite() {
                    return Sum::starting_at(before / 2.0).plus(after / 2.0);
                }
                Sum { sum: both.sum / 2.0, compensation: both.compensation / 2.0 }
            }
        }
    }
}

/// The area under the samples, in value × seconds; NaN counts as zero.
pub(in crate::eval) fn integral(window: &Window<'_>, quadrature: Quadrature) -> f64 {
    let number = |value: f64| if value.is_nan() { 0.0 } else { value };
    let mut area = Sum::default();
    for (values, times) in window.values.windows(2).zip(window.times.windows(2)) {
        let height = quadrature.height(number(values[0]), number(values[1]));
        if height.sum != 0.0 || height.compensation != 0.0 {
            let seconds = (times[1] - times[0]) as f64 / 1000.0;
            area.compensation += height.compensation * seconds;
            area.add(height.sum * seconds);
        }
    }
    if area.sum.is_infinite() { area.sum } else { area.total() }
}
