//! Sealed samples: immutable, checksummed files.
//!
//! ```text
//! segments/00000005
//!
//! ┌────────────────┬───────┬───────┬─────┬───────┬────────┬────────┐
//! │ header         │ block │ block │  …  │ block │ index  │ footer │
//! │ 16 bytes       │       │       │     │       │        │ 24 B   │
//! └────────────────┴───────┴───────┴─────┴───────┴────────┴────────┘
//! header  "MSSG", version u32 LE = 1, number of the file u64 LE
//! block   crc32c u32 LE over the file's number, the block's offset and its content; content
//! footer  offset of the index u64 LE, its length u32 LE, its crc32c u32 LE, "MSSE", crc32c u32 LE of the footer so far
//! ```
//! Contents of the two kinds of blocks, which may be mixed in any order (all numbers varints):
//! ```text
//! times   count, then per stream: rows, bytes; then the encoded timestamps of each
//! series  count, then per piece: series − previous series, zigzag(stream − previous stream), first row, rows, bytes;
//!         then the encoded columns of each. All pieces of a series stand in one block, oldest samples first.
//! index   smallest and largest timestamp, zigzag; samples; blocks of times, blocks of series: count, then per block:
//!         first key − previous first key, offset − previous offset, length; then the series as a roaring bitmap
//! ```
//! Streams are numbered in the order in which they stand in the file. Columns and timestamps are encoded by `codec`.
mod cursor;
mod reader;
mod writer;

pub(crate) use cursor::SegmentCursor;
pub(crate) use reader::Segment;
pub(crate) use writer::{NewPiece, SegmentWriter};

const MAGIC: &[u8; 4] = b"MSSG";
const END_MAGIC: &[u8; 4] = b"MSSE";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const FOOTER_BYTES: usize = 24;
/// A block is closed once it has this many bytes.
const BLOCK_BYTES: usize = 16 << 10;
/// Longest block or index that is believed.
const MAX_BLOCK_BYTES: u64 = 256 << 20;

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockRef {
    /// First series or stream in it.
    first: u32,
    offset: u64,
    /// With its checksum.
    bytes: u32,
}

fn block_crc(number: u64, offset: u64, content: &[u8]) -> u32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&number.to_le_bytes());
    place[8..].copy_from_slice(&offset.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), content)
}
