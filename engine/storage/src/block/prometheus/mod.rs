//! Blocks as Prometheus writes them: a directory of `meta.json`, `index`, `chunks/` and `tombstones`.
pub(crate) mod index;
pub(crate) mod meta;
pub(crate) mod tombstones;
