//! Numbers in as many bits as they need, as Prometheus' chunks have them; the most significant bit comes first.
//!
//! ```text
//! number    class ones, 0 unless it is the last class | bits of that class
//! value     0                                         as the one before (xor = 0)
//!           10 | xor within the window of the last    window: leading zeros and width
//!           11 | leading:5 | width:6, 0 is 64 | xor without the zeros around it
//! ```
use std::iter::Empty;

use metricsstore_codec::bits::{BitReader, BitSink, BitWriter};
use metricsstore_codec::varint;

/// Bits of a chunk.
pub(super) type Bits<'b> = BitReader<'b, Empty<&'b [u8]>>;

/// Why a chunk cannot be read.
pub(super) type Damage = &'static str;

pub(super) const CUT_OFF: Damage = "a chunk ends before its last sample";

/// Widths of the classes of a number.
pub(super) struct Classes(&'static [u32]);

/// For counts and buckets, and for times of histograms.
pub(super) const VARBIT: Classes = Classes(&[0, 3, 6, 9, 12, 18, 25, 56, 64]);
/// For times of floats.
pub(super) const TIMES: Classes = Classes(&[0, 14, 17, 20, 64]);

impl Classes {
    /// Signed numbers; a class of n bits holds `1 − 2^(n−1) ..= 2^(n−1)`.
    pub(super) fn put(&self, out: &mut BitWriter, value: i64) {
        let fits = |&width: &u32| match width {
            0 => value == 0,
            64 => true,
            _ => (1 - (1 << (width - 1))..=1 << (width - 1)).contains(&value),
        };
        self.put_class(out, value as u64, fits);
    }

    pub(super) fn put_unsigned(&self, out: &mut BitWriter, value: u64) {
        self.put_class(out, value, |&width| width == 64 || value >> width == 0);
    }

    fn put_class(&self, out: &mut BitWriter, bits: u64, fits: impl Fn(&u32) -> bool) {
        let last = self.0.len() - 1;
        let class = self.0.iter().position(fits).unwrap_or(last);
        let ones = (1 << class) - 1;
        if class < last {
            out.write(ones << 1, class as u32 + 1);
        } else {
            out.write(ones, class as u32);
        }
        let width = self.0[class];
        out.write(bits & low_bits(width), width);
    }

    pub(super) fn take(&self, bits: &mut Bits) -> Result<i64, Damage> {
        let (raw, width) = self.take_class(bits)?;
        let is_negative = width > 0 && width < 64 && raw > 1 << (width - 1);
        Ok(if is_negative { raw as i64 - (1 << width) } else { raw as i64 })
    }

    pub(super) fn take_unsigned(&self, bits: &mut Bits) -> Result<u64, Damage> {
        Ok(self.take_class(bits)?.0)
    }

    fn take_class(&self, bits: &mut Bits) -> Result<(u64, u32), Damage> {
        let class = bits.ones(self.0.len() as u32 - 1).ok_or(CUT_OFF)?;
        let width = self.0[class as usize];
        Ok((bits.read(width).ok_or(CUT_OFF)?, width))
    }
}

fn low_bits(count: u32) -> u64 {
    1_u64.checked_shl(count).map_or(u64::MAX, |bit| bit - 1)
}

/// Takes bits that make up the first of something.
pub(super) fn take_bits(bits: &mut Bits, count: u32) -> Result<u64, Damage> {
    bits.read(count).ok_or(CUT_OFF)
}

/// A varint, wherever in a byte it begins.
pub(super) fn put_uvarint(out: &mut BitWriter, value: u64) {
    let mut bytes = Vec::with_capacity(varint::MAX_LEN);
    varint::put(&mut bytes, value);
    for byte in bytes {
        out.write(u64::from(byte), 8);
    }
}

pub(super) fn put_varint(out: &mut BitWriter, value: i64) {
    put_uvarint(out, varint::zigzag(value));
}

pub(super) fn take_uvarint(bits: &mut Bits) -> Result<u64, Damage> {
    let mut value = 0;
    for position in 0..varint::MAX_LEN as u32 {
        let byte = take_bits(bits, 8)?;
        value |= (byte & 0x7f) << (7 * position);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err("a varint without an end")
}

pub(super) fn take_varint(bits: &mut Bits) -> Result<i64, Damage> {
    take_uvarint(bits).map(varint::unzigzag)
}

/// A float on its way from sample to sample: the last one, and the bits in which it differed from the one before.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Xor {
    pub(super) bits: u64,
    window: Window,
}

/// Bits of a xor that are written; the first writes must open one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Window {
    leading: u32,
    /// 0 before the first.
    width: u32,
}

impl Window {
    pub(super) fn take(bits: &mut Bits) -> Result<Window, Damage> {
        let leading = take_bits(bits, 5)? as u32;
        let width = match take_bits(bits, 6)? as u32 {
            0 => 64,
            width => width,
        };
        if leading + width > 64 {
            return Err("a value of more than 64 bits");
        }
        Ok(Window { leading, width })
    }

    /// The xor that is written in this window; all 64 bits before one was opened.
    pub(super) fn take_xor(self, bits: &mut Bits) -> Result<u64, Damage> {
        let width = if self.width == 0 { 64 } else { self.width };
        Ok(take_bits(bits, width)? << (64 - self.leading - width))
    }
}

impl Xor {
    pub(super) fn put_first(&mut self, out: &mut BitWriter, bits: u64) {
        out.write(bits, 64);
        self.bits = bits;
    }

    pub(super) fn put_next(&mut self, out: &mut BitWriter, bits: u64) {
        let xor = bits ^ self.bits;
        self.bits = bits;
        if xor == 0 {
            return out.write(0, 1);
        }
        let (leading, trailing) = (xor.leading_zeros().min(31), xor.trailing_zeros());
        let Window { leading: held, width } = self.window;
        if width > 0 && leading >= held && trailing + held + width >= 64 {
            out.write(0b10, 2);
            return out.write(xor >> (64 - held - width), width);
        }
        let width = 64 - leading - trailing;
        self.window = Window { leading, width };
        out.write(0b11, 2);
        out.write(u64::from(leading), 5);
        out.write(u64::from(width & 63), 6);
        out.write(xor >> trailing, width);
    }

    pub(super) fn take_first(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        self.bits = take_bits(bits, 64)?;
        Ok(self.bits)
    }

    pub(super) fn take_next(&mut self, bits: &mut Bits) -> Result<u64, Damage> {
        match bits.ones(2).ok_or(CUT_OFF)? {
            0 => return Ok(self.bits),
            1 => (),
            _ => self.window = Window::take(bits)?,
        }
        self.bits ^= self.window.take_xor(bits)?;
        Ok(self.bits)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_take_the_bits_that_the_format_says() {
        for (value, bits) in [(0, 1), (4, 5), (-3, 5), (5, 9), (-4, 9), (256, 13), (257, 17), (131_072, 24)] {
            let mut out = BitWriter::new();
            VARBIT.put(&mut out, value);
            assert_eq!(out.bits(), bits, "{value}");
        }
        for (value, bits) in [(0, 1), (8192, 16), (-8191, 16), (-8192, 20), (65_537, 24), (524_289, 68)] {
            let mut out = BitWriter::new();
            TIMES.put(&mut out, value);
            assert_eq!(out.bits(), bits, "{value}");
        }
    }

    proptest! {
        #[test]
        fn numbers_and_values_come_back(
            values in prop::collection::vec((any::<i64>(), 0..64_u32), 1..40),
            cut: prop::sample::Index,
        ) {
            let values: Vec<i64> = values.into_iter().map(|(value, shift)| value >> shift).collect();
            let (mut out, mut xor) = (BitWriter::new(), Xor::default());
            for &value in &values {
                VARBIT.put(&mut out, value);
                VARBIT.put_unsigned(&mut out, value as u64);
                TIMES.put(&mut out, value);
                put_varint(&mut out, value);
                xor.put_next(&mut out, value as u64);
            }
            let bytes = out.into_bytes();
            let (mut bits, mut xor) = (Bits::of_slice(&bytes), Xor::default());
            for &value in &values {
                prop_assert_eq!(VARBIT.take(&mut bits), Ok(value));
                prop_assert_eq!(VARBIT.take_unsigned(&mut bits), Ok(value as u64));
                prop_assert_eq!(TIMES.take(&mut bits), Ok(value));
                prop_assert_eq!(take_varint(&mut bits), Ok(value));
                prop_assert_eq!(xor.take_next(&mut bits), Ok(value as u64));
            }
            // What is cut off is an error, sooner or later.
            let (mut bits, mut xor) = (Bits::of_slice(&bytes[..cut.index(bytes.len())]), Xor::default());
            let is_whole = values.iter().all(|_| {
                VARBIT.take(&mut bits).is_ok()
                    && VARBIT.take_unsigned(&mut bits).is_ok()
                    && TIMES.take(&mut bits).is_ok()
                    && take_varint(&mut bits).is_ok()
                    && xor.take_next(&mut bits).is_ok()
            });
            prop_assert!(!is_whole);
        }
    }
}
