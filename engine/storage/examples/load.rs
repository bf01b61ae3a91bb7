//! Loads a store as remote write does and says what it cost: `load [SERIES [ROUNDS [THREADS]]]`. With `KEEP=<dir>` the
//! directory is left there as a killed process leaves it; `OPEN=<dir>` only opens one, as often as it has copies in it.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::too_many_lines,
    reason = "a tool for measuring by hand"
)]
use std::sync::Arc;
use std::time::Instant;

use metricsstore_budget::{Budget, Grant, Part};
use metricsstore_model::read::{Selection, Source};
use metricsstore_model::{
    Acknowledge, Append, Batch, Extras, LabelBuf, LabelDecoder, LabelError, Origin, RawKeyHasher, Row, Sample,
};
use metricsstore_storage::{Progress, Store, StoreOptions};
use metricsstore_vfs::Clock;
use metricsstore_vfs::real::{RealClock, RealFiles};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const ROWS: usize = 2000;

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

fn labels(series: usize) -> String {
    let (target, metric) = (series / 400, series % 400);
    format!(
        "__name__=container_metric_{}_total;cluster=main;container=app-{};endpoint=https-metrics;id=/kubepods/burstable/pod{target}/{};\
         instance=10.0.{}.{}:10250;job=kubelet;namespace=namespace-{};node=worker-{target};pod=application-{target}-5d8f7c9b-{}",
        metric % 80,
        metric / 80,
        metric / 10,
        target / 250,
        target % 250,
        target % 40,
        metric / 20
    )
}

fn value(series: usize, round: usize) -> f64 {
    let noise = (series.wrapping_mul(2_654_435_761) ^ round.wrapping_mul(40_503)) >> 7;
    match series % 10 {
        0..4 => 7.0,
        4..7 => (round * (series % 97) + noise % 13) as f64,
        7..9 => ((noise % 100_000) as f64) / 1000.0,
        _ => noise as f64 * 1.000_001_3,
    }
}

fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn open_each(parent: &str) {
    let mut dirs: Vec<_> = std::fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().path()).collect();
    dirs.sort();
    for dir in dirs {
        let (began, cpu) = (Instant::now(), cpu_seconds());
        let options = StoreOptions { shards: 2, ..StoreOptions::new(&dir) };
        let progress = Arc::new(Progress::default());
        let clock = Arc::new(RealClock::new());
        let store = Store::open(options, Arc::new(RealFiles), clock, Budget::unlimited(), progress).unwrap();
        println!("open: {:?}, {:.2} s CPU", began.elapsed(), cpu_seconds() - cpu);
        println!("{:?}", store.stats());
    }
}

fn main() {
    if let Ok(parent) = std::env::var("OPEN") {
        return open_each(&parent);
    }
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>().unwrap());
    let (series, rounds) = (numbers.next().unwrap_or(500_000), numbers.next().unwrap_or(36));
    let threads = numbers.next().unwrap_or(2);
    let parent = std::env::var("KEEP").map_or_else(
        |_| std::env::temp_dir(),
        |kept| std::path::Path::new(&kept).parent().unwrap().to_owned(),
    );
    let dir = parent.join(format!("metricsstore-load-{}", std::process::id()));
    let budget = Budget::unlimited();
    let mut options = StoreOptions::new(&dir);
    options.shards = 2;
    let open = |options: StoreOptions| {
        let files = Arc::new(RealFiles);
        Store::open(options, files, Arc::new(RealClock::new()), budget.clone(), Arc::new(Progress::default()))
            .unwrap()
    };
    let store = open(options.clone());
    let all: Vec<String> = (0..series).map(labels).collect();
    let hasher = RawKeyHasher::new(7, b"plain");
    let base = status("VmRSS");
    println!("labels of the sender: {base} MiB");
    let now = RealClock::new().now_ms() - rounds as i64 * 15_000;
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let mut append_cpu = 0.0;
    for round in 0..rounds {
        let before = cpu_seconds();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (all, store) = (&all, &store);
                scope.spawn(move || {
                    for first in (thread * ROWS..series).step_by(threads * ROWS) {
                        let last = (first + ROWS).min(series);
                        let rows = (first..last).map(|index| Row {
                            raw_labels: all[index].as_bytes(),
                            key: hasher.key(all[index].as_bytes()),
                            samples: (index - first) as u32..(index - first) as u32 + 1,
                        });
                        let samples = (first..last).map(|index| Sample {
                            timestamp_ms: now + round as i64 * 15_000 + (index / 400 % 97) as i64 * 31,
                            value: value(index, round),
                        });
                        let batch = Batch {
                            origin: Origin::RemoteWrite(0),
                            decoder: &PlainLabels,
                            rows: rows.collect(),
                            samples: samples.collect(),
                            extras: Extras::default(),
                        };
                        let verdicts = store.append(&batch, Acknowledge::Durable).unwrap();
                        assert_eq!(verdicts.written as usize, last - first);
                    }
                });
            }
        });
        append_cpu += cpu_seconds() - before;
        let done = store.maintain().unwrap();
        if round % 6 == 0 || done.sealed {
            println!("round {round}: RSS {} MiB, sealed {}", status("VmRSS") - base, done.sealed);
        }
    }
    let samples = (series * rounds) as f64;
    println!(
        "{:.2} µs CPU per sample ({:.2} without maintenance), {:.0}k samples/s, RSS {} MiB, peak {} MiB",
        (cpu_seconds() - cpu) * 1e6 / samples,
        append_cpu * 1e6 / samples,
        samples / began.elapsed().as_secs_f64() / 1000.0,
        status("VmRSS") - base,
        status("VmHWM") - base,
    );
    for part in Part::ALL {
        println!("  {:14} {:8} KiB", part.name(), budget.part(part) >> 10);
    }
    println!("{:?}", store.stats());
    drop(store);
    if let Ok(kept) = std::env::var("KEEP") {
        return std::fs::rename(dir, kept).unwrap();
    }
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let store = open(options);
    println!("open: {:?}, {:.2} s CPU", began.elapsed(), cpu_seconds() - cpu);
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let mut read = 0;
    let selection = Selection { matchers: &[], start_ms: i64::MIN, end_ms: i64::MAX };
    let mut batches = store.select(&selection, &Grant::unlimited()).unwrap();
    let mut count = 0;
    while let Some(batch) = batches.next_batch().unwrap() {
        count += 1;
        read += batch.ids.len() * batch.times.len();
    }
    println!(
        "read {read} cells of {samples} samples in {count} batches: {:?}, {:.1} ns CPU each",
        began.elapsed(),
        (cpu_seconds() - cpu) * 1e9 / read as f64
    );
    drop(batches);
    store.close().unwrap();
    println!("{:?}", store.stats());
    std::fs::remove_dir_all(dir).unwrap();
}
