//! Bodies of log records.
//!
//! ```text
//! kind 1, definitions: opaque to the log, written and read by `identity`
//!
//! kind 2, rows: ┌──────────────┬───────────┬─────────┬──────────────────────────────────────────┐
//!               │ check u64 LE │ shards u8 │ samples │ series, [time,] value; series, …         │
//!               └──────────────┴───────────┴─────────┴──────────────────────────────────────────┘
//! shards  how many the writer had; all samples belong to one of them
//! series  varint of zigzag(id − previous id) * 2 + (1 if a time follows)
//! time    varint of zigzag(ms − previous ms); a sample without one has the previous sample's
//! value   varint of zigzag(integer) * 2 for integers below 2^52, else the byte 1 and 8 bytes of the double
//! ```
//! `check` is computed over the samples themselves, not their encoding: it also finds a wrong encoder or decoder.
use crate::bytes::{Cursor, put_varint, unzigzag, zigzag};
use crate::head::Layout;
use crate::wal::FRAME_BYTES;

pub(crate) const DEFINITIONS: u8 = 1;
pub(crate) const ROWS: u8 = 2;
/// A body like that of [`ROWS`]; the samples were accepted although their series had newer ones.
pub(crate) const LATE_ROWS: u8 = 3;
pub(crate) const HISTOGRAMS: u8 = 4;
pub(crate) const EXEMPLARS: u8 = 5;
pub(crate) const METADATA: u8 = 6;
pub(crate) const TOMBSTONES: u8 = 7;
pub(crate) const START_TIMESTAMPS: u8 = 8;

const ROWS_HEADER_BYTES: usize = 9;
/// Integers of at most this magnitude are written as such.
const MAX_INTEGER: u64 = 1 << 52;

/// One sample of a row record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogSample {
    pub(crate) series: u32,
    pub(crate) timestamp_ms: i64,
    pub(crate) bits: u64,
}

/// Order-dependent checksum of samples. One multiplication depends on the one before, the others run beside it.
#[derive(Clone, Copy)]
struct Check(u64);

impl Check {
    const fn start() -> Check {
        Check(0x9e37_79b9_7f4a_7c15)
    }

    #[inline]
    fn add(&mut self, sample: LogSample) {
        let word = u64::from(sample.series).wrapping_mul(0xff51_afd7_ed55_8ccd)
            ^ (sample.timestamp_ms as u64).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
            ^ sample.bits.wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.0 = (self.0 ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(31);
    }
}

/// Builds the frame of one row record in a buffer that is kept from record to record.
pub(crate) struct RowsEncoder {
    frame: Vec<u8>,
    shards: u8,
    check: Check,
    previous: LogSample,
    samples: u32,
}

impl RowsEncoder {
    /// For samples of one shard of this layout.
    pub(crate) fn new(layout: Layout) -> RowsEncoder {
        let mut encoder = RowsEncoder {
            frame: Vec::new(),
            shards: layout.shards() as u8,
            check: Check::start(),
            previous: LogSample { series: 0, timestamp_ms: 0, bits: 0 },
            samples: 0,
        };
        encoder.clear();
        encoder
    }

    pub(crate) fn clear(&mut self) {
        self.frame.clear();
        self.frame.resize(FRAME_BYTES + ROWS_HEADER_BYTES, 0);
        self.frame[FRAME_BYTES + 8] = self.shards;
        self.check = Check::start();
        self.previous = LogSample { series: 0, timestamp_ms: 0, bits: 0 };
        self.samples = 0;
    }

    pub(crate) fn samples(&self) -> u32 {
        self.samples
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.frame.len()
    }

    /// Bytes of memory held.
    pub(crate) fn capacity(&self) -> usize {
        self.frame.capacity()
    }

    pub(crate) fn push(&mut self, sample: LogSample) {
        self.check.add(sample);
        let series = zigzag(i64::from(sample.series) - i64::from(self.previous.series)) << 1;
        if sample.timestamp_ms == self.previous.timestamp_ms {
            put_varint(&mut self.frame, series);
        } else {
            put_varint(&mut self.frame, series | 1);
            let step = sample.timestamp_ms.wrapping_sub(self.previous.timestamp_ms);
            put_varint(&mut self.frame, zigzag(step));
        }
        let value = f64::from_bits(sample.bits);
        let integer = value as i64;
        if integer.unsigned_abs() <= MAX_INTEGER && (integer as f64).to_bits() == sample.bits {
            put_varint(&mut self.frame, zigzag(integer) << 1);
        } else {
            self.frame.push(1);
            self.frame.extend_from_slice(&sample.bits.to_le_bytes());
        }
        self.previous = sample;
        self.samples += 1;
    }

    /// The frame with room for its header, ready for [`crate::wal::Log::append`].
    pub(crate) fn finish(&mut self) -> &mut Vec<u8> {
        self.frame[FRAME_BYTES..FRAME_BYTES + 8].copy_from_slice(&self.check.0.to_le_bytes());
        &mut self.frame
    }
}

/// The shard of `layout` that all samples of a row record belong to, where the record says so.
pub(crate) fn only_shard(body: &[u8], layout: Layout) -> Option<usize> {
    let mut cursor = Cursor::new(body);
    let (_, shards) = (cursor.u64()?, cursor.u8()?);
    let first = unzigzag(cursor.varint()? >> 1);
    (usize::from(shards) == layout.shards()).then_some(layout.shard_of(u32::try_from(first).ok()?))
}

/// Reads the samples of a row record into `samples` (cleared first); says what is wrong with the body.
pub(crate) fn decode_rows(body: &[u8], samples: &mut Vec<LogSample>) -> Result<(), &'static str> {
    samples.clear();
    let mut cursor = Cursor::new(body);
    let (Some(expected), Some(_)) = (cursor.u64(), cursor.u8()) else {
        return Err("row record is too short");
    };
    let mut check = Check::start();
    let mut previous = LogSample { series: 0, timestamp_ms: 0, bits: 0 };
    while !cursor.is_at_end() {
        let sample = decode_sample(&mut cursor, previous).ok_or("row record holds a malformed sample")?;
        check.add(sample);
        samples.push(sample);
        previous = sample;
    }
    if check.0 == expected { Ok(()) } else { Err("samples do not match their checksum") }
}

fn decode_sample(cursor: &mut Cursor<'_>, previous: LogSample) -> Option<LogSample> {
    let head = cursor.varint()?;
    let series = u32::try_from(i64::from(previous.series).checked_add(unzigzag(head >> 1))?).ok()?;
    let step = if head & 1 == 1 { cursor.signed()? } else { 0 };
    let timestamp_ms = previous.timestamp_ms.wrapping_add(step);
    let first = cursor.varint()?;
    let bits = if first == 1 { cursor.u64()? } else { (unzigzag(first >> 1) as f64).to_bits() };
    Some(LogSample { series, timestamp_ms, bits })
}

#[cfg(test)]
mod tests {
    use super::{LogSample, RowsEncoder, decode_rows};
    use crate::head::Layout;
    use crate::wal::FRAME_BYTES;

    fn samples() -> Vec<LogSample> {
        let values = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.1,
            f64::NAN,
            f64::from_bits(0x7ff0_0000_0000_0002),
            f64::INFINITY,
            f64::NEG_INFINITY,
            9_007_199_254_740_993.0,
            4_503_599_627_370_496.0,
            -1e300,
            f64::MIN_POSITIVE,
        ];
        let times = [0, 1_700_000_000_000, 1_700_000_000_000, i64::MIN, i64::MAX, -5];
        (0..64)
            .map(|n| LogSample {
                series: [0, 1, 2, u32::MAX, 7][n % 5],
                timestamp_ms: times[n % times.len()],
                bits: values[n % values.len()].to_bits(),
            })
            .collect()
    }

    #[test]
    fn every_double_and_time_comes_back_bit_for_bit() {
        let mut encoder = RowsEncoder::new(Layout::new(1));
        for sample in samples() {
            encoder.push(sample);
        }
        let mut decoded = Vec::new();
        decode_rows(&encoder.finish()[FRAME_BYTES..], &mut decoded).unwrap();
        assert_eq!(decoded, samples());
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found_and_never_panics() {
        let mut encoder = RowsEncoder::new(Layout::new(1));
        for sample in samples() {
            encoder.push(sample);
        }
        let body = encoder.finish()[FRAME_BYTES..].to_vec();
        let mut decoded = Vec::new();
        for at in 0..body.len() {
            for bit in 0..8 {
                let mut damaged = body.clone();
                damaged[at] ^= 1 << bit;
                // A different encoding of the same samples is no damage.
                if decode_rows(&damaged, &mut decoded).is_ok() {
                    assert_eq!(decoded, samples(), "byte {at} bit {bit}");
                }
            }
        }
    }
}
