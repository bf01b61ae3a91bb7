//! Damaged files: every flipped byte and every cut is found and counted, costs exactly what it must, nothing is deleted,
//! and the next start reads the same and finds nothing new.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Contents, DIR, Machine, NOW_MS, append, read_all};
use metricsstore_budget::Grant;
use metricsstore_model::Acknowledge;
use metricsstore_model::read::{ReadError, Selection, Source};
use metricsstore_vfs::Files;
use metricsstore_vfs::sim::{Call, Fault, SimFiles};

/// A copy of all files, one byte of one of them changed or the file cut there.
fn copy_with(files: &SimFiles, damaged: &Path, change: impl Fn(&mut Vec<u8>)) -> SimFiles {
    let copy = SimFiles::new(1);
    let mut pending = vec![PathBuf::from(DIR)];
    while let Some(dir) = pending.pop() {
        copy.create_dir_all(&dir).unwrap();
        for entry in files.list(&dir).unwrap() {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                pending.push(path);
                continue;
            }
            let mut bytes = files.read(&path, 1 << 30).unwrap();
            if path == damaged {
                change(&mut bytes);
            }
            let file = copy.create(&path).unwrap();
            file.append(&bytes).unwrap();
            file.sync().unwrap();
        }
        copy.sync_dir(&dir).unwrap();
    }
    copy
}

/// Everything that can be read, and how much was set aside; `None` where reading says that something is damaged.
fn try_read(machine: &Machine) -> Option<(Contents, u64)> {
    let store = machine.open();
    let selection = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
    let mut batches = store.select(&selection, &Grant::unlimited()).unwrap();
    loop {
        match batches.next_batch() {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(ReadError::Corrupt { file, what, .. }) => {
                assert!(file.starts_with(DIR) && !what.is_empty(), "{file}: {what}");
                return None;
            }
            Err(error) => panic!("{error}"),
        }
    }
    drop(batches);
    Some((read_all(&store), store.stats().quarantined))
}

/// As [`try_read`]; then the damaged bytes are still there, in their place or in the quarantine, and another start reads
/// the same and sets nothing aside again.
fn read_twice(machine: &Machine, damaged: &Path) -> Option<(Contents, u64)> {
    let bytes = machine.files.read(damaged, 1 << 30).unwrap();
    let read = try_read(machine);
    if read.as_ref().is_none_or(|(_, quarantined)| *quarantined > 0) {
        let kind = damaged.parent().and_then(Path::file_name).unwrap().to_string_lossy();
        let name = damaged.file_name().unwrap().to_string_lossy();
        let aside = Path::new(DIR).join("quarantine").join(format!("{kind}-{name}"));
        let kept = machine.files.read(&aside, 1 << 30).or_else(|_| machine.files.read(damaged, 1 << 30));
        assert_eq!(kept.unwrap(), bytes, "{}: the damaged bytes are kept", damaged.display());
    }
    let again = try_read(machine);
    assert_eq!(again.as_ref().map(|(contents, _)| contents), read.as_ref().map(|(contents, _)| contents));
    assert!(again.is_none_or(|(_, quarantined)| quarantined == 0), "it was set aside already");
    read
}

/// A store with two log files' worth of samples and one segment.
fn machine_with_data() -> (Machine, Contents) {
    let machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    let mut write = |step: i64| {
        let rows: Vec<(u32, i64, f64)> = (0..6)
            .map(|number| (number, NOW_MS + step * 15_000, (step * 7 + i64::from(number)) as f64 / 8.0))
            .collect();
        append(&store, &rows, Acknowledge::Durable).unwrap();
        for (number, time, value) in rows {
            expected.entry(number).or_default().insert(time, value.to_bits());
        }
    };
    (0..8).for_each(&mut write);
    machine.clock.advance(Duration::from_mins(30));
    assert!(store.maintain().unwrap().sealed);
    (8..14).for_each(&mut write);
    drop(store);
    (machine, expected)
}

fn only_file(machine: &Machine, below: &str) -> PathBuf {
    let names = machine.names(below);
    assert_eq!(names.len(), 1, "{below}: {names:?}");
    Path::new(DIR).join(below).join(&names[0])
}

fn is_part_of(part: &Contents, whole: &Contents) -> bool {
    part.iter().all(|(number, samples)| {
        samples.iter().all(|(time, bits)| whole.get(number).and_then(|all| all.get(time)) == Some(bits))
    })
}

/// Damages each byte of a file in turn; what is read is never wrong, and `judge` gets what was read where it is less.
fn flip_each_byte(file: &Path, judge: impl Fn(usize, Option<(Contents, u64)>, &Contents)) {
    let (machine, expected) = machine_with_data();
    let length = machine.files.read(file, 1 << 30).unwrap().len();
    for at in 0..length {
        let files = copy_with(&machine.files, file, |bytes| bytes[at] ^= 0x10);
        let machine = Machine { files, ..Machine::new(1) };
        let read = read_twice(&machine, file);
        if let Some((contents, _)) = &read {
            assert!(is_part_of(contents, &expected), "byte {at}: something else was read than written");
        }
        judge(at, read, &expected);
    }
}

const LOG_HEADER_BYTES: usize = 36;
const LOG_FRAME_BYTES: usize = 17;

/// Where the records of a log file end, from the byte diagram of the format.
fn record_ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = LOG_HEADER_BYTES;
    while at < bytes.len() {
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        at += LOG_FRAME_BYTES + length;
        ends.push(at);
    }
    ends
}

/// What is expected without the samples of some steps.
fn without_steps(expected: &Contents, lost: impl Fn(i64) -> bool) -> Contents {
    let is_kept = |time: &i64| !lost((time - NOW_MS) / 15_000);
    let mut contents = expected.clone();
    for samples in contents.values_mut() {
        samples.retain(|time, _| is_kept(time));
    }
    contents
}

#[test]
fn a_flipped_byte_in_the_log_costs_its_record() {
    let (machine, expected) = machine_with_data();
    let file = only_file(&machine, "wal");
    let bytes = machine.files.read(&file, 1 << 30).unwrap();
    let ends = record_ends(&bytes);
    // Steps 8 to 13, one record each.
    assert_eq!(ends.len(), 6);
    for at in 0..bytes.len() {
        for bit in [0x01, 0x10, 0x80] {
            let files = copy_with(&machine.files, &file, |bytes| bytes[at] ^= bit);
            let machine = Machine { files, ..Machine::new(1) };
            let (contents, quarantined) = read_twice(&machine, &file).unwrap();
            let record = ends.iter().position(|&end| at < end).unwrap() as i64;
            let in_header = at < LOG_HEADER_BYTES;
            let lost = |step| !in_header && step == 8 + record;
            assert!(contents == without_steps(&expected, lost), "byte {at} bit {bit}: {contents:?}");
            // Nothing tells of the last record that it was durable: its damage may be the trace of a crash.
            assert_eq!(quarantined, u64::from(in_header || record < 5), "byte {at} bit {bit}");
        }
    }
}

#[test]
fn a_damaged_log_file_that_cannot_be_copied_is_moved_aside_when_it_is_done_with() {
    let (mut machine, expected) = machine_with_data();
    let file = only_file(&machine, "wal");
    // In the first record of rows.
    let damaged = copy_with(&machine.files, &file, |bytes| {
        let at = record_ends(bytes)[0] - 1;
        bytes[at] ^= 1;
    });
    machine.files = damaged;
    let bytes = machine.files.read(&file, 1 << 30).unwrap();
    machine.files.fail_when(Fault::Io, |call, path| {
        call == Call::HardLink || call == Call::Create && path.to_string_lossy().contains("quarantine")
    });
    let store = machine.open();
    assert!(is_part_of(&read_all(&store), &expected));
    assert!(store.stats().quarantined > 0);
    let aside = Path::new(DIR)
        .join("quarantine")
        .join(format!("wal-{}", file.file_name().unwrap().to_string_lossy()));
    assert_eq!(machine.files.read(&aside, 1 << 30).unwrap(), bytes);
    assert!(!machine.files.exists(&file).unwrap());
}

#[test]
fn a_log_that_is_cut_short_costs_what_was_cut_off() {
    let (machine, expected) = machine_with_data();
    let file = only_file(&machine, "wal");
    let bytes = machine.files.read(&file, 1 << 30).unwrap();
    let ends = record_ends(&bytes);
    for keep in 0..bytes.len() {
        let files = copy_with(&machine.files, &file, |bytes| bytes.truncate(keep));
        let machine = Machine { files, ..Machine::new(1) };
        let (contents, quarantined) = read_twice(&machine, &file).unwrap();
        let whole = ends.iter().filter(|&&end| end <= keep).count() as i64;
        assert!(contents == without_steps(&expected, |step| step >= 8 + whole), "cut to {keep}");
        assert_eq!(quarantined, 0, "cut to {keep}: as a crash could have left it");
    }
}

#[test]
fn damage_in_a_log_file_that_another_one_continues_is_always_counted() {
    let (machine, mut expected) = machine_with_data();
    let file = only_file(&machine, "wal");
    let bytes = machine.files.read(&file, 1 << 30).unwrap();
    let ends = record_ends(&bytes);
    let rows: Vec<(u32, i64, f64)> = (0..6).map(|number| (number, NOW_MS + 14 * 15_000, 0.5)).collect();
    append(&machine.open(), &rows, Acknowledge::Durable).unwrap();
    for (number, time, value) in rows {
        expected.entry(number).or_default().insert(time, value.to_bits());
    }
    assert_eq!(machine.names("wal").len(), 2);
    for at in 0..bytes.len() {
        for cut in [false, true] {
            let damage = |bytes: &mut Vec<u8>| if cut { bytes.truncate(at) } else { bytes[at] ^= 0x10 };
            let files = copy_with(&machine.files, &file, damage);
            let machine = Machine { files, ..Machine::new(1) };
            let (contents, quarantined) = read_twice(&machine, &file).unwrap();
            let record = ends.iter().position(|&end| at < end).unwrap() as i64;
            let in_header = at < LOG_HEADER_BYTES;
            let lost = |step: i64| {
                if cut { (8 + record..14).contains(&step) } else { !in_header && step == 8 + record }
            };
            assert!(contents == without_steps(&expected, lost), "byte {at}, cut: {cut}: {contents:?}");
            assert_eq!(quarantined, 1, "byte {at}, cut: {cut}");
        }
    }
}

#[test]
fn a_flipped_byte_in_a_segment_is_an_error_or_sets_the_segment_aside() {
    let (machine, _) = machine_with_data();
    flip_each_byte(&only_file(&machine, "segments"), |at, read, expected| {
        // Either the segment was left out and counted, or reading it says that it is damaged.
        if let Some((contents, quarantined)) = read {
            assert!(quarantined > 0, "byte {at} was read as if nothing had happened");
            for (number, samples) in expected {
                for (time, bits) in samples.range(NOW_MS + 8 * 15_000..) {
                    assert_eq!(
                        contents[number].get(time),
                        Some(bits),
                        "byte {at}: the log is not touched by it"
                    );
                }
            }
        }
    });
}

#[test]
fn a_flipped_byte_in_the_definitions_never_gives_a_series_to_another() {
    let (machine, _) = machine_with_data();
    flip_each_byte(&only_file(&machine, "identity"), |at, read, _| {
        if let Some((_, quarantined)) = read {
            assert!(quarantined > 0, "byte {at} was read as if nothing had happened");
        }
    });
}

#[test]
fn a_flipped_byte_in_definitions_that_only_the_log_has_changes_no_label() {
    let machine = Machine::new(1);
    let rows: Vec<(u32, i64, f64)> = (0..6).map(|number| (number, NOW_MS, f64::from(number))).collect();
    let store = machine.open();
    append(&store, &rows, Acknowledge::Durable).unwrap();
    let expected = read_all(&store);
    // A start writes them to an identity file.
    drop(store);
    let file =
        machine.names("wal").into_iter().map(|name| Path::new(DIR).join("wal").join(name)).next().unwrap();
    for at in 0..machine.files.read(&file, 1 << 30).unwrap().len() {
        let files = copy_with(&machine.files, &file, |bytes| bytes[at] ^= 0x10);
        let store = Machine { files, ..Machine::new(1) }.open();
        // Reading them panics where the number or the name of a series is not what it was.
        assert!(is_part_of(&read_all(&store), &expected), "byte {at}: something else was read than written");
        let jobs = store.label_values("job", &[], i64::MIN, i64::MAX, 100).unwrap().items;
        assert!(jobs.iter().all(|job| ["j0", "j1", "j2"].contains(&job.as_str())), "byte {at}: {jobs:?}");
    }
}

#[test]
fn ids_of_lost_definitions_are_not_read_as_the_series_that_get_them() {
    let (machine, _) = machine_with_data();
    let file = only_file(&machine, "identity");
    let files = copy_with(&machine.files, &file, |bytes| bytes[30] ^= 1);
    let machine = Machine { files, ..Machine::new(1) };
    for number in 100..104 {
        let store = machine.open();
        append(&store, &[(number, NOW_MS + 300_000, 9.0)], Acknowledge::Durable).unwrap();
        store.close().unwrap();
        drop(store);
        let contents = read_all(&machine.open());
        for new in 100..=number {
            assert_eq!(contents[&new].len(), 1, "series {new} has its own sample and no other");
        }
    }
}

#[test]
fn a_damaged_slot_of_the_manifest_costs_nothing_and_is_counted() {
    let (machine, expected) = machine_with_data();
    for slot in ["manifest", "manifest-2"] {
        let file = Path::new(DIR).join(slot);
        let length = machine.files.read(&file, 1 << 20).unwrap().len();
        for at in 0..length {
            for cut in [false, true] {
                let damage = |bytes: &mut Vec<u8>| if cut { bytes.truncate(at) } else { bytes[at] ^= 0x10 };
                let files = copy_with(&machine.files, &file, damage);
                let machine = Machine { files, ..Machine::new(1) };
                assert_eq!(try_read(&machine), Some((expected.clone(), 1)), "{slot}, byte {at}");
                assert_eq!(try_read(&machine), Some((expected.clone(), 0)), "the start before repaired it");
            }
        }
    }
}

#[test]
fn without_any_manifest_everything_is_found_again_from_the_files_themselves() {
    let (machine, expected) = machine_with_data();
    for remove in [false, true] {
        let copy = |bytes: &mut Vec<u8>| bytes[6] ^= 1;
        let files = copy_with(&machine.files, &Path::new(DIR).join("manifest"), copy);
        let files = copy_with(&files, &Path::new(DIR).join("manifest-2"), copy);
        if remove {
            files.remove(&Path::new(DIR).join("manifest")).unwrap();
            files.remove(&Path::new(DIR).join("manifest-2")).unwrap();
        }
        let machine = Machine { files, ..Machine::new(1) };
        let (contents, quarantined) = try_read(&machine).unwrap();
        assert_eq!(contents, expected);
        assert_eq!(quarantined, if remove { 1 } else { 3 }, "each slot and the loss of both");
        assert_eq!(try_read(&machine), Some((expected.clone(), 0)));
    }
}

#[test]
fn every_cut_of_segments_and_definitions_is_contained() {
    let (machine, expected) = machine_with_data();
    for below in ["segments", "identity"] {
        let file = only_file(&machine, below);
        let length = machine.files.read(&file, 1 << 30).unwrap().len();
        for keep in 0..length {
            let files = copy_with(&machine.files, &file, |bytes| bytes.truncate(keep));
            let machine = Machine { files, ..Machine::new(1) };
            let (contents, quarantined) = read_twice(&machine, &file).unwrap();
            assert!(is_part_of(&contents, &expected));
            assert!(quarantined > 0, "{below} cut to {keep}");
            if below == "segments" {
                let sealed = |step| step < 8;
                let kept: Contents = without_steps(&expected, sealed);
                assert!(contents == kept, "cut to {keep}: the segment is lost and nothing else");
            }
        }
    }
}

#[test]
fn a_store_without_one_of_its_identity_files_starts_with_the_rest() {
    let (mut machine, expected) = machine_with_data();
    let file = only_file(&machine, "identity");
    machine.files.remove(&file).unwrap();
    machine.files = machine.files.kill();
    let (contents, quarantined) = try_read(&machine).unwrap();
    assert!(is_part_of(&contents, &expected));
    assert!(quarantined > 0);
    assert_eq!(
        machine.names("segments").len() + machine.names("quarantine").len(),
        2,
        "the old segment is kept"
    );
}
