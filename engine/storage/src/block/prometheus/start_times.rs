//! Start timestamps as encodings 4 to 6 carry them behind each sample.
//!
//! ```text
//! header   first is known:1 | number of the first sample from which on they change:7, 0 if they never do
//! sample 0 where known: time − start, varint
//! sample n from the change on: time of sample n−1 − start; from the second on, how that differs from the one before
//! ```
use super::varbit::{Bits, Damage, VARBIT, take_varint};

/// What was read last of the start timestamps of a chunk.
pub(super) struct StartTimes {
    is_first_known: bool,
    /// Number of the sample; 0: none.
    first_change: u32,
    start_ms: i64,
    distance_ms: i64,
}

impl StartTimes {
    pub(super) fn new(header: u8) -> StartTimes {
        StartTimes {
            is_first_known: header & 0x80 != 0,
            first_change: u32::from(header & 0x7f),
            start_ms: 0,
            distance_ms: 0,
        }
    }

    /// When the counter of sample `number`, counted from 0, began; `None` if that is not known.
    pub(super) fn take(
        &mut self,
        bits: &mut Bits,
        number: u32,
        time_ms: i64,
        time_before_ms: i64,
    ) -> Result<Option<i64>, Damage> {
        if number == 0 && self.is_first_known {
            self.start_ms = time_ms.wrapping_sub(take_varint(bits)?);
        } else if number > 0 && self.first_change > 0 && number >= self.first_change {
            let step = VARBIT.take(bits)?;
            let is_first = number == self.first_change;
            self.distance_ms = if is_first { step } else { self.distance_ms.wrapping_add(step) };
            self.start_ms = time_before_ms.wrapping_sub(self.distance_ms);
        }
        Ok((self.start_ms != 0).then_some(self.start_ms))
    }
}
