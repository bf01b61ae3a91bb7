//! The table.
use std::time::Duration;

use super::Measured;
use super::engine::Engine;

/// Median and spread of one figure over an engine's runs.
struct Figure {
    median: f64,
    low: f64,
    high: f64,
}

fn figure(mut values: Vec<f64>) -> Figure {
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    Figure { median: at(values.len() / 2), low: at(0), high: at(values.len().saturating_sub(1)) }
}

fn percentile(sorted: &[Duration], share: f64) -> f64 {
    let index = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1000.0)
}

const MIB: f64 = (1u32 << 20) as f64;

/// Name, unit's decimals and how a figure is taken from a run.
type Row = (&'static str, usize, fn(&Measured) -> f64);

const ROWS: [Row; 10] = [
    ("RSS mean, MiB", 0, |m| m.memory.rss_mean() as f64 / MIB),
    ("RSS max, MiB", 0, |m| m.memory.rss_max as f64 / MIB),
    ("working set max, MiB", 0, |m| m.memory.working_set_max as f64 / MIB),
    ("cgroup peak, MiB", 0, |m| m.peak as f64 / MIB),
    ("CPU s per million samples", 2, |m| m.cpu.as_secs_f64() * 1e6 / m.accepted as f64),
    ("samples/s", 0, |m| m.accepted as f64 / m.wall.as_secs_f64()),
    ("request p50, ms", 1, |m| percentile(&m.latencies, 0.50)),
    ("request p99, ms", 1, |m| percentile(&m.latencies, 0.99)),
    ("disk, MiB", 0, |m| m.disk as f64 / MIB),
    ("disk, bytes per sample", 2, |m| m.disk as f64 / m.accepted as f64),
];

/// Prints one row a figure, one column an engine; the last columns are each peer's figure divided by the first
/// engine's. With more than one run the spread follows in brackets.
pub fn print(engines: &[Engine], all: &[Measured]) {
    let Some(ours) = engines.first() else { return };
    println!();
    print!("{:<28}", "");
    for engine in engines {
        print!("{:>24}", engine.name);
    }
    for peer in &engines[1..] {
        print!("{:>28}", format!("{} / {}", peer.name, ours.name));
    }
    println!();
    for (name, decimals, take) in ROWS {
        print!("{name:<28}");
        let of = |engine: &Engine| figure(all.iter().filter(|m| m.name == engine.name).map(take).collect());
        for engine in engines {
            let Figure { median, low, high } = of(engine);
            let spread =
                if low == high { String::new() } else { format!(" [{low:.decimals$}–{high:.decimals$}]") };
            print!("{:>24}", format!("{median:.decimals$}{spread}"));
        }
        for peer in &engines[1..] {
            print!("{:>28}", format!("{:.2}", of(peer).median / of(ours).median));
        }
        println!();
    }
}
