//! Classic histograms: cumulative counts per upper bound.
use std::cmp::Ordering;

/// Relative differences below this between neighbouring counts are rounding errors.
const SMALL_DIFFERENCE: f64 = 1e-12;

/// A bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::eval) struct Bucket {
    pub upper_bound: f64,
    pub count: f64,
}

/// Counts that fell where they must rise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::eval) struct Forced {
    pub least_bucket: f64,
    pub greatest_bucket: f64,
    pub greatest_difference: f64,
}

/// Sorted by bound, equal bounds added up; false when the last bound is not +Inf.
fn normalize(buckets: &mut Vec<Bucket>) -> bool {
    buckets.sort_by(|a, b| a.upper_bound.partial_cmp(&b.upper_bound).unwrap_or(Ordering::Equal));
    buckets.dedup_by(|next, kept| {
        let same = next.upper_bound == kept.upper_bound;
        if same {
            kept.count += next.count;
        }
        same
    });
    buckets.last().is_some_and(|bucket| bucket.upper_bound == f64::INFINITY)
}

fn almost_equal(a: f64, b: f64) -> bool {
    let sum = a.abs() + b.abs();
    let difference = (a - b).abs();
    if a == 0.0 || b == 0.0 || sum < f64::MIN_POSITIVE {
        return difference < SMALL_DIFFERENCE * f64::MIN_POSITIVE;
    }
    difference / sum.min(f64::MAX) < SMALL_DIFFERENCE
}

fn force_monotonic(buckets: &mut [Bucket]) -> Option<Forced> {
    let mut forced: Option<Forced> = None;
    let mut previous = buckets.first()?.count;
    for bucket in &mut buckets[1..] {
        let count = bucket.count;
        if count == previous {
            continue;
        }
        if almost_equal(previous, count) {
            bucket.count = previous;
        } else if count < previous {
            bucket.count = previous;
            let all = forced.get_or_insert(Forced {
                least_bucket: f64::INFINITY,
                greatest_bucket: f64::NEG_INFINITY,
                greatest_difference: 0.0,
            });
            all.least_bucket = all.least_bucket.min(bucket.upper_bound);
            all.greatest_bucket = all.greatest_bucket.max(bucket.upper_bound);
            all.greatest_difference = all.greatest_difference.max(previous - count);
        } else {
            previous = count;
        }
    }
    forced
}

/// The quantile, linear inside its bucket, and what had to be corrected.
pub(in crate::eval) fn quantile(q: f64, buckets: &mut Vec<Bucket>) -> (f64, Option<Forced>) {
    if q.is_nan() {
        return (f64::NAN, None);
    }
    if q < 0.0 {
        return (f64::NEG_INFINITY, None);
    }
    if q > 1.0 {
        return (f64::INFINITY, None);
    }
    if !normalize(buckets) {
        return (f64::NAN, None);
    }
    let forced = force_monotonic(buckets);
    let last = buckets.len() - 1;
    let observations = buckets[last].count;
    if last == 0 || observations == 0.0 {
        return (f64::NAN, forced);
    }
    let mut rank = q * observations;
    // The first bucket that reaches the rank; the last one counts as reaching it.
    let found = buckets[..last].iter().position(|bucket| bucket.count >= rank).unwrap_or(last);
    let value = if found == last {
        buckets[last - 1].upper_bound
    } else if found == 0 && buckets[0].upper_bound <= 0.0 {
        buckets[0].upper_bound
    } else {
        let (mut start, end, mut count) = (0.0, buckets[found].upper_bound, buckets[found].count);
        if found > 0 {
            start = buckets[found - 1].upper_bound;
            count -= buckets[found - 1].count;
            rank -= buckets[found - 1].count;
        }
        start + (end - start) * (rank / count)
    };
    (value, forced)
}

/// The share of observations in `lower..upper`.
pub(in crate::eval) fn fraction(lower: f64, upper: f64, buckets: &mut Vec<Bucket>) -> f64 {
    if !normalize(buckets) {
        return f64::NAN;
    }
    let count = buckets[buckets.len() - 1].count;
    if count == 0.0 || lower.is_nan() || upper.is_nan() {
        return f64::NAN;
    }
    if lower >= upper {
        return 0.0;
    }
    (rank_of(upper, buckets).min(count) - rank_of(lower, buckets).min(count)) / count
}

/// Observations below a value.
fn rank_of(value: f64, buckets: &[Bucket]) -> f64 {
    let mut lower_bound = if buckets[0].upper_bound <= 0.0 { f64::NEG_INFINITY } else { 0.0 };
    let mut rank = 0.0;
    for bucket in buckets {
        if lower_bound >= value {
            return rank;
        }
        if bucket.upper_bound > value {
            // Nothing can be said about where in an endless bucket observations lie.
            if lower_bound == f64::NEG_INFINITY {
                return bucket.count;
            }
            let width = bucket.upper_bound - lower_bound;
            return rank + (bucket.count - rank) * (value - lower_bound) / width;
        }
        rank = bucket.count;
        lower_bound = bucket.upper_bound;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::{Bucket, fraction, quantile};

    fn buckets(pairs: &[(f64, f64)]) -> Vec<Bucket> {
        pairs.iter().map(|&(upper_bound, count)| Bucket { upper_bound, count }).collect()
    }

    #[test]
    fn a_quantile_lies_linearly_inside_its_bucket() {
        let of = |q| quantile(q, &mut buckets(&[(1.0, 10.0), (2.0, 20.0), (f64::INFINITY, 20.0)])).0;
        assert_eq!(of(0.25), 0.5);
        assert_eq!(of(0.75), 1.5);
        assert_eq!(of(1.0), 2.0);
    }

    #[test]
    fn falling_counts_are_raised_and_reported() {
        let (_, forced) = quantile(0.5, &mut buckets(&[(1.0, 10.0), (2.0, 8.0), (f64::INFINITY, 12.0)]));
        let forced = forced.unwrap();
        assert_eq!((forced.least_bucket, forced.greatest_difference), (2.0, 2.0));
    }

    #[test]
    fn a_fraction_counts_between_two_values() {
        let mut of = buckets(&[(1.0, 10.0), (2.0, 20.0), (f64::INFINITY, 20.0)]);
        assert_eq!(fraction(0.5, 1.5, &mut of), 0.5);
        assert_eq!(fraction(f64::NEG_INFINITY, f64::INFINITY, &mut of), 1.0);
    }
}
