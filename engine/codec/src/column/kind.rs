//! How a value is seen as an integer.

/// Largest count of units: rounding by adding and taking off 1.5 · 2^52 is right up to here.
const MAX_DECIMAL: f64 = (1_u64 << 51) as f64;
const ROUND: f64 = 6_755_399_441_055_744.0;
/// What integers are divided by, unit for unit: pages of memory, sectors of a disk, 1, then decimals. Every divisor is
/// exact, so a quotient is the float that is nearest to the number meant.
const DIVISORS: [f64; 12] = [1.0 / 4096.0, 1.0 / 512.0, 1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
const MAX_UNIT: u8 = DIVISORS.len() as u8 - 1;
const UNIT_ONE: u8 = 2;
/// Kinds from here on are bit patterns, plus the shift.
const PATTERNS: u8 = 64;

/// The unit that a value is counted in, or a bit pattern's shift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Kind(u8);

impl Kind {
    /// No value has been seen.
    pub(super) const NONE: Kind = Kind(u8::MAX);

    /// Integers count units: 0 is 4096, 1 is 512, from 2 on 10^0 … 10^−9; `None` for a higher one.
    pub(crate) fn units(unit: u8) -> Option<Kind> {
        (unit <= MAX_UNIT).then_some(Kind(unit))
    }

    /// Integers are ordered bit patterns without their lowest `shift` bits (below 64), which are zero.
    pub(crate) fn pattern(shift: u8) -> Kind {
        Kind(PATTERNS + shift % 64)
    }

    /// The kind of the shortest integer for a value, and that integer.
    pub(crate) fn shortest(value: f64) -> (Kind, i64) {
        let largest = if value == 0.0 { UNIT_ONE } else { 0 };
        let counted = (largest..=MAX_UNIT).find_map(|unit| Some((Kind(unit), Kind(unit).integer(value)?)));
        counted.unwrap_or_else(|| {
            let kind = Kind::pattern(trailing_zeros(value));
            (kind, to_ordered(value) >> (kind.0 - PATTERNS))
        })
    }

    /// The kind of the largest unit, not above this one's, that holds both values.
    pub(super) fn common(self, one: f64, other: f64) -> Kind {
        let largest = if self.is_units() { self.0 } else { 0 };
        (largest..=MAX_UNIT)
            .map(Kind)
            .find(|kind| kind.integer(other).is_some() && kind.integer(one).is_some())
            .unwrap_or_else(|| Kind::pattern(trailing_zeros(one).min(trailing_zeros(other))))
    }

    /// Whether integers count units.
    pub(crate) fn is_units(self) -> bool {
        self.0 <= MAX_UNIT
    }

    pub(super) fn unit(self) -> u8 {
        self.0
    }

    pub(super) fn shift(self) -> Option<u8> {
        self.0.checked_sub(PATTERNS)
    }

    /// The integer that stands for exactly this value, if there is one.
    #[inline]
    pub(crate) fn integer(self, value: f64) -> Option<i64> {
        if let Some(shift) = self.shift() {
            let ordered = to_ordered(value);
            let integer = ordered.wrapping_shr(u32::from(shift));
            return (integer.wrapping_shl(u32::from(shift)) == ordered).then_some(integer);
        }
        self.nearest(value).filter(|&integer| self.value(integer).to_bits() == value.to_bits())
    }

    /// The count of units that is nearest to a value, if there may be one.
    #[inline]
    pub(crate) fn nearest(self, value: f64) -> Option<i64> {
        let scaled = value * DIVISORS[usize::from(self.0.min(MAX_UNIT))];
        // NaN is not within either.
        (-MAX_DECIMAL..=MAX_DECIMAL).contains(&scaled).then_some(((scaled + ROUND) - ROUND) as i64)
    }

    /// The bits of the value of a count of units.
    pub(crate) fn of_units(self) -> impl Fn(i64) -> u64 {
        let divisor = DIVISORS[usize::from(self.0.min(MAX_UNIT))];
        move |integer| (integer as f64 / divisor).to_bits()
    }

    /// The unit, or 64 and the shift.
    pub(crate) fn code(self) -> u8 {
        self.0
    }

    /// The value that an integer stands for.
    #[inline]
    pub(crate) fn value(self, integer: i64) -> f64 {
        match self.shift() {
            Some(shift) => from_ordered(integer.wrapping_shl(u32::from(shift))),
            None => integer as f64 / DIVISORS[usize::from(self.0.min(MAX_UNIT))],
        }
    }
}

/// The bit pattern as an integer in the order of the values. Trailing zeros stay, −0.0 takes the one integer that no
/// negative pattern has.
pub(crate) fn to_ordered(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    if bits >= 0 || bits == i64::MIN { bits } else { -(bits & i64::MAX) }
}

pub(crate) fn from_ordered(integer: i64) -> f64 {
    let bits = if integer >= 0 || integer == i64::MIN { integer } else { -integer | i64::MIN };
    f64::from_bits(bits as u64)
}

pub(crate) fn trailing_zeros(value: f64) -> u8 {
    to_ordered(value).trailing_zeros().min(63) as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_take_the_largest_unit_that_is_exact() {
        for (value, kind, integer) in [
            (0.0, Kind(2), 0),
            (8192.0, Kind(0), 2),
            (-1536.0, Kind(1), -3),
            (-3.0, Kind(2), -3),
            (0.1, Kind(3), 1),
            (-12.25, Kind(4), -1225),
            (1.000_000_001, Kind(11), 1_000_000_001),
            (2_251_799_813_685_247.0, Kind(2), (1 << 51) - 1),
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
            assert!(!kind.is_units(), "{value}");
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
                prop_assert!(kind.is_units() && u32::from(kind.unit()) <= scale + 2, "{text}");
            }
        }

        #[test]
        fn a_common_kind_holds_both_values(one: u64, other: u64, unit in 0..=11_u8) {
            let (one, other) = (f64::from_bits(one), f64::from_bits(other));
            let kind = Kind(unit).common(one, other);
            prop_assert!(kind.integer(one).is_some() && kind.integer(other).is_some());
        }
    }
}
