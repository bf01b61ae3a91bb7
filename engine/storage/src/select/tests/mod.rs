//! The same samples in head, segments and blocks, split at random, are read as plain maps say.
#![allow(clippy::unwrap_used, reason = "tests may panic")]
mod plain;
#[path = "../../../tests/model/random.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod random;
mod speed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use metricsstore_budget::{Budget, Grant, Part};
use metricsstore_model::read::{Columns, Limited, ReadError, Selection, SeriesBatches, SeriesRef, Source};
use metricsstore_model::{
    Acknowledge, Append, Batch, Extras, HistogramSample, LabelBuf, LabelDecoder, LabelError, MatchOp,
    Matcher, Origin, RawKeyHasher, Row, Sample,
};
use metricsstore_vfs::sim::{SimClock, SimFiles};

use plain::{Contents, PlainBlock, Samples, histogram_of};
use random::Random;

use crate::block::{Format, NewBlock, SeriesData, Ulid};
use crate::compaction::tombstones::BlockTombstones;
use crate::manifest::NamedBlock;
use crate::view::{LiveBlock, View};
use crate::{Maintenance, Progress, Store, StoreOptions};

const NOW_MS: i64 = 1_800_000_000_000;
const HOUR_MS: i64 = 3_600_000;
const STEP_MS: i64 = 60_000;
/// Samples lie in the steps of this time before now.
const SPAN_MS: i64 = 2 * HOUR_MS;

/// Labels written as `name=value;name=value`.
struct PlainLabels;

impl LabelDecoder for PlainLabels {
    fn decode(&self, raw_labels: &[u8], labels: &mut LabelBuf) -> Result<bool, LabelError> {
        labels.clear();
        for pair in std::str::from_utf8(raw_labels).unwrap().split(';') {
            let (name, value) = pair.split_once('=').unwrap();
            labels.push(name, value);
        }
        labels.sort();
        Ok(true)
    }
}

fn open() -> Arc<Store> {
    let mut options = StoreOptions::new("/data");
    options.out_of_order_window_ms = 24 * HOUR_MS;
    options.shards = 2;
    let (files, clock) = (Arc::new(SimFiles::new(1)), Arc::new(SimClock::new(NOW_MS)));
    Store::open(options, files, clock, Budget::unlimited(), Arc::new(Progress::default())).unwrap()
}

fn append(store: &Store, contents: &Contents) {
    let raw: Vec<String> = contents
        .keys()
        .map(|labels| {
            labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(";")
        })
        .collect();
    let hasher = RawKeyHasher::new(7, b"plain");
    let (mut samples, mut rows, mut extras) = (Vec::new(), Vec::new(), Extras::default());
    for (raw, of_series) in raw.iter().zip(contents.values()) {
        let (first, row) = (samples.len() as u32, rows.len() as u32);
        for (&timestamp_ms, &bits) in &of_series.floats {
            samples.push(Sample { timestamp_ms, value: f64::from_bits(bits) });
            extras.starts_ms.push(of_series.starts.get(&timestamp_ms).copied().unwrap_or(0));
        }
        extras.histograms.extend(of_series.histograms.iter().map(|(&timestamp_ms, &bits)| HistogramSample {
            row,
            timestamp_ms,
            start_ms: of_series.starts.get(&timestamp_ms).copied().unwrap_or(0),
            histogram: Ok(histogram_of(bits)),
        }));
        let (raw_labels, key) = (raw.as_bytes(), hasher.key(raw.as_bytes()));
        rows.push(Row { raw_labels, key, samples: first..samples.len() as u32 });
    }
    let batch = Batch { origin: Origin::RemoteWrite(0), decoder: &PlainLabels, rows, samples, extras };
    store.append(&batch, Acknowledge::Durable).unwrap();
}

fn seal(store: &Store) {
    store.seal(&mut store.upkeep.lock(), &mut Maintenance::default()).unwrap();
}

fn show(store: &Store, blocks: Vec<Arc<LiveBlock>>) {
    let view = View::clone(&store.view.load());
    store.view.store(Arc::new(View { blocks, ..view }));
}

/// Everything that a select hands out, and the order in which it is folded.
fn drain(batches: &mut dyn SeriesBatches) -> Result<(Contents, Vec<SeriesRef>), ReadError> {
    let labels = batches.labels();
    let (mut contents, mut order) = (Contents::new(), BTreeSet::new());
    let (mut times, mut values, mut of_series) = (Vec::new(), Vec::new(), LabelBuf::new());
    let mut seen = BTreeSet::new();
    while let Some(batch) = batches.next_batch()? {
        assert!(batch.times.is_sorted_by(|a, b| a < b), "times ascend");
        for (index, &id) in batch.ids.iter().enumerate() {
            let is_histogram = matches!(batch.columns, Columns::Histograms(_));
            order.insert(id);
            labels.labels(id, &mut of_series);
            assert!(seen.insert((of_series.clone(), is_histogram)), "a series is in one batch of a kind");
            let mut halves = LabelBuf::new();
            labels.push_group(id.group, &mut halves);
            labels.push_residual(id.residual, &mut halves);
            halves.sort();
            assert_eq!(halves, of_series, "halves make up the label set");
            let samples = contents.entry(of_series.clone()).or_default();
            batch.samples_into(index, &mut times, &mut values);
            let bits = values.iter().map(|value| value.to_bits());
            samples.floats.extend(times.iter().copied().zip(bits));
            let cells = index * batch.times.len()..(index + 1) * batch.times.len();
            if let Columns::Histograms(columns) = &batch.columns {
                for (&time, cell) in batch.times.iter().zip(&columns.cells[cells.clone()]) {
                    samples.histograms.extend(cell.as_ref().map(|cell| (time, cell.sum.to_bits())));
                }
            }
            if !batch.starts_ms.is_empty() {
                let starts = batch.times.iter().copied().zip(batch.starts_ms[cells].iter().copied());
                samples.starts.extend(starts.filter(|&(_, start)| start != 0));
            }
        }
    }
    assert_eq!(labels.failure(), None);
    Ok((contents, order.into_iter().collect()))
}

fn read(store: &Store, matchers: &[Matcher], start_ms: i64, end_ms: i64) -> (Contents, Vec<SeriesRef>) {
    let selection = Selection { matchers, start_ms, end_ms };
    drain(&mut *store.select(&selection, &Grant::unlimited()).unwrap()).unwrap()
}

/// Time ranges by row.
type Deleted = BTreeMap<u32, Vec<(i64, i64)>>;

/// A store, what is in its head and segments, and its blocks with what was deleted of them.
struct World {
    store: Arc<Store>,
    live: Contents,
    blocks: Vec<(Contents, Deleted, Arc<LiveBlock>)>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let population: Vec<LabelBuf> = (0..2 + random.below(30)).map(|_| labels(&mut random)).collect();
        let store = open();
        for _ in 0..random.below(4) {
            append(&store, &contents(&population, &mut random));
            if random.one_in(2) {
                seal(&store);
            }
        }
        if random.one_in(3) {
            let (start_ms, end_ms) = range(&mut random);
            store.delete(&[matchers(&mut random)], start_ms, end_ms).unwrap();
        }
        let (live, _) = read(&store, &[], i64::MIN, i64::MAX);
        let mut blocks = Vec::new();
        for number in 0..random.below(5) {
            let mut contents = contents(&population, &mut random);
            let mut tombstones = Deleted::new();
            for row in 0..contents.len() as u32 {
                if random.one_in(8) {
                    tombstones.insert(row, vec![range(&mut random)]);
                }
            }
            if !contents.is_empty() {
                let live = block(&store, number, &mut contents, &tombstones, &mut random);
                blocks.push((contents, tombstones, live));
            }
        }
        show(&store, blocks.iter().map(|(_, _, live)| Arc::clone(live)).collect());
        World { store, live, blocks }
    }

    /// What the blocks that overlap a range hold.
    fn overlapping(&self, start_ms: i64, end_ms: i64) -> impl Iterator<Item = &Contents> {
        let overlap = self.blocks.iter().filter(move |(_, _, live)| live.overlaps(start_ms, end_ms));
        overlap.map(|(contents, _, _)| contents)
    }

    /// What a select must give: of each time the sample of the first part that has one.
    fn expected(&self, matchers: &[Matcher], start_ms: i64, end_ms: i64) -> Contents {
        let mut expected = Contents::new();
        let nothing = BTreeMap::new();
        let live = (&self.live, &nothing);
        for (contents, deleted) in
            self.blocks.iter().map(|(contents, deleted, _)| (contents, deleted)).chain([live])
        {
            for (row, (labels, samples)) in (0..).zip(contents) {
                let deleted = deleted.get(&row).map_or(&[][..], Vec::as_slice);
                let is_there = |time: &i64| {
                    (start_ms..=end_ms).contains(time)
                        && !deleted.iter().any(|&(min, max)| (min..=max).contains(time))
                };
                let merged = expected.entry(labels.clone()).or_default();
                for (&time, &bits) in samples.floats.iter().filter(|(time, _)| is_there(time)) {
                    merged.floats.entry(time).or_insert(bits);
                }
                for (&time, &bits) in samples.histograms.iter().filter(|(time, _)| is_there(time)) {
                    merged.histograms.entry(time).or_insert(bits);
                }
                for (&time, &start) in samples.starts.iter().filter(|(time, _)| is_there(time)) {
                    merged.starts.entry(time).or_insert(start);
                }
            }
        }
        expected.retain(|labels, samples| !samples.is_empty() && passes(labels, matchers));
        expected
    }
}

/// A block of any kind. Prometheus' blocks keep no start timestamps.
fn block(
    store: &Store,
    number: u64,
    contents: &mut Contents,
    by_row: &Deleted,
    random: &mut Random,
) -> Arc<LiveBlock> {
    let tombstones = Arc::new(BlockTombstones { by_row: by_row.clone() });
    let (format, is_cold) = match random.below(4) {
        0 => {
            let block = Arc::new(PlainBlock::new(number, contents, random));
            return Arc::new(LiveBlock { block, tombstones });
        }
        1 => (Format::Native, false),
        2 => (Format::Native, true),
        _ => (Format::Prometheus, false),
    };
    if format == Format::Prometheus {
        for samples in contents.values_mut() {
            samples.starts.clear();
        }
    }
    let ulid = Ulid::new(NOW_MS, u128::from(number));
    let new = NewBlock {
        ulid,
        start_ms: NOW_MS - SPAN_MS,
        end_ms: NOW_MS + 1,
        level: 1,
        sources: vec![ulid],
        parents: Vec::new(),
        is_late: false,
        is_cold,
    };
    let mut sink = store.blocks.create(format, new).unwrap();
    for (labels, samples) in &*contents {
        let histograms = samples.histograms.iter().map(|(&time, &bits)| (time, histogram_of(bits)));
        let data = SeriesData {
            labels: labels.clone(),
            floats: samples.floats.iter().map(|(&time, &bits)| (time, bits)).collect(),
            histograms: histograms.collect(),
            starts: samples.starts.iter().map(|(&time, &start)| (time, start)).collect(),
            ..SeriesData::default()
        };
        sink.add(&data).unwrap();
    }
    sink.finish().unwrap();
    let LiveBlock { block, .. } = store.blocks.open(NamedBlock { ulid, format }, &store.counters).unwrap();
    Arc::new(LiveBlock { block, tombstones })
}

fn passes(labels: &LabelBuf, matchers: &[Matcher]) -> bool {
    matchers.iter().all(|matcher| matcher.matches(labels.get(&matcher.name).unwrap_or_default()))
}

/// One of some dozens of label sets, of different lengths.
fn labels(random: &mut Random) -> LabelBuf {
    let mut labels = LabelBuf::new();
    labels.push("__name__", random.pick(&["m", "n"]));
    labels.push("job", random.pick(&["a", "b", "c"]));
    labels.push("n", &random.below(12).to_string());
    if random.one_in(3) {
        labels.push("zone", random.pick(&["x", "y"]));
    }
    labels
}

fn range(random: &mut Random) -> (i64, i64) {
    let mut time = || NOW_MS - random.below(SPAN_MS as u64 + 1) as i64;
    let (one, other) = (time(), time());
    (one.min(other), one.max(other))
}

fn matchers(random: &mut Random) -> Vec<Matcher> {
    match random.below(6) {
        0 => vec![],
        1 => vec![Matcher::equal("job", "b")],
        2 => vec![Matcher::new(MatchOp::Regex, "n", "1.*").unwrap()],
        3 => vec![Matcher::equal("zone", "")],
        4 => vec![Matcher::new(MatchOp::NotEqual, "zone", "x").unwrap(), Matcher::equal("__name__", "m")],
        _ => vec![Matcher::equal("job", "nobody")],
    }
}

/// Some of the series with some samples, values mostly the same wherever they stand, of a stretch of time.
fn contents(population: &[LabelBuf], random: &mut Random) -> Contents {
    let (from, to) = range(random);
    let mut contents = Contents::new();
    for labels in population {
        if random.one_in(3) {
            continue;
        }
        let mut samples = Samples::default();
        let is_histogram = labels.get("n") == Some("3");
        let first = from.div_euclid(STEP_MS);
        for step in first..to.div_euclid(STEP_MS) {
            if random.one_in(4) {
                continue;
            }
            let time = step * STEP_MS;
            let conflict = u64::from(random.one_in(20));
            let bits = (step as f64 * 1.5 + conflict as f64).to_bits();
            if is_histogram {
                samples.histograms.insert(time, bits)
            } else {
                samples.floats.insert(time, bits)
            };
            if labels.get("n") == Some("4") || is_histogram && step % 2 == 0 {
                samples.starts.insert(time, NOW_MS - 5 * SPAN_MS);
            }
        }
        if !samples.is_empty() {
            contents.insert(labels.clone(), samples);
        }
    }
    contents
}

#[test]
fn selects_read_head_segments_and_blocks_as_one() {
    for seed in 0..150 {
        let world = World::new(seed);
        let mut random = Random::new(seed ^ 0xabc);
        for _ in 0..6 {
            let (start_ms, end_ms) = if random.one_in(3) { (i64::MIN, i64::MAX) } else { range(&mut random) };
            let matchers = matchers(&mut random);
            let (found, order) = read(&world.store, &matchers, start_ms, end_ms);
            let expected = world.expected(&matchers, start_ms, end_ms);
            assert_eq!(found, expected, "seed {seed}, {matchers:?} from {start_ms} to {end_ms}");
            if world.overlapping(start_ms, end_ms).next().is_some() {
                let batches = world
                    .store
                    .select(&Selection { matchers: &matchers, start_ms, end_ms }, &Grant::unlimited());
                let labels = batches.unwrap().labels();
                let sets = order.iter().map(|&id| {
                    let mut set = LabelBuf::new();
                    labels.labels(id, &mut set);
                    set
                });
                assert!(sets.is_sorted(), "with blocks, the order of folding is that of label sets");
            }
        }
    }
}

#[test]
fn labels_are_those_of_identity_and_of_the_blocks_that_overlap() {
    for seed in 0..150 {
        let world = World::new(seed);
        let mut random = Random::new(seed ^ 0xdef);
        for _ in 0..4 {
            let (start_ms, end_ms) = if random.one_in(2) { (i64::MIN, i64::MAX) } else { range(&mut random) };
            let any_of: Vec<_> = (0..random.below(3)).map(|_| matchers(&mut random)).collect();
            let passes = |labels: &&LabelBuf| {
                any_of.is_empty() || any_of.iter().any(|matchers| passes(labels, matchers))
            };
            let blocks = world.overlapping(start_ms, end_ms).flat_map(BTreeMap::keys);
            let in_blocks: BTreeSet<LabelBuf> = blocks.filter(passes).cloned().collect();
            // Head and segments say which of their series may have samples, which is tested where they are.
            show_none(
                &world,
                |store| {
                    let live = store.series(&any_of, start_ms, end_ms, usize::MAX).unwrap();
                    in_blocks.iter().cloned().chain(live.items).collect::<BTreeSet<LabelBuf>>()
                },
                |store, expected| {
                    check_labels(store, &any_of, (start_ms, end_ms), &expected, &mut random);
                },
            );
        }
    }
}

/// Calls `without` while no block is shown, then `with` with its answer.
fn show_none<T>(world: &World, without: impl FnOnce(&Store) -> T, with: impl FnOnce(&Store, T)) {
    let blocks = world.store.view.load().blocks.clone();
    show(&world.store, Vec::new());
    let answer = without(&world.store);
    show(&world.store, blocks);
    with(&world.store, answer);
}

fn check_labels(
    store: &Store,
    any_of: &[Vec<Matcher>],
    (start_ms, end_ms): (i64, i64),
    expected: &BTreeSet<LabelBuf>,
    random: &mut Random,
) {
    let names = expected.iter().flat_map(|labels| labels.iter().map(|(name, _)| name.to_owned()));
    let names: BTreeSet<String> = names.collect();
    let zones = expected.iter().filter_map(|labels| labels.get("zone")).map(str::to_owned);
    let zones: BTreeSet<String> = zones.collect();
    for limit in [usize::MAX, random.below(6) as usize] {
        let found = store.series(any_of, start_ms, end_ms, limit).unwrap();
        assert_eq!(found, limited(expected, limit));
        let found = store.label_names(any_of, start_ms, end_ms, limit).unwrap();
        assert_eq!(found, limited(&names, limit));
        let found = store.label_values("zone", any_of, start_ms, end_ms, limit).unwrap();
        assert_eq!(found, limited(&zones, limit));
    }
}

fn limited<T: Clone + Ord>(all: &BTreeSet<T>, limit: usize) -> Limited<T> {
    Limited { items: all.iter().take(limit).cloned().collect(), truncated: all.len() > limit }
}

#[test]
fn a_select_over_blocks_keeps_to_its_grant_and_gives_everything_back() {
    for seed in 0..60 {
        let world = World::new(seed);
        let expected = world.expected(&[], i64::MIN, i64::MAX);
        let (mut refused, mut answered) = (0, 0);
        for limit in [100, 1_000, 10_000, 50_000, 200_000, 1_000_000, 64 << 20] {
            let budget = Budget::unlimited();
            let grant = budget.grant(Part::Query, limit);
            let selection = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
            let found = world.store.select(&selection, &grant).and_then(|mut batches| drain(&mut *batches));
            match found {
                Ok((contents, _)) => {
                    assert_eq!(contents, expected);
                    answered += 1;
                }
                Err(ReadError::Memory(_)) => refused += 1,
                Err(other) => panic!("{other}"),
            }
            assert_eq!(grant.used(), 0, "everything is given back");
        }
        assert!(answered > 0 && (refused > 0 || expected.is_empty()), "seed {seed}: {answered}, {refused}");
    }
}

#[test]
fn a_select_goes_on_with_what_it_saw_when_blocks_take_the_place_of_others() {
    for seed in 0..40 {
        let world = World::new(seed);
        let expected = world.expected(&[], i64::MIN, i64::MAX);
        let selection = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
        let mut batches = world.store.select(&selection, &Grant::unlimited()).unwrap();
        show(&world.store, Vec::new());
        for (_, _, live) in &world.blocks {
            world.store.blocks.remove(live.name()).unwrap();
        }
        // What comes after the snapshot, to every series of the head and to new ones.
        let mut later = world.live.clone();
        later.insert(LabelBuf::from_pairs([("job", "new")]), Samples::default());
        for samples in later.values_mut() {
            let floats = BTreeMap::from([(NOW_MS + 1, 1), (NOW_MS + 2, 2)]);
            *samples = Samples { floats, ..Samples::default() };
        }
        append(&world.store, &later);
        if seed % 2 == 0 {
            seal(&world.store);
        }
        let (found, _) = drain(&mut *batches).unwrap();
        assert_eq!(found, expected);
    }
}
