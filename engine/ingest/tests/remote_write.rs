//! Remote write 1.0 against hand-encoded requests and arbitrary bytes.
#![allow(clippy::unwrap_used)]

use metricsstore_ingest::remote_write::{
    DecodeError, Decoder, Extras, MAX_DECODED_BYTES, MAX_SAMPLES, decoded_len,
};
use metricsstore_model::{LabelBuf, LabelError, Origin};
use proptest::prelude::*;

type Series = (String, Vec<(i64, u64)>);

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn delimited(number: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    varint(body.len() as u64, &mut out);
    out.extend_from_slice(body);
    out
}

fn label(name: &[u8], value: &[u8]) -> Vec<u8> {
    delimited(1, &[delimited(1, name), delimited(2, value)].concat())
}

fn sample(timestamp_ms: i64, value: f64) -> Vec<u8> {
    let mut body = vec![1 << 3 | 1];
    body.extend_from_slice(&value.to_le_bytes());
    body.push(2 << 3);
    varint(timestamp_ms as u64, &mut body);
    delimited(2, &body)
}

fn series(parts: &[Vec<u8>]) -> Vec<u8> {
    delimited(1, &parts.concat())
}

fn compress(plain: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(plain).unwrap()
}

fn decode_with(decoder: &mut Decoder, plain: &[u8]) -> Result<(Vec<Series>, Extras), DecodeError> {
    decoder.decode(&compress(plain), Origin::RemoteWrite(0), |batch, extras| {
        let rows = batch.rows.iter().map(|row| {
            let mut labels = LabelBuf::new();
            let text = match batch.decoder.decode(row.raw_labels, &mut labels) {
                Ok(kept) => {
                    assert!(kept);
                    labels.to_string()
                }
                Err(error) => error.to_string(),
            };
            let samples = &batch.samples[row.samples.start as usize..row.samples.end as usize];
            (text, samples.iter().map(|s| (s.timestamp_ms, s.value.to_bits())).collect())
        });
        (rows.collect(), extras)
    })
}

fn decode(plain: &[u8]) -> Result<(Vec<Series>, Extras), DecodeError> {
    decode_with(&mut Decoder::new(1), plain)
}

#[test]
fn samples_come_with_sorted_labels_and_exact_bits() {
    let stale = f64::from_bits(0x7ff0_0000_0000_0002);
    let request = [
        series(&[label(b"job", b"a"), label(b"__name__", b"up"), sample(-5, -0.0), sample(1000, stale)]),
        series(&[label(b"__name__", b"down"), label(b"empty", b""), sample(2000, 1.5)]),
    ]
    .concat();
    let (rows, extras) = decode(&request).unwrap();
    assert_eq!(extras, Extras::default());
    assert_eq!(
        rows,
        [
            (
                r#"{__name__="up", job="a"}"#.to_owned(),
                vec![(-5, (-0.0f64).to_bits()), (1000, stale.to_bits())]
            ),
            (r#"{__name__="down"}"#.to_owned(), vec![(2000, 1.5f64.to_bits())]),
        ]
    );
}

#[test]
fn absent_fields_are_zero_and_unknown_ones_are_skipped() {
    let unknown =
        [delimited(9, b"what"), vec![10 << 3, 0x96, 1], [vec![11 << 3 | 5], vec![1, 2, 3, 4]].concat()]
            .concat();
    let group = [vec![12 << 3 | 3], vec![1 << 3, 7], vec![12 << 3 | 4]].concat();
    let request = [
        unknown.clone(),
        series(&[label(b"__name__", b"a"), unknown, group, delimited(2, b"")]),
        delimited(3, b"metadata"),
    ]
    .concat();
    let (rows, extras) = decode(&request).unwrap();
    assert_eq!(rows, [(r#"{__name__="a"}"#.to_owned(), vec![(0, 0)])]);
    assert_eq!(extras, Extras { metadata_ignored: 1, ..Extras::default() });
}

#[test]
fn histograms_are_counted_and_make_no_series_and_exemplars_are_ignored() {
    let request =
        series(&[label(b"__name__", b"h"), delimited(3, b""), delimited(4, b""), delimited(4, b"")]);
    let (rows, extras) = decode(&request).unwrap();
    assert!(rows.is_empty());
    assert_eq!(extras, Extras { histograms_refused: 2, exemplars_ignored: 1, metadata_ignored: 0 });
}

#[test]
fn scattered_labels_give_the_key_of_the_same_labels_in_one_piece() {
    let together = series(&[label(b"__name__", b"a"), label(b"x", b"1"), label(b"y", b"2"), sample(1, 1.0)]);
    let scattered = series(&[label(b"__name__", b"a"), sample(1, 1.0), label(b"x", b"1"), label(b"y", b"2")]);
    let request = [together, scattered].concat();
    Decoder::new(3)
        .decode(&compress(&request), Origin::RemoteWrite(0), |batch, _| {
            assert_eq!(batch.rows[0].key, batch.rows[1].key);
            assert_eq!(batch.rows[0].raw_labels, batch.rows[1].raw_labels);
            assert_eq!(batch.samples.len(), 2);
        })
        .unwrap();
}

#[test]
fn labels_that_form_no_series_say_why() {
    let cases: [(&[Vec<u8>], &str); 5] = [
        (&[label(b"x", b"1")], "missing metric name (__name__ label)"),
        (&[], "series has no labels"),
        (
            &[label(b"__name__", b"a"), label(b"x", b"1"), label(b"x", b"1")],
            r#"label "x" stands twice in one series"#,
        ),
        (&[label(b"__name__", b"a"), label(b"", b"1")], "label name is empty"),
        (&[label(b"__name__", b"a"), label(b"x", b"\xff")], r#"label "x" is not valid UTF-8"#),
    ];
    for (labels, expected) in cases {
        let (rows, _) = decode(&series(&[labels.concat(), sample(1, 1.0)])).unwrap();
        assert_eq!(rows[0].0, expected);
    }
    assert_eq!(LabelError::NoLabels.to_string(), "series has no labels");
}

#[test]
fn damage_is_named_with_its_place() {
    let truncated = &series(&[label(b"__name__", b"a"), sample(1, 1.0)])[..20];
    assert_eq!(
        decode(truncated),
        Err(DecodeError::Protobuf { offset: 2, what: "as many bytes as the length says" })
    );
    assert_eq!(
        decode(&[1 << 3, 1]),
        Err(DecodeError::Protobuf { offset: 0, what: "a length-delimited field" })
    );
    assert_eq!(
        decode(&[0xff; 11]),
        Err(DecodeError::Protobuf { offset: 0, what: "a varint of at most 64 bits" })
    );
    assert_eq!(decode(&[0, 1]), Err(DecodeError::Protobuf { offset: 0, what: "a field number" }));
}

#[test]
fn a_small_body_cannot_make_us_reserve_much() {
    let mut declares_much = Vec::new();
    varint(MAX_DECODED_BYTES as u64, &mut declares_much);
    assert!(matches!(decoded_len(&declares_much), Err(DecodeError::Snappy(_))));
    let mut declares_more = Vec::new();
    varint(MAX_DECODED_BYTES as u64 + 1, &mut declares_more);
    assert!(matches!(decoded_len(&declares_more), Err(DecodeError::TooLarge { .. })));
    let zeros = compress(&vec![0; 1 << 20]);
    assert_eq!(decoded_len(&zeros), Ok(1 << 20));
}

#[test]
fn a_decoder_is_usable_after_an_error() {
    let mut decoder = Decoder::new(1);
    let good = series(&[label(b"__name__", b"a"), sample(1, 1.0)]);
    let expected = decode(&good).unwrap();
    assert!(decode_with(&mut decoder, &[good.clone(), vec![0xff]].concat()).is_err());
    assert_eq!(decode_with(&mut decoder, &good).unwrap(), expected);
    assert_eq!(decode_with(&mut decoder, &good).unwrap(), expected);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes);
        let _ = Decoder::new(1).decode(&bytes, Origin::RemoteWrite(0), |_, _| ());
    }

    #[test]
    fn a_damaged_request_never_panics(at in 0usize..60, byte in any::<u8>(), cut in 0usize..60) {
        let mut request = [
            series(&[label(b"__name__", b"up"), label(b"job", b"a"), sample(1, 1.0)]),
            series(&[label(b"__name__", b"up"), sample(1, 1.0), label(b"x", b"y")]),
        ].concat();
        let at = at % request.len();
        request[at] = byte;
        let _ = decode(&request);
        request.truncate(cut);
        let _ = decode(&request);
    }
}

/// Prints the time per row; run with `--ignored --nocapture` in a release build.
#[test]
#[ignore = "a measurement"]
fn time_per_row() {
    let mut request = Vec::new();
    for index in 0..5000 {
        let mut parts = vec![label(b"__name__", b"container_network_receive_bytes_total")];
        for number in 0..10 {
            parts.push(label(format!("label_{number}").as_bytes(), format!("value-{index:09}").as_bytes()));
        }
        parts.push(sample(1_700_000_000_000 + index, index as f64));
        request.extend(series(&parts));
    }
    let body = compress(&request);
    let mut decoder = Decoder::new(1);
    let mut best = f64::MAX;
    for _ in 0..50 {
        let start = std::time::Instant::now();
        let rows = decoder.decode(&body, Origin::RemoteWrite(0), |batch, _| batch.rows.len()).unwrap();
        best = best.min(start.elapsed().as_nanos() as f64 / rows as f64);
    }
    println!("{best:.0} ns per row of {} bytes", request.len() / 5000);
}

#[test]
fn one_series_holds_no_more_samples_than_a_request_may() {
    let mut decoder = Decoder::new(7);
    // An empty sample takes two bytes.
    let empties = |count: usize| vec![[0x12, 0x00]; count].concat();
    let most = series(&[label(b"__name__", b"a"), empties(MAX_SAMPLES)]);
    assert_eq!(decode_with(&mut decoder, &most).unwrap().0[0].1.len(), MAX_SAMPLES);
    let more = series(&[label(b"__name__", b"a"), empties(MAX_SAMPLES + 1)]);
    assert_eq!(decode_with(&mut decoder, &more), Err(DecodeError::TooManySamples));
}
