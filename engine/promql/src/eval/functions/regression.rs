//! Trends over a window.
use crate::eval::window::Window;

use super::kahan::Sum;

/// Slope per second and value at `intercept_ms` of the least-squares line.
fn line(window: &Window<'_>, intercept_ms: i64) -> (f64, f64) {
    let first = window.values[0];
    if window.values.iter().all(|value| *value == first) {
        return if first.is_infinite() { (f64::NAN, f64::NAN) } else { (0.0, first) };
    }
    let [mut x_sum, mut y_sum, mut xy_sum, mut xx_sum] = [Sum::default(); 4];
    for (&time, &y) in window.times.iter().zip(window.values) {
        let x = (time - intercept_ms) as f64 / 1000.0;
        x_sum.add(x);
        y_sum.add(y);
        xy_sum.add(x * y);
        xx_sum.add(x * x);
    }
    let n = window.values.len() as f64;
    let (x_sum, y_sum) = (x_sum.total(), y_sum.total());
    let covariance = xy_sum.total() - x_sum * y_sum / n;
    let variance = xx_sum.total() - x_sum * x_sum / n;
    let slope = covariance / variance;
    (slope, y_sum / n - slope * x_sum / n)
}

/// Slope per second.
pub(in crate::eval) fn derivative(window: &Window<'_>) -> Option<f64> {
    (window.values.len() >= 2).then(|| line(window, window.times[0]).0)
}

/// Value of the trend `seconds` after the evaluation.
pub(in crate::eval) fn prediction(window: &Window<'_>, seconds: f64) -> Option<f64> {
    (window.values.len() >= 2).then(|| {
        let (slope, intercept) = line(window, window.time_ms);
        slope * seconds + intercept
    })
}

/// Double exponential smoothing with a smoothing and a trend factor.
pub(in crate::eval) fn smoothed(values: &[f64], smoothing: f64, trend: f64) -> Option<f64> {
    let &[first, second, ..] = values else { return None };
    let (mut before, mut level) = (0.0, first);
    let mut slope = second - first;
    for (index, value) in values.iter().enumerate().skip(1) {
        if index > 1 {
            slope = trend * (level - before) + (1.0 - trend) * slope;
        }
        let next = smoothing * value + (1.0 - smoothing) * (level + slope);
        (before, level) = (level, next);
    }
    Some(level)
}
