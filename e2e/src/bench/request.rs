//! Remote-write 1.0 requests that are encoded and compressed once: between scrapes only the samples change, and they
//! are patched in place. The senders share the machine with the engine, so they must cost next to nothing.
//!
//! ```text
//! request := length:uvarint element*                snappy's block format
//! series  := labels as literals and copies, then one literal that ends with the sample:
//!            09 value:f64le 10 timestamp:varint     16 bytes: a time in milliseconds takes 6 from 2004 to 2109
//! ```

/// Bytes of the sample message.
const SAMPLE_BYTES: usize = 16;
/// Highest distance that snappy's two-byte copies reach.
const MAX_DISTANCE: usize = 65_535;
/// Longest copy of one element.
const MAX_COPY: usize = 64;
const HASH_BITS: u32 = 14;

/// A compressed `WriteRequest` with one sample in each series.
pub struct Request {
    packed: Vec<u8>,
    /// Where each series' sample begins in `packed`.
    samples: Vec<u32>,
}

impl Request {
    /// Encodes series, given as sorted label pairs.
    pub fn new<'a>(series: impl Iterator<Item = Vec<(&'a str, String)>>) -> Request {
        let mut body = Vec::new();
        let mut ends = Vec::new();
        let (mut message, mut pair) = (Vec::new(), Vec::new());
        for labels in series {
            message.clear();
            for (name, value) in labels {
                pair.clear();
                put_bytes(&mut pair, 1, name.as_bytes());
                put_bytes(&mut pair, 2, value.as_bytes());
                put_bytes(&mut message, 1, &pair);
            }
            put_bytes(&mut message, 2, &sample(0, 0.0));
            put_bytes(&mut body, 1, &message);
            ends.push(body.len());
        }
        pack(&body, &ends)
    }

    /// Number of series.
    pub fn series(&self) -> usize {
        self.samples.len()
    }

    /// Changes the sample of the `index`-th series.
    pub fn set(&mut self, index: usize, timestamp_ms: i64, value: f64) {
        let at = self.samples[index] as usize;
        self.packed[at..at + SAMPLE_BYTES].copy_from_slice(&sample(timestamp_ms, value));
    }

    /// The body to send.
    pub fn packed(&self) -> &[u8] {
        &self.packed
    }
}

fn sample(timestamp_ms: i64, value: f64) -> [u8; SAMPLE_BYTES] {
    let mut out = [0; SAMPLE_BYTES];
    out[0] = 1 << 3 | 1;
    out[1..9].copy_from_slice(&value.to_le_bytes());
    out[9] = 2 << 3;
    let mut rest = timestamp_ms as u64;
    for byte in &mut out[10..] {
        *byte = rest as u8 | 0x80;
        rest >>= 7;
    }
    out[15] &= 0x7f;
    out
}

fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_length(out: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

/// Compresses a body whose series end at `ends`, each with its sample. Samples are never copied, nor copied from.
fn pack(body: &[u8], ends: &[usize]) -> Request {
    let mut request = Request { packed: Vec::with_capacity(body.len() / 3), samples: Vec::new() };
    put_length(&mut request.packed, body.len());
    // For each hash the last place that had it, and the end of the labels there.
    let mut places = vec![(0u32, 0u32); 1 << HASH_BITS];
    let mut start = 0;
    for &end in ends {
        let labels_end = end - SAMPLE_BYTES;
        let literal = pack_labels(body, start..labels_end, &mut places, &mut request.packed);
        put_literal(&mut request.packed, &body[literal..end]);
        request.samples.push((request.packed.len() - SAMPLE_BYTES) as u32);
        start = end;
    }
    request
}

/// Returns where the literal begins that is still to be written.
fn pack_labels(
    body: &[u8],
    range: std::ops::Range<usize>,
    places: &mut [(u32, u32)],
    out: &mut Vec<u8>,
) -> usize {
    let (mut at, mut literal) = (range.start, range.start);
    while at + 4 <= range.end {
        let key = u32::from_le_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        let slot = &mut places[(key.wrapping_mul(0x1e35_a7bd) >> (32 - HASH_BITS)) as usize];
        let (from, from_end) = (slot.0 as usize, slot.1 as usize);
        *slot = (at as u32, range.end as u32);
        let longest = (range.end - at).min(from_end.saturating_sub(from));
        let same = (0..longest).take_while(|&n| body[from + n] == body[at + n]).count();
        if same < 4 || at - from > MAX_DISTANCE {
            at += 1;
            continue;
        }
        put_literal(out, &body[literal..at]);
        let distance = at - from;
        let mut rest = same;
        while rest > 0 {
            let length = rest.min(MAX_COPY);
            out.push(((length - 1) << 2 | 2) as u8);
            out.extend_from_slice(&(distance as u16).to_le_bytes());
            rest -= length;
        }
        at += same;
        literal = at;
    }
    literal
}

fn put_literal(out: &mut Vec<u8>, bytes: &[u8]) {
    let Some(last) = bytes.len().checked_sub(1) else { return };
    match last {
        0..60 => out.push((last << 2) as u8),
        60..256 => out.extend_from_slice(&[60 << 2, last as u8]),
        _ => {
            out.push(61 << 2);
            out.extend_from_slice(&(last as u16).to_le_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::population::{Population, SERIES_PER_TARGET, Shape};

    #[test]
    fn a_patched_request_decompresses_to_what_encoding_anew_would_give() {
        let population = Population::new(3, 2000, Shape::USUAL);
        let series = || {
            let all = (0..population.series()).map(|n| (n / SERIES_PER_TARGET, n % SERIES_PER_TARGET));
            all.map(|(target, series)| population.labels(&population.life_at(target, 0), series))
        };
        let mut request = Request::new(series());
        assert_eq!(request.series(), 2000);
        let value = |index: usize| index as f64 * 0.3;
        let time = |index: usize| 1_790_000_000_000 + index as i64;
        for index in 0..request.series() {
            request.set(index, time(index), value(index));
        }
        let mut expected = Vec::new();
        for (index, labels) in series().enumerate() {
            let mut message = Vec::new();
            for (name, value) in labels {
                let mut pair = Vec::new();
                put_bytes(&mut pair, 1, name.as_bytes());
                put_bytes(&mut pair, 2, value.as_bytes());
                put_bytes(&mut message, 1, &pair);
            }
            let mut point = vec![9];
            point.extend_from_slice(&value(index).to_le_bytes());
            point.push(16);
            put_length(&mut point, time(index) as usize);
            put_bytes(&mut message, 2, &point);
            put_bytes(&mut expected, 1, &message);
        }
        let body = snap::raw::Decoder::new().decompress_vec(request.packed()).unwrap();
        assert_eq!(body, expected);
        // As small as the usual encoder makes it, or nearly: the engines must have the usual work of decompressing.
        let usual = snap::raw::Encoder::new().compress_vec(&expected).unwrap();
        assert!(request.packed().len() < usual.len() * 5 / 4, "{} {}", request.packed().len(), usual.len());
    }
}
