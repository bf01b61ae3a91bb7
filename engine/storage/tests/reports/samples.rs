//! Judgement of samples, clocks, and values to the last bit.
use std::time::Duration;

use metricsstore_model::{Refusal, stale_nan};

use super::{DURABLE, SEAL_AFTER, STEP_MS, fill, seal};
use crate::common::{Contents, HOUR_MS, Machine, NOW_MS, append, read_all, samples_of};

// prometheus/prometheus#10028, #8312, #6554
#[test]
fn a_clock_that_jumped_ahead_once_closes_the_window_to_nobody() {
    let machine = Machine::new(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0), (2, NOW_MS, 1.0)], DURABLE).unwrap();
    machine.clock.set_wall_ms(NOW_MS + 24 * HOUR_MS);
    append(&store, &[(1, NOW_MS + 24 * HOUR_MS, 2.0)], DURABLE).unwrap();
    machine.clock.set_wall_ms(NOW_MS + STEP_MS);
    let rows = [(2, NOW_MS + STEP_MS, 2.0), (3, NOW_MS + STEP_MS, 1.0)];
    assert_eq!(append(&store, &rows, DURABLE).unwrap().refused, [], "other series go on at once");
    assert_eq!(samples_of(&store, 2), [(NOW_MS, 1.0), (NOW_MS + STEP_MS, 2.0)]);
    drop(store);
    let store = machine.open();
    let rows = [(2, NOW_MS + 2 * STEP_MS, 3.0)];
    assert_eq!(append(&store, &rows, DURABLE).unwrap().refused, [], "after a restart, too");
}

// prometheus/prometheus#2893
#[test]
fn samples_of_the_future_move_no_retention() {
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(2 * HOUR_MS);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, NOW_MS, 4, 3);
    let far = append(&store, &[(7, NOW_MS + HOUR_MS, 1.0)], DURABLE).unwrap();
    assert_eq!(far.refused[0].refusal, Refusal::TooFarInFuture);
    append(&store, &[(8, NOW_MS + 9 * 60_000, 1.0)], DURABLE).unwrap();
    expected.entry(8).or_default().insert(NOW_MS + 9 * 60_000, 1f64.to_bits());
    seal(&machine, &store);
    assert_eq!(store.maintain().unwrap().expired, 0);
    assert_eq!(read_all(&store), expected);
}

// prometheus/prometheus#9214
#[test]
fn a_bad_sample_costs_its_neighbours_nothing() {
    let machine = Machine::new(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0), (2, NOW_MS, 1.0)], DURABLE).unwrap();
    let rows = [
        (1, NOW_MS, 9.0),
        (2, NOW_MS + 1, 2.0),
        (3, NOW_MS + 1, 3.0),
        (2, NOW_MS - 5, 9.0),
        (4, NOW_MS + HOUR_MS, 9.0),
        (5, NOW_MS + 1, 5.0),
    ];
    let verdicts = append(&store, &rows, DURABLE).unwrap();
    assert_eq!(verdicts.written, 3);
    let refused: Vec<(u32, Refusal)> =
        verdicts.refused.into_iter().map(|refused| (refused.row, refused.refusal)).collect();
    assert_eq!(
        refused,
        [(0, Refusal::DuplicateTimestamp), (3, Refusal::OutOfOrder), (4, Refusal::TooFarInFuture)]
    );
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0)]);
    assert_eq!(samples_of(&store, 2), [(NOW_MS, 1.0), (NOW_MS + 1, 2.0)]);
    assert_eq!(samples_of(&store, 3), [(NOW_MS + 1, 3.0)]);
    assert_eq!(samples_of(&store, 5), [(NOW_MS + 1, 5.0)]);
}

// prometheus/prometheus#9210
#[test]
fn a_request_sent_again_is_accepted_and_changes_nothing() {
    let mut machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, NOW_MS, 10, 5);
    // All of it, oldest first, as a queue sends it after a lost answer.
    fill(&store, &mut expected, NOW_MS, 10, 5);
    assert_eq!(read_all(&store), expected);
    drop(store);
    machine.files = machine.files.crash();
    let store = machine.open();
    fill(&store, &mut expected, NOW_MS, 10, 5);
    assert_eq!(read_all(&store), expected);
}

// prometheus/prometheus#13334
#[test]
fn no_sample_is_refused_with_an_error_that_is_worth_a_retry() {
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(2 * HOUR_MS);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    for (time, value) in [
        (i64::MIN, 1.0),
        (i64::MAX, 1.0),
        (0, 1.0),
        (-1, 1.0),
        (NOW_MS - 3 * HOUR_MS, 1.0),
        (NOW_MS + 3 * HOUR_MS, 1.0),
        (NOW_MS, 2.0),
        (NOW_MS - 1, 1.0),
    ] {
        let verdicts = append(&store, &[(1, time, value)], DURABLE).unwrap();
        assert_eq!((verdicts.written, verdicts.refused.len()), (0, 1), "at {time}");
    }
    assert_eq!(store.stats().read_only, None);
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0)]);
}

// prometheus/prometheus#5105, #5686
#[test]
fn a_cut_through_a_column_is_not_seen() {
    for cut in 1..20 {
        let machine = Machine::new(1);
        let store = machine.open();
        let mut expected = Contents::new();
        fill(&store, &mut expected, NOW_MS, cut, 3);
        seal(&machine, &store);
        fill(&store, &mut expected, NOW_MS + cut * STEP_MS, 20 - cut, 3);
        assert_eq!(read_all(&store), expected);
        seal(&machine, &store);
        assert_eq!(read_all(&store), expected);
    }
}

// VictoriaMetrics/VictoriaMetrics#7674, #5587, #10274, #5806
#[test]
fn values_are_compared_by_their_bits() {
    let values = [f64::NAN, f64::from_bits(0x7ff8_0000_0000_0001), stale_nan(), 0.0, -0.0, f64::NEG_INFINITY];
    for first in values {
        for second in values {
            let mut machine = Machine::new(1);
            let store = machine.open();
            append(&store, &[(1, NOW_MS, first)], DURABLE).unwrap();
            let refused = append(&store, &[(1, NOW_MS, second)], DURABLE).unwrap().refused.len();
            let same = first.to_bits() == second.to_bits();
            assert_eq!(refused, usize::from(!same), "{:x} then {:x}", first.to_bits(), second.to_bits());
            // Whether it is in memory, in the log or sealed.
            machine.files = machine.files.crash();
            drop(store);
            let store = machine.open();
            assert_eq!(append(&store, &[(1, NOW_MS, second)], DURABLE).unwrap().refused.len(), refused);
            seal(&machine, &store);
            assert_eq!(append(&store, &[(1, NOW_MS, second)], DURABLE).unwrap().refused.len(), refused);
            assert_eq!(read_all(&store)[&1][&NOW_MS], first.to_bits());
        }
    }
}

// VictoriaMetrics/VictoriaMetrics#213, #2662, #5752, #1114
#[test]
fn every_bit_of_a_value_survives_seal_merge_and_restart() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    for round in 0..4 {
        for step in 0..40 {
            let time = NOW_MS + (round * 40 + step) * STEP_MS;
            let rows: Vec<(u32, i64, f64)> = (0..6)
                .map(|number| {
                    let bits = random();
                    let value = match number {
                        0 => f64::from_bits(bits),
                        1 => f64::from_bits(bits >> 12),
                        2 => (bits >> 40) as f64 / 1000.0,
                        3 => [f64::MIN_POSITIVE, f64::MAX, -1e-308, 5e-324][(bits % 4) as usize],
                        4 => (bits as i64 >> (bits % 60)) as f64,
                        _ => f64::from_bits(0x7ff0_0000_0000_0000 | (bits & 0x800f_ffff_ffff_ffff)),
                    };
                    (number, time, value)
                })
                .collect();
            assert_eq!(append(&store, &rows, DURABLE).unwrap().refused, []);
            for (number, time, value) in rows {
                expected.entry(number).or_default().insert(time, value.to_bits());
            }
        }
        assert_eq!(read_all(&store), expected);
        seal(&machine, &store);
        assert_eq!(read_all(&store), expected);
    }
    assert!(store.stats().merges > 0);
    machine.files = machine.files.crash();
    drop(store);
    assert_eq!(read_all(&machine.open()), expected);
}

// prometheus/prometheus#8476, #8312
#[test]
fn a_clock_that_goes_back_loses_nothing_and_writing_goes_on() {
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(24 * HOUR_MS);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, NOW_MS, 10, 3);
    machine.clock.set_wall_ms(NOW_MS - 48 * HOUR_MS);
    let _ = store.maintain();
    assert_eq!(read_all(&store), expected, "what is there is to be read");
    let ahead = append(&store, &[(1, NOW_MS + 10 * STEP_MS, 1.0)], DURABLE).unwrap();
    assert_eq!(ahead.refused[0].refusal, Refusal::TooFarInFuture, "by the clock that there is");
    machine.clock.set_wall_ms(NOW_MS + 10 * STEP_MS);
    machine.clock.advance(Duration::from_secs(1));
    fill(&store, &mut expected, NOW_MS + 10 * STEP_MS, 10, 3);
    machine.clock.advance(SEAL_AFTER);
    store.maintain().unwrap();
    machine.files = machine.files.crash();
    drop(store);
    assert_eq!(read_all(&machine.open()), expected);
}
