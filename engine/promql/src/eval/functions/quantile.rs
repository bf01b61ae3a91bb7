//! Quantiles of plain values.
use std::cmp::Ordering;

/// Ascending, NaN first: where PromQL ranks values.
pub(in crate::eval) fn nan_first(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
        (a_is_nan, b_is_nan) => b_is_nan.cmp(&a_is_nan),
    }
}

/// The quantile of `values` (which are sorted), between two of them weighted by distance.
pub(in crate::eval) fn quantile(q: f64, values: &mut [f64]) -> f64 {
    if values.is_empty() || q.is_nan() {
        return f64::NAN;
    }
    if q < 0.0 {
        return f64::NEG_INFINITY;
    }
    if q > 1.0 {
        return f64::INFINITY;
    }
    values.sort_by(|a, b| nan_first(*a, *b));
    let last = (values.len() - 1) as f64;
    let rank = q * last;
    let lower = rank.floor().max(0.0);
    let upper = (lower + 1.0).min(last);
    let weight = rank - rank.floor();
    if weight == 0.0 {
        return values[lower as usize];
    }
    values[lower as usize] * (1.0 - weight) + values[upper as usize] * weight
}

/// Whether a quantile deserves a warning.
pub(in crate::eval) fn is_invalid(q: f64) -> bool {
    !(0.0..=1.0).contains(&q)
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn a_quantile_between_two_values_is_weighted() {
        assert_eq!(quantile(0.5, &mut [4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(quantile(1.0, &mut [4.0, 1.0]), 4.0);
        assert_eq!(quantile(-0.1, &mut [1.0]), f64::NEG_INFINITY);
        assert!(quantile(0.0, &mut [1.0, f64::NAN]).is_nan());
    }
}
