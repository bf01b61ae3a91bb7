//! Blocks as Prometheus writes them: a directory of `meta.json`, `index`, `chunks/` and `tombstones`.
pub(crate) mod chunk;
pub(crate) mod chunk_files;
#[cfg(test)]
mod chunk_tests;
#[cfg(test)]
pub(crate) mod dump;
mod histogram_chunk;
mod histogram_layout;
pub(crate) mod index;
pub(crate) mod meta;
mod start_times;
pub(crate) mod tombstones;
mod varbit;
mod xor;
mod xor2;
