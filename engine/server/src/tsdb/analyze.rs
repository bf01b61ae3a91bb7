//! `tsdb analyze`.
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use clap::ArgMatches;
use metricsstore_model::LabelBuf;
use metricsstore_storage::{BlockInfo, DataDir, Selected};

use super::text::go_duration;
use super::{ToolError, any_of, dump, list, open, text_of, ulid};
use crate::block_json::format_name;

/// What is counted of series.
#[derive(Default)]
struct Counts {
    series: u64,
    samples: u64,
    entries: u64,
    /// Series by metric name.
    metrics: BTreeMap<String, u64>,
    /// Series by label pair.
    pairs: BTreeMap<String, u64>,
    /// Values by label name.
    values: BTreeMap<String, BTreeSet<String>>,
}

impl Counts {
    fn add(&mut self, labels: &LabelBuf) {
        self.series += 1;
        *self.metrics.entry(labels.metric_name().to_owned()).or_default() += 1;
        for (name, value) in labels.iter() {
            self.entries += 1;
            *self.pairs.entry(format!("{name}={value}")).or_default() += 1;
            match self.values.get_mut(name) {
                Some(values) if values.contains(value) => {}
                Some(values) => _ = values.insert(value.to_owned()),
                None => _ = self.values.insert(name.to_owned(), BTreeSet::from([value.to_owned()])),
            }
        }
    }
}

pub fn run(matches: &ArgMatches, out: &mut dyn Write) -> Result<(), ToolError> {
    let dir = open(matches)?;
    let block = matches.get_one::<String>("block").map(|text| ulid(text)).transpose()?;
    let limit = text_of(matches, "limit")
        .parse::<usize>()
        .map_err(|_| ToolError::Wrong("--limit: write a whole number".into()))?;
    let mut infos = dir.blocks();
    if let Some(block) = block {
        infos.retain(|info| info.meta.ulid == block);
        if infos.is_empty() {
            return Err(ToolError::Wrong(format!(
                "there is no block {block} in {}: metricsstore tsdb list shows those that there are",
                dir.path().display()
            )));
        }
    }
    let mut series = dir.series(Selected { block, any_of: any_of(matches)?, ..Selected::default() })?;
    let mut counts = Counts::default();
    let mut last = LabelBuf::new();
    while let Some(slice) = series.next_slice()? {
        if counts.series == 0 || slice.labels != last {
            counts.add(&slice.labels);
            last.clone_from(&slice.labels);
        }
        counts.samples += slice.samples() as u64;
    }
    write_parts(&dir, &infos, block.is_none(), out)?;
    write_counts(&counts, limit, out)?;
    dump::damage(series.damage())?;
    dump::log_damage(&dir)?;
    list::broken(&dir)
}

fn write_parts(
    dir: &DataDir,
    infos: &[BlockInfo],
    is_whole: bool,
    out: &mut dyn Write,
) -> Result<(), ToolError> {
    for info in infos {
        let meta = &info.meta;
        let samples = meta.float_samples + meta.histogram_samples;
        writeln!(out, "Block ID: {} ({}, level {})", meta.ulid, format_name(meta.format), meta.level)?;
        writeln!(out, "Duration: {}", go_duration(meta.end_ms.saturating_sub(meta.start_ms)))?;
        writeln!(
            out,
            "Size: {} bytes, {:.3} bytes per sample, {:.1} per series",
            meta.bytes,
            meta.bytes as f64 / samples.max(1) as f64,
            meta.bytes as f64 / meta.series.max(1) as f64
        )?;
        if info.tombstones > 0 {
            writeln!(out, "Deleted time ranges: {}", info.tombstones)?;
        }
    }
    let contents = dir.contents();
    if is_whole && contents.samples > 0 {
        writeln!(
            out,
            "In no block yet: {} samples; segments take {} bytes, the log {} bytes",
            contents.samples, contents.segment_bytes, contents.log_bytes
        )?;
    }
    Ok(())
}

fn write_counts(counts: &Counts, limit: usize, out: &mut dyn Write) -> Result<(), ToolError> {
    writeln!(out, "Total Series: {}", counts.series)?;
    writeln!(out, "Total Samples: {}", counts.samples)?;
    writeln!(out, "Label names: {}", counts.values.len())?;
    writeln!(out, "Postings (unique label pairs): {}", counts.pairs.len())?;
    writeln!(out, "Postings entries (total label pairs): {}", counts.entries)?;
    let by_values = |count: fn(&BTreeSet<String>) -> u64| {
        counts.values.iter().map(|(name, values)| (name.clone(), count(values))).collect::<Vec<_>>()
    };
    let of_map = |map: &BTreeMap<String, u64>| map.clone().into_iter().collect::<Vec<_>>();
    let lengths = |values: &BTreeSet<String>| values.iter().map(|value| value.len() as u64).sum();
    for (title, items) in [
        ("Most common label pairs", of_map(&counts.pairs)),
        ("Label names with highest cumulative label value length", by_values(lengths)),
        ("Highest cardinality labels", by_values(|values| values.len() as u64)),
        ("Highest cardinality metric names", of_map(&counts.metrics)),
    ] {
        writeln!(out, "\n{title}:")?;
        for (name, count) in top(items, limit) {
            writeln!(out, "{count} {name}")?;
        }
    }
    Ok(())
}

/// The largest first, those of one size by name.
fn top(mut items: Vec<(String, u64)>, limit: usize) -> Vec<(String, u64)> {
    items.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    items.truncate(limit);
    items
}
