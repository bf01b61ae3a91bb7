//! What a store promises, case by case.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod common;

use common::{HOUR_MS, Machine, NOW_MS, append, read_all, samples_of};
use metricsstore_model::{Acknowledge, AppendError, Refusal};

const DURABLE: Acknowledge = Acknowledge::Durable;

#[test]
fn what_was_acknowledged_is_there_after_a_crash() {
    for seed in 0..20 {
        let mut machine = Machine::new(seed);
        let store = machine.open();
        append(&store, &[(1, NOW_MS, 1.5), (2, NOW_MS, -0.0)], DURABLE).unwrap();
        append(&store, &[(1, NOW_MS + 10, 2.5)], DURABLE).unwrap();
        let _ = append(&store, &[(1, NOW_MS + 20, 3.5)], Acknowledge::Written);
        machine.files = machine.files.crash();
        drop(store);
        let store = machine.open();
        let samples = samples_of(&store, 1);
        assert_eq!(samples[..2], [(NOW_MS, 1.5), (NOW_MS + 10, 2.5)], "seed {seed}");
        assert_eq!(samples_of(&store, 2), [(NOW_MS, -0.0)]);
    }
}

#[test]
fn order_and_duplicates_are_judged_as_prometheus_does() {
    let machine = Machine::new(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0), (2, NOW_MS, 7.0)], DURABLE).unwrap();
    let verdicts = append(
        &store,
        &[(1, NOW_MS, 1.0), (1, NOW_MS, 2.0), (1, NOW_MS - 1, 1.0), (2, NOW_MS + 1, 8.0)],
        DURABLE,
    )
    .unwrap();
    assert_eq!(verdicts.written, 2);
    let refused: Vec<(u32, Refusal)> =
        verdicts.refused.into_iter().map(|refused| (refused.row, refused.refusal)).collect();
    assert_eq!(refused, [(1, Refusal::DuplicateTimestamp), (2, Refusal::OutOfOrder)]);
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0)]);
    assert_eq!(samples_of(&store, 2), [(NOW_MS, 7.0), (NOW_MS + 1, 8.0)]);
}

#[test]
fn bounds_are_half_a_block_behind_the_newest_retention_and_ten_minutes_ahead() {
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(24 * HOUR_MS);
    let store = machine.open();
    // An empty store takes any time within retention.
    let old = NOW_MS - 23 * HOUR_MS;
    assert_eq!(append(&store, &[(1, old, 1.0)], DURABLE).unwrap().written, 1);
    append(&store, &[(2, NOW_MS, 1.0)], DURABLE).unwrap();
    let rows = [
        (3, NOW_MS - HOUR_MS, 1.0),
        (4, NOW_MS - HOUR_MS - 1, 1.0),
        (5, NOW_MS + 600_000, 1.0),
        (6, NOW_MS + 600_001, 1.0),
    ];
    let verdicts = append(&store, &rows, DURABLE).unwrap();
    let refused: Vec<(u32, Refusal)> =
        verdicts.refused.into_iter().map(|refused| (refused.row, refused.refusal)).collect();
    assert_eq!(refused, [(1, Refusal::TooOld), (3, Refusal::TooFarInFuture)]);
}

#[test]
fn samples_at_the_epoch_are_accepted_when_retention_allows() {
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(200 * 365 * 24 * HOUR_MS);
    let store = machine.open();
    assert_eq!(append(&store, &[(1, 0, 1.0), (1, 15_000, 2.0)], DURABLE).unwrap().written, 2);
    assert_eq!(samples_of(&store, 1), [(0, 1.0), (15_000, 2.0)]);
}

#[test]
fn series_with_times_of_their_own_share_nothing_and_lose_nothing() {
    let machine = Machine::new(1);
    let store = machine.open();
    let mut expected = common::Contents::new();
    for step in 0..50 {
        // Two targets in step, one that lags behind, one with jitter, one that comes and goes.
        let time = NOW_MS - 900_000 + step * 15_000;
        let mut rows = vec![(1, time, step as f64), (2, time, 0.1), (3, time + 7, 3.0), (4, time + 7, 4.0)];
        rows.push((5, time - 600_000, step as f64));
        rows.push((6, time + (step * 7919) % 4000, 1.0 / (step + 1) as f64));
        if step % 10 < 3 {
            rows.push((7, time, f64::NAN));
        }
        let verdicts = append(&store, &rows, DURABLE).unwrap();
        assert_eq!(verdicts.refused, []);
        for (number, time, value) in rows {
            expected.entry(number).or_default().insert(time, value.to_bits());
        }
    }
    assert_eq!(read_all(&store), expected);
}

#[test]
fn a_second_process_is_refused() {
    let machine = Machine::new(1);
    let _store = machine.open();
    let error = machine.try_open().err().unwrap();
    assert!(error.to_string().contains("in use by another process"), "{error}");
}

#[test]
fn a_closed_store_refuses_appends_and_still_reads() {
    let machine = Machine::new(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    store.close().unwrap();
    store.close().unwrap();
    assert_eq!(append(&store, &[(1, NOW_MS + 1, 1.0)], DURABLE), Err(AppendError::ShuttingDown));
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0)]);
}
