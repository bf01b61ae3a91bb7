//! Scraping: targets from configuration, relabelling, one loop per target, staleness.
#![forbid(unsafe_code)]

mod config;
pub mod relabel;

pub use config::{
    Authorization, HttpConfig, Pem, ScrapeConfig, ScrapeProtocol, Secret, TargetGroup, TlsConfig,
};
pub use relabel::{Action, RelabelConfig, RelabelError, RelabelRegex};

/// Longest page after decompression when `body_size_limit` sets none, in bytes.
pub const MAX_BODY_BYTES: u64 = 1 << 30;

/// Dropped targets of a job that are kept to be shown when `keep_dropped_targets` sets no number.
pub const MAX_DROPPED_TARGETS: u64 = 1000;
