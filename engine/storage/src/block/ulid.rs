//! Names of blocks: 48 bits of time in ms and 80 random bits, in Crockford's base 32 (<https://github.com/ulid/spec>).
use std::fmt;
use std::str::FromStr;

const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const LENGTH: usize = 26;

/// The name of a block; sorted by the time at which it was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ulid(pub(crate) u128);

impl Ulid {
    /// Of a moment and of random bits, of which 80 are used.
    pub(crate) fn new(now_ms: i64, random: u128) -> Ulid {
        let time = u128::from(now_ms.clamp(0, (1 << 48) - 1).unsigned_abs());
        Ulid(time << 80 | random & ((1 << 80) - 1))
    }
}

impl fmt::Display for Ulid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digit = |place: usize| char::from(DIGITS[(self.0 >> (5 * (LENGTH - 1 - place)) & 31) as usize]);
        let text: String = (0..LENGTH).map(digit).collect();
        f.write_str(&text)
    }
}

impl fmt::Debug for Ulid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not 26 digits of Crockford's base 32, in capitals, that fit into 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoUlid;

impl FromStr for Ulid {
    type Err = NoUlid;

    fn from_str(text: &str) -> Result<Ulid, NoUlid> {
        if text.len() != LENGTH || text.as_bytes()[0] > b'7' {
            return Err(NoUlid);
        }
        let mut value = 0_u128;
        for byte in text.bytes() {
            let digit = DIGITS.iter().position(|&digit| digit == byte).ok_or(NoUlid)?;
            value = value << 5 | digit as u128;
        }
        Ok(Ulid(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_specification_is_read_and_written() {
        let ulid: Ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        assert_eq!(ulid.to_string(), "01ARZ3NDEKTSV4RRFFQ69G5FAV");
        assert_eq!(ulid.0 >> 80, 1_469_922_850_259);
    }

    #[test]
    fn what_is_no_ulid_is_refused() {
        for text in
            ["", "01ARZ3NDEKTSV4RRFFQ69G5FA", "81ARZ3NDEKTSV4RRFFQ69G5FAV", "01arz3ndektsv4rrffq69g5fav"]
        {
            assert_eq!(text.parse::<Ulid>(), Err(NoUlid));
        }
    }
}
