//! A volume that fills up: what is shed, who is refused, and that all of it ends by itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod common;

use std::path::Path;
use std::time::Duration;

use common::{Contents, Machine, NOW_MS, append, read_all, samples_of};
use metricsstore_model::{Acknowledge, AppendError};
use metricsstore_storage::{DiskLevel, ReadOnly, Store};
use metricsstore_vfs::Files;
use metricsstore_vfs::sim::{Call, Fault};

const DURABLE: Acknowledge = Acknowledge::Durable;
const MI: u64 = 1 << 20;
const TOTAL: u64 = 1 << 30;
/// On a volume of this size.
const RESERVE: u64 = 8 * MI;

fn is_busy(store: &Store, number: u32, time: i64) -> bool {
    match append(store, &[(number, time, 1.0)], DURABLE) {
        Err(AppendError::Busy { reason, .. }) => {
            assert!(reason.contains("free space on it or enlarge it"), "{reason}");
            true
        }
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    }
}

#[test]
fn a_store_keeps_space_back_and_finds_it_again_at_the_next_start() {
    let machine = Machine::on_a_small_volume(1);
    let store = machine.open();
    store.maintain().unwrap();
    assert_eq!(store.stats().reserve_bytes, RESERVE);
    let available = machine.files.space(Path::new("/")).unwrap().available;
    assert_eq!(available + store.stats().disk_bytes, TOTAL);
    drop(store);
    assert_eq!(machine.open().stats().reserve_bytes, RESERVE);
}

#[test]
fn writes_are_refused_while_a_seal_still_fits_and_go_on_by_themselves() {
    let machine = Machine::on_a_small_volume(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    machine.leave(12 * MI);
    store.maintain().unwrap();
    let stats = store.stats();
    assert_eq!((stats.read_only, stats.disk_level), (Some(ReadOnly::DiskFull), DiskLevel::ReadOnly));
    assert_eq!((stats.head_samples, stats.segment_count), (0, 1), "the head is sealed to free the log");
    assert!(is_busy(&store, 1, NOW_MS + 1) && is_busy(&store, 2, NOW_MS + 1));
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0)], "nothing of a refused request is written");
    assert_eq!(stats.reserve_bytes, RESERVE, "nobody needed it");
    // Not at the very threshold.
    machine.leave(17 * MI);
    store.maintain().unwrap();
    assert!(is_busy(&store, 1, NOW_MS + 1));
    machine.leave(40 * MI);
    store.maintain().unwrap();
    assert_eq!((store.stats().read_only, store.stats().disk_level), (None, DiskLevel::Tight));
    append(&store, &[(1, NOW_MS + 1, 1.0)], DURABLE).unwrap();
    machine.leave(200 * MI);
    store.maintain().unwrap();
    assert_eq!((store.stats().disk_level, store.stats().read_only_entered), (DiskLevel::Normal, 1));
    assert_eq!(store.stats().refused.busy_requests, 3);
}

/// prometheus/prometheus#3283: ingestion stopped for good when the disk had been full once.
#[test]
fn a_write_that_finds_the_disk_full_is_healed_with_the_space_kept_back() {
    let mut machine = Machine::on_a_small_volume(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    machine.leave(0);
    let error = append(&store, &[(1, NOW_MS + 1, 2.0)], DURABLE).unwrap_err();
    assert!(matches!(error, AppendError::Log(_)), "{error}");
    assert_eq!(store.stats().read_only, Some(ReadOnly::DiskFull), "known before any look at the volume");
    assert!(is_busy(&store, 1, NOW_MS + 2));
    assert!(store.maintain().unwrap().sealed, "with the space kept back");
    assert_eq!(store.stats().reserve_bytes, 0);
    assert!(is_busy(&store, 1, NOW_MS + 2), "the reserve comes first");
    machine.leave(25 * MI);
    store.maintain().unwrap();
    assert!(is_busy(&store, 1, NOW_MS + 2), "the reserve comes first");
    machine.leave(100 * MI);
    store.maintain().unwrap();
    assert_eq!((store.stats().read_only, store.stats().reserve_bytes), (None, RESERVE));
    append(&store, &[(1, NOW_MS + 2, 3.0)], DURABLE).unwrap();
    machine.files = machine.files.crash();
    drop(store);
    let samples = samples_of(&machine.open(), 1);
    assert_eq!(samples.last(), Some(&(NOW_MS + 2, 3.0)));
}

#[test]
fn a_quota_that_the_figures_of_the_volume_do_not_show_is_a_full_disk_too() {
    let machine = Machine::on_a_small_volume(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    machine
        .files
        .fail_when(Fault::NoSpace, |call, _| matches!(call, Call::Append | Call::Create | Call::Allocate));
    append(&store, &[(1, NOW_MS + 1, 1.0)], DURABLE).unwrap_err();
    for _ in 0..3 {
        assert!(store.maintain().is_err());
        assert!(is_busy(&store, 1, NOW_MS + 2));
    }
    machine.files.heal();
    store.maintain().unwrap();
    assert_eq!(store.stats().read_only, None);
    append(&store, &[(1, NOW_MS + 2, 1.0)], DURABLE).unwrap();
}

#[test]
fn a_store_starts_on_a_full_disk_answers_and_takes_writes_when_there_is_space() {
    let mut machine = Machine::on_a_small_volume(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    drop(store);
    machine.files = machine.files.kill();
    machine.files.remove(Path::new("/data/reserve")).unwrap();
    machine.leave(0);
    let store = machine.open();
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0)]);
    assert!(is_busy(&store, 1, NOW_MS + 1));
    let files = machine.names("wal");
    for _ in 0..3 {
        assert!(store.maintain().is_err());
    }
    assert_eq!(
        (machine.names("wal"), machine.names("segments")),
        (files, vec![]),
        "attempts leave nothing behind"
    );
    machine.files.remove(Path::new("/other")).unwrap();
    store.maintain().unwrap();
    append(&store, &[(1, NOW_MS + 1, 2.0)], DURABLE).unwrap();
    machine.files = machine.files.crash();
    drop(store);
    let store = machine.open();
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0), (NOW_MS + 1, 2.0)]);
    assert_eq!(store.stats().quarantined, 0, "a full disk is no damage");
}

#[test]
fn nothing_that_the_older_slot_of_the_manifest_needs_is_removed_while_the_slots_differ() {
    let mut machine = Machine::on_a_small_volume(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    machine.clock.advance(Duration::from_mins(30));
    assert!(store.maintain().unwrap().sealed);
    append(&store, &[(1, NOW_MS + 1, 2.0)], DURABLE).unwrap();
    let first = machine.names("wal");
    machine.clock.advance(Duration::from_mins(30));
    machine.files.fail_when(Fault::Io, |call, path| {
        call == Call::Rename && path.to_string_lossy().contains("manifest-2")
    });
    assert!(store.maintain().is_err());
    drop(store);
    machine.files = machine.files.kill();
    machine.files.remove(Path::new("/data/reserve")).unwrap();
    machine.leave(0);
    let store = machine.open();
    for _ in 0..3 {
        _ = store.maintain();
        assert!(machine.names("wal").starts_with(&first), "{:?} {first:?}", machine.names("wal"));
    }
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0), (NOW_MS + 1, 2.0)]);
}

#[test]
fn a_start_on_a_full_disk_with_the_reserve_in_place_seals_with_it() {
    let mut machine = Machine::on_a_small_volume(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    machine.leave(0);
    drop(store);
    machine.files = machine.files.kill();
    let store = machine.open();
    assert_eq!(store.stats().reserve_bytes, RESERVE);
    assert!(store.maintain().unwrap().sealed);
    assert_eq!((store.stats().reserve_bytes, store.stats().head_samples), (0, 0));
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0)]);
}

/// prometheus/prometheus#3487: a compaction that failed for lack of space was tried again at once and left its
/// temporary files, which took the rest of the disk.
#[test]
fn a_merge_that_fails_leaves_nothing_waits_longer_each_time_and_keeps_no_seal_from_running() {
    let machine = Machine::on_a_small_volume(1);
    let store = machine.open();
    let mut expected = Contents::new();
    let round = |expected: &mut Contents| {
        machine.clock.advance(Duration::from_mins(30));
        let now = NOW_MS + expected.get(&1).map_or(0, |samples| samples.len() as i64) * 1_800_000;
        append(&store, &[(1, now, 1.0)], DURABLE).unwrap();
        expected.entry(1).or_default().insert(now, 1.0_f64.to_bits());
    };
    // The fourth segment would be merged with the others at once.
    for _ in 0..4 {
        round(&mut expected);
        if store.stats().segment_count == 3 {
            let first = machine.names("segments").remove(0);
            machine
                .files
                .fail_when(Fault::Io, move |call, path| call == Call::ReadAt && path.ends_with(&first));
        }
        let merged = store.maintain();
        assert_eq!(merged.is_err(), store.stats().segment_count == 4);
    }
    let attempts = |ticks: u64| {
        (0..ticks)
            .filter(|_| {
                machine.clock.advance(Duration::from_secs(1));
                store.maintain().is_err()
            })
            .count()
    };
    assert_eq!((attempts(1), attempts(2), attempts(4), attempts(8)), (1, 1, 1, 1));
    assert_eq!(machine.names("segments").len(), 4, "what failed is removed");
    machine.files.heal();
    machine.clock.advance(Duration::from_mins(5));
    assert_eq!(store.maintain().unwrap().merged, 4);
    assert_eq!(read_all(&store), expected);
}

#[test]
fn what_was_written_and_could_not_be_named_is_removed() {
    let machine = Machine::on_a_small_volume(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    machine.clock.advance(Duration::from_mins(30));
    machine.files.fail_when(Fault::Io, |call, path| call == Call::Create && path.ends_with("manifest.tmp"));
    for _ in 0..5 {
        assert!(store.maintain().is_err());
        assert_eq!((machine.names("segments"), machine.names("identity")), (vec![], vec![]));
    }
    machine.files.heal();
    assert!(store.maintain().unwrap().sealed);
    assert_eq!((machine.names("segments").len(), machine.names("identity").len()), (1, 1));
    assert_eq!(samples_of(&store, 1), [(NOW_MS, 1.0)]);
}
