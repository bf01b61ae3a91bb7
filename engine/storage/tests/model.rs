//! The store against a plain map: random appends, seals, merges, retention, crashes and failing disks. Whatever was
//! acknowledged as durable is read back after any crash, and nothing is ever read that was not appended.
//!
//! `MODEL_SEED=n` runs one seed, `MODEL_RUNS=n` more of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use common::{Machine, NOW_MS, append, read_all};
use metricsstore_model::{Acknowledge, Refusal, stale_nan};
use metricsstore_storage::Store;
use metricsstore_vfs::sim::Fault;

const OPERATIONS: usize = 4000;
const RUNS: u64 = 50;
const WORKERS: usize = 2;
const SERIES: u64 = 40;

/// A small generator, so that a seed means the same for ever.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What may be read of one timestamp.
#[derive(Debug, Clone)]
struct Cell {
    /// Values that were ever sent for it and not refused.
    possible: Vec<u64>,
    /// Acknowledged as durable: must be read, with the value.
    durable: Option<u64>,
}

#[derive(Default)]
struct Model {
    cells: BTreeMap<u32, BTreeMap<i64, Cell>>,
}

impl Model {
    fn sent(&mut self, series: u32, time: i64, bits: u64) -> &mut Cell {
        let cells = self.cells.entry(series).or_default();
        let cell = cells.entry(time).or_insert_with(|| Cell { possible: Vec::new(), durable: None });
        if !cell.possible.contains(&bits) {
            cell.possible.push(bits);
        }
        cell
    }

    /// Compares with what is read. Samples before `certain_from` may have expired.
    fn check(&mut self, contents: &common::Contents, certain_from: i64, context: &str) {
        for (series, samples) in contents {
            for (time, bits) in samples {
                let cell = self.cells.get(series).and_then(|cells| cells.get(time));
                let possible = cell.is_some_and(|cell| cell.possible.contains(bits));
                assert!(
                    possible,
                    "{context}: series {series} at {time} reads {bits:x}, which was never sent"
                );
                let durable = cell.and_then(|cell| cell.durable);
                assert!(
                    durable.is_none_or(|durable| durable == *bits),
                    "{context}: another value than acknowledged"
                );
            }
        }
        for (series, cells) in &self.cells {
            for (time, cell) in cells.range(certain_from..) {
                let Some(bits) = cell.durable else { continue };
                let read = contents.get(series).and_then(|samples| samples.get(time));
                assert_eq!(
                    read,
                    Some(&bits),
                    "{context}: series {series} at {time} was acknowledged and is lost"
                );
            }
        }
    }

    /// Expired samples need not be looked at again.
    fn forget_before(&mut self, time: i64) {
        self.cells.retain(|_, cells| {
            *cells = cells.split_off(&time);
            !cells.is_empty()
        });
    }
}

struct World {
    machine: Machine,
    store: Option<Arc<Store>>,
    model: Model,
    random: Random,
    /// Data time.
    now_ms: i64,
    retention_ms: i64,
    /// Samples before this may be gone for good: the highest bound of retention so far.
    certain_from: i64,
    tally: Tally,
}

/// What happened over a run: a model test that never merges proves nothing about merges.
#[derive(Debug, Default)]
struct Tally {
    acknowledged: u64,
    failed: u64,
    seals: u64,
    merges: u64,
    expired: u64,
    series_removed: u64,
    crashes: u64,
    failed_maintenance: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let mut machine = Machine::new(seed);
        let retention_ms = [600_000, 3_600_000, 24 * 3_600_000][random.below(3) as usize];
        machine.options.retention_ms = Some(retention_ms);
        machine.options.shards = 1 + random.below(3) as usize;
        World {
            store: None,
            machine,
            model: Model::default(),
            random,
            now_ms: NOW_MS,
            retention_ms,
            certain_from: i64::MIN,
            tally: Tally::default(),
        }
    }

    fn certain(&mut self) -> i64 {
        self.certain_from = self.certain_from.max(self.now_ms - self.retention_ms);
        self.certain_from
    }

    fn step(&mut self, context: &str) {
        match self.random.below(1000) {
            0..780 => self.append(),
            780..840 => self.pass_time(),
            840..920 => self.maintain(),
            920..960 => self.check(context),
            960..975 => self.inject(),
            975..985 => self.machine.files.heal(),
            985..993 => self.crash(context),
            993..996 => self.restart_cleanly(context),
            _ => self.fill_disk(),
        }
    }

    fn value(&mut self) -> f64 {
        match self.random.below(8) {
            0 => stale_nan(),
            1 => f64::from_bits(self.random.next()),
            2 => -0.0,
            3 => self.random.below(1000) as f64 / 100.0,
            _ => self.random.below(50) as f64,
        }
    }

    fn append(&mut self) {
        let Some(store) = self.store.clone() else { return };
        let target = self.random.below(4) as i64;
        let mut rows = Vec::new();
        let count = 1 + self.random.below(12);
        // Series come and go.
        let era = (self.now_ms - NOW_MS) as u64 / 7_200_000 * 13;
        let first = self.random.below(SERIES);
        for index in 0..count {
            let series = (era + (first + index) % SERIES) as u32;
            let time = match self.random.below(20) {
                0 => self.now_ms - self.random.below(1_900_000) as i64,
                1 => self.now_ms - 15_000,
                2 => self.now_ms + self.random.below(1000) as i64,
                3 => self.now_ms + 700_000,
                _ => self.now_ms + target,
            };
            rows.push((series, time, self.value()));
            if self.random.one_in(10) {
                let mut again = rows[rows.len() - 1];
                if self.random.one_in(3) {
                    again.2 = self.value();
                }
                rows.push(again);
            }
        }
        let acknowledge = if self.random.one_in(4) { Acknowledge::Written } else { Acknowledge::Durable };
        let result = append(&store, &rows, acknowledge);
        self.tally.acknowledged += u64::from(result.is_ok());
        self.tally.failed += u64::from(result.is_err());
        let mut refused = BTreeMap::new();
        if let Ok(verdicts) = &result {
            for one in &verdicts.refused {
                refused.insert(one.sample.unwrap_or(one.row), one.refusal.clone());
            }
            assert_eq!(verdicts.written as usize + refused.len(), rows.len());
        }
        for (index, &(series, time, value)) in rows.iter().enumerate() {
            if let Some(refusal) = refused.get(&(index as u32)) {
                assert!(!matches!(refusal, Refusal::Labels(_) | Refusal::SeriesBudget), "{refusal}");
                continue;
            }
            let cell = self.model.sent(series, time, value.to_bits());
            if result.is_ok() && acknowledge == Acknowledge::Durable {
                assert!(cell.durable.is_none_or(|bits| bits == value.to_bits()), "two values acknowledged");
                cell.durable = Some(value.to_bits());
            }
        }
    }

    fn pass_time(&mut self) {
        let by = match self.random.below(10) {
            0 => Duration::from_secs(self.random.below(1900)),
            2 => Duration::from_mins(30),
            1 => Duration::from_millis(1),
            _ => Duration::from_secs(15),
        };
        self.machine.clock.advance(by);
        self.now_ms += by.as_millis() as i64;
        self.certain();
    }

    fn maintain(&mut self) {
        self.certain();
        let Some(store) = &self.store else { return };
        match store.maintain() {
            Ok(done) => {
                self.tally.seals += u64::from(done.sealed);
                self.tally.merges += u64::from(done.merged > 0);
                self.tally.expired += u64::from(done.expired);
                self.tally.series_removed += done.series_removed;
            }
            Err(_) => self.tally.failed_maintenance += 1,
        }
    }

    fn check(&mut self, context: &str) {
        let Some(store) = self.store.clone() else { return };
        let from = self.certain();
        // Faults make reads fail, which is no verdict on the data.
        self.machine.files.heal();
        let contents = read_all(&store);
        self.model.check(&contents, from, context);
        self.model.forget_before(from - 3_600_000);
    }

    fn inject(&mut self) {
        let fault = if self.random.one_in(2) { Fault::NoSpace } else { Fault::Io };
        let nth = self.random.below(40);
        self.machine.files.fail_nth(nth, fault);
    }

    fn fill_disk(&mut self) {
        let room = self.random.below(20_000);
        let used = self.used_bytes();
        self.machine.files.set_capacity(Some(used + room));
        for _ in 0..20 {
            self.append();
            if self.random.one_in(5) {
                self.maintain();
            }
        }
        self.machine.files.set_capacity(None);
        self.machine.files.heal();
        if let Some(store) = &self.store {
            // Space is back: writing resumes without a restart.
            store.maintain().unwrap();
            assert_eq!(store.stats().read_only, None);
        }
    }

    fn used_bytes(&self) -> u64 {
        use metricsstore_vfs::Files;
        self.machine.files.heal();
        self.machine.files.set_capacity(Some(1 << 40));
        let space = self.machine.files.space(std::path::Path::new("/")).unwrap();
        space.total - space.available
    }

    fn crash(&mut self, context: &str) {
        if self.random.one_in(2) {
            // In the midst of something.
            let nth = self.random.below(60);
            self.machine.files.power_off_at(nth);
            self.maintain();
            self.append();
            self.append();
        }
        let dead = self.random.one_in(4);
        self.machine.files = if dead { self.machine.files.kill() } else { self.machine.files.crash() };
        self.store = None;
        self.tally.crashes += 1;
        self.reopen(context);
    }

    fn restart_cleanly(&mut self, context: &str) {
        self.machine.files.heal();
        if let Some(store) = self.store.take() {
            store.close().unwrap();
        }
        self.reopen(context);
    }

    fn reopen(&mut self, context: &str) {
        self.machine.options.shards = 1 + self.random.below(3) as usize;
        if self.random.one_in(4) {
            // A start that fails or dies half-way must not harm.
            let nth = self.random.below(80);
            if self.random.one_in(2) {
                self.machine.files.fail_nth(nth, Fault::Io);
                drop(self.machine.try_open());
                self.machine.files.heal();
            } else {
                self.machine.files.power_off_at(nth);
                drop(self.machine.try_open());
                self.machine.files = self.machine.files.crash();
            }
        }
        let store = self.machine.open();
        assert_eq!(store.stats().quarantined, 0, "{context}: a crash damages nothing");
        self.store = Some(store);
        self.check(context);
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_read_wrong() {
    let chosen: Option<u64> = std::env::var("MODEL_SEED").ok().and_then(|seed| seed.parse().ok());
    let runs = std::env::var("MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    let seeds = chosen.map_or(0..runs, |seed| seed..seed + 1);
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    run(seed);
                }
            });
        }
    });
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    world.reopen(&format!("seed {seed}, start"));
    for operation in 0..OPERATIONS {
        world.step(&format!("seed {seed}, operation {operation}"));
    }
    world.check(&format!("seed {seed}, end"));
    println!("seed {seed}: {:?}", world.tally);
    assert!(
        world.tally.seals > 5 && world.tally.crashes > 5 && world.tally.failed > 5,
        "seed {seed} did too little"
    );
}
