//! UTC dates of Unix times, in the proleptic Gregorian calendar.

/// Days before each month of a year that is not a leap year.
const DAYS_BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

/// A date with its time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Date {
    pub year: i64,
    /// From 1.
    pub month: i64,
    /// From 1.
    pub day: i64,
    /// From 0 (Sunday).
    pub weekday: i64,
    /// From 1.
    pub year_day: i64,
    pub hour: i64,
    pub minute: i64,
    pub second: i64,
}

fn is_leap(year: i64) -> bool {
    (year % 4 == 0 && year % 100 != 0) || year % 400 == 0
}

/// Days in a month (from 1).
pub(crate) fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Seconds from the first day that Go's `time` can name to the Unix epoch. Earlier times wrap around to its last days.
const GO_EPOCH_SECONDS: u64 = 9_223_372_028_741_760_000;

impl Date {
    /// The date of a sample's value, a Unix time in seconds. What is no time (NaN, infinities, too large) is the time
    /// that Go makes of it.
    pub fn from_float(value: f64) -> Date {
        let limit = i64::MAX as f64;
        let seconds = if value >= -limit && value < limit { value as i64 } else { i64::MIN };
        let from_go_epoch = (seconds as u64).wrapping_add(GO_EPOCH_SECONDS);
        Date::from_wide(i128::from(from_go_epoch) - i128::from(GO_EPOCH_SECONDS))
    }

    /// The date of a Unix time in seconds.
    pub fn from_unix(seconds: i64) -> Date {
        Date::from_wide(i128::from(seconds))
    }

    fn from_wide(seconds: i128) -> Date {
        let (days, of_day) = (seconds.div_euclid(86_400) as i64, seconds.rem_euclid(86_400) as i64);
        // Eras of 400 years that begin on the first of March, so that leap days come last.
        let shifted = days + 719_468;
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap_day = i64::from(month > 2 && is_leap(year));
        Date {
            year,
            month,
            day,
            weekday: (days + 4).rem_euclid(7),
            year_day: DAYS_BEFORE[(month - 1) as usize] + day + leap_day,
            hour: of_day / 3600,
            minute: of_day % 3600 / 60,
            second: of_day % 60,
        }
    }
}

/// `2006-01-02T15:04:05Z`
pub(crate) fn format_utc(ms: i64) -> String {
    let date = Date::from_unix(ms.div_euclid(1000));
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        date.year, date.month, date.day, date.hour, date.minute, date.second
    )
}

#[cfg(test)]
mod tests {
    use super::{Date, days_in_month, format_utc};

    #[test]
    fn known_times_have_their_dates() {
        assert_eq!(format_utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(format_utc(1_136_239_445_000), "2006-01-02T22:04:05Z");
        assert_eq!(format_utc(-1000), "1969-12-31T23:59:59Z");
        let leap = Date::from_unix(951_782_400);
        assert_eq!((leap.year, leap.month, leap.day, leap.year_day, leap.weekday), (2000, 2, 29, 60, 2));
        assert_eq!(Date::from_unix(978_220_800).year_day, 366);
        assert_eq!((days_in_month(1900, 2), days_in_month(2024, 2)), (28, 29));
    }
}
