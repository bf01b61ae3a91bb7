//! `tsdb export` and `tsdb import`.
use std::io::Write;

use clap::ArgMatches;
use metricsstore_storage::{BlockFormat, BlockMeta, Export, ExportStep, Import, ImportStep};

use super::progress::Progress;
use super::{
    ToolError, clock, dump, duration_ms, files, list, open, open_sorted, path_of, selected, text_of,
};
use crate::number::binary_bytes;

/// Where a log is sorted, below the directory that is written; removed in the end.
const SCRATCH: &str = "import.tmp";

pub fn export(matches: &ArgMatches, out: &mut dyn Write) -> Result<(), ToolError> {
    match text_of(matches, "format") {
        "prometheus" => export_blocks(matches, out),
        "openmetrics" => export_text(matches, out),
        other => Err(ToolError::Wrong(format!("--format {other}: write prometheus or openmetrics"))),
    }
}

fn export_blocks(matches: &ArgMatches, out: &mut dyn Write) -> Result<(), ToolError> {
    let to = path_of(matches, "output");
    if text_of(matches, "output").is_empty() {
        return Err(ToolError::Wrong("name a directory for the blocks: --output=DIR".into()));
    }
    let block_duration_ms = duration_ms(matches, "block-duration")?;
    let dir = open_sorted(matches, &to.join(SCRATCH), block_duration_ms)?;
    if to == dir.path() {
        return Err(ToolError::Wrong(format!(
            "--output {}: this is the directory that is exported; name another",
            to.display()
        )));
    }
    let selected = selected(matches)?;
    let (files, clock) = (files(), clock());
    let export = Export { to: &to, files: &files, clock: &*clock, block_duration_ms };
    let mut progress = Progress::new();
    progress
        .expect(dir.blocks().iter().map(|info| samples_of(&info.meta)).sum::<u64>() + dir.contents().samples);
    let mut damaged = (0, None);
    let written = dir.export(&export, &selected, &mut |step| match step {
        ExportStep::Samples { samples, .. } => progress.at(samples),
        ExportStep::Block(meta) => progress.line(&described(meta)),
        ExportStep::Damage(count, first) => {
            damaged.0 += count;
            damaged.1.get_or_insert_with(|| first.to_owned());
        }
    })?;
    let samples: u64 = written.iter().map(samples_of).sum();
    writeln!(out, "exported {} blocks with {samples} samples to {}", written.len(), to.display())?;
    dump::damage(damaged)?;
    dump::log_damage(&dir)?;
    list::broken(&dir)
}

fn export_text(matches: &ArgMatches, out: &mut dyn Write) -> Result<(), ToolError> {
    let dir = open(matches)?;
    let selected = selected(matches)?;
    let mut progress = Progress::new();
    let (samples, left_out) = match text_of(matches, "output") {
        "" | "-" => dump::open_metrics(&dir, selected, out, &mut |_| {})?,
        path => {
            let file = std::fs::File::create_new(path)?;
            let mut file = std::io::BufWriter::new(file);
            let written = dump::open_metrics(&dir, selected, &mut file, &mut |samples| progress.at(samples))?;
            file.flush()?;
            written
        }
    };
    progress.line(&format!("exported {samples} samples"));
    if left_out > 0 {
        progress.line(&format!(
            "{left_out} native histograms were left out, for which this format has no line: --format=prometheus has them"
        ));
    }
    Ok(())
}

pub fn import(matches: &ArgMatches, out: &mut dyn Write) -> Result<(), ToolError> {
    let to = path_of(matches, "storage.tsdb.path");
    let format = match text_of(matches, "storage.block-format") {
        "native" => BlockFormat::Native,
        "prometheus" => BlockFormat::Prometheus,
        other => {
            return Err(ToolError::Wrong(format!(
                "--storage.block-format {other}: write native or prometheus"
            )));
        }
    };
    let block_duration_ms = duration_ms(matches, "storage.tsdb.min-block-duration")?;
    let is_dry_run = matches.get_flag("dry-run");
    // A log is sorted where the blocks go: there must be space for them anyway.
    let dir =
        if is_dry_run { open(matches)? } else { open_sorted(matches, &to.join(SCRATCH), block_duration_ms)? };
    let (files, clock) = (files(), clock());
    let import = Import { to: &to, files: &files, clock: &clock, format, block_duration_ms, is_dry_run };
    let mut progress = Progress::new();
    let imported = dir.import_into(&import, &mut |step| match step {
        ImportStep::Planned { blocks, samples, present } => {
            progress.expect(samples);
            progress.line(&format!("{blocks} blocks to import, {present} are there already"));
        }
        ImportStep::Samples(samples) => progress.at(samples),
        ImportStep::Block(source, meta) => progress.line(&format!("{source} -> {}", described(&meta))),
        ImportStep::Damage(source, count, first) => {
            progress.line(&format!("{source}: {count} damaged parts were left out, the first: {first}"));
        }
    })?;
    let what = if import.is_dry_run { "would import" } else { "imported" };
    writeln!(
        out,
        "{what} {} blocks with {} samples into {}; {} were there already",
        imported.blocks,
        imported.samples,
        to.display(),
        imported.present
    )?;
    if imported.damaged > 0 {
        return Err(ToolError::Found(format!(
            "{} damaged parts of the source could not be imported; the source is as it was",
            imported.damaged
        )));
    }
    list::broken(&dir)
}

fn samples_of(meta: &BlockMeta) -> u64 {
    meta.float_samples + meta.histogram_samples
}

fn described(meta: &BlockMeta) -> String {
    format!(
        "{}: {} series, {} samples, {}",
        meta.ulid,
        meta.series,
        samples_of(meta),
        binary_bytes(meta.bytes)
    )
}
