//! Numbers and strings as Prometheus' JSON shows them, written straight into a buffer.
use std::fmt::Write as _;
use std::io::Write as _;

/// Appends a sample value without quotes: Go's shortest form, `f` unless the exponent is below −6 or at least 21.
pub fn push_float(out: &mut Vec<u8>, value: f64) {
    if value.is_nan() {
        out.extend_from_slice(b"NaN");
    } else if value.is_infinite() {
        out.extend_from_slice(if value > 0.0 { b"+Inf" } else { b"-Inf" });
    } else {
        let magnitude = value.abs();
        if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
            push_exponent(out, value);
        } else {
            // Writing to a Vec cannot fail.
            let _ = write!(out, "{value}");
        }
    }
}

/// Go pads the exponent to two digits and always signs it; the digits are the same shortest ones.
fn push_exponent(out: &mut Vec<u8>, value: f64) {
    let start = out.len();
    let _ = write!(out, "{value:e}");
    let Some(e) = out[start..].iter().position(|&byte| byte == b'e').map(|at| start + at) else { return };
    let mut digits = out.split_off(e + 1);
    let negative = digits.first() == Some(&b'-');
    if negative {
        digits.remove(0);
    }
    out.push(if negative { b'-' } else { b'+' });
    if digits.len() < 2 {
        out.push(b'0');
    }
    out.extend_from_slice(&digits);
}

/// Bytes with binary units as Prometheus writes them: `3KiB356B`.
pub fn binary_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["EiB", "PiB", "TiB", "GiB", "MiB", "KiB", "B"];
    let mut text = String::new();
    for (place, unit) in UNITS.iter().enumerate() {
        let count = bytes >> (10 * (UNITS.len() - 1 - place)) & 1023;
        if count > 0 {
            // Writing to a String cannot fail.
            let _ = write!(text, "{count}{unit}");
        }
    }
    if text.is_empty() { "0B".to_owned() } else { text }
}

/// Appends milliseconds as seconds: no fraction when whole, else exactly three decimals.
pub fn push_timestamp(out: &mut Vec<u8>, ms: i64) {
    if ms < 0 {
        out.push(b'-');
    }
    let magnitude = ms.unsigned_abs();
    let _ = write!(out, "{}", magnitude / 1000);
    let fraction = magnitude % 1000;
    if fraction != 0 {
        let _ = write!(out, ".{fraction:03}");
    }
}

/// Appends a JSON string with its quotes. Escapes what JSON demands, and `<`, `>`, `&` and the two line separators
/// as Prometheus does, so that a result embedded in a page stays inert.
pub fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut plain_from = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let separator = byte == 0xe2 && matches!(bytes.get(at + 1..at + 3), Some([0x80, 0xa8 | 0xa9]));
        if !separator && byte >= 0x20 && !matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'&') {
            continue;
        }
        out.extend_from_slice(&bytes[plain_from..at]);
        plain_from = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0xe2 => {
                let _ = write!(out, "\\u20{:x}", bytes[at + 2] - 0x80);
                plain_from = at + 3;
            }
            _ => {
                let _ = write!(out, "\\u{byte:04x}");
            }
        }
    }
    out.extend_from_slice(&bytes[plain_from..]);
    out.push(b'"');
}

/// Appends an array of JSON strings.
pub fn push_strings<'s>(out: &mut Vec<u8>, items: impl IntoIterator<Item = &'s str>) {
    out.push(b'[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push_string(out, item);
    }
    out.push(b']');
}

/// A float as [`push_float`] writes it.
pub fn float_text(value: f64) -> String {
    let mut out = Vec::with_capacity(24);
    push_float(&mut out, value);
    String::from_utf8(out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{binary_bytes, float_text, push_string, push_timestamp};
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    /// Printed by Go; the file says how.
    const GO: &str = include_str!("../tests/data/go_floats.txt");

    #[test]
    fn floats_look_as_go_prints_them() {
        let lines = GO.lines().filter(|line| !line.starts_with('#'));
        for (bits, text) in lines.map(|line| line.split_once(' ').unwrap()) {
            let value = f64::from_bits(u64::from_str_radix(bits, 16).unwrap());
            assert_eq!(float_text(value), text, "bits {bits}");
        }
    }

    #[test]
    fn bytes_have_binary_units_and_no_fractions() {
        assert_eq!(binary_bytes(0), "0B");
        assert_eq!(binary_bytes(3 * 1024 + 356), "3KiB356B");
        assert_eq!(binary_bytes(512 << 20), "512MiB");
        assert_eq!(binary_bytes(u64::MAX), "15EiB1023PiB1023TiB1023GiB1023MiB1023KiB1023B");
    }

    proptest! {
        #[test]
        fn every_float_reads_back_bit_for_bit_in_the_chosen_format(bits: u64) {
            let value = f64::from_bits(bits);
            let text = float_text(value);
            if value.is_nan() {
                prop_assert_eq!(text, "NaN");
            } else {
                prop_assert_eq!(text.parse::<f64>().unwrap().to_bits(), bits);
                let exponent = value != 0.0 && value.is_finite() && (value.abs() < 1e-6 || value.abs() >= 1e21);
                prop_assert_eq!(text.contains('e'), exponent);
                prop_assert!(!exponent || text.split('e').nth(1).unwrap().len() >= 3);
            }
        }
    }

    #[test]
    fn timestamps_have_no_or_three_decimals() {
        let text = |ms| {
            let mut out = Vec::new();
            push_timestamp(&mut out, ms);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(1_435_781_451_781), "1435781451.781");
        assert_eq!(text(1_435_781_451_000), "1435781451");
        assert_eq!(text(1_500), "1.500");
        assert_eq!(text(-7), "-0.007");
        assert_eq!(text(i64::MIN), "-9223372036854775.808");
    }

    #[test]
    fn strings_are_valid_json_and_inert_in_a_page() {
        let text = "a\"\\\n\u{1}é<b>\u{2028}\u{2029}\u{2030}";
        let mut out = Vec::new();
        push_string(&mut out, text);
        let json = String::from_utf8(out).unwrap();
        assert_eq!(json, "\"a\\\"\\\\\\n\\u0001é\\u003cb\\u003e\\u2028\\u2029\u{2030}\"");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
