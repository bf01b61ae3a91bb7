//! Cold pages give back every value bit for bit, in about the bytes that the values are worth, and take damage without a
//! panic.
#![allow(clippy::unwrap_used, clippy::panic)]

use metricsstore_codec::cold::{Column, MAX_ROWS, PageReader, TooLong, Values, encode_page};
use metricsstore_codec::column::STALE_NAN_BITS;
use proptest::prelude::*;

/// One row of a column: the bits of a value, or absent.
type Row = Option<u64>;

fn values(rows: &[Row]) -> Values {
    let mut absent = vec![0; rows.len().div_ceil(8)];
    for (row, _) in rows.iter().enumerate().filter(|(_, value)| value.is_none()) {
        absent[row / 8] |= 1 << (row % 8);
    }
    if rows.iter().all(Option::is_some) {
        absent.clear();
    }
    Values { values: rows.iter().map(|value| value.unwrap_or(0)).collect(), absent }
}

fn encode(columns: &[Values]) -> Vec<u8> {
    let columns: Vec<Column<'_>> =
        columns.iter().map(|column| Column { values: &column.values, absent: &column.absent }).collect();
    encode_page(&columns).unwrap()
}

fn assert_comes_back(columns: &[Vec<Row>]) -> Vec<u8> {
    let columns: Vec<Values> = columns.iter().map(|rows| values(rows)).collect();
    let page = encode(&columns);
    let mut reader = PageReader::new(&page).unwrap();
    assert_eq!(reader.columns(), columns.len());
    let mut read = Values::default();
    for (index, column) in columns.iter().enumerate() {
        reader.read(index, &mut read).unwrap();
        assert_eq!(&read, column, "column {index} in order");
    }
    for (index, column) in columns.iter().enumerate().rev() {
        PageReader::new(&page).unwrap().read(index, &mut read).unwrap();
        assert_eq!(&read, column, "column {index} alone");
    }
    page
}

fn floats(values: impl IntoIterator<Item = f64>) -> Vec<Row> {
    values.into_iter().map(|value| Some(value.to_bits())).collect()
}

/// A generator that is the same everywhere.
fn random(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// One column of each sort that is met.
fn examples(rows: usize) -> Vec<Vec<Row>> {
    let mut next = random(0x9e37_79b9_7f4a_7c15);
    let (mut counter, mut sum) = (1e6, 0.0);
    let counts: Vec<f64> = (0..rows)
        .map(|_| {
            counter += if next().is_multiple_of(4) { 0.0 } else { 57.0 };
            counter
        })
        .collect();
    let sums: Vec<f64> = (0..rows)
        .map(|_| {
            sum += (next() % 1000) as f64 / 1000.0;
            sum
        })
        .collect();
    let mut gaps = floats(counts.iter().copied());
    gaps.iter_mut().enumerate().filter(|(row, _)| row % 50 < 3).for_each(|(_, value)| *value = None);
    let mut ended = floats(counts.iter().copied());
    ended.iter_mut().skip(rows / 2).step_by(40).for_each(|value| *value = Some(STALE_NAN_BITS));
    vec![
        floats(std::iter::repeat_n(3.0, rows)),
        floats(counts.iter().copied()),
        floats(counts.iter().map(|count| count + 2.0)),
        floats(sums),
        floats((0..rows).map(|_| (4711 + next() % 150) as f64)),
        floats((0..rows).map(|_| (next() >> 11) as f64 / (1_u64 << 53) as f64)),
        floats((0..rows).map(|row| 0.1 * row as f64)),
        floats((0..rows).map(|row| if row % 2 == 0 { -0.0 } else { f64::INFINITY })),
        (0..rows).map(|_| Some(next())).collect(),
        gaps,
        ended,
        vec![None; rows],
    ]
}

fn arb_rows() -> impl Strategy<Value = Vec<Row>> {
    let value = prop_oneof![
        4 => (0..4_i32).prop_map(|value| Some(f64::from(value).to_bits())),
        2 => (-100_000..100_000_i32).prop_map(|value| Some((f64::from(value) / 1000.0).to_bits())),
        1 => any::<u64>().prop_map(Some),
        1 => prop_oneof![Just(-0.0), Just(f64::NAN), Just(f64::NEG_INFINITY), Just(1e300), Just(f64::MIN_POSITIVE)]
            .prop_map(|value| Some(value.to_bits())),
        1 => Just(Some(STALE_NAN_BITS)),
        1 => Just(None),
    ];
    let walk = (any::<i32>(), prop::collection::vec(-3..4_i32, 0..300), 0..10_i32).prop_map(
        |(start, steps, digits)| {
            let walk = steps.into_iter().scan(i64::from(start), |sum, step| {
                *sum += i64::from(step);
                Some(*sum)
            });
            floats(walk.map(|sum| sum as f64 / 10_f64.powi(digits)))
        },
    );
    prop_oneof![prop::collection::vec(value, 0..100), walk]
}

#[test]
fn examples_come_back_at_every_length() {
    for rows in [0, 1, 2, 3, 7, 8, 9, 100, 1000] {
        assert_comes_back(&examples(rows));
    }
}

#[test]
fn examples_take_about_the_bits_that_they_say() {
    const ROWS: usize = 4000;
    // Bits of each value by how the examples are made, with those of rounding, and nine bytes for each staleness marker.
    let worth = [0.0, 0.811, 0.0, 10.8, 7.23, 53.0, 0.8, 1.0, 64.0, 0.811, 1.711, 0.0];
    let examples = examples(ROWS);
    for (index, worth) in worth.into_iter().enumerate() {
        // The copy of a counter costs nothing beside it, and more alone.
        let from = if index == 2 { 1 } else { index };
        let page = encode(&examples[from..=index].iter().map(|rows| values(rows)).collect::<Vec<_>>());
        let before = if index == 2 { encode(&[values(&examples[1])]).len() } else { 0 };
        let bits = (page.len() - before) as f64 * 8.0 / ROWS as f64;
        assert!(bits < worth * 1.02 + 0.5, "example {index}: {bits} bits a value, {worth} are enough");
    }
}

#[test]
fn neighbours_that_differ_by_little_cost_little() {
    let counter = examples(1000).swap_remove(1);
    let alone = assert_comes_back(std::slice::from_ref(&counter)).len();
    let many = assert_comes_back(&vec![counter; 40]).len();
    // One in nine stands for itself.
    assert!(many < alone * 5 + 40 * 12, "{many} bytes for 40 equal columns, {alone} for one");
}

#[test]
fn a_column_that_is_too_long_is_refused() {
    let long = vec![0; MAX_ROWS + 1];
    let refused = encode_page(&[Column { values: &long, absent: &[] }]);
    assert_eq!(refused, Err(TooLong { rows: MAX_ROWS + 1 }));
    assert!(encode_page(&[Column { values: &long[1..], absent: &[] }]).unwrap().len() < 20);
}

#[test]
fn a_page_is_as_it_always_was() {
    let page = encode(&examples(20)[..8].iter().map(|rows| values(rows)).collect::<Vec<_>>());
    assert_eq!(page, include_bytes!("data/cold_page_v1.bin"));
}

#[test]
fn flipped_and_missing_bytes_are_no_panic_and_take_no_room() {
    let page = encode(&examples(60).iter().map(|rows| values(rows)).collect::<Vec<_>>());
    for at in 0..page.len() {
        read_all_of(&page[..at]);
        for bit in 0..8 {
            let mut flipped = page.clone();
            flipped[at] ^= 1 << bit;
            read_all_of(&flipped);
        }
    }
}

/// Reads all that can be read.
fn read_all_of(page: &[u8]) {
    let Ok(mut reader) = PageReader::new(page) else { return };
    let mut read = Values::default();
    for index in 0..reader.columns() {
        if reader.read(index, &mut read).is_ok() {
            assert!(read.values.len() <= MAX_ROWS);
        }
    }
    assert!(reader.read(reader.columns(), &mut read).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 5 } else { 300 }))]

    #[test]
    fn all_columns_come_back(columns in prop::collection::vec(arb_rows(), 0..6)) {
        assert_comes_back(&columns);
    }

    #[test]
    fn columns_beside_columns_come_back(rows in arb_rows(), moves in prop::collection::vec(0..3_u8, 300), copies in 1..20) {
        let moved = |copy: i32| {
            let row = |(value, moves): (&Row, &u8)| value.map(|bits| {
                (f64::from_bits(bits) + f64::from(copy) + f64::from(*moves)).to_bits()
            });
            rows.iter().zip(&moves).map(row).collect()
        };
        assert_comes_back(&(0..copies).map(moved).collect::<Vec<_>>());
    }

    #[test]
    fn any_bytes_are_no_panic(bytes: Vec<u8>) {
        read_all_of(&bytes);
        read_all_of(&[&[1], &bytes[..]].concat());
    }
}
