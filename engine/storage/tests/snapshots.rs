//! Snapshots: what they hold, how long they stay, what they cost, and what a crash or a full disk leaves of one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::{Contents, DIR, HOUR_MS, Machine, NOW_MS, append, read_all};
use metricsstore_model::{Acknowledge, Matcher};
use metricsstore_storage::{NewSnapshot, SnapshotInfo, Store, StoreOptions};
use metricsstore_vfs::Files;
use metricsstore_vfs::sim::{Call, Fault};

const DURABLE: Acknowledge = Acknowledge::Durable;

/// When the tests' samples begin.
const THEN_MS: i64 = NOW_MS - 4 * HOUR_MS;

fn wanted(skip_head: bool, ttl: Option<Duration>) -> NewSnapshot {
    NewSnapshot { skip_head, owner: "test".into(), ttl }
}

fn fill(store: &Store, from_ms: i64, steps: i64) {
    for step in 0..steps {
        let value = |n: u32| f64::from(n) + (step * 7919 % 1000) as f64 / 7.0;
        let rows: Vec<(u32, i64, f64)> = (0..9).map(|n| (n, from_ms + step * 15_000, value(n))).collect();
        assert_eq!(append(store, &rows, DURABLE).unwrap().refused, []);
    }
}

fn place(info: &SnapshotInfo) -> PathBuf {
    Path::new(DIR).join("snapshots").join(&info.name)
}

/// Opens a snapshot as a data directory.
fn open(machine: &Machine, info: &SnapshotInfo) -> Arc<Store> {
    let options = StoreOptions::new(place(info));
    let copy = Machine {
        files: machine.files.clone(),
        clock: machine.clock.clone(),
        options,
        budget: machine.budget.clone(),
    };
    copy.open()
}

/// What was taken before the call is in it and nothing later, whatever the parts of the head cross
/// (prometheus/prometheus#5105, #5686), and taking goes on from there (prometheus-junkyard/tsdb#446).
#[test]
fn a_snapshot_opens_as_a_data_directory_with_everything_that_was_taken() {
    let machine = Machine::new(1);
    let store = machine.open();
    fill(&store, THEN_MS, 20);
    let before = read_all(&store);
    let info = store.snapshot(&wanted(false, None)).unwrap();
    fill(&store, THEN_MS + HOUR_MS, 5);
    assert_eq!((info.min_ms, info.max_ms), (Some(THEN_MS), Some(THEN_MS + 19 * 15_000)));
    let copy = open(&machine, &info);
    assert_eq!(read_all(&copy), before);
    assert!(!copy.stats().unclean_start);
    // What is written there does not come here.
    fill(&copy, THEN_MS + 2 * HOUR_MS, 5);
    copy.close().unwrap();
    let expected = 25 * 9;
    assert_eq!(read_all(&store).values().map(BTreeMap::len).sum::<usize>(), expected);
}

#[test]
fn a_snapshot_without_the_head_has_what_is_sealed_and_what_was_deleted_of_it() {
    let machine = Machine::new(1);
    let store = machine.open();
    fill(&store, THEN_MS, 20);
    store.snapshot(&wanted(false, None)).unwrap();
    let matchers = vec![vec![Matcher::equal("n", "3")]];
    store.delete(&matchers, THEN_MS, THEN_MS + 5 * 15_000).unwrap();
    let sealed = read_all(&store);
    fill(&store, THEN_MS + HOUR_MS, 5);
    let info = store.snapshot(&wanted(true, None)).unwrap();
    assert!(info.skip_head);
    assert_eq!(read_all(&open(&machine, &info)), sealed);
}

#[test]
fn a_snapshot_outlives_the_files_that_it_was_made_of_and_a_crash() {
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(5 * HOUR_MS);
    let store = machine.open();
    fill(&store, THEN_MS, 20);
    let before = read_all(&store);
    let info = store.snapshot(&wanted(false, None)).unwrap();
    machine.clock.advance(Duration::from_hours(3));
    assert_eq!(store.maintain().unwrap().expired, 1);
    assert!(read_all(&store).is_empty());
    store.maintain().unwrap();
    let stats = store.stats();
    assert!(stats.snapshot_bytes > 0 && stats.snapshot_bytes <= info.bytes, "{stats:?}");
    drop(store);
    machine.files = machine.files.crash();
    let store = machine.open();
    assert_eq!(store.snapshots(), std::slice::from_ref(&info));
    let mut copy = Machine::new(2);
    copy.options = StoreOptions { retention_ms: None, ..StoreOptions::new(place(&info)) };
    copy.files = machine.files.clone();
    assert_eq!(read_all(&copy.open()), before);
}

#[test]
fn bytes_that_a_snapshot_shares_with_the_store_count_once() {
    let machine = Machine::new(1);
    let store = machine.open();
    fill(&store, THEN_MS, 200);
    store.maintain().unwrap();
    store.snapshot(&wanted(false, None)).unwrap();
    store.maintain().unwrap();
    let once = store.stats();
    store.snapshot(&wanted(false, None)).unwrap();
    store.maintain().unwrap();
    let twice = store.stats();
    // Manifests, records and logs of nothing.
    assert!(once.snapshot_bytes < 8 << 10, "{}", once.snapshot_bytes);
    assert!(twice.disk_bytes < once.disk_bytes + (8 << 10));
    assert!(twice.segment_bytes > 4 << 10, "or this shows nothing");
}

#[test]
fn a_snapshot_is_removed_once_its_time_is_over_and_not_by_a_clock_that_jumps() {
    let mut machine = Machine::new(1);
    let store = machine.open();
    fill(&store, THEN_MS, 5);
    let kept = store.snapshot(&wanted(false, None)).unwrap();
    let info = store.snapshot(&wanted(false, Some(Duration::from_hours(24)))).unwrap();
    assert_eq!(info.expires_ms, Some(info.created_ms + 24 * HOUR_MS));
    machine.clock.set_wall_ms(NOW_MS + 365 * 24 * HOUR_MS);
    store.maintain().unwrap();
    assert_eq!(store.snapshots().len(), 2, "the wall clock alone says nothing");
    machine.clock.set_wall_ms(NOW_MS);
    machine.clock.advance(Duration::from_hours(23));
    store.maintain().unwrap();
    assert_eq!(store.snapshots().len(), 2);
    drop(store);
    // Found by a start, as well, which gives a clock that was set wrongly an hour.
    machine.files = machine.files.crash();
    let store = machine.open();
    machine.clock.advance(Duration::from_hours(1) + Duration::from_millis(1));
    store.maintain().unwrap();
    assert_eq!(store.snapshots(), std::slice::from_ref(&kept));
    assert_eq!(machine.names("snapshots"), [kept.name]);
    assert_eq!(store.stats().snapshots_expired, 1);
}

#[test]
fn a_crash_at_any_call_leaves_a_whole_snapshot_or_none_and_a_start_removes_the_remains() {
    let calls = {
        let machine = Machine::new(1);
        let store = machine.open();
        fill(&store, THEN_MS, 20);
        let before = machine.files.calls();
        store.snapshot(&wanted(false, None)).unwrap();
        machine.files.calls() - before
    };
    let mut whole = 0;
    for call in 0..calls {
        let mut machine = Machine::new(call);
        let store = machine.open();
        fill(&store, THEN_MS, 20);
        let expected = read_all(&store);
        machine.files.power_off_at(call);
        store.snapshot(&wanted(false, None)).unwrap_err();
        drop(store);
        machine.files = machine.files.crash();
        let store = machine.open();
        assert_eq!(read_all(&store), expected, "call {call}");
        let names = if machine.files.exists(&Path::new(DIR).join("snapshots")).unwrap() {
            machine.names("snapshots")
        } else {
            Vec::new()
        };
        let found = store.snapshots();
        assert_eq!(names.len(), found.len(), "call {call}: {names:?}");
        for info in &found {
            whole += 1;
            assert_eq!(read_all(&open(&machine, info)), expected, "call {call}");
        }
    }
    assert!(whole > 0, "the last calls come after the name is durable");
}

#[test]
fn a_call_that_fails_leaves_no_remains_and_the_next_snapshot_succeeds() {
    for failing in [Call::HardLink, Call::Create, Call::Rename, Call::SyncDir] {
        let machine = Machine::new(1);
        let store = machine.open();
        fill(&store, THEN_MS, 20);
        store.snapshot(&wanted(false, None)).unwrap();
        let on = Arc::new(AtomicBool::new(true));
        let is_on = Arc::clone(&on);
        machine.files.fail_when(Fault::NoSpace, move |call, path| {
            let concerned = call == Call::HardLink || path.to_string_lossy().contains("snapshots");
            is_on.load(Relaxed) && call == failing && concerned
        });
        let error = store.snapshot(&wanted(true, None)).unwrap_err().to_string();
        assert!(error.contains("/data/") && error.contains("space"), "{failing:?}: {error}");
        on.store(false, Relaxed);
        assert_eq!(machine.names("snapshots").len(), 1, "{failing:?}");
        let info = store.snapshot(&wanted(false, None)).unwrap();
        assert_eq!(read_all(&open(&machine, &info)), read_all(&store));
        assert_eq!(store.stats().snapshot_failures, 1);
    }
}

#[test]
fn directories_that_are_not_ours_are_left_alone() {
    let machine = Machine::new(1);
    let foreign = Path::new(DIR).join("snapshots/20171210T211224Z-2be650b6d019eb54");
    machine.files.create_dir_all(&foreign).unwrap();
    machine.files.create_dir_all(&Path::new(DIR).join("snapshots/mine.tmp")).unwrap();
    let store = machine.open();
    machine.clock.advance(Duration::from_hours(100));
    store.maintain().unwrap();
    assert_eq!(machine.names("snapshots").len(), 2);
    assert_eq!(store.snapshots(), []);
    let contents: Contents = read_all(&store);
    assert!(contents.is_empty());
}
