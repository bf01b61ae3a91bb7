//! Entries of a page, one after the other.
use std::ops::Range;

use super::cursor::{Cursor, Failure};
use super::float::parse_value;

/// A page that is not in the text format; all of it is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: u32,
    /// Byte in the line, from 1.
    pub column: u32,
    /// What was expected and what was found.
    pub message: String,
    /// Samples before the error.
    pub samples: u32,
}

/// Kinds of metrics that `TYPE` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MetricKind {
    /// Only grows, or starts again.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Buckets with bounds in `le`.
    Histogram,
    /// Quantiles.
    Summary,
    /// `untyped`, or never named.
    Unknown,
}

impl MetricKind {
    /// The name in Prometheus' metadata API.
    pub const fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Summary => "summary",
            MetricKind::Unknown => "unknown",
        }
    }

    fn from_text(text: &[u8]) -> Option<MetricKind> {
        match text {
            b"counter" => Some(MetricKind::Counter),
            b"gauge" => Some(MetricKind::Gauge),
            b"histogram" => Some(MetricKind::Histogram),
            b"summary" => Some(MetricKind::Summary),
            b"untyped" => Some(MetricKind::Unknown),
            _ => None,
        }
    }

    /// The label whose value is a number in pages of this kind.
    fn bound_label(self) -> Option<&'static [u8]> {
        match self {
            MetricKind::Histogram => Some(b"le"),
            MetricKind::Summary => Some(b"quantile"),
            _ => None,
        }
    }
}

/// One sample of a page.
#[derive(Debug, Clone, PartialEq)]
pub struct Series<'p> {
    /// `name{labels}` as the page writes it.
    pub text: &'p [u8],
    /// Where in `text` a bucket's bound or a quantile stands.
    pub bound: Option<Range<usize>>,
    /// Its value; every NaN has the same bits.
    pub value: f64,
    /// Its own timestamp, in milliseconds.
    pub timestamp_ms: Option<i64>,
}

/// What a line of a page says.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry<'p> {
    /// A sample.
    Series(Series<'p>),
    /// `HELP`, text as written ([`Entry::help_text`] resolves escapes).
    Help {
        /// Metric's name, escapes as written.
        name: &'p [u8],
        /// Text, escapes as written; UTF-8.
        text: &'p [u8],
    },
    /// `TYPE`.
    Type {
        /// Metric's name, escapes as written.
        name: &'p [u8],
        /// Its kind.
        kind: MetricKind,
    },
    /// Any other line that starts with `#`.
    Comment(&'p [u8]),
}

impl Entry<'_> {
    /// The text of a `HELP` line with `\\` and `\n` resolved.
    pub fn help_text(escaped: &[u8]) -> String {
        let escaped = String::from_utf8_lossy(escaped);
        let mut out = String::with_capacity(escaped.len());
        let mut rest = &*escaped;
        while let Some(at) = rest.find('\\') {
            out.push_str(&rest[..at]);
            let (character, used) = match rest.as_bytes().get(at + 1) {
                Some(b'\\') => ('\\', 2),
                Some(b'n') => ('\n', 2),
                _ => ('\\', 1),
            };
            out.push(character);
            rest = &rest[at + used..];
        }
        out.push_str(rest);
        out
    }
}

/// Reads a page entry by entry.
pub struct Parser<'p> {
    cursor: Cursor<'p>,
    kind: MetricKind,
    samples: u32,
    /// The page as a whole is UTF-8, so that no part of it needs to be looked at.
    is_utf8: bool,
}

impl<'p> Parser<'p> {
    /// Starts at the beginning of a page.
    pub fn new(page: &'p [u8]) -> Parser<'p> {
        Parser {
            cursor: Cursor::new(page),
            kind: MetricKind::Unknown,
            samples: 0,
            is_utf8: std::str::from_utf8(page).is_ok(),
        }
    }

    /// The next entry; `None` at the end. After an error the parser is at its end.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'p>>, ParseError> {
        self.entry().map_err(|failure| self.error(&failure))
    }

    fn error(&mut self, failure: &Failure) -> ParseError {
        let page = self.cursor.text;
        self.cursor.at = page.len();
        let before = &page[..failure.offset.min(page.len())];
        let line_start = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
        ParseError {
            line: memchr::memchr_iter(b'\n', before).count() as u32 + 1,
            column: (before.len() - line_start) as u32 + 1,
            message: failure.message.clone(),
            samples: self.samples,
        }
    }

    fn entry(&mut self) -> Result<Option<Entry<'p>>, Failure> {
        loop {
            let start = self.cursor.at;
            self.cursor.skip_blanks();
            if self.cursor.is_at_end() {
                return Ok(None);
            }
            match self.cursor.peek() {
                b'\n' => self.cursor.at += 1,
                // A line that begins with NUL ends the page.
                0 => return Ok(self.end()),
                b'#' => return self.hash_line(),
                b'{' => return self.series(start, false).map(Some),
                _ if self.cursor.metric_name() => return self.series(start, true).map(Some),
                _ => return Err(self.cursor.expected("a valid start token")),
            }
        }
    }

    fn end(&mut self) -> Option<Entry<'p>> {
        self.cursor.at = self.cursor.text.len();
        None
    }

    fn hash_line(&mut self) -> Result<Option<Entry<'p>>, Failure> {
        let cursor = &mut self.cursor;
        let start = cursor.at;
        cursor.at += 1;
        let blanks_from = cursor.at;
        cursor.skip_blanks();
        if cursor.at > blanks_from {
            for keyword in [b"HELP", b"TYPE"] {
                let rest = cursor.rest();
                if rest.starts_with(keyword) && matches!(rest.get(4), Some(b' ' | b'\t')) {
                    cursor.at += 4;
                    cursor.skip_blanks();
                    return self.metadata(keyword == b"HELP").map(Some);
                }
            }
        }
        let has_blanks = cursor.at > blanks_from;
        let rest = cursor.rest();
        let line = &rest[..memchr::memchr(b'\n', rest).unwrap_or(rest.len())];
        // NUL ends the page, except inside a comment that begins with a blank.
        let ends_page = if has_blanks { line.first() == Some(&0) } else { line.contains(&0) };
        if ends_page {
            return Ok(self.end());
        }
        cursor.at += line.len();
        let comment = &cursor.text[start..cursor.at];
        cursor.at += 1;
        Ok(Some(Entry::Comment(comment)))
    }

    fn metadata(&mut self, is_help: bool) -> Result<Entry<'p>, Failure> {
        let cursor = &mut self.cursor;
        let name_start = cursor.at;
        let name = if cursor.peek() == b'"' {
            cursor.quoted_name()?
        } else if cursor.metric_name() {
            name_start..cursor.at
        } else {
            let keyword = if is_help { "HELP" } else { "TYPE" };
            return Err(cursor.expected(&format!("metric name after {keyword}")));
        };
        let name = &cursor.text[name];
        let rest = cursor.rest();
        let line = &rest[..memchr::memchr(b'\n', rest).unwrap_or(rest.len())];
        if line.first() == Some(&0) {
            return Err(cursor.expected("a line break after metadata"));
        }
        let is_blank = line.iter().all(|byte| matches!(byte, b' ' | b'\t'));
        let text = if is_blank { &[] } else { line.get(1..).unwrap_or_default() };
        if is_help {
            if !self.is_utf8 && std::str::from_utf8(text).is_err() {
                return Err(cursor.fail("help text is not valid UTF-8"));
            }
            cursor.at += line.len() + 1;
            return Ok(Entry::Help { name, text });
        }
        let Some(kind) = MetricKind::from_text(text) else {
            let shown = String::from_utf8_lossy(&text[..text.len().min(40)]);
            return Err(cursor.fail(format!("invalid metric type {shown:?}")));
        };
        cursor.at += line.len() + 1;
        self.kind = kind;
        Ok(Entry::Type { name, kind })
    }

    /// A sample whose text begins at `start`; the cursor is behind its name or at its opening brace.
    fn series(&mut self, start: usize, has_name: bool) -> Result<Entry<'p>, Failure> {
        let cursor = &mut self.cursor;
        let page = cursor.text;
        let mut text_end = cursor.at;
        let mut bound = None;
        if has_name {
            cursor.skip_blanks();
        }
        if cursor.peek() == b'{' {
            let (bound_label, is_utf8) = (self.kind.bound_label(), self.is_utf8);
            let name = cursor.braces(has_name, |name, value| {
                if !is_utf8 && std::str::from_utf8(&page[value.clone()]).is_err() {
                    return Err(Failure { offset: value.start, message: "invalid UTF-8 label value".into() });
                }
                if bound_label == Some(&page[name]) {
                    bound = Some(value.start - start..value.end - start);
                }
                Ok(())
            })?;
            text_end = cursor.at;
            if !has_name && name.is_none() {
                return Err(cursor.fail("metric name not set"));
            }
            cursor.skip_blanks();
        }
        let (value, timestamp_ms) = self.value_and_timestamp()?;
        self.samples += 1;
        Ok(Entry::Series(Series { text: &page[start..text_end], bound, value, timestamp_ms }))
    }

    fn value_and_timestamp(&mut self) -> Result<(f64, Option<i64>), Failure> {
        let cursor = &mut self.cursor;
        let rest = cursor.rest();
        let ends_value = |byte: &u8| matches!(byte, b'{' | b' ' | b'\t' | b'\n' | 0);
        let token = &rest[..rest.iter().position(ends_value).unwrap_or(rest.len())];
        if token.is_empty() {
            return Err(cursor.expected("value after metric"));
        }
        let value = parse_value(token).map_err(|error| cursor.fail(error.message(token)))?;
        cursor.at += token.len();
        cursor.skip_blanks();
        let mut timestamp_ms = None;
        if cursor.peek() != b'\n' {
            let rest = cursor.rest();
            let digits = &rest[..rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len())];
            if digits.is_empty() {
                return Err(cursor.expected("timestamp or new record"));
            }
            timestamp_ms = Some(integer(digits).ok_or_else(|| cursor.fail("timestamp is out of range"))?);
            cursor.at += digits.len();
            cursor.skip_blanks();
            if cursor.peek() != b'\n' {
                return Err(cursor.expected("next entry after timestamp"));
            }
        }
        cursor.at += 1;
        Ok((value, timestamp_ms))
    }
}

fn integer(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0i64, |value, &digit| value.checked_mul(10)?.checked_add(i64::from(digit - b'0')))
}
