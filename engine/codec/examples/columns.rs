//! Prints bytes per sample and nanoseconds per append and read for kinds of series as they are met.
//!
//! `cargo run --release -p metricsstore-codec --example columns`
use std::hint::black_box;
use std::time::Instant;

use metricsstore_codec::column::{Cell, ColumnReader, ColumnState};
use metricsstore_codec::fragments::{Arena, Chain};

const SERIES: usize = 2_000;
const ROWS: usize = 120;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// In 0..1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// About normal, with deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

type Generator = fn(&mut Random) -> Vec<f64>;

const KINDS: [(&str, Generator); 11] = [
    ("constant", |random| vec![random.below(1000) as f64; ROWS]),
    ("mostly constant gauge (5 % change by one)", |random| {
        walk(random, 100.0, |random, _| if random.below(20) == 0 { 1.0 } else { 0.0 })
    }),
    ("steady integer counter", |random| {
        let step = random.below(1000) as f64;
        walk(random, 1e6, move |_, _| step)
    }),
    ("integer counter, steps 0…3", |random| walk(random, 1e6, |random, _| random.below(4) as f64)),
    ("integer counter, rate 1000 ± 30", |random| {
        walk(random, 1e9, |random, _| (1000.0 + 30.0 * random.normal()).round())
    }),
    ("float counter base + rate·t", |random| {
        let (base, rate) = (random.unit() * 1e6, random.unit() * 100.0);
        (0..ROWS).map(|row| base + rate * row as f64).collect()
    }),
    ("cpu seconds, two decimals", |random| {
        walk(random, 1e4, |random, _| random.unit() * 0.5)
            .into_iter()
            .map(|v| (v * 100.0).round() / 100.0)
            .collect()
    }),
    ("short decimals, random walk", |random| {
        walk(random, 50.0, |random, _| random.normal())
            .into_iter()
            .map(|v| (v * 10.0).round() / 10.0)
            .collect()
    }),
    ("bytes in use, multiples of 4096", |random| {
        walk(random, 1e5, |random, _| (random.normal() * 50.0).round())
            .into_iter()
            .map(|v| v * 4096.0)
            .collect()
    }),
    ("f32 gauge", |random| (0..ROWS).map(|_| f64::from(random.unit() as f32)).collect()),
    ("random doubles", |random| (0..ROWS).map(|_| random.unit()).collect()),
];

fn walk(random: &mut Random, start: f64, mut step: impl FnMut(&mut Random, usize) -> f64) -> Vec<f64> {
    let mut value = start + random.below(1000) as f64;
    (0..ROWS)
        .map(|row| {
            value += step(random, row);
            value
        })
        .collect()
}

fn main() {
    println!("{SERIES} series of {ROWS} samples each, appended row after row");
    println!("{:44} {:>10} {:>10} {:>10} {:>10}", "", "B/sample", "with frag.", "ns/append", "ns/read");
    for (name, generate) in KINDS {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let series: Vec<Vec<f64>> = (0..SERIES).map(|_| generate(&mut random)).collect();
        measure(name, &series);
    }
}

fn measure(name: &str, series: &[Vec<f64>]) {
    let mut arena = Arena::new();
    let mut columns = vec![(ColumnState::EMPTY, Chain::EMPTY); series.len()];
    let start = Instant::now();
    for row in 0..ROWS {
        for ((state, chain), values) in columns.iter_mut().zip(series) {
            state.append(Cell::Value(values[row]), &mut chain.sink(&mut arena));
        }
    }
    let append = start.elapsed();
    let start = Instant::now();
    let mut sum = 0.0;
    for (state, chain) in &columns {
        let mut reader = ColumnReader::new(state.constant(), chain.reader(&arena), ROWS as u32);
        while let Ok(Some(Cell::Value(value))) = reader.next() {
            sum += value;
        }
    }
    black_box(sum);
    let read = start.elapsed();
    let samples = (series.len() * ROWS) as f64;
    let payload: u64 = columns.iter().map(|(_, chain)| chain.payload_bytes()).sum();
    println!(
        "{name:44} {:10.3} {:10.3} {:10.1} {:10.1}",
        payload as f64 / samples,
        arena.used_bytes() as f64 / samples,
        append.as_nanos() as f64 / samples,
        read.as_nanos() as f64 / samples
    );
}
