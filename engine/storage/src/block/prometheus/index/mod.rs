//! The file `index` of a Prometheus block: what the series are, where their chunks stand, and which label pairs lead to
//! them. Integers are big endian, varints little endian by groups of seven bits, signed ones zigzag.
//!
//! ```text
//! header          BA AA D7 00 | version u8
//! symbols         section of: n u32 | n × (length varint, bytes), ascending; a symbol is known by its place
//! series          each at a multiple of 16, which divided by 16 is its reference; ascending by label set:
//!                 length varint | body | crc u32
//!                 body: labels varint | × (name, value: symbol varints)
//!                       chunks varint | first: min ms signed, max − min varint, reference varint
//!                                     | others: min − previous max varint, max − min varint, reference − previous signed
//! postings        each at a multiple of 4, section of: n u32 | n × series reference u32, ascending;
//!                 first those of all series, under the pair of two empty texts
//! postings table  section of: n u32 | n × (02, name, value: length varint and bytes; offset of the postings varint),
//!                 ascending
//! contents        6 × u64: offsets of symbols, series, label indices, label index table, postings, postings table | crc u32
//!
//! section         length u32 | so many bytes | crc u32
//! ```
//! Checksums are CRC32C over what stands between length and checksum. Version 2 is written; 1 and 3 are read too. In
//! version 1 the reference of a series is its offset, that of a symbol the offset of its length, and the table is not
//! sorted. Label indices are read by nobody: as Prometheus since 3.0, nothing is written where they stood.
pub(crate) mod fuzz;
mod matching;
mod offset_table;
mod pairs;
mod postings;
mod reader;
mod source;
mod spool;
mod symbols;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use reader::IndexReader;
pub(crate) use writer::IndexWriter;

pub(crate) const FILE_NAME: &str = "index";
const MAGIC: [u8; 4] = [0xba, 0xaa, 0xd7, 0x00];
/// The version that is written.
const VERSION: u8 = 2;
/// The newest version that is read.
const NEWEST: u8 = 3;
const HEADER_BYTES: u64 = 5;
/// What series are aligned to, from version 2 on.
const SERIES_ALIGN: u64 = 16;
/// One in so many entries of a sorted list is kept in memory.
const SPARSE: usize = 32;

/// A chunk as the index knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkMeta {
    /// Times of its first and its last sample.
    pub(crate) min_ms: i64,
    pub(crate) max_ms: i64,
    /// Number of the chunk file, from 0, in the upper 32 bits, and the offset in it.
    pub(crate) reference: u64,
}

/// Where the parts of an index begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Contents {
    symbols: u64,
    series: u64,
    label_indices: u64,
    label_table: u64,
    postings: u64,
    postings_table: u64,
}

impl Contents {
    const BYTES: usize = 6 * 8 + 4;

    fn encode(&self) -> [u8; Contents::BYTES] {
        let mut bytes = [0; Contents::BYTES];
        let fields = [
            self.symbols,
            self.series,
            self.label_indices,
            self.label_table,
            self.postings,
            self.postings_table,
        ];
        for (place, field) in fields.iter().enumerate() {
            bytes[place * 8..][..8].copy_from_slice(&field.to_be_bytes());
        }
        let crc = crc32c::crc32c(&bytes[..48]);
        bytes[48..].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    /// `None` where the checksum does not match.
    fn decode(bytes: &[u8; Contents::BYTES]) -> Option<Contents> {
        let (fields, _) = bytes.as_chunks::<8>();
        let field = |place: usize| u64::from_be_bytes(fields[place]);
        let crc = u32::from_be_bytes([bytes[48], bytes[49], bytes[50], bytes[51]]);
        (crc32c::crc32c(&bytes[..48]) == crc).then(|| Contents {
            symbols: field(0),
            series: field(1),
            label_indices: field(2),
            label_table: field(3),
            postings: field(4),
            postings_table: field(5),
        })
    }
}
