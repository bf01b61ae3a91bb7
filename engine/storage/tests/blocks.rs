//! Cutting blocks from segments, and what becomes of them: reading, restarts, failures, damage, retention.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::{Contents, HOUR_MS, Machine, NOW_MS, append, append_from, read_all, samples_of};
use metricsstore_model::{Acknowledge, Matcher, Origin, Refusal};
use metricsstore_storage::Store;
use metricsstore_vfs::Files;
use metricsstore_vfs::sim::{Call, Fault, PowerOff};

const DURABLE: Acknowledge = Acknowledge::Durable;
const MINUTE_MS: i64 = 60_000;
/// Length of a block: the start of every test is aligned to it.
const BLOCK_MS: i64 = 20 * MINUTE_MS;

/// A machine whose blocks are short and whose clock is late enough for everything.
fn machine(seed: u64) -> Machine {
    let mut machine = Machine::new(seed);
    machine.options.block_duration_ms = BLOCK_MS;
    // Blocks are not merged into longer ones, only with those that came late for their range.
    machine.options.max_block_duration_ms = Some(BLOCK_MS);
    machine.options.shards = 2;
    machine.clock.advance(Duration::from_hours(10));
    machine
}

/// Which series stand for histograms.
fn is_histogram(number: u32) -> bool {
    number % 5 == 4
}

/// Minutes `from..to` of a population that changes a little; every series has a sample in each minute it lives.
fn fill(store: &Store, expected: &mut Contents, minutes: std::ops::Range<i64>) {
    for minute in minutes {
        let time = NOW_MS + minute * MINUTE_MS;
        let numbers = (0..12_u32).filter(|number| minute < 30 || *number != 3);
        let rows: Vec<(u32, Vec<(i64, f64)>)> = numbers
            .map(|number| (number, vec![(time + i64::from(number % 3), f64::from(number) + minute as f64)]))
            .collect();
        let verdicts = append_from(store, Origin::Scrape(1), &rows, is_histogram, DURABLE).unwrap();
        assert_eq!((verdicts.refused.len(), verdicts.histograms.refused.len()), (0, 0));
        for (number, samples) in rows {
            let cells = expected.entry(number).or_default();
            cells.extend(samples.iter().map(|&(time, value)| (time, value.to_bits())));
        }
    }
}

/// Says where two contents differ: all of them would be too long.
#[track_caller]
fn assert_same(found: &Contents, expected: &Contents) {
    let numbers: Vec<u32> = found.keys().chain(expected.keys()).copied().collect();
    for number in numbers {
        let of = |contents: &Contents| contents.get(&number).cloned().unwrap_or_default();
        let (found, expected) = (of(found), of(expected));
        if found != expected {
            let lost = expected.iter().find(|&(time, bits)| found.get(time) != Some(bits));
            let more = found.iter().find(|&(time, bits)| expected.get(time) != Some(bits));
            panic!("series {number}: lost {lost:?}, found {more:?}");
        }
    }
}

/// Background work until there is nothing more to cut.
fn cut(store: &Store) -> u32 {
    let mut cut = 0;
    for _ in 0..100 {
        let done = store.maintain().unwrap();
        cut += done.cut;
        if done == metricsstore_storage::Maintenance::default() {
            return cut;
        }
    }
    panic!("background work does not come to an end");
}

/// Files of native blocks.
fn blocks(machine: &Machine) -> Vec<String> {
    machine.names("blocks").into_iter().filter(|name| name.len() == 26).collect()
}

#[test]
fn a_range_that_is_over_becomes_a_block_and_everything_is_read_as_before() {
    let mut machine = machine(1);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, 0..30);
    assert_eq!(cut(&store), 0, "half a range must pass first");
    fill(&store, &mut expected, 30..31);
    assert_eq!(cut(&store), 1);
    let stats = store.stats();
    assert_eq!((stats.block_count, stats.cuts, stats.segment_count), (1, 1, 1));
    assert_same(&read_all(&store), &expected);
    fill(&store, &mut expected, 31..95);
    assert_eq!(cut(&store), 3);
    assert_same(&read_all(&store), &expected);
    assert_eq!(blocks(&machine).len(), 4);
    machine.files = machine.files.crash();
    drop(store);
    let store = machine.open();
    assert_eq!(store.stats().block_count, 4);
    assert_same(&read_all(&store), &expected);
    assert_eq!(cut(&store), 0, "nothing is cut twice");
    fill(&store, &mut expected, 95..140);
    cut(&store);
    assert_same(&read_all(&store), &expected);
}

#[test]
fn series_that_ended_leave_the_identity_with_their_range_and_are_read_from_its_block() {
    let machine = machine(1);
    let store = machine.open();
    let mut expected = Contents::new();
    append(&store, &[(77, NOW_MS, 1.0)], DURABLE).unwrap();
    expected.entry(77).or_default().insert(NOW_MS, 1.0_f64.to_bits());
    for part in 0..8 {
        fill(&store, &mut expected, part * 10..part * 10 + 10);
        machine.clock.advance(Duration::from_mins(30));
        cut(&store);
    }
    // What sent nothing for a block's time is in no segment any more: the one that sent once, and the one that ended.
    assert_eq!(store.stats().series, 11);
    assert_same(&read_all(&store), &expected);
}

#[test]
fn late_samples_get_a_block_of_their_own_and_are_compared_with_what_is_in_blocks() {
    let mut machine = machine(1);
    machine.options.out_of_order_window_ms = 5 * HOUR_MS;
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, 0..55);
    assert_eq!(cut(&store), 2);
    let at = |minute: i64| NOW_MS + minute * MINUTE_MS;
    // An exact duplicate, another value, a free time; a histogram where there is one, and a sample there.
    let rows = [(1, at(5) + 1, 6.0), (1, at(5) + 1, 7.0), (1, at(5) + 30, 5.5), (2, at(22) + 2, 24.0)];
    let verdicts = append(&store, &rows, DURABLE).unwrap();
    let refused: Vec<(u32, Refusal)> =
        verdicts.refused.iter().map(|refused| (refused.row, refused.refusal.clone())).collect();
    assert_eq!(refused, [(1, Refusal::DuplicateTimestamp)]);
    let histograms = [(4, vec![(at(5) + 1, 9.0)]), (4, vec![(at(5) + 1, 10.0)]), (4, vec![(at(6), 3.0)])];
    let verdicts = append_from(&store, Origin::Scrape(1), &histograms, is_histogram, DURABLE).unwrap();
    assert_eq!((verdicts.histograms.written, verdicts.histograms.refused.len()), (2, 1));
    assert_eq!(append(&store, &[(4, at(5) + 1, 1.0)], DURABLE).unwrap().refused.len(), 1);
    expected.get_mut(&1).unwrap().insert(at(5) + 30, 5.5_f64.to_bits());
    expected.get_mut(&4).unwrap().insert(at(6), 3.0_f64.to_bits());
    assert_same(&read_all(&store), &expected);
    fill(&store, &mut expected, 55..75);
    assert_eq!(cut(&store), 2, "the next range, and what came late for the first");
    assert_same(&read_all(&store), &expected);
    drop(store);
    assert_same(&read_all(&machine.open()), &expected);
}

#[test]
fn without_a_window_nothing_is_compared_with_blocks() {
    let machine = machine(1);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, 0..55);
    cut(&store);
    let verdicts = append(&store, &[(1, NOW_MS + 5 * MINUTE_MS + 1, 6.0)], DURABLE).unwrap();
    assert_eq!(verdicts.refused[0].refusal, Refusal::OutOfBounds);
    assert_same(&read_all(&store), &expected);
}

#[test]
fn what_was_deleted_does_not_come_back_with_a_block() {
    let mut machine = machine(1);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, 0..29);
    let (from_ms, to_ms) = (NOW_MS + 3 * MINUTE_MS, NOW_MS + 24 * MINUTE_MS);
    store.delete(&[vec![Matcher::equal("n", "2")]], from_ms, to_ms).unwrap();
    expected.get_mut(&2).unwrap().retain(|time, _| !(from_ms..=to_ms).contains(time));
    fill(&store, &mut expected, 29..55);
    assert_eq!(cut(&store), 2);
    assert_same(&read_all(&store), &expected);
    machine.files = machine.files.crash();
    drop(store);
    assert_same(&read_all(&machine.open()), &expected);
}

/// A machine with everything for a cut of two blocks, one of them of late samples.
fn before_a_cut() -> (Machine, Contents) {
    let mut machine = machine(1);
    machine.options.out_of_order_window_ms = 5 * HOUR_MS;
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, 0..35);
    assert_eq!(cut(&store), 1);
    append(&store, &[(1, NOW_MS + 77, 7.0)], DURABLE).unwrap();
    expected.get_mut(&1).unwrap().insert(NOW_MS + 77, 7.0_f64.to_bits());
    fill(&store, &mut expected, 35..52);
    store.close().unwrap();
    (machine, expected)
}

/// Calls of the start and of the cut.
fn calls_of_a_cut() -> u64 {
    let (machine, _) = before_a_cut();
    let before = machine.files.calls();
    assert_eq!(cut(&machine.open()), 2);
    machine.files.calls() - before
}

#[test]
fn a_crash_at_any_call_of_a_cut_loses_nothing_and_the_cut_is_made_up_for() {
    for call in 0..calls_of_a_cut() {
        for when in [PowerOff::Before, PowerOff::After] {
            let (mut machine, expected) = before_a_cut();
            machine.files.power_off(machine.files.calls() + call, when);
            if let Ok(store) = machine.try_open() {
                for _ in 0..6 {
                    let _ = store.maintain();
                }
            }
            machine.files = machine.files.crash();
            let store = machine.open();
            assert_same(&read_all(&store), &expected);
            cut(&store);
            assert_same(&read_all(&store), &expected);
            assert_eq!(
                (store.stats().block_count, store.stats().quarantined),
                (3, 0),
                "call {call}, {when:?}"
            );
            assert_eq!(machine.names("blocks").len(), 3, "nothing is left behind: call {call}, {when:?}");
        }
    }
}

#[test]
fn a_call_that_fails_during_a_cut_loses_nothing_and_leaves_nothing_behind() {
    for call in 0..calls_of_a_cut() {
        for fault in [Fault::Io, Fault::NoSpace, Fault::LostAnswer] {
            let (machine, expected) = before_a_cut();
            machine.files.fail_nth(call, fault);
            let Ok(store) = machine.try_open() else { continue };
            for _ in 0..20 {
                let _ = store.maintain();
                machine.clock.advance(Duration::from_secs(30));
            }
            assert_same(&read_all(&store), &expected);
            assert_eq!(store.stats().block_count, 3, "call {call}, {fault:?}");
            assert_eq!(machine.names("blocks").len(), 3, "call {call}, {fault:?}");
        }
    }
}

#[test]
fn a_cut_that_keeps_failing_backs_off_and_fills_no_disk() {
    let (machine, expected) = before_a_cut();
    let store = machine.open();
    machine
        .files
        .fail_when(Fault::NoSpace, |call, path| call == Call::Sync && path.starts_with("/data/blocks"));
    let mut failed = 0;
    for _ in 0..600 {
        failed += u32::from(store.maintain().is_err());
        machine.clock.advance(Duration::from_secs(1));
    }
    assert!((2..20).contains(&failed), "{failed} attempts");
    assert!(machine.names("blocks").len() <= 2, "{:?}", machine.names("blocks"));
    assert_same(&read_all(&store), &expected);
    machine.files.heal();
    machine.clock.advance(Duration::from_mins(6));
    assert_eq!(cut(&store), 2);
    assert_same(&read_all(&store), &expected);
}

fn with_blocks() -> (Machine, Contents) {
    let machine = machine(1);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, 0..75);
    assert_eq!(cut(&store), 3);
    (machine, expected)
}

#[test]
fn without_any_manifest_blocks_are_found_again() {
    let (mut machine, expected) = with_blocks();
    machine.files = machine.files.crash();
    for slot in ["manifest", "manifest-2"] {
        machine.files.remove(&Path::new("/data").join(slot)).unwrap();
    }
    let store = machine.open();
    assert_eq!(store.stats().block_count, 3);
    assert_same(&read_all(&store), &expected);
    assert_eq!(cut(&store), 0);
    assert_same(&read_all(&store), &expected);
}

#[test]
fn a_damaged_block_is_moved_aside_a_missing_one_counted_and_the_others_serve() {
    let (mut machine, expected) = with_blocks();
    machine.files = machine.files.crash();
    let [first, second, third] = &*blocks(&machine) else { panic!() };
    let path = |name: &str| Path::new("/data/blocks").join(name);
    let mut bytes = machine.files.read(&path(first), 1 << 20).unwrap();
    let end = bytes.len() - 5;
    bytes[end] ^= 0x10;
    machine.files.remove(&path(first)).unwrap();
    let file = machine.files.create(&path(first)).unwrap();
    file.append(&bytes).unwrap();
    file.sync().unwrap();
    machine.files.remove(&path(second)).unwrap();
    machine.files.sync_dir(Path::new("/data/blocks")).unwrap();
    let store = machine.open();
    assert_eq!((store.stats().quarantined, store.stats().block_count), (2, 1));
    assert_eq!(blocks(&machine), std::slice::from_ref(third));
    assert_eq!(machine.names("quarantine").len(), 1);
    let left: Contents = expected
        .into_iter()
        .map(|(number, samples)| {
            (number, samples.into_iter().filter(|&(time, _)| time >= NOW_MS + 2 * BLOCK_MS).collect())
        })
        .filter(|(_, samples): &(u32, std::collections::BTreeMap<i64, u64>)| !samples.is_empty())
        .collect();
    assert_same(&read_all(&store), &left);
    drop(store);
    let store = machine.open();
    assert_eq!((store.stats().quarantined, store.stats().block_count), (0, 1));
}

#[test]
fn a_start_removes_what_it_can_have_left_and_nothing_else() {
    let (mut machine, expected) = with_blocks();
    machine.files = machine.files.crash();
    let ours = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    let dir = Path::new("/data");
    let put = |path: PathBuf| {
        machine.files.create_dir_all(path.parent().unwrap()).unwrap();
        let file = machine.files.create(&path).unwrap();
        file.append(b"x").unwrap();
        file.sync().unwrap();
        machine.files.sync_dir(path.parent().unwrap()).unwrap();
    };
    for name in [format!("{ours}.tmp"), ours.to_owned(), format!("{ours}.tombstones"), "note.txt".to_owned()]
    {
        put(dir.join("blocks").join(name));
    }
    // One Prometheus block that was begun here, and one of somebody else.
    let begun = "01BX5ZZKBKACTAV9WEVGEMMVRZ";
    put(dir.join("blocks").join(format!("{begun}.prometheus")));
    put(dir.join(format!("{begun}.tmp-for-creation")).join("index"));
    put(dir.join("01BX5ZZKBKACTAV9WEVGEMMVS0").join("meta.json"));
    let store = machine.open();
    assert_same(&read_all(&store), &expected);
    assert_eq!(blocks(&machine).len(), 3);
    assert_eq!(machine.names("blocks").len(), 4, "{:?}", machine.names("blocks"));
    let dirs: Vec<String> = machine.names("").into_iter().filter(|name| name.starts_with("01")).collect();
    assert_eq!(dirs, ["01BX5ZZKBKACTAV9WEVGEMMVS0"]);
    assert_eq!(store.stats().quarantined, 0);
}

#[test]
fn blocks_expire_whole_once_their_newest_sample_is_past_retention() {
    let mut machine = Machine::new(1);
    machine.options.block_duration_ms = BLOCK_MS;
    machine.options.max_block_duration_ms = Some(BLOCK_MS);
    machine.options.retention_ms = Some(2 * HOUR_MS);
    let store = machine.open();
    let mut expected = Contents::new();
    for minute in 0..80 {
        fill(&store, &mut expected, minute..minute + 1);
        machine.clock.advance(Duration::from_mins(1));
    }
    assert_eq!(cut(&store), 3);
    machine.clock.advance(Duration::from_mins(59));
    assert_eq!(store.maintain().unwrap().expired, 0, "the newest of the first block is not past it");
    machine.clock.advance(Duration::from_mins(2));
    assert_eq!(store.maintain().unwrap().expired, 1);
    assert_eq!((store.stats().block_count, blocks(&machine).len()), (2, 2));
    for samples in expected.values_mut() {
        samples.retain(|&time, _| time >= NOW_MS + 21 * MINUTE_MS);
    }
    expected.retain(|_, samples| !samples.is_empty());
    assert_same(&read_all(&store), &expected);
}

/// The public report: prometheus/prometheus#2893.
#[test]
fn a_clock_that_jumps_a_year_forward_and_back_deletes_nothing() {
    let mut machine = machine(1);
    machine.options.retention_ms = Some(24 * HOUR_MS);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, 0..75);
    cut(&store);
    let now_ms = NOW_MS + 10 * HOUR_MS;
    machine.clock.set_wall_ms(now_ms + 365 * 24 * HOUR_MS);
    // Somebody scrapes meanwhile, by the same clock.
    let ahead_ms = now_ms + 365 * 24 * HOUR_MS;
    append(&store, &[(50, ahead_ms, 1.0)], DURABLE).unwrap();
    for _ in 0..10 {
        assert_eq!(store.maintain().unwrap().expired, 0);
        machine.clock.advance(Duration::from_mins(1));
    }
    machine.clock.set_wall_ms(now_ms + 10 * MINUTE_MS);
    for _ in 0..10 {
        assert_eq!(store.maintain().unwrap().expired, 0);
    }
    let mut contents = read_all(&store);
    assert_eq!(contents.remove(&50).unwrap().len(), 1);
    assert_same(&contents, &expected);
    machine.clock.set_wall_ms(now_ms + 20 * MINUTE_MS);
    // What comes for ranges that were cut early is taken, and cut when they are over.
    drop(store);
    let store = machine.open();
    let later: Vec<(u32, i64, f64)> =
        (0..18).map(|half| (1, now_ms + 21 * MINUTE_MS + half * MINUTE_MS / 2, 0.5)).collect();
    for row in &later {
        assert_eq!(append(&store, &[*row], DURABLE).unwrap().refused, []);
    }
    cut(&store);
    let samples = samples_of(&store, 1);
    assert_eq!(samples.len(), 75 + 18);
}

#[test]
fn retention_by_bytes_takes_the_oldest_and_nothing_whose_files_have_other_names() {
    let (machine, expected) = with_blocks();
    let used = machine.open().stats();
    assert_eq!(used.disk_bytes, 0, "nothing was counted yet");
    let names = blocks(&machine);
    // A snapshot has the oldest.
    let snapshot = Path::new("/data/snapshots/20270101T000000Z-1/blocks");
    machine.files.create_dir_all(snapshot).unwrap();
    let place = |name: &str| Path::new("/data/blocks").join(name);
    machine.files.hard_link(&place(&names[0]), &snapshot.join(&names[0])).unwrap();
    machine.files.sync_dir(snapshot).unwrap();
    let store = machine.open();
    store.maintain().unwrap();
    let bytes = store.stats().disk_bytes;
    store.set_retention_size(Some(bytes - 10), None);
    assert_eq!(store.maintain().unwrap().expired, 1);
    assert_eq!(blocks(&machine), [names[0].clone(), names[2].clone()]);
    assert_eq!(store.maintain().unwrap().expired, 0);
    // Once the snapshot is gone it counts no more, and the oldest is the first again.
    drop(store);
    machine.files.remove_dir_all(Path::new("/data/snapshots")).unwrap();
    let store = machine.open();
    store.maintain().unwrap();
    let bytes = store.stats().disk_bytes;
    store.set_retention_size(Some(bytes - 10), None);
    assert_eq!(store.maintain().unwrap().expired, 1);
    assert_eq!(blocks(&machine), [names[2].clone()]);
    let from_ms = NOW_MS + 2 * BLOCK_MS;
    let mut left = expected;
    for samples in left.values_mut() {
        samples.retain(|&time, _| time >= from_ms);
    }
    left.retain(|_, samples| !samples.is_empty());
    assert_same(&read_all(&store), &left);
}

#[test]
fn nothing_is_cut_where_there_is_no_space_for_a_block() {
    let mut machine = machine(1);
    machine.files.set_capacity(Some(1 << 30));
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, 0..35);
    machine.leave(40 << 20);
    assert_eq!(cut(&store), 0);
    machine.leave(500 << 20);
    machine.options.shards = 1;
    assert_eq!(cut(&store), 1);
    assert_same(&read_all(&store), &expected);
}

#[test]
fn a_start_with_other_shards_and_a_cut_in_the_midst_of_writing_change_no_answer() {
    let mut machine = machine(1);
    let mut expected = Contents::new();
    let mut store: Arc<Store> = machine.open();
    for part in 0..20 {
        fill(&store, &mut expected, part * 7..part * 7 + 7);
        let _ = store.maintain().unwrap();
        if part % 4 == 3 {
            drop(store);
            machine.options.shards = 1 + part as usize % 3;
            store = machine.open();
        }
        assert_same(&read_all(&store), &expected);
    }
    cut(&store);
    assert!(store.stats().block_count >= 5);
    assert_same(&read_all(&store), &expected);
}
