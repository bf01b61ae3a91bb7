//! A timestamp stream as bytes: the integer coder of [`crate::column`] without its kinds. Regular timestamps cost
//! nothing after the second, jittered ones about the bits of their jitter.
//!
//! ```text
//! | first timestamp: zigzag varint | residuals and runs: symbols of a column, padded to whole bytes |
//! ```
use crate::bits::{BitReader, BitWriter};
use crate::column::{ColumnState, IntegerReader};
use crate::{Damaged, varint};

/// The bytes of a stream; how many timestamps it holds is kept by the caller.
pub fn encode(timestamps: &[i64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Some((&first, rest)) = timestamps.split_first() else { return bytes };
    varint::put(&mut bytes, varint::zigzag(first));
    let mut state = ColumnState::integers(first);
    let mut writer = BitWriter::new();
    for &timestamp in rest {
        state.append_integer(timestamp, &mut writer);
    }
    // The last run is implied by the number of timestamps.
    bytes.extend(writer.into_bytes());
    bytes
}

/// Appends the `count` timestamps of a stream to `out`.
pub fn decode(mut bytes: &[u8], count: u32, out: &mut Vec<i64>) -> Result<(), Damaged> {
    let Some(rest) = count.checked_sub(1) else { return Ok(()) };
    let first = varint::unzigzag(varint::take(&mut bytes)?);
    out.push(first);
    let mut reader = IntegerReader::new(first, BitReader::of_slice(bytes));
    for _ in 0..rest {
        out.push(reader.next()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(timestamps: &[i64]) -> usize {
        let bytes = encode(timestamps);
        let mut decoded = Vec::new();
        decode(&bytes, timestamps.len() as u32, &mut decoded).unwrap();
        assert_eq!(decoded, timestamps);
        bytes.len()
    }

    #[test]
    fn a_regular_stream_costs_the_same_however_long() {
        let grid = |count| (0..count).map(|i| 1_700_000_000_000 + i * 15_000).collect::<Vec<i64>>();
        assert_eq!(round_trip(&[]), 0);
        assert_eq!(round_trip(&grid(3)), round_trip(&grid(if cfg!(miri) { 50 } else { 5_000 })));
    }

    #[test]
    fn millisecond_jitter_costs_less_than_a_byte() {
        let jittered: Vec<i64> = (0..1_000_i64).map(|i| i * 15_000 + i * 7_919 % 5).collect();
        assert!(round_trip(&jittered) < 1_000);
    }

    proptest! {
        #[test]
        fn any_stream_comes_back(timestamps in prop::collection::vec(any::<i64>(), 0..100)) {
            round_trip(&timestamps);
        }

        #[test]
        fn damaged_bytes_give_numbers_or_an_error(bytes: Vec<u8>, count in 0..if cfg!(miri) { 20 } else { 2_000_u32 }) {
            let mut out = Vec::new();
            let _ = decode(&bytes, count, &mut out);
            prop_assert!(out.len() <= count as usize);
        }
    }
}
