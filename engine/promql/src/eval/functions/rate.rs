//! The rate family: differences over a window.
use crate::eval::window::Window;

/// What is made of the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::eval) enum Slope {
    /// Per second, of a counter.
    Rate,
    /// Of a counter.
    Increase,
    /// Of a gauge.
    Delta,
}

/// The difference over the whole window, extrapolated from the first and last samples to its bounds; resets of a
/// counter count as a fall to zero.
pub(in crate::eval) fn extrapolated(window: &Window<'_>, slope: Slope) -> Option<f64> {
    let (times, values) = (window.times, window.values);
    if values.len() < 2 {
        return None;
    }
    let last = values.len() - 1;
    let is_counter = slope != Slope::Delta;
    let mut result = values[last] - values[0];
    if is_counter {
        for pair in values.windows(2) {
            if pair[1] < pair[0] {
                result += pair[0];
            }
        }
    }
    let mut to_start = (times[0] - window.start_ms) as f64 / 1000.0;
    let mut to_end = (window.end_ms - times[last]) as f64 / 1000.0;
    let sampled = (times[last] - times[0]) as f64 / 1000.0;
    let between_samples = sampled / last as f64;
    // A gap at a bound longer than this means that the series begins or ends inside the window.
    let longest_gap = between_samples * 1.1;
    if to_start >= longest_gap {
        to_start = between_samples / 2.0;
    }
    if is_counter && result > 0.0 && values[0] >= 0.0 {
        // A counter cannot have been below zero.
        let to_zero = sampled * (values[0] / result);
        if to_zero < to_start {
            to_start = to_zero;
        }
    }
    if to_end >= longest_gap {
        to_end = between_samples / 2.0;
    }
    let mut factor = if sampled == 0.0 { 1.0 } else { (sampled + to_start + to_end) / sampled };
    if slope == Slope::Rate {
        factor /= (window.end_ms - window.start_ms) as f64 / 1000.0;
    }
    Some(result * factor)
}

/// The difference of the last two samples; per second and reset-aware for a counter.
pub(in crate::eval) fn instant(window: &Window<'_>, per_second: bool) -> Option<f64> {
    let &[.., before, last] = window.values else { return None };
    let &[.., time_before, time_last] = window.times else { return None };
    let interval_ms = time_last - time_before;
    if interval_ms == 0 {
        return None;
    }
    let difference = if per_second && last < before { last } else { last - before };
    Some(if per_second { difference / (interval_ms as f64 / 1000.0) } else { difference })
}

/// Falls of a counter.
pub(in crate::eval) fn resets(values: &[f64]) -> f64 {
    values.windows(2).filter(|pair| pair[1] < pair[0]).count() as f64
}

/// Changes of value; from NaN to NaN is none.
pub(in crate::eval) fn changes(values: &[f64]) -> f64 {
    let changed = |pair: &&[f64]| pair[0] != pair[1] && !(pair[0].is_nan() && pair[1].is_nan());
    values.windows(2).filter(changed).count() as f64
}
