//! Record kind 8: start timestamps, when the counter behind a sample began.
//!
//! ```text
//! check u64 LE, then entries, all varints:
//! zigzag(id − previous id), zigzag(ms − previous ms) of the sample, zigzag(start − previous start)
//! ```
//! The samples themselves stand in records of rows or histograms.
use metricsstore_codec::varint::{put, take, unzigzag, zigzag};

use super::body::{BodyWriter, Check, next_series, read_entries};

/// The start timestamp of one sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogStart {
    pub(crate) series: u32,
    /// Of the sample.
    pub(crate) timestamp_ms: i64,
    pub(crate) start_ms: i64,
}

/// Builds records of start timestamps.
#[derive(Default)]
pub(crate) struct StartsWriter {
    body: BodyWriter,
    previous: LogStart,
}

impl StartsWriter {
    pub(crate) fn push(&mut self, start: LogStart) {
        add_content(&mut self.body.check, start);
        let previous = std::mem::replace(&mut self.previous, start);
        let frame = &mut self.body.frame;
        put(frame, zigzag(i64::from(start.series) - i64::from(previous.series)));
        put(frame, zigzag(start.timestamp_ms.wrapping_sub(previous.timestamp_ms)));
        put(frame, zigzag(start.start_ms.wrapping_sub(previous.start_ms)));
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

/// The start timestamps of a record.
pub(crate) fn decode_starts(body: &[u8]) -> Result<Vec<LogStart>, &'static str> {
    let (mut starts, mut previous) = (Vec::new(), LogStart::default());
    read_entries(body, |bytes, check| {
        let start = LogStart {
            series: next_series(previous.series, unzigzag(take(bytes)?))?,
            timestamp_ms: previous.timestamp_ms.wrapping_add(unzigzag(take(bytes)?)),
            start_ms: previous.start_ms.wrapping_add(unzigzag(take(bytes)?)),
        };
        add_content(check, start);
        previous = start;
        starts.push(start);
        Ok(())
    })?;
    Ok(starts)
}

fn add_content(check: &mut Check, start: LogStart) {
    check.add(u64::from(start.series));
    check.add(start.timestamp_ms as u64);
    check.add(start.start_ms as u64);
}

#[cfg(test)]
mod tests {
    use super::super::body::tests::assert_flips_are_found;
    use super::*;
    use crate::wal::FRAME_BYTES;

    fn starts() -> Vec<LogStart> {
        let of = |series, timestamp_ms, start_ms| LogStart { series, timestamp_ms, start_ms };
        vec![
            of(7, 1_700_000_000_000, 1_600_000_000_000),
            of(8, 1_700_000_000_000, 1_600_000_000_000),
            of(u32::MAX, i64::MIN, i64::MAX),
            of(0, i64::MAX, i64::MIN),
        ]
    }

    fn body() -> Vec<u8> {
        let mut writer = StartsWriter::default();
        for start in starts() {
            writer.push(start);
        }
        writer.take().finish()[FRAME_BYTES..].to_vec()
    }

    #[test]
    fn start_timestamps_come_back() {
        assert_eq!(decode_starts(&body()), Ok(starts()));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        assert_flips_are_found(&body(), |body| decode_starts(body).ok());
    }
}
