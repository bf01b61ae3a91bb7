//! Histograms come back bit for bit, whatever they hold, and damaged ones are errors.
#![allow(clippy::unwrap_used, reason = "tests may panic")]
use metricsstore_codec::histogram::{
    CUSTOM_BUCKETS_SCHEMA, Counts, Histogram, HistogramCounts, ResetHint, Span, decode, encode,
};
use proptest::prelude::*;

/// A double by its bits: zeros of both signs, infinities and every NaN among them.
fn double() -> impl Strategy<Value = f64> {
    prop_oneof![any::<u64>().prop_map(f64::from_bits), (0..1000u32).prop_map(f64::from), Just(-0.0)]
}

fn spans() -> impl Strategy<Value = Vec<Span>> {
    prop::collection::vec((-5..20i32, 0..5u32).prop_map(|(offset, length)| Span { offset, length }), 0..4)
}

fn counts<T: Clone + std::fmt::Debug>(
    value: impl Strategy<Value = T> + Clone,
    positive: usize,
    negative: usize,
) -> impl Strategy<Value = Counts<T>> {
    let side = |buckets| prop::collection::vec(value.clone(), buckets);
    (value.clone(), value.clone(), side(positive), side(negative))
        .prop_map(|(count, zero, positive, negative)| Counts { count, zero, positive, negative })
}

#[derive(Debug, Clone)]
struct Layout {
    schema: i32,
    zero_threshold: f64,
    positive: Vec<Span>,
    negative: Vec<Span>,
    bounds: Vec<f64>,
}

fn layout() -> impl Strategy<Value = Layout> {
    let schema = prop_oneof![-4..9i32, Just(CUSTOM_BUCKETS_SCHEMA), any::<i32>()];
    (schema, double(), spans(), spans(), prop::collection::vec(double(), 0..4)).prop_map(
        |(schema, zero_threshold, positive, negative, bounds)| Layout {
            schema,
            zero_threshold,
            positive,
            negative,
            bounds,
        },
    )
}

fn of_layout(layout: Layout) -> impl Strategy<Value = Histogram> {
    let buckets = |spans: &[Span]| spans.iter().map(|span| span.length as usize).sum();
    let (positive, negative) = (buckets(&layout.positive), buckets(&layout.negative));
    let small_or_any = prop_oneof![0..100u64, any::<u64>()].boxed();
    let integers = counts(small_or_any, positive, negative).prop_map(HistogramCounts::Integer);
    let floats = counts(double().boxed(), positive, negative).prop_map(HistogramCounts::Float);
    (prop_oneof![integers, floats], double(), 0..4u64).prop_map(move |(counts, sum, hint)| Histogram {
        schema: layout.schema,
        reset_hint: ResetHint::from_number(hint).unwrap(),
        zero_threshold: layout.zero_threshold,
        sum,
        counts,
        positive_spans: layout.positive.clone(),
        negative_spans: layout.negative.clone(),
        custom_bounds: layout.bounds.clone(),
    })
}

/// Histograms that keep their layout for a while.
fn series() -> impl Strategy<Value = Vec<Histogram>> {
    let stretch = layout().prop_flat_map(|layout| prop::collection::vec(of_layout(layout), 1..6));
    prop::collection::vec(stretch, 0..4).prop_map(|stretches| stretches.concat())
}

fn encoded(series: &[Histogram]) -> Vec<u8> {
    let (mut bytes, mut previous) = (Vec::new(), None);
    for histogram in series {
        encode(histogram, previous, &mut bytes);
        previous = Some(histogram);
    }
    bytes
}

proptest! {
    #[test]
    fn every_series_of_histograms_comes_back_bit_for_bit(series in series()) {
        let bytes = encoded(&series);
        let mut rest = bytes.as_slice();
        let mut previous: Option<Histogram> = None;
        for histogram in &series {
            let decoded = decode(&mut rest, previous.as_ref()).unwrap();
            prop_assert_eq!(&decoded, histogram);
            previous = Some(decoded);
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn garbage_is_an_error_or_a_histogram_and_never_a_panic(bytes: Vec<u8>, previous in series()) {
        let mut rest = bytes.as_slice();
        let mut previous = previous.into_iter().next();
        while let Ok(histogram) = decode(&mut rest, previous.as_ref()) {
            let _ = histogram.validate();
            previous = Some(histogram);
        }
    }

    #[test]
    fn a_histogram_that_is_cut_off_is_an_error(series in series().prop_filter("some", |s| !s.is_empty())) {
        let bytes = encoded(&series[..1]);
        for end in 0..bytes.len() {
            prop_assert!(decode(&mut &bytes[..end], None).is_err());
        }
    }
}

#[test]
fn a_repeated_layout_costs_nothing_and_small_steps_a_byte_each() {
    let of = |step: u64| Histogram {
        schema: 3,
        sum: (step * 4) as f64,
        counts: HistogramCounts::Integer(Counts {
            count: step * 4,
            zero: 0,
            positive: vec![step; 4],
            negative: Vec::new(),
        }),
        positive_spans: vec![Span { offset: -2, length: 4 }],
        ..Histogram::default()
    };
    let mut bytes = Vec::new();
    encode(&of(1001), Some(&of(1000)), &mut bytes);
    // Head, sum (up to three bytes of the double change), count, zero, four buckets.
    assert!(bytes.len() <= 1 + 4 + 1 + 1 + 4, "{} bytes", bytes.len());
}

#[test]
fn a_layout_of_more_buckets_than_bytes_is_refused_before_memory_is_taken() {
    let mut bytes = vec![0b1000, 0, 0, 1, 0];
    bytes.extend([0x80, 0x80, 1, 0, 0, 0]);
    assert!(decode(&mut bytes.as_slice(), None).is_err());
}
