//! What the bodies of the smaller record kinds are made of: a checksum of the content, then entries.
//!
//! ```text
//! ┌──────────────┬───────┬───────┬───┐
//! │ check u64 LE │ entry │ entry │ … │
//! └──────────────┴───────┴───────┴───┘
//! ```
//! `check` is computed over the entries themselves, not their encoding: it also finds a wrong encoder or decoder.
use metricsstore_codec::Damaged;
use metricsstore_codec::varint::{put, take};

use crate::wal::FRAME_BYTES;

const CHECK_BYTES: usize = 8;

/// Order-dependent checksum of content.
#[derive(Clone, Copy)]
pub(super) struct Check(u64);

impl Check {
    fn start() -> Check {
        Check(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn add(&mut self, word: u64) {
        const MULTIPLIER: u64 = 0xff51_afd7_ed55_8ccd;
        self.0 = (self.0 ^ word).wrapping_mul(MULTIPLIER).rotate_left(31);
    }

    pub(super) fn add_text(&mut self, text: &str) {
        self.add(text.len() as u64);
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }
}

/// The frame of one record while entries are added.
pub(crate) struct BodyWriter {
    pub(super) frame: Vec<u8>,
    pub(super) check: Check,
    entries: u32,
}

impl Default for BodyWriter {
    fn default() -> BodyWriter {
        BodyWriter { frame: vec![0; FRAME_BYTES + CHECK_BYTES], check: Check::start(), entries: 0 }
    }
}

impl BodyWriter {
    pub(super) fn count_entry(&mut self) {
        self.entries += 1;
    }

    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.frame.len()
    }

    pub(super) fn put_text(&mut self, text: &str) {
        put(&mut self.frame, text.len() as u64);
        self.frame.extend_from_slice(text.as_bytes());
    }

    /// The frame with room for its header, ready for [`crate::wal::Log::append`].
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.frame[FRAME_BYTES..FRAME_BYTES + CHECK_BYTES].copy_from_slice(&self.check.0.to_le_bytes());
        self.frame
    }
}

/// Reads all entries with `entry`, which takes one off the front of the bytes and adds it to the checksum, and compares.
pub(super) fn read_entries(
    body: &[u8],
    mut entry: impl FnMut(&mut &[u8], &mut Check) -> Result<(), Damaged>,
) -> Result<(), &'static str> {
    let (expected, mut entries) = body.split_first_chunk::<CHECK_BYTES>().ok_or("the record is too short")?;
    let mut check = Check::start();
    while !entries.is_empty() {
        entry(&mut entries, &mut check).map_err(|damaged| damaged.what)?;
    }
    if check.0 == u64::from_le_bytes(*expected) {
        Ok(())
    } else {
        Err("the record does not match its checksum")
    }
}

pub(super) fn take_text(bytes: &mut &[u8]) -> Result<String, Damaged> {
    let cut_off = Damaged { what: "a text that is cut off" };
    let length = usize::try_from(take(bytes)?).map_err(|_| cut_off)?;
    let (text, rest) = bytes.split_at_checked(length).ok_or(cut_off)?;
    *bytes = rest;
    String::from_utf8(text.to_vec()).map_err(|_| Damaged { what: "a text that is not UTF-8" })
}

pub(super) fn take_u32(bytes: &mut &[u8]) -> Result<u32, Damaged> {
    u32::try_from(take(bytes)?).map_err(|_| Damaged { what: "a number of more than 32 bits" })
}

pub(super) fn take_bytes<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Damaged> {
    let (taken, rest) = bytes.split_first_chunk::<N>().ok_or(Damaged { what: "a number that is cut off" })?;
    *bytes = rest;
    Ok(*taken)
}

/// A series id against the one before.
pub(super) fn next_series(previous: u32, step: i64) -> Result<u32, Damaged> {
    let next = i64::from(previous).checked_add(step).and_then(|id| u32::try_from(id).ok());
    next.ok_or(Damaged { what: "a series id of more than 32 bits" })
}

#[cfg(test)]
pub(super) mod tests {
    /// Flips each bit of a body: what `decode` still takes must be what it was.
    pub(crate) fn assert_flips_are_found<T: PartialEq + std::fmt::Debug>(
        body: &[u8],
        decode: impl Fn(&[u8]) -> Option<T>,
    ) {
        let whole = decode(body).expect("the body is sound");
        for at in 0..body.len() * 8 {
            let mut damaged = body.to_vec();
            damaged[at / 8] ^= 1 << (at % 8);
            // Another encoding of the same content is no damage.
            if let Some(decoded) = decode(&damaged) {
                assert_eq!(decoded, whole, "byte {} bit {}", at / 8, at % 8);
            }
        }
        for end in 0..body.len() {
            if let Some(decoded) = decode(&body[..end]) {
                assert_eq!(decoded, whole, "cut at {end}");
            }
        }
    }
}
