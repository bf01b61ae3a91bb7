//! Merging blocks into fewer and longer ones, and what was deleted of them.
pub(crate) mod tombstones;
