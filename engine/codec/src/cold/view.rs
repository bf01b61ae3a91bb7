//! How the values of a column are seen as integers.
use crate::column::{Kind, from_ordered, to_ordered};

/// A value may be so many floats away from the decimal it is taken for.
const MAX_ULPS: i64 = 1 << 10;

/// One way for all values of a column; a value that it does not hold is an exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// Counts of units, or bit patterns: see [`crate::column`].
    Exact(Kind),
    /// Counts of units, and how many floats a value is away from that: sums of decimals with what rounding left.
    Near(Kind),
    /// Multiples of 2 to the power of minus this, which is 1 to 63.
    Binary(u8),
}

const NEAR: u8 = 32;
const BINARY: u8 = 128;
const LARGEST_BINARY: f64 = (1_u64 << 62) as f64;

impl View {
    /// How it is stored: 0…11 units, 32…43 about units, 64…127 patterns, 129…191 powers of two.
    pub(super) fn code(self) -> u8 {
        match self {
            View::Exact(kind) => kind.code(),
            View::Near(kind) => NEAR + kind.code(),
            View::Binary(power) => BINARY + power,
        }
    }

    pub(super) fn of_code(code: u8) -> Option<View> {
        match code {
            0..NEAR => Kind::units(code).map(View::Exact),
            NEAR..64 => Kind::units(code - NEAR).map(View::Near),
            64..128 => Some(View::Exact(Kind::pattern(code - 64))),
            // Without a power of two there are units.
            BINARY..192 => (code > BINARY).then_some(View::Binary(code - BINARY)),
            _ => None,
        }
    }

    /// The integer that stands for a value, or that it is near.
    #[inline]
    pub(super) fn integer(self, bits: u64) -> Option<i64> {
        let value = f64::from_bits(bits);
        match self {
            View::Exact(kind) => kind.integer(value),
            View::Near(kind) => kind.nearest(value).filter(|&integer| is_near(kind, integer, value)),
            View::Binary(power) => {
                let scaled = value * power_of_two(power);
                let integer = scaled as i64;
                let is_exact = scaled.abs() <= LARGEST_BINARY && self.value(integer) == bits;
                is_exact.then_some(integer)
            }
        }
    }

    /// The bits of the value that an integer stands for.
    #[inline]
    pub(super) fn value(self, integer: i64) -> u64 {
        match self {
            View::Exact(kind) | View::Near(kind) => kind.value(integer).to_bits(),
            View::Binary(power) => (integer as f64 / power_of_two(power)).to_bits(),
        }
    }
}

impl View {
    /// Appends the bits of the values that integers stand for.
    pub(super) fn values(self, integers: &[i64], out: &mut Vec<u64>) {
        // A loop of its own for each view, so that none looks at the view again and again.
        let integers = integers.iter().copied();
        match self {
            View::Exact(kind) if kind.is_units() => out.extend(integers.map(kind.of_units())),
            View::Near(kind) => out.extend(integers.map(kind.of_units())),
            View::Exact(_) | View::Binary(_) => out.extend(integers.map(|integer| self.value(integer))),
        }
    }

    /// The smallest power of two that a value is a multiple of, as a view has it.
    pub(super) fn power_of(value: f64) -> Option<u8> {
        let exponent = (value.to_bits() >> 52 & 0x7ff) as i64 - 1075;
        let mantissa = value.to_bits() & ((1 << 52) - 1) | 1 << 52;
        let power = (-(exponent + i64::from(mantissa.trailing_zeros()))).max(1);
        let power = if value == 0.0 { 1 } else { u8::try_from(power).ok().filter(|&power| power < 64)? };
        View::Binary(power).integer(value.to_bits()).map(|_| power)
    }
}

fn power_of_two(power: u8) -> f64 {
    (1_u64 << (power & 63)) as f64
}

fn is_near(kind: Kind, integer: i64, value: f64) -> bool {
    ulps(kind.value(integer), value).unsigned_abs() <= MAX_ULPS.unsigned_abs()
}

/// How many floats lie from one to the other.
pub(super) fn ulps(from: f64, to: f64) -> i64 {
    to_ordered(to).wrapping_sub(to_ordered(from))
}

/// The bits of the float that is so many floats from the one of these bits.
#[inline]
pub(super) fn moved(bits: u64, ulps: i64) -> u64 {
    from_ordered(to_ordered(f64::from_bits(bits)).wrapping_add(ulps)).to_bits()
}
