//! A stream of integers, coded by the bins they are in.
//!
//! ```text
//! stream = bins | [words:varint | state:4 | state:4 | words × 2] | plain bits
//! ```
//! The bins of the integers are coded by range asymmetric numeral systems (Duda, arXiv:1311.2540) of two states that
//! take turns, little endian, 16 bits to a word; their places within the bins follow as plain bits, lowest first. A
//! lone bin needs no words. General compressors were tried on the same columns: zstd and pco take 3 to 40 % more.
use super::bins::{Bin, Bins, Fit, MAX_SCALE};
use crate::Damaged;
use crate::varint;

/// States stay in `LEAST..LEAST << 16`.
const LEAST: u32 = 1 << 16;

/// What coding keeps from stream to stream: memory.
#[derive(Default)]
pub(super) struct Encoder {
    pub(super) fit: Fit,
    sorted: Vec<i64>,
    words: Vec<u16>,
}

impl Encoder {
    /// The bits that these integers would take, about; looks at some of them.
    pub(super) fn bits(&mut self, integers: &[i64], sample: usize) -> f32 {
        self.sorted.clear();
        let every = integers.len().div_ceil(sample).max(1);
        self.sorted.extend(integers.iter().step_by(every));
        self.sorted.sort_unstable();
        self.fit.bits(&self.sorted, integers.len())
    }

    /// Appends a stream of at least one integer.
    pub(super) fn put(&mut self, integers: &[i64], out: &mut Vec<u8>) {
        self.sorted.clear();
        self.sorted.extend(integers);
        self.sorted.sort_unstable();
        let bins = self.fit.bins(&self.sorted);
        bins.put(out);
        if bins.bins.len() > 1 {
            self.put_words(&bins, integers, out);
        }
        put_places(&bins, integers, out);
    }

    fn put_words(&mut self, bins: &Bins, integers: &[i64], out: &mut Vec<u8>) {
        let firsts: Vec<u32> = bins
            .bins
            .iter()
            .scan(0, |next, bin| {
                *next += u32::from(bin.share);
                Some(*next - u32::from(bin.share))
            })
            .collect();
        self.words.clear();
        let mut states = [LEAST; 2];
        // Coded from the last to the first, so that they are decoded from the first to the last.
        for (index, &integer) in integers.iter().enumerate().rev() {
            let bin = bin_of(bins, integer);
            let share = u32::from(bins.bins[bin].share);
            let state = &mut states[index % 2];
            if u64::from(*state) >= u64::from(share) << (32 - bins.scale) {
                self.words.push(*state as u16);
                *state >>= 16;
            }
            *state = ((*state / share) << bins.scale) + *state % share + firsts[bin];
        }
        varint::put(out, self.words.len() as u64);
        out.extend(states.iter().flat_map(|state| state.to_le_bytes()));
        out.extend(self.words.iter().rev().flat_map(|word| word.to_le_bytes()));
    }
}

fn bin_of(bins: &Bins, integer: i64) -> usize {
    bins.bins.partition_point(|bin| bin.lower <= integer).saturating_sub(1)
}

fn put_places(bins: &Bins, integers: &[i64], out: &mut Vec<u8>) {
    let (mut word, mut held) = (0_u128, 0);
    for &integer in integers {
        let bin = bins.bins[bin_of(bins, integer)];
        word |= u128::from(integer.wrapping_sub(bin.lower) as u64) << held;
        held += u32::from(bin.width);
        if held >= 64 {
            out.extend((word as u64).to_le_bytes());
            word >>= 64;
            held -= 64;
        }
    }
    out.extend(&word.to_le_bytes()[..held.div_ceil(8) as usize]);
}

/// What decoding keeps from stream to stream: memory.
#[derive(Default)]
pub(super) struct Decoder {
    bins: Bins,
    /// For each remainder of a state: how the state goes on, and the bin.
    slots: Vec<Slot>,
}

/// What a remainder of a state stands for.
#[derive(Clone, Copy)]
struct Slot {
    share: u16,
    /// Place within the share.
    place: u16,
    bin: u8,
}

impl Decoder {
    /// Appends the `count` integers of a stream that is all of `bytes`.
    pub(super) fn take(&mut self, mut bytes: &[u8], count: usize, out: &mut Vec<i64>) -> Result<(), Damaged> {
        self.bins.take(&mut bytes)?;
        if let [lone] = self.bins.bins[..] {
            return take_lone(lone, bytes, count, out);
        }
        let words = varint::take(&mut bytes)?;
        let Some((words, places)) = words
            .checked_mul(2)
            .and_then(|len| len.checked_add(8))
            .and_then(|len| bytes.split_at_checked(len as usize))
        else {
            return Err(Damaged::new("a stream that is cut off"));
        };
        self.fill_slots();
        self.take_binned(words, places, count, out)
    }

    fn fill_slots(&mut self) {
        self.slots.clear();
        for (index, bin) in self.bins.bins.iter().enumerate() {
            self.slots.extend((0..bin.share).map(|place| Slot { share: bin.share, place, bin: index as u8 }));
        }
    }

    fn take_binned(
        &mut self,
        words: &[u8],
        places: &[u8],
        count: usize,
        out: &mut Vec<i64>,
    ) -> Result<(), Damaged> {
        const CUT_OFF: Damaged = Damaged::new("a stream that is cut off");
        let (states, words) = words.split_at_checked(8).ok_or(CUT_OFF)?;
        let [mut even, mut odd] =
            [0, 4].map(|at| states[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)));
        let mut words = words.as_chunks::<2>().0.iter();
        let mut places = Places { bytes: places, at: 0 };
        let scale = self.bins.scale;
        let (slots, bins) = (&self.slots[..], &self.bins.bins[..]);
        let mut bin = |state: &mut u32| -> Result<Bin, Damaged> {
            let slot = slots[*state as usize & (slots.len() - 1)];
            *state = u32::from(slot.share).wrapping_mul(*state >> scale).wrapping_add(u32::from(slot.place));
            if *state < LEAST {
                let word = words.next().ok_or(CUT_OFF)?;
                *state = *state << 16 | u32::from(u16::from_le_bytes(*word));
            }
            Ok(bins[usize::from(slot.bin)])
        };
        let has_places = bins.iter().any(|bin| bin.width > 0);
        let mut integer = |bin: Bin| {
            if has_places { bin.lower.wrapping_add(places.take(bin.width) as i64) } else { bin.lower }
        };
        out.reserve(count);
        for _ in 0..count / 2 {
            let (first, second) = (bin(&mut even)?, bin(&mut odd)?);
            out.extend([integer(first), integer(second)]);
        }
        if count % 2 == 1 {
            out.push(integer(bin(&mut even)?));
        }
        if [even, odd] != [LEAST; 2] || words.next().is_some() || !places.is_at_end() {
            return Err(Damaged::new("a stream that does not end where it should"));
        }
        Ok(())
    }
}

fn take_lone(bin: Bin, bytes: &[u8], count: usize, out: &mut Vec<i64>) -> Result<(), Damaged> {
    let mut places = Places { bytes, at: 0 };
    out.extend((0..count).map(|_| bin.lower.wrapping_add(places.take(bin.width) as i64)));
    if places.is_at_end() { Ok(()) } else { Err(Damaged::new("a stream that does not end where it should")) }
}

/// Plain bits, lowest first; zeros behind the end.
struct Places<'b> {
    bytes: &'b [u8],
    /// In bits.
    at: usize,
}

impl Places<'_> {
    #[inline]
    fn take(&mut self, width: u8) -> u64 {
        let width = u32::from(width);
        let (byte, shift) = (self.at / 8, (self.at % 8) as u32);
        self.at += width as usize;
        let mask = 1_u64.unbounded_shl(width).wrapping_sub(1);
        let low = self.word(byte) >> shift;
        if width + shift <= 64 { low & mask } else { (low | self.word(byte + 8) << (64 - shift)) & mask }
    }

    #[inline]
    fn word(&self, byte: usize) -> u64 {
        match self.bytes.get(byte..).and_then(|bytes| bytes.first_chunk()) {
            Some(word) => u64::from_le_bytes(*word),
            None => self.last_word(byte),
        }
    }

    #[cold]
    fn last_word(&self, byte: usize) -> u64 {
        let rest = self.bytes.get(byte..).unwrap_or_default();
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        u64::from_le_bytes(word)
    }

    fn is_at_end(&self) -> bool {
        self.at.div_ceil(8) == self.bytes.len()
    }
}

const _: () = assert!(MAX_SCALE <= 12);
