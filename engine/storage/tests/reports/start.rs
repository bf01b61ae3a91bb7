//! Starts: after a kill, after damage, with too little memory.
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metricsstore_budget::Budget;
use metricsstore_vfs::Files;
use metricsstore_vfs::sim::Fault;

use super::{
    DURABLE, STEP_MS, all_files, content_of, fill, is_part_of, killed_machine, only_file, overwrite, seal,
};
use crate::common::{Contents, DIR, Machine, NOW_MS, append, read_all};

// prometheus/prometheus#6934, #16942, #13939
#[test]
fn a_start_takes_no_more_memory_than_it_is_given_and_a_kill_in_it_changes_nothing() {
    let mut machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    for step in 0..350 {
        let noise = |n: u32| (f64::from(n) + 0.37).powi(5 + step as i32 % 3).sqrt();
        let rows: Vec<(u32, i64, f64)> = (0..2000).map(|n| (n, NOW_MS + step * 1000, noise(n))).collect();
        append(&store, &rows, DURABLE).unwrap();
        for (number, time, value) in rows {
            expected.entry(number).or_default().insert(time, value.to_bits());
        }
    }
    let limit = machine.budget.counted() * 9 / 10;
    drop(store);
    machine.files = machine.files.kill();
    for calls in [40, 80, 120] {
        machine.budget = Budget::new(limit);
        machine.files.power_off_at(calls);
        drop(machine.try_open());
        machine.files = machine.files.crash();
    }
    machine.budget = Budget::new(limit);
    let peak = Arc::new(AtomicU64::new(0));
    let (budget, seen) = (machine.budget.clone(), Arc::clone(&peak));
    machine.files.fail_when(Fault::Io, move |_, _| {
        seen.fetch_max(budget.counted(), Relaxed);
        false
    });
    let store = machine.open();
    assert!(peak.load(Relaxed) <= limit, "{} bytes were counted, {limit} given", peak.load(Relaxed));
    assert_eq!(read_all(&store), expected);
}

// prometheus/prometheus#18552
#[test]
fn damage_is_set_aside_once_and_what_was_read_is_read_again() {
    let (mut machine, expected) = killed_machine();
    let log = only_file(&machine, "wal");
    let mut bytes = content_of(&machine, &log);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    overwrite(&machine, &log, &bytes);
    let store = machine.open();
    let contents = read_all(&store);
    assert!(store.stats().quarantined > 0);
    assert!(is_part_of(&contents, &expected) && contents != expected);
    for _ in 0..3 {
        machine.files = machine.files.crash();
        let store = machine.open();
        assert_eq!(store.stats().quarantined, 0, "it was set aside already");
        assert_eq!(read_all(&store), contents);
        store.maintain().unwrap();
    }
}

// prometheus/prometheus#7409, #5867, #8236
#[test]
fn nothing_is_appended_behind_a_torn_tail() {
    let (mut machine, expected) = killed_machine();
    let log = only_file(&machine, "wal");
    let mut bytes = content_of(&machine, &log);
    bytes.truncate(bytes.len() - 5);
    overwrite(&machine, &log, &bytes);
    let store = machine.open();
    assert_eq!(content_of(&machine, &log), bytes, "the old file stays as it is");
    let time = NOW_MS + 100 * STEP_MS;
    append(&store, &[(1, time, 7.0), (9, time, 8.0)], DURABLE).unwrap();
    machine.files = machine.files.crash();
    drop(store);
    let store = machine.open();
    let contents = read_all(&store);
    assert_eq!((contents[&1][&time], contents[&9][&time]), (7f64.to_bits(), 8f64.to_bits()));
    assert_eq!(store.stats().quarantined, 0, "a torn tail is what a crash leaves");
    let lost = expected.values().flatten().count() + 2 - contents.values().flatten().count();
    assert_eq!(lost, 5, "the record that was cut short, and no other");
}

// prometheus/prometheus#7835, #4705, #7506
#[test]
fn a_bad_record_does_not_keep_the_log_from_being_cut() {
    let (machine, _) = killed_machine();
    let log = only_file(&machine, "wal");
    let mut bytes = content_of(&machine, &log);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    overwrite(&machine, &log, &bytes);
    let store = machine.open();
    fill(&store, &mut Contents::new(), NOW_MS + 50 * STEP_MS, 3, 5);
    seal(&machine, &store);
    assert_eq!(store.stats().wal_segments, 1);
    assert!(!machine.files.exists(&log).unwrap(), "a copy in the quarantine is enough");
    assert_eq!(machine.names("quarantine").len(), 1);
}

// prometheus/prometheus#7530
#[test]
fn damage_in_one_file_deletes_no_other() {
    for below in ["wal", "segments", "identity"] {
        let (machine, expected) = killed_machine();
        let damaged = only_file(&machine, below);
        let mut bytes = content_of(&machine, &damaged);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        overwrite(&machine, &damaged, &bytes);
        let others: Vec<(std::path::PathBuf, Vec<u8>)> = all_files(&machine)
            .into_iter()
            .filter(|(path, _)| *path != damaged && !path.to_string_lossy().contains("manifest"))
            .map(|(path, _)| (path.clone(), content_of(&machine, &path)))
            .collect();
        let store = machine.open();
        for (path, content) in others {
            // What was written anew without the damage is kept under its old name in the quarantine.
            let name = path.file_name().unwrap().to_string_lossy();
            let parent = path.parent().and_then(Path::file_name).unwrap().to_string_lossy();
            let aside = Path::new(DIR).join("quarantine").join(format!("{parent}-{name}"));
            let kept = machine.files.read(&path, 1 << 30).or_else(|_| machine.files.read(&aside, 1 << 30));
            let is_sealed_log = parent == "wal" && kept.is_err();
            assert!(is_sealed_log || kept.unwrap() == content, "{}", path.display());
        }
        if below == "segments" {
            // A select that needs what is damaged says so, instead of answering less; a merge leaves it out.
            continue;
        }
        assert!(is_part_of(&read_all(&store), &expected));
        let quarantined = machine.names("quarantine");
        assert!(quarantined.iter().any(|name| name.starts_with(below)), "{below}: {quarantined:?}");
    }
}

// VictoriaMetrics/VictoriaMetrics#5012, #63, #2616, #148, #2877; prometheus/prometheus#3283
#[test]
fn files_without_content_and_missing_files_do_not_stop_a_start() {
    let (machine, _) = killed_machine();
    let files: Vec<_> = all_files(&machine).into_iter().filter(|(_, len)| *len > 0).collect();
    assert!(files.len() >= 4, "{files:?}");
    for (path, _) in files {
        for missing in [false, true] {
            let (machine, expected) = killed_machine();
            if missing {
                machine.files.remove(&path).unwrap();
                machine.files.sync_dir(path.parent().unwrap()).unwrap();
            } else {
                overwrite(&machine, &path, b"");
            }
            let store = machine.try_open().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(is_part_of(&read_all(&store), &expected), "{}", path.display());
            let time = NOW_MS + 100 * STEP_MS;
            append(&store, &[(1, time, 1.0)], DURABLE).unwrap();
            assert!(read_all(&store)[&1].contains_key(&time));
        }
    }
}

// VictoriaMetrics/VictoriaMetrics#9074
#[test]
fn files_that_only_save_time_may_hold_anything() {
    for name in ["lock", "manifest.tmp", "wal/readme", "wal/00000002.tmp", "quarantine/x", "clean"] {
        let (machine, expected) = killed_machine();
        overwrite(&machine, &Path::new(DIR).join(name), b"\xff\x00 no such thing");
        let store = machine.try_open().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read_all(&store), expected, "{name}");
        assert_eq!(store.stats().quarantined, 0, "{name}");
    }
}

// VictoriaMetrics/VictoriaMetrics#11059, #8443
#[test]
fn a_start_says_whether_the_last_process_ended_in_order() {
    let mut machine = Machine::new(1);
    let store = machine.open();
    assert!(!store.stats().unclean_start, "there was none before");
    append(&store, &[(1, NOW_MS, 1.0)], DURABLE).unwrap();
    store.close().unwrap();
    drop(store);
    let store = machine.open();
    assert!(!store.stats().unclean_start);
    // It writes nothing and is killed all the same.
    drop(store);
    for after in [machine.files.image(), machine.files.kill()] {
        machine.files = after;
        let store = machine.open();
        assert!(store.stats().unclean_start);
        store.close().unwrap();
        store.close().unwrap();
        drop(store);
        machine.files = machine.files.crash();
        assert!(!machine.open().stats().unclean_start, "it ends in order although nothing was written");
    }
}
