//! Samples that come late: what is accepted, where it stays, and that a timestamp has one value for ever.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Contents, HOUR_MS, Machine, NOW_MS, append, read, read_all, samples_of};
use metricsstore_model::{Acknowledge, Refusal};
use metricsstore_storage::Store;

const DURABLE: Acknowledge = Acknowledge::Durable;
const MINUTE_MS: i64 = 60_000;
const SEAL_AFTER: Duration = Duration::from_mins(30);

fn machine(window_ms: i64) -> Machine {
    let mut machine = Machine::new(1);
    machine.options.out_of_order_window_ms = window_ms;
    machine
}

fn seal(machine: &Machine, store: &Store) {
    machine.clock.advance(SEAL_AFTER);
    assert!(store.maintain().unwrap().sealed);
}

/// Refusals by row.
fn refusals(store: &Store, rows: &[(u32, i64, f64)]) -> Vec<(u32, Refusal)> {
    let verdicts = append(store, rows, DURABLE).unwrap();
    assert_eq!(verdicts.written as usize + verdicts.refused.len(), rows.len());
    verdicts.refused.into_iter().map(|refused| (refused.row, refused.refusal)).collect()
}

#[test]
fn late_samples_within_the_window_are_accepted_and_read_in_order() {
    let machine = machine(2 * HOUR_MS);
    let store = machine.open();
    let oldest = NOW_MS - 2 * HOUR_MS;
    let rows = [
        (1, NOW_MS, 1.0),
        // Behind what is in order, though the series has nothing yet: by the newest sample before the request.
        (2, NOW_MS - 90 * MINUTE_MS, 2.0),
    ];
    assert_eq!(refusals(&store, &rows), []);
    let rows = [
        (1, NOW_MS - 1, 0.5),
        (1, oldest, 0.1),
        (1, oldest - 1, 0.0),
        (2, oldest + 1, 2.5),
        (3, oldest, -0.0),
        (3, oldest - 1, 0.0),
    ];
    assert_eq!(refusals(&store, &rows), [(2, Refusal::TooOld), (5, Refusal::TooOld)]);
    assert_eq!(samples_of(&store, 1), [(oldest, 0.1), (NOW_MS - 1, 0.5), (NOW_MS, 1.0)]);
    assert_eq!(samples_of(&store, 2), [(oldest + 1, 2.5), (NOW_MS - 90 * MINUTE_MS, 2.0)]);
    assert_eq!(samples_of(&store, 3)[0].1.to_bits(), (-0.0f64).to_bits());
    let part = read(&store, oldest + 1, NOW_MS - 1);
    assert_eq!((part[&1].len(), part[&2].len(), part.contains_key(&3)), (1, 2, false));
    let stats = store.stats();
    assert_eq!((stats.samples_appended, stats.late_samples, stats.refused.too_old), (6, 4, 2));
    assert_eq!((stats.refused.out_of_order, stats.refused.out_of_bounds), (0, 0));
}

#[test]
fn a_window_of_zero_accepts_nothing_out_of_order() {
    let machine = machine(0);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    let rows = [
        (1, NOW_MS - 1, 1.0),
        (1, NOW_MS - HOUR_MS - 1, 1.0),
        (2, NOW_MS - HOUR_MS, 1.0),
        (2, NOW_MS - HOUR_MS - 1, 1.0),
    ];
    let expected = [(0, Refusal::OutOfOrder), (1, Refusal::OutOfBounds), (3, Refusal::OutOfBounds)];
    assert_eq!(refusals(&store, &rows), expected);
    assert_eq!(Refusal::OutOfBounds.to_string(), "out of bounds");
    assert_eq!(Refusal::OutOfOrder.to_string(), "out of order sample");
    assert_eq!(Refusal::TooOld.to_string(), "too old sample");
}

#[test]
fn the_window_changes_while_the_store_runs() {
    let machine = machine(0);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    assert_eq!(refusals(&store, &[(1, NOW_MS - 10, 0.5)]), [(0, Refusal::OutOfOrder)]);
    store.set_out_of_order_window_ms(10);
    let rows = [(1, NOW_MS - 10, 0.5), (1, NOW_MS - 11, 0.4)];
    assert_eq!(refusals(&store, &rows), [(1, Refusal::TooOld)]);
    store.set_out_of_order_window_ms(0);
    assert_eq!(refusals(&store, &[(1, NOW_MS - 9, 0.5)]), [(0, Refusal::OutOfOrder)]);
    assert_eq!(samples_of(&store, 1), [(NOW_MS - 10, 0.5), (NOW_MS, 1.0)]);
}

#[test]
fn nothing_older_than_retention_is_accepted_whatever_the_window() {
    let mut machine = machine(10 * HOUR_MS);
    machine.options.retention_ms = Some(3 * HOUR_MS);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    let rows = [(1, NOW_MS - 3 * HOUR_MS, 0.1), (1, NOW_MS - 3 * HOUR_MS - 1, 0.2)];
    assert_eq!(refusals(&store, &rows), [(1, Refusal::TooOld)]);
}

#[test]
fn a_taken_timestamp_keeps_its_value_wherever_it_lies() {
    let machine = machine(2 * HOUR_MS);
    let store = machine.open();
    let (late, later) = (NOW_MS - 40 * MINUTE_MS, NOW_MS - 20 * MINUTE_MS);
    append(&store, &[(1, NOW_MS - 30 * MINUTE_MS, 3.0), (1, NOW_MS, 1.0), (1, late, 2.0)], DURABLE).unwrap();
    let check = |store: &Store| {
        let rows = [
            (1, late, 2.0),
            (1, late, 2.5),
            (1, NOW_MS - 30 * MINUTE_MS, 3.0),
            (1, NOW_MS - 30 * MINUTE_MS, f64::NAN),
        ];
        let taken = Refusal::DuplicateTimestamp;
        assert_eq!(refusals(store, &rows), [(1, taken.clone()), (3, taken)]);
    };
    check(&store);
    seal(&machine, &store);
    check(&store);
    // Late again, in the open epoch beside what is sealed, twice in one request.
    let rows = [(1, later, 5.0), (1, later, 5.0), (1, later, 6.0)];
    assert_eq!(refusals(&store, &rows), [(2, Refusal::DuplicateTimestamp)]);
    seal(&machine, &store);
    check(&store);
    drop(store);
    let store = machine.open();
    check(&store);
    assert_eq!(refusals(&store, &[(1, later, 6.0)]), [(0, Refusal::DuplicateTimestamp)]);
    let expected = [(late, 2.0), (NOW_MS - 30 * MINUTE_MS, 3.0), (later, 5.0), (NOW_MS, 1.0)];
    assert_eq!(samples_of(&store, 1), expected);
    assert_eq!(store.stats().samples_appended, 0);
}

#[test]
fn an_exact_copy_of_a_sealed_sample_succeeds_without_a_window_too() {
    let machine = machine(0);
    let store = machine.open();
    append(&store, &[(1, NOW_MS - 30_000, 1.0), (1, NOW_MS, 2.0)], DURABLE).unwrap();
    seal(&machine, &store);
    append(&store, &[(1, NOW_MS + 15_000, 3.0)], DURABLE).unwrap();
    let rows = [(1, NOW_MS - 30_000, 1.0), (1, NOW_MS, 2.5), (1, NOW_MS - 15_000, 1.0)];
    assert_eq!(refusals(&store, &rows), [(1, Refusal::OutOfOrder), (2, Refusal::OutOfOrder)]);
}

#[test]
fn replay_puts_late_samples_where_they_were() {
    for dead in [false, true] {
        let mut machine = machine(HOUR_MS);
        let store = machine.open();
        // In one request: in order around a late one, and a series that has late ones only.
        append(&store, &[(9, NOW_MS, 0.0)], DURABLE).unwrap();
        let rows = [
            (1, NOW_MS - 50_000, 1.0),
            (1, NOW_MS - 30_000, 2.0),
            (1, NOW_MS - 40_000, 3.0),
            (1, NOW_MS - 20_000, 4.0),
            (2, NOW_MS - HOUR_MS, 5.0),
            (1, NOW_MS - 45_000, 6.0),
        ];
        assert_eq!(refusals(&store, &rows), []);
        let expected = read_all(&store);
        machine.files = if dead { machine.files.kill() } else { machine.files.crash() };
        drop(store);
        let store = machine.open();
        assert_eq!(read_all(&store), expected);
        // Judged as before the crash.
        let again = refusals(&store, &rows);
        assert_eq!(again, []);
        assert_eq!(store.stats().late_samples, 0);
        assert_eq!(refusals(&store, &[(1, NOW_MS - 45_000, 7.0)]), [(0, Refusal::DuplicateTimestamp)]);
        seal(&machine, &store);
        drop(store);
        assert_eq!(read_all(&machine.open()), expected);
    }
}

#[test]
fn a_backfill_in_any_order_stays_small_and_is_read_back_exactly() {
    const SAMPLES: i64 = 2000;
    for order in 0..3 {
        let machine = machine(24 * HOUR_MS);
        let store = machine.open();
        append(&store, &[(1, NOW_MS, 1.0), (2, NOW_MS, 2.0)], DURABLE).unwrap();
        let mut expected = vec![(NOW_MS, 1.0)];
        for n in 0..SAMPLES {
            let place = [n, SAMPLES - 1 - n, n * 1201 % SAMPLES][order];
            let sample = (NOW_MS - 24 * HOUR_MS + place * 15_000, place as f64);
            assert_eq!(refusals(&store, &[(1, sample.0, sample.1)]), []);
            expected.push(sample);
        }
        expected.sort_by_key(|&(time, _)| time);
        assert_eq!(samples_of(&store, 1), expected);
        seal(&machine, &store);
        assert_eq!(samples_of(&store, 1), expected);
        assert_eq!(samples_of(&store, 2), [(NOW_MS, 2.0)]);
    }
}

#[test]
fn late_samples_do_not_keep_segments_from_being_merged() {
    let mut machine = machine(24 * HOUR_MS);
    machine.options.retention_ms = Some(60 * HOUR_MS);
    let store = machine.open();
    let mut expected = Contents::new();
    for round in 0..60 {
        let now = NOW_MS + round * 30 * MINUTE_MS;
        let rows = [(1, now, round as f64), (2, now, 0.5), (1, now - 23 * HOUR_MS + 7, -1.0)];
        for (number, time, value) in rows {
            assert_eq!(refusals(&store, &[(number, time, value)]), []);
            expected.entry(number).or_default().insert(time, value.to_bits());
        }
        seal(&machine, &store);
        store.maintain().unwrap();
        assert!(store.stats().segment_count <= 13, "{} segments", store.stats().segment_count);
    }
    assert_eq!(read_all(&store), expected);
}

/// Values that only their bits tell apart, among them the staleness marker and other NaNs.
const VALUES: [f64; 10] = [
    0.0,
    -0.0,
    1.0,
    0.1,
    f64::from_bits(0x7ff0_0000_0000_0002),
    f64::NAN,
    f64::from_bits(0xfff8_0000_dead_beef),
    f64::NEG_INFINITY,
    f64::MIN_POSITIVE / 3.0,
    9_007_199_254_740_993.0,
];

#[test]
fn one_request_may_bring_a_sample_twice_and_across_the_edge_of_a_seal() {
    let machine = machine(HOUR_MS);
    let store = machine.open();
    for (index, &value) in VALUES.iter().enumerate() {
        let (number, time) = (index as u32, NOW_MS + 10);
        let other = VALUES[(index + 1) % VALUES.len()];
        let again = [(0, Refusal::DuplicateTimestamp)];
        let rows = [(number, time, value), (number, time, value), (number, time, other)];
        assert_eq!(refusals(&store, &rows), [(2, Refusal::DuplicateTimestamp)], "{value}");
        seal(&machine, &store);
        assert_eq!(refusals(&store, &[(number, time, value)]), [], "{value}");
        assert_eq!(refusals(&store, &[(number, time, other)]), again, "{value}");
        // Right before and right behind what is sealed.
        let rows = [(number, time - 1, other), (number, time + 1, other), (number, time - 1, other)];
        assert_eq!(refusals(&store, &rows), [], "{value}");
        assert_eq!(refusals(&store, &[(number, time - 1, value)]), again, "{value}");
        let bits: Vec<u64> =
            samples_of(&store, number).into_iter().map(|(_, value)| value.to_bits()).collect();
        assert_eq!(bits, [other.to_bits(), value.to_bits(), other.to_bits()], "{value}");
    }
}

/// A small generator, so that a seed means the same for ever.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound) as i64
    }
}

/// What Prometheus says to a sample: `MemSeries.appendable`, with duplicates found wherever they are.
fn verdict(samples: &Contents, newest: i64, window: i64, row: (u32, i64, f64)) -> Result<bool, Refusal> {
    let (number, time, value) = row;
    let series = samples.get(&number);
    let last = series.and_then(|series| series.keys().next_back().copied());
    let in_order = time >= newest - HOUR_MS;
    if in_order && last.is_none_or(|last| time > last) {
        return Ok(true);
    }
    let late = window > 0 && time >= newest - window;
    let old = |otherwise| if window > 0 { Refusal::TooOld } else { otherwise };
    if !in_order && !late {
        return Err(old(Refusal::OutOfBounds));
    }
    match series.and_then(|series| series.get(&time)) {
        Some(&bits) if bits == value.to_bits() => Ok(false),
        Some(_) if late || last == Some(time) => Err(Refusal::DuplicateTimestamp),
        None if late => Ok(true),
        _ => Err(old(Refusal::OutOfOrder)),
    }
}

/// Judged sample by sample and read back, across seals, merges and restarts with another number of shards.
fn run(seed: u64) {
    let mut random = Random(seed);
    let mut machine = Machine::new(seed);
    let mut window = [0, 5 * MINUTE_MS, 3 * HOUR_MS][seed as usize % 3];
    machine.options.out_of_order_window_ms = window;
    let mut store: Arc<Store> = machine.open();
    let (mut expected, mut now, mut newest) = (Contents::new(), NOW_MS, i64::MIN / 2);
    for step in 0..400 {
        let rows: Vec<(u32, i64, f64)> = (0..=random.below(12))
            .map(|_| {
                let number = random.below(6) as u32;
                let time = match random.below(8) {
                    0 => now - random.below(4 * HOUR_MS as u64),
                    1 => now - random.below(20) * 15_000,
                    2 => now - random.below(700) * 1000,
                    _ => now,
                };
                (number, time, VALUES[random.below(VALUES.len() as u64) as usize])
            })
            .collect();
        let mut wanted = Vec::new();
        let before = newest;
        for (index, &row) in rows.iter().enumerate() {
            match verdict(&expected, before, window, row) {
                Ok(true) => {
                    newest = newest.max(row.1);
                    expected.entry(row.0).or_default().insert(row.1, row.2.to_bits());
                }
                Ok(false) => {}
                Err(refusal) => wanted.push((index as u32, refusal)),
            }
        }
        assert_eq!(refusals(&store, &rows), wanted, "seed {seed}, step {step}: {rows:?}");
        match random.below(40) {
            0 => {
                now += SEAL_AFTER.as_millis() as i64;
                machine.clock.advance(SEAL_AFTER);
                store.maintain().unwrap();
            }
            1 => {
                machine.files = machine.files.crash();
                machine.options.shards = 1 + random.below(3) as usize;
                drop(store);
                store = machine.open();
            }
            2 => {
                window = random.below(3) * HOUR_MS;
                machine.options.out_of_order_window_ms = window;
                store.set_out_of_order_window_ms(window);
            }
            3..30 => {
                now += 15_000;
                machine.clock.advance(Duration::from_secs(15));
            }
            _ => {}
        }
        if step % 20 == 0 {
            assert_eq!(read_all(&store), expected, "seed {seed}, step {step}");
            let start = now - random.below(3 * HOUR_MS as u64);
            let part = read(&store, start, start + 30 * MINUTE_MS);
            for (number, samples) in &expected {
                let wanted: std::collections::BTreeMap<i64, u64> = samples
                    .range(start..=start + 30 * MINUTE_MS)
                    .map(|(&time, &bits)| (time, bits))
                    .collect();
                assert_eq!(part.get(number).cloned().unwrap_or_default(), wanted, "seed {seed}, step {step}");
            }
        }
    }
    assert_eq!(read_all(&store), expected, "seed {seed}");
}

#[test]
fn every_sample_is_judged_as_prometheus_does_and_read_back_bit_for_bit() {
    for seed in 0..30 {
        run(seed);
    }
}
