//! Prometheus durations (`15d`, `1h30m`), exact to the millisecond.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Units from the largest to the smallest: name, milliseconds, and whether it is printed only when nothing is left over
/// (so that 8 days print as `8d`, not `1w1d`).
const UNITS: [(&str, i64, bool); 7] = [
    ("y", 365 * DAY, true),
    ("w", 7 * DAY, true),
    ("d", DAY, false),
    ("h", 3_600_000, false),
    ("m", 60_000, false),
    ("s", 1000, false),
    ("ms", 1, false),
];
const DAY: i64 = 86_400_000;
/// What 64-bit nanoseconds hold, which is Prometheus' own limit: a little over 292 years.
const MAX_MS: i64 = i64::MAX / 1_000_000;

/// A span of time as Prometheus writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PromDuration {
    ms: i64,
}

/// A text that is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The grammar does not hold.
    #[error(
        "\"{text}\" is not a duration: write whole numbers with y, w, d, h, m, s or ms, largest first, for example 15d or 1h30m"
    )]
    Syntax {
        /// What was given, cut to a bounded length.
        text: String,
    },
    /// More than 64-bit nanoseconds hold.
    #[error("the duration \"{text}\" is too long: at most 292y")]
    TooLong {
        /// What was given, cut to a bounded length.
        text: String,
    },
}

impl PromDuration {
    /// From milliseconds; negative spans are 0.
    pub const fn from_ms(ms: i64) -> PromDuration {
        PromDuration { ms: if ms < 0 { 0 } else { ms } }
    }

    /// Length in milliseconds, never negative.
    pub const fn ms(self) -> i64 {
        self.ms
    }

    /// Reads Prometheus' grammar: each unit at most once, largest first; a bare `0` is allowed.
    pub fn parse(text: &str) -> Result<PromDuration, DurationError> {
        let shown = || text.chars().take(64).collect::<String>();
        if text == "0" {
            return Ok(PromDuration { ms: 0 });
        }
        if text.is_empty() {
            return Err(DurationError::Syntax { text: shown() });
        }
        let (mut rest, mut units, mut total) = (text, UNITS.iter(), 0_i64);
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, tail) = rest.split_at(digits);
            let name = tail.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default();
            // The iterator only moves forward, so a unit that comes twice or too late is not found any more.
            let Some((_, unit_ms, _)) = units.find(|unit| unit.0 == name).filter(|_| digits > 0) else {
                return Err(DurationError::Syntax { text: shown() });
            };
            total = number
                .parse::<i64>()
                .ok()
                .and_then(|n| n.checked_mul(*unit_ms))
                .and_then(|ms| total.checked_add(ms))
                .filter(|ms| *ms <= MAX_MS)
                .ok_or_else(|| DurationError::TooLong { text: shown() })?;
            rest = &tail[name.len()..];
        }
        Ok(PromDuration { ms: total })
    }
}

impl FromStr for PromDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        PromDuration::parse(text)
    }
}

impl fmt::Display for PromDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ms == 0 {
            return f.write_str("0s");
        }
        let mut left = self.ms;
        for (name, unit_ms, only_exact) in UNITS {
            if left >= unit_ms && !(only_exact && left % unit_ms != 0) {
                write!(f, "{}{name}", left / unit_ms)?;
                left %= unit_ms;
            }
        }
        Ok(())
    }
}

impl Serialize for PromDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PromDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        PromDuration::parse(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_prometheus_reads_them() {
        for (text, ms) in [
            ("0", 0),
            ("0s", 0),
            ("324ms", 324),
            ("3s", 3_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("4d", 4 * DAY),
            ("4d1h", 4 * DAY + 3_600_000),
            ("14d", 14 * DAY),
            ("3w", 21 * DAY),
            ("3w2d1h", 23 * DAY + 3_600_000),
            ("10y", 3650 * DAY),
            ("1h30m", 5_400_000),
            ("1y2w3d4h5m6s7ms", 365 * DAY + 17 * DAY + 14_706_007),
        ] {
            assert_eq!(PromDuration::parse(text).unwrap().ms(), ms, "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "1", "1y1m1d", "-1w", "1.5d", "d", "1h1h", " 1d", "1d ", "1D", "0.5", "00", "15 d", "1ms1s"]
        {
            assert!(matches!(PromDuration::parse(text), Err(DurationError::Syntax { .. })), "{text}");
        }
        for text in ["294y", "200y10400w", "107675d", "2584200h", "9999999999999999999999s"] {
            assert!(matches!(PromDuration::parse(text), Err(DurationError::TooLong { .. })), "{text}");
        }
    }

    #[test]
    fn durations_are_printed_as_prometheus_prints_them() {
        for (text, shown) in
            [("0", "0s"), ("7d", "1w"), ("8d", "8d"), ("365d", "1y"), ("90m", "1h30m"), ("1500ms", "1s500ms")]
        {
            assert_eq!(PromDuration::parse(text).unwrap().to_string(), shown);
        }
    }

    proptest! {
        #[test]
        fn printing_keeps_the_value(ms in 0..MAX_MS) {
            let duration = PromDuration::from_ms(ms);
            prop_assert_eq!(PromDuration::parse(&duration.to_string()), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "[0-9ywdhms]{0,30}|.{0,20}") {
            let _ = PromDuration::parse(&text);
        }
    }
}
