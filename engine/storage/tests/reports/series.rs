//! Bad series, queries that stay open, churn.
use std::time::Duration;

use metricsstore_budget::{Budget, Grant, Part};
use metricsstore_model::read::{Selection, Source};

use super::{DURABLE, SEAL_AFTER, STEP_MS, content_of, fill, is_part_of, only_file, overwrite, seal};
use crate::common::{Contents, HOUR_MS, Machine, NOW_MS, append, read_all};

// prometheus/prometheus#17438, #5617
#[test]
fn one_damaged_series_stops_no_merge_and_no_seal() {
    let mut machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, NOW_MS, 20, 300);
    seal(&machine, &store);
    drop(store);
    // In the columns: behind the header and the times, before the index.
    let segment = only_file(&machine, "segments");
    let mut bytes = content_of(&machine, &segment);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    overwrite(&machine, &segment, &bytes);
    machine.files = machine.files.kill();
    let store = machine.open();
    let mut merged = 0;
    for round in 1..8 {
        let from_ms = NOW_MS + round * 20 * STEP_MS;
        fill(&store, &mut expected, from_ms, 20, 300);
        machine.clock.advance(SEAL_AFTER);
        let done = store.maintain().unwrap();
        assert!(done.sealed);
        merged += done.merged;
    }
    assert!(merged >= 4);
    assert!(store.stats().quarantined > 0);
    assert_eq!(machine.names("quarantine").len(), 1, "the bytes are kept");
    let contents = read_all(&store);
    assert!(is_part_of(&contents, &expected));
    for (number, samples) in &expected {
        for (time, bits) in samples.range(NOW_MS + 20 * STEP_MS..) {
            assert_eq!(contents[number].get(time), Some(bits), "only the damaged file's samples are lost");
        }
    }
}

// prometheus/prometheus#19013, #19016, #19202
#[test]
fn an_open_query_holds_nothing_up_and_sees_what_was_there() {
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(3 * HOUR_MS);
    let store = machine.open();
    let mut expected = Contents::new();
    for round in 0..3 {
        fill(&store, &mut expected, NOW_MS + round * 10 * STEP_MS, 10, 200);
        seal(&machine, &store);
    }
    fill(&store, &mut expected, NOW_MS + 30 * STEP_MS, 10, 200);
    let everything = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
    let mut batches = store.select(&everything, &Grant::unlimited()).unwrap();
    // Writes, seals, merges and retention go on as if nobody read.
    fill(&store, &mut Contents::new(), NOW_MS + 40 * STEP_MS, 10, 200);
    machine.clock.advance(SEAL_AFTER);
    let (mut merged, mut expired) = (store.maintain().unwrap().merged, 0);
    for round in 4..16 {
        machine.clock.set_wall_ms(NOW_MS + round * HOUR_MS);
        append(&store, &[(1, NOW_MS + round * HOUR_MS, 1.0)], DURABLE).unwrap();
        machine.clock.advance(SEAL_AFTER);
        let done = store.maintain().unwrap();
        assert!(done.sealed);
        (merged, expired) = (merged + done.merged, expired + done.expired);
    }
    assert!(merged > 0 && expired > 0);
    let (mut times, mut values, mut samples) = (Vec::new(), Vec::new(), 0);
    while let Some(batch) = batches.next_batch().unwrap() {
        for index in 0..batch.ids.len() {
            batch.samples_into(index, &mut times, &mut values);
            samples += times.len();
        }
    }
    assert_eq!(samples, expected.values().flatten().count());
}

// VictoriaMetrics/VictoriaMetrics#2007, #7229, #6176, #4995, #4726
#[test]
fn series_that_come_and_go_take_the_memory_of_those_that_are_there() {
    const AT_ONCE: u32 = 500;
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(3 * HOUR_MS);
    machine.budget = Budget::new(1 << 30);
    let store = machine.open();
    let identity = |machine: &Machine| {
        [Part::Symbols, Part::Identity, Part::Postings]
            .iter()
            .map(|&part| machine.budget.part(part))
            .sum::<u64>()
    };
    let (mut early, mut late) = (0, 0);
    for round in 0..48 {
        let first = round * AT_ONCE;
        let now = NOW_MS + i64::from(round) * HOUR_MS / 2;
        machine.clock.set_wall_ms(now);
        let rows: Vec<(u32, i64, f64)> = (first..first + AT_ONCE).map(|n| (n, now, 1.0)).collect();
        assert_eq!(append(&store, &rows, DURABLE).unwrap().refused, []);
        machine.clock.advance(Duration::from_secs(1));
        machine.clock.advance(SEAL_AFTER);
        store.maintain().unwrap();
        assert!(store.stats().series <= u64::from(9 * AT_ONCE), "round {round}: {}", store.stats().series);
        match round {
            12..24 => early = identity(&machine).max(early),
            36.. => late = identity(&machine).max(late),
            _ => {}
        }
    }
    assert!(
        late <= early * 5 / 4,
        "{early} bytes of identity at most in the first hours, {late} in the last"
    );
}
