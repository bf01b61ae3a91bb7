//! How far long work has come, on standard error.
use std::io::{self, IsTerminal, Write as _};
use std::time::{Duration, Instant};

use crate::number::binary_bytes;

/// Time between two reports: often for people, seldom for logs.
const FOR_PEOPLE: Duration = Duration::from_millis(500);
const FOR_LOGS: Duration = Duration::from_secs(10);

/// Reports samples out of a number that may not be known.
pub struct Progress {
    total: u64,
    began: Instant,
    told: Instant,
    is_terminal: bool,
    /// Whether a line is on the screen that the next one replaces.
    is_open: bool,
}

impl Progress {
    pub fn new() -> Progress {
        let now = Instant::now();
        Progress { total: 0, began: now, told: now, is_terminal: io::stderr().is_terminal(), is_open: false }
    }

    /// So many samples are to come, 0: who knows.
    pub fn expect(&mut self, total: u64) {
        self.total = total;
    }

    /// So many are done.
    pub fn at(&mut self, samples: u64) {
        self.tell(|progress| describe(samples, progress.total, progress.began.elapsed()));
    }

    /// So many bytes of a log were read.
    pub fn at_bytes(&mut self, done: u64, total: u64) {
        self.tell(|_| format!("reading the log: {} of {}", binary_bytes(done), binary_bytes(total)));
    }

    fn tell(&mut self, text: impl FnOnce(&Progress) -> String) {
        let interval = if self.is_terminal { FOR_PEOPLE } else { FOR_LOGS };
        if self.told.elapsed() < interval {
            return;
        }
        self.told = Instant::now();
        let text = text(self);
        let mut stderr = io::stderr().lock();
        // What cannot be told does not stop the work.
        let _ = if self.is_terminal { write!(stderr, "\r\x1b[K{text}") } else { writeln!(stderr, "{text}") };
        let _ = stderr.flush();
        self.is_open = self.is_terminal;
    }

    /// A line of its own.
    pub fn line(&mut self, text: &str) {
        let clear = if std::mem::take(&mut self.is_open) { "\r\x1b[K" } else { "" };
        eprintln!("{clear}{text}");
    }
}

/// `1200 of 5000 samples (24%), 600/s, 6s left`.
fn describe(samples: u64, total: u64, elapsed: Duration) -> String {
    let rate = (samples as f64 / elapsed.as_secs_f64().max(0.001)) as u64;
    if total == 0 || samples > total {
        return format!("{samples} samples, {rate}/s");
    }
    let percent = samples * 100 / total.max(1);
    let left = (total - samples).checked_div(rate).map_or_else(
        || "?".into(),
        |seconds| super::text::go_duration(i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX)),
    );
    format!("{samples} of {total} samples ({percent}%), {rate}/s, {left} left")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::describe;

    #[test]
    fn what_is_left_follows_from_the_rate() {
        let text = describe(1200, 5000, Duration::from_secs(2));
        assert_eq!(text, "1200 of 5000 samples (24%), 600/s, 6s left");
        assert_eq!(describe(10, 0, Duration::from_secs(1)), "10 samples, 10/s");
        assert_eq!(describe(0, 10, Duration::from_secs(1)), "0 of 10 samples (0%), 0/s, ? left");
    }
}
