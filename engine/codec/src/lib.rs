//! How samples become bits: varints, bit streams, checksums, timestamps, and the columns that hold values. Pure:
//! no files, no clock, nothing of the other rooms.
//!
//! - [`mod@column`]: the value column of one series, 24 bytes of state, bit-exact for every `f64`;
//! - [`cold`]: pages of columns at rest, entropy-coded;
//! - [`fragments`]: 32-byte fragments chained in an arena, where open columns keep their payload;
//! - [`timestamps`]: a timestamp stream as bytes;
//! - [`histogram`]: native histograms, each against the one before;
//! - [`bits`], [`varint`], [`checksum`]: what they and the file formats are made of.
//!
//! Damaged input is an error value, [`Damaged`]; no decoder panics, and every one is bounded by its input and by the
//! number of rows it is asked for.
#![forbid(unsafe_code)]

pub mod bits;
pub mod checksum;
pub mod cold;
pub mod column;
pub mod fragments;
pub mod histogram;
pub mod timestamps;
pub mod varint;

/// Bytes that no encoder of this crate wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged data: {what}")]
pub struct Damaged {
    /// What was found.
    pub what: &'static str,
}

impl Damaged {
    pub(crate) const fn new(what: &'static str) -> Damaged {
        Damaged { what }
    }
}
