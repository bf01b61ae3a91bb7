//! Samples, times and tables as `promtool` prints them.
use std::fmt::Write as _;
use std::io;

use metricsstore_model::histogram::{Bucket, Buckets, Histogram, HistogramCounts};
use metricsstore_model::{LabelBuf, is_legacy_label_name};

/// A float as Go's `%g` has it: the shortest digits, with an exponent below −4 and from 21 − 15 on.
pub fn push_general(out: &mut String, value: f64) {
    if value.is_nan() {
        return out.push_str("NaN");
    }
    if value.is_infinite() {
        return out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    }
    let start = out.len();
    // Writing to a String cannot fail.
    let _ = write!(out, "{value:e}");
    let exponent = out[start..].split_once('e').and_then(|(_, exponent)| exponent.parse::<i32>().ok());
    let exponent = exponent.unwrap_or(0);
    if (-4..6).contains(&exponent) {
        out.truncate(start);
        let _ = write!(out, "{value}");
        return;
    }
    let digits = out[start..].split_once('e').map_or(0, |(digits, _)| digits.len());
    out.truncate(start + digits);
    let sign = if exponent < 0 { '-' } else { '+' };
    let _ = write!(out, "e{sign}{:02}", exponent.abs());
}

/// `{a="b", c="d"}`, or without the spaces.
pub fn push_labels<'l>(
    out: &mut String,
    labels: impl IntoIterator<Item = (&'l str, &'l str)>,
    separator: &str,
) {
    out.push('{');
    for (index, (name, value)) in labels.into_iter().enumerate() {
        if index > 0 {
            out.push_str(separator);
        }
        if is_legacy_label_name(name) {
            out.push_str(name);
        } else {
            push_quoted(out, name);
        }
        out.push('=');
        push_quoted(out, value);
    }
    out.push('}');
}

/// A text as Go's `strconv.Quote` has it, for texts that are UTF-8.
pub fn push_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if c < ' ' || c == '\u{7f}' => _ = write!(out, "\\x{:02x}", u32::from(c)),
            c if is_printed(c) => out.push(c),
            c if u32::from(c) < 0x1_0000 => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => _ = write!(out, "\\U{:08x}", u32::from(c)),
        }
    }
    out.push('"');
}

/// What Rust's own escapes leave as it is, which are letters, marks, numbers, punctuation and symbols, as in Go.
fn is_printed(c: char) -> bool {
    c == '\'' || c.escape_debug().count() == 1 || is_mark(c)
}

/// Marks are escaped by Rust where they stand first, and printed by Go.
fn is_mark(c: char) -> bool {
    let mut text = String::from("a");
    text.push(c);
    text.escape_debug().count() == 2
}

/// A native histogram as Prometheus prints it.
pub fn push_histogram(out: &mut String, histogram: &Histogram) {
    out.push_str("{count:");
    match &histogram.counts {
        HistogramCounts::Integer(counts) => _ = write!(out, "{}", counts.count),
        HistogramCounts::Float(counts) => push_general(out, counts.count),
    }
    out.push_str(", sum:");
    push_general(out, histogram.sum);
    match histogram.buckets() {
        Buckets::Integer(buckets) => {
            for bucket in &buckets {
                push_bounds(out, bucket);
                let _ = write!(out, "{}", bucket.count);
            }
        }
        Buckets::Float(buckets) => {
            for bucket in &buckets {
                push_bounds(out, bucket);
                push_general(out, bucket.count);
            }
        }
    }
    out.push('}');
}

fn push_bounds<T>(out: &mut String, bucket: &Bucket<T>) {
    out.push_str(", ");
    out.push(if bucket.has_lower { '[' } else { '(' });
    push_general(out, bucket.lower);
    out.push(',');
    push_general(out, bucket.upper);
    out.push(if bucket.has_upper { ']' } else { ')' });
    out.push(':');
}

/// A length of time as Go prints it: `1h58m0.001s`.
pub fn go_duration(ms: i64) -> String {
    let (sign, ms) = (if ms < 0 { "-" } else { "" }, ms.unsigned_abs());
    if ms == 0 {
        return "0s".into();
    }
    if ms < 1000 {
        return format!("{sign}{ms}ms");
    }
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    let mut text = sign.to_owned();
    if hours > 0 {
        let _ = write!(text, "{hours}h");
    }
    if hours > 0 || minutes > 0 {
        let _ = write!(text, "{minutes}m");
    }
    let _ = match ms % 1000 {
        0 => write!(text, "{seconds}s"),
        fraction => {
            let decimals = format!("{fraction:03}");
            write!(text, "{seconds}.{}s", decimals.trim_end_matches('0'))
        }
    };
    text
}

/// A time as `promtool` prints it for people: `2023-11-15 00:00:00 +0000 UTC`.
pub fn date(ms: i64) -> String {
    let time = jiff::Timestamp::from_second(ms.div_euclid(1000)).unwrap_or_default();
    time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC").to_string()
}

/// Labels without the name of the metric.
pub fn without_name(labels: &LabelBuf) -> impl Iterator<Item = (&str, &str)> {
    labels.iter().filter(|(name, _)| *name != metricsstore_model::METRIC_NAME)
}

/// Writes columns that align, at least 13 wide and 2 apart, as `promtool`'s are.
pub fn write_table(out: &mut dyn io::Write, rows: &[Vec<String>]) -> io::Result<()> {
    const NARROWEST: usize = 13;
    const GAP: usize = 2;
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let widest = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        NARROWEST.max(widest.unwrap_or(0) + GAP)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, &width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}");
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{go_duration, push_general, push_labels, push_quoted, write_table};

    fn general(value: f64) -> String {
        let mut text = String::new();
        push_general(&mut text, value);
        text
    }

    /// Printed by Go.
    #[test]
    fn floats_are_those_of_go() {
        for (value, text) in [
            (123_456_789.0, "1.23456789e+08"),
            (1e6, "1e+06"),
            (999_999.0, "999999"),
            (100_000.0, "100000"),
            (1e21, "1e+21"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (12_345_678.5, "1.23456785e+07"),
            (0.0, "0"),
            (-0.0, "-0"),
            (1e-320, "1e-320"),
            (f64::INFINITY, "+Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(general(value), text);
        }
    }

    #[test]
    fn labels_are_quoted_as_go_quotes_them() {
        let mut text = String::new();
        push_labels(&mut text, [("a", "b\"c\\"), ("x.y", "é\n\u{200b}\u{1}")], ", ");
        assert_eq!(text, "{a=\"b\\\"c\\\\\", \"x.y\"=\"é\\n\\u200b\\x01\"}");
        let mut text = String::new();
        push_quoted(&mut text, "'\u{301}😀\u{e000}");
        assert_eq!(text, "\"'\u{301}😀\\ue000\"");
    }

    #[test]
    fn lengths_of_time_are_those_of_go() {
        for (ms, text) in [
            (0, "0s"),
            (7, "7ms"),
            (7_080_001, "1h58m0.001s"),
            (7_200_000, "2h0m0s"),
            (90_000, "1m30s"),
            (1500, "1.5s"),
        ] {
            assert_eq!(go_duration(ms), text);
        }
    }

    #[test]
    fn columns_align_whatever_their_cells() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let mut out = Vec::new();
        write_table(&mut out, &[row(["NAME", "SIZE", "END"]), row(["a-very-long-name", "1", ""])]).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "NAME              SIZE         END\na-very-long-name  1\n"
        );
    }
}
