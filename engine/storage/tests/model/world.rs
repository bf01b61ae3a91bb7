//! A machine, the store on it, the oracle beside it, and everything that can happen to them.
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use metricsstore_budget::Level;
use metricsstore_model::{Acknowledge, AppendError, Origin, Refusal, Verdicts};
use metricsstore_storage::{NewSnapshot, Store, WalSync};
use metricsstore_vfs::Files;
use metricsstore_vfs::sim::Fault;

use super::oracle::{Bounds, Expected, Oracle};
use super::random::Random;
use super::readers::{Held, check_labels, difference, matchers, passes};
use super::tally::Tally;
use super::traffic::{self, Rows, is_histogram};
use crate::common::{DIR, Machine, NOW_MS, append_from, read_all, read_matching};

/// Selects that are held open at once.
const MAX_HELD: usize = 2;
const HOUR_MS: i64 = 3_600_000;
const RETENTIONS_MS: [i64; 3] = [600_000, HOUR_MS, 24 * HOUR_MS];
const BLOCKS_MS: [i64; 3] = [10 * 60_000, HOUR_MS / 2, 2 * HOUR_MS];
const WINDOWS_MS: [i64; 4] = [0, 0, HOUR_MS / 2, 3 * HOUR_MS];

pub struct World {
    seed: u64,
    operation: u64,
    machine: Machine,
    store: Option<Arc<Store>>,
    oracle: Oracle,
    random: Random,
    now_ms: i64,
    retention_ms: i64,
    /// Out-of-order window.
    window_ms: i64,
    level: Level,
    held: Vec<Held>,
    /// Calls fail, or failed and the store had no chance yet to get over it.
    disturbed: bool,
    pub tally: Tally,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let mut machine = Machine::new(seed);
        let retention_ms = random.pick(&RETENTIONS_MS);
        machine.options.block_duration_ms = random.pick(&BLOCKS_MS);
        machine.options.retention_ms = Some(retention_ms);
        let window_ms = random.pick(&WINDOWS_MS);
        machine.options.out_of_order_window_ms = window_ms;
        if random.one_in(5) {
            machine.options.wal_sync = WalSync::Interval;
        }
        World {
            seed,
            operation: 0,
            machine,
            store: None,
            oracle: Oracle::new(),
            random,
            now_ms: NOW_MS,
            retention_ms,
            window_ms,
            level: Level::Normal,
            held: Vec::new(),
            disturbed: false,
            tally: Tally::default(),
        }
    }

    /// Runs from an empty directory to a last look at everything.
    pub fn run(&mut self, operations: u64) {
        self.start();
        for operation in 0..operations {
            self.operation = operation;
            self.step();
        }
        self.operation = operations;
        self.recover();
        self.crash();
        self.tally.count("operations", operations);
    }

    fn step(&mut self) {
        match self.random.below(1000) {
            0..736 => self.append(),
            736..740 => self.snapshot(),
            740..800 => self.pass_time(),
            800..870 => _ = self.maintain(),
            870..895 => self.check(),
            895..905 => self.check_labels(),
            905..915 => self.hold(),
            915..930 => self.read_on(),
            930..942 => self.recover(),
            942..958 => self.inject(),
            958..966 => self.machine.files.heal(),
            966..974 => self.crash(),
            974..978 => self.restart_cleanly(),
            978..981 => self.fill_disk(),
            981..991 => self.press(),
            991..993 => self.move_clock(),
            993..995 => self.delete(),
            995..997 => self.reconfigure(),
            _ => self.end_process_in_the_midst(),
        }
    }

    fn context(&self) -> String {
        format!("seed {}, operation {}", self.seed, self.operation)
    }

    #[track_caller]
    fn demand(&self, verdict: Result<(), String>) {
        if let Err(what) = verdict {
            panic!("{}: {what}", self.context());
        }
    }

    fn retained_ms(&self) -> i64 {
        self.now_ms - self.retention_ms
    }

    fn lag_ms(&self) -> i64 {
        self.machine.options.block_duration_ms / 2
    }

    // --- Writing -------------------------------------------------------------------------------------------------

    fn append(&mut self) {
        let Some(store) = self.store.clone() else { return };
        if self.random.one_in(2) {
            let by = Duration::from_millis(self.random.below(8000));
            self.advance(by);
        }
        let bounds = self.bounds();
        let rows = traffic::request(&mut self.random, &self.oracle, bounds);
        let acknowledge = if self.random.one_in(4) { Acknowledge::Written } else { Acknowledge::Durable };
        let origin = match self.random.below(3) {
            0 => Origin::Scrape(self.random.below(3)),
            _ => Origin::RemoteWrite(self.random.below(2)),
        };
        self.note_late(&rows);
        let result = append_from(&store, origin, &rows, is_histogram, acknowledge);
        self.tally.count("appends", 1);
        match result {
            Ok(verdicts) => self.judge(&rows, &verdicts, acknowledge),
            Err(error) => self.failed(&rows, &error),
        }
        for (series, _) in rows {
            self.oracle.offer(series);
        }
    }

    /// Late samples may be seen by selects that began before them.
    fn note_late(&mut self, rows: &Rows) {
        if self.window_ms == 0 || self.held.is_empty() {
            return;
        }
        let in_order_ms = self.bounds().in_order_ms();
        let mut newest = BTreeMap::new();
        let samples =
            rows.iter().flat_map(|(series, samples)| samples.iter().map(move |sample| (series, sample)));
        for (&series, &(time, value)) in samples {
            let newest_ms = newest.entry(series).or_insert(time);
            if time < in_order_ms.max(*newest_ms) || self.oracle.may_have_newer(series, time) {
                for held in &mut self.held {
                    held.sent_late(series, time, value.to_bits());
                }
            }
            *newest_ms = time.max(*newest_ms);
        }
    }

    /// Every verdict must be one that the oracle allows.
    fn judge(&mut self, rows: &Rows, verdicts: &Verdicts, acknowledge: Acknowledge) {
        let bounds = self.bounds();
        let is_durable =
            acknowledge == Acknowledge::Durable && self.machine.options.wal_sync == WalSync::Commit;
        let mut refused = verdicts.refused.iter().peekable();
        let mut refused_histograms = verdicts.histograms.refused.iter().peekable();
        let (mut samples_seen, mut histograms_seen) = (0, 0);
        let (mut written, mut written_histograms) = (0, 0);
        for (row, (series, samples)) in rows.iter().enumerate() {
            let whole = refused.next_if(|one| one.row == row as u32 && one.sample.is_none());
            self.judge_series(*series, whole.map(|one| &one.refusal));
            let (verdicts, index, written) = if is_histogram(*series) {
                (&mut refused_histograms, &mut histograms_seen, &mut written_histograms)
            } else {
                (&mut refused, &mut samples_seen, &mut written)
            };
            for &(time, value) in samples {
                let one = verdicts.next_if(|one| one.row == row as u32 && one.sample == Some(*index));
                *index += 1;
                if whole.is_some() {
                    continue;
                }
                let bits = value.to_bits();
                let answer = one.map_or(Expected::Written, |one| Expected::Refused(one.refusal.clone()));
                self.judge_sample(*series, time, bits, bounds, &answer);
                if answer == Expected::Written {
                    *written += 1;
                    self.oracle.written(*series, time, bits);
                    if is_durable {
                        self.oracle.durable(*series, time);
                    }
                }
            }
        }
        let left = refused.next().or(refused_histograms.next());
        assert!(left.is_none(), "{}: a verdict on nothing: {verdicts:?}", self.context());
        let counted = (verdicts.written, verdicts.histograms.written);
        assert_eq!(counted, (written, written_histograms), "{}: samples written", self.context());
        self.tally.count("samples", u64::from(samples_seen + histograms_seen));
        self.tally.count("written", u64::from(written));
        self.tally.count("histograms written", u64::from(written_histograms));
    }

    fn bounds(&self) -> Bounds {
        let bounds = self.oracle.bounds(self.now_ms, self.retained_ms(), self.lag_ms());
        Bounds { window_ms: self.window_ms, disturbed: self.disturbed, ..bounds }
    }

    fn judge_sample(&mut self, series: u32, time: i64, bits: u64, bounds: Bounds, answer: &Expected) {
        let allowed = self.oracle.allowed(series, time, bits, bounds);
        assert!(
            allowed.contains(answer),
            "{}: series {series} at {time} with {bits:x} is answered by {answer:?}, not by {allowed:?}; {bounds:?}",
            self.context()
        );
        let is_deleted = self.oracle.is_deleted(series, time);
        self.tally.count("samples at deleted times", u64::from(is_deleted));
        self.tally.count("predicted exactly", u64::from(allowed.len() == 1));
        self.tally.count(
            match answer {
                Expected::Refused(Refusal::DuplicateTimestamp) => "duplicates refused",
                Expected::Refused(Refusal::OutOfOrder) => "out of order",
                Expected::Refused(Refusal::TooOld) => "too old",
                Expected::Refused(Refusal::OutOfBounds) => "out of bounds",
                Expected::Refused(Refusal::TooFarInFuture) => "too far in the future",
                _ => return,
            },
            1,
        );
    }

    /// New series, and only they, are refused under pressure, and only then.
    fn judge_series(&mut self, series: u32, refusal: Option<&Refusal>) {
        let known = self.oracle.knows(series, self.lag_ms());
        let pressed = self.level >= Level::RefuseSeries;
        match refusal {
            None => assert!(!pressed || known != Some(false), "{}: series {series} is new", self.context()),
            Some(Refusal::SeriesBudget) => {
                assert!(pressed && known != Some(true), "{}: series {series} is refused", self.context());
                self.tally.count("series refused", 1);
            }
            Some(other) => panic!("{}: series {series} is refused: {other}", self.context()),
        }
    }

    fn failed(&mut self, rows: &Rows, error: &AppendError) {
        self.tally.count("failed appends", 1);
        let busy = matches!(error, AppendError::Busy { .. });
        let pressed = self.level == Level::RefuseWrites;
        assert!(
            self.disturbed || (busy && pressed),
            "{}: nothing fails and nothing is full, and yet: {error}",
            self.context()
        );
        // Samples that may have been taken; what is busy takes nothing.
        if busy {
            return;
        }
        let bounds = self.bounds();
        for (series, samples) in rows {
            for &(time, value) in samples {
                let bits = value.to_bits();
                if self.oracle.allowed(*series, time, bits, bounds).contains(&Expected::Written) {
                    self.oracle.attempted(*series, time, bits);
                }
            }
        }
    }

    // --- Background work -----------------------------------------------------------------------------------------

    fn maintain(&mut self) -> bool {
        let Some(store) = self.store.clone() else { return false };
        self.oracle.expire_before(self.retained_ms());
        self.oracle.may_seal(self.bounds());
        match store.maintain() {
            Ok(done) => {
                self.tally.count("seals", u64::from(done.sealed));
                self.tally.count("cuts", u64::from(done.cut));
                self.tally.count("merges", u64::from(done.merged > 0));
                self.tally.count("compactions", u64::from(done.compacted > 0));
                self.tally.count("segments expired", u64::from(done.expired));
                self.tally.count("series removed", done.series_removed);
                self.oracle.deletions_settled();
                if store.stats().read_only.is_none() {
                    // What nobody waited for was synced too.
                    self.oracle.all_seen_durable();
                }
                true
            }
            Err(error) => {
                self.tally.count("failed maintenance", 1);
                assert!(self.disturbed, "{}: nothing fails, and yet: {error}", self.context());
                false
            }
        }
    }

    /// Once nothing fails any more one tick of background work is enough: the store takes writes again.
    fn recover(&mut self) {
        let Some(store) = self.store.clone() else { return };
        self.machine.files.heal();
        self.machine.files.set_capacity(None);
        self.tally.count("recoveries", 1);
        self.disturbed = true;
        assert!(self.maintain(), "{}: the store does not recover", self.context());
        assert!(store.stats().read_only.is_none(), "{}: the store stays read-only", self.context());
        self.disturbed = false;
        self.append();
    }

    /// A snapshot opens as a store with the same contents.
    fn snapshot(&mut self) {
        let Some(store) = self.store.clone() else { return };
        self.oracle.may_seal(self.bounds());
        let wanted = NewSnapshot { skip_head: false, owner: "model".into(), ttl: None };
        let info = match store.snapshot(&wanted) {
            Ok(info) => info,
            Err(error) => {
                assert!(self.disturbed, "{}: nothing fails, and yet no snapshot: {error}", self.context());
                return;
            }
        };
        if self.disturbed {
            return;
        }
        let place = Path::new(DIR).join("snapshots").join(info.name);
        let mut copy = Machine::new(self.seed);
        (copy.files, copy.clock) = (self.machine.files.clone(), self.machine.clock.clone());
        copy.options = metricsstore_storage::StoreOptions { dir: place, ..self.machine.options.clone() };
        copy.options.retention_ms = Some(self.retention_ms);
        let opened = copy.open();
        let (found, wanted) = (read_all(&opened), read_all(&store));
        assert!(found == wanted, "{}: a snapshot has other contents", self.context());
        self.tally.count("snapshots opened", 1);
    }

    fn press(&mut self) {
        let Some(store) = &self.store else { return };
        let calm = self.random.one_in(2);
        self.level = if calm { Level::Normal } else { self.random.pick(&Level::ALL) };
        store.set_pressure(self.level);
    }

    // --- Deletions -----------------------------------------------------------------------------------------------

    /// Deletes a range of some series, and sometimes has what is hidden written out of the blocks.
    fn delete(&mut self) {
        let Some(store) = self.store.clone() else { return };
        let (start_ms, end_ms) = self.range();
        // What comes from now on is not touched.
        let end_ms = end_ms.min(self.now_ms - self.random.below(HOUR_MS as u64) as i64);
        let matchers = matchers(&mut self.random);
        let deleted = store.delete(std::slice::from_ref(&matchers), start_ms, end_ms);
        if let Err(error) = &deleted {
            assert!(self.disturbed, "{}: nothing fails, and yet: {error}", self.context());
        }
        let wanted = |series| passes(series, &matchers);
        let samples = self.oracle.delete(wanted, start_ms, end_ms, deleted.is_ok());
        self.tally.count("deletions", 1);
        self.tally.count("samples deleted", samples);
        if self.random.one_in(2) {
            self.clean();
        }
    }

    fn clean(&mut self) {
        let Some(store) = self.store.clone() else { return };
        match store.clean_tombstones() {
            Ok(blocks) => self.tally.count("blocks cleaned", blocks),
            Err(error) => assert!(self.disturbed, "{}: nothing fails, and yet: {error}", self.context()),
        }
    }

    // --- Time ----------------------------------------------------------------------------------------------------

    fn pass_time(&mut self) {
        let by = match self.random.below(10) {
            0 => Duration::from_secs(self.random.below(1900)),
            1 => Duration::from_millis(1),
            2 => Duration::from_mins(30),
            _ => Duration::from_secs(15),
        };
        self.advance(by);
    }

    fn advance(&mut self, by: Duration) {
        self.machine.clock.advance(by);
        self.now_ms += by.as_millis() as i64;
    }

    /// Somebody sets the wall clock.
    fn move_clock(&mut self) {
        self.tally.count("clock jumps", 1);
        self.now_ms += match self.random.below(8) {
            0 => 2 * 24 * HOUR_MS,
            1..4 => self.random.below(3 * HOUR_MS as u64) as i64,
            _ => -(self.random.below(50 * 60_000) as i64),
        };
        self.machine.clock.set_wall_ms(self.now_ms);
    }

    /// Another retention or another window while the store runs.
    fn reconfigure(&mut self) {
        let Some(store) = &self.store else { return };
        if self.random.one_in(2) {
            self.retention_ms = self.random.pick(&RETENTIONS_MS);
            self.machine.options.retention_ms = Some(self.retention_ms);
            store.set_retention_ms(Some(self.retention_ms));
        } else {
            self.window_ms = self.random.pick(&WINDOWS_MS);
            self.machine.options.out_of_order_window_ms = self.window_ms;
            store.set_out_of_order_window_ms(self.window_ms);
        }
        self.tally.count("reconfigurations", 1);
    }

    // --- Reading -------------------------------------------------------------------------------------------------

    /// Reads everything, hidden samples included, and a range as queries do.
    fn check(&mut self) {
        let Some(store) = self.store.clone() else { return };
        // Faults make reads fail, which is no verdict on the data.
        self.machine.files.heal();
        store.set_retention_ms(None);
        let contents = read_all(&store);
        store.set_retention_ms(Some(self.retention_ms));
        let learned = self.oracle.learn(&contents);
        self.demand(learned);
        self.oracle.settle_newest();
        self.tally.count("full reads", 1);
        self.check_range(&store);
    }

    fn range(&mut self) -> (i64, i64) {
        let around =
            |random: &mut Random, now_ms: i64| now_ms + 1_200_000 - random.below(3 * HOUR_MS as u64) as i64;
        let (one, other) = (around(&mut self.random, self.now_ms), around(&mut self.random, self.now_ms));
        match self.random.below(4) {
            0 => (i64::MIN, i64::MAX),
            1 => (i64::MIN, one),
            _ => (one.min(other), one.max(other)),
        }
    }

    fn check_range(&mut self, store: &Store) {
        let (start_ms, end_ms) = self.range();
        let matchers = matchers(&mut self.random);
        let read = read_matching(store, &matchers, start_ms, end_ms);
        let shown_from_ms = start_ms.max(self.retained_ms());
        let expected = self.oracle.contents(shown_from_ms, end_ms, |series| passes(series, &matchers));
        if read != expected {
            let difference = difference(&read, &expected);
            panic!("{}: {matchers:?} from {start_ms} to {end_ms}: {difference}", self.context());
        }
        self.tally.count("range reads", 1);
    }

    fn check_labels(&mut self) {
        self.check();
        let Some(store) = self.store.clone() else { return };
        let (start_ms, end_ms) = self.range();
        let shown = (start_ms.max(self.retained_ms()), end_ms);
        let verdict = check_labels(&store, &self.oracle, shown, &mut self.random);
        self.demand(verdict);
        self.tally.count("label queries", 1);
    }

    /// Begins a select that goes on later: what it shows must stay as it is now.
    fn hold(&mut self) {
        if self.held.len() == MAX_HELD {
            return;
        }
        self.check();
        let Some(store) = self.store.clone() else { return };
        let (start_ms, end_ms) = self.range();
        let expected = self.oracle.contents(start_ms.max(self.retained_ms()), end_ms, |_| true);
        self.held.push(Held::begin(&store, start_ms, end_ms, expected));
    }

    /// Reads a held select to its end, or a part of it.
    fn read_on(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.random.below(self.held.len() as u64) as usize;
        let mut held = self.held.swap_remove(at);
        if self.random.one_in(3) && held.step() {
            self.held.push(held);
            return;
        }
        match held.finish(self.disturbed) {
            Ok(whole) => self.tally.count("snapshots read", u64::from(whole)),
            Err(what) => self.demand(Err(what)),
        }
    }

    // --- Failures ------------------------------------------------------------------------------------------------

    fn inject(&mut self) {
        let fault = if self.random.one_in(2) { Fault::NoSpace } else { Fault::Io };
        let nth = self.random.below(40);
        self.disturbed = true;
        if self.random.one_in(3) {
            // One kind of calls fails until it is healed.
            let kind = self.random.pick(&super::FAILING_CALLS);
            self.machine.files.fail_when(fault, move |call, _| call == kind);
        } else {
            self.machine.files.fail_nth(nth, fault);
        }
    }

    fn fill_disk(&mut self) {
        self.tally.count("full disks", 1);
        let room = self.random.below(20_000);
        self.machine.files.heal();
        self.machine.files.set_capacity(None);
        let space = self.machine.files.space(Path::new("/")).unwrap();
        self.machine.files.set_capacity(Some(space.total - space.available + room));
        self.disturbed = true;
        for _ in 0..20 {
            self.append();
            if self.random.one_in(5) {
                self.maintain();
            }
        }
        if self.random.one_in(3) {
            // A full disk keeps no store from starting.
            self.end_process();
            self.open();
            self.check();
        }
        self.recover();
    }

    fn end_process(&mut self) {
        self.held.clear();
        if self.random.one_in(4) {
            self.machine.files = self.machine.files.kill();
            self.oracle.killed();
            self.tally.count("kills", 1);
        } else {
            self.machine.files = self.machine.files.crash();
            self.oracle.power_failed();
            self.tally.count("power failures", 1);
        }
        self.store = None;
    }

    fn crash(&mut self) {
        self.end_process();
        self.start();
    }

    /// The power fails in the midst of something.
    fn end_process_in_the_midst(&mut self) {
        let nth = self.random.below(60);
        self.disturbed = true;
        self.machine.files.power_off_at(nth);
        self.append();
        self.maintain();
        match self.random.below(5) {
            0 => self.delete(),
            1 => self.clean(),
            2 => self.snapshot(),
            _ => {
                self.append();
                self.append();
            }
        }
        self.crash();
    }

    fn restart_cleanly(&mut self) {
        self.machine.files.heal();
        self.held.clear();
        if let Some(store) = self.store.take() {
            if let Err(error) = store.close() {
                panic!("{}: the store does not close: {error}", self.context());
            }
            self.oracle.all_seen_durable();
        }
        self.tally.count("restarts", 1);
        self.start();
    }

    /// Starts, sometimes after a start that fails or dies half-way: that must not harm.
    fn start(&mut self) {
        if self.random.one_in(4) {
            self.tally.count("failed starts", 1);
            let nth = self.random.below(80);
            self.oracle.expire_before(self.retained_ms());
            if self.random.one_in(2) {
                let fault = if self.random.one_in(2) { Fault::NoSpace } else { Fault::Io };
                self.machine.files.fail_nth(nth, fault);
                drop(self.machine.try_open());
                self.machine.files.heal();
            } else {
                self.machine.files.power_off_at(nth);
                drop(self.machine.try_open());
                self.machine.files = self.machine.files.crash();
                self.oracle.power_failed();
            }
        }
        self.open();
        self.disturbed = false;
        self.check();
    }

    fn open(&mut self) {
        self.machine.options.shards = 1 + self.random.below(3) as usize;
        self.level = Level::Normal;
        self.oracle.expire_before(self.retained_ms());
        let store = match self.machine.try_open() {
            Ok(store) => store,
            Err(error) => panic!("{}: the store does not start: {error}", self.context()),
        };
        assert_eq!(store.stats().quarantined, 0, "{}: a crash damages nothing", self.context());
        store.set_retention_ms(None);
        let contents = read_all(&store);
        store.set_retention_ms(Some(self.retention_ms));
        let learned = self.oracle.learn(&contents);
        self.demand(learned);
        // A start makes durable what it shows.
        self.oracle.all_seen_durable();
        self.oracle.restarted();
        self.oracle.may_seal(self.bounds());
        self.store = Some(store);
    }

    /// Files below the data directory, for whoever looks into a failure.
    pub fn files(&self) -> Vec<String> {
        let files = &self.machine.files;
        let list = |below: &str| files.list(&Path::new(DIR).join(below)).unwrap_or_default();
        ["", "wal", "segments", "identity", "quarantine"]
            .iter()
            .flat_map(|below| {
                list(below).into_iter().map(move |entry| format!("{below}/{} {}", entry.name, entry.len))
            })
            .collect()
    }
}
