//! Which buckets the histograms of a chunk have.
//!
//! ```text
//! zero threshold   0 for 0 | 1…254 for 2^(n−244) | 255, then 64 bits
//! schema           number
//! positive spans   how many, then length and offset of each
//! negative spans   likewise
//! custom bounds    how many, then each: its thousandfold + 1, or 0 and 64 bits; only for custom buckets
//! ```
use metricsstore_codec::bits::{BitSink, BitWriter};
use metricsstore_model::histogram::{CUSTOM_BUCKETS_SCHEMA, Histogram, MAX_PARTS, Span};

use super::varbit::{Bits, Damage, VARBIT, take_bits};

/// Bounds from 0 to this, in thousandths, take at most 4 bytes.
const MAX_THOUSANDTHS: f64 = 33_554_430.0;
/// What a byte for a power of two adds to its exponent.
const EXPONENT_BIAS: i64 = 244;
const F64_BIAS: i64 = 1023;

/// All of a histogram that its chunk says once. Floats are compared by their bits.
#[derive(Debug, Clone, Default)]
pub(super) struct Layout {
    pub(super) schema: i32,
    pub(super) zero_threshold: f64,
    pub(super) positive: Vec<Span>,
    pub(super) negative: Vec<Span>,
    pub(super) bounds: Vec<f64>,
}

impl Layout {
    /// That of a histogram; the empty one of those that end a series.
    pub(super) fn of(histogram: &Histogram) -> Layout {
        if histogram.is_stale() {
            return Layout::default();
        }
        Layout {
            schema: histogram.schema,
            zero_threshold: histogram.zero_threshold,
            positive: histogram.positive_spans.clone(),
            negative: histogram.negative_spans.clone(),
            bounds: histogram.custom_bounds.clone(),
        }
    }

    /// Whether buckets of the same index are the same bucket in both.
    pub(super) fn has_scale_of(&self, histogram: &Histogram) -> bool {
        self.schema == histogram.schema
            && self.zero_threshold.to_bits() == histogram.zero_threshold.to_bits()
            && self.has_bounds_of(histogram)
    }

    pub(super) fn has_bounds_of(&self, histogram: &Histogram) -> bool {
        self.bounds.len() == histogram.custom_bounds.len()
            && self.bounds.iter().zip(&histogram.custom_bounds).all(|(a, b)| a.to_bits() == b.to_bits())
    }

    /// Spans, buckets and bounds of a histogram.
    pub(super) fn parts(&self) -> usize {
        let spans = self.positive.len() + self.negative.len();
        spans + buckets(&self.positive) + buckets(&self.negative) + self.bounds.len()
    }

    pub(super) fn put(&self, out: &mut BitWriter) {
        put_zero_threshold(out, self.zero_threshold);
        VARBIT.put(out, i64::from(self.schema));
        for spans in [&self.positive, &self.negative] {
            VARBIT.put_unsigned(out, spans.len() as u64);
            for span in spans {
                VARBIT.put_unsigned(out, u64::from(span.length));
                VARBIT.put(out, i64::from(span.offset));
            }
        }
        if self.schema == CUSTOM_BUCKETS_SCHEMA {
            VARBIT.put_unsigned(out, self.bounds.len() as u64);
            self.bounds.iter().for_each(|&bound| put_bound(out, bound));
        }
    }

    pub(super) fn take(bits: &mut Bits) -> Result<Layout, Damage> {
        let zero_threshold = take_zero_threshold(bits)?;
        let schema = i32::try_from(VARBIT.take(bits)?).map_err(|_| "a histogram without a schema")?;
        let (positive, negative) = (take_spans(bits)?, take_spans(bits)?);
        let bounds = match schema {
            CUSTOM_BUCKETS_SCHEMA => {
                (0..take_count(bits)?).map(|_| take_bound(bits)).collect::<Result<_, _>>()?
            }
            _ => Vec::new(),
        };
        Ok(Layout { schema, zero_threshold, positive, negative, bounds })
    }
}

/// Buckets that spans name.
pub(super) fn buckets(spans: &[Span]) -> usize {
    spans.iter().map(|span| span.length as usize).sum()
}

/// The indexes of these buckets, ascending.
pub(super) fn indexes(spans: &[Span]) -> impl Iterator<Item = i64> + '_ {
    let mut next = 0;
    spans.iter().flat_map(move |span| {
        let first = next + i64::from(span.offset);
        next = first + i64::from(span.length);
        first..next
    })
}

/// The spans that name all buckets of both, in as few as will do.
pub(super) fn union(a: &[Span], b: &[Span]) -> Vec<Span> {
    let (mut a, mut b) = (indexes(a).peekable(), indexes(b).peekable());
    let (mut spans, mut end) = (Vec::<Span>::new(), 0);
    while let Some(index) = a.peek().into_iter().chain(b.peek()).min().copied() {
        a.next_if_eq(&index);
        b.next_if_eq(&index);
        match spans.last_mut().filter(|_| index == end) {
            Some(span) => span.length += 1,
            // It fits: what is skipped was skipped by spans before.
            None => spans.push(Span { offset: (index - end) as i32, length: 1 }),
        }
        end = index + 1;
    }
    spans
}

fn put_zero_threshold(out: &mut BitWriter, threshold: f64) {
    let bits = threshold.to_bits();
    let exponent = (bits >> 52) as i64 - F64_BIAS + EXPONENT_BIAS;
    if bits == 0 {
        out.write(0, 8);
    } else if bits << 12 == 0 && (1..255).contains(&exponent) {
        out.write(exponent as u64, 8);
    } else {
        out.write(255, 8);
        out.write(bits, 64);
    }
}

fn take_zero_threshold(bits: &mut Bits) -> Result<f64, Damage> {
    Ok(match take_bits(bits, 8)? {
        0 => 0.0,
        255 => f64::from_bits(take_bits(bits, 64)?),
        exponent => f64::from_bits(((exponent as i64 - EXPONENT_BIAS + F64_BIAS) as u64) << 52),
    })
}

fn put_bound(out: &mut BitWriter, bound: f64) {
    let thousandths = bound * 1000.0;
    let whole = thousandths.round() as u64;
    if thousandths <= MAX_THOUSANDTHS && (whole as f64 / 1000.0).to_bits() == bound.to_bits() {
        VARBIT.put_unsigned(out, whole + 1);
    } else {
        out.write(0, 1);
        out.write(bound.to_bits(), 64);
    }
}

fn take_bound(bits: &mut Bits) -> Result<f64, Damage> {
    Ok(match VARBIT.take_unsigned(bits)? {
        0 => f64::from_bits(take_bits(bits, 64)?),
        thousandths => (thousandths - 1) as f64 / 1000.0,
    })
}

fn take_count(bits: &mut Bits) -> Result<usize, Damage> {
    let count = VARBIT.take_unsigned(bits)?;
    let count = usize::try_from(count).ok().filter(|&count| count <= MAX_PARTS);
    count.ok_or("a histogram of more spans or bounds than are kept")
}

fn take_spans(bits: &mut Bits) -> Result<Vec<Span>, Damage> {
    let mut left = MAX_PARTS;
    (0..take_count(bits)?)
        .map(|_| {
            let (length, offset) = (VARBIT.take_unsigned(bits)?, VARBIT.take(bits)?);
            let length = usize::try_from(length).ok().filter(|&length| length <= left);
            let length = length.ok_or("a histogram of more buckets than are kept")?;
            left -= length;
            let offset = i32::try_from(offset).map_err(|_| "a span beyond the last bucket")?;
            Ok(Span { offset, length: length as u32 })
        })
        .collect()
}
