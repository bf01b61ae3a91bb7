//! Record kind 5: exemplars. They name their series by its labels, so that they can be read whatever became of its id.
//!
//! ```text
//! check u64 LE, then entries (numbers are varints; a text is its length in bytes, then the bytes):
//! series  index among the series of this record; the next unused one: its labels follow
//! time    zigzag(ms − previous ms)
//! value   8 bytes of the double, LE
//! labels  of the exemplar
//! a set of labels is its number of pairs, then name and value of each
//! ```
use std::sync::Arc;

use hashbrown::HashMap;
use metricsstore_codec::Damaged;
use metricsstore_codec::varint::{put, take, unzigzag, zigzag};
use metricsstore_model::LabelBuf;

use super::body::{BodyWriter, Check, read_entries, take_bytes, take_text};

/// One exemplar of a record.
#[derive(Debug, Clone)]
pub(crate) struct LogExemplar {
    /// Labels of its series, sorted.
    pub(crate) series: Arc<LabelBuf>,
    pub(crate) labels: LabelBuf,
    pub(crate) timestamp_ms: i64,
    pub(crate) value: f64,
}

impl PartialEq for LogExemplar {
    fn eq(&self, other: &LogExemplar) -> bool {
        self.series == other.series
            && self.labels == other.labels
            && self.timestamp_ms == other.timestamp_ms
            && self.value.to_bits() == other.value.to_bits()
    }
}

/// Builds records of exemplars.
#[derive(Default)]
pub(crate) struct ExemplarsWriter {
    body: BodyWriter,
    series: HashMap<Arc<LabelBuf>, u64>,
    previous_ms: i64,
}

impl ExemplarsWriter {
    pub(crate) fn push(&mut self, exemplar: &LogExemplar) {
        add_content(&mut self.body.check, exemplar);
        let next = self.series.len() as u64;
        let index = *self.series.entry(Arc::clone(&exemplar.series)).or_insert(next);
        put(&mut self.body.frame, index);
        if index == next {
            put_labels(&mut self.body, &exemplar.series);
        }
        put(&mut self.body.frame, zigzag(exemplar.timestamp_ms.wrapping_sub(self.previous_ms)));
        self.body.frame.extend_from_slice(&exemplar.value.to_bits().to_le_bytes());
        put_labels(&mut self.body, &exemplar.labels);
        self.previous_ms = exemplar.timestamp_ms;
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

/// The exemplars of a record.
pub(crate) fn decode_exemplars(body: &[u8]) -> Result<Vec<LogExemplar>, &'static str> {
    let mut known: Vec<Arc<LabelBuf>> = Vec::new();
    let (mut exemplars, mut previous_ms) = (Vec::new(), 0i64);
    read_entries(body, |bytes, check| {
        let index = take(bytes)?;
        if index == known.len() as u64 {
            known.push(Arc::new(take_labels(bytes)?));
        }
        let series = usize::try_from(index).ok().and_then(|index| known.get(index));
        let series = Arc::clone(series.ok_or(Damaged { what: "an exemplar of a series that is not named" })?);
        let timestamp_ms = previous_ms.wrapping_add(unzigzag(take(bytes)?));
        let value = f64::from_le_bytes(take_bytes(bytes)?);
        let exemplar = LogExemplar { series, timestamp_ms, value, labels: take_labels(bytes)? };
        add_content(check, &exemplar);
        previous_ms = timestamp_ms;
        exemplars.push(exemplar);
        Ok(())
    })?;
    Ok(exemplars)
}

fn put_labels(body: &mut BodyWriter, labels: &LabelBuf) {
    put(&mut body.frame, labels.len() as u64);
    for (name, value) in labels.iter() {
        body.put_text(name);
        body.put_text(value);
    }
}

fn take_labels(bytes: &mut &[u8]) -> Result<LabelBuf, Damaged> {
    let mut labels = LabelBuf::new();
    for _ in 0..take(bytes)? {
        labels.push(&take_text(bytes)?, &take_text(bytes)?);
    }
    Ok(labels)
}

fn add_content(check: &mut Check, exemplar: &LogExemplar) {
    for labels in [&*exemplar.series, &exemplar.labels] {
        check.add(labels.len() as u64);
        for (name, value) in labels.iter() {
            check.add_text(name);
            check.add_text(value);
        }
    }
    check.add(exemplar.timestamp_ms as u64);
    check.add(exemplar.value.to_bits());
}

#[cfg(test)]
mod tests {
    use super::super::body::tests::assert_flips_are_found;
    use super::*;
    use crate::wal::FRAME_BYTES;

    fn exemplars() -> Vec<LogExemplar> {
        let of = |series: &[(&str, &str)], labels: &[(&str, &str)], timestamp_ms, value| LogExemplar {
            series: Arc::new(LabelBuf::from_pairs(series.iter().copied())),
            labels: LabelBuf::from_pairs(labels.iter().copied()),
            timestamp_ms,
            value,
        };
        let one = [("__name__", "a_bucket"), ("le", "0.5")];
        vec![
            of(&one, &[("trace_id", "abc")], 1_700_000_000_000, 0.25),
            of(&[("__name__", "ü")], &[], i64::MIN, f64::NAN),
            of(&one, &[("trace_id", "")], i64::MAX, -0.0),
        ]
    }

    fn body() -> Vec<u8> {
        let mut writer = ExemplarsWriter::default();
        for exemplar in &exemplars() {
            writer.push(exemplar);
        }
        writer.take().finish()[FRAME_BYTES..].to_vec()
    }

    #[test]
    fn exemplars_come_back_with_their_series_and_bits() {
        assert_eq!(decode_exemplars(&body()), Ok(exemplars()));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        assert_flips_are_found(&body(), |body| decode_exemplars(body).ok());
    }
}
