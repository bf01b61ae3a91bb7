//! Histograms, as encodings 2 (integers) and 3 (floats), and read only, with start timestamps, as 5 and 6.
//!
//! ```text
//! 2, 3    samples u16, big endian | reset:2 | 0:6
//! 5, 6    reset:2 | samples:14 | header of the start timestamps u8
//! then    layout | samples
//!
//! reset   00 unknown, 01 no reset since the chunk before, 10 a reset, 11 gauges
//! sample  time | count | zero count | sum | positive buckets | negative buckets | start, in 5 and 6
//!         a sample that ends a series has no buckets, and if it is the first, an empty layout
//!
//! time    number; then how far the step differs from the one before (which is 0 before the second sample)
//! sum     64 bits; then xor
//! counts  2, 5: unsigned number; then how far the step differs
//!         3, 6: 64 bits; then xor
//! bucket  2, 5: how it differs from the bucket before, number; then how far the step of that differs
//!         3, 6: 64 bits; then xor
//! ```
//! A histogram with buckets that its chunk lacks widens the chunk, and what a histogram lacks becomes empty buckets: it
//! is read with more buckets than were written, and tells the same. All else of it comes back bit for bit but the hint of
//! a reset: the first of a chunk has none, and those behind it had none, as each is compared with the one before.
use metricsstore_codec::bits::BitWriter;
use metricsstore_model::histogram::{Counts, Histogram, HistogramCounts, ResetHint, Span};

use super::chunk::{Chunk, Encoding, span_end, spread};
use super::histogram_layout::{Layout, buckets, indexes, union};
use super::start_times::StartTimes;
use super::varbit::{Bits, CUT_OFF, Damage, VARBIT, Xor};
use crate::block::SeriesData;

const HEADER: usize = 3;
/// The samples of a span of time are spread evenly over chunks of about this size.
const TARGET_BYTES: usize = 1024;
/// A chunk has at least as many samples, however large they are, unless a span of time ends.
const MIN_SAMPLES: usize = 10;
/// Spans, buckets and bounds of all samples of a chunk that is read, at most: ten samples of the most buckets there may
/// be, or thousands of common ones.
const MAX_CHUNK_PARTS: usize = 1 << 22;

/// What the header of a chunk says of a counter reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reset {
    Unknown = 0,
    None = 1,
    Found = 2,
    Gauge = 3,
}

/// One number of a histogram on its way from sample to sample, as the 64 bits that a chunk knows it by.
trait Track: Clone + Default {
    fn put_first_count(&mut self, out: &mut BitWriter, raw: u64);
    fn put_first_bucket(&mut self, out: &mut BitWriter, raw: u64);
    fn put_next(&mut self, out: &mut BitWriter, raw: u64);
    /// In a sample that ends the series.
    fn put_stale(&mut self, out: &mut BitWriter);
    fn take_first_count(&mut self, bits: &mut Bits) -> Result<u64, Damage>;
    fn take_first_bucket(&mut self, bits: &mut Bits) -> Result<u64, Damage>;
    fn take_next(&mut self, bits: &mut Bits) -> Result<u64, Damage>;
}

#[derive(Clone, Default)]
struct Steps {
    value: i64,
    step: i64,
}

impl Track for Steps {
    fn put_first_count(&mut self, out: &mut BitWriter, raw: u64) {
        VARBIT.put_unsigned(out, raw);
        self.value = raw as i64;
    }

    fn put_first_bucket(&mut self, out: &mut BitWriter, raw: u64) {
        self.value = raw as i64;
        VARBIT.put(out, self.value);
    }

    fn put_next(&mut self, out: &mut BitWriter, raw: u64) {
        let step = (raw as i64).wrapping_sub(self.value);
        VARBIT.put(out, step.wrapping_sub(self.step));
        *self = Steps { value: raw as i64, step };
    }

    fn put_stale(&mut self, out: &mut BitWriter) {
        VARBIT.put(out, 0);
    }

    fn take_first_count(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        self.value = VARBIT.take_unsigned(bits)? as i64;
        Ok(self.value as u64)
    }

    fn take_first_bucket(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        self.value = VARBIT.take(bits)?;
        Ok(self.value as u64)
    }

    fn take_next(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        self.step = self.step.wrapping_add(VARBIT.take(bits)?);
        self.value = self.value.wrapping_add(self.step);
        Ok(self.value as u64)
    }
}

impl Track for Xor {
    fn put_first_count(&mut self, out: &mut BitWriter, raw: u64) {
        self.put_first(out, raw);
    }

    fn put_first_bucket(&mut self, out: &mut BitWriter, raw: u64) {
        self.put_first(out, raw);
    }

    fn put_next(&mut self, out: &mut BitWriter, raw: u64) {
        Xor::put_next(self, out, raw);
    }

    fn put_stale(&mut self, out: &mut BitWriter) {
        Xor::put_next(self, out, 0);
    }

    fn take_first_count(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        self.take_first(bits)
    }

    fn take_first_bucket(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        self.take_first(bits)
    }

    fn take_next(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        Xor::take_next(self, bits)
    }
}

/// What a histogram counts in.
trait Number: Copy + Default + PartialOrd {
    type Track: Track;
    const ENCODING: Encoding;
    fn of(counts: &HistogramCounts) -> Option<&Counts<Self>>;
    fn counts(counts: Counts<Self>) -> HistogramCounts;
    /// What a chunk knows it by, behind a bucket of `before`; behind 0 for all that is no bucket.
    fn raw(self, before: Self) -> u64;
    fn from_raw(raw: u64, before: Self) -> Self;
}

impl Number for u64 {
    type Track = Steps;
    const ENCODING: Encoding = Encoding::Histogram;

    fn of(counts: &HistogramCounts) -> Option<&Counts<u64>> {
        if let HistogramCounts::Integer(counts) = counts { Some(counts) } else { None }
    }

    fn counts(counts: Counts<u64>) -> HistogramCounts {
        HistogramCounts::Integer(counts)
    }

    fn raw(self, before: u64) -> u64 {
        self.wrapping_sub(before)
    }

    fn from_raw(raw: u64, before: u64) -> u64 {
        before.wrapping_add(raw)
    }
}

impl Number for f64 {
    type Track = Xor;
    const ENCODING: Encoding = Encoding::FloatHistogram;

    fn of(counts: &HistogramCounts) -> Option<&Counts<f64>> {
        if let HistogramCounts::Float(counts) = counts { Some(counts) } else { None }
    }

    fn counts(counts: Counts<f64>) -> HistogramCounts {
        HistogramCounts::Float(counts)
    }

    fn raw(self, _before: f64) -> u64 {
        self.to_bits()
    }

    fn from_raw(raw: u64, _before: f64) -> f64 {
        f64::from_bits(raw)
    }
}

/// Appends chunks of histograms that follow each other.
pub(super) fn encode(histograms: &[(i64, Histogram)], chunks: &mut Vec<Chunk>) {
    let is_float = |histogram: &Histogram| matches!(histogram.counts, HistogramCounts::Float(_));
    let mut rest = histograms;
    while let Some((_, first)) = rest.first() {
        let kind = is_float(first);
        // What ends a series goes with what it ends.
        let of_kind = |(_, histogram): &(i64, Histogram)| histogram.is_stale() || is_float(histogram) == kind;
        let end = rest.iter().position(|sample| !of_kind(sample)).unwrap_or(rest.len());
        let (run, others) = rest.split_at(end.max(1));
        if kind {
            encode_run::<f64>(run, chunks);
        } else {
            encode_run::<u64>(run, chunks);
        }
        rest = others;
    }
}

fn encode_run<T: Number>(run: &[(i64, Histogram)], chunks: &mut Vec<Chunk>) {
    let mut open: Option<Writer<T>> = None;
    for (index, (time_ms, histogram)) in run.iter().enumerate() {
        let next = match &mut open {
            Some(chunk) => chunk.next(*time_ms, histogram),
            None => Next::first(histogram),
        };
        match (next, &mut open) {
            (Next::Cut(reset), _) => {
                chunks.extend(open.take().map(Writer::finish));
                open = Some(Writer::new(&run[index..], reset, Layout::of(histogram)));
            }
            (Next::Widen(layout), Some(chunk)) => chunk.widen(layout),
            (Next::Append | Next::Widen(_), _) => (),
        }
        if let Some(chunk) = &mut open {
            chunk.push(*time_ms, histogram);
        }
    }
    chunks.extend(open.map(Writer::finish));
}

/// What to do with a histogram.
enum Next {
    Append,
    /// Give its buckets to those before, too.
    Widen(Layout),
    /// Begin a chunk.
    Cut(Reset),
}

impl Next {
    fn first(histogram: &Histogram) -> Next {
        Next::Cut(match histogram.reset_hint {
            ResetHint::Gauge => Reset::Gauge,
            ResetHint::Reset => Reset::Found,
            ResetHint::Unknown | ResetHint::NoReset => Reset::Unknown,
        })
    }
}

struct Writer<'h, T: Number> {
    /// What is in it and what may follow.
    histograms: &'h [(i64, Histogram)],
    samples: usize,
    reset: Reset,
    layout: Layout,
    out: BitWriter,
    time_ms: i64,
    step_ms: i64,
    count: T::Track,
    zero: T::Track,
    sum: Xor,
    buckets: Vec<T::Track>,
    /// The last histogram, with all buckets of the layout.
    last: Counts<T>,
    is_stale: bool,
    /// The first time that belongs into the next chunk, and whether the size of samples is in that already.
    end_ms: i64,
    is_spread: bool,
}

impl<'h, T: Number> Writer<'h, T> {
    fn new(histograms: &'h [(i64, Histogram)], reset: Reset, layout: Layout) -> Writer<'h, T> {
        let time_ms = histograms[0].0;
        Writer {
            histograms,
            samples: 0,
            reset,
            buckets: vec![T::Track::default(); buckets(&layout.positive) + buckets(&layout.negative)],
            layout,
            out: BitWriter::new(),
            time_ms,
            step_ms: 0,
            count: T::Track::default(),
            zero: T::Track::default(),
            sum: Xor::default(),
            last: Counts::default(),
            is_stale: false,
            end_ms: span_end(time_ms),
            is_spread: false,
        }
    }

    fn bytes(&self) -> usize {
        HEADER + self.out.bits().div_ceil(8) as usize
    }

    /// Whether a sample of this time begins another chunk.
    fn is_full(&mut self, time_ms: i64) -> bool {
        let (bytes, min_ms) = (self.bytes(), self.histograms[0].0);
        if !self.is_spread && bytes >= TARGET_BYTES / 4 {
            let ratio = TARGET_BYTES as f64 / bytes as f64;
            self.end_ms = spread(min_ms, self.time_ms, self.end_ms, ratio);
            self.is_spread = true;
        }
        let is_full = time_ms >= self.end_ms || bytes >= 2 * TARGET_BYTES;
        let is_long = self.samples >= MIN_SAMPLES || time_ms >= span_end(min_ms);
        is_full && is_long || self.samples == usize::from(u16::MAX)
    }

    fn next(&mut self, time_ms: i64, histogram: &Histogram) -> Next {
        let is_full = self.is_full(time_ms);
        match self.goes_on(histogram) {
            Next::Append | Next::Widen(_) if is_full => {
                Next::Cut(if self.reset == Reset::Gauge { Reset::Gauge } else { Reset::None })
            }
            next => next,
        }
    }

    /// What to do with the next histogram, were there no end to a chunk.
    fn goes_on(&self, histogram: &Histogram) -> Next {
        if histogram.is_stale() {
            return Next::Append;
        }
        let is_gauge = histogram.reset_hint == ResetHint::Gauge;
        let (Some(counts), false) = (T::of(&histogram.counts), self.is_stale) else {
            return Next::first(histogram);
        };
        if is_gauge != (self.reset == Reset::Gauge) || histogram.reset_hint == ResetHint::Reset {
            return Next::first(histogram);
        }
        if !is_gauge && counts.count < self.last.count {
            return Next::Cut(Reset::Found);
        }
        if !self.layout.has_scale_of(histogram) {
            return Next::first(histogram);
        }
        let positive = Side::new(
            (&self.layout.positive, &self.last.positive),
            (&histogram.positive_spans, &counts.positive),
        );
        let negative = Side::new(
            (&self.layout.negative, &self.last.negative),
            (&histogram.negative_spans, &counts.negative),
        );
        let is_less = counts.zero < self.last.zero || positive.is_less || negative.is_less;
        if !is_gauge && is_less {
            return Next::Cut(Reset::Found);
        }
        if !positive.has_more && !negative.has_more {
            return Next::Append;
        }
        let widened = |side: &Side, held: &[Span], new: &[Span]| {
            if side.lacks { union(held, new) } else { new.to_vec() }
        };
        Next::Widen(Layout {
            positive: widened(&positive, &self.layout.positive, &histogram.positive_spans),
            negative: widened(&negative, &self.layout.negative, &histogram.negative_spans),
            ..self.layout.clone()
        })
    }

    /// Encodes everything anew.
    fn widen(&mut self, layout: Layout) {
        let mut wider = Writer {
            end_ms: self.end_ms,
            is_spread: self.is_spread,
            ..Writer::new(self.histograms, self.reset, layout)
        };
        for (time_ms, histogram) in &self.histograms[..self.samples] {
            wider.push(*time_ms, histogram);
        }
        *self = wider;
    }

    fn push(&mut self, time_ms: i64, histogram: &Histogram) {
        let is_first = self.samples == 0;
        if is_first {
            self.layout.put(&mut self.out);
            VARBIT.put(&mut self.out, time_ms);
        } else {
            let step_ms = time_ms.wrapping_sub(self.time_ms);
            VARBIT.put(&mut self.out, step_ms.wrapping_sub(self.step_ms));
            self.step_ms = step_ms;
        }
        self.is_stale = histogram.is_stale();
        self.last = match T::of(&histogram.counts).filter(|_| !self.is_stale) {
            Some(counts) => self.widened(counts, histogram),
            None => Counts::default(),
        };
        self.put_counts(is_first);
        if is_first {
            self.sum.put_first(&mut self.out, histogram.sum.to_bits());
        } else {
            self.sum.put_next(&mut self.out, histogram.sum.to_bits());
        }
        self.put_buckets(is_first);
        self.time_ms = time_ms;
        self.samples += 1;
    }

    /// The counts of a histogram, with all buckets of the layout.
    fn widened(&self, counts: &Counts<T>, histogram: &Histogram) -> Counts<T> {
        Counts {
            count: counts.count,
            zero: counts.zero,
            positive: widened(&counts.positive, &histogram.positive_spans, &self.layout.positive),
            negative: widened(&counts.negative, &histogram.negative_spans, &self.layout.negative),
        }
    }

    fn put_counts(&mut self, is_first: bool) {
        let out = &mut self.out;
        for (track, count) in [(&mut self.count, self.last.count), (&mut self.zero, self.last.zero)] {
            let raw = count.raw(T::default());
            match (is_first, self.is_stale) {
                (true, _) => track.put_first_count(out, raw),
                (false, true) => track.put_stale(out),
                (false, false) => track.put_next(out, raw),
            }
        }
    }

    fn put_buckets(&mut self, is_first: bool) {
        let mut tracks = self.buckets.iter_mut();
        for side in [&self.last.positive, &self.last.negative] {
            let mut before = T::default();
            for (&count, track) in side.iter().zip(&mut tracks) {
                let raw = count.raw(before);
                before = count;
                if is_first {
                    track.put_first_bucket(&mut self.out, raw);
                } else {
                    track.put_next(&mut self.out, raw);
                }
            }
        }
    }

    fn finish(self) -> Chunk {
        let mut bytes = (self.samples as u16).to_be_bytes().to_vec();
        bytes.push((self.reset as u8) << 6);
        bytes.extend_from_slice(&self.out.into_bytes());
        Chunk {
            min_ms: self.histograms[0].0,
            max_ms: self.time_ms,
            samples: self.samples as u32,
            encoding: T::ENCODING,
            bytes,
        }
    }
}

/// The values of the buckets of `spans` for those of `all`.
fn widened<T: Number>(values: &[T], spans: &[Span], all: &[Span]) -> Vec<T> {
    if spans == all {
        return values.to_vec();
    }
    let mut present = indexes(spans).zip(values).peekable();
    let value = |index| present.next_if(|&(at, _)| at == index).map_or(T::default(), |(_, &value)| value);
    indexes(all).map(value).collect()
}

/// How the buckets of one side go on.
struct Side {
    /// Whether there are buckets that were not there before.
    has_more: bool,
    /// Whether buckets are gone.
    lacks: bool,
    /// Whether any holds less than before.
    is_less: bool,
}

impl Side {
    fn new<T: Number>(before: (&[Span], &[T]), now: (&[Span], &[T])) -> Side {
        let mut side = Side { has_more: false, lacks: false, is_less: false };
        if before.0 == now.0 {
            side.is_less = before.1.iter().zip(now.1).any(|(before, now)| before > now);
            return side;
        }
        let mut before = indexes(before.0).zip(before.1).peekable();
        let mut now = indexes(now.0).zip(now.1).peekable();
        while let Some(index) = before.peek().into_iter().chain(now.peek()).map(|entry| entry.0).min() {
            let held = before.next_if(|entry| entry.0 == index).map(|(_, &value)| value);
            let new = now.next_if(|entry| entry.0 == index).map(|(_, &value)| value);
            side.has_more |= held.is_none();
            side.lacks |= new.is_none();
            side.is_less |= held.unwrap_or_default() > new.unwrap_or_default();
        }
        side
    }
}

pub(super) fn decode_integer(bytes: &[u8], series: &mut SeriesData) -> Result<(), Damage> {
    let (&[high, low, flags], rest) = bytes.split_first_chunk().ok_or(CUT_OFF)?;
    decode::<u64>(u16::from_be_bytes([high, low]), flags, StartTimes::new(0), rest, series)
}

pub(super) fn decode_float(bytes: &[u8], series: &mut SeriesData) -> Result<(), Damage> {
    let (&[high, low, flags], rest) = bytes.split_first_chunk().ok_or(CUT_OFF)?;
    decode::<f64>(u16::from_be_bytes([high, low]), flags, StartTimes::new(0), rest, series)
}

pub(super) fn decode_integer_with_starts(bytes: &[u8], series: &mut SeriesData) -> Result<(), Damage> {
    let (&[high, low, header], rest) = bytes.split_first_chunk().ok_or(CUT_OFF)?;
    decode::<u64>(u16::from_be_bytes([high & 0x3f, low]), high, StartTimes::new(header), rest, series)
}

pub(super) fn decode_float_with_starts(bytes: &[u8], series: &mut SeriesData) -> Result<(), Damage> {
    let (&[high, low, header], rest) = bytes.split_first_chunk().ok_or(CUT_OFF)?;
    decode::<f64>(u16::from_be_bytes([high & 0x3f, low]), high, StartTimes::new(header), rest, series)
}

fn decode<T: Number>(
    samples: u16,
    flags: u8,
    mut starts: StartTimes,
    bytes: &[u8],
    series: &mut SeriesData,
) -> Result<(), Damage> {
    if samples == 0 {
        return Ok(());
    }
    let mut bits = Bits::of_slice(bytes);
    let layout = Layout::take(&mut bits)?;
    if layout.parts() * usize::from(samples) > MAX_CHUNK_PARTS {
        return Err("a chunk of more buckets than are read at once");
    }
    let mut reader = Reader::<T>::new(layout, flags >> 6 == Reset::Gauge as u8);
    for number in 0..u32::from(samples) {
        let before_ms = reader.time_ms;
        let histogram = reader.take(&mut bits, number == 0)?;
        if !histogram.is_stale() {
            histogram.validate().map_err(|_| "a histogram whose parts do not agree")?;
        }
        series.histograms.push((reader.time_ms, histogram));
        if let Some(start_ms) = starts.take(&mut bits, number, reader.time_ms, before_ms)? {
            series.starts.push((reader.time_ms, start_ms));
        }
    }
    Ok(())
}

struct Reader<T: Number> {
    layout: Layout,
    is_gauge: bool,
    time_ms: i64,
    step_ms: i64,
    count: T::Track,
    zero: T::Track,
    sum: Xor,
    positive: Vec<T::Track>,
    negative: Vec<T::Track>,
}

impl<T: Number> Reader<T> {
    fn new(layout: Layout, is_gauge: bool) -> Reader<T> {
        Reader {
            is_gauge,
            time_ms: 0,
            step_ms: 0,
            count: T::Track::default(),
            zero: T::Track::default(),
            sum: Xor::default(),
            positive: vec![T::Track::default(); buckets(&layout.positive)],
            negative: vec![T::Track::default(); buckets(&layout.negative)],
            layout,
        }
    }

    fn take(&mut self, bits: &mut Bits, is_first: bool) -> Result<Histogram, Damage> {
        let time = VARBIT.take(bits)?;
        if is_first {
            self.time_ms = time;
        } else {
            self.step_ms = self.step_ms.wrapping_add(time);
            self.time_ms = self.time_ms.wrapping_add(self.step_ms);
        }
        let mut count = |track: &mut T::Track| {
            let raw = if is_first { track.take_first_count(bits) } else { track.take_next(bits) };
            raw.map(|raw| T::from_raw(raw, T::default()))
        };
        let (count, zero) = (count(&mut self.count)?, count(&mut self.zero)?);
        let sum = if is_first { self.sum.take_first(bits)? } else { self.sum.take_next(bits)? };
        let mut histogram = Histogram { sum: f64::from_bits(sum), ..Histogram::default() };
        if histogram.is_stale() && !is_first {
            return Ok(Histogram::stale());
        }
        let positive = take_buckets(&mut self.positive, bits, is_first)?;
        let negative = take_buckets(&mut self.negative, bits, is_first)?;
        if histogram.is_stale() {
            return Ok(Histogram::stale());
        }
        histogram.counts = T::counts(Counts { count, zero, positive, negative });
        histogram.reset_hint = match (self.is_gauge, is_first) {
            (true, _) => ResetHint::Gauge,
            (false, true) => ResetHint::Unknown,
            (false, false) => ResetHint::NoReset,
        };
        histogram.schema = self.layout.schema;
        histogram.zero_threshold = self.layout.zero_threshold;
        histogram.positive_spans.clone_from(&self.layout.positive);
        histogram.negative_spans.clone_from(&self.layout.negative);
        histogram.custom_bounds.clone_from(&self.layout.bounds);
        Ok(histogram)
    }
}

fn take_buckets<T: Number<Track = K>, K: Track>(
    tracks: &mut [K],
    bits: &mut Bits,
    is_first: bool,
) -> Result<Vec<T>, Damage> {
    let mut before = T::default();
    tracks
        .iter_mut()
        .map(|track| {
            let raw = if is_first { track.take_first_bucket(bits) } else { track.take_next(bits) };
            before = T::from_raw(raw?, before);
            Ok(before)
        })
        .collect()
}
