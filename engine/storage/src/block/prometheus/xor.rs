//! Floats, as encoding 1.
//!
//! ```text
//! samples u16, big endian
//! sample 0  time varint | value:64
//! sample 1  time since sample 0, uvarint | value xor
//! sample n  how far the step differs from the one before, in classes of 14, 17, 20, 64 bits | value xor
//! ```
use metricsstore_codec::bits::BitWriter;

use super::chunk::{Chunk, Encoding, span_end, spread};
use super::varbit::{Bits, CUT_OFF, Damage, TIMES, Xor, put_uvarint, put_varint, take_uvarint, take_varint};
use crate::block::SeriesData;

const HEADER: usize = 2;
/// Samples of a chunk, about: the samples of a span of time are spread evenly over chunks of at least as many.
const TARGET_SAMPLES: u32 = 120;
/// A chunk that is longer takes no further sample: with one of the longest it holds 1,024 bytes.
const FULL_BYTES: usize = 1024 - 19;

/// Appends chunks of floats that follow each other.
pub(super) fn encode(floats: &[(i64, u64)], chunks: &mut Vec<Chunk>) {
    let mut open: Option<Writer> = None;
    for &(time_ms, bits) in floats {
        if let Some(full) = open.take_if(|chunk| chunk.is_full(time_ms)) {
            chunks.push(full.finish());
        }
        open.get_or_insert_with(|| Writer::new(time_ms)).push(time_ms, bits);
    }
    chunks.extend(open.map(Writer::finish));
}

struct Writer {
    out: BitWriter,
    samples: u32,
    min_ms: i64,
    max_ms: i64,
    /// The first time that belongs into the next chunk.
    end_ms: i64,
    step_ms: i64,
    value: Xor,
}

impl Writer {
    fn new(time_ms: i64) -> Writer {
        Writer {
            out: BitWriter::new(),
            samples: 0,
            min_ms: time_ms,
            max_ms: time_ms,
            end_ms: span_end(time_ms),
            step_ms: 0,
            value: Xor::default(),
        }
    }

    fn bytes(&self) -> usize {
        HEADER + self.out.bits().div_ceil(8) as usize
    }

    /// Whether a sample of this time begins another chunk.
    fn is_full(&mut self, time_ms: i64) -> bool {
        if self.bytes() > FULL_BYTES {
            return true;
        }
        if self.samples == TARGET_SAMPLES / 4 {
            self.end_ms = spread(self.min_ms, self.max_ms, self.end_ms, 4.0);
        }
        time_ms >= self.end_ms || self.samples >= 2 * TARGET_SAMPLES
    }

    fn push(&mut self, time_ms: i64, bits: u64) {
        let step_ms = time_ms.wrapping_sub(self.max_ms);
        match self.samples {
            0 => put_varint(&mut self.out, time_ms),
            1 => put_uvarint(&mut self.out, step_ms as u64),
            _ => TIMES.put(&mut self.out, step_ms.wrapping_sub(self.step_ms)),
        }
        if self.samples == 0 {
            self.value.put_first(&mut self.out, bits);
        } else {
            self.value.put_next(&mut self.out, bits);
        }
        self.samples += 1;
        self.max_ms = time_ms;
        self.step_ms = step_ms;
    }

    fn finish(self) -> Chunk {
        let mut bytes = (self.samples as u16).to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.out.into_bytes());
        Chunk {
            min_ms: self.min_ms,
            max_ms: self.max_ms,
            samples: self.samples,
            encoding: Encoding::Xor,
            bytes,
        }
    }
}

/// Appends the samples of a chunk.
pub(super) fn decode(bytes: &[u8], series: &mut SeriesData) -> Result<(), Damage> {
    let (&samples, rest) = bytes.split_first_chunk().ok_or(CUT_OFF)?;
    let mut bits = Bits::of_slice(rest);
    let (mut time_ms, mut step_ms, mut value) = (0_i64, 0_i64, Xor::default());
    for number in 0..u16::from_be_bytes(samples) {
        match number {
            0 => time_ms = take_varint(&mut bits)?,
            1 => step_ms = take_uvarint(&mut bits)? as i64,
            _ => step_ms = step_ms.wrapping_add(TIMES.take(&mut bits)?),
        }
        time_ms = time_ms.wrapping_add(step_ms);
        let value = if number == 0 { value.take_first(&mut bits)? } else { value.take_next(&mut bits)? };
        series.floats.push((time_ms, value));
    }
    Ok(())
}
