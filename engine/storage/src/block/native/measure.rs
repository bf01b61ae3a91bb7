//! What a block takes: printed, not asserted. `cargo test … native::measure -- --ignored --nocapture`.
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use metricsstore_model::{LabelBuf, MatchOp, Matcher};
use metricsstore_vfs::Files;
use metricsstore_vfs::sim::SimFiles;

use super::table::Entry;
use super::tests::{DIR, new_block, open};
use super::{NativeBlock, NativeWriter};
use crate::block::{Block, BlockSink, SeriesData};

const TARGETS: i64 = 250;
const METRICS: i64 = 250;
const SAMPLES: i64 = 480;

/// A Kubernetes-like series: 13 labels, about 280 bytes.
fn labels(metric: i64, target: i64) -> LabelBuf {
    let mut labels = LabelBuf::from_pairs([
        ("__name__", format!("container_subsystem_{:03}_usage_bytes_total", metric / 5)),
        ("cluster", "production-eu-west-1".into()),
        ("container", format!("container-{}", target % 7)),
        ("endpoint", "https-metrics".into()),
        ("instance", format!("10.12.{}.{}:10250", target / 40, target % 40)),
        ("job", "kubelet".into()),
        ("metrics_path", "/metrics/cadvisor".into()),
        ("namespace", format!("team-{}", target % 23)),
        ("node", format!("ip-10-12-{}-{}.eu-west-1.compute.internal", target / 40, target % 40)),
        ("pod", format!("deployment-{}-7d9f8b6c5-{:05}", target % 50, target * 7919 % 99_991)),
        ("service", "kubelet".into()),
    ]);
    labels.push("device", &format!("/dev/nvme{}n1", metric % 5));
    labels.sort();
    labels
}

fn bits(metric: i64, target: i64, n: i64) -> u64 {
    match metric % 5 {
        0 | 1 => (metric as f64).to_bits(),
        2 => ((n * (target % 9 + 1) + n * n * 7919 % 5) as f64).to_bits(),
        3 => ((n * 2_654_435_761 % 100) as f64 / 10.0).to_bits(),
        _ => (target as f64 + (n as f64 / 17.0).sin()).to_bits(),
    }
}

fn bytes_of(entries: &[Entry], block: &NativeBlock) -> u64 {
    let inner = |entry: &Entry| {
        let content = block.source.read(entry.page).unwrap();
        let entries = super::table::take_entries(&mut crate::bytes::Cursor::new(&content), block.source.end);
        entries.unwrap().iter().map(|entry| u64::from(entry.page.bytes)).sum::<u64>()
    };
    entries.iter().map(|entry| u64::from(entry.page.bytes) + inner(entry)).sum()
}

fn print_sizes(block: &NativeBlock) {
    let directory = &block.directory;
    let of_list =
        |pages: &[super::list::ListPage]| pages.iter().map(|page| u64::from(page.page.bytes)).sum::<u64>();
    let sections = [
        ("values", directory.values.iter().map(|table| bytes_of(table, block)).sum()),
        ("times", bytes_of(&directory.times, block)),
        ("rows", directory.rows.iter().map(|page| u64::from(page.page.bytes)).sum()),
        ("sets", of_list(&directory.sets.pages)),
        ("postings", of_list(&directory.sets.postings)),
        ("dictionary", of_list(&directory.dictionary.pages) + u64::from(directory.dictionary.names.bytes)),
        ("directory", block.meta().bytes - block.source.end),
    ];
    let samples = block.meta().float_samples as f64;
    for (name, bytes) in sections {
        let series = bytes as f64 / block.meta().series as f64;
        println!("{name:>10}: {bytes:>10} B, {series:7.2} B/series, {:.4} B/sample", bytes as f64 / samples);
    }
    println!("     open: {} B of memory, {} streams", directory.bytes(), directory.streams);
}

fn print_times(block: &Arc<NativeBlock>) {
    let timed = |what: &str, run: &mut dyn FnMut() -> u64| {
        let start = Instant::now();
        let count = run();
        println!("{what}: {count} in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    };
    let every: Vec<u32> = (0..block.meta().series as u32).collect();
    timed("labels of rows", &mut || {
        let mut labels = LabelBuf::new();
        every.iter().map(|&row| block.labels(row, &mut labels).map_or(0, |()| 1)).sum()
    });
    timed("fingerprints", &mut || {
        let mut prints = Vec::new();
        block.fingerprints_into(&every, &mut prints).unwrap();
        prints.len() as u64
    });
    let name = Matcher::equal("__name__", "container_subsystem_017_usage_bytes_total");
    let pod = Matcher::new(MatchOp::Regex, "pod", "deployment-1.*").unwrap();
    timed("rows of a metric", &mut || block.rows(std::slice::from_ref(&name)).unwrap().len());
    timed("rows by a pattern", &mut || block.rows(&[name.clone(), pod.clone()]).unwrap().len());
    timed("values read", &mut || {
        let mut cursor = Arc::clone(block).cursor();
        let (mut payload, mut pieces, mut count) = (Vec::new(), Vec::new(), 0);
        for &row in &every {
            payload.clear();
            pieces.clear();
            cursor.pieces_into(row, (i64::MIN, i64::MAX), &mut payload, &mut pieces).unwrap();
            for piece in &pieces {
                piece.decode_all(&payload, |_, _| count += 1).unwrap();
            }
        }
        count
    });
}

#[test]
#[ignore = "a measurement: it prints what blocks take"]
fn sizes_and_times_of_a_block_of_62_500_series() {
    for is_cold in [false, true] {
        let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
        let mut writer = NativeWriter::create(&files, Path::new(DIR), new_block(2, is_cold)).unwrap();
        let mut keys: Vec<(LabelBuf, i64, i64)> = (0..METRICS)
            .flat_map(|metric| (0..TARGETS).map(move |target| (labels(metric, target), metric, target)))
            .collect();
        keys.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let start = Instant::now();
        let mut series = SeriesData::default();
        for (labels, metric, target) in keys {
            series.clear();
            series.labels = labels;
            let jitter = |n: i64| (n * target).wrapping_mul(2_654_435_761) % 7 + target * 53;
            let samples = (0..SAMPLES).map(|n| (n * 15_000 + jitter(n), bits(metric, target, n)));
            series.floats.extend(samples);
            writer.add(&series).unwrap();
        }
        Box::new(writer).finish().unwrap();
        println!("cold: {is_cold}; written in {:.1} s", start.elapsed().as_secs_f64());
        let block = open(&files, new_block(2, is_cold).ulid).unwrap();
        print_sizes(&block);
        print_times(&block);
    }
}
