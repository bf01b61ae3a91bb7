//! Streams of bits, the most significant bit of each byte first.

/// Where bits are written to.
pub trait BitSink {
    /// Appends the low `count` bits (at most 64) of `value`; its other bits must be 0.
    fn write(&mut self, value: u64, count: u32);
}

/// Writes `count` bits of `value` at bit `at` of `bytes`, which are zero from there on.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: u64, count: u32) {
    let room = 64 - (at % 8) as u32;
    if count <= room
        && let Some(window) = bytes[at / 8..].first_chunk_mut::<8>()
    {
        let word = u64::from_be_bytes(*window) | value.unbounded_shl(room - count);
        *window = word.to_be_bytes();
        return;
    }
    let mut at = at;
    let mut left = count;
    while left > 0 {
        let free = 8 - (at % 8) as u32;
        let take = free.min(left);
        let part = value >> (left - take) & ((1 << take) - 1);
        bytes[at / 8] |= (part << (free - take)) as u8;
        at += take as usize;
        left -= take;
    }
}

/// Bits in a byte vector; the last byte is padded with zeros.
#[derive(Debug, Clone, Default)]
pub struct BitWriter {
    bytes: Vec<u8>,
    bits: usize,
}

impl BitWriter {
    /// An empty stream.
    pub fn new() -> BitWriter {
        BitWriter::default()
    }

    /// Bits written so far.
    pub fn bits(&self) -> u64 {
        self.bits as u64
    }

    /// The bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl BitSink for BitWriter {
    fn write(&mut self, value: u64, count: u32) {
        let at = self.bits;
        self.bits += count as usize;
        self.bytes.resize(self.bits.div_ceil(8), 0);
        put(&mut self.bytes, at, value, count);
    }
}

/// Reads bits from chunks of bytes that follow each other.
#[derive(Debug, Clone)]
pub struct BitReader<'b, C> {
    chunks: C,
    chunk: &'b [u8],
    /// Bits that are loaded, from the top. Bits below `held` may already be there too, with the values they have.
    word: u64,
    held: u32,
    /// Bits not loaded yet.
    left: u64,
}

impl<'b> BitReader<'b, std::iter::Empty<&'b [u8]>> {
    /// Reads all bits of one slice.
    pub fn of_slice(bytes: &'b [u8]) -> Self {
        BitReader { chunks: std::iter::empty(), chunk: bytes, word: 0, held: 0, left: bytes.len() as u64 * 8 }
    }
}

impl<'b, C: Iterator<Item = &'b [u8]>> BitReader<'b, C> {
    /// Reads at most `bits` bits of `chunks`.
    pub fn new(chunks: C, bits: u64) -> Self {
        BitReader { chunks, chunk: &[], word: 0, held: 0, left: bits }
    }

    /// The next `count` bits (at most 64); `None` when fewer are left.
    pub fn read(&mut self, count: u32) -> Option<u64> {
        if count > 56 {
            let high = self.read(count - 32)?;
            return Some(high << 32 | self.read(32)?);
        }
        if count == 0 {
            return Some(0);
        }
        self.load();
        if self.held < count {
            return None;
        }
        let value = self.word >> (64 - count);
        self.drop_bits(count);
        Some(value)
    }

    /// Counts ones up to the next zero, at most `limit` (below 56) of them, and takes them and that zero; `None` at
    /// the end.
    pub fn ones(&mut self, limit: u32) -> Option<u32> {
        self.load();
        let ones = self.word.leading_ones().min(limit);
        let taken = (ones + 1).min(limit);
        if self.held < taken {
            return None;
        }
        self.drop_bits(taken);
        Some(ones)
    }

    /// Counts zeros up to the next one and takes all of them; `None` when no one follows.
    pub(crate) fn zeros(&mut self) -> Option<u64> {
        let mut counted = 0;
        loop {
            self.load();
            if self.held == 0 {
                return None;
            }
            let zeros = self.word.leading_zeros();
            if zeros < self.held {
                self.drop_bits(zeros + 1);
                return Some(counted + u64::from(zeros));
            }
            counted += u64::from(self.held);
            self.drop_bits(self.held);
        }
    }

    /// Whether no bits are left.
    pub fn is_at_end(&mut self) -> bool {
        self.load();
        self.held == 0
    }

    fn drop_bits(&mut self, count: u32) {
        self.word = self.word.checked_shl(count).unwrap_or(0);
        self.held -= count;
    }

    /// Loads bits until more than 56 are held or none are left.
    fn load(&mut self) {
        if self.held > 56 {
            return;
        }
        if let Some(next) = self.chunk.first_chunk::<8>()
            && self.left >= 64
        {
            let bytes = (64 - self.held) / 8;
            self.word |= u64::from_be_bytes(*next) >> self.held;
            self.held += bytes * 8;
            self.left -= u64::from(bytes) * 8;
            self.chunk = &self.chunk[bytes as usize..];
            return;
        }
        while self.held <= 56 && self.left > 0 {
            let Some((&byte, rest)) = self.chunk.split_first() else {
                match self.chunks.next() {
                    Some(chunk) => self.chunk = chunk,
                    None => self.left = 0,
                }
                continue;
            };
            self.chunk = rest;
            let take = self.left.min(8) as u32;
            let kept = byte & (0xff_u8 << (8 - take));
            self.word |= u64::from(kept) << (56 - self.held);
            self.held += take;
            self.left -= u64::from(take);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn masked(value: u64, count: u32) -> u64 {
        if count == 0 { 0 } else { value << (64 - count) >> (64 - count) }
    }

    #[test]
    fn bits_lie_most_significant_first() {
        let mut writer = BitWriter::new();
        writer.write(0b1, 1);
        writer.write(0b0110, 4);
        writer.write(0x1ff, 9);
        assert_eq!(writer.bits(), 14);
        assert_eq!(writer.into_bytes(), [0b1011_0111, 0b1111_1100]);
    }

    #[test]
    fn runs_of_ones_and_zeros_are_counted_across_chunks() {
        let chunks: [&[u8]; 3] = [&[0b1110_0000], &[], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0b0000_1111]];
        let mut reader = BitReader::new(chunks.into_iter(), 88);
        assert_eq!(reader.ones(4), Some(3));
        assert_eq!(reader.zeros(), Some(4 + 72 + 4));
        assert_eq!(reader.ones(2), Some(2));
        assert_eq!(reader.ones(4), None);
        assert_eq!(reader.read(1), Some(1));
        assert!(reader.is_at_end());
        assert_eq!(reader.zeros(), None);
    }

    proptest! {
        #[test]
        fn bits_come_back_however_the_bytes_are_cut(
            parts in prop::collection::vec((any::<u64>(), 0..=64_u32), 0..50),
            cut in 1..12_usize,
        ) {
            let mut writer = BitWriter::new();
            for &(value, count) in &parts {
                writer.write(masked(value, count), count);
            }
            let bits = writer.bits();
            let bytes = writer.into_bytes();
            let mut reader = BitReader::new(bytes.chunks(cut), bits);
            for (value, count) in parts {
                prop_assert_eq!(reader.read(count), Some(masked(value, count)));
            }
            prop_assert!(reader.is_at_end());
            prop_assert_eq!(reader.read(1), None);
        }
    }
}
