//! Record kind 4: native histograms.
//!
//! ```text
//! check u64 LE, then entries:
//! ┌────────────────────────────────────┬────────────────────────────────┬───────────────────────────────┐
//! │ zigzag(id − previous id) * 2 +     │ zigzag(ms − previous ms)       │ histogram, against the one    │
//! │ (1 if it was late), varint         │ varint                         │ before in this record         │
//! └────────────────────────────────────┴────────────────────────────────┴───────────────────────────────┘
//! ```
//! A late one was accepted although its series had newer samples. Start timestamps stand in records of kind 8.
use metricsstore_codec::Damaged;
use metricsstore_codec::varint::{put, take, unzigzag, zigzag};
use metricsstore_model::histogram::{self, Histogram, HistogramCounts};

use super::body::{BodyWriter, Check, next_series, read_entries};

/// One histogram of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogHistogram {
    pub(crate) series: u32,
    pub(crate) timestamp_ms: i64,
    /// Accepted although the series had newer samples.
    pub(crate) is_late: bool,
    pub(crate) histogram: Histogram,
}

/// Builds records of histograms.
#[derive(Default)]
pub(crate) struct HistogramsWriter {
    body: BodyWriter,
    previous: Option<LogHistogram>,
}

impl HistogramsWriter {
    /// Adds one that is valid.
    pub(crate) fn push(&mut self, entry: &LogHistogram) {
        let (series, time) =
            self.previous.as_ref().map_or((0, 0), |previous| (previous.series, previous.timestamp_ms));
        add_content(&mut self.body.check, entry);
        let step = i64::from(entry.series) - i64::from(series);
        put(&mut self.body.frame, zigzag(step) << 1 | u64::from(entry.is_late));
        put(&mut self.body.frame, zigzag(entry.timestamp_ms.wrapping_sub(time)));
        let previous = self.previous.as_ref().map(|previous| &previous.histogram);
        histogram::encode(&entry.histogram, previous, &mut self.body.frame);
        self.previous = Some(entry.clone());
        self.body.count_entry();
    }

    /// The record so far.
    pub(crate) fn body(&self) -> &BodyWriter {
        &self.body
    }

    /// Takes the record and begins another.
    pub(crate) fn take(&mut self) -> BodyWriter {
        std::mem::take(self).body
    }
}

/// Hands each histogram of a record to `sink`, once all of them were found sound. Holds one at a time.
pub(crate) fn decode_histograms(
    body: &[u8],
    mut sink: impl FnMut(&LogHistogram),
) -> Result<(), &'static str> {
    each(body, |_| {})?;
    each(body, &mut sink)
}

fn each(body: &[u8], mut sink: impl FnMut(&LogHistogram)) -> Result<(), &'static str> {
    let mut previous: Option<LogHistogram> = None;
    read_entries(body, |bytes, check| {
        let (series, time) = previous.as_ref().map_or((0, 0), |entry| (entry.series, entry.timestamp_ms));
        let head = take(bytes)?;
        let series = next_series(series, unzigzag(head >> 1))?;
        let timestamp_ms = time.wrapping_add(unzigzag(take(bytes)?));
        let histogram = histogram::decode(bytes, previous.as_ref().map(|entry| &entry.histogram))?;
        if histogram.validate().is_err() {
            return Err(Damaged { what: "a histogram whose parts contradict each other" });
        }
        let entry = LogHistogram { series, timestamp_ms, is_late: head & 1 == 1, histogram };
        add_content(check, &entry);
        sink(previous.insert(entry));
        Ok(())
    })
}

fn add_content(check: &mut Check, entry: &LogHistogram) {
    check.add(u64::from(entry.series) << 1 | u64::from(entry.is_late));
    check.add(entry.timestamp_ms as u64);
    let histogram = &entry.histogram;
    check.add(histogram.schema as u64);
    check.add(histogram.reset_hint as u64);
    check.add(histogram.zero_threshold.to_bits());
    check.add(histogram.sum.to_bits());
    for spans in [&histogram.positive_spans, &histogram.negative_spans] {
        check.add(spans.len() as u64);
        for span in spans {
            check.add(u64::from(span.offset as u32) << 32 | u64::from(span.length));
        }
    }
    check.add(histogram.custom_bounds.len() as u64);
    for bound in &histogram.custom_bounds {
        check.add(bound.to_bits());
    }
    match &histogram.counts {
        HistogramCounts::Integer(counts) => {
            check.add(counts.count);
            check.add(counts.zero);
            counts.positive.iter().chain(&counts.negative).for_each(|&count| check.add(count));
        }
        HistogramCounts::Float(counts) => {
            check.add(counts.count.to_bits() ^ 1);
            check.add(counts.zero.to_bits());
            counts.positive.iter().chain(&counts.negative).for_each(|count| check.add(count.to_bits()));
        }
    }
}

#[cfg(test)]
mod tests {
    use metricsstore_model::histogram::{Counts, Span};

    use super::super::body::tests::assert_flips_are_found;
    use super::*;
    use crate::wal::FRAME_BYTES;

    fn entries() -> Vec<LogHistogram> {
        let integer = |step: u64| Histogram {
            schema: 3,
            sum: step as f64 * 0.1,
            zero_threshold: 1e-128,
            counts: HistogramCounts::Integer(Counts {
                count: 3 * step + 1,
                zero: 1,
                positive: vec![step, step],
                negative: vec![step],
            }),
            positive_spans: vec![Span { offset: -7, length: 1 }, Span { offset: 3, length: 1 }],
            negative_spans: vec![Span { offset: 0, length: 1 }],
            ..Histogram::default()
        };
        let custom = Histogram {
            schema: -53,
            sum: -0.0,
            counts: HistogramCounts::Float(Counts { count: 1.5, positive: vec![1.5], ..Counts::default() }),
            positive_spans: vec![Span { offset: 1, length: 1 }],
            custom_bounds: vec![0.1, 2.5],
            ..Histogram::default()
        };
        let histograms = [integer(1), integer(2), custom, Histogram::stale(), integer(7)];
        let series = [7, 8, 9, 8, u32::MAX];
        let times = [1_700_000_000_000, 1_700_000_000_000, 1_700_000_000_001, -5, i64::MAX];
        let all = histograms.into_iter().zip(series).zip(times).enumerate();
        all.map(|(index, ((histogram, series), timestamp_ms))| LogHistogram {
            series,
            timestamp_ms,
            is_late: index == 3,
            histogram,
        })
        .collect()
    }

    fn body() -> Vec<u8> {
        let mut writer = HistogramsWriter::default();
        for entry in &entries() {
            writer.push(entry);
        }
        assert_eq!(writer.body().entries(), 5);
        writer.take().finish()[FRAME_BYTES..].to_vec()
    }

    fn decode(body: &[u8]) -> Option<Vec<LogHistogram>> {
        let mut decoded = Vec::new();
        decode_histograms(body, |entry| decoded.push(entry.clone())).ok().map(|()| decoded)
    }

    #[test]
    fn histograms_come_back_bit_for_bit() {
        assert_eq!(decode(&body()), Some(entries()));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        assert_flips_are_found(&body(), decode);
    }
}
