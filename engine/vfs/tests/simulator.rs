//! The simulator keeps what was synced, loses the rest often enough to find a broken store, and fails on demand.
#![allow(clippy::unwrap_used, clippy::naive_bytecount)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use metricsstore_vfs::sim::{Call, Fault, SimClock, SimFiles};
use metricsstore_vfs::{Clock, Files};
use proptest::prelude::*;

const LIMIT: u64 = 1 << 20;

fn dir() -> &'static Path {
    Path::new("/data")
}

fn path(name: &str) -> PathBuf {
    dir().join(name)
}

fn new_store(seed: u64) -> SimFiles {
    let files = SimFiles::new(seed);
    files.create_dir_all(dir()).unwrap();
    files
}

fn write_synced(files: &SimFiles, name: &str, bytes: &[u8]) {
    let file = files.create(&path(name)).unwrap();
    file.append(bytes).unwrap();
    file.sync().unwrap();
}

#[derive(Debug, Clone)]
enum Step {
    Append { file: u8, len: u16 },
    Sync { file: u8 },
    SyncDir,
    Rename { from: u8, to: u8 },
    Remove { file: u8 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..4_u8, 0..2000_u16).prop_map(|(file, len)| Step::Append { file, len }),
        2 => (0..4_u8).prop_map(|file| Step::Sync { file }),
        1 => Just(Step::SyncDir),
        1 => (0..4_u8, 0..4_u8).prop_map(|(from, to)| Step::Rename { from, to }),
        1 => (0..4_u8).prop_map(|file| Step::Remove { file }),
    ];
    prop::collection::vec(step, 0..40)
}

/// What one file holds, told apart from every other file by its bytes.
#[derive(Debug, Clone, Default)]
struct Model {
    content: Vec<u8>,
    synced: usize,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 400 }))]

    #[test]
    fn synced_bytes_under_synced_names_survive_every_crash(seed: u64, steps in steps()) {
        let files = new_store(seed);
        let mut handles = BTreeMap::new();
        let mut models: Vec<Model> = Vec::new();
        let mut names: BTreeMap<u8, usize> = BTreeMap::new();
        let mut durable = names.clone();
        // Every file a name may legally show after a crash, and whether it may be absent.
        let mut possible: BTreeMap<u8, BTreeSet<Option<usize>>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Append { file, len } => {
                    let id = *names.entry(file).or_insert_with(|| {
                        let id = models.len();
                        models.push(Model::default());
                        handles.insert(id, files.create(&path(&file.to_string())).unwrap());
                        possible.entry(file).or_insert_with(|| [None].into()).insert(Some(id));
                        id
                    });
                    // Never zero, so that lost sectors show.
                    let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8 + 1 + (id % 4) as u8).collect();
                    handles[&id].append(&bytes).unwrap();
                    models[id].content.extend(bytes);
                }
                Step::Sync { file } => if let Some(&id) = names.get(&file) {
                    handles[&id].sync().unwrap();
                    models[id].synced = models[id].content.len();
                },
                Step::SyncDir => {
                    files.sync_dir(dir()).unwrap();
                    durable = names.clone();
                    possible = durable.iter().map(|(&name, &id)| (name, [Some(id)].into())).collect();
                }
                Step::Rename { from, to } => if let Some(id) = names.get(&from).copied().filter(|_| from != to) {
                    handles[&id].sync().unwrap();
                    models[id].synced = models[id].content.len();
                    files.rename(&path(&from.to_string()), &path(&to.to_string())).unwrap();
                    names.remove(&from);
                    names.insert(to, id);
                    possible.entry(from).or_insert_with(|| [None].into()).insert(None);
                    possible.entry(to).or_insert_with(|| [None].into()).insert(Some(id));
                },
                Step::Remove { file } => if names.remove(&file).is_some() {
                    files.remove(&path(&file.to_string())).unwrap();
                    possible.entry(file).or_insert_with(|| [None].into()).insert(None);
                },
            }
        }
        for _ in 0..4 {
            let after = files.image();
            for name in 0..4_u8 {
                let found = after.read(&path(&name.to_string()), LIMIT).ok();
                let allowed = possible.get(&name).cloned().unwrap_or_else(|| [None].into());
                let fits = allowed.iter().any(|id| match (id, &found) {
                    (None, None) => true,
                    (Some(id), Some(bytes)) => {
                        let model = &models[*id];
                        bytes.len() >= model.synced
                            && bytes.len() <= model.content.len()
                            && bytes[..model.synced] == model.content[..model.synced]
                            && bytes.iter().zip(&model.content).all(|(got, wrote)| got == wrote || *got == 0)
                    }
                    _ => false,
                });
                prop_assert!(fits, "name {name}: {allowed:?} does not explain {:?}", found.map(|bytes| bytes.len()));
            }
        }
        // A durable name that nothing changed since is there in every image: `possible` holds no `None` for it.
        prop_assert!(durable.keys().all(|name| possible.contains_key(name)));
    }
}

#[test]
fn unsynced_bytes_are_kept_lost_cut_and_zeroed_in_some_crash_each() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let files = new_store(seed);
        let file = files.create(&path("log")).unwrap();
        files.sync_dir(dir()).unwrap();
        file.append(&[1; 700]).unwrap();
        file.sync().unwrap();
        file.append(&[2; 3000]).unwrap();
        let bytes = files.crash().read(&path("log"), LIMIT).unwrap();
        assert_eq!(bytes[..700], [1; 700]);
        let tail = &bytes[700..];
        let holes = tail.iter().filter(|&&byte| byte == 0).count();
        seen.insert(match (tail.len(), holes) {
            (0, _) => "lost",
            (3000, 0) => "kept",
            (_, 0) => "cut",
            (len, zeros) if len == zeros => "zeros",
            _ => "torn by sectors",
        });
    }
    assert_eq!(seen, BTreeSet::from(["lost", "kept", "cut", "zeros", "torn by sectors"]));
}

#[test]
fn an_unsynced_name_is_kept_in_some_crashes_and_lost_in_others() {
    let outcomes: BTreeSet<bool> = (0..50)
        .map(|seed| {
            let files = new_store(seed);
            write_synced(&files, "a", b"content");
            files.crash().exists(&path("a")).unwrap()
        })
        .collect();
    assert_eq!(outcomes, BTreeSet::from([false, true]));
}

#[test]
fn a_rename_is_atomic_and_shows_the_old_or_the_new_file() {
    let outcomes: BTreeSet<Vec<u8>> = (0..50)
        .map(|seed| {
            let files = new_store(seed);
            write_synced(&files, "manifest", b"old");
            files.sync_dir(dir()).unwrap();
            write_synced(&files, "manifest.tmp", b"new");
            files.rename(&path("manifest.tmp"), &path("manifest")).unwrap();
            files.crash().read(&path("manifest"), LIMIT).unwrap()
        })
        .collect();
    assert_eq!(outcomes, BTreeSet::from([b"old".to_vec(), b"new".to_vec()]));
}

#[test]
fn a_removal_may_be_undone_by_a_crash_until_the_directory_is_synced() {
    let survivors = |sync: bool| -> usize {
        (0..50)
            .filter(|&seed| {
                let files = new_store(seed);
                write_synced(&files, "a", b"x");
                files.sync_dir(dir()).unwrap();
                files.remove(&path("a")).unwrap();
                if sync {
                    files.sync_dir(dir()).unwrap();
                }
                files.crash().exists(&path("a")).unwrap()
            })
            .count()
    };
    assert!((1..50).contains(&survivors(false)));
    assert_eq!(survivors(true), 0);
}

#[test]
fn a_removed_directory_comes_back_whole_in_part_or_not_at_all() {
    let mut counts = BTreeSet::new();
    for seed in 0..100 {
        let files = new_store(seed);
        let segment = path("segment");
        files.create_dir_all(&segment).unwrap();
        for name in ["a", "b", "c"] {
            write_synced(&files, &format!("segment/{name}"), b"x");
        }
        files.sync_dir(&segment).unwrap();
        files.remove_dir_all(&segment).unwrap();
        let after = files.crash();
        counts.insert(after.exists(&segment).unwrap().then(|| after.list(&segment).unwrap().len()));
    }
    assert!(counts.contains(&None) && counts.contains(&Some(3)) && counts.contains(&Some(1)));
}

#[test]
fn the_same_seed_and_calls_give_the_same_crash() {
    let run = |seed| {
        let files = new_store(seed);
        let file = files.create(&path("a")).unwrap();
        files.sync_dir(dir()).unwrap();
        file.append(&[7; 5000]).unwrap();
        files.crash().read(&path("a"), LIMIT).unwrap()
    };
    assert!((0..20).all(|seed| run(seed) == run(seed)));
}

#[test]
fn handles_and_calls_of_before_the_crash_fail_and_locks_are_free() {
    let files = new_store(1);
    let lock = files.lock(&path("lock")).unwrap();
    assert_eq!(files.lock(&path("lock")).err().unwrap().kind(), ErrorKind::WouldBlock);
    let file = files.create(&path("a")).unwrap();
    let after = files.crash();
    assert!(file.append(b"x").is_err() && file.sync().is_err() && file.len().is_err());
    assert!(files.list(dir()).is_err());
    let again = after.lock(&path("lock")).unwrap();
    drop(lock);
    assert!(after.lock(&path("lock")).is_err(), "the dead process must not release the living one's lock");
    drop(again);
    after.lock(&path("lock")).unwrap();
}

#[test]
fn a_killed_process_loses_nothing_but_leaves_it_as_volatile_as_it_was() {
    let mut lost = false;
    for seed in 0..50 {
        let files = new_store(seed);
        let file = files.create(&path("a")).unwrap();
        files.sync_dir(dir()).unwrap();
        file.append(b"unsynced").unwrap();
        let next = files.kill();
        assert!(file.len().is_err());
        assert_eq!(next.read(&path("a"), LIMIT).unwrap(), b"unsynced");
        lost |= next.crash().read(&path("a"), LIMIT).unwrap().is_empty();
    }
    assert!(lost);
}

#[test]
#[should_panic(expected = "/data/a: data used that were never made durable")]
fn renaming_a_file_whose_bytes_were_never_synced_panics() {
    let files = new_store(1);
    files.create(&path("a")).unwrap().append(b"x").unwrap();
    let _ = files.rename(&path("a"), &path("b"));
}

#[test]
#[should_panic(expected = "/data/tmp/a: data used that were never made durable")]
fn renaming_a_directory_whose_names_were_never_synced_panics() {
    let files = new_store(1);
    files.create_dir_all(&path("tmp")).unwrap();
    write_synced(&files, "tmp/a", b"x");
    let _ = files.rename(&path("tmp"), &path("final"));
}

#[test]
fn a_fault_hits_the_chosen_call_once_or_every_call_of_a_kind() {
    let files = new_store(1);
    files.fail_nth(1, Fault::Io);
    let file = files.create(&path("a")).unwrap();
    assert!(file.append(b"x").is_err());
    file.append(b"y").unwrap();
    files.fail_when(Fault::NoSpace, |call, _| call == Call::Create);
    assert_eq!(files.create(&path("b")).err().unwrap().kind(), ErrorKind::StorageFull);
    assert_eq!(files.create(&path("c")).err().unwrap().kind(), ErrorKind::StorageFull);
    files.heal();
    files.create(&path("b")).unwrap();
}

#[test]
fn a_failed_sync_poisons_the_file_and_is_not_retried() {
    let files = new_store(1);
    let file = files.create(&path("a")).unwrap();
    file.append(b"x").unwrap();
    files.fail_nth(0, Fault::Io);
    assert!(file.sync().is_err());
    assert!(file.sync().is_err());
    assert!(file.append(b"y").is_err());
    assert!(!files.is_durable(&path("a")));
}

#[test]
fn a_full_disk_takes_what_fits_and_works_again_when_space_returns() {
    let files = new_store(1);
    files.set_capacity(Some(10));
    let file = files.create(&path("a")).unwrap();
    file.append(&[1; 8]).unwrap();
    assert_eq!(file.append(&[2; 8]).err().unwrap().kind(), ErrorKind::StorageFull);
    assert_eq!(files.read(&path("a"), LIMIT).unwrap(), [1, 1, 1, 1, 1, 1, 1, 1, 2, 2]);
    assert_eq!(files.space(dir()).unwrap().available, 0);
    files.set_capacity(Some(20));
    file.append(&[3; 8]).unwrap();
    files.remove(&path("a")).unwrap();
    assert_eq!(files.space(dir()).unwrap().available, 20);
}

#[test]
fn space_set_aside_is_missing_elsewhere_until_it_is_given_up() {
    let files = new_store(1);
    files.set_capacity(Some(10));
    files.allocate(&path("reserve"), 8).unwrap();
    assert_eq!(files.space(dir()).unwrap().available, 2);
    let file = files.create(&path("a")).unwrap();
    assert_eq!(file.append(b"1234").unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(files.allocate(&path("more"), 1).unwrap_err().kind(), ErrorKind::StorageFull);
    files.remove(&path("reserve")).unwrap();
    file.append(b"34").unwrap();
    assert_eq!(files.space(dir()).unwrap().available, 6);
}

#[test]
fn the_power_can_be_cut_at_every_call_and_nothing_synced_before_is_lost() {
    // (what was answered, the medium): the last acknowledged append must be there.
    let run = |files: &SimFiles| -> std::io::Result<usize> {
        files.create_dir_all(dir())?;
        let file = files.create(&path("log"))?;
        files.sync_dir(dir())?;
        (0..5).try_fold(0, |_, round| {
            file.append(&[9; 100])?;
            file.sync()?;
            Ok((round + 1) * 100)
        })
    };
    let reference = SimFiles::new(0);
    run(&reference).unwrap();
    for at in 0..reference.calls() {
        let files = SimFiles::new(at);
        files.power_off_at(at);
        assert!(run(&files).is_err());
        let acknowledged = (at.saturating_sub(3) / 2 * 100) as usize;
        let found = files.crash().read(&path("log"), LIMIT).unwrap_or_default();
        assert!(found.iter().take_while(|&&byte| byte == 9).count() >= acknowledged, "cut at call {at}");
    }
}

#[test]
fn the_clock_moves_only_when_told_and_monotonic_time_ignores_wall_jumps() {
    let clock = SimClock::new(1_000);
    clock.advance(Duration::from_millis(250));
    assert_eq!((clock.now_ms(), clock.monotonic()), (1_250, Duration::from_millis(250)));
    clock.set_wall_ms(5);
    assert_eq!((clock.now_ms(), clock.monotonic()), (5, Duration::from_millis(250)));
}
