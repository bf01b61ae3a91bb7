//! Blocks as Prometheus writes them: a directory of `meta.json`, `index`, `chunks/` and `tombstones`.
pub(crate) mod chunk;
pub(crate) mod chunk_files;
#[cfg(test)]
mod chunk_tests;
mod cursor;
#[cfg(test)]
pub(crate) mod dump;
mod histogram_chunk;
mod histogram_layout;
pub(crate) mod index;
pub(crate) mod meta;
mod reader;
mod start_times;
#[cfg(test)]
mod tests;
pub(crate) mod tombstones;
mod varbit;
mod writer;
mod xor;
mod xor2;

pub(crate) use reader::PrometheusBlock;
pub(crate) use writer::PrometheusWriter;

/// The directory of the chunk files.
const CHUNKS: &str = "chunks";
