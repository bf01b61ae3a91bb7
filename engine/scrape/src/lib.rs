//! Scraping: targets from configuration, relabelling, one loop per target, staleness.
#![forbid(unsafe_code)]

mod body;
mod client;
mod config;
mod error;
mod manager;
mod metadata;
pub mod relabel;
mod room;
mod scrape_loop;
mod seen;
mod stats;
mod target;
mod tls;
mod write;

pub use config::{
    Authorization, HttpConfig, Pem, ScrapeConfig, ScrapeProtocol, Secret, TargetGroup, TlsConfig,
};
pub use error::ScrapeError;
pub use manager::{ActiveTarget, DroppedTarget, Health, ScrapeManager, ScrapeOptions, Targets};
pub use metadata::Metadata;
pub use metricsstore_ingest::text::MetricKind;
pub use relabel::{Action, RelabelConfig, RelabelError, RelabelRegex};
pub use stats::ScrapeStats;

/// Longest page after decompression when `body_size_limit` sets none, in bytes.
pub const MAX_BODY_BYTES: u64 = 256 << 20;

/// Dropped targets of a job that are kept to be shown when `keep_dropped_targets` sets no number.
pub const MAX_DROPPED_TARGETS: u64 = 1000;
