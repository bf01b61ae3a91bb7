//! Numbers, durations and strings: read as Go and Prometheus write them, and written the same way.
use std::fmt::Write as _;

const UNITS: [(&str, u64); 7] = [
    ("y", 365 * 86_400_000),
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// A duration such as `1h30m` in milliseconds.
pub(crate) fn parse_duration_ms(text: &str) -> Result<i64, String> {
    let invalid = || format!("not a valid duration string: {}", quote(text));
    let too_large = || "duration out of range".to_owned();
    let mut rest = text;
    let mut total = 0u64;
    let mut next_unit = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest[digits..].bytes().take_while(u8::is_ascii_alphabetic).count();
        let (number, unit) = (&rest[..digits], &rest[digits..digits + letters]);
        if digits == 0 {
            return Err(invalid());
        }
        let unknown = || format!("unknown unit {} in duration {}", quote(unit), quote(text));
        let place = UNITS.iter().position(|(name, _)| *name == unit).ok_or_else(unknown)?;
        if place < next_unit {
            return Err(invalid());
        }
        next_unit = place + 1;
        let count: u64 = number.parse().map_err(|_| too_large())?;
        let part = count.checked_mul(UNITS[place].1).ok_or_else(too_large)?;
        total = total.checked_add(part).ok_or_else(too_large)?;
        rest = &rest[digits + letters..];
    }
    // Prometheus holds durations as nanoseconds in 64 bits.
    if total > i64::MAX as u64 / 1_000_000 {
        return Err(too_large());
    }
    Ok(total as i64)
}

/// Writes a duration of milliseconds as Prometheus does; years and weeks only where they fit exactly.
pub(crate) fn format_duration_ms(ms: i64) -> String {
    if ms == 0 {
        return "0s".into();
    }
    let mut text = String::new();
    if ms < 0 {
        text.push('-');
    }
    let mut rest = ms.unsigned_abs();
    for (name, length) in UNITS {
        let exact_only = matches!(name, "y" | "w");
        if rest < length || (exact_only && !rest.is_multiple_of(length)) {
            continue;
        }
        let _ = write!(text, "{}{name}", rest / length);
        rest %= length;
    }
    text
}

/// A number literal: Go's integers in any base first, then floats.
pub(crate) fn parse_number(text: &str) -> Result<f64, String> {
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        "inf" => return Ok(f64::INFINITY),
        "nan" => return Ok(f64::NAN),
        _ => {}
    }
    let failed =
        |what: &str| format!("error parsing number: strconv.ParseFloat: parsing {}: {what}", quote(text));
    if !underscores_separate_digits(&lower) {
        return Err(failed("invalid syntax"));
    }
    let plain = lower.replace('_', "");
    if let Some(integer) = parse_integer(&plain) {
        return Ok(integer as f64);
    }
    if !plain.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'+' | b'-')) {
        return Err(failed("invalid syntax"));
    }
    match plain.parse::<f64>() {
        Ok(value) if value.is_infinite() => Err(failed("value out of range")),
        Ok(value) => Ok(value),
        Err(_) => Err(failed("invalid syntax")),
    }
}

fn parse_integer(plain: &str) -> Option<i64> {
    let (digits, radix) = match plain.as_bytes() {
        [b'0', b'x', ..] => (&plain[2..], 16),
        [b'0', b'b', ..] => (&plain[2..], 2),
        [b'0', b'o', ..] => (&plain[2..], 8),
        [b'0', _, ..] => (&plain[1..], 8),
        _ => (plain, 10),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    i64::from_str_radix(digits, radix).ok()
}

fn underscores_separate_digits(text: &str) -> bool {
    let mut previous = b' ';
    for (index, byte) in text.bytes().enumerate() {
        let follows_prefix = index == 2 && matches!(previous, b'x' | b'b' | b'o');
        if byte == b'_' && !previous.is_ascii_hexdigit() && !follows_prefix {
            return false;
        }
        if previous == b'_' && !byte.is_ascii_hexdigit() {
            return false;
        }
        previous = byte;
    }
    previous != b'_'
}

/// The text of a quoted string, quotes included in `quoted`. Escapes that make invalid UTF-8 are replaced by U+FFFD.
pub(crate) fn unquote(quoted: &str) -> Result<String, String> {
    let failed = || format!("error unquoting string {}: invalid syntax", quote(quoted));
    let quote_char = quoted.chars().next().ok_or_else(failed)?;
    if quoted.len() < 2 || !quoted.ends_with(quote_char) {
        return Err(failed());
    }
    let body = &quoted[1..quoted.len() - 1];
    if quote_char == '`' {
        return Ok(body.replace('\r', ""));
    }
    if !body.contains('\\') {
        return Ok(body.to_owned());
    }
    let mut bytes = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c == '\\' {
            rest = unescape(rest, &mut bytes).ok_or_else(failed)?;
        } else {
            bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Reads one escape after its backslash; returns what follows it.
fn unescape<'t>(rest: &'t str, bytes: &mut Vec<u8>) -> Option<&'t str> {
    let (length, radix, skip) = match rest.as_bytes().first()? {
        b'x' => (2, 16, 1),
        b'u' => (4, 16, 1),
        b'U' => (8, 16, 1),
        b'0'..=b'7' => (3, 8, 0),
        &simple => {
            bytes.push(match simple {
                b'a' => 7,
                b'b' => 8,
                b'f' => 12,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'v' => 11,
                b'\\' | b'"' | b'\'' => simple,
                _ => return None,
            });
            return Some(&rest[1..]);
        }
    };
    let code = u32::from_str_radix(rest.get(skip..skip + length)?, radix).ok()?;
    if length > 3 {
        bytes.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut [0; 4]).as_bytes());
    } else {
        bytes.push(u8::try_from(code).ok()?);
    }
    rest.get(skip + length..)
}

/// Quotes as Go's `%q` does.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        if c == '"' {
            out.push_str("\\\"");
        } else {
            push_escaped(&mut out, c);
        }
    }
    out.push('"');
    out
}

/// Quotes a character as Go's `%q` does.
pub(crate) fn quote_char(c: char) -> String {
    let mut out = String::from("'");
    if c == '\'' {
        out.push_str("\\'");
    } else {
        push_escaped(&mut out, c);
    }
    out.push('\'');
    out
}

fn push_escaped(out: &mut String, c: char) {
    match c {
        '\\' => out.push_str("\\\\"),
        '\u{7}' => out.push_str("\\a"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{b}' => out.push_str("\\v"),
        c if (c as u32) < 0x20 || c as u32 == 0x7f => {
            let _ = write!(out, "\\x{:02x}", c as u32);
        }
        c if c.is_control() || (c.is_whitespace() && c != ' ') => {
            let _ = write!(out, "\\u{:04x}", c as u32);
        }
        c => out.push(c),
    }
}

/// The shortest decimal that reads back the same, never with an exponent: Go's `'f'` with precision -1.
pub fn format_float(value: f64) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf".into() } else { "-Inf".into() }
    } else {
        value.to_string()
    }
}

/// Go's `%g`: an exponent below 1e-4 and from 1e6 on (from 1e`digits` with a number of digits).
pub(crate) fn format_g(value: f64, digits: Option<usize>) -> String {
    if !value.is_finite() {
        return format_float(value);
    }
    if value == 0.0 {
        return if value.is_sign_negative() { "-0".into() } else { "0".into() };
    }
    let scientific = match digits {
        Some(digits) => format!("{value:.*e}", digits.saturating_sub(1)),
        None => format!("{value:e}"),
    };
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let mantissa =
        if mantissa.contains('.') { mantissa.trim_end_matches('0').trim_end_matches('.') } else { mantissa };
    if exponent < -4 || exponent >= digits.map_or(6, |digits| digits as i32) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let significant = mantissa.bytes().filter(u8::is_ascii_digit).count() as i32;
    format!("{value:.*}", (significant - 1 - exponent).max(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::{
        format_duration_ms, format_float, format_g, parse_duration_ms, parse_number, quote, unquote,
    };

    #[test]
    fn numbers_read_as_go_reads_them() {
        for (text, value) in [
            ("1", 1.0),
            ("1_000", 1000.0),
            ("0x1F", 31.0),
            ("0X_1f", 31.0),
            ("010", 8.0),
            ("08", 8.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e-3", 0.001),
            ("Inf", f64::INFINITY),
        ] {
            assert_eq!(parse_number(text), Ok(value), "{text}");
        }
        assert!(parse_number("1e999").unwrap_err().ends_with("value out of range"));
        assert!(parse_number("1__0").is_err());
    }

    #[test]
    fn durations_read_and_write() {
        assert_eq!(parse_duration_ms("1h30m"), Ok(5_400_000));
        assert_eq!(parse_duration_ms("1y2w3d4h5m6s7ms"), Ok(33_019_506_007));
        assert!(parse_duration_ms("5m1h").is_err() && parse_duration_ms("1hs").is_err());
        assert_eq!(format_duration_ms(5_400_000), "1h30m");
        assert_eq!(format_duration_ms(8 * 86_400_000), "8d");
        assert_eq!(format_duration_ms(14 * 86_400_000), "2w");
    }

    #[test]
    fn strings_read_go_escapes() {
        assert_eq!(unquote(r#""a\x41\u00e4\101\n""#).unwrap(), "aA\u{e4}A\n");
        assert_eq!(unquote(r"`a\n`").unwrap(), "a\\n");
        assert_eq!(quote("a\"\u{1}\n\\"), r#""a\"\x01\n\\""#);
    }

    #[test]
    fn floats_write_as_go_writes_them() {
        assert_eq!(format_float(1e21), "1000000000000000000000");
        assert_eq!(format_g(1.5, None), "1.5");
        assert_eq!(format_g(1e-7, None), "1e-07");
        assert_eq!(format_g(0.000_123_456, Some(2)), "0.00012");
        assert_eq!(format_g(123.0, Some(2)), "1.2e+02");
        assert_eq!(format_g(0.5, Some(2)), "0.5");
    }
}
