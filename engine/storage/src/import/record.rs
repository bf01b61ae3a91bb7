//! Records of Prometheus' log.
//!
//! ```text
//! record    type u8 | content
//! series    (reference u64 | labels)*
//! labels    how many | (length | name | length | value)*
//! samples   (2; 7 to 10: histograms) first reference u64 | first time u64 |
//!           (reference − first varint | time − first varint | content)*
//!           (11 to 13: with start timestamps) first: reference varint | time varint | start varint | content,
//!           others: reference − that before varint | time − first varint | start | content
//! start     0: unknown | 1: that before | 2: start − first varint
//! content   float: bits u64, big endian; histogram: see `histogram`
//! tombstones  (reference u64 | first ms varint | last ms varint)*
//! exemplars   first reference u64 | first time u64 | (reference − first varint | time − first varint | value | labels)*
//! valid since u64, only in checkpoints
//! ```
//! Numbers without a width are uvarints; those with one are big endian.
use metricsstore_codec::varint;
use metricsstore_model::LabelBuf;
use metricsstore_model::histogram::{
    CUSTOM_BUCKETS_SCHEMA, Counts, Histogram, HistogramCounts, MAX_PARTS, ResetHint, Span,
};

use crate::{StorageError, StoredExemplar};

/// Why a record cannot be read.
pub(super) type Damage = &'static str;

const CUT_OFF: Damage = "a record that ends early";

/// What samples are of, and when they were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) reference: u64,
    pub(super) time_ms: i64,
    /// When the counter began; 0: unknown.
    pub(super) start_ms: i64,
}

/// Takes the content of records.
pub(super) trait Sink {
    /// Whether samples and exemplars are wanted; all else is.
    const SAMPLES: bool;
    fn series(&mut self, reference: u64, labels: &LabelBuf);
    fn tombstone(&mut self, reference: u64, min_ms: i64, max_ms: i64);
    fn valid_since(&mut self, time_ms: i64);
    fn unknown(&mut self);
    fn float(&mut self, place: Place, bits: u64) -> Result<(), StorageError>;
    fn histogram(&mut self, place: Place, histogram: Histogram) -> Result<(), StorageError>;
    fn exemplar(&mut self, reference: u64, exemplar: StoredExemplar) -> Result<(), StorageError>;
}

/// Hands what a record holds to `sink`. Types that are not known are passed over, as Prometheus does, so that one can go
/// back to an older release.
pub(super) fn decode<S: Sink>(record: &[u8], sink: &mut S) -> Result<Result<(), Damage>, StorageError> {
    let mut bytes = Bytes(record);
    let Ok(kind) = bytes.byte() else { return Ok(Err("an empty record")) };
    let mut failed = None;
    let mut keep = |result: Result<(), StorageError>| -> Result<(), Damage> {
        result.map_err(|error| {
            failed = Some(error);
            CUT_OFF
        })
    };
    let result = match kind {
        1 => series(&mut bytes, sink),
        3 => tombstones(&mut bytes, sink),
        // Markers of chunks in `chunks_head`, and metadata, which blocks do not hold.
        5 | 6 => return Ok(Ok(())),
        14 => bytes.u64().map(|since| sink.valid_since(since as i64)),
        2 | 4 | 7..=13 if !S::SAMPLES => return Ok(Ok(())),
        4 => exemplars(&mut bytes, |reference, exemplar| keep(sink.exemplar(reference, exemplar))),
        2 => samples(&mut bytes, |place, bytes| keep(sink.float(place, bytes.u64()?))),
        11 => samples_with_starts(&mut bytes, |place, bytes| keep(sink.float(place, bytes.u64()?))),
        7 | 9 => samples(&mut bytes, |place, bytes| keep(sink.histogram(place, histogram::<u64>(bytes)?))),
        8 | 10 => samples(&mut bytes, |place, bytes| keep(sink.histogram(place, histogram::<f64>(bytes)?))),
        12 => samples_with_starts(&mut bytes, |place, bytes| {
            keep(sink.histogram(place, histogram::<u64>(bytes)?))
        }),
        13 => samples_with_starts(&mut bytes, |place, bytes| {
            keep(sink.histogram(place, histogram::<f64>(bytes)?))
        }),
        _ => {
            sink.unknown();
            return Ok(Ok(()));
        }
    };
    match failed {
        Some(error) => Err(error),
        None => Ok(result),
    }
}

fn series(bytes: &mut Bytes, sink: &mut impl Sink) -> Result<(), Damage> {
    let mut labels = LabelBuf::new();
    while !bytes.0.is_empty() {
        let reference = bytes.u64()?;
        bytes.labels(&mut labels)?;
        sink.series(reference, &labels);
    }
    Ok(())
}

fn tombstones(bytes: &mut Bytes, sink: &mut impl Sink) -> Result<(), Damage> {
    while !bytes.0.is_empty() {
        let (reference, min_ms, max_ms) = (bytes.u64()?, bytes.varint()?, bytes.varint()?);
        sink.tombstone(reference, min_ms, max_ms);
    }
    Ok(())
}

fn exemplars(
    bytes: &mut Bytes,
    mut take: impl FnMut(u64, StoredExemplar) -> Result<(), Damage>,
) -> Result<(), Damage> {
    samples(bytes, |place, bytes| {
        let value = f64::from_bits(bytes.u64()?);
        let mut labels = LabelBuf::new();
        bytes.labels(&mut labels)?;
        take(place.reference, StoredExemplar { labels, timestamp_ms: place.time_ms, value })
    })
}

fn samples(
    bytes: &mut Bytes,
    mut take: impl FnMut(Place, &mut Bytes) -> Result<(), Damage>,
) -> Result<(), Damage> {
    if bytes.0.is_empty() {
        return Ok(());
    }
    let (reference, time_ms) = (bytes.u64()?, bytes.u64()? as i64);
    while !bytes.0.is_empty() {
        let place = Place {
            reference: reference.wrapping_add_signed(bytes.varint()?),
            time_ms: time_ms.wrapping_add(bytes.varint()?),
            start_ms: 0,
        };
        take(place, bytes)?;
    }
    Ok(())
}

fn samples_with_starts(
    bytes: &mut Bytes,
    mut take: impl FnMut(Place, &mut Bytes) -> Result<(), Damage>,
) -> Result<(), Damage> {
    if bytes.0.is_empty() {
        return Ok(());
    }
    let first =
        Place { reference: bytes.varint()? as u64, time_ms: bytes.varint()?, start_ms: bytes.varint()? };
    take(first, bytes)?;
    let mut before = first;
    while !bytes.0.is_empty() {
        let reference = before.reference.wrapping_add_signed(bytes.varint()?);
        let time_ms = first.time_ms.wrapping_add(bytes.varint()?);
        let start_ms = match bytes.byte()? {
            0 => 0,
            1 => before.start_ms,
            _ => first.start_ms.wrapping_add(bytes.varint()?),
        };
        before = Place { reference, time_ms, start_ms };
        take(before, bytes)?;
    }
    Ok(())
}

/// What a histogram counts in.
trait Number: Copy {
    fn take_count(bytes: &mut Bytes) -> Result<Self, Damage>;
    /// Buckets of one side.
    fn take_buckets(bytes: &mut Bytes) -> Result<Vec<Self>, Damage>;
    fn counts(counts: Counts<Self>) -> HistogramCounts;
}

impl Number for u64 {
    fn take_count(bytes: &mut Bytes) -> Result<u64, Damage> {
        bytes.uvarint()
    }

    fn take_buckets(bytes: &mut Bytes) -> Result<Vec<u64>, Damage> {
        let mut bucket = 0_u64;
        (0..bytes.count()?)
            .map(|_| {
                bucket = bucket.wrapping_add_signed(bytes.varint()?);
                Ok(bucket)
            })
            .collect()
    }

    fn counts(counts: Counts<u64>) -> HistogramCounts {
        HistogramCounts::Integer(counts)
    }
}

impl Number for f64 {
    fn take_count(bytes: &mut Bytes) -> Result<f64, Damage> {
        bytes.u64().map(f64::from_bits)
    }

    fn take_buckets(bytes: &mut Bytes) -> Result<Vec<f64>, Damage> {
        (0..bytes.count()?).map(|_| bytes.u64().map(f64::from_bits)).collect()
    }

    fn counts(counts: Counts<f64>) -> HistogramCounts {
        HistogramCounts::Float(counts)
    }
}

/// Hint u8, schema, zero threshold, counts, sum, spans and buckets of both sides, and bounds of custom buckets; buckets of
/// integers each against the one before.
fn histogram<T: Number>(bytes: &mut Bytes) -> Result<Histogram, Damage> {
    let reset_hint = ResetHint::from_number(u64::from(bytes.byte()?)).unwrap_or_default();
    let schema = i32::try_from(bytes.varint()?).map_err(|_| "a histogram without a schema")?;
    let zero_threshold = f64::from_bits(bytes.u64()?);
    let (zero, count) = (T::take_count(bytes)?, T::take_count(bytes)?);
    let sum = f64::from_bits(bytes.u64()?);
    let (positive_spans, negative_spans) = (bytes.spans()?, bytes.spans()?);
    let (positive, negative) = (T::take_buckets(bytes)?, T::take_buckets(bytes)?);
    let mut custom_bounds = Vec::new();
    if schema == CUSTOM_BUCKETS_SCHEMA {
        custom_bounds =
            (0..bytes.count()?).map(|_| bytes.u64().map(f64::from_bits)).collect::<Result<_, _>>()?;
    }
    let histogram = Histogram {
        schema,
        reset_hint,
        zero_threshold,
        sum,
        counts: T::counts(Counts { count, zero, positive, negative }),
        positive_spans,
        negative_spans,
        custom_bounds,
    };
    Ok(if histogram.is_stale() { Histogram::stale() } else { histogram })
}

struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn byte(&mut self) -> Result<u8, Damage> {
        let (&byte, rest) = self.0.split_first().ok_or(CUT_OFF)?;
        self.0 = rest;
        Ok(byte)
    }

    fn u64(&mut self) -> Result<u64, Damage> {
        let (&bytes, rest) = self.0.split_first_chunk().ok_or(CUT_OFF)?;
        self.0 = rest;
        Ok(u64::from_be_bytes(bytes))
    }

    fn uvarint(&mut self) -> Result<u64, Damage> {
        varint::take(&mut self.0).map_err(|damaged| damaged.what)
    }

    fn varint(&mut self) -> Result<i64, Damage> {
        self.uvarint().map(varint::unzigzag)
    }

    /// How many parts of a histogram follow.
    fn count(&mut self) -> Result<usize, Damage> {
        let count = usize::try_from(self.uvarint()?).ok().filter(|&count| count <= MAX_PARTS);
        count.ok_or("a histogram of more spans, buckets or bounds than are kept")
    }

    fn spans(&mut self) -> Result<Vec<Span>, Damage> {
        let span = |bytes: &mut Self| {
            let offset = i32::try_from(bytes.varint()?);
            let length = u32::try_from(bytes.uvarint()?);
            let (Ok(offset), Ok(length)) = (offset, length) else {
                return Err("a span beyond the last bucket");
            };
            Ok(Span { offset, length })
        };
        (0..self.count()?).map(|_| span(self)).collect()
    }

    fn text(&mut self) -> Result<&'b str, Damage> {
        let length = usize::try_from(self.uvarint()?).map_err(|_| CUT_OFF)?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(CUT_OFF)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| "a label that is not UTF-8")
    }

    fn labels(&mut self, labels: &mut LabelBuf) -> Result<(), Damage> {
        labels.clear();
        for _ in 0..self.uvarint()? {
            let (name, value) = (self.text()?, self.text()?);
            if !value.is_empty() {
                labels.push(name, value);
            }
        }
        labels.sort();
        Ok(())
    }
}
