//! Blocks as Prometheus writes them: a directory of `meta.json`, `index`, `chunks/` and `tombstones`.
