//! Background work: seals, merges, retention, the ladders, a log that fails and heals.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{Contents, HOUR_MS, Machine, NOW_MS, append, append_from, read, read_all, samples_of};
use metricsstore_budget::{Budget, Grant, Level, Part};
use metricsstore_model::read::{ReadError, Selection, Source};
use metricsstore_model::{Acknowledge, AppendError, LabelBuf, Origin, Refusal};
use metricsstore_storage::{Progress, ReadOnly, StorageError, Store, StoreOptions};
use metricsstore_vfs::Files;
use metricsstore_vfs::real::RealFiles;
use metricsstore_vfs::sim::{Call, Fault, SimClock};

const DURABLE: Acknowledge = Acknowledge::Durable;
const SEAL_AFTER: Duration = Duration::from_mins(30);

/// Lets half an hour pass and seals.
fn seal(machine: &Machine, store: &Store) {
    machine.clock.advance(SEAL_AFTER);
    assert!(store.maintain().unwrap().sealed);
}

/// A sample every 15 s for a number of series, until `steps` are done.
fn fill(store: &Store, expected: &mut Contents, from_ms: i64, steps: i64, series: u32) {
    for step in 0..steps {
        let time = from_ms + step * 15_000;
        let rows: Vec<(u32, i64, f64)> = (0..series).map(|n| (n, time, f64::from(n) + step as f64)).collect();
        assert_eq!(append(store, &rows, DURABLE).unwrap().refused, []);
        for (number, time, value) in rows {
            expected.entry(number).or_default().insert(time, value.to_bits());
        }
    }
}

#[test]
fn what_is_sealed_leaves_the_log_and_is_read_as_before() {
    let mut machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, NOW_MS, 20, 5);
    seal(&machine, &store);
    let stats = store.stats();
    assert_eq!((stats.segment_count, stats.head_samples, stats.wal_segments), (1, 0, 1));
    assert_eq!(read_all(&store), expected);
    fill(&store, &mut expected, NOW_MS + 20 * 15_000, 20, 5);
    assert_eq!(read_all(&store), expected);
    machine.files = machine.files.crash();
    drop(store);
    let store = machine.open();
    assert_eq!(read_all(&store), expected);
    // Judged by what is sealed, too.
    let last = NOW_MS + 39 * 15_000;
    let verdicts = append(&store, &[(1, last, 20.0), (2, last, 0.5), (3, last - 1, 0.5)], DURABLE).unwrap();
    let refusals: Vec<Refusal> = verdicts.refused.into_iter().map(|refused| refused.refusal).collect();
    assert_eq!(refusals, [Refusal::DuplicateTimestamp, Refusal::OutOfOrder]);
}

#[test]
fn a_restart_right_after_a_seal_still_knows_the_last_samples() {
    let machine = Machine::new(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    store.close().unwrap();
    drop(store);
    let store = machine.open();
    assert_eq!(store.stats().head_samples, 0);
    let verdicts =
        append(&store, &[(1, NOW_MS, 1.0), (1, NOW_MS, 2.0), (1, NOW_MS - 5, 1.0)], DURABLE).unwrap();
    assert_eq!((verdicts.written, verdicts.refused.len()), (1, 2));
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0)]);
}

#[test]
fn a_log_that_gets_long_is_sealed_however_little_memory_its_samples_take() {
    let machine = Machine::new(1);
    // One value takes no payload, and ten bytes of log each time.
    let fill = |store: &Store, from_ms: i64| {
        for part in 0..10 {
            let first = from_ms + part * 135_000;
            let samples = (first..first + 135_000).map(|time| (time, 2_f64.powi(51))).collect();
            append_from(store, Origin::RemoteWrite(0), &[(1, samples)], |_| false, DURABLE).unwrap();
        }
    };
    let store = machine.open();
    fill(&store, NOW_MS - HOUR_MS);
    assert!(!store.maintain().unwrap().sealed);
    assert!((12 << 20..24 << 20).contains(&store.stats().wal_bytes), "{:?}", store.stats());
    drop(store);
    // What an earlier process left in the log counts: else it would grow with each start.
    let store = machine.open();
    assert!(!store.maintain().unwrap().sealed);
    fill(&store, NOW_MS - HOUR_MS / 2);
    assert!(store.maintain().unwrap().sealed);
    assert_eq!(store.stats().wal_segments, 1);
    assert!(!store.maintain().unwrap().sealed);
}

#[test]
fn a_lagging_series_is_written_behind_what_is_sealed() {
    let machine = Machine::new(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0), (2, NOW_MS - 1_000_000, 1.0)], DURABLE).unwrap();
    seal(&machine, &store);
    let rows = [(1, NOW_MS + 15_000, 2.0), (2, NOW_MS - 985_000, 2.0), (3, NOW_MS - 985_000, 3.0)];
    assert_eq!(append(&store, &rows, DURABLE).unwrap().refused, []);
    seal(&machine, &store);
    assert_eq!(samples_of(&store, 2), [(NOW_MS - 1_000_000, 1.0), (NOW_MS - 985_000, 2.0)]);
    assert_eq!(samples_of(&store, 3), [(NOW_MS - 985_000, 3.0)]);
}

#[test]
fn segments_stay_few_and_merging_changes_no_answer() {
    let machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    let mut merged = 0;
    for round in 0..60 {
        // The population changes, one series jitters.
        fill(&store, &mut expected, NOW_MS + round * 1_800_000, 8, 3 + (round % 4) as u32);
        let odd = (100, NOW_MS + round * 1_800_000 + 77 * round, 0.1 * round as f64);
        append(&store, &[odd], DURABLE).unwrap();
        expected.entry(100).or_default().insert(odd.1, odd.2.to_bits());
        machine.clock.advance(SEAL_AFTER);
        merged += store.maintain().unwrap().merged;
        assert!(store.stats().segment_count <= 13, "{}", store.stats().segment_count);
    }
    assert!(merged > 20);
    assert_eq!(read_all(&store), expected);
    let (start, end) = (NOW_MS + 7 * 1_800_000 + 15_000, NOW_MS + 33 * 1_800_000);
    let part: Contents = expected
        .iter()
        .map(|(&number, samples)| (number, samples.range(start..=end).map(|(&t, &b)| (t, b)).collect()))
        .collect();
    assert_eq!(read(&store, start, end), part);
    drop(store);
    assert_eq!(read_all(&machine.open()), expected);
}

#[test]
fn retention_hides_old_samples_then_removes_their_segments_and_series() {
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(2 * HOUR_MS);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0), (2, NOW_MS, 1.0)], DURABLE).unwrap();
    seal(&machine, &store);
    machine.clock.advance(Duration::from_mins(89));
    append(&store, &[(2, NOW_MS + 2 * HOUR_MS - 60_000, 2.0)], DURABLE).unwrap();
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0)]);
    machine.clock.advance(Duration::from_mins(2));
    assert_eq!(samples_of(&store, 1), []);
    let names = machine.names("segments");
    assert_eq!(store.maintain().unwrap().expired, 1);
    assert!(!machine.names("segments").contains(&names[0]));
    assert_eq!((store.stats().series, store.stats().series_removed), (1, 1));
    store.set_retention_ms(None);
    assert_eq!(store.maintain().unwrap().expired, 0);
    assert_eq!(samples_of(&store, 2), [(NOW_MS + 2 * HOUR_MS - 60_000, 2.0)]);
    let refused = append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap().refused;
    assert_eq!(refused[0].refusal, Refusal::OutOfBounds);
}

#[test]
fn what_only_saves_time_is_given_up_before_writes_wait_longer() {
    let machine = Machine::new(1);
    let store = machine.open();
    let samples: Vec<_> = (0..2000).map(|series| (series, NOW_MS, 1.0)).collect();
    append(&store, &samples, DURABLE).unwrap();
    assert!(machine.budget.part(Part::RawCache) > 0);
    store.set_pressure(Level::RefuseWrites);
    store.maintain().unwrap();
    assert_eq!(machine.budget.part(Part::RawCache), 0);
    store.set_pressure(Level::RefuseSeries);
    let verdicts = append(&store, &[(7, NOW_MS + 1, 2.0), (3000, NOW_MS + 1, 2.0)], DURABLE).unwrap();
    assert_eq!((verdicts.written, verdicts.series_created, verdicts.refused.len()), (1, 0, 1));
    assert_eq!(samples_of(&store, 7), [(NOW_MS, 1.0), (NOW_MS + 1, 2.0)]);
}

#[test]
fn retention_by_bytes_counts_everything_and_removes_the_oldest_segments_first() {
    let mut machine = Machine::new(1);
    let store = machine.open();
    for hour in 0..3 {
        append(&store, &[(hour, NOW_MS + i64::from(hour) * HOUR_MS, 1.0)], DURABLE).unwrap();
        seal(&machine, &store);
        machine.clock.advance(Duration::from_hours(1));
    }
    store.maintain().unwrap();
    let limit = store.stats().disk_bytes - store.stats().reserve_bytes;
    store.close().unwrap();
    drop(store);
    // The space kept back counts, too, and takes a small share of what is allowed.
    machine.options.retention_bytes = Some(limit);
    let store = machine.open();
    for _ in 0..4 {
        store.maintain().unwrap();
    }
    assert!(store.stats().disk_bytes <= limit, "{} of {limit}", store.stats().disk_bytes);
    assert_eq!(samples_of(&store, 0), [], "the oldest went");
    assert_eq!(samples_of(&store, 2), [(NOW_MS + 2 * HOUR_MS, 1.0)], "the newest stayed");
}

#[test]
fn damaged_files_in_quarantine_drive_out_no_good_segments() {
    let mut machine = Machine::new(1);
    machine.options.retention_bytes = Some(1 << 20);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    seal(&machine, &store);
    let file = machine.files.create(Path::new("/data/quarantine/segments-00000099")).unwrap();
    file.append(&vec![0; 2 << 20]).unwrap();
    for _ in 0..3 {
        assert_eq!(store.maintain().unwrap().expired, 0);
    }
    assert!(store.stats().disk_bytes > 2 << 20, "it is shown");
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0)]);
}

#[test]
fn pressure_refuses_new_series_first_and_writes_last() {
    let machine = Machine::new(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    store.set_pressure(Level::RefuseSeries);
    let verdicts = append(&store, &[(1, NOW_MS + 1, 1.0), (2, NOW_MS + 1, 1.0)], DURABLE).unwrap();
    assert_eq!(verdicts.written, 1);
    assert_eq!((verdicts.refused[0].row, &verdicts.refused[0].refusal), (1, &Refusal::SeriesBudget));
    store.set_pressure(Level::RefuseWrites);
    let error = append(&store, &[(1, NOW_MS + 2, 1.0)], DURABLE).unwrap_err();
    assert!(matches!(error, AppendError::Busy { .. }), "{error}");
    store.set_pressure(Level::Normal);
    append(&store, &[(1, NOW_MS + 2, 1.0), (2, NOW_MS + 2, 1.0)], DURABLE).unwrap();
    let refused = store.stats().refused;
    assert_eq!((refused.series_budget, refused.busy_requests), (1, 1));
}

#[test]
fn the_store_counts_for_itself_when_nobody_tells_it() {
    let mut machine = Machine::new(1);
    machine.budget = Budget::new(32 << 20);
    let store = machine.open();
    let rows = |first: u32| (first..first + 1000).map(|n| (n, NOW_MS, 1.0)).collect::<Vec<_>>();
    let (mut held, mut first_refused_at) = (0, 0);
    for batch in 0..400 {
        let verdicts = append(&store, &rows(batch * 1000), DURABLE).unwrap();
        held += verdicts.written;
        store.maintain().unwrap();
        if !verdicts.refused.is_empty() {
            first_refused_at = machine.budget.counted();
            break;
        }
    }
    assert!(
        first_refused_at > (32 << 20) * 6 / 10,
        "{first_refused_at} of 32 MiB counted at the first refusal"
    );
    assert!(machine.budget.counted() < 32 << 20);
    // Existing series go on.
    for step in 1..6 {
        let rows: Vec<_> = (0..held.min(6000)).map(|n| (n, NOW_MS + step * 15_000, step as f64)).collect();
        assert_eq!(append(&store, &rows, DURABLE).unwrap().written as usize, rows.len());
        store.maintain().unwrap();
        assert!(machine.budget.counted() < 32 << 20);
    }
}

#[test]
fn replay_seals_within_the_budget_and_a_crash_in_it_repeats_nothing() {
    let mut machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    for step in 0..100 {
        let time = NOW_MS + step * 1000;
        let noise = |n: u32| (f64::from(n) + 0.37).powi(5 + step as i32 % 3).sqrt();
        let rows: Vec<(u32, i64, f64)> = (0..1000).map(|n| (n, time, noise(n))).collect();
        append(&store, &rows, DURABLE).unwrap();
        for (number, time, value) in rows {
            expected.entry(number).or_default().insert(time, value.to_bits());
        }
    }
    // The raw keys of the first process are not there after a start.
    let limit = (machine.budget.counted() - machine.budget.part(Part::RawCache)) * 105 / 100;
    drop(store);
    machine.files = machine.files.kill();
    for calls in (20..120).step_by(10) {
        machine.budget = Budget::new(limit);
        machine.files.power_off_at(calls);
        drop(machine.try_open());
        machine.files = machine.files.crash();
    }
    machine.budget = Budget::new(limit);
    let store = machine.open();
    assert!(store.stats().segment_count > 0);
    assert_eq!(read_all(&store), expected);
}

#[test]
fn a_failed_sync_acknowledges_nothing_and_the_store_heals_by_itself() {
    let mut machine = Machine::new(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    machine
        .files
        .fail_when(Fault::Io, |call, path| call == Call::Sync && path.to_string_lossy().contains("wal"));
    let error = append(&store, &[(1, NOW_MS + 1, 2.0)], DURABLE).unwrap_err();
    assert!(matches!(error, AppendError::Log(_)), "{error}");
    assert_eq!(store.stats().read_only, Some(ReadOnly::LogFailed));
    assert!(matches!(append(&store, &[(1, NOW_MS + 2, 3.0)], DURABLE), Err(AppendError::Log(_))));
    machine.files.heal();
    assert!(store.maintain().unwrap().sealed);
    assert_eq!((store.stats().read_only, store.stats().read_only_entered), (None, 1));
    // What failed was never acknowledged; sent again it is, and from then on it is safe.
    append(&store, &[(1, NOW_MS + 1, 2.0), (1, NOW_MS + 2, 3.0)], DURABLE).unwrap();
    machine.files = machine.files.crash();
    drop(store);
    assert_eq!(samples_of(&machine.open(), 1), [(NOW_MS, 1.0), (NOW_MS + 1, 2.0), (NOW_MS + 2, 3.0)]);
}

#[test]
fn a_select_is_a_snapshot() {
    let machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, NOW_MS, 5, 300);
    let selection = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
    let mut batches = store.select(&selection, &Grant::unlimited()).unwrap();
    let mut samples = batches.next_batch().unwrap().map_or(0, |batch| batch.ids.len() * batch.times.len());
    fill(&store, &mut Contents::new(), NOW_MS + 5 * 15_000, 5, 400);
    seal(&machine, &store);
    fill(&store, &mut Contents::new(), NOW_MS + 10 * 15_000, 5, 400);
    while let Some(batch) = batches.next_batch().unwrap() {
        samples += batch.ids.len() * batch.times.len();
    }
    assert_eq!(samples, 5 * 300);
}

#[test]
fn a_select_sees_nothing_of_an_append_that_fills_rows_which_others_began() {
    let machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, NOW_MS, 5, 300);
    let time = NOW_MS + 5 * 15_000;
    let rows = |numbers: std::ops::Range<u32>| -> Vec<(u32, i64, f64)> {
        numbers.map(|number| (number, time, 0.5)).collect()
    };
    append(&store, &rows(0..100), DURABLE).unwrap();
    let selection = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
    let mut batches = store.select(&selection, &Grant::unlimited()).unwrap();
    let labels = batches.labels();
    let (mut found, mut seen) = (std::collections::BTreeSet::new(), false);
    let (mut times, mut values, mut label_buf) = (Vec::new(), Vec::new(), LabelBuf::new());
    while let Some(batch) = batches.next_batch().unwrap() {
        for (index, &id) in batch.ids.iter().enumerate() {
            batch.samples_into(index, &mut times, &mut values);
            labels.labels(id, &mut label_buf);
            let number: u32 = label_buf.get("n").unwrap().parse().unwrap();
            assert_eq!(times.len(), if number < 100 { 6 } else { 5 }, "series {number}");
            found.insert(number);
        }
        // After the first chunk, before the last.
        if !std::mem::replace(&mut seen, true) {
            append(&store, &rows(100..300), DURABLE).unwrap();
        }
    }
    assert_eq!(found.len(), 300);
    assert!(read_all(&store).values().all(|samples| samples.len() == 6));
}

#[test]
fn a_select_takes_no_more_memory_than_it_was_granted() {
    let machine = Machine::new(1);
    let store = machine.open();
    fill(&store, &mut Contents::new(), NOW_MS, 20, 300);
    let selection = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
    let budget = Budget::unlimited();
    let read = |bytes| -> Result<(), ReadError> {
        let mut batches = store.select(&selection, &budget.grant(Part::Query, bytes))?;
        while batches.next_batch()?.is_some() {}
        Ok(())
    };
    // The list of series alone, then their samples.
    for bytes in [5_000, 15_000] {
        assert!(matches!(read(bytes), Err(ReadError::Memory(_))), "{bytes}");
    }
    read(1 << 20).unwrap();
    assert_eq!(budget.part(Part::Query), 0);
}

#[test]
fn times_that_no_series_shares_are_part_of_what_a_select_was_granted() {
    let machine = Machine::new(1);
    let store = machine.open();
    // Values of no bytes, each series at times of its own.
    for step in 0..200 {
        let rows: Vec<(u32, i64, f64)> =
            (0..60).map(|n| (n, NOW_MS + step * 1000 + i64::from(n) * 7, 1.0)).collect();
        append(&store, &rows, Acknowledge::Written).unwrap();
    }
    let selection = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
    let budget = Budget::unlimited();
    let read = |bytes| -> Result<usize, ReadError> {
        let mut batches = store.select(&selection, &budget.grant(Part::Query, bytes))?;
        let mut series = 0;
        while let Some(batch) = batches.next_batch()? {
            series += batch.ids.len();
        }
        Ok(series)
    };
    // 60 series of 200 times of 8 bytes.
    assert!(matches!(read(80_000), Err(ReadError::Memory(_))));
    assert_eq!(read(200_000).unwrap(), 60);
    assert_eq!(budget.part(Part::Query), 0);
}

#[test]
fn writers_readers_and_upkeep_run_at_once() {
    const WRITERS: u32 = 4;
    const STEPS: i64 = 150;
    let mut machine = Machine::new(1);
    machine.options.shards = 3;
    let store = machine.open();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let store = Arc::clone(&store);
            scope.spawn(move || {
                for step in 0..STEPS {
                    let rows: Vec<(u32, i64, f64)> = (0..50)
                        .map(|n| {
                            (writer * 2000 + n * 31, NOW_MS + step * 1000 + i64::from(writer), step as f64)
                        })
                        .collect();
                    assert_eq!(append(&store, &rows, DURABLE).unwrap().written, 50);
                }
            });
        }
        let (store, clock) = (Arc::clone(&store), machine.clock.clone());
        scope.spawn(move || {
            for _ in 0..40 {
                clock.advance(SEAL_AFTER);
                store.maintain().unwrap();
                for samples in read_all(&store).values() {
                    // Each series is written in steps without a gap.
                    let steps: Vec<i64> = samples.values().map(|&bits| f64::from_bits(bits) as i64).collect();
                    assert!(steps.iter().copied().eq(0..steps.len() as i64), "{steps:?}");
                }
            }
        });
    });
    let contents = read_all(&store);
    assert_eq!(contents.len() as u32, WRITERS * 50);
    assert!(contents.values().all(|samples| samples.len() as i64 == STEPS));
    machine.files = machine.files.crash();
    drop(store);
    assert_eq!(read_all(&machine.open()), contents);
}

#[test]
fn series_that_went_their_own_ways_share_a_stream_again_after_a_seal() {
    let machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    for step in 0..60 {
        if step == 30 {
            assert!(store.stats().private_streams > 30);
            seal(&machine, &store);
        }
        let own = |n: u32| if step < 30 { i64::from(n) * 13 + step * i64::from(n) % 7 } else { 0 };
        let rows: Vec<_> =
            (0..40).map(|n| (n, NOW_MS - 900_000 + step * 15_000 + own(n), f64::from(n))).collect();
        assert_eq!(append(&store, &rows, DURABLE).unwrap().refused, []);
        for (number, time, value) in rows {
            expected.entry(number).or_default().insert(time, value.to_bits());
        }
    }
    assert_eq!((store.stats().streams, store.stats().private_streams), (1, 0));
    assert_eq!(read_all(&store), expected);
}

#[test]
fn the_files_of_the_operating_system_serve_as_the_simulated_ones_do() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions::new(dir.path().join("data"));
    let clock = SimClock::new(NOW_MS);
    let open = || {
        let files = Arc::new(RealFiles);
        let progress = Arc::new(Progress::default());
        Store::open(options.clone(), files, Arc::new(clock.clone()), Budget::unlimited(), progress)
    };
    let mut expected = Contents::new();
    for round in 0..6 {
        let store = open().unwrap();
        assert!(matches!(open(), Err(StorageError::Locked { .. })));
        assert_eq!(read_all(&store), expected);
        fill(&store, &mut expected, NOW_MS + round * 300_000, 10, 50);
        clock.advance(SEAL_AFTER);
        assert!(store.maintain().unwrap().sealed);
        fill(&store, &mut expected, NOW_MS + round * 300_000 + 150_000, 5, 50);
        if round % 2 == 0 {
            store.close().unwrap();
        }
        assert_eq!(read_all(&store), expected);
    }
    assert!(open().unwrap().stats().segment_count < 8);
}
