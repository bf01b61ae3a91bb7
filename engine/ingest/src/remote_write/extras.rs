//! Native histograms, exemplars and metadata of a request.
//!
//! ```text
//! Histogram      { uint64 count_int = 1; double count_float = 2; double sum = 3; sint32 schema = 4;
//!                  double zero_threshold = 5; uint64 zero_count_int = 6; double zero_count_float = 7;
//!                  repeated BucketSpan negative_spans = 8; repeated sint64 negative_deltas = 9;
//!                  repeated double negative_counts = 10; repeated BucketSpan positive_spans = 11;
//!                  repeated sint64 positive_deltas = 12; repeated double positive_counts = 13;
//!                  ResetHint reset_hint = 14; int64 timestamp = 15; repeated double custom_values = 16 }
//! BucketSpan     { sint32 offset = 1; uint32 length = 2 }
//! Exemplar       { repeated Label labels = 1; double value = 2; int64 timestamp = 3 }
//! MetricMetadata { MetricType type = 1; string metric_family_name = 2; string help = 4; string unit = 5 }
//! ```
//! Buckets of integer histograms come as differences and are added up; a histogram with `count_float` is a float one.
use metricsstore_model::histogram::{
    Counts, Histogram, HistogramCounts, HistogramError, MAX_PARTS, ResetHint, Span,
};
use metricsstore_model::{Exemplar, HistogramSample, Metadata, MetricType};

use super::{DecodeError, MAX_PARTS_PER_REQUEST};
use crate::proto::{Field, Malformed, Reader};

/// A histogram's fields as they came.
#[derive(Default)]
struct Fields {
    is_float: bool,
    count: u64,
    count_float: f64,
    zero: u64,
    zero_float: f64,
    positive: Side,
    negative: Side,
}

/// Buckets of one side.
#[derive(Default)]
struct Side {
    deltas: Vec<i64>,
    counts: Vec<f64>,
}

/// Reads one histogram; `parts` counts spans, buckets and bounds of the request.
pub(super) fn read_histogram(
    mut message: Reader<'_>,
    row: u32,
    parts: &mut usize,
) -> Result<HistogramSample, DecodeError> {
    let (mut histogram, mut fields) = (Histogram::default(), Fields::default());
    let mut timestamp_ms = 0;
    while let Some(field) = message.field()? {
        match field.number {
            1 => fields.count = message.varint_field(field)?,
            2 => (fields.is_float, fields.count_float) = (true, read_double(&mut message, field)?),
            3 => histogram.sum = read_double(&mut message, field)?,
            4 => histogram.schema = zigzag(message.varint_field(field)?) as i32,
            5 => histogram.zero_threshold = read_double(&mut message, field)?,
            6 => fields.zero = message.varint_field(field)?,
            7 => fields.zero_float = read_double(&mut message, field)?,
            8 => push(&mut histogram.negative_spans, read_span(message.message(field)?)?, parts)?,
            9 => read_deltas(&mut message, field, &mut fields.negative.deltas, parts)?,
            10 => read_doubles(&mut message, field, &mut fields.negative.counts, parts)?,
            11 => push(&mut histogram.positive_spans, read_span(message.message(field)?)?, parts)?,
            12 => read_deltas(&mut message, field, &mut fields.positive.deltas, parts)?,
            13 => read_doubles(&mut message, field, &mut fields.positive.counts, parts)?,
            14 => {
                let hint = ResetHint::from_number(message.varint_field(field)?);
                histogram.reset_hint = hint.unwrap_or_default();
            }
            15 => timestamp_ms = message.varint_field(field)? as i64,
            16 => read_doubles(&mut message, field, &mut histogram.custom_bounds, parts)?,
            _ => message.skip(field)?,
        }
    }
    let histogram = fields.counts().map(|counts| Histogram { counts, ..histogram });
    Ok(HistogramSample { row, timestamp_ms, start_ms: 0, histogram })
}

impl Fields {
    fn counts(self) -> Result<HistogramCounts, HistogramError> {
        if self.is_float {
            return Ok(HistogramCounts::Float(Counts {
                count: self.count_float,
                zero: self.zero_float,
                positive: self.positive.counts,
                negative: self.negative.counts,
            }));
        }
        Ok(HistogramCounts::Integer(Counts {
            count: self.count,
            zero: self.zero,
            positive: absolute(&self.positive.deltas)?,
            negative: absolute(&self.negative.deltas)?,
        }))
    }
}

/// Counts from their differences.
fn absolute(deltas: &[i64]) -> Result<Vec<u64>, HistogramError> {
    let mut count = 0i64;
    let counts = deltas.iter().enumerate().map(|(index, &delta)| {
        count = count.checked_add(delta).ok_or(HistogramError::CountOverflow)?;
        u64::try_from(count).map_err(|_| HistogramError::NegativeBucket(index + 1))
    });
    counts.collect()
}

/// Adds a part. One histogram keeps just enough to be refused for its size.
fn push<T>(to: &mut Vec<T>, part: T, parts: &mut usize) -> Result<(), DecodeError> {
    *parts += 1;
    if *parts > MAX_PARTS_PER_REQUEST {
        return Err(DecodeError::TooMany { what: "histogram buckets", limit: MAX_PARTS_PER_REQUEST });
    }
    if to.len() <= MAX_PARTS {
        to.push(part);
    }
    Ok(())
}

fn read_span(mut message: Reader<'_>) -> Result<Span, Malformed> {
    let mut span = Span { offset: 0, length: 0 };
    while let Some(field) = message.field()? {
        match field.number {
            1 => span.offset = zigzag(message.varint_field(field)?) as i32,
            2 => span.length = message.varint_field(field)? as u32,
            _ => message.skip(field)?,
        }
    }
    Ok(span)
}

/// Packed or one by one.
fn read_deltas(
    message: &mut Reader<'_>,
    field: Field,
    to: &mut Vec<i64>,
    parts: &mut usize,
) -> Result<(), DecodeError> {
    if !field.is_length_delimited() {
        return push(to, zigzag(message.varint_field(field)?), parts);
    }
    let mut packed = message.message(field)?;
    while !packed.is_at_end() {
        push(to, zigzag(packed.varint()?), parts)?;
    }
    Ok(())
}

fn read_doubles(
    message: &mut Reader<'_>,
    field: Field,
    to: &mut Vec<f64>,
    parts: &mut usize,
) -> Result<(), DecodeError> {
    if !field.is_length_delimited() {
        return push(to, read_double(message, field)?, parts);
    }
    let mut packed = message.message(field)?;
    while !packed.is_at_end() {
        push(to, f64::from_bits(packed.eight_bytes()?), parts)?;
    }
    Ok(())
}

fn read_double(message: &mut Reader<'_>, field: Field) -> Result<f64, Malformed> {
    Ok(f64::from_bits(message.fixed64(field)?))
}

const fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Reads one exemplar; its raw label bytes are the whole message.
pub(super) fn read_exemplar(mut message: Reader<'_>, row: u32) -> Result<Exemplar<'_>, Malformed> {
    let mut exemplar = Exemplar { row, raw_labels: message.rest(), timestamp_ms: 0, value: 0.0 };
    while let Some(field) = message.field()? {
        match field.number {
            2 => exemplar.value = read_double(&mut message, field)?,
            3 => exemplar.timestamp_ms = message.varint_field(field)? as i64,
            _ => message.skip(field)?,
        }
    }
    Ok(exemplar)
}

pub(super) fn read_metadata(mut message: Reader<'_>) -> Result<Metadata, Malformed> {
    let mut metadata = Metadata::default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    while let Some(field) = message.field()? {
        match field.number {
            1 => metadata.kind = MetricType::from_number(message.varint_field(field)?),
            2 => metadata.family = text(message.bytes(field)?),
            4 => metadata.help = text(message.bytes(field)?),
            5 => metadata.unit = text(message.bytes(field)?),
            _ => message.skip(field)?,
        }
    }
    Ok(metadata)
}
