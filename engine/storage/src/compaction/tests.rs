//! A store with native blocks on simulated files: compaction, deletion and cleaning, and what crashes, full disks and
//! damage make of them.
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use metricsstore_budget::{Budget, Grant};
use metricsstore_model::histogram::{Counts, Histogram, HistogramCounts};
use metricsstore_model::read::{Columns, Selection, Source};
use metricsstore_model::{LabelBuf, Matcher, STALE_NAN_BITS};
use metricsstore_vfs::Files;
use metricsstore_vfs::sim::{Fault, PowerOff, SimClock, SimFiles};

use crate::block::{NewBlock, SeriesData};
use crate::sync::atomic::Ordering::Relaxed;
use crate::{Progress, StorageError, Store, StoreOptions};

const DIR: &str = "/data";
const H: i64 = 3_600_000;
/// A multiple of all lengths of blocks.
const T0: i64 = 486 * H * 1028;
const STEP_MS: i64 = 600_000;
const SERIES: u32 = 7;

/// Bits of floats, and of the sums of histograms, by series and time.
type Contents = BTreeMap<u32, BTreeMap<i64, u64>>;

struct World {
    files: SimFiles,
    clock: SimClock,
    options: StoreOptions,
    store: Option<Arc<Store>>,
    contents: Contents,
}

fn labels_of(number: u32) -> LabelBuf {
    LabelBuf::from_pairs([
        ("__name__", format!("m{}", number % 3)),
        ("job", "j".to_owned()),
        ("n", number.to_string()),
    ])
}

fn is_histogram(number: u32) -> bool {
    number % 5 == 4
}

fn histogram_of(bits: u64) -> Histogram {
    if bits == STALE_NAN_BITS {
        return Histogram::stale();
    }
    let counts = HistogramCounts::Integer(Counts { count: 9, zero: 9, ..Counts::default() });
    Histogram { counts, sum: f64::from_bits(bits), ..Histogram::default() }
}

impl World {
    fn new() -> World {
        let mut options = StoreOptions::new(DIR);
        options.retention_ms = None;
        let clock = SimClock::new(T0 + 100 * H);
        let mut world =
            World { files: SimFiles::new(1), clock, options, store: None, contents: Contents::new() };
        world.start();
        world
    }

    fn try_open(&self) -> Result<Arc<Store>, StorageError> {
        let (files, clock) = (Arc::new(self.files.clone()), Arc::new(self.clock.clone()));
        Store::open(self.options.clone(), files, clock, Budget::unlimited(), Arc::new(Progress::default()))
    }

    fn start(&mut self) {
        self.store = Some(self.try_open().unwrap());
    }

    fn store(&self) -> &Arc<Store> {
        self.store.as_ref().unwrap()
    }

    /// The machine loses power and starts again.
    fn crash(&mut self) {
        self.store = None;
        self.files = self.files.crash();
        self.start();
    }

    /// Puts a block into the store that holds every so many steps of a range of hours; values follow from the time.
    fn put(&mut self, from_h: i64, to_h: i64, step_ms: i64, series: std::ops::Range<u32>, value: u64) {
        // Of blocks with one beginning the one with the older name comes first.
        self.clock.advance(Duration::from_millis(1));
        let store = Arc::clone(self.store());
        let mut upkeep = store.upkeep.lock();
        let name = store.take_block(&mut upkeep);
        let (start_ms, end_ms) = (T0 + from_h * H, T0 + to_h * H);
        let new = NewBlock {
            ulid: name.ulid,
            start_ms,
            end_ms,
            level: 1,
            sources: vec![name.ulid],
            parents: Vec::new(),
            is_late: false,
            is_cold: false,
        };
        let mut sink = store.blocks.create(name.format, new).unwrap();
        let mut numbers: Vec<u32> = series.collect();
        numbers.sort_by_key(|&number| labels_of(number));
        for number in numbers {
            let mut data = SeriesData { labels: labels_of(number), ..SeriesData::default() };
            let times = (start_ms..end_ms).step_by(step_ms as usize);
            let samples = times.map(|time| (time, value.wrapping_add(time as u64 % 1_000_003)));
            let samples: Vec<(i64, u64)> = samples.collect();
            let held = self.contents.entry(number).or_default();
            for &(time, bits) in &samples {
                held.entry(time).or_insert(bits);
            }
            if is_histogram(number) {
                data.histograms = samples.iter().map(|&(time, bits)| (time, histogram_of(bits))).collect();
            } else {
                data.floats.clone_from(&samples);
            }
            data.starts = samples.iter().map(|&(time, _)| (time, start_ms - 5)).collect();
            sink.add(&data).unwrap();
        }
        sink.finish().unwrap();
        let live = store.blocks.open(name, &store.counters).unwrap();
        store.replace_blocks(&mut upkeep, &[], vec![Arc::new(live)]).unwrap();
    }

    /// Three blocks of two hours and a newer one.
    fn with_a_complete_range() -> World {
        let mut world = World::new();
        for from_h in [0, 2, 4, 6] {
            world.put(from_h, from_h + 2, STEP_MS, from_h as u32 / 2..SERIES, 1);
        }
        world
    }

    fn read(&self) -> Contents {
        let selection = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
        let mut batches = self.store().select(&selection, &Grant::unlimited()).unwrap();
        let labels = batches.labels();
        let (mut contents, mut of_series) = (Contents::new(), LabelBuf::new());
        let (mut times, mut values) = (Vec::new(), Vec::new());
        while let Some(batch) = batches.next_batch().unwrap() {
            for (index, &id) in batch.ids.iter().enumerate() {
                labels.labels(id, &mut of_series);
                let samples = contents.entry(of_series.get("n").unwrap().parse().unwrap()).or_default();
                batch.samples_into(index, &mut times, &mut values);
                samples.extend(times.iter().copied().zip(values.iter().map(|value| value.to_bits())));
                if let Columns::Histograms(columns) = &batch.columns {
                    let cells = &columns.cells[index * batch.times.len()..][..batch.times.len()];
                    let sums = batch.times.iter().zip(cells);
                    samples.extend(sums.filter_map(|(&time, h)| Some((time, h.as_ref()?.sum.to_bits()))));
                }
            }
        }
        contents
    }

    /// What is live: first hour, last hour, level, by time.
    fn blocks(&self) -> Vec<(i64, i64, u32)> {
        let infos = self.store().blocks();
        let hour = |ms: i64| (ms - T0) / H;
        infos.iter().map(|b| (hour(b.meta.start_ms), hour(b.meta.end_ms), b.meta.level)).collect()
    }

    /// Deletes hours of the series with a number; the model forgets them.
    fn delete(&mut self, number: u32, from_h: i64, to_h: i64) -> bool {
        let (start_ms, end_ms) = (T0 + from_h * H, T0 + to_h * H - 1);
        let matcher = Matcher::equal("n", &number.to_string());
        let deleted = self.store().delete(&[vec![matcher]], start_ms, end_ms).is_ok();
        if deleted {
            self.forget(number, from_h, to_h);
        }
        deleted
    }

    fn forget(&mut self, number: u32, from_h: i64, to_h: i64) {
        let range = T0 + from_h * H..T0 + to_h * H;
        if let Some(samples) = self.contents.get_mut(&number) {
            samples.retain(|time, _| !range.contains(time));
        }
        self.contents.retain(|_, samples| !samples.is_empty());
    }

    fn maintain(&self) {
        self.store().maintain().unwrap();
    }

    /// Files of blocks that no live block accounts for.
    fn left_over(&self) -> Vec<String> {
        let live: Vec<String> = self.store().blocks().iter().map(|b| b.meta.ulid.to_string()).collect();
        let entries = self.files.list(&Path::new(DIR).join("blocks")).unwrap();
        let names = entries.into_iter().map(|entry| entry.name);
        names.filter(|name| !live.iter().any(|ulid| name.starts_with(ulid.as_str()))).collect()
    }
}

#[test]
fn a_complete_range_becomes_one_block_and_no_answer_changes() {
    let mut world = World::with_a_complete_range();
    assert!(world.read() == world.contents);
    world.maintain();
    assert_eq!(world.blocks(), [(0, 6, 2), (6, 8, 1)]);
    assert!(world.read() == world.contents);
    assert!(world.left_over().is_empty());
    let meta = world.store().blocks()[0].meta.clone();
    assert_eq!((meta.sources.len(), meta.parents.len(), meta.is_late), (3, 3, false));
    assert!(!meta.sources.contains(&meta.ulid));
    world.crash();
    assert!(world.read() == world.contents);
    assert_eq!(world.blocks(), [(0, 6, 2), (6, 8, 1)]);
}

#[test]
fn blocks_grow_threefold_up_to_what_retention_allows() {
    let mut world = World::new();
    world.options.retention_ms = Some(60 * H * 10);
    world.store().set_retention_ms(Some(60 * H * 10));
    for from_h in (0..62).step_by(2) {
        world.put(from_h, from_h + 2, STEP_MS, 0..2, 1);
    }
    for _ in 0..40 {
        world.maintain();
    }
    assert_eq!(world.blocks(), [(0, 54, 4), (54, 60, 2), (60, 62, 1)]);
    assert!(world.read() == world.contents);
}

#[test]
fn late_blocks_are_merged_into_those_of_their_time() {
    let mut world = World::new();
    world.put(0, 2, STEP_MS, 0..SERIES, 1);
    // Every second sample is there already, with another value: the first block holds.
    world.put(0, 2, STEP_MS / 2, 2..SERIES + 4, 500);
    world.put(2, 4, STEP_MS, 0..SERIES, 1);
    assert!(world.read() == world.contents);
    world.maintain();
    assert_eq!(world.blocks(), [(0, 2, 2), (2, 4, 1)]);
    assert!(world.read() == world.contents);
}

/// prometheus/prometheus#9108, #19140: deletes, restarts and compactions in turn brought samples back, or lost others.
#[test]
fn deleted_samples_stay_away_across_restarts_and_compactions_and_nothing_else_goes() {
    let mut world = World::with_a_complete_range();
    assert!(world.delete(3, 1, 3));
    assert!(world.delete(4, 0, 8));
    assert!(world.read() == world.contents);
    world.crash();
    assert!(world.read() == world.contents);
    world.maintain();
    assert_eq!(world.blocks()[0], (0, 6, 2));
    assert!(world.read() == world.contents);
    assert!(world.delete(5, 5, 7));
    world.crash();
    assert!(world.read() == world.contents);
    assert_eq!(world.store().clean_tombstones().unwrap(), 2);
    assert!(world.read() == world.contents);
    assert!(world.store().blocks().iter().all(|block| block.tombstones == 0));
    assert!(world.left_over().is_empty());
    world.crash();
    assert!(world.read() == world.contents);
}

#[test]
fn a_block_of_which_everything_is_deleted_goes_and_one_of_which_much_is_gets_smaller() {
    let mut world = World::new();
    world.put(0, 2, STEP_MS, 0..SERIES, 1);
    world.put(6, 8, STEP_MS, 0..SERIES, 1);
    let before = world.store().blocks()[1].meta.float_samples;
    for number in 0..SERIES {
        world.delete(number, 0, 2);
    }
    world.delete(0, 6, 8);
    world.maintain();
    world.maintain();
    assert_eq!(world.blocks(), [(6, 8, 2)]);
    assert!(world.store().blocks()[0].meta.float_samples < before);
    assert!(world.read() == world.contents);
}

/// prometheus/prometheus#4200, #3782: cleaning ran out of space, left overlapping blocks, and the server did not start.
#[test]
fn cleaning_without_space_changes_nothing_says_so_and_the_store_starts() {
    let mut world = World::with_a_complete_range();
    world.delete(3, 0, 8);
    let taken = { 1 << 40 } - world.files.space(Path::new("/")).unwrap().available;
    world.files.set_capacity(Some(taken + 3000));
    let error = world.store().clean_tombstones().unwrap_err();
    assert!(error.to_string().contains("free space on the data volume"), "{error}");
    assert!(world.read() == world.contents);
    assert_eq!(world.blocks().len(), 4);
    world.crash();
    assert!(world.read() == world.contents);
    world.files.set_capacity(None);
    assert!(world.store().clean_tombstones().unwrap() > 0);
    assert!(world.read() == world.contents);
}

/// prometheus/prometheus#17438, #5617: one bad series kept compaction from succeeding for months.
#[test]
fn a_damaged_series_is_left_out_counted_and_kept_aside_and_stops_nothing() {
    let mut world = World::with_a_complete_range();
    let name = world.store().view.load().blocks[0].name();
    let path = world.store().blocks.path(name);
    world.store = None;
    let mut bytes = world.files.read(&path, 1 << 30).unwrap();
    // A byte of the first page: values.
    bytes[40] ^= 1;
    world.files.remove(&path).unwrap();
    let file = world.files.create(&path).unwrap();
    file.append(&bytes).unwrap();
    file.sync().unwrap();
    world.start();
    world.maintain();
    assert_eq!(world.blocks(), [(0, 6, 2), (6, 8, 1)]);
    let stats = world.store().stats();
    assert!(stats.series_left_out > 0 && stats.compactions_failed == 0);
    let kept = world.files.list(&Path::new(DIR).join("quarantine")).unwrap();
    assert!(kept.iter().any(|entry| entry.name.contains(&name.ulid.to_string()) && entry.len > 0));
    // What the other blocks have is all there.
    let mut others = world.contents.clone();
    for samples in others.values_mut() {
        samples.retain(|&time, _| time >= T0 + 2 * H);
    }
    let read = world.read();
    for (number, samples) in others {
        assert!(samples.iter().all(|(time, bits)| read[&number].get(time) == Some(bits)));
    }
}

#[test]
fn a_deletion_breaks_off_a_compaction_which_is_begun_again() {
    let mut world = World::new();
    for from_h in [0, 2, 4, 6] {
        world.put(from_h, from_h + 2, H, 0..600, 1);
    }
    world.store().waiting.fetch_add(1, Relaxed);
    world.maintain();
    assert_eq!(world.blocks().len(), 4);
    assert!(world.left_over().is_empty());
    world.store().waiting.fetch_sub(1, Relaxed);
    world.maintain();
    assert_eq!(world.blocks(), [(0, 6, 2), (6, 8, 1)]);
    assert!(world.read() == world.contents);
}

#[test]
fn nothing_is_compacted_where_the_longest_block_is_the_shortest() {
    let mut world = World::with_a_complete_range();
    world.options.max_block_duration_ms = Some(2 * H);
    world.crash();
    world.maintain();
    assert_eq!(world.blocks().len(), 4);
}

/// A deletion, a compaction and a cleaning; what fails may be left undone.
fn script(world: &mut World) -> bool {
    let deleted = world.delete(3, 1, 3);
    let _ = world.store().maintain();
    let _ = world.store().clean_tombstones();
    deleted
}

fn calls_of_the_script() -> u64 {
    let mut world = World::with_a_complete_range();
    let before = world.files.calls();
    assert!(script(&mut world));
    assert!(world.read() == world.contents);
    world.files.calls() - before
}

#[test]
fn a_crash_at_any_call_of_deletion_compaction_and_cleaning_loses_nothing_and_brings_nothing_back() {
    let calls = calls_of_the_script();
    assert!(calls > 50, "{calls}");
    for call in 0..calls {
        let when = if call % 2 == 0 { PowerOff::Before } else { PowerOff::After };
        let mut world = World::with_a_complete_range();
        world.files.power_off(call, when);
        let deleted = script(&mut world);
        world.crash();
        let read = world.read();
        if !deleted && read != world.contents {
            world.forget(3, 1, 3);
            // Of a deletion that was not acknowledged any part may be done, block by block.
            assert!(
                world.contents.iter().all(|(n, s)| s.iter().all(|(t, b)| read[n].get(t) == Some(b))),
                "call {call}"
            );
            continue;
        }
        assert!(read == world.contents, "call {call}");
        assert!(world.left_over().is_empty(), "call {call}: {:?}", world.left_over());
    }
}

/// prometheus/prometheus#3487, #7299, #7627: each compaction that failed left files until the disk was full.
#[test]
fn a_full_disk_or_a_failure_at_any_call_leaves_everything_as_it_was_and_no_files() {
    let calls = calls_of_the_script();
    for (call, fault) in (0..calls).flat_map(|call| [(call, Fault::NoSpace), (call, Fault::Io)]) {
        let mut world = World::with_a_complete_range();
        world.files.fail_nth(call, fault);
        let deleted = script(&mut world);
        world.files.heal();
        if deleted {
            assert!(world.read() == world.contents, "call {call}, {fault:?}");
        }
        // It is tried again, and again.
        assert!(world.delete(3, 1, 3), "call {call}, {fault:?}");
        for _ in 0..3 {
            world.clock.advance(Duration::from_mins(5));
            let _ = world.store().maintain();
        }
        assert!(world.read() == world.contents, "call {call}, {fault:?}");
        assert_eq!(world.blocks(), [(0, 6, world.blocks()[0].2), (6, 8, 1)], "call {call}, {fault:?}");
        assert!(world.left_over().is_empty(), "call {call}, {fault:?}: {:?}", world.left_over());
        world.crash();
        assert!(world.read() == world.contents, "call {call}, {fault:?}");
    }
}
