//! One failure at every single call to the file system: a fixed script runs once to count its calls, then once for each
//! call and each way of failing. After every failure the store gets over it or starts again, holds everything that was
//! acknowledged, and takes writes.
//!
//! `FAULTS_CALL=n` runs the failures of one call only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may panic")]
mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Contents, HOUR_MS, Machine, NOW_MS, append, read_all};
use metricsstore_model::{Acknowledge, Matcher};
use metricsstore_storage::Store;
use metricsstore_vfs::sim::{Call, Fault, PowerOff, SimFiles};

const DURABLE: Acknowledge = Acknowledge::Durable;
const RETENTION_MS: i64 = 24 * HOUR_MS;
const WORKERS: usize = 2;
/// Rounds of the script: enough for identity files to be written anew and for segments to be merged and to expire.
const ROUNDS: i64 = 13;

/// A call of the script: in which life of the machine, and which call in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    life: usize,
    call: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Fails(Fault),
    Off(PowerOff),
}

const TROUBLES: [Trouble; 5] = [
    Trouble::Fails(Fault::Io),
    Trouble::Fails(Fault::LostAnswer),
    Trouble::Fails(Fault::NoSpace),
    Trouble::Off(PowerOff::Before),
    Trouble::Off(PowerOff::After),
];

/// Calls that may find no space.
const WRITING: [Call; 7] =
    [Call::Create, Call::Append, Call::Sync, Call::SyncDir, Call::Rename, Call::CreateDirAll, Call::HardLink];

/// Calls that the script must make for the sweep to prove anything.
const DEMANDED: [Call; 8] = [
    Call::Create,
    Call::Append,
    Call::Sync,
    Call::SyncDir,
    Call::Rename,
    Call::Remove,
    Call::ReadAt,
    Call::List,
];

struct Run {
    trouble: Option<(Place, Trouble)>,
    /// Calls of each life so far.
    calls: Arc<Mutex<Vec<Vec<Call>>>>,
    machine: Machine,
    store: Option<Arc<Store>>,
    now_ms: i64,
    /// Every sample that was sent, and those that were acknowledged.
    sent: Contents,
    acknowledged: Contents,
    merged: u32,
    expired: u32,
    removed: u64,
}

impl Run {
    fn new(trouble: Option<(Place, Trouble)>) -> Run {
        let mut machine = Machine::new(1);
        machine.options.retention_ms = Some(RETENTION_MS);
        machine.options.out_of_order_window_ms = HOUR_MS;
        let run = Run {
            trouble,
            calls: Arc::default(),
            machine,
            store: None,
            now_ms: NOW_MS,
            sent: Contents::new(),
            acknowledged: Contents::new(),
            merged: 0,
            expired: 0,
            removed: 0,
        };
        run.begin_life();
        run
    }

    /// Counts the calls of a new file system, and makes one of them fail when this is its life.
    fn begin_life(&self) {
        let calls = Arc::clone(&self.calls);
        let life = calls.lock().unwrap().len();
        calls.lock().unwrap().push(Vec::new());
        self.machine.files.fail_when(Fault::Io, move |call, _| {
            calls.lock().unwrap()[life].push(call);
            false
        });
        match self.trouble {
            Some((place, Trouble::Fails(fault))) if place.life == life => {
                self.machine.files.fail_nth(place.call, fault);
            }
            Some((place, Trouble::Off(when))) if place.life == life => {
                self.machine.files.power_off(place.call, when);
            }
            _ => {}
        }
    }

    /// Starts; one failure must not keep a second attempt from succeeding.
    fn start(&mut self) {
        if self.machine.files.is_off() {
            return;
        }
        self.store = self.machine.try_open().ok();
        if self.store.is_none() && !self.machine.files.is_off() {
            self.store = Some(self.machine.try_open().expect("a start after a failed start"));
        }
    }

    fn append(&mut self, rows: &[(u32, i64, f64)]) {
        let Some(store) = &self.store else { return };
        for &(series, time, value) in rows {
            self.sent.entry(series).or_default().insert(time, value.to_bits());
        }
        let Ok(verdicts) = append(store, rows, DURABLE) else { return };
        let refused: BTreeSet<u32> = verdicts.refused.iter().map(|refused| refused.row).collect();
        for (row, &(series, time, value)) in rows.iter().enumerate() {
            if !refused.contains(&(row as u32)) {
                self.acknowledged.entry(series).or_default().insert(time, value.to_bits());
            }
        }
    }

    fn advance(&mut self, by: Duration) {
        self.machine.clock.advance(by);
        self.now_ms += by.as_millis() as i64;
    }

    fn maintain(&mut self) {
        let Some(store) = &self.store else { return };
        if let Ok(done) = store.maintain() {
            self.merged += done.merged;
            self.expired += done.expired;
            self.removed += done.series_removed;
        }
    }

    /// Appends, seals, merges, expires; stops, is killed and loses power in between.
    fn script(&mut self) {
        self.start();
        for round in 0..ROUNDS {
            let new = 10 + round as u32;
            for step in 0..3 {
                let (time, value) = (self.now_ms + step * 1000, (round * 10 + step) as f64);
                self.append(&[
                    (1, time, value),
                    (2, time, value / 4.0),
                    (3, time + step * 7, value),
                    (new, time, 1.0),
                ]);
            }
            if round % 3 == 1 {
                self.append(&[(1, self.now_ms - 500_000, 0.25), (4, self.now_ms - 400_000, 7.0)]);
            }
            match round {
                3 => self.stop(),
                5 => self.end(SimFiles::kill),
                7 => self.end(SimFiles::crash),
                _ => {}
            }
            // What the first rounds wrote expires in the last ones.
            let expires = round == ROUNDS - 4;
            self.advance(if expires { Duration::from_hours(23) } else { Duration::from_mins(30) });
            self.maintain();
            if self.machine.files.is_off() {
                return;
            }
        }
        self.append(&[(1, self.now_ms, 0.5), (200, self.now_ms, 2.0)]);
    }

    fn stop(&mut self) {
        if let Some(store) = self.store.take() {
            let _ = store.close();
        }
        self.start();
    }

    fn end(&mut self, how: impl Fn(&SimFiles) -> SimFiles) {
        if self.machine.files.is_off() {
            return;
        }
        self.machine.files = how(&self.machine.files);
        self.store = None;
        self.begin_life();
        self.start();
    }

    /// The store is whole again without a restart.
    fn get_over_it(&mut self) {
        let Some(store) = self.store.clone().filter(|_| !self.machine.files.is_off()) else { return };
        self.machine.files.heal();
        store.maintain().expect("background work after the failure is over");
        assert!(store.stats().read_only.is_none(), "the store stays read-only");
        self.check();
        self.take_a_write();
    }

    /// The power fails; the store starts, holds what it must and goes on.
    fn start_again(&mut self) {
        self.machine.files = self.machine.files.crash();
        self.store = Some(self.machine.try_open().expect("a start after the failure"));
        let quarantined = self.store.as_ref().map(|store| store.stats().quarantined);
        assert_eq!(quarantined, Some(0), "a failing call damages nothing");
        self.check();
        self.take_a_write();
        self.machine.files = self.machine.files.crash();
        self.store = Some(self.machine.try_open().expect("another start"));
        self.check();
    }

    fn take_a_write(&mut self) {
        self.advance(Duration::from_secs(1));
        let rows = [(1, self.now_ms + 60_000, 3.0), (300, self.now_ms + 60_000, 4.0)];
        self.append(&rows);
        for (series, time, value) in rows {
            let acknowledged = self.acknowledged.get(&series).and_then(|samples| samples.get(&time));
            assert_eq!(acknowledged, Some(&value.to_bits()), "the store takes no writes");
        }
    }

    fn check(&self) {
        let contents = read_all(self.store.as_ref().unwrap());
        let from_ms = self.now_ms - RETENTION_MS;
        for (series, samples) in &self.acknowledged {
            for (time, bits) in samples.range(from_ms..) {
                let read = contents.get(series).and_then(|samples| samples.get(time));
                assert_eq!(read, Some(bits), "series {series} at {time} was acknowledged and is lost");
            }
        }
        for (series, samples) in &contents {
            for (time, bits) in samples {
                let sent = self.sent.get(series).and_then(|samples| samples.get(time));
                assert_eq!(sent, Some(bits), "series {series} at {time} was never sent");
            }
        }
    }
}

/// The script's calls, life by life, when nothing fails.
fn calls_of_the_script() -> Vec<Vec<Call>> {
    let mut run = Run::new(None);
    run.script();
    let done = (run.merged, run.expired, run.removed);
    assert!(done.0 > 4 && done.1 > 0 && done.2 > 0, "the script does too little: {done:?}");
    let calls = run.calls.lock().unwrap().clone();
    run.get_over_it();
    run.start_again();
    calls
}

fn try_trouble(place: Place, call: Call, trouble: Trouble) {
    let attempt = std::panic::catch_unwind(|| {
        let mut run = Run::new(Some((place, trouble)));
        run.script();
        run.get_over_it();
        run.start_again();
    });
    if let Err(failure) = attempt {
        println!(
            "{trouble:?} at {call:?}, {place:?}; again: FAULTS_CALL={} cargo test -p metricsstore-storage \
             --test faults",
            place.call
        );
        std::panic::resume_unwind(failure);
    }
}

#[test]
fn a_failure_at_any_call_loses_nothing_and_the_store_goes_on() {
    let chosen: Option<u64> = std::env::var("FAULTS_CALL").ok().and_then(|call| call.parse().ok());
    let lives = calls_of_the_script();
    for demanded in DEMANDED {
        assert!(lives.iter().flatten().any(|&call| call == demanded), "the script never calls {demanded:?}");
    }
    let mut work = Vec::new();
    for (life, calls) in lives.iter().enumerate() {
        for (number, &call) in (0..).zip(calls).filter(|&(number, _)| chosen.is_none_or(|n| n == number)) {
            let troubles = TROUBLES
                .into_iter()
                .filter(|&trouble| trouble != Trouble::Fails(Fault::NoSpace) || WRITING.contains(&call));
            work.extend(troubles.map(|trouble| (Place { life, call: number }, call, trouble)));
        }
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(&(place, call, trouble)) = work.get(next.fetch_add(1, Relaxed)) {
                    try_trouble(place, call, trouble);
                }
            });
        }
    });
    println!("{} failures at {} calls", work.len(), lives.iter().map(Vec::len).sum::<usize>());
}

#[test]
fn what_a_failed_sync_lost_is_no_damage_though_the_log_went_on_in_another_file() {
    for seed in 0..8 {
        let mut machine = Machine::new(seed);
        let store = machine.open();
        append(&store, &[(1, NOW_MS, 1.0), (9, NOW_MS, 9.0)], DURABLE).unwrap();
        // A deletion is what only the log keeps: its files stay until it works again.
        store.delete(&[vec![Matcher::equal("n", "9")]], NOW_MS, NOW_MS).unwrap();
        for step in 1..20 {
            append(&store, &[(1, NOW_MS + step, 1.5)], Acknowledge::Written).unwrap();
        }
        // One sync of the log fails; the seal heals it, but what comes after that cannot be noted in the manifest.
        let (mut has_failed, mut renames) = (false, 0);
        machine.files.fail_when(Fault::Io, move |call, path| {
            renames += u32::from(call == Call::Rename);
            let fails = !has_failed && call == Call::Sync && path.starts_with("/data/wal");
            has_failed |= fails;
            fails || (call == Call::Rename && renames > 4)
        });
        append(&store, &[(1, NOW_MS + 20, 2.0)], DURABLE).unwrap_err();
        store.maintain().unwrap_err();
        for step in 30..33 {
            append(&store, &[(1, NOW_MS + step, 3.0)], DURABLE).unwrap();
        }
        drop(store);
        machine.files = machine.files.crash();
        let store = machine.open();
        assert_eq!(store.stats().quarantined, 0, "seed {seed}");
        let times: Vec<i64> = read_all(&store)[&1].keys().copied().collect();
        let expected = (0..=20).chain(30..33).map(|step| NOW_MS + step);
        assert_eq!(times, expected.collect::<Vec<_>>(), "seed {seed}");
    }
}
