//! Numbers as Go reads and writes them.

/// What Prometheus says of a number it cannot read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FloatError {
    /// Hexadecimal exponents and underscores are not part of the text format.
    UnsupportedCharacter,
    /// Not a number.
    Syntax,
    /// Larger than the largest float.
    Range,
}

impl FloatError {
    pub(super) fn message(self, text: &[u8]) -> String {
        let shown = String::from_utf8_lossy(&text[..text.len().min(40)]);
        match self {
            FloatError::UnsupportedCharacter => format!("unsupported character in float {shown:?}"),
            FloatError::Syntax => format!("{shown:?} is not a number"),
            FloatError::Range => format!("value {shown:?} is out of range"),
        }
    }
}

/// Bits that every NaN of a page gets.
const NAN_BITS: u64 = 0x7ff8_0000_0000_0001;

/// Integers of up to this many digits are exact.
const EXACT_DIGITS: usize = 15;

/// A sample's value.
#[inline]
pub(super) fn parse_value(text: &[u8]) -> Result<f64, FloatError> {
    if text.len() <= EXACT_DIGITS && text.iter().all(u8::is_ascii_digit) {
        let integer = text.iter().fold(0u64, |value, &digit| value * 10 + u64::from(digit - b'0'));
        return if text.is_empty() { Err(FloatError::Syntax) } else { Ok(integer as f64) };
    }
    if text.iter().any(|byte| matches!(byte, b'p' | b'P' | b'_')) {
        return Err(FloatError::UnsupportedCharacter);
    }
    let value = parse_decimal(text)?;
    Ok(if value.is_nan() { f64::from_bits(NAN_BITS) } else { value })
}

fn parse_decimal(text: &[u8]) -> Result<f64, FloatError> {
    let text = std::str::from_utf8(text).map_err(|_| FloatError::Syntax)?;
    let value: f64 = text.parse().map_err(|_| FloatError::Syntax)?;
    let signed = text.starts_with(['+', '-']);
    if value.is_nan() && signed {
        return Err(FloatError::Syntax);
    }
    if value.is_infinite() && text.bytes().any(|byte| byte.is_ascii_digit()) {
        return Err(FloatError::Range);
    }
    Ok(value)
}

/// A bucket's bound or a quantile: everything that Go's `ParseFloat` takes.
fn parse_bound(text: &[u8]) -> Result<f64, FloatError> {
    let (negative, unsigned) = match text.first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if unsigned.len() >= 2 && unsigned[0] == b'0' && unsigned[1].eq_ignore_ascii_case(&b'x') {
        let digits = without_underscores(&unsigned[2..], true)?;
        let value = parse_hexadecimal(&digits)?;
        return Ok(if negative { -value } else { value });
    }
    if unsigned.contains(&b'_') {
        let digits = without_underscores(unsigned, false)?;
        let value = parse_decimal(&digits)?;
        return Ok(if negative { -value } else { value });
    }
    parse_decimal(text)
}

/// Underscores may only stand between digits, or behind the prefix `0x`.
fn without_underscores(text: &[u8], after_prefix: bool) -> Result<Vec<u8>, FloatError> {
    let is_digit = |byte: u8| if after_prefix { byte.is_ascii_hexdigit() } else { byte.is_ascii_digit() };
    let mut digit_before = after_prefix;
    for (index, &byte) in text.iter().enumerate() {
        if byte == b'_' && !(digit_before && text.get(index + 1).is_some_and(|&next| is_digit(next))) {
            return Err(FloatError::Syntax);
        }
        digit_before = is_digit(byte);
    }
    Ok(text.iter().copied().filter(|&byte| byte != b'_').collect())
}

/// Mantissa and binary exponent behind `0x`. Mantissas of more than 53 bits, which no target writes, are refused.
fn parse_hexadecimal(text: &[u8]) -> Result<f64, FloatError> {
    let exponent_at =
        text.iter().position(|byte| byte.eq_ignore_ascii_case(&b'p')).ok_or(FloatError::Syntax)?;
    let exponent: i32 = std::str::from_utf8(&text[exponent_at + 1..])
        .ok()
        .and_then(|digits| digits.parse().ok())
        .ok_or(FloatError::Syntax)?;
    let (mut mantissa, mut scale, mut digits, mut point) = (0u64, 0i32, 0, false);
    for &byte in &text[..exponent_at] {
        match (byte as char).to_digit(16) {
            Some(digit) if mantissa >> 49 == 0 => {
                mantissa = mantissa << 4 | u64::from(digit);
                scale -= if point { 4 } else { 0 };
                digits += 1;
            }
            None if byte == b'.' && !point => point = true,
            _ => return Err(FloatError::Syntax),
        }
    }
    if digits == 0 {
        return Err(FloatError::Syntax);
    }
    // Two steps, so that neither factor overflows or vanishes where the product does not.
    let exponent = exponent.saturating_add(scale).clamp(-1200, 1200);
    let value = mantissa as f64 * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2);
    if value.is_infinite() { Err(FloatError::Range) } else { Ok(value) }
}

/// How a bound that the page writes is stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NormalBound {
    /// As it is written.
    Same,
    /// With `.0` behind it.
    WithFraction,
    /// Otherwise.
    Other(String),
}

pub(super) fn normal_bound(written: &[u8]) -> NormalBound {
    if is_normal_decimal(written) || written == b"+Inf" {
        return NormalBound::Same;
    }
    if (1..=6).contains(&written.len())
        && written.iter().all(u8::is_ascii_digit)
        && (written[0] != b'0' || written == b"0")
    {
        return NormalBound::WithFraction;
    }
    match parse_bound(written).map(format_bound) {
        Ok(normal) if normal.as_bytes() != written => NormalBound::Other(normal),
        _ => NormalBound::Same,
    }
}

/// The usual bounds, recognised without reading them: `0.005`, `2.5`, `1000.0`.
fn is_normal_decimal(text: &[u8]) -> bool {
    let Some(point) = text.iter().position(|&byte| byte == b'.') else { return false };
    let (whole, fraction) = (&text[..point], &text[point + 1..]);
    let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    digits(whole)
        && digits(fraction)
        && text.len() <= EXACT_DIGITS
        && whole.len() <= 6
        && (whole == b"0" || whole[0] != b'0')
        && (fraction == b"0" || fraction[fraction.len() - 1] != b'0')
        && (whole != b"0" || fraction == b"0" || !fraction.starts_with(b"0000"))
}

/// A float as `le` and `quantile` hold it: Go's shortest form, with `.0` when it would look like an integer.
pub fn format_bound(value: f64) -> String {
    if value == 0.0 {
        return "0.0".into();
    }
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..21).contains(&exponent) && exponent < 6 {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::{FloatError, NormalBound, format_bound, normal_bound, parse_bound, parse_value};

    /// Expected values from Go's `strconv.ParseFloat(s, 64)`.
    #[test]
    fn bounds_are_read_as_go_reads_them() {
        let accepted = [
            ("1_000", 1000.0),
            ("0x1_0p2", 64.0),
            ("0x_1p0", 1.0),
            ("0x.8p1", 1.0),
            ("infinity", f64::INFINITY),
            ("+INFINITY", f64::INFINITY),
            ("-inf", f64::NEG_INFINITY),
            ("1.", 1.0),
            (".5", 0.5),
            ("5.e3", 5000.0),
            ("1e-999", 0.0),
            ("0x1p-2000", 0.0),
            ("-0x1p-3", -0.125),
        ];
        for (text, expected) in accepted {
            assert_eq!(parse_bound(text.as_bytes()), Ok(expected), "{text}");
        }
        let refused =
            ["1_", "_1", "1__0", "+nan", "-nan", "0x1", ".", "1e", "1e+", "+", "0x1p", "1e400_", "", "0x"];
        for text in refused {
            assert_eq!(parse_bound(text.as_bytes()), Err(FloatError::Syntax), "{text}");
        }
        for text in ["1e999", "0x1p2000"] {
            assert_eq!(parse_bound(text.as_bytes()), Err(FloatError::Range), "{text}");
        }
    }

    #[test]
    fn every_nan_of_a_page_is_the_same() {
        assert_eq!(parse_value(b"nan").map(f64::to_bits), Ok(0x7ff8_0000_0000_0001));
        assert_eq!(parse_value(b"0x1p1"), Err(FloatError::UnsupportedCharacter));
        assert_eq!(parse_value(b"-0").map(f64::to_bits), Ok((-0.0f64).to_bits()));
        assert_eq!(parse_value(b"999999999999999"), Ok(999_999_999_999_999.0));
        assert_eq!(parse_value(b""), Err(FloatError::Syntax));
    }

    /// Expected texts from Go's `strconv.FormatFloat(f, 'g', -1, 64)` with `.0` behind integers.
    #[test]
    fn bounds_are_written_as_prometheus_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (-1.0, "-1.0"),
            (100_000.0, "100000.0"),
            (1_000_000.0, "1e+06"),
            (1_234_567.5, "1.2345675e+06"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e300, "1.5e+300"),
            (172.8, "172.8"),
            (-0.0, "0.0"),
        ];
        for (value, expected) in cases {
            assert_eq!(format_bound(value), expected);
        }
    }

    #[test]
    fn only_bounds_in_another_form_are_rewritten() {
        for text in ["0.005", "2.5", "1000.0", "0.0", "+Inf", "NaN", "-Inf", "1e-05", "not a number", ""] {
            assert_eq!(normal_bound(text.as_bytes()), NormalBound::Same, "{text}");
        }
        let rewritten = [
            ("1", "1.0"),
            ("0", "0.0"),
            ("00", "0.0"),
            ("100000", "100000.0"),
            ("1000000", "1e+06"),
            ("0.50", "0.5"),
            ("00.5", "0.5"),
            ("0.00001", "1e-05"),
            ("1000000.0", "1e+06"),
            ("Inf", "+Inf"),
            ("0x1p-3", "0.125"),
            ("-0", "0.0"),
        ];
        for (text, expected) in rewritten {
            let normal = match normal_bound(text.as_bytes()) {
                NormalBound::Same => text.to_owned(),
                NormalBound::WithFraction => format!("{text}.0"),
                NormalBound::Other(normal) => normal,
            };
            assert_eq!(normal, expected, "{text}");
        }
    }
}
