//! Parameters of the HTTP API, from the query string and from a form body.
use metricsstore_contract::PromDuration;

use super::reply::ApiError;

/// First time that Prometheus' API knows, in milliseconds.
pub const MIN_TIME_MS: i64 = (i64::MIN / 1000 + 62_135_596_801) * 1000;
/// Last time that Prometheus' API knows, in milliseconds.
pub const MAX_TIME_MS: i64 = (i64::MAX / 1000 - 62_135_596_801) * 1000 + 999;
const MIN_TIME_TEXT: &str = "-292273086-05-16T16:47:06Z";
const MAX_TIME_TEXT: &str = "292277025-08-18T07:12:54.999999999Z";

/// Longest form body, in bytes, as Go's.
pub const MAX_FORM_BYTES: usize = 10 << 20;

/// All parameters of a request; those of the form body come first.
#[derive(Debug, Default, Clone)]
pub struct Params {
    pairs: Vec<(String, String)>,
}

impl Params {
    /// Parameters of a form body (empty when there is none) and a query string.
    pub fn new(form: &[u8], query: &str) -> Params {
        let parse = |text| url::form_urlencoded::parse(text).into_owned();
        Params { pairs: parse(form).chain(parse(query.as_bytes())).collect() }
    }

    /// The first value of a parameter; empty when it is not there.
    pub fn get(&self, name: &str) -> &str {
        self.pairs.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// All values of a parameter.
    pub fn all<'p>(&'p self, name: &'p str) -> impl Iterator<Item = &'p str> {
        self.pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A time that must be there, in milliseconds.
    pub fn time(&self, name: &str) -> Result<i64, ApiError> {
        parse_time(self.get(name)).map_err(|error| ApiError::invalid(name, &error))
    }

    /// A time, or `default_ms` when it is not there.
    pub fn time_or(&self, name: &str, default_ms: i64) -> Result<i64, ApiError> {
        let text = self.get(name);
        if text.is_empty() {
            return Ok(default_ms);
        }
        parse_time(text)
            .map_err(|error| ApiError::invalid(name, &format!("invalid time value for '{name}': {error}")))
    }

    /// A duration in milliseconds, `None` when it is not there.
    pub fn duration(&self, name: &str) -> Result<Option<i64>, String> {
        let text = self.get(name);
        if text.is_empty() { Ok(None) } else { parse_duration(text).map(Some) }
    }

    /// `limit`: the most items wanted, `None` for all.
    pub fn limit(&self) -> Result<Option<usize>, ApiError> {
        let text = self.get("limit");
        if text.is_empty() {
            return Ok(None);
        }
        let number: i64 = text.parse().map_err(|_| {
            ApiError::invalid("limit", &format!("strconv.Atoi: parsing {text:?}: invalid syntax"))
        })?;
        let limit =
            usize::try_from(number).map_err(|_| ApiError::invalid("limit", "limit must be non-negative"))?;
        Ok((limit > 0).then_some(limit))
    }
}

/// Unix seconds with a fraction (rounded to milliseconds) or RFC 3339, as milliseconds.
pub fn parse_time(text: &str) -> Result<i64, String> {
    let wrong = || format!("cannot parse {text:?} to a valid timestamp");
    if let Ok(seconds) = text.parse::<f64>() {
        if !seconds.is_finite() {
            return Err(wrong());
        }
        let whole = seconds.trunc();
        let fraction_ms = ((seconds - whole) * 1000.0).round() as i64;
        return Ok((whole as i64).saturating_mul(1000).saturating_add(fraction_ms));
    }
    match text {
        MIN_TIME_TEXT => Ok(MIN_TIME_MS),
        MAX_TIME_TEXT => Ok(MAX_TIME_MS),
        _ if text.as_bytes().get(10) == Some(&b'T') && text.len() >= 20 => {
            let time: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
            Ok(time.as_nanosecond().div_euclid(1_000_000) as i64)
        }
        _ => Err(wrong()),
    }
}

/// Seconds as a number, or Prometheus' durations (`1h30m`), as milliseconds.
pub fn parse_duration(text: &str) -> Result<i64, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        let nanoseconds = seconds * 1e9;
        // What a 64-bit integer, and so Go's durations, cannot hold.
        if nanoseconds.is_nan() || nanoseconds >= i64::MAX as f64 || nanoseconds < i64::MIN as f64 {
            return Err(format!("cannot parse {text:?} to a valid duration. It overflows int64"));
        }
        return Ok(nanoseconds as i64 / 1_000_000);
    }
    PromDuration::parse(text)
        .map(PromDuration::ms)
        .map_err(|_| format!("cannot parse {text:?} to a valid duration"))
}

#[cfg(test)]
mod tests {
    use super::{MIN_TIME_MS, Params, parse_duration, parse_time};

    #[test]
    fn times_are_seconds_or_rfc_3339() {
        assert_eq!(parse_time("1435781451.781"), Ok(1_435_781_451_781));
        assert_eq!(parse_time("-1.5"), Ok(-1_500));
        assert_eq!(parse_time("2015-07-01T20:10:51.781Z"), Ok(1_435_781_451_781));
        assert_eq!(parse_time("2015-07-01T22:10:51.7819+02:00"), Ok(1_435_781_451_781));
        assert_eq!(parse_time("-292273086-05-16T16:47:06Z"), Ok(MIN_TIME_MS));
        assert_eq!(parse_time("NaN"), Err(r#"cannot parse "NaN" to a valid timestamp"#.into()));
        assert!(parse_time("").is_err() && parse_time("2015-07-01").is_err());
    }

    #[test]
    fn durations_are_seconds_or_prometheus_words() {
        assert_eq!(parse_duration("0.5"), Ok(500));
        assert_eq!(parse_duration("1h30m"), Ok(5_400_000));
        assert!(parse_duration("1e300").unwrap_err().ends_with("It overflows int64"));
        assert_eq!(parse_duration("5 m"), Err(r#"cannot parse "5 m" to a valid duration"#.into()));
    }

    #[test]
    fn the_form_comes_before_the_query_string_and_values_collect() {
        let params = Params::new(b"query=up&match%5B%5D=a", "query=down&match[]=b");
        assert_eq!(params.get("query"), "up");
        assert_eq!(params.all("match[]").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(Params::new(b"", "limit=0").limit().unwrap(), None);
        assert!(Params::new(b"", "limit=-1").limit().is_err());
    }
}
