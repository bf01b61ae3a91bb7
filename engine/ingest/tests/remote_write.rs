//! Remote write 1.0 against hand-encoded requests and arbitrary bytes.
#![allow(clippy::unwrap_used)]

use metricsstore_ingest::remote_write::{
    DecodeError, Decoder, MAX_DECODED_BYTES, MAX_EXTRAS, MAX_PARTS_PER_REQUEST, MAX_SAMPLES, decoded_len,
};
use metricsstore_model::histogram::{Counts, Histogram, HistogramCounts, HistogramError, ResetHint, Span};
use metricsstore_model::{HistogramSample, LabelBuf, LabelError, Metadata, MetricType, Origin};
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

/// What stands beside float samples: histograms, exemplars (row, labels, time, bits), metadata.
#[derive(Debug, Default, PartialEq)]
struct Extras {
    histograms: Vec<HistogramSample>,
    exemplars: Vec<(u32, String, i64, u64)>,
    metadata: Vec<Metadata>,
}

fn decode_with(decoder: &mut Decoder, plain: &[u8]) -> Result<(Vec<Series>, Extras), DecodeError> {
    decoder.decode(&compress(plain), Origin::RemoteWrite(0), |batch| {
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
        let exemplars = batch.extras.exemplars.iter().map(|exemplar| {
            let mut labels = LabelBuf::new();
            let decoded = batch.decoder.decode_exemplar(exemplar.raw_labels, &mut labels);
            let text = decoded.map_or_else(|error| error.to_string(), |()| labels.to_string());
            (exemplar.row, text, exemplar.timestamp_ms, exemplar.value.to_bits())
        });
        let extras = Extras {
            histograms: batch.extras.histograms.clone(),
            exemplars: exemplars.collect(),
            metadata: batch.extras.metadata.clone(),
        };
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
        delimited(3, b""),
    ]
    .concat();
    let (rows, extras) = decode(&request).unwrap();
    assert_eq!(rows, [(r#"{__name__="a"}"#.to_owned(), vec![(0, 0)])]);
    assert_eq!(extras, Extras { metadata: vec![Metadata::default()], ..Extras::default() });
}

fn field_varint(number: u8, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(u64::from(number) << 3, &mut out);
    varint(value, &mut out);
    out
}

fn field_double(number: u8, value: f64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(u64::from(number) << 3 | 1, &mut out);
    out.extend_from_slice(&value.to_le_bytes());
    out
}

fn field_bytes(number: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(u64::from(number) << 3 | 2, &mut out);
    varint(body.len() as u64, &mut out);
    out.extend_from_slice(body);
    out
}

fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

fn packed(values: &[i64]) -> Vec<u8> {
    let mut out = Vec::new();
    for &value in values {
        varint(zigzag(value), &mut out);
    }
    out
}

fn span(number: u8, offset: i64, length: u64) -> Vec<u8> {
    field_bytes(number, &[field_varint(1, zigzag(offset)), field_varint(2, length)].concat())
}

fn histogram(parts: &[Vec<u8>]) -> Vec<u8> {
    delimited(4, &parts.concat())
}

#[test]
fn integer_histograms_come_with_absolute_counts_packed_or_not() {
    let fields = |deltas: Vec<u8>| {
        histogram(&[
            field_varint(1, 12),
            field_double(3, -0.0),
            field_varint(4, zigzag(-4)),
            field_double(5, 1e-128),
            field_varint(6, 2),
            span(8, -7, 1),
            field_bytes(9, &packed(&[3])),
            span(11, 2, 1),
            span(11, 1, 2),
            deltas,
            field_varint(14, 2),
            field_varint(15, 1_700_000_000_000),
        ])
    };
    let one_by_one: Vec<u8> =
        [2, 1, -1].into_iter().flat_map(|delta| field_varint(12, zigzag(delta))).collect();
    let request = series(&[
        label(b"__name__", b"h"),
        fields(field_bytes(12, &packed(&[2, 1, -1]))),
        fields(one_by_one),
    ]);
    let expected = HistogramSample {
        row: 0,
        timestamp_ms: 1_700_000_000_000,
        start_ms: 0,
        histogram: Ok(Histogram {
            schema: -4,
            reset_hint: ResetHint::NoReset,
            zero_threshold: 1e-128,
            sum: -0.0,
            counts: HistogramCounts::Integer(Counts {
                count: 12,
                zero: 2,
                positive: vec![2, 3, 2],
                negative: vec![3],
            }),
            positive_spans: vec![Span { offset: 2, length: 1 }, Span { offset: 1, length: 2 }],
            negative_spans: vec![Span { offset: -7, length: 1 }],
            custom_bounds: vec![],
        }),
    };
    expected.histogram.as_ref().unwrap().validate().unwrap();
    let (rows, extras) = decode(&request).unwrap();
    assert_eq!(rows, [(r#"{__name__="h"}"#.to_owned(), vec![])]);
    assert_eq!(extras.histograms, [expected.clone(), expected]);
}

#[test]
fn float_histograms_keep_their_bits_and_custom_bounds() {
    let nan = f64::from_bits(0x7ff8_0000_dead_beef);
    let bounds: Vec<u8> = [0.5f64, 2.5].iter().flat_map(|bound| bound.to_le_bytes()).collect();
    let counts: Vec<u8> = [1.5f64].iter().flat_map(|count| count.to_le_bytes()).collect();
    let request = [
        series(&[label(b"__name__", b"f"), sample(1, 1.0)]),
        series(&[
            label(b"__name__", b"h"),
            histogram(&[
                field_double(2, 1.5),
                field_double(3, nan),
                field_varint(4, zigzag(-53)),
                field_double(7, 0.0),
                span(11, 1, 1),
                field_bytes(13, &counts),
                field_varint(14, 3),
                field_varint(15, (-5i64) as u64),
                field_bytes(16, &bounds),
            ]),
        ]),
    ]
    .concat();
    let (_, extras) = decode(&request).unwrap();
    let [sample] = &extras.histograms[..] else { panic!("{extras:?}") };
    let histogram = sample.histogram.as_ref().unwrap();
    histogram.validate().unwrap();
    assert_eq!((sample.row, sample.timestamp_ms, histogram.sum.to_bits()), (1, -5, nan.to_bits()));
    assert_eq!((histogram.reset_hint, &histogram.custom_bounds[..]), (ResetHint::Gauge, &[0.5, 2.5][..]));
    let counts = Counts { count: 1.5, zero: 0.0, positive: vec![1.5], negative: vec![] };
    assert_eq!(histogram.counts, HistogramCounts::Float(counts));
}

#[test]
fn differences_below_nothing_are_refused_by_name() {
    let of = |deltas: &[i64]| {
        let fields = [span(11, 0, deltas.len() as u64), field_bytes(12, &packed(deltas))];
        let request = series(&[label(b"__name__", b"h"), histogram(&fields)]);
        decode(&request).unwrap().1.histograms.remove(0).histogram
    };
    assert_eq!(of(&[2, -3]), Err(HistogramError::NegativeBucket(2)));
    assert_eq!(of(&[i64::MAX, 1]), Err(HistogramError::CountOverflow));
    assert!(of(&[2, -2]).is_ok());
}

#[test]
fn exemplars_and_metadata_are_handed_over_where_they_are_wanted() {
    let exemplar = delimited(
        3,
        &[label(b"trace_id", b"abc"), field_double(2, 0.25), field_varint(3, 77), label(b"a", b"")].concat(),
    );
    let request = [
        series(&[label(b"__name__", b"a"), exemplar]),
        delimited(
            3,
            &[field_varint(1, 3), delimited(2, b"a"), delimited(4, b"What \xff it is"), delimited(5, b"s")]
                .concat(),
        ),
    ]
    .concat();
    let (rows, extras) = decode(&request).unwrap();
    assert_eq!((rows, extras.exemplars), (vec![], vec![]));
    let metadata = Metadata {
        family: "a".into(),
        kind: MetricType::Histogram,
        help: "What \u{fffd} it is".into(),
        unit: "s".into(),
    };
    assert_eq!(extras.metadata, [metadata]);
    let mut decoder = Decoder::new(1);
    decoder.keep_exemplars(true);
    let (rows, extras) = decode_with(&mut decoder, &request).unwrap();
    assert_eq!(rows, [(r#"{__name__="a"}"#.to_owned(), vec![])]);
    assert_eq!(extras.exemplars, [(0, r#"{trace_id="abc"}"#.to_owned(), 77, 0.25f64.to_bits())]);
}

#[test]
fn a_store_with_little_memory_bounds_the_samples_of_a_request() {
    let series = |samples: usize| delimited(1, &delimited(2, &[]).repeat(samples));
    let mut decoder = Decoder::new(1);
    decoder.limit_samples(3);
    let mut count = |plain: &[u8]| {
        let compressed = snap::raw::Encoder::new().compress_vec(plain).unwrap();
        decoder.decode(&compressed, Origin::RemoteWrite(0), |batch| batch.samples.len())
    };
    assert_eq!(count(&series(3)), Ok(3));
    assert_eq!(count(&series(1).repeat(3)), Ok(3));
    assert_eq!(count(&series(1).repeat(4)), Err(DecodeError::TooMany { what: "samples", limit: 3 }));
}

#[test]
fn requests_with_too_many_small_things_are_refused() {
    let too_many = |what, limit| Err(DecodeError::TooMany { what, limit });
    let name = label(b"__name__", b"h");
    let histograms = [name.clone(), histogram(&[]).repeat(MAX_EXTRAS + 1)].concat();
    assert_eq!(decode(&delimited(1, &histograms)), too_many("histograms", MAX_EXTRAS));
    let buckets = field_bytes(12, &vec![0; MAX_PARTS_PER_REQUEST + 1]);
    let request = series(&[name, histogram(&[buckets])]);
    assert_eq!(decode(&request), too_many("histogram buckets", MAX_PARTS_PER_REQUEST));
    let metadata = delimited(3, b"").repeat(MAX_EXTRAS + 1);
    assert_eq!(decode(&metadata), too_many("statements of metadata", MAX_EXTRAS));
}

#[test]
fn scattered_labels_give_the_key_of_the_same_labels_in_one_piece() {
    let together = series(&[label(b"__name__", b"a"), label(b"x", b"1"), label(b"y", b"2"), sample(1, 1.0)]);
    let scattered = series(&[label(b"__name__", b"a"), sample(1, 1.0), label(b"x", b"1"), label(b"y", b"2")]);
    let request = [together, scattered].concat();
    Decoder::new(3)
        .decode(&compress(&request), Origin::RemoteWrite(0), |batch| {
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
        let _ = Decoder::new(1).decode(&bytes, Origin::RemoteWrite(0), |_| ());
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
        let rows = decoder.decode(&body, Origin::RemoteWrite(0), |batch| batch.rows.len()).unwrap();
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
    assert_eq!(
        decode_with(&mut decoder, &more),
        Err(DecodeError::TooMany { what: "samples", limit: MAX_SAMPLES })
    );
}
