//! Integers in as many bytes as they need: seven bits a byte, least significant first, as protobuf has them.
use crate::Damaged;

/// Longest encoding of a `u64`, in bytes.
pub const MAX_LEN: usize = 10;

/// Appends `value` to `out`.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number off the front of `bytes`.
pub fn take(bytes: &mut &[u8]) -> Result<u64, Damaged> {
    let mut value = 0;
    for (position, &byte) in bytes.iter().take(MAX_LEN).enumerate() {
        let shift = 7 * position as u32;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            return Err(Damaged::new("a varint of more than 64 bits"));
        }
        value |= part << shift;
        if byte < 0x80 {
            *bytes = &bytes[position + 1..];
            return Ok(value);
        }
    }
    Err(Damaged::new(if bytes.len() < MAX_LEN {
        "a varint that is cut off"
    } else {
        "a varint without an end"
    }))
}

/// Maps small numbers of either sign to small unsigned ones: 0, −1, 1, −2 … to 0, 1, 2, 3 ….
pub const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn encodings_are_those_of_protobuf() {
        for (value, bytes) in [
            (0, vec![0]),
            (127, vec![0x7f]),
            (128, vec![0x80, 1]),
            (300, vec![0xac, 2]),
            (u64::MAX, {
                let mut bytes = vec![0xff; 9];
                bytes.push(1);
                bytes
            }),
        ] {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(take(&mut out.as_slice()), Ok(value));
        }
    }

    #[test]
    fn numbers_that_are_cut_off_or_too_long_are_damaged() {
        assert!(take(&mut [].as_slice()).is_err());
        assert!(take(&mut [0x80].as_slice()).is_err());
        assert!(take(&mut [0xff; 11].as_slice()).is_err());
        assert!(take(&mut [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2].as_slice()).is_err());
    }

    #[test]
    fn zigzag_alternates_between_the_signs() {
        assert_eq!([0, -1, 1, -2, 2].map(zigzag), [0, 1, 2, 3, 4]);
        assert_eq!(zigzag(i64::MIN), u64::MAX);
    }

    proptest! {
        #[test]
        fn every_number_comes_back(value: u64, rest: Vec<u8>) {
            let mut out = Vec::new();
            put(&mut out, value);
            out.extend(&rest);
            let mut bytes = out.as_slice();
            prop_assert_eq!(take(&mut bytes), Ok(value));
            prop_assert_eq!(bytes, rest.as_slice());
            prop_assert_eq!(zigzag(unzigzag(value)), value);
        }
    }
}
