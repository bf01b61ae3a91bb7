//! What Prometheus demands of a histogram, and our bound on its size.
use super::{
    CUSTOM_BUCKETS_SCHEMA, Counts, EXPONENTIAL_SCHEMAS, Histogram, HistogramCounts, MAX_PARTS, Span,
};

/// Why a histogram is refused; the meaning of each is Prometheus'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HistogramError {
    /// The schema is none that exists.
    #[error(
        "histogram has an invalid schema {0}, must be between -4 and 8 for exponential buckets, or -53 for custom buckets"
    )]
    Schema(i32),
    /// A span behind the first begins before the end of the one before.
    #[error("histogram has a span whose offset is negative: span number {number} with offset {offset}")]
    SpanOffset {
        /// Counted from 1.
        number: usize,
        /// As it came.
        offset: i32,
    },
    /// Spans reach beyond the last bucket index.
    #[error("histogram has spans beyond the last bucket index")]
    SpanOverflow,
    /// Spans and buckets are not equally many.
    #[error("histogram spans and buckets do not match: spans need {spans} buckets, have {buckets}")]
    SpanBuckets {
        /// Buckets that the spans name.
        spans: u64,
        /// Buckets there are.
        buckets: usize,
    },
    /// A bucket holds less than nothing.
    #[error("histogram has a bucket whose observation count is negative: bucket number {0}")]
    NegativeBucket(usize),
    /// Counts exceed 64 bits.
    #[error("histogram has more observations in its buckets than 64 bits can count")]
    CountOverflow,
    /// The buckets hold more than all observations, though some of those are in none.
    #[error(
        "histogram's observation count is too small: {buckets} found in buckets, but the count is {count}"
    )]
    CountTooSmall {
        /// In the buckets.
        buckets: u64,
        /// In all.
        count: u64,
    },
    /// The buckets do not hold all observations.
    #[error(
        "histogram's observation count does not match: {buckets} found in buckets, but the count is {count}"
    )]
    CountMismatch {
        /// In the buckets.
        buckets: u64,
        /// In all.
        count: u64,
    },
    /// Custom bounds do not ascend, or are no numbers.
    #[error("histogram custom bounds must be in strictly increasing order")]
    BoundsOrder,
    /// The infinite bound must be left out.
    #[error("histogram custom bounds must be finite")]
    BoundsInfinite,
    /// More buckets than custom bounds.
    #[error("histogram has {bounds} custom bounds, too few for spans of {length} buckets")]
    BoundsTooFew {
        /// Bounds there are.
        bounds: usize,
        /// What the spans cover.
        length: u64,
    },
    /// Custom buckets know no zero bucket.
    #[error("histogram with custom buckets must have zero bucket count and threshold 0")]
    CustomZeroBucket,
    /// Custom buckets know no negative side.
    #[error("histogram with custom buckets must not have negative spans or buckets")]
    CustomNegative,
    /// Exponential schemas have no custom bounds.
    #[error("histogram with exponential schema must not have custom bounds")]
    ExponentialBounds,
    /// More spans, buckets or bounds than are kept.
    #[error("histogram has more than {MAX_PARTS} spans, buckets or custom bounds")]
    TooLarge,
}

impl Histogram {
    /// Checks that spans, buckets, bounds and counts agree.
    pub fn validate(&self) -> Result<(), HistogramError> {
        let (positive, negative) = match &self.counts {
            HistogramCounts::Integer(counts) => (counts.positive.len(), counts.negative.len()),
            HistogramCounts::Float(counts) => (counts.positive.len(), counts.negative.len()),
        };
        let parts = [self.positive_spans.len(), self.negative_spans.len(), self.custom_bounds.len()];
        if parts.into_iter().chain([positive, negative]).any(|count| count > MAX_PARTS) {
            return Err(HistogramError::TooLarge);
        }
        if self.schema == CUSTOM_BUCKETS_SCHEMA {
            self.check_custom(positive, negative)?;
        } else if EXPONENTIAL_SCHEMAS.contains(&self.schema) {
            check_spans(&self.positive_spans, positive)?;
            check_spans(&self.negative_spans, negative)?;
            if !self.custom_bounds.is_empty() {
                return Err(HistogramError::ExponentialBounds);
            }
        } else {
            return Err(HistogramError::Schema(self.schema));
        }
        match &self.counts {
            HistogramCounts::Integer(counts) => check_integers(counts, self.sum),
            HistogramCounts::Float(counts) => check_floats(counts),
        }
    }

    fn check_custom(&self, positive: usize, negative: usize) -> Result<(), HistogramError> {
        let mut previous = f64::NEG_INFINITY;
        for &bound in &self.custom_bounds {
            if bound.is_nan() || bound <= previous {
                return Err(HistogramError::BoundsOrder);
            }
            previous = bound;
        }
        if previous == f64::INFINITY {
            return Err(HistogramError::BoundsInfinite);
        }
        // Offsets count from the first bound, so that not even the first may be negative.
        check_offsets(&self.positive_spans, 0)?;
        check_spans(&self.positive_spans, positive)?;
        let covered = |span: &Span| u64::from(span.offset.unsigned_abs()) + u64::from(span.length);
        let length = self.positive_spans.iter().map(covered).sum();
        if self.custom_bounds.len() as u64 + 1 < length {
            return Err(HistogramError::BoundsTooFew { bounds: self.custom_bounds.len(), length });
        }
        let zero = match &self.counts {
            HistogramCounts::Integer(counts) => counts.zero == 0,
            HistogramCounts::Float(counts) => counts.zero == 0.0,
        };
        if !zero || self.zero_threshold != 0.0 {
            return Err(HistogramError::CustomZeroBucket);
        }
        if negative > 0 || !self.negative_spans.is_empty() {
            return Err(HistogramError::CustomNegative);
        }
        Ok(())
    }
}

fn check_offsets(spans: &[Span], from: usize) -> Result<(), HistogramError> {
    match spans.iter().enumerate().skip(from).find(|(_, span)| span.offset < 0) {
        Some((index, span)) => Err(HistogramError::SpanOffset { number: index + 1, offset: span.offset }),
        None => Ok(()),
    }
}

fn check_spans(spans: &[Span], buckets: usize) -> Result<(), HistogramError> {
    check_offsets(spans, 1)?;
    let mut end = 0i32;
    for span in spans {
        let length = i32::try_from(span.length).map_err(|_| HistogramError::SpanOverflow)?;
        let after = end.checked_add(span.offset).and_then(|start| start.checked_add(length));
        end = after.ok_or(HistogramError::SpanOverflow)?;
    }
    let wanted = spans.iter().map(|span| u64::from(span.length)).sum();
    if wanted == buckets as u64 {
        return Ok(());
    }
    Err(HistogramError::SpanBuckets { spans: wanted, buckets })
}

fn check_integers(counts: &Counts<u64>, sum: f64) -> Result<(), HistogramError> {
    let all = counts.positive.iter().chain(&counts.negative).chain([&counts.zero]);
    let buckets = all.copied().try_fold(0u64, u64::checked_add).ok_or(HistogramError::CountOverflow)?;
    let count = counts.count;
    // An observation that is no number is counted, but in no bucket.
    match sum.is_nan() {
        true if buckets > count => Err(HistogramError::CountTooSmall { buckets, count }),
        false if buckets != count => Err(HistogramError::CountMismatch { buckets, count }),
        _ => Ok(()),
    }
}

/// Sums are not compared: rounding would make false alarms.
fn check_floats(counts: &Counts<f64>) -> Result<(), HistogramError> {
    for side in [&counts.positive, &counts.negative] {
        if let Some(index) = side.iter().position(|&count| count < 0.0) {
            return Err(HistogramError::NegativeBucket(index + 1));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::ResetHint;
    use super::*;

    fn integer(positive_spans: Vec<Span>, positive: Vec<u64>, count: u64) -> Histogram {
        let counts = HistogramCounts::Integer(Counts { count, zero: 0, positive, negative: Vec::new() });
        Histogram { counts, positive_spans, ..Histogram::default() }
    }

    fn span(offset: i32, length: u32) -> Span {
        Span { offset, length }
    }

    #[test]
    fn a_histogram_whose_parts_agree_is_valid() {
        integer(vec![span(-3, 2), span(1, 1)], vec![1, 2, 3], 6).validate().unwrap();
        Histogram::stale().validate().unwrap();
        Histogram { reset_hint: ResetHint::Gauge, ..Histogram::default() }.validate().unwrap();
    }

    #[test]
    fn spans_with_a_negative_offset_are_refused() {
        // grafana/mimir#16273: such spans once came out of a re-encoding and grew from merge to merge.
        let error = integer(vec![span(0, 1), span(-1, 1)], vec![1, 1], 2).validate();
        assert_eq!(error, Err(HistogramError::SpanOffset { number: 2, offset: -1 }));
        let custom = |offset| Histogram {
            schema: CUSTOM_BUCKETS_SCHEMA,
            custom_bounds: vec![1.0, 2.0],
            ..integer(vec![span(offset, 1)], vec![1], 1)
        };
        assert_eq!(custom(-1).validate(), Err(HistogramError::SpanOffset { number: 1, offset: -1 }));
        custom(2).validate().unwrap();
        assert_eq!(custom(3).validate(), Err(HistogramError::BoundsTooFew { bounds: 2, length: 4 }));
    }

    #[test]
    fn spans_and_buckets_must_be_equally_many() {
        let error = integer(vec![span(0, 2)], vec![1], 1).validate();
        assert_eq!(error, Err(HistogramError::SpanBuckets { spans: 2, buckets: 1 }));
        let far = integer(vec![span(i32::MAX, 1)], vec![1], 1).validate();
        assert_eq!(far, Err(HistogramError::SpanOverflow));
    }

    #[test]
    fn the_count_is_that_of_all_buckets_unless_an_observation_was_no_number() {
        let mut histogram = integer(vec![span(0, 1)], vec![5], 6);
        assert_eq!(histogram.validate(), Err(HistogramError::CountMismatch { buckets: 5, count: 6 }));
        histogram.sum = f64::NAN;
        histogram.validate().unwrap();
        histogram.counts =
            HistogramCounts::Integer(Counts { count: 4, positive: vec![5], ..Counts::default() });
        assert_eq!(histogram.validate(), Err(HistogramError::CountTooSmall { buckets: 5, count: 4 }));
        let overflow = integer(vec![span(0, 2)], vec![u64::MAX, 1], 0).validate();
        assert_eq!(overflow, Err(HistogramError::CountOverflow));
    }

    #[test]
    fn float_buckets_must_not_be_negative() {
        let counts = Counts { count: 1.0, zero: 0.0, positive: vec![2.0, -0.5], negative: Vec::new() };
        let histogram = Histogram {
            positive_spans: vec![span(0, 2)],
            counts: HistogramCounts::Float(counts),
            ..Histogram::default()
        };
        assert_eq!(histogram.validate(), Err(HistogramError::NegativeBucket(2)));
    }

    #[test]
    fn schemas_are_exponential_from_minus_4_to_8_or_custom() {
        for schema in [-5, 9, -52, i32::MIN] {
            let histogram = Histogram { schema, ..Histogram::default() };
            assert_eq!(histogram.validate(), Err(HistogramError::Schema(schema)));
        }
        for schema in [-4, 8, CUSTOM_BUCKETS_SCHEMA] {
            Histogram { schema, ..Histogram::default() }.validate().unwrap();
        }
        let bounds = |bounds: &[f64]| Histogram {
            schema: CUSTOM_BUCKETS_SCHEMA,
            custom_bounds: bounds.to_vec(),
            ..Histogram::default()
        };
        assert_eq!(bounds(&[1.0, 1.0]).validate(), Err(HistogramError::BoundsOrder));
        assert_eq!(bounds(&[1.0, f64::NAN]).validate(), Err(HistogramError::BoundsOrder));
        assert_eq!(bounds(&[1.0, f64::INFINITY]).validate(), Err(HistogramError::BoundsInfinite));
        let custom_zero = Histogram { zero_threshold: 0.1, ..bounds(&[1.0]) };
        assert_eq!(custom_zero.validate(), Err(HistogramError::CustomZeroBucket));
        let exponential = Histogram { schema: 3, ..bounds(&[1.0]) };
        assert_eq!(exponential.validate(), Err(HistogramError::ExponentialBounds));
    }

    #[test]
    fn a_histogram_beyond_the_bound_is_refused() {
        let spans = vec![span(0, 0); MAX_PARTS + 1];
        assert_eq!(integer(spans, Vec::new(), 0).validate(), Err(HistogramError::TooLarge));
    }
}
