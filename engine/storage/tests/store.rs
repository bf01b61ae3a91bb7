//! What a store promises, case by case.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod common;

use common::{HOUR_MS, Machine, NOW_MS, append, read_all, samples_of};
use metricsstore_budget::Part;
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
    assert_eq!(refused, [(1, Refusal::OutOfBounds), (3, Refusal::TooFarInFuture)]);
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

#[test]
fn series_of_a_target_find_their_stream_and_keep_it() {
    const TARGETS: u32 = 50;
    const SERIES: u32 = 40;
    let machine = Machine::new(1);
    let store = machine.open();
    let mut expected = common::Contents::new();
    for step in 0..30 {
        for target in 0..TARGETS {
            // All begin with one timestamp; from then on every target has its own phase.
            let phase = if step == 0 { 0 } else { i64::from(target) * 37 };
            let time = NOW_MS - 900_000 + step * 15_000 + phase;
            let numbers = target * SERIES..(target + 1) * SERIES;
            let rows: Vec<_> = numbers.map(|number| (number, time, step as f64)).collect();
            assert_eq!(append(&store, &rows, DURABLE).unwrap().refused, []);
            for (number, time, value) in rows {
                expected.entry(number).or_default().insert(time, value.to_bits());
            }
        }
    }
    let stats = store.stats();
    // A target whose series stand in two shards or pages has two.
    assert!(stats.streams <= u64::from(TARGETS) * 2, "{} streams for {TARGETS} targets", stats.streams);
    assert_eq!(read_all(&store), expected);
}

/// Fills a store with series of constant values, each sample up to `jitter_ms` late, in an order that changes with
/// every request. Returns state and payload in memory.
fn bytes_with_jitter(series: u32, steps: i64, jitter_ms: u64) -> (u64, u64) {
    let machine = Machine::new(1);
    let store = machine.open();
    let mut random = 1u64;
    for step in 0..steps {
        let late = |number: u32| {
            let mixed = (u64::from(number) * 1_000_003 + step as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed >> 40) % jitter_ms) as i64
        };
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut rows: Vec<_> = (0..series)
            .map(|number| (number, NOW_MS - 900_000 + step * 15_000 + late(number), f64::from(number)))
            .collect();
        rows.rotate_left((random >> 40) as usize % series as usize);
        assert_eq!(append(&store, &rows, DURABLE).unwrap().refused, []);
    }
    let contents = read_all(&store);
    assert!(contents.len() == series as usize);
    assert!(contents.values().all(|samples| samples.len() == steps as usize));
    if jitter_ms > 1 {
        assert!(store.stats().private_streams > u64::from(series) * 9 / 10);
    }
    (machine.budget.part(Part::SeriesState), machine.budget.part(Part::HeadPayload))
}

#[test]
fn a_timestamp_of_its_own_costs_a_series_little() {
    // Whole pages, so that what is counted is what is needed.
    const SERIES: u32 = 4096;
    const STEPS: i64 = 60;
    let (shared, _) = bytes_with_jitter(SERIES, STEPS, 1);
    let (private, times) = bytes_with_jitter(SERIES, STEPS, 1000);
    let each = (private - shared) as f64 / f64::from(SERIES);
    assert!(each <= 48.0, "{each} bytes of state more for each series, {shared} in all without jitter");
    // Times of 60 samples and the page of a mebibyte that is begun: two bytes each.
    let bound = u64::from(SERIES) * STEPS as u64 * 2 + (1 << 20);
    assert!(times <= bound, "{times} bytes of times, more than {bound}");
}

#[test]
fn an_interrupted_series_is_read_with_its_gaps() {
    let machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Vec::new();
    for step in 0..200 {
        let time = NOW_MS - 3_000_000 + step * 15_000;
        let mut rows = vec![(1, time, 0.0), (2, time, 1.0)];
        if (step / 7) % 3 != 1 && step % 11 != 5 {
            rows.push((3, time, step as f64 / 3.0));
            expected.push((time, step as f64 / 3.0));
        }
        assert_eq!(append(&store, &rows, DURABLE).unwrap().refused, []);
    }
    assert_eq!(samples_of(&store, 3), expected);
    assert_eq!(samples_of(&store, 1).len(), 200);
}

#[test]
fn what_others_put_beside_the_files_of_the_store_is_left_alone() {
    use metricsstore_vfs::Files;
    let machine = Machine::new(1);
    drop(machine.open());
    for place in ["segments", "identity"] {
        let place = std::path::Path::new(common::DIR).join(place);
        machine.files.create_dir_all(&place.join("lost+found")).unwrap();
        machine.files.create(&place.join("00000001.bak")).unwrap();
    }
    drop(machine.open());
    for place in ["segments", "identity"] {
        let names = machine.names(place);
        assert!(names.contains(&"lost+found".into()) && names.contains(&"00000001.bak".into()), "{names:?}");
    }
}
