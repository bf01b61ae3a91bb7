//! Chunks: the samples of one series for a stretch of time. Six encodings are read; written are the three that every
//! Prometheus and Thanos reads, which have no room for start timestamps.
use super::varbit::Damage;
use super::{histogram_chunk, xor, xor2};
use crate::block::SeriesData;

/// No chunk crosses a multiple of this, so that blocks can be cut there without decoding.
const SPAN_MS: i64 = 2 * 60 * 60 * 1000;

/// How the samples of a chunk are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Encoding {
    Xor = 1,
    Histogram = 2,
    FloatHistogram = 3,
    /// Floats with start timestamps, as are the next two; read only.
    Xor2 = 4,
    HistogramStart = 5,
    FloatHistogramStart = 6,
}

impl Encoding {
    pub(crate) fn from_number(number: u8) -> Option<Encoding> {
        Some(match number {
            1 => Encoding::Xor,
            2 => Encoding::Histogram,
            3 => Encoding::FloatHistogram,
            4 => Encoding::Xor2,
            5 => Encoding::HistogramStart,
            6 => Encoding::FloatHistogramStart,
            _ => return None,
        })
    }

    /// Whether its samples are floats, not histograms.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Encoding::Xor | Encoding::Xor2)
    }
}

/// An encoded chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Its oldest and newest sample.
    pub(crate) min_ms: i64,
    pub(crate) max_ms: i64,
    pub(crate) samples: u32,
    pub(crate) encoding: Encoding,
    pub(crate) bytes: Vec<u8>,
}

/// Appends the chunks of a series, or of a slice of it, in the order of time and without overlap. They are cut where
/// Prometheus cuts them when samples come in that order.
pub(crate) fn encode_series(series: &SeriesData, chunks: &mut Vec<Chunk>) {
    let (mut floats, mut histograms) = (&series.floats[..], &series.histograms[..]);
    while !floats.is_empty() || !histograms.is_empty() {
        let end = histograms
            .first()
            .map_or(floats.len(), |histogram| floats.partition_point(|float| float.0 < histogram.0));
        let (run, rest) = floats.split_at(end);
        xor::encode(run, chunks);
        floats = rest;
        let end = floats
            .first()
            .map_or(histograms.len(), |float| histograms.partition_point(|histogram| histogram.0 <= float.0));
        let (run, rest) = histograms.split_at(end);
        histogram_chunk::encode(run, chunks);
        histograms = rest;
    }
}

/// Appends the samples and the start timestamps of a chunk to those of `series`; nothing when the chunk is damaged.
pub(crate) fn decode_chunk(encoding: Encoding, bytes: &[u8], series: &mut SeriesData) -> Result<(), Damage> {
    let lengths = (series.floats.len(), series.histograms.len(), series.starts.len());
    let decode = match encoding {
        Encoding::Xor => xor::decode,
        Encoding::Xor2 => xor2::decode,
        Encoding::Histogram => histogram_chunk::decode_integer,
        Encoding::FloatHistogram => histogram_chunk::decode_float,
        Encoding::HistogramStart => histogram_chunk::decode_integer_with_starts,
        Encoding::FloatHistogramStart => histogram_chunk::decode_float_with_starts,
    };
    let result = decode(bytes, series).and_then(|()| {
        let floats = series.floats[lengths.0..].is_sorted_by(|a, b| a.0 < b.0);
        let histograms = series.histograms[lengths.1..].is_sorted_by(|a, b| a.0 < b.0);
        if floats && histograms { Ok(()) } else { Err("times in a chunk do not ascend") }
    });
    if result.is_err() {
        series.floats.truncate(lengths.0);
        series.histograms.truncate(lengths.1);
        series.starts.truncate(lengths.2);
    }
    result
}

/// The end of the span of time that this time lies in: the first time that belongs into the next.
pub(super) fn span_end(time_ms: i64) -> i64 {
    time_ms.div_euclid(SPAN_MS).saturating_add(1).saturating_mul(SPAN_MS)
}

/// Where a chunk should end that holds samples from `min_ms` to `max_ms` and has room for `ratio` times as many, so that
/// all chunks up to `end_ms` become equally long, if samples go on coming as they did.
pub(super) fn spread(min_ms: i64, max_ms: i64, end_ms: i64, ratio: f64) -> i64 {
    let length = end_ms.wrapping_sub(min_ms) as f64;
    let chunks = length / (max_ms.wrapping_sub(min_ms).wrapping_add(1) as f64 * ratio);
    if chunks <= 1.0 { end_ms } else { (min_ms as f64 + length / chunks.floor()) as i64 }
}
