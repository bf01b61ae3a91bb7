//! Sealed samples: immutable, checksummed files.
//!
//! ```text
//! segments/00000005
//!
//! ┌────────────────┬───────┬───────┬─────┬───────┬────────┬────────┐
//! │ header         │ block │ block │  …  │ block │ index  │ footer │
//! │ 20 bytes       │       │       │     │       │        │ 24 B   │
//! └────────────────┴───────┴───────┴─────┴───────┴────────┴────────┘
//! header  "MSSG", version u32 LE = 1, number of the file u64 LE, crc32c u32 LE of these
//! block   crc32c u32 LE over the file's number, the block's offset and its content; content
//! footer  offset of the index u64 LE, its length u32 LE, its crc32c u32 LE, "MSSE", crc32c u32 LE of the footer so far
//! ```
//! Contents of the kinds of blocks, which may be mixed in any order (all numbers varints):
//! ```text
//! times   count, then per stream: rows, bytes; then the encoded timestamps of each
//! series  count, then per piece: series − previous series, zigzag(stream − previous stream), first row, rows, bytes;
//!         then the encoded columns of each. All pieces of a series stand in one block, oldest samples first.
//! histograms, start timestamps
//!         count, then per series that has any: series − previous series, zigzag(smallest ms), largest − smallest ms,
//!         entries, bytes; then the encoded columns of each (see `kinds`)
//! index   origin: place, log floor, count and numbers of the segments that it replaces;
//!         smallest and largest timestamp, zigzag; samples; blocks of times, of series, of histograms, of start
//!         timestamps: count, then per block: first key − previous first key, offset − previous offset, length; then
//!         three roaring bitmaps: the series with samples of any kind, with histograms, with start timestamps
//! ```
//! The origin is not needed as long as there is a manifest: it is what a lost one is built from.
//! Streams are numbered in the order in which they stand in the file. Columns and timestamps are encoded by `codec`.
mod cursor;
mod kind_cursor;
mod reader;
mod writer;

use std::sync::Arc;

pub(crate) use cursor::SegmentCursor;
pub(crate) use reader::Segment;
pub(crate) use writer::{NewPiece, SegmentWriter};

const MAGIC: &[u8; 4] = b"MSSG";
const END_MAGIC: &[u8; 4] = b"MSSE";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 20;
const FOOTER_BYTES: usize = 24;
/// A block is closed once it has this many bytes.
const BLOCK_BYTES: usize = 16 << 10;
/// Longest block or index that is believed.
const MAX_BLOCK_BYTES: u64 = 256 << 20;

/// How a segment came to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Its place in sealed order: the number of the seal, or the place of the first segment that it replaces.
    pub(crate) place: u64,
    /// The first file of the log that holds samples later than this segment's.
    pub(crate) log_floor: u64,
    /// Numbers of the segments that were merged into it.
    pub(crate) replaces: Vec<u64>,
}

impl Origin {
    /// A segment written from memory.
    pub(crate) fn sealed(number: u64, log_floor: u64) -> Origin {
        Origin { place: number, log_floor, replaces: Vec::new() }
    }

    /// A segment written from others, given in their order.
    pub(crate) fn merged(inputs: &[Arc<Segment>]) -> Origin {
        Origin {
            place: inputs.first().map_or(0, |input| input.origin.place),
            log_floor: inputs.iter().map(|input| input.origin.log_floor).max().unwrap_or(0),
            replaces: inputs.iter().map(|input| input.number).collect(),
        }
    }
}

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

fn header(number: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(MAGIC);
    header[4..8].copy_from_slice(&VERSION.to_le_bytes());
    header[8..16].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&header[..16]);
    header[16..].copy_from_slice(&crc.to_le_bytes());
    header
}
