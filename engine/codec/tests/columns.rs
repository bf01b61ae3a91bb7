//! Columns give back every cell bit for bit, in the bytes that they promise, and take damage without a panic.
#![allow(clippy::unwrap_used, clippy::panic)]

use metricsstore_codec::bits::{BitReader, BitWriter};
use metricsstore_codec::column::{Cell, ColumnReader, ColumnState, STALE_NAN_BITS};
use metricsstore_codec::fragments::{Arena, Chain};
use proptest::prelude::*;

const MANY_ROWS: u32 = if cfg!(miri) { 100 } else { 10_000 };

/// One row of a column: the bits of a value, or absent.
type Row = Option<u64>;

fn cell(row: Row) -> Cell {
    row.map_or(Cell::Absent(1), |bits| Cell::Value(f64::from_bits(bits)))
}

fn read_all<'b, C: Iterator<Item = &'b [u8]>>(mut reader: ColumnReader<'b, C>) -> Vec<Row> {
    let mut rows = Vec::new();
    while let Some(cell) = reader.next().unwrap() {
        match cell {
            Cell::Value(value) => rows.push(Some(value.to_bits())),
            Cell::Absent(cells) => rows.extend((0..cells).map(|_| None)),
        }
    }
    rows
}

/// Writes an open column and checks that it reads back.
fn open_column(rows: &[Row]) -> (ColumnState, Chain, Arena) {
    let (mut state, mut chain, mut arena) = (ColumnState::EMPTY, Chain::EMPTY, Arena::new());
    for &row in rows {
        state.append(cell(row), &mut chain.sink(&mut arena));
    }
    let reader = ColumnReader::new(state.constant(), chain.reader(&arena), rows.len() as u32);
    assert_eq!(read_all(reader), rows);
    (state, chain, arena)
}

/// Writes a finished column and gives its bytes.
fn finished_bytes(rows: &[Row]) -> Vec<u8> {
    let (mut state, mut chain, mut arena) = open_column(rows);
    state.finish(&mut chain.sink(&mut arena));
    let mut bytes = Vec::new();
    chain.copy_to(&arena, &mut bytes);
    let reader = ColumnReader::new(None, BitReader::of_slice(&bytes), rows.len() as u32);
    assert_eq!(read_all(reader), rows);
    bytes
}

fn values(values: impl IntoIterator<Item = f64>) -> Vec<Row> {
    values.into_iter().map(|value| Some(value.to_bits())).collect()
}

/// Bytes of payload that an open column of these values has.
fn payload(of: impl IntoIterator<Item = f64>) -> u64 {
    open_column(&values(of)).1.payload_bytes()
}

#[test]
fn a_series_costs_32_bytes_of_state() {
    assert_eq!(size_of::<ColumnState>() + size_of::<Chain>(), 32);
}

#[test]
fn a_constant_costs_no_bytes_however_long() {
    for value in [0.0, -0.0, 1.0, 0.1, 1e300, f64::NAN, f64::INFINITY, f64::from_bits(0x7ff8_0000_dead_beef)]
    {
        let (state, chain, arena) = open_column(&values(std::iter::repeat_n(value, MANY_ROWS as usize)));
        assert_eq!(chain.bits() + arena.used_bytes(), 0);
        assert_eq!(state.constant().unwrap().to_bits(), value.to_bits());
    }
}

#[test]
fn a_steady_counter_costs_the_same_however_long() {
    let counter = |rows: u32| payload((0..rows).map(|row| 1000.0 + 15.0 * f64::from(row)));
    assert_eq!(counter(10), counter(MANY_ROWS));
}

#[test]
fn cells_that_are_absent_at_the_end_cost_the_same_however_many() {
    let column = |absent| {
        let (mut state, mut writer) = (ColumnState::EMPTY, BitWriter::new());
        for cell in [Cell::Value(1.0), Cell::Absent(absent)] {
            state.append(cell, &mut writer);
        }
        writer.bits()
    };
    assert_eq!(column(1), column(u32::MAX));
}

#[test]
fn a_run_longer_than_the_counter_is_written_in_parts() {
    let (mut state, mut writer) = (ColumnState::EMPTY, BitWriter::new());
    state.append(Cell::Absent(u32::MAX), &mut writer);
    state.append(Cell::Absent(5), &mut writer);
    state.append(Cell::Value(7.5), &mut writer);
    let bytes = writer.into_bytes();
    let mut reader = ColumnReader::new(None, BitReader::of_slice(&bytes), u32::MAX);
    assert!(matches!(reader.next(), Ok(Some(Cell::Absent(u32::MAX)))));
}

#[test]
fn kinds_change_in_mid_column_and_back_without_loss() {
    let mut rows = values([1.0, 2.0, 2.5, 2.25, 1e300, f64::NAN, 0.1 + 0.2, -0.0, 3.0]);
    rows.extend(values((0..100).map(f64::from)));
    rows.extend([None, Some(STALE_NAN_BITS), None, None, Some(STALE_NAN_BITS)]);
    rows.extend(values((0..100).map(|row| f64::from(row * 7 % 13) / 1000.0)));
    finished_bytes(&rows);
}

#[test]
fn a_column_that_left_the_decimals_comes_back_to_them() {
    let short = |rows: i32| (0..rows).map(|row| f64::from(row * 37 % 101) / 10.0);
    let plain = payload(short(2_000));
    let disturbed = payload(std::iter::once(f64::NAN).chain(short(2_000)));
    assert!(disturbed < plain + 32 * 9, "{disturbed} against {plain}");
}

#[test]
fn the_last_cell_is_known() {
    let (mut state, mut writer) = (ColumnState::EMPTY, BitWriter::new());
    assert!(state.last().is_none());
    state.append(Cell::Value(2.5), &mut writer);
    state.append(Cell::Absent(3), &mut writer);
    assert_eq!(state.last(), Some(2.5));
    state.append(Cell::Value(f64::from_bits(STALE_NAN_BITS)), &mut writer);
    assert_eq!(state.last().map(f64::to_bits), Some(STALE_NAN_BITS));
    state.append(Cell::Value(2.5), &mut writer);
    assert_eq!(state.last(), Some(2.5));
}

#[test]
fn numbers_before_the_first_value_are_damage() {
    for bytes in [
        vec![0b0100_0000],
        vec![0b1000_0000],
        vec![0b1111_1011, 0b0000_0000],
        vec![0b1111_1000, 0b0000_0001, 0b0000_1011],
    ] {
        let mut reader = ColumnReader::new(None, BitReader::of_slice(&bytes), 3);
        assert!(reader.next().is_err(), "{bytes:?}");
    }
}

/// Values as they are met: the same again, counters, short decimals, and anything.
fn some_rows() -> impl Strategy<Value = Vec<Row>> {
    let piece = prop_oneof![
        (any::<u64>(), 1..40_usize).prop_map(|(bits, rows)| vec![Some(bits); rows]),
        (-1000..1000_i32, -50..50_i32, 0..=9_i32, 1..40_i32).prop_map(|(base, step, scale, rows)| {
            values((0..rows).map(|row| f64::from(base + step * row) / 10_f64.powi(scale)))
        }),
        (any::<f64>(), any::<f64>(), 1..20_i32)
            .prop_map(|(base, rate, rows)| values((0..rows).map(|row| base + rate * f64::from(row)))),
        prop::collection::vec(-10_000..10_000_i32, 1..30)
            .prop_map(|all| values(all.into_iter().map(|value| f64::from(value) / 100.0))),
        prop::collection::vec(any::<f32>(), 1..20).prop_map(|all| values(all.into_iter().map(f64::from))),
        prop::collection::vec(any::<u64>(), 1..20).prop_map(|all| all.into_iter().map(Some).collect()),
        (1..30_usize).prop_map(|rows| vec![None; rows]),
        Just(vec![Some(STALE_NAN_BITS)]),
        prop::sample::select(vec![
            -0.0,
            0.0,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MAX,
            f64::MIN_POSITIVE
        ])
        .prop_map(|value| values([value])),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 512 }))]

    #[test]
    fn every_cell_comes_back_bit_for_bit(rows in some_rows()) {
        finished_bytes(&rows);
    }

    #[test]
    fn an_open_column_reads_back_after_every_append(rows in some_rows()) {
        let (mut state, mut chain, mut arena) = (ColumnState::EMPTY, Chain::EMPTY, Arena::new());
        for (position, &row) in rows.iter().enumerate().take(60) {
            state.append(cell(row), &mut chain.sink(&mut arena));
            let reader = ColumnReader::new(state.constant(), chain.reader(&arena), position as u32 + 1);
            prop_assert_eq!(read_all(reader), &rows[..=position]);
        }
    }

    #[test]
    fn skipped_rows_leave_the_rest_as_it_is(rows in some_rows(), skips in prop::collection::vec(0..30_u32, 0..20)) {
        let (state, chain, arena) = open_column(&rows);
        let mut reader = ColumnReader::new(state.constant(), chain.reader(&arena), rows.len() as u32);
        let mut at = 0;
        for skip in skips {
            reader.skip(skip).unwrap();
            at = rows.len().min(at + skip as usize);
            prop_assert_eq!(read_all(reader.clone()), &rows[at..]);
        }
    }

    #[test]
    fn zero_padding_changes_nothing(rows in some_rows(), padding in 0..40_usize) {
        let mut bytes = finished_bytes(&rows);
        bytes.resize(bytes.len() + padding, 0);
        if !rows.is_empty() {
            let reader = ColumnReader::new(None, BitReader::of_slice(&bytes), rows.len() as u32);
            prop_assert_eq!(read_all(reader), rows);
        }
    }

    #[test]
    fn damaged_payload_gives_cells_or_an_error_and_never_more_rows(
        rows in some_rows(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        asked in 0..5_000_u32,
    ) {
        let mut bytes = finished_bytes(&rows);
        for (at, mask) in flips {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] ^= mask;
            }
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        read_bounded(&bytes, asked)?;
    }

    #[test]
    fn random_payload_gives_cells_or_an_error_and_never_more_rows(bytes: Vec<u8>, asked in 0..5_000_u32) {
        read_bounded(&bytes, asked)?;
    }
}

fn read_bounded(bytes: &[u8], asked: u32) -> Result<(), TestCaseError> {
    let mut reader = ColumnReader::new(None, BitReader::of_slice(bytes), asked);
    let mut skipping = reader.clone();
    let mut rows = 0;
    let failed = loop {
        match reader.next() {
            Ok(Some(Cell::Value(_))) => rows += 1,
            Ok(Some(Cell::Absent(cells))) => rows += cells,
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    prop_assert!(rows <= asked && (failed || rows == asked));
    prop_assert_eq!(skipping.skip(asked).is_err(), failed);
    Ok(())
}
