//! One histogram against the one before of the same series.
//!
//! ```text
//! head    u8: bits 0–1 reset hint, bit 2 float counts, bit 3 a layout follows; else it is that of the one before
//! layout  schema zigzag, zero threshold, positive spans, negative spans: count, then offset zigzag and length of
//!         each; custom bounds: count, then each
//! sum     against the one before
//! counts  count, zero, positive, negative, each against the one before: where layout or kind of counts changed,
//!         buckets stand against 0, and their number is that of the spans
//!
//! numbers are varints; integer counts zigzag(new − old), modulo 2^64
//! doubles varint of the bytes of (new bits xor old bits) in reverse order: short where few leading bits change
//! ```
use super::{Counts, Histogram, HistogramCounts, MAX_PARTS, ResetHint, Span};
use crate::Damaged;
use crate::varint::{put, take, unzigzag, zigzag};

const HINT_BITS: u8 = 0b11;
const FLOAT: u8 = 1 << 2;
const LAYOUT: u8 = 1 << 3;

/// Appends a valid histogram to `out`, as [`decode`] reads it with the same `previous`.
pub fn encode(histogram: &Histogram, previous: Option<&Histogram>, out: &mut Vec<u8>) {
    let same_layout = previous.is_some_and(|previous| histogram.has_layout_of(previous));
    let is_float = matches!(histogram.counts, HistogramCounts::Float(_));
    let head =
        histogram.reset_hint as u8 | if is_float { FLOAT } else { 0 } | if same_layout { 0 } else { LAYOUT };
    out.push(head);
    if !same_layout {
        put_layout(histogram, out);
    }
    put_double(out, histogram.sum, previous.map_or(0.0, |previous| previous.sum));
    let before = previous.filter(|_| same_layout).map(|previous| &previous.counts);
    match (&histogram.counts, before) {
        (HistogramCounts::Integer(counts), Some(HistogramCounts::Integer(before))) => {
            put_counts(out, counts, before, put_integer);
        }
        (HistogramCounts::Integer(counts), _) => put_counts(out, counts, &Counts::default(), put_integer),
        (HistogramCounts::Float(counts), Some(HistogramCounts::Float(before))) => {
            put_counts(out, counts, before, put_double);
        }
        (HistogramCounts::Float(counts), _) => put_counts(out, counts, &Counts::default(), put_double),
    }
}

/// Takes a histogram off the front of `bytes`. It is as large as [`MAX_PARTS`] allows at most, but need not be valid
/// where the bytes are not what [`encode`] wrote.
pub fn decode(bytes: &mut &[u8], previous: Option<&Histogram>) -> Result<Histogram, Damaged> {
    let (&head, rest) = bytes.split_first().ok_or(Damaged::new("a histogram that is cut off"))?;
    *bytes = rest;
    let hint = ResetHint::from_number(u64::from(head & HINT_BITS));
    let (Some(reset_hint), 0) = (hint, head & !(HINT_BITS | FLOAT | LAYOUT)) else {
        return Err(Damaged::new("a histogram of an unknown form"));
    };
    let mut histogram = Histogram::default();
    let same_layout = head & LAYOUT == 0;
    if same_layout {
        let previous = previous.ok_or(Damaged::new("a first histogram without a layout"))?;
        (histogram.schema, histogram.zero_threshold) = (previous.schema, previous.zero_threshold);
        histogram.positive_spans.clone_from(&previous.positive_spans);
        histogram.negative_spans.clone_from(&previous.negative_spans);
        histogram.custom_bounds.clone_from(&previous.custom_bounds);
    } else {
        take_layout(&mut histogram, bytes)?;
    }
    histogram.reset_hint = reset_hint;
    histogram.sum = take_double(bytes, previous.map_or(0.0, |previous| previous.sum))?;
    let buckets = [buckets_of(&histogram.positive_spans)?, buckets_of(&histogram.negative_spans)?];
    let before = previous.filter(|_| same_layout).map(|previous| &previous.counts);
    histogram.counts = if head & FLOAT == 0 {
        HistogramCounts::Integer(match before {
            Some(HistogramCounts::Integer(before)) => take_counts(bytes, before, buckets, take_integer)?,
            _ => take_counts(bytes, &Counts::default(), buckets, take_integer)?,
        })
    } else {
        HistogramCounts::Float(match before {
            Some(HistogramCounts::Float(before)) => take_counts(bytes, before, buckets, take_double)?,
            _ => take_counts(bytes, &Counts::default(), buckets, take_double)?,
        })
    };
    Ok(histogram)
}

fn put_layout(histogram: &Histogram, out: &mut Vec<u8>) {
    put(out, zigzag(i64::from(histogram.schema)));
    put_double(out, histogram.zero_threshold, 0.0);
    for spans in [&histogram.positive_spans, &histogram.negative_spans] {
        put(out, spans.len() as u64);
        for span in spans {
            put(out, zigzag(i64::from(span.offset)));
            put(out, u64::from(span.length));
        }
    }
    put(out, histogram.custom_bounds.len() as u64);
    for &bound in &histogram.custom_bounds {
        put_double(out, bound, 0.0);
    }
}

fn take_layout(histogram: &mut Histogram, bytes: &mut &[u8]) -> Result<(), Damaged> {
    let far = |_| Damaged::new("a histogram's layout with a number that is too large");
    histogram.schema = i32::try_from(unzigzag(take(bytes)?)).map_err(far)?;
    histogram.zero_threshold = take_double(bytes, 0.0)?;
    for spans in [&mut histogram.positive_spans, &mut histogram.negative_spans] {
        for _ in 0..take_length(bytes)? {
            let offset = i32::try_from(unzigzag(take(bytes)?)).map_err(far)?;
            spans.push(Span { offset, length: u32::try_from(take(bytes)?).map_err(far)? });
        }
    }
    for _ in 0..take_length(bytes)? {
        histogram.custom_bounds.push(take_double(bytes, 0.0)?);
    }
    Ok(())
}

fn take_length(bytes: &mut &[u8]) -> Result<usize, Damaged> {
    let length = take(bytes)?;
    if length > MAX_PARTS as u64 {
        return Err(Damaged::new("a histogram that is too large"));
    }
    Ok(length as usize)
}

fn buckets_of(spans: &[Span]) -> Result<usize, Damaged> {
    let buckets: u64 = spans.iter().map(|span| u64::from(span.length)).sum();
    if buckets > MAX_PARTS as u64 {
        return Err(Damaged::new("a histogram that is too large"));
    }
    Ok(buckets as usize)
}

fn put_counts<T: Copy + Default>(
    out: &mut Vec<u8>,
    counts: &Counts<T>,
    before: &Counts<T>,
    put_one: impl Fn(&mut Vec<u8>, T, T),
) {
    put_one(out, counts.count, before.count);
    put_one(out, counts.zero, before.zero);
    for (side, before) in [(&counts.positive, &before.positive), (&counts.negative, &before.negative)] {
        for (index, &count) in side.iter().enumerate() {
            put_one(out, count, before.get(index).copied().unwrap_or_default());
        }
    }
}

fn take_counts<T: Copy + Default>(
    bytes: &mut &[u8],
    before: &Counts<T>,
    [positive, negative]: [usize; 2],
    take_one: impl Fn(&mut &[u8], T) -> Result<T, Damaged>,
) -> Result<Counts<T>, Damaged> {
    // Each count takes a byte at least: nothing is allocated that the input cannot fill.
    if bytes.len() < positive + negative {
        return Err(Damaged::new("a histogram that is cut off"));
    }
    let count = take_one(bytes, before.count)?;
    let zero = take_one(bytes, before.zero)?;
    let mut side = |buckets, before: &[T]| {
        (0..buckets).map(|index| take_one(bytes, before.get(index).copied().unwrap_or_default())).collect()
    };
    let positive: Result<Vec<T>, Damaged> = side(positive, &before.positive);
    let negative: Result<Vec<T>, Damaged> = side(negative, &before.negative);
    Ok(Counts { count, zero, positive: positive?, negative: negative? })
}

fn put_integer(out: &mut Vec<u8>, value: u64, before: u64) {
    put(out, zigzag(value.wrapping_sub(before) as i64));
}

fn take_integer(bytes: &mut &[u8], before: u64) -> Result<u64, Damaged> {
    Ok(before.wrapping_add(unzigzag(take(bytes)?) as u64))
}

fn put_double(out: &mut Vec<u8>, value: f64, before: f64) {
    put(out, (value.to_bits() ^ before.to_bits()).swap_bytes());
}

fn take_double(bytes: &mut &[u8], before: f64) -> Result<f64, Damaged> {
    Ok(f64::from_bits(take(bytes)?.swap_bytes() ^ before.to_bits()))
}
