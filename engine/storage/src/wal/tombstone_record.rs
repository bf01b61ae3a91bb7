//! Record kind 7: tombstones, samples that were deleted.
//!
//! ```text
//! check u64 LE, then entries, all varints:
//! series id, its place in the global creation sequence, zigzag(first ms), last ms − first ms
//! ```
//! The place in the sequence tells the series from others that had or get its id.
use metricsstore_codec::Damaged;
use metricsstore_codec::varint::{put, take, unzigzag, zigzag};

use super::body::{BodyWriter, Check, read_entries, take_u32};

/// Samples of one series that were deleted, both ends inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tombstone {
    pub(crate) series: u32,
    /// Place in the global creation sequence.
    pub(crate) order: u64,
    pub(crate) min_ms: i64,
    pub(crate) max_ms: i64,
}

pub(crate) fn push_tombstone(body: &mut BodyWriter, tombstone: &Tombstone) {
    add_content(&mut body.check, tombstone);
    put(&mut body.frame, u64::from(tombstone.series));
    put(&mut body.frame, tombstone.order);
    put(&mut body.frame, zigzag(tombstone.min_ms));
    put(&mut body.frame, tombstone.max_ms.wrapping_sub(tombstone.min_ms) as u64);
    body.count_entry();
}

/// The tombstones of a record.
pub(crate) fn decode_tombstones(body: &[u8]) -> Result<Vec<Tombstone>, &'static str> {
    let mut tombstones = Vec::new();
    read_entries(body, |bytes, check| {
        let (series, order, min_ms) = (take_u32(bytes)?, take(bytes)?, unzigzag(take(bytes)?));
        let tombstone = Tombstone { series, order, min_ms, max_ms: min_ms.wrapping_add(take(bytes)? as i64) };
        if tombstone.max_ms < tombstone.min_ms {
            return Err(Damaged { what: "a tombstone that ends before it begins" });
        }
        add_content(check, &tombstone);
        tombstones.push(tombstone);
        Ok(())
    })?;
    Ok(tombstones)
}

fn add_content(check: &mut Check, tombstone: &Tombstone) {
    check.add(u64::from(tombstone.series));
    check.add(tombstone.order);
    check.add(tombstone.min_ms as u64);
    check.add(tombstone.max_ms as u64);
}

#[cfg(test)]
mod tests {
    use super::super::body::tests::assert_flips_are_found;
    use super::*;
    use crate::wal::FRAME_BYTES;

    fn tombstones() -> Vec<Tombstone> {
        let of = |series, order, min_ms, max_ms| Tombstone { series, order, min_ms, max_ms };
        vec![
            of(0, 0, i64::MIN, i64::MAX),
            of(u32::MAX, u64::MAX, -1, -1),
            of(7, 300, 1_700_000_000_000, 1_700_000_015_000),
        ]
    }

    fn body() -> Vec<u8> {
        let mut body = BodyWriter::default();
        for tombstone in &tombstones() {
            push_tombstone(&mut body, tombstone);
        }
        body.finish()[FRAME_BYTES..].to_vec()
    }

    #[test]
    fn every_range_comes_back() {
        assert_eq!(decode_tombstones(&body()), Ok(tombstones()));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        assert_flips_are_found(&body(), |body| decode_tombstones(body).ok());
    }
}
