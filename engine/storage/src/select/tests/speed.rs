//! How fast selects are over native blocks, by hand, on real files:
//! `cargo test --profile profiling -p metricsstore-storage --lib select::tests::speed -- --ignored --nocapture`.
#![allow(clippy::print_stdout, reason = "a tool for measuring by hand")]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use metricsstore_budget::{Budget, Grant, Part};
use metricsstore_model::read::{Columns, Selection, Source};
use metricsstore_model::{LabelBuf, Matcher};
use metricsstore_vfs::Files;
use metricsstore_vfs::real::{RealClock, RealFiles};

use super::show;
use crate::block::{BlockFiles, BlockSink, Format, NewBlock, SeriesData, Ulid};
use crate::compaction::tombstones::BlockTombstones;
use crate::counters::Counters;
use crate::manifest::NamedBlock;
use crate::view::LiveBlock;
use crate::{Progress, Store, StoreOptions};

const END_MS: i64 = 1_800_000_000_000 / RANGE_MS * RANGE_MS;
const RANGE_MS: i64 = 2 * 3_600_000;
const STEP_MS: i64 = 15_000;
/// Series of one target.
const OF_TARGET: usize = 125;

fn labels(series: usize) -> LabelBuf {
    let (target, metric) = (series / OF_TARGET, series % OF_TARGET);
    LabelBuf::from_pairs([
        ("__name__", format!("container_metric_{}_total", metric % 25)),
        ("cluster", "main".into()),
        ("container", format!("app-{}", metric / 25)),
        ("endpoint", "https-metrics".into()),
        ("id", format!("/kubepods/burstable/pod{target}/{}", metric / 25)),
        ("instance", format!("10.0.{}.{}:10250", target / 250, target % 250)),
        ("job", "kubelet".into()),
        ("namespace", format!("namespace-{}", target % 40)),
        ("pod", format!("application-{target}-5d8f7c9b-{}", metric / 25)),
    ])
}

fn value(series: usize, round: usize) -> f64 {
    let noise = (series.wrapping_mul(2_654_435_761) ^ round.wrapping_mul(40_503)) >> 7;
    match series % 10 {
        0..4 => 7.0,
        4..7 => (round * (series % 97) + noise % 13) as f64,
        7..9 => ((noise % 100_000) as f64) / 1000.0,
        _ => f64::from_bits(0x3ff0_0000_0000_0000 | noise as u64 & 0xf_ffff_ffff_ffff),
    }
}

fn write(files: &BlockFiles, format: Format, series: usize, number: i64, is_cold: bool) -> NamedBlock {
    let ulid = Ulid::new(END_MS + number, number as u128);
    let name = NamedBlock { ulid, format };
    if files.files.exists(&files.path(name)).unwrap() {
        return name;
    }
    let start_ms = END_MS - (number + 1) * RANGE_MS;
    let new = NewBlock {
        ulid,
        start_ms,
        end_ms: start_ms + RANGE_MS,
        level: 1,
        sources: vec![ulid],
        parents: Vec::new(),
        is_late: false,
        is_cold,
    };
    let mut sink: Box<dyn BlockSink> = files.create(format, new).unwrap();
    let mut sorted: Vec<(LabelBuf, usize)> = (0..series).map(|series| (labels(series), series)).collect();
    sorted.sort();
    let mut data = SeriesData::default();
    for (labels, series) in sorted {
        data.clear();
        data.labels = labels;
        let target = series / OF_TARGET;
        data.floats.extend((0..(RANGE_MS / STEP_MS) as usize).map(|round| {
            // Milliseconds of jitter, the same for all series of a target.
            let jitter = (target * 131 + round * 7) % 11;
            let time =
                start_ms + round as i64 * STEP_MS + (target % 1000) as i64 * 15 % STEP_MS + jitter as i64;
            (time.min(start_ms + RANGE_MS - 1), value(series, round).to_bits())
        }));
        data.floats.dedup_by_key(|sample| sample.0);
        sink.add(&data).unwrap();
    }
    sink.finish().unwrap();
    name
}

/// What the thread has used: other processes do not show in it.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

struct Bench {
    store: Arc<Store>,
    budget: Budget,
}

impl Bench {
    fn open(series: usize, blocks: i64, format: Format, is_cold: bool) -> Bench {
        let dir = PathBuf::from(format!("/tmp/select-speed/{series}-{blocks}-{format:?}-{is_cold}"));
        std::fs::create_dir_all(dir.join("blocks")).unwrap();
        let files: Arc<dyn Files> = Arc::new(RealFiles);
        let budget = Budget::new(1 << 30);
        let block_files = BlockFiles::new(&files, &dir, &budget);
        let began = cpu();
        let names: Vec<NamedBlock> =
            (0..blocks).rev().map(|number| write(&block_files, format, series, number, is_cold)).collect();
        println!("{series} series × {blocks} blocks in {:?}", cpu().saturating_sub(began));
        let shown = names.iter().map(|&name| {
            let LiveBlock { block, .. } = block_files.open(name, &Counters::default()).unwrap();
            println!("  {} bytes", block.meta().bytes);
            Arc::new(LiveBlock { block, tombstones: Arc::new(BlockTombstones::default()) })
        });
        let shown = shown.collect();
        let mut options = StoreOptions::new(dir.join("store"));
        options.retention_ms = None;
        let (clock, progress) = (Arc::new(RealClock::new()), Arc::new(Progress::default()));
        let store = Store::open(options, files, clock, budget.clone(), progress).unwrap();
        show(&store, shown);
        Bench { store, budget }
    }

    fn run(&self, what: &str, matchers: &[Matcher], start_ms: i64, end_ms: i64) {
        for _ in 0..3 {
            let grant = self.budget.grant(Part::Query, 256 << 20);
            let began = cpu();
            let selection = Selection { matchers, start_ms, end_ms };
            let mut batches = self.store.select(&selection, &grant).unwrap();
            let joined = cpu().saturating_sub(began);
            let (mut series, mut samples, mut found, mut sum, mut peak) = (0, 0, 0, 0.0, 0);
            while let Some(batch) = batches.next_batch().unwrap() {
                found += 1;
                series += batch.ids.len();
                peak = peak.max(grant.used());
                if let Columns::Floats(columns) = &batch.columns {
                    samples += columns.values.len();
                    sum += columns.values.iter().sum::<f64>();
                }
            }
            println!(
                "{what}: {:?}, {joined:?} of it to join; {series} series, {samples} samples in {found} batches, \
                 peak {} KiB, {sum:e}",
                cpu().saturating_sub(began),
                peak >> 10
            );
        }
    }
}

#[test]
#[ignore = "a measurement: it prints what selects take"]
fn selects_over_native_blocks() {
    for is_cold in [false, true] {
        let bench = Bench::open(50_000, 4, Format::Native, is_cold);
        bench.run("everything", &[], i64::MIN, i64::MAX);
        let metric = Matcher::equal("__name__", "container_metric_7_total");
        bench.run("one metric", std::slice::from_ref(&metric), i64::MIN, i64::MAX);
        let target = Matcher::equal("instance", "10.0.1.7:10250");
        bench.run("one target", &[target], i64::MIN, i64::MAX);
        bench.run("one moment, 5 min", &[], END_MS - RANGE_MS / 2 - 300_000, END_MS - RANGE_MS / 2);
        bench.run(
            "one moment, one metric",
            &[metric],
            END_MS - RANGE_MS / 2 - 300_000,
            END_MS - RANGE_MS / 2,
        );
    }
}

#[test]
#[ignore = "a measurement: it prints what selects take"]
fn joins_of_many_blocks() {
    let bench = Bench::open(62_500, 8, Format::Native, false);
    for _ in 0..5 {
        let grant = Grant::unlimited();
        let began = cpu();
        let selection = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
        drop(bench.store.select(&selection, &grant).unwrap());
        println!("join of 62,500 series in 8 blocks: {:?}", cpu().saturating_sub(began));
    }
}
