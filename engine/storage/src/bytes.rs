//! Varints and fixed integers in byte buffers, read back with bounds.

/// Appends an unsigned LEB128.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed integer, small magnitudes short.
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, zigzag(value));
}

/// Small magnitudes to small unsigned numbers.
pub(crate) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub(crate) const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// A cursor over stored bytes. Every read says `None` where the bytes end or make no sense.
#[derive(Clone)]
pub(crate) struct Cursor<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Cursor<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Cursor<'b> {
        Cursor { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn signed(&mut self) -> Option<i64> {
        self.varint().map(unzigzag)
    }

    /// A varint that must fit `u32`.
    pub(crate) fn varint_u32(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{Cursor, put_signed, put_varint};

    #[test]
    fn extremes_come_back_and_too_long_numbers_do_not() {
        let mut out = Vec::new();
        for value in [0, 1, 127, 128, u64::MAX] {
            put_varint(&mut out, value);
        }
        for value in [0, -1, i64::MIN, i64::MAX] {
            put_signed(&mut out, value);
        }
        let mut cursor = Cursor::new(&out);
        for value in [0, 1, 127, 128, u64::MAX] {
            assert_eq!(cursor.varint(), Some(value));
        }
        for value in [0, -1, i64::MIN, i64::MAX] {
            assert_eq!(cursor.signed(), Some(value));
        }
        assert!(cursor.is_at_end() && cursor.varint().is_none());
        assert_eq!(Cursor::new(&[0xff; 11]).varint(), None);
    }
}
