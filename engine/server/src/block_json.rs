//! What a block says of itself, in the names of Prometheus' `meta.json`.
use metricsstore_storage::{BlockFormat, BlockInfo};
use serde::Serialize;

/// A block.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MetaJson {
    ulid: String,
    min_time: i64,
    max_time: i64,
    stats: Stats,
    compaction: Compaction,
    version: u32,
    /// Ours: `native` or `prometheus`.
    format: &'static str,
    /// Ours: bytes of its files.
    size_bytes: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "these are the names of the format")]
struct Stats {
    #[serde(skip_serializing_if = "is_zero")]
    num_samples: u64,
    #[serde(skip_serializing_if = "is_zero")]
    num_float_samples: u64,
    #[serde(skip_serializing_if = "is_zero")]
    num_histogram_samples: u64,
    #[serde(skip_serializing_if = "is_zero")]
    num_series: u64,
    #[serde(skip_serializing_if = "is_zero")]
    num_chunks: u64,
    #[serde(skip_serializing_if = "is_zero")]
    num_tombstones: u64,
}

#[derive(Debug, Serialize)]
struct Compaction {
    level: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parents: Vec<Parent>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hints: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Parent {
    ulid: String,
    min_time: i64,
    max_time: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The name of a format on the command line.
pub fn format_name(format: BlockFormat) -> &'static str {
    match format {
        BlockFormat::Native => "native",
        BlockFormat::Prometheus => "prometheus",
    }
}

impl MetaJson {
    /// What is said of a block.
    pub fn of(info: &BlockInfo) -> MetaJson {
        let meta = &info.meta;
        MetaJson {
            ulid: meta.ulid.to_string(),
            min_time: meta.start_ms,
            max_time: meta.end_ms,
            stats: Stats {
                num_samples: meta.float_samples + meta.histogram_samples,
                num_float_samples: meta.float_samples,
                num_histogram_samples: meta.histogram_samples,
                num_series: meta.series,
                num_chunks: meta.chunks,
                num_tombstones: info.tombstones,
            },
            compaction: Compaction {
                level: meta.level,
                sources: meta.sources.iter().map(ToString::to_string).collect(),
                parents: meta
                    .parents
                    .iter()
                    .map(|parent| Parent {
                        ulid: parent.ulid.to_string(),
                        min_time: parent.start_ms,
                        max_time: parent.end_ms,
                    })
                    .collect(),
                hints: if meta.is_late { vec!["from-out-of-order"] } else { Vec::new() },
            },
            version: 1,
            format: format_name(meta.format),
            size_bytes: meta.bytes,
        }
    }
}
