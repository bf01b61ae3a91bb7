//! Disks that are full or fail.
use std::collections::BTreeSet;
use std::path::Path;

use metricsstore_vfs::sim::{Call, Fault};

use super::{DURABLE, SEAL_AFTER, STEP_MS, all_files, fill, overwrite, seal};
use crate::common::{Contents, DIR, HOUR_MS, Machine, NOW_MS, append, read_all, samples_of};

fn is_below(path: &Path, below: &str) -> bool {
    path.starts_with(Path::new(DIR).join(below))
}

fn used(machine: &Machine) -> u64 {
    all_files(machine).iter().map(|(_, bytes)| bytes).sum()
}

// prometheus/prometheus#12882
#[test]
fn a_log_that_cannot_be_cut_is_an_error_at_every_tick_until_it_can() {
    let machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, NOW_MS, 4, 3);
    machine.files.fail_when(Fault::Io, |call, path| call == Call::Remove && is_below(path, "wal"));
    machine.clock.advance(SEAL_AFTER);
    for tick in 0..3 {
        let error = store.maintain().expect_err(&format!("tick {tick} must say that the log stays"));
        assert!(error.to_string().contains("wal/"), "{error}");
    }
    assert_eq!(store.stats().wal_segments, 2, "what stays is counted");
    fill(&store, &mut expected, NOW_MS + 4 * STEP_MS, 4, 3);
    machine.files.heal();
    store.maintain().unwrap();
    assert_eq!(store.stats().wal_segments, 1);
    assert_eq!(read_all(&store), expected);
}

// prometheus/prometheus#12882
#[test]
fn a_manifest_that_cannot_be_written_is_an_error_at_every_tick_and_costs_nothing() {
    let mut machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, NOW_MS, 4, 3);
    machine.files.fail_when(Fault::Io, |call, _| call == Call::Rename);
    machine.clock.advance(SEAL_AFTER);
    for tick in 0..3 {
        let error = store.maintain().expect_err(&format!("tick {tick} must say that nothing is sealed"));
        assert!(error.to_string().contains("manifest"), "{error}");
        fill(&store, &mut expected, NOW_MS + (4 + tick) * STEP_MS, 1, 3);
    }
    assert_eq!(read_all(&store), expected);
    machine.files.heal();
    store.maintain().unwrap();
    assert_eq!(read_all(&store), expected);
    machine.files = machine.files.crash();
    drop(store);
    assert_eq!(read_all(&machine.open()), expected);
}

// prometheus/prometheus#3283
#[test]
fn writing_goes_on_when_space_is_back() {
    let mut machine = Machine::on_a_small_volume(1);
    let store = machine.open();
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    for round in 1..4 {
        machine.leave(10);
        let time = NOW_MS + round * STEP_MS;
        for _ in 0..3 {
            assert!(append(&store, &[(1, time, 1.0)], DURABLE).is_err());
            let _ = store.maintain();
        }
        machine.leave(200 << 20);
        store.maintain().unwrap();
        append(&store, &[(1, time, 1.0)], DURABLE).unwrap();
    }
    let expected: Vec<(i64, f64)> = (0..4).map(|round| (NOW_MS + round * STEP_MS, 1.0)).collect();
    assert_eq!(samples_of(&store, 1), expected);
    machine.files = machine.files.crash();
    drop(store);
    let store = machine.open();
    assert_eq!(samples_of(&store, 1), expected);
    assert_eq!(store.stats().quarantined, 0, "a full disk is no damage");
}

/// A store with three segments that would be merged with the next.
fn three_segments(machine: &Machine, expected: &mut Contents) -> std::sync::Arc<metricsstore_storage::Store> {
    let store = machine.open();
    for round in 0..3 {
        fill(&store, expected, NOW_MS + round * 20 * STEP_MS, 20, 5);
        seal(machine, &store);
    }
    store
}

// prometheus/prometheus#7245
#[test]
fn a_full_disk_removes_nothing() {
    let mut machine = Machine::on_a_small_volume(1);
    let mut expected = Contents::new();
    let store = three_segments(&machine, &mut expected);
    fill(&store, &mut expected, NOW_MS + 60 * STEP_MS, 20, 5);
    let segments: BTreeSet<String> = machine.names("segments").into_iter().collect();
    machine.leave(0);
    for _ in 0..10 {
        machine.clock.advance(SEAL_AFTER);
        let _ = store.maintain();
        assert!(segments.is_subset(&machine.names("segments").into_iter().collect()));
    }
    assert_eq!(read_all(&store), expected);
    drop(store);
    machine.files = machine.files.kill();
    let store = machine.open();
    assert_eq!(read_all(&store), expected);
    let _ = store.maintain();
    assert!(segments.is_subset(&machine.names("segments").into_iter().collect()));
    assert_eq!(store.stats().quarantined, 0, "a full disk is no damage");
}

// prometheus/prometheus#8884, #9744, #5771
#[test]
fn everything_in_the_directory_is_counted() {
    let machine = Machine::new(1);
    let mut expected = Contents::new();
    let store = three_segments(&machine, &mut expected);
    fill(&store, &mut expected, NOW_MS + 60 * STEP_MS, 5, 5);
    overwrite(&machine, &Path::new(DIR).join("quarantine/segments-00000099"), &[0; 12_345]);
    overwrite(&machine, &Path::new(DIR).join("wal/left-behind"), &[0; 777]);
    store.maintain().unwrap();
    assert_eq!(store.stats().disk_bytes, used(&machine));
}

// prometheus/prometheus#10890
#[test]
fn retention_frees_space_before_anything_is_written() {
    let mut machine = Machine::new(1);
    machine.options.retention_ms = Some(2 * HOUR_MS);
    let mut expected = Contents::new();
    let store = three_segments(&machine, &mut expected);
    machine.clock.advance(3 * SEAL_AFTER);
    fill(&store, &mut expected, NOW_MS + 3 * HOUR_MS, 5, 5);
    // What little is free is enough for a manifest and not for a seal, which is due as well.
    machine.files.set_capacity(Some(used(&machine) + 100));
    machine.clock.advance(SEAL_AFTER);
    let (before, old) = (used(&machine), machine.names("segments"));
    let _ = store.maintain();
    assert!(machine.names("segments").iter().all(|name| !old.contains(name)));
    assert!(used(&machine) < before);
}

// prometheus/prometheus#3487, #7299, #7627
#[test]
fn work_that_fails_again_and_again_leaves_nothing_behind() {
    for fail in [
        |call: Call, path: &Path| call == Call::Append && is_below(path, "segments"),
        |call: Call, path: &Path| call == Call::Sync && is_below(path, "segments"),
        |call: Call, path: &Path| call == Call::Append && is_below(path, "identity"),
        |call: Call, path: &Path| call == Call::Sync && is_below(path, "identity"),
        |call: Call, path: &Path| call == Call::SyncDir && is_below(path, "identity"),
        |call: Call, path: &Path| call == Call::Append && path.ends_with("manifest.tmp"),
        |call: Call, path: &Path| call == Call::Rename && path.ends_with("manifest.tmp"),
    ] {
        let machine = Machine::new(1);
        let mut expected = Contents::new();
        let store = three_segments(&machine, &mut expected);
        fill(&store, &mut expected, NOW_MS + 60 * STEP_MS, 20, 6);
        machine.files.fail_when(Fault::Io, fail);
        machine.clock.advance(SEAL_AFTER);
        let _ = store.maintain();
        let files = all_files(&machine).len();
        for _ in 0..20 {
            machine.clock.advance(SEAL_AFTER);
            let _ = store.maintain();
            let now = all_files(&machine);
            assert!(now.len() <= files + 2, "attempts pile up: {now:?}");
        }
        assert_eq!(read_all(&store), expected);
        machine.files.heal();
        store.maintain().unwrap();
        assert_eq!(read_all(&store), expected);
    }
}

// VictoriaMetrics/VictoriaMetrics#2762, #1727, #10057
#[test]
fn read_only_ends_by_itself_and_what_frees_space_goes_on() {
    let mut machine = Machine::on_a_small_volume(1);
    machine.options.retention_ms = Some(2 * HOUR_MS);
    let mut expected = Contents::new();
    let store = three_segments(&machine, &mut expected);
    fill(&store, &mut expected, NOW_MS + 60 * STEP_MS, 5, 5);
    machine.leave(0);
    let _ = store.maintain();
    assert!(append(&store, &[(1, NOW_MS + 100 * STEP_MS, 1.0)], DURABLE).is_err());
    assert_eq!(read_all(&store), expected, "reading goes on");
    // Retention frees what is needed; nobody has to do anything.
    machine.clock.advance(6 * SEAL_AFTER);
    let mut written = false;
    for _ in 0..5 {
        let _ = store.maintain();
        let time = NOW_MS + 5 * HOUR_MS;
        written = written || append(&store, &[(1, time, 2.0)], DURABLE).is_ok();
        machine.leave(200 << 20);
    }
    assert!(written);
    assert_eq!(store.stats().read_only, None);
}

// prometheus/prometheus#19289
#[test]
fn no_file_is_mapped_into_memory() {
    let manifest = include_str!("../../../vfs/Cargo.toml");
    let workspace = include_str!("../../../../Cargo.toml");
    assert!(!manifest.contains("mmap") && !workspace.contains("memmap"));
    let rustix = workspace.lines().find(|line| line.starts_with("rustix")).unwrap();
    assert!(!rustix.contains("\"mm\""), "{rustix}");
}
