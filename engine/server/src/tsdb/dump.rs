//! `tsdb dump`, and the samples of `tsdb export --format=openmetrics`.
use std::io::Write;

use clap::ArgMatches;
use metricsstore_storage::{DataDir, Selected, SeriesData};

use super::text::{push_general, push_histogram, push_labels, without_name};
use super::{ToolError, list, open, selected};

/// `{labels} value milliseconds`, floats and histograms in the order of time.
pub fn run(matches: &ArgMatches, out: &mut dyn Write) -> Result<(), ToolError> {
    let dir = open(matches)?;
    let mut series = dir.series(selected(matches)?)?;
    let (mut labels, mut line) = (String::new(), String::new());
    while let Some(slice) = series.next_slice()? {
        if !slice.is_continuation || labels.is_empty() {
            labels.clear();
            push_labels(&mut labels, slice.labels.iter(), ", ");
        }
        write_slice(slice, &labels, &mut line, out)?;
    }
    damage(series.damage())?;
    log_damage(&dir)?;
    list::broken(&dir)
}

/// Likewise of a log of Prometheus.
pub fn log_damage(dir: &DataDir) -> Result<(), ToolError> {
    match dir.log_report().and_then(|report| Some((report.damaged, report.places.first()?))) {
        None => Ok(()),
        Some((count, place)) => Err(ToolError::Found(format!(
            "{count} damaged places of the log were left out, the first: {}, byte {}: {}; metricsstore tsdb verify tells \
             them all",
            place.file, place.offset, place.what
        ))),
    }
}

fn write_slice(
    slice: &SeriesData,
    labels: &str,
    line: &mut String,
    out: &mut dyn Write,
) -> Result<(), ToolError> {
    let mut histograms = slice.histograms.iter().peekable();
    let mut floats = slice.floats.iter().peekable();
    loop {
        line.clear();
        line.push_str(labels);
        line.push(' ');
        let histogram = match (floats.peek(), histograms.peek()) {
            (Some(float), Some(histogram)) => histogram.0 < float.0,
            (None, Some(_)) => true,
            _ => false,
        };
        let time_ms = if histogram {
            let Some((time_ms, histogram)) = histograms.next() else { return Ok(()) };
            push_histogram(line, histogram);
            time_ms
        } else {
            let Some((time_ms, bits)) = floats.next() else { return Ok(()) };
            push_general(line, f64::from_bits(*bits));
            time_ms
        };
        writeln!(out, "{line} {time_ms}")?;
    }
}

/// What is damaged is left out; that there was anything is an error in the end.
pub fn damage((count, first): (u64, Option<String>)) -> Result<(), ToolError> {
    match first {
        None => Ok(()),
        Some(first) => Err(ToolError::Found(format!(
            "{count} damaged parts of series were left out, the first: {first}; metricsstore tsdb verify tells them all"
        ))),
    }
}

/// OpenMetrics text, floats only; returns samples written and histograms left out.
pub fn open_metrics(
    dir: &DataDir,
    selected: Selected,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<(u64, u64), ToolError> {
    let mut series = dir.series(selected)?;
    let (mut samples, mut left_out) = (0, 0);
    let (mut labels, mut line) = (String::new(), String::new());
    while let Some(slice) = series.next_slice()? {
        labels.clear();
        let name = slice.labels.metric_name();
        if metricsstore_model::is_legacy_label_name(&name.replace(':', "_")) {
            labels.push_str(name);
            push_labels(&mut labels, without_name(&slice.labels), ",");
        } else {
            // Such a name stands in the braces.
            push_named(&mut labels, slice);
        }
        for &(time_ms, bits) in &slice.floats {
            line.clear();
            push_general(&mut line, f64::from_bits(bits));
            let sign = if time_ms < 0 { "-" } else { "" };
            let ms = time_ms.unsigned_abs();
            writeln!(out, "{labels} {line} {sign}{}.{:03}", ms / 1000, ms % 1000)?;
        }
        samples += slice.floats.len() as u64;
        left_out += slice.histograms.len() as u64;
        progress(samples);
    }
    writeln!(out, "# EOF")?;
    damage(series.damage())?;
    log_damage(dir)?;
    list::broken(dir)?;
    Ok((samples, left_out))
}

fn push_named(out: &mut String, slice: &SeriesData) {
    out.push('{');
    super::text::push_quoted(out, slice.labels.metric_name());
    for (name, value) in without_name(&slice.labels) {
        out.push(',');
        let mut pair = String::new();
        push_labels(&mut pair, [(name, value)], ",");
        out.push_str(&pair[1..pair.len() - 1]);
    }
    out.push('}');
}
