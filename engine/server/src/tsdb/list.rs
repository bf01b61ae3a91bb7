//! `tsdb list`.
use std::io::Write;

use clap::ArgMatches;

use super::text::{date, go_duration, write_table};
use super::{ToolError, open_blocks};
use crate::block_json::format_name;
use crate::number::binary_bytes;

const HEADER: [&str; 10] = [
    "BLOCK ULID",
    "MIN TIME",
    "MAX TIME",
    "DURATION",
    "NUM SAMPLES",
    "NUM CHUNKS",
    "NUM SERIES",
    "SIZE",
    "FORMAT",
    "LEVEL",
];

pub fn run(matches: &ArgMatches, out: &mut dyn Write) -> Result<(), ToolError> {
    let dir = open_blocks(matches)?;
    let human = matches.get_flag("human-readable");
    let time = |ms: i64| if human { date(ms) } else { ms.to_string() };
    let size = |bytes: u64| if human { binary_bytes(bytes) } else { bytes.to_string() };
    let mut rows = vec![HEADER.map(str::to_owned).to_vec()];
    for info in dir.blocks() {
        let meta = info.meta;
        rows.push(vec![
            meta.ulid.to_string(),
            time(meta.start_ms),
            time(meta.end_ms),
            go_duration(meta.end_ms.saturating_sub(meta.start_ms)),
            (meta.float_samples + meta.histogram_samples).to_string(),
            meta.chunks.to_string(),
            meta.series.to_string(),
            size(meta.bytes),
            format_name(meta.format).to_owned(),
            meta.level.to_string(),
        ]);
    }
    write_table(out, &rows)?;
    let contents = dir.contents();
    if let (Some(min_ms), Some(max_ms)) = (contents.min_ms, contents.max_ms) {
        writeln!(
            out,
            "in no block yet: {} samples of {} series from {} to {}",
            contents.samples,
            contents.series,
            time(min_ms),
            time(max_ms)
        )?;
    }
    if contents.segments + contents.log_files > 0 {
        writeln!(
            out,
            "segments: {} with {} bytes; log: {} files with {} bytes",
            contents.segments, contents.segment_bytes, contents.log_files, contents.log_bytes
        )?;
    }
    broken(&dir)
}

/// Blocks that cannot be opened are an error, after everything else was shown.
pub fn broken(dir: &metricsstore_storage::DataDir) -> Result<(), ToolError> {
    let all: Vec<String> = dir.broken().map(|(name, error)| format!("block {name}: {error}")).collect();
    if all.is_empty() { Ok(()) } else { Err(ToolError::Found(all.join("; "))) }
}
