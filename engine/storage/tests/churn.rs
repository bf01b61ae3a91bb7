//! Series that come and go: what ended is let go of, in memory too.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod common;

use std::time::Duration;

use common::{HOUR_MS, Machine, NOW_MS, append};
use metricsstore_budget::{Budget, Part};
use metricsstore_model::Acknowledge;

const STEP: Duration = Duration::from_mins(2);
const STEP_MS: i64 = STEP.as_millis() as i64;

/// Bytes of labels, ids, look-up and postings.
fn identity_bytes(budget: &Budget) -> u64 {
    [Part::Symbols, Part::Identity, Part::Postings].into_iter().map(|part| budget.part(part)).sum()
}

#[test]
fn a_population_that_is_replaced_for_hours_takes_no_more_memory_than_its_steady_state() {
    const SERIES: u32 = 1000;
    const REPLACED: u32 = SERIES / 10;
    const REPLACED_EVERY_MS: i64 = 600_000;
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(2 * HOUR_MS);
    let store = machine.open();
    // By hours of data time.
    let mut peaks = [0; 6];
    let mut series = [0; 6];
    for step in 0..6 * HOUR_MS / STEP_MS {
        let passed = step * STEP_MS;
        let first = (passed / REPLACED_EVERY_MS) as u32 * REPLACED;
        let rows: Vec<(u32, i64, f64)> =
            (first..first + SERIES).map(|number| (number, NOW_MS + passed, step as f64)).collect();
        assert_eq!(append(&store, &rows, Acknowledge::Written).unwrap().refused, []);
        machine.clock.advance(STEP);
        store.maintain().unwrap();
        let hour = (passed / HOUR_MS) as usize;
        peaks[hour] = peaks[hour].max(identity_bytes(&machine.budget));
        series[hour] = series[hour].max(store.stats().series);
    }
    println!("{peaks:?} bytes, {series:?} series");
    // Within retention and one cut more series have ended than this.
    let ended = u64::from(REPLACED) * ((2 + 2) * HOUR_MS / REPLACED_EVERY_MS) as u64;
    assert!(series[5] <= u64::from(SERIES) + ended, "{series:?} series");
    let steady = peaks[2].max(peaks[3]);
    assert!(peaks[5] * 5 <= steady * 6, "{peaks:?} bytes of identity by the hour");
}

#[test]
fn a_few_ended_series_leave_within_one_cut() {
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(2 * HOUR_MS);
    let store = machine.open();
    let mut gone_after = None;
    for step in 0..6 * HOUR_MS / STEP_MS {
        let time = NOW_MS + step * STEP_MS;
        let mut rows: Vec<(u32, i64, f64)> = (1..1000).map(|number| (number, time, 1.0)).collect();
        if step == 0 {
            rows.push((0, time, 1.0));
        }
        append(&store, &rows, Acknowledge::Written).unwrap();
        machine.clock.advance(STEP);
        store.maintain().unwrap();
        if gone_after.is_none() && store.stats().series == 999 {
            gone_after = Some(step * STEP_MS);
        }
    }
    // Two hours of retention, two of a cut.
    let gone_after = gone_after.unwrap();
    assert!((2 * HOUR_MS..=4 * HOUR_MS).contains(&gone_after), "gone after {} min", gone_after / 60_000);
}

#[test]
fn the_last_series_leave_though_nothing_is_written_any_more() {
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(2 * HOUR_MS);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0), (2, NOW_MS, 1.0)], Acknowledge::Durable).unwrap();
    for _ in 0..5 * HOUR_MS / STEP_MS {
        machine.clock.advance(STEP);
        store.maintain().unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.series, stats.series_removed, stats.segment_count), (0, 2, 0));
    assert_eq!(append(&store, &[(2, NOW_MS + 5 * HOUR_MS, 1.0)], Acknowledge::Durable).unwrap().refused, []);
    // Their definitions may still stand in a file: the first seal after a start lets them go again.
    drop(store);
    let store = machine.open();
    machine.clock.advance(Duration::from_mins(30));
    assert!(store.maintain().unwrap().sealed);
    assert_eq!(store.stats().series, 1);
}
