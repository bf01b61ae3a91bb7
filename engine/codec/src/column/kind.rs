//! How a value is seen as an integer.

/// Largest integer of a decimal: rounding by adding and taking off 1.5 · 2^52 is right up to here.
const MAX_DECIMAL: f64 = (1_u64 << 51) as f64;
const ROUND: f64 = 6_755_399_441_055_744.0;
const MAX_SCALE: u8 = 9;
const POWERS: [f64; MAX_SCALE as usize + 1] = [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// Kinds from here on are bit patterns, plus the shift.
const PATTERNS: u8 = 64;

/// A decimal's scale, or a bit pattern's shift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Kind(u8);

impl Kind {
    /// No value has been seen.
    pub const NONE: Kind = Kind(u8::MAX);

    /// Integers are values times 10^`scale`; `None` above 9.
    pub fn decimal(scale: u8) -> Option<Kind> {
        (scale <= MAX_SCALE).then_some(Kind(scale))
    }

    /// Integers are ordered bit patterns without their lowest `shift` bits (below 64), which are zero.
    pub fn pattern(shift: u8) -> Kind {
        Kind(PATTERNS + shift % 64)
    }

    /// The kind of the shortest integer for a value, and that integer.
    pub fn shortest(value: f64) -> (Kind, i64) {
        let decimal = (0..=MAX_SCALE).find_map(|scale| Some((Kind(scale), Kind(scale).integer(value)?)));
        decimal.unwrap_or_else(|| {
            let kind = Kind::pattern(trailing_zeros(value));
            (kind, to_ordered(value) >> (kind.0 - PATTERNS))
        })
    }

    /// The lowest kind, not below this one, that holds both values.
    pub(super) fn common(self, one: f64, other: f64) -> Kind {
        let lowest = if self.is_decimal() { self.0 } else { 0 };
        (lowest..=MAX_SCALE)
            .map(Kind)
            .find(|kind| kind.integer(other).is_some() && kind.integer(one).is_some())
            .unwrap_or_else(|| Kind::pattern(trailing_zeros(one).min(trailing_zeros(other))))
    }

    /// Whether it is a decimal.
    pub fn is_decimal(self) -> bool {
        self.0 <= MAX_SCALE
    }

    pub(super) fn scale(self) -> u8 {
        self.0
    }

    pub(super) fn shift(self) -> Option<u8> {
        self.0.checked_sub(PATTERNS)
    }

    /// The integer that stands for exactly this value, if there is one.
    #[inline]
    pub fn integer(self, value: f64) -> Option<i64> {
        if let Some(shift) = self.shift() {
            let ordered = to_ordered(value);
            let integer = ordered.wrapping_shr(u32::from(shift));
            return (integer.wrapping_shl(u32::from(shift)) == ordered).then_some(integer);
        }
        let scaled = value * POWERS[usize::from(self.0.min(MAX_SCALE))];
        // NaN is not within either.
        if !(-MAX_DECIMAL..=MAX_DECIMAL).contains(&scaled) {
            return None;
        }
        let integer = ((scaled + ROUND) - ROUND) as i64;
        (self.value(integer).to_bits() == value.to_bits()).then_some(integer)
    }

    /// The value that an integer stands for.
    #[inline]
    pub fn value(self, integer: i64) -> f64 {
        match self.shift() {
            Some(shift) => from_ordered(integer.wrapping_shl(u32::from(shift))),
            // A correctly rounded quotient is the float that the decimal is read as.
            None => integer as f64 / POWERS[usize::from(self.0.min(MAX_SCALE))],
        }
    }
}

/// The bit pattern as an integer in the order of the values. Trailing zeros stay, −0.0 takes the one integer that no
/// negative pattern has.
fn to_ordered(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    if bits >= 0 || bits == i64::MIN { bits } else { -(bits & i64::MAX) }
}

fn from_ordered(integer: i64) -> f64 {
    let bits = if integer >= 0 || integer == i64::MIN { integer } else { -integer | i64::MIN };
    f64::from_bits(bits as u64)
}

fn trailing_zeros(value: f64) -> u8 {
    to_ordered(value).trailing_zeros().min(63) as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_take_the_lowest_scale_that_is_exact() {
        for (value, kind, integer) in [
            (0.0, Kind(0), 0),
            (-3.0, Kind(0), -3),
            (0.1, Kind(1), 1),
            (-12.25, Kind(2), -1225),
            (1.000_000_001, Kind(9), 1_000_000_001),
            (2_251_799_813_685_248.0, Kind(0), 1 << 51),
        ] {
            assert_eq!(Kind::shortest(value), (kind, integer), "{value}");
        }
    }

    #[test]
    fn what_is_no_short_decimal_is_a_bit_pattern() {
        for value in
            [-0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, 1e-10, 0.1 + 0.2, f64::MIN_POSITIVE]
        {
            let (kind, integer) = Kind::shortest(value);
            assert!(!kind.is_decimal(), "{value}");
            assert_eq!(kind.value(integer).to_bits(), value.to_bits());
        }
        assert_eq!(Kind::shortest(f64::INFINITY).0, Kind::pattern(52));
    }

    #[test]
    fn ordered_patterns_follow_the_order_of_values() {
        let values = [f64::NEG_INFINITY, -1.5, -1e-300, 0.0, 1e-300, 1.5, f64::INFINITY];
        assert!(values.is_sorted_by_key(|&value| to_ordered(value)));
    }

    proptest! {
        #[test]
        fn every_bit_pattern_comes_back(bits: u64) {
            let value = f64::from_bits(bits);
            let (kind, integer) = Kind::shortest(value);
            prop_assert_eq!(kind.value(integer).to_bits(), bits);
            prop_assert_eq!(from_ordered(to_ordered(value)).to_bits(), bits);
        }

        #[test]
        fn decimals_as_they_are_read_from_text_are_found(mantissa in -1_000_000_000_000_i64..=1_000_000_000_000, scale in 0..=9_u32) {
            let text = format!("{mantissa}e-{scale}");
            let value: f64 = text.parse().unwrap();
            if mantissa != 0 {
                let (kind, _) = Kind::shortest(value);
                prop_assert!(kind.is_decimal() && u32::from(kind.scale()) <= scale, "{text}");
            }
        }

        #[test]
        fn a_common_kind_holds_both_values(one: u64, other: u64, scale in 0..=9_u8) {
            let (one, other) = (f64::from_bits(one), f64::from_bits(other));
            let kind = Kind(scale).common(one, other);
            prop_assert!(kind.integer(one).is_some() && kind.integer(other).is_some());
        }
    }
}
