//! The log: logfmt as Prometheus writes it, or JSON.
use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::app::{now_ms, rfc3339};

/// Starts the log on standard error.
pub fn start(level: Level, json: bool) {
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false)
        // Complaining about a log that cannot be written goes to the same closed pipe, and panics there.
        .log_internal_errors(false);
    if json {
        builder.json().flatten_event(true).init();
    } else {
        builder.event_format(Logfmt).init();
    }
}

/// `time=… level=INFO msg="…" key=value`.
struct Logfmt;

impl<S, N> FormatEvent<S, N> for Logfmt
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Line::default();
        event.record(&mut line);
        let (time, level) = (rfc3339(now_ms()), event.metadata().level());
        writeln!(writer, "time={time} level={level} msg={}{}", quoted(&line.message), line.fields)
    }
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            // Writing to a String cannot fail.
            let _ = write!(self.fields, " {}={}", field.name(), quoted(value));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// A value as it is when nothing in it could be misread, else in quotes.
fn quoted(text: &str) -> String {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '=');
    if plain { text.to_owned() } else { format!("{text:?}") }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn values_are_quoted_only_where_they_could_be_misread() {
        assert_eq!(quoted("127.0.0.1:9090"), "127.0.0.1:9090");
        assert_eq!(quoted("two words"), "\"two words\"");
        assert_eq!((quoted("a=b").as_str(), quoted("").as_str()), ("\"a=b\"", "\"\""));
        assert_eq!(quoted("line\n\"q\""), r#""line\n\"q\"""#);
    }
}
