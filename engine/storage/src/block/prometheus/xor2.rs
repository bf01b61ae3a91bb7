//! Floats with start timestamps, as encoding 4. It is read only: Thanos and older releases of Prometheus cannot.
//!
//! ```text
//! samples u16, big endian | header of the start timestamps u8
//! sample 0  time varint | value:64 | start
//! sample 1  time since sample 0, uvarint | value | start
//! sample n  control | start
//!
//! control   0                       same step, same value
//!           10 | change             same step
//!           110 | change of the step:13 | value
//!           1110 | change of the step:20 | value
//!           11110 | change of the step:64 | value
//!           11111                   same step, stale
//! value     0                       same
//!           10 | xor in the window
//!           110 | window | xor in it
//!           111                     stale
//! change    0 | xor in the window
//!           1 | window | xor in it
//! ```
//! The value before is the last one that was not stale. Changes of the step are in two's complement.
use metricsstore_model::stale_nan;

use super::start_times::StartTimes;
use super::varbit::{Bits, CUT_OFF, Damage, Window, take_bits, take_uvarint, take_varint};
use crate::block::SeriesData;

/// Appends the samples of a chunk.
pub(super) fn decode(bytes: &[u8], series: &mut SeriesData) -> Result<(), Damage> {
    let (&[high, low, header], rest) = bytes.split_first_chunk().ok_or(CUT_OFF)?;
    let mut bits = Bits::of_slice(rest);
    let mut starts = StartTimes::new(header);
    let (mut time_ms, mut step_ms, mut value) = (0_i64, 0_i64, Value::default());
    for number in 0..u32::from(u16::from_be_bytes([high, low])) {
        let before_ms = time_ms;
        let bits_of_value = match number {
            0 => {
                time_ms = take_varint(&mut bits)?;
                value.take_first(&mut bits)?
            }
            1 => {
                step_ms = take_uvarint(&mut bits)? as i64;
                value.take(&mut bits)?
            }
            _ => take_joint(&mut bits, &mut step_ms, &mut value)?,
        };
        time_ms = time_ms.wrapping_add(step_ms);
        series.floats.push((time_ms, bits_of_value));
        if let Some(start_ms) = starts.take(&mut bits, number, time_ms, before_ms)? {
            series.starts.push((time_ms, start_ms));
        }
    }
    Ok(())
}

/// A control and what follows it.
fn take_joint(bits: &mut Bits, step_ms: &mut i64, value: &mut Value) -> Result<u64, Damage> {
    let width = match bits.ones(5).ok_or(CUT_OFF)? {
        0 => return Ok(value.last),
        1 => return value.take_change(bits),
        2 => 13,
        3 => 20,
        4 => 64,
        _ => return Ok(stale_nan().to_bits()),
    };
    let change = take_bits(bits, width)? << (64 - width);
    *step_ms = step_ms.wrapping_add(change as i64 >> (64 - width));
    value.take(bits)
}

#[derive(Default)]
struct Value {
    /// The last one that is not stale.
    last: u64,
    window: Window,
}

impl Value {
    fn take_first(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        let value = take_bits(bits, 64)?;
        if value != stale_nan().to_bits() {
            self.last = value;
        }
        Ok(value)
    }

    fn take(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        match bits.ones(3).ok_or(CUT_OFF)? {
            0 => Ok(self.last),
            1 => self.take_xor(bits),
            2 => self.take_window(bits),
            _ => Ok(stale_nan().to_bits()),
        }
    }

    fn take_change(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        if take_bits(bits, 1)? == 0 { self.take_xor(bits) } else { self.take_window(bits) }
    }

    fn take_window(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        self.window = Window::take(bits)?;
        self.take_xor(bits)
    }

    fn take_xor(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        self.last ^= self.window.take_xor(bits)?;
        Ok(self.last)
    }
}
