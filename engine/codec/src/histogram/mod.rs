//! Native histograms: what they are, when they are valid ([`Histogram::validate`]), and how one is written against
//! the one before of the same series ([`encode`], [`decode`]).
mod bounds;
mod encoding;
mod validate;

pub use bounds::{Bucket, Buckets, upper_bound};
pub use encoding::{decode, encode};
pub use validate::HistogramError;

/// The schema whose buckets have the bounds that the histogram names.
pub const CUSTOM_BUCKETS_SCHEMA: i32 = -53;
/// Schemas whose bucket bounds grow by the factor 2^(2^−schema).
pub const EXPONENTIAL_SCHEMAS: std::ops::RangeInclusive<i32> = -4..=8;
/// Most buckets on one side, spans on one side, and custom bounds. A histogram beyond is refused by name, so that one
/// series cannot fill a record.
pub const MAX_PARTS: usize = 1 << 14;

/// Bits of the sum of a histogram that ends a series.
const STALE_NAN_BITS: u64 = 0x7ff0_0000_0000_0002;

/// What is known of a counter reset between the histogram before and this one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ResetHint {
    /// Nothing: readers must compare.
    #[default]
    Unknown = 0,
    /// There was one.
    Reset = 1,
    /// There was none.
    NoReset = 2,
    /// It is a gauge, so there cannot be one.
    Gauge = 3,
}

impl ResetHint {
    /// The hint of a number, as the wire formats have it.
    pub const fn from_number(number: u64) -> Option<ResetHint> {
        match number {
            0 => Some(ResetHint::Unknown),
            1 => Some(ResetHint::Reset),
            2 => Some(ResetHint::NoReset),
            3 => Some(ResetHint::Gauge),
            _ => None,
        }
    }
}

/// Neighbouring buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Buckets between the end of the span before and this one; for the first span the index of its first bucket.
    pub offset: i32,
    /// Buckets in it.
    pub length: u32,
}

/// Observations: in all, in the zero bucket, and in each bucket that a span names, lowest index first.
#[derive(Debug, Clone, Default)]
pub struct Counts<T> {
    /// All observations.
    pub count: T,
    /// Those in the zero bucket.
    pub zero: T,
    /// Those in the buckets of the positive spans, absolute.
    pub positive: Vec<T>,
    /// Those in the buckets of the negative spans, absolute.
    pub negative: Vec<T>,
}

/// The counts of an integer or of a float histogram.
#[derive(Debug, Clone)]
pub enum HistogramCounts {
    /// Of observations.
    Integer(Counts<u64>),
    /// Of what is computed from them, kept bit for bit.
    Float(Counts<f64>),
}

/// One native histogram. Two are equal when all their bits are.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// −4…8 for exponential buckets, [`CUSTOM_BUCKETS_SCHEMA`] for custom ones.
    pub schema: i32,
    /// What is known of a counter reset.
    pub reset_hint: ResetHint,
    /// Width of the zero bucket to either side.
    pub zero_threshold: f64,
    /// Sum of the observations; the staleness marker's bits end the series.
    pub sum: f64,
    /// How many observations fell where.
    pub counts: HistogramCounts,
    /// Which positive buckets there are.
    pub positive_spans: Vec<Span>,
    /// Which negative buckets there are.
    pub negative_spans: Vec<Span>,
    /// Upper bounds of custom buckets, without the last, infinite one; empty for exponential schemas.
    pub custom_bounds: Vec<f64>,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            schema: 0,
            reset_hint: ResetHint::Unknown,
            zero_threshold: 0.0,
            sum: 0.0,
            counts: HistogramCounts::Integer(Counts::default()),
            positive_spans: Vec::new(),
            negative_spans: Vec::new(),
            custom_bounds: Vec::new(),
        }
    }
}

impl Histogram {
    /// The histogram that ends a series.
    pub fn stale() -> Histogram {
        Histogram { sum: f64::from_bits(STALE_NAN_BITS), ..Histogram::default() }
    }

    /// Whether it ends its series.
    pub fn is_stale(&self) -> bool {
        self.sum.to_bits() == STALE_NAN_BITS
    }

    /// Bytes of memory held, without the value itself.
    pub fn heap_bytes(&self) -> usize {
        let counts = match &self.counts {
            HistogramCounts::Integer(counts) => counts.positive.capacity() + counts.negative.capacity(),
            HistogramCounts::Float(counts) => counts.positive.capacity() + counts.negative.capacity(),
        };
        let spans = self.positive_spans.capacity() + self.negative_spans.capacity();
        spans * size_of::<Span>() + (counts + self.custom_bounds.capacity()) * 8
    }

    /// Whether everything but sum, counts and hint is that of `other`, bit for bit: which buckets there are.
    fn has_layout_of(&self, other: &Histogram) -> bool {
        self.schema == other.schema
            && self.zero_threshold.to_bits() == other.zero_threshold.to_bits()
            && self.positive_spans == other.positive_spans
            && self.negative_spans == other.negative_spans
            && same_bits(&self.custom_bounds, &other.custom_bounds)
    }
}

fn same_bits(a: &[f64], b: &[f64]) -> bool {
    a.iter().map(|value| value.to_bits()).eq(b.iter().map(|value| value.to_bits()))
}

impl PartialEq for HistogramCounts {
    fn eq(&self, other: &HistogramCounts) -> bool {
        match (self, other) {
            (HistogramCounts::Integer(a), HistogramCounts::Integer(b)) => {
                (a.count, a.zero, &a.positive, &a.negative) == (b.count, b.zero, &b.positive, &b.negative)
            }
            (HistogramCounts::Float(a), HistogramCounts::Float(b)) => {
                same_bits(&[a.count, a.zero], &[b.count, b.zero])
                    && same_bits(&a.positive, &b.positive)
                    && same_bits(&a.negative, &b.negative)
            }
            _ => false,
        }
    }
}

impl PartialEq for Histogram {
    fn eq(&self, other: &Histogram) -> bool {
        self.has_layout_of(other)
            && self.reset_hint == other.reset_hint
            && self.sum.to_bits() == other.sum.to_bits()
            && self.counts == other.counts
    }
}
impl Eq for Histogram {}
