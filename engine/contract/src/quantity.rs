//! Kubernetes quantities (`500m`, `1.5Gi`, `1e3`) in integer arithmetic, compared by value.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

const NANO: i128 = 1_000_000_000;
/// The largest value the API server keeps; beyond it a quantity is capped, as there.
const MAX_NANO: i128 = i64::MAX as i128 * NANO;
/// Longer texts are refused: no field of ours admits them.
const MAX_LEN: usize = 64;

/// A quantity's value in billionths. Spelling is not kept: `1Gi`, `1024Mi` and `1073741824` are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Quantity {
    nano: i128,
}

/// A text that is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is not a quantity: write a number with an optional suffix \
     (n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent such as e3), for example 500m or 1.5Gi"
)]
pub struct QuantityError {
    /// What was given, cut to a bounded length.
    pub text: String,
}

impl Quantity {
    /// Nothing.
    pub const ZERO: Quantity = Quantity { nano: 0 };

    /// Reads the whole Kubernetes grammar. What is finer than a billionth is rounded away from zero and what is larger
    /// than 2⁶³−1 is capped, as the API server does.
    pub fn parse(text: &str) -> Result<Quantity, QuantityError> {
        parse(text).ok_or_else(|| QuantityError { text: text.chars().take(MAX_LEN).collect() })
    }

    /// A whole number of units (bytes, CPUs), capped at 2⁶³−1.
    pub const fn from_units(units: u64) -> Quantity {
        let units = if units > i64::MAX as u64 { i64::MAX as u64 } else { units };
        Quantity { nano: units as i128 * NANO }
    }

    /// The value in billionths of a unit.
    pub const fn nano(self) -> i128 {
        self.nano
    }

    /// Whole units, fractions rounded down; negative values are 0.
    pub const fn floor_units(self) -> u64 {
        if self.nano <= 0 { 0 } else { (self.nano / NANO) as u64 }
    }

    /// Whole units, fractions rounded up; negative values are 0.
    pub const fn ceil_units(self) -> u64 {
        if self.nano <= 0 { 0 } else { ((self.nano + NANO - 1) / NANO) as u64 }
    }

    /// `factor` times the value, capped.
    #[must_use]
    pub const fn times(self, factor: u32) -> Quantity {
        let product = self.nano.saturating_mul(factor as i128);
        Quantity { nano: if product > MAX_NANO { MAX_NANO } else { product } }
    }

    /// Whether the value is above zero.
    pub const fn is_positive(self) -> bool {
        self.nano > 0
    }
}

/// What a suffix multiplies by: a power of ten, or 2^(10 × n).
enum Scale {
    Ten(i64),
    Binary(u32),
}

fn parse(text: &str) -> Option<Quantity> {
    if text.len() > MAX_LEN {
        return None;
    }
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let nano = match scale(suffix)? {
        Scale::Ten(power) => decimal_nano(whole, fraction, power),
        Scale::Binary(steps) => binary_nano(whole, fraction, steps),
    };
    let nano = nano.min(MAX_NANO);
    Some(Quantity { nano: if negative { -nano } else { nano } })
}

fn scale(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "n" => Scale::Ten(-9),
        "u" => Scale::Ten(-6),
        "m" => Scale::Ten(-3),
        "" => Scale::Ten(0),
        "k" => Scale::Ten(3),
        "M" => Scale::Ten(6),
        "G" => Scale::Ten(9),
        "T" => Scale::Ten(12),
        "P" => Scale::Ten(15),
        "E" => Scale::Ten(18),
        "Ki" => Scale::Binary(1),
        "Mi" => Scale::Binary(2),
        "Gi" => Scale::Binary(3),
        "Ti" => Scale::Binary(4),
        "Pi" => Scale::Binary(5),
        "Ei" => Scale::Binary(6),
        _ => Scale::Ten(exponent(suffix.strip_prefix(['e', 'E'])?)?),
    })
}

fn exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // Beyond a few thousand the answer is the cap or one billionth whatever the exponent.
    let size = digits.parse::<i64>().unwrap_or(i64::MAX).min(10_000);
    Some(if text.starts_with('-') { -size } else { size })
}

/// Shifts the decimal point to billionths; digits that fall behind it round up.
fn decimal_nano(whole: &str, fraction: &str, power: i64) -> i128 {
    let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
    let Some(first) = digits.iter().position(|d| *d != b'0') else { return 0 };
    let point = whole.len() as i64 + power + 9;
    if point - first as i64 > 30 {
        return MAX_NANO;
    }
    let mut nano: i128 = 0;
    for place in first as i64..point {
        let digit = digits.get(place as usize).map_or(0, |d| i128::from(d - b'0'));
        nano = nano * 10 + digit;
    }
    let behind = &digits[(point.max(0) as usize).min(digits.len())..];
    nano + i128::from(behind.iter().any(|d| *d != b'0'))
}

/// Binary units are never finer than a unit, so the whole part is exact and only the fraction can round up.
fn binary_nano(whole: &str, fraction: &str, steps: u32) -> i128 {
    let unit = NANO << (10 * steps);
    let mut total: i128 = 0;
    for digit in whole.bytes() {
        total = (total * 10 + i128::from(digit - b'0')).min(MAX_NANO);
    }
    let total = total.checked_mul(unit).map_or(MAX_NANO, |t| t.min(MAX_NANO));
    // Horner's rule from the last digit: every step divides by ten, a remainder anywhere means the true value is larger.
    let (mut part, mut inexact) = (0, false);
    for digit in fraction.bytes().rev() {
        let sum = i128::from(digit - b'0') * unit + part;
        inexact |= sum % 10 != 0;
        part = sum / 10;
    }
    total + part + i128::from(inexact)
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Quantity::parse(text)
    }
}

/// The shortest exact spelling: binary suffixes for whole multiples of 1024, decimal ones otherwise.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        let (mut value, mut step) = (self.nano, 0);
        if value != 0 && value % (NANO * 1024) == 0 {
            value /= NANO;
            while value % 1024 == 0 && step < BINARY.len() - 1 {
                value /= 1024;
                step += 1;
            }
            return write!(f, "{value}{}", BINARY[step]);
        }
        while value != 0 && value % 1000 == 0 && step < DECIMAL.len() - 1 {
            value /= 1000;
            step += 1;
        }
        if value == 0 { f.write_str("0") } else { write!(f, "{value}{}", DECIMAL[step]) }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrNumber;
        impl Visitor<'_> for TextOrNumber {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as 500m or 1.5Gi")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                Quantity::parse(text).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, units: u64) -> Result<Quantity, E> {
                Ok(Quantity::from_units(units))
            }
            fn visit_i64<E: de::Error>(self, units: i64) -> Result<Quantity, E> {
                Ok(Quantity { nano: i128::from(units) * NANO })
            }
        }
        deserializer.deserialize_any(TextOrNumber)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nano(text: &str) -> i128 {
        Quantity::parse(text).unwrap().nano()
    }

    #[test]
    fn the_whole_grammar_is_read_by_value() {
        for (text, expected) in [
            ("0", 0),
            ("0.5", 500_000_000),
            (".5", 500_000_000),
            ("5.", 5 * NANO),
            ("500m", 500_000_000),
            ("1e3", 1000 * NANO),
            ("1E3", 1000 * NANO),
            ("1E", 1_000_000_000_000_000_000 * NANO),
            ("1e-3", 1_000_000),
            ("1E+2", 100 * NANO),
            ("100n", 100),
            ("7u", 7_000),
            ("1k", 1000 * NANO),
            ("12M", 12_000_000 * NANO),
            ("1Ki", 1024 * NANO),
            ("1Gi", 1_073_741_824 * NANO),
            ("1024Mi", 1_073_741_824 * NANO),
            ("1.5Gi", 1_610_612_736 * NANO),
            ("1Ei", (1_i128 << 60) * NANO),
            ("+3", 3 * NANO),
            ("-3.5", -3_500_000_000),
            ("007", 7 * NANO),
            ("0.0001Ki", 102_400_000),
        ] {
            assert_eq!(nano(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_finer_than_a_billionth_rounds_away_from_zero() {
        assert_eq!(nano("0.1n"), 1);
        assert_eq!(nano("1.0000000001"), NANO + 1);
        assert_eq!(nano("-0.1n"), -1);
        assert_eq!(nano("1e-400"), 1);
        assert_eq!(nano("0.00000000000001Ki"), 1);
    }

    #[test]
    fn what_is_larger_than_the_api_server_keeps_is_capped() {
        for text in
            ["9223372036854775808", "8Ei", "100E", "1e1000", "99999999999999999999999999999999999999999Ei"]
        {
            assert_eq!(nano(text), MAX_NANO, "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_an_example() {
        let long = "1".repeat(65);
        for text in [
            "", " 1", "1 ", ".", "-", "Mi", "1.1.1", "1i", "1mi", "1K", "1ki", "1e", "1e+", "1e1.5", "0x1",
            "1GiB", "٣", &long,
        ] {
            let error = Quantity::parse(text).unwrap_err().to_string();
            assert!(error.contains("1.5Gi"), "{text}: {error}");
        }
    }

    #[test]
    fn cpus_round_up_and_bytes_do_not_lose_any() {
        assert_eq!(Quantity::parse("1500m").unwrap().ceil_units(), 2);
        assert_eq!(Quantity::parse("2").unwrap().ceil_units(), 2);
        assert_eq!(Quantity::parse("1n").unwrap().ceil_units(), 1);
        assert_eq!(Quantity::parse("1500m").unwrap().floor_units(), 1);
        assert_eq!(Quantity::parse("-1").unwrap().ceil_units(), 0);
    }

    #[test]
    fn display_is_the_shortest_exact_spelling() {
        for (text, shown) in [
            ("1024Mi", "1Gi"),
            ("0.5", "500m"),
            ("1e3", "1k"),
            ("1.5Gi", "1536Mi"),
            ("0", "0"),
            ("1000", "1k"),
            ("7", "7"),
        ] {
            assert_eq!(Quantity::parse(text).unwrap().to_string(), shown);
        }
    }

    proptest! {
        #[test]
        fn display_keeps_the_value(units in any::<i64>(), fraction in 0_i64..1_000_000_000) {
            let quantity = Quantity { nano: i128::from(units) * NANO / 1000 + i128::from(fraction) };
            prop_assert_eq!(Quantity::parse(&quantity.to_string()), Ok(quantity));
        }

        #[test]
        fn suffixes_multiply(value in 0_u32..1_000_000, steps in 0_usize..7) {
            let binary = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][steps];
            let expected = (i128::from(value) << (10 * steps)) * NANO;
            prop_assert_eq!(nano(&format!("{value}{binary}")), expected.min(MAX_NANO));
        }

        #[test]
        fn a_decimal_point_and_an_exponent_say_the_same(digits in 0_u64..1_000_000_000, places in 0_usize..9) {
            let padded = format!("{digits:010}");
            let (whole, fraction) = padded.split_at(padded.len() - places);
            prop_assert_eq!(nano(&format!("{whole}.{fraction}")), nano(&format!("{digits}e-{places}")));
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.eEinumkKMGTP]{0,70}|.{0,20}") {
            let _ = Quantity::parse(&text);
        }
    }
}
