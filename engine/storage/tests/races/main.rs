//! Two and three threads in one store, under thousands of schedules: `cargo xtask races`.
//!
//! The model checker `shuttle` decides at every lock, every atomic access and every call to the file system which thread
//! goes on: at random, and by priorities that change a few times (which finds orderings that chance seldom meets). A
//! failing schedule is printed and can be replayed; `SHUTTLE_RANDOM_SEED` explores others.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
#[path = "../common/mod.rs"]
mod common;
mod files;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Contents, HOUR_MS, Machine, NOW_MS, append, read_all};
use files::SwitchingFiles;
use metricsstore_budget::{Budget, Part};
use metricsstore_model::read::{Selection, Source};
use metricsstore_model::{Acknowledge, AppendError};
use metricsstore_storage::{Progress, Store};
use metricsstore_vfs::sim::{Call, Fault, SimFiles};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread;

const DURABLE: Acknowledge = Acknowledge::Durable;
const SEAL_AFTER: Duration = Duration::from_mins(30);
const STEP_MS: i64 = 15_000;
const SEED: u64 = 1;
/// Schedules of each kind for each test.
const SCHEDULES: usize = 300;
/// Turns of priority that the second scheduler may take.
const PRIORITY_CHANGES: usize = 4;

/// Runs `test` under many schedules.
fn explore(test: fn()) {
    let schedules = std::env::var("METRICSSTORE_SCHEDULES").ok().and_then(|text| text.parse().ok());
    let schedules = schedules.unwrap_or(SCHEDULES);
    run(RandomScheduler::new_from_seed(SEED, schedules), test);
    run(PctScheduler::new_from_seed(SEED, PRIORITY_CHANGES, schedules), test);
}

fn run(scheduler: impl Scheduler + 'static, test: fn()) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    shuttle::Runner::new(scheduler, config).run(test);
}

fn machine(shards: usize) -> Machine {
    let mut machine = Machine::new(SEED);
    machine.options.shards = shards;
    machine.budget = Budget::new(1 << 30);
    machine
}

/// As [`Machine::open`], on files that let others have their turn.
fn open(machine: &Machine) -> Arc<Store> {
    Store::open(
        machine.options.clone(),
        Arc::new(SwitchingFiles::new(&machine.files)),
        Arc::new(machine.clock.clone()),
        machine.budget.clone(),
        Arc::new(Progress::default()),
    )
    .unwrap()
}

/// What was acknowledged so far. Its lock is never held while another thread could run.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<Contents>>);

impl Ledger {
    fn note(&self, rows: &[(u32, i64, f64)]) {
        let mut contents = self.0.lock().unwrap();
        for &(number, time, value) in rows {
            contents.entry(number).or_default().insert(time, value.to_bits());
        }
    }

    fn so_far(&self) -> Contents {
        self.0.lock().unwrap().clone()
    }
}

/// Panics when a sample of `part` is not in `whole`.
fn assert_holds(whole: &Contents, part: &Contents, circumstance: &str) {
    for (number, samples) in part {
        for (time, bits) in samples {
            let found = whole.get(number).and_then(|samples| samples.get(time));
            assert_eq!(found, Some(bits), "{circumstance}: series {number} at {time}");
        }
    }
}

/// Appends and notes what was acknowledged; says whether it was.
fn write(store: &Store, ledger: &Ledger, rows: &[(u32, i64, f64)]) -> bool {
    match append(store, rows, DURABLE) {
        Ok(verdicts) => {
            assert_eq!(verdicts.refused, []);
            ledger.note(rows);
            true
        }
        Err(AppendError::Log(_) | AppendError::ShuttingDown) => false,
        Err(error) => panic!("{error}"),
    }
}

/// A moment at which the power could fail: what the disk might show then, and what was acknowledged before.
fn moment(files: &SimFiles, ledger: &Ledger) -> (Contents, SimFiles) {
    let acknowledged = ledger.so_far();
    (acknowledged, files.image())
}

/// After a crash at each of these moments everything acknowledged is there, and nothing that was never written.
fn assert_recoverable(machine: &Machine, moments: Vec<(Contents, SimFiles)>, offered: &Contents) {
    for (acknowledged, files) in moments {
        let after = Machine { files, options: machine.options.clone(), ..Machine::new(SEED) };
        after.clock.set_wall_ms(NOW_MS + HOUR_MS);
        let contents = read_all(&after.open());
        assert_holds(&contents, &acknowledged, "after a crash");
        assert_holds(offered, &contents, "never written");
    }
}

/// What readers and epochs had is given back when they are gone; what the store has as long as it lives is not of
/// interest.
fn assert_nothing_counted(machine: &Machine) {
    for part in [Part::HeadPayload, Part::SeriesState, Part::Segments, Part::Query] {
        assert_eq!(machine.budget.part(part), 0, "bytes of {} are still counted", part.name());
    }
}

fn contents_of(rows: &[(u32, i64, f64)]) -> Contents {
    let ledger = Ledger::default();
    ledger.note(rows);
    ledger.so_far()
}

fn join<T>(threads: [thread::JoinHandle<T>; 2]) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// A sample every 15 s.
fn row(number: u32, step: i64) -> (u32, i64, f64) {
    (number, NOW_MS + step * STEP_MS, (step * 8 + i64::from(number)) as f64 / 4.0)
}

// --- The log: one sync for all that wait --------------------------------------------------------------------------

#[test]
fn what_is_acknowledged_survives_a_crash_at_any_moment() {
    explore(|| {
        let machine = machine(2);
        let store = open(&machine);
        let ledger = Ledger::default();
        let writers = [1, 2].map(|number| {
            let (store, ledger) = (Arc::clone(&store), ledger.clone());
            thread::spawn(move || {
                (0..2).for_each(|step| assert!(write(&store, &ledger, &[row(number, step)])));
            })
        });
        let moments: Vec<_> = (0..3)
            .map(|_| {
                thread::yield_now();
                moment(&machine.files, &ledger)
            })
            .collect();
        join(writers);
        drop(store);
        assert_nothing_counted(&machine);
        let offered = contents_of(&[row(1, 0), row(1, 1), row(2, 0), row(2, 1)]);
        assert_eq!(ledger.so_far(), offered);
        assert_recoverable(&machine, moments, &offered);
    });
}

#[test]
fn a_seal_and_a_new_log_file_in_the_middle_lose_nothing() {
    explore(|| {
        let machine = machine(2);
        let store = open(&machine);
        let ledger = Ledger::default();
        assert!(write(&store, &ledger, &[row(1, 0), row(2, 0)]));
        machine.clock.advance(SEAL_AFTER);
        let writers = [1, 2].map(|number| {
            let (store, ledger) = (Arc::clone(&store), ledger.clone());
            thread::spawn(move || {
                (1..3).for_each(|step| assert!(write(&store, &ledger, &[row(number, step)])));
            })
        });
        let (sealer, files, seen) = (Arc::clone(&store), machine.files.clone(), ledger.clone());
        let sealer = thread::spawn(move || {
            let before = moment(&files, &seen);
            assert!(sealer.maintain().unwrap().sealed);
            [before, moment(&files, &seen)]
        });
        let mut moments = vec![moment(&machine.files, &ledger)];
        moments.extend(sealer.join().unwrap());
        join(writers);
        moments.push(moment(&machine.files, &ledger));
        let offered = ledger.so_far();
        assert_eq!(read_all(&store), offered);
        drop(store);
        assert_nothing_counted(&machine);
        assert_recoverable(&machine, moments, &offered);
    });
}

#[test]
fn a_sync_that_fails_acknowledges_nothing_and_a_seal_heals_it() {
    explore(|| {
        let machine = machine(1);
        let store = open(&machine);
        let ledger = Ledger::default();
        // The first sync of the log fails, whoever makes it.
        let mut failed = false;
        machine.files.fail_when(Fault::Io, move |call, path| {
            let now = call == Call::Sync && !failed && path.to_string_lossy().contains("/wal/");
            failed |= now;
            now
        });
        let writers = [1, 2].map(|number| {
            let (store, ledger) = (Arc::clone(&store), ledger.clone());
            thread::spawn(move || {
                // A sender repeats what was not acknowledged.
                for step in 0..2 {
                    let _ = write(&store, &ledger, &[row(number, step)])
                        || write(&store, &ledger, &[row(number, step)]);
                }
            })
        });
        let (healer, files, seen) = (Arc::clone(&store), machine.files.clone(), ledger.clone());
        let healer = thread::spawn(move || {
            let _ = healer.maintain();
            moment(&files, &seen)
        });
        let mut moments = vec![healer.join().unwrap(), moment(&machine.files, &ledger)];
        join(writers);
        moments.push(moment(&machine.files, &ledger));
        let _ = store.maintain();
        assert_eq!(store.stats().read_only, None, "the log takes records again");
        assert!(write(&store, &ledger, &[row(3, 0)]));
        moments.push(moment(&machine.files, &ledger));
        assert_holds(&read_all(&store), &ledger.so_far(), "acknowledged and not to be read");
        drop(store);
        let offered = contents_of(&[row(1, 0), row(1, 1), row(2, 0), row(2, 1), row(3, 0)]);
        assert_recoverable(&machine, moments, &offered);
    });
}

#[test]
fn a_close_beside_writers_keeps_what_they_were_told_is_kept() {
    explore(|| {
        let machine = machine(2);
        let store = open(&machine);
        let ledger = Ledger::default();
        let writers = [1, 2].map(|number| {
            let (store, ledger) = (Arc::clone(&store), ledger.clone());
            thread::spawn(move || (0..2).all(|step| write(&store, &ledger, &[row(number, step)])))
        });
        store.close().unwrap();
        let mut moments = vec![moment(&machine.files, &ledger)];
        join(writers);
        assert!(matches!(append(&store, &[row(9, 0)], DURABLE), Err(AppendError::ShuttingDown)));
        assert_eq!(read_all(&store), ledger.so_far());
        drop(store);
        assert_nothing_counted(&machine);
        let offered = contents_of(&[row(1, 0), row(1, 1), row(2, 0), row(2, 1)]);
        moments.push(moment(&machine.files, &ledger));
        assert_recoverable(&machine, moments, &offered);
    });
}

// --- Reading beside writing ---------------------------------------------------------------------------------------

/// Reads twice; every read has what was acknowledged before it began, and rows of all series up to one and the same.
fn read_whole_rows(store: &Store, ledger: &Ledger, series: &[u32]) {
    let mut rows_before = 0;
    for _ in 0..2 {
        let acknowledged = ledger.so_far();
        let contents = read_all(store);
        assert_holds(&contents, &acknowledged, "acknowledged before the read");
        let rows: Vec<usize> =
            series.iter().map(|number| contents.get(number).map_or(0, BTreeMap::len)).collect();
        assert!(rows.iter().all(|&count| count == rows[0]), "a row is torn: {rows:?}");
        for &number in series {
            let expected: Vec<(u32, i64, f64)> = (0..rows[0] as i64).map(|step| row(number, step)).collect();
            assert_holds(
                &contents_of(&expected),
                &contents.iter().filter(|found| *found.0 == number).map(|(n, s)| (*n, s.clone())).collect(),
                "a row",
            );
        }
        assert!(rows[0] >= rows_before, "what was there is gone");
        rows_before = rows[0];
    }
}

#[test]
fn a_reader_sees_rows_whole_and_never_fewer_than_before() {
    explore(|| {
        let machine = machine(1);
        let store = open(&machine);
        let ledger = Ledger::default();
        let (writer, notes) = (Arc::clone(&store), ledger.clone());
        let writer = thread::spawn(move || {
            for step in 0..4 {
                assert!(write(&writer, &notes, &[row(1, step), row(2, step), row(3, step)]));
            }
        });
        read_whole_rows(&store, &ledger, &[1, 2, 3]);
        writer.join().unwrap();
        drop(store);
        assert_nothing_counted(&machine);
    });
}

#[test]
fn seals_and_merges_swap_under_readers_without_a_gap() {
    explore(|| {
        let machine = machine(1);
        let store = open(&machine);
        let ledger = Ledger::default();
        // One seal more makes as many segments as are merged.
        for step in 0..3 {
            assert!(write(&store, &ledger, &[row(1, step), row(2, step)]));
            machine.clock.advance(SEAL_AFTER);
            assert!(store.maintain().unwrap().sealed);
        }
        assert!(write(&store, &ledger, &[row(1, 3), row(2, 3)]));
        machine.clock.advance(SEAL_AFTER);
        let upkeep = Arc::clone(&store);
        let upkeep = thread::spawn(move || {
            let done = upkeep.maintain().unwrap();
            assert!(done.sealed && done.merged > 0);
        });
        let (writer, notes) = (Arc::clone(&store), ledger.clone());
        let writer = thread::spawn(move || assert!(write(&writer, &notes, &[row(1, 4), row(2, 4)])));
        read_whole_rows(&store, &ledger, &[1, 2]);
        upkeep.join().unwrap();
        writer.join().unwrap();
        assert_eq!(read_all(&store), ledger.so_far());
        drop(store);
        assert_nothing_counted(&machine);
    });
}

#[test]
fn an_epoch_lives_as_long_as_its_last_reader_and_no_longer() {
    explore(|| {
        let machine = machine(1);
        let store = open(&machine);
        let ledger = Ledger::default();
        for step in 0..3 {
            assert!(write(&store, &ledger, &[row(1, step), row(2, step)]));
        }
        let expected = ledger.so_far();
        let everything = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
        let mut batches = store.select(&everything, &machine.budget.grant(Part::Query, 1 << 20)).unwrap();
        machine.clock.advance(SEAL_AFTER);
        let sealer = Arc::clone(&store);
        let sealer = thread::spawn(move || assert!(sealer.maintain().unwrap().sealed));
        let (writer, notes) = (Arc::clone(&store), ledger.clone());
        let writer = thread::spawn(move || assert!(write(&writer, &notes, &[row(1, 3), row(2, 3)])));
        let (mut samples, mut times, mut values) = (0, Vec::new(), Vec::new());
        while let Some(batch) = batches.next_batch().unwrap() {
            for index in 0..batch.ids.len() {
                batch.samples_into(index, &mut times, &mut values);
                samples += times.len();
            }
        }
        assert_eq!(
            samples,
            expected.values().map(BTreeMap::len).sum::<usize>(),
            "the snapshot does not change"
        );
        sealer.join().unwrap();
        writer.join().unwrap();
        drop(store);
        assert!(machine.budget.part(Part::HeadPayload) > 0, "the reader still holds the epoch");
        drop(batches);
        assert_nothing_counted(&machine);
    });
}

// --- Series come and go -------------------------------------------------------------------------------------------

#[test]
fn two_writers_that_meet_a_new_series_create_it_once() {
    explore(|| {
        let machine = machine(2);
        let store = open(&machine);
        let ledger = Ledger::default();
        let writers = [10, 20].map(|own| {
            let (store, ledger) = (Arc::clone(&store), ledger.clone());
            thread::spawn(move || assert!(write(&store, &ledger, &[row(1, 0), row(own, 0), row(2, 0)])))
        });
        join(writers);
        assert_eq!(store.stats().series, 4);
        assert_eq!(store.stats().series_created, 4);
        assert_eq!(read_all(&store), ledger.so_far());
        drop(store);
        assert_nothing_counted(&machine);
        assert_eq!(read_all(&machine.open()), ledger.so_far());
    });
}

#[test]
fn series_that_end_leave_beside_readers_and_beside_writers_that_bring_them_back() {
    explore(|| {
        let mut machine = machine(1);
        machine.options.retention_ms = Some(2 * HOUR_MS);
        let store = open(&machine);
        let ledger = Ledger::default();
        // Series 1 to 4 are sealed and expire; series 5 lives on.
        append(&store, &[row(1, 0), row(2, 0), row(3, 0), row(4, 0)], DURABLE).unwrap();
        machine.clock.advance(SEAL_AFTER);
        assert!(store.maintain().unwrap().sealed);
        machine.clock.advance(Duration::from_hours(3));
        let late = 3 * 240 + 120;
        assert!(write(&store, &ledger, &[row(5, late)]));
        machine.clock.advance(SEAL_AFTER);
        let upkeep = Arc::clone(&store);
        let upkeep = thread::spawn(move || upkeep.maintain().unwrap());
        let (writer, notes) = (Arc::clone(&store), ledger.clone());
        let writer = thread::spawn(move || {
            // A series that ends now comes back, and a new one may get the id of one that is gone.
            assert!(write(&writer, &notes, &[row(1, late + 1), row(6, late + 1)]));
            assert!(write(&writer, &notes, &[row(2, late + 1), row(7, late + 1)]));
        });
        for _ in 0..2 {
            let acknowledged = ledger.so_far();
            let contents = read_all(&store);
            assert_holds(&contents, &acknowledged, "acknowledged before the read");
        }
        upkeep.join().unwrap();
        writer.join().unwrap();
        assert_eq!(read_all(&store), ledger.so_far());
        drop(store);
        assert_nothing_counted(&machine);
        assert_eq!(read_all(&machine.open()), ledger.so_far());
    });
}
