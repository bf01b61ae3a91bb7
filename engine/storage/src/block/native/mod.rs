//! Native blocks: one file each, specified byte by byte in `docs/native-block.md`.
//!
//! ```text
//! blocks/01JE0000000000000000000000
//!
//! ┌────────┬──────┬──────┬─────┬──────┬───────────┬────────┐
//! │ header │ page │ page │  …  │ page │ directory │ footer │
//! │ 28 B   │      │      │     │      │           │ 24 B   │
//! └────────┴──────┴──────┴─────┴──────┴───────────┴────────┘
//! header  "MSNB", version u32 LE = 1, ULID u128 LE, crc32c u32 LE of these
//! page    crc32c u32 LE over the block's ULID, the page's offset and its content; content
//! footer  offset of the directory u64 LE, its length u32 LE, its crc32c u32 LE (as of a page), "MSNE",
//!         crc32c u32 LE of the footer so far
//! ```
//! | file | pages |
//! |---|---|
//! | `values` | float columns of neighbouring rows in one part of the block's time |
//! | `times` | timestamp streams, shared by the series that have samples at the same times |
//! | `extras` | histograms, start timestamps, exemplars: for the rows that have some |
//! | `dictionary`, `sets`, `labels` | label pairs, sets of pairs that series share, the two sets of each row |
//! | `table` | where the pages of a kind are: pages of references, of which the directory knows where they are |
//!
//! Only the directory is held in memory. Everything else is read by `pread` when it is asked for.
mod cursor;
mod dictionary;
mod directory;
mod extras;
mod finder;
pub(crate) mod forged;
mod interner;
mod labels;
mod list;
mod matching;
mod page;
mod reader;
mod sets;
mod table;
mod times;
mod values;
mod writer;

#[cfg(test)]
mod damage;
#[cfg(test)]
mod measure;
#[cfg(test)]
mod tests;

pub(crate) use reader::NativeBlock;
pub(crate) use writer::NativeWriter;

use super::Ulid;

const MAGIC: &[u8; 4] = b"MSNB";
const END_MAGIC: &[u8; 4] = b"MSNE";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 28;
const FOOTER_BYTES: usize = 24;

/// A page is closed once it has this many bytes.
const PAGE_BYTES: usize = 60 << 10;
/// Longest page or directory that is believed.
const MAX_PAGE_BYTES: u32 = 256 << 20;
/// Rows of a stream that one column covers, at most: encoded they fit into a page, however badly.
const COLUMN_ROWS: u32 = 6912;
/// Rows that one stream can have: a series with more samples in one part of the time has several there.
const MAX_STREAM_ROWS: u32 = 1 << 16;
/// A block is divided into parts of so much time, and longer ones where it would have more than so many.
const PART_MS: i64 = 18 * 3_600_000;
const MAX_PARTS: u32 = 64;

fn header(ulid: Ulid) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(MAGIC);
    header[4..8].copy_from_slice(&VERSION.to_le_bytes());
    header[8..24].copy_from_slice(&ulid.0.to_le_bytes());
    let crc = crc32c::crc32c(&header[..24]);
    header[24..].copy_from_slice(&crc.to_le_bytes());
    header
}

fn page_crc(ulid: Ulid, offset: u64, content: &[u8]) -> u32 {
    let mut place = [0; 24];
    place[..16].copy_from_slice(&ulid.0.to_le_bytes());
    place[16..].copy_from_slice(&offset.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), content)
}

/// How the time of a block is divided: what stands in one page lies in one part, so that a select of an hour reads pages
/// of few parts. Samples before the first and after the last part belong to these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parts {
    start_ms: i64,
    part_ms: i64,
    count: u32,
}

impl Parts {
    fn of(start_ms: i64, end_ms: i64) -> Parts {
        let span = end_ms.saturating_sub(start_ms).max(1);
        let part_ms = PART_MS.max(span / i64::from(MAX_PARTS) + 1);
        Parts { start_ms, part_ms, count: ((span - 1) / part_ms + 1) as u32 }
    }

    fn of_time(self, time_ms: i64) -> u32 {
        let part = time_ms.saturating_sub(self.start_ms) / self.part_ms;
        part.clamp(0, i64::from(self.count) - 1) as u32
    }

    /// Parts that hold samples from one time to another.
    fn within(self, (from_ms, to_ms): (i64, i64)) -> std::ops::RangeInclusive<u32> {
        self.of_time(from_ms)..=self.of_time(to_ms)
    }
}
