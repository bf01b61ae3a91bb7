//! The figures of every scenario, and the table of what must be reached.
use std::time::Duration;

use super::engine::{Engine, Kind};
use super::goals::{self, Goal};
use super::run::{Measured, Rest};
use super::scenario::Scenario;

const MIB: f64 = (1u32 << 20) as f64;

/// Median and spread of one figure over an engine's runs.
pub struct Figure {
    /// Median.
    pub median: f64,
    low: f64,
    high: f64,
}

impl Figure {
    /// Of the values of all runs; `None` without any.
    pub fn of(mut values: Vec<f64>) -> Option<Figure> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        Some(Figure { median: values[values.len() / 2], low, high })
    }

    /// The median, and the spread in brackets when there is one.
    pub fn text(&self, decimals: usize) -> String {
        let Figure { median, low, high } = self;
        if low == high {
            return format!("{median:.decimals$}");
        }
        format!("{median:.decimals$} [{low:.decimals$}–{high:.decimals$}]")
    }
}

/// Name, decimals and how a figure is taken from a run; NaN when the run does not have it.
type Row = (&'static str, usize, fn(&Measured) -> f64);

const ROWS: [Row; 22] = [
    ("RSS mean, MiB", 0, |m| m.memory.rss_mean() / MIB),
    ("RSS max, MiB", 0, |m| m.memory.rss_max() / MIB),
    ("RSS mean of the last sixth, MiB", 0, |m| m.memory.rss_at_end() / MIB),
    ("working set max, MiB", 0, |m| m.memory.working_set_max as f64 / MIB),
    ("control group's peak, MiB", 0, |m| m.peak as f64 / MIB),
    ("CPU µs per sample", 2, |m| m.cpu_per_sample()),
    ("CPU µs per sample, senders", 2, |m| m.sender_cpu.as_secs_f64() * 1e6 / m.sent.accepted as f64),
    ("thousand samples/s", 0, |m| m.sent.accepted as f64 / m.sent.wall.as_secs_f64() / 1e3),
    ("thousand samples/s, known series", 0, |m| m.rate() / 1e3),
    ("request p50, ms", 1, |m| percentile(&m.sent.latencies, 0.50)),
    ("request p99, ms", 1, |m| percentile(&m.sent.latencies, 0.99)),
    ("requests sent again", 0, |m| m.sent.retries as f64),
    ("disk after the load, bytes per sample", 2, |m| m.disk as f64 / m.sent.accepted as f64),
    ("disk after the stop, bytes per sample", 2, |m| m.disk_stopped as f64 / m.sent.accepted as f64),
    ("at rest, bytes per sample", 3, Measured::bytes_at_rest),
    ("written, bytes per sample", 2, Measured::written_per_sample),
    ("CPU µs per sample until at rest", 2, Measured::cpu_until_rest),
    ("RSS max after the load, MiB", 0, |m| m.rest.as_ref().map_or(f64::NAN, |r| r.memory.rss_max() / MIB)),
    ("kill -9 to ready, ms", 0, |m| m.restart.as_ref().map_or(f64::NAN, |r| millis(r.ready))),
    ("kill -9 to right answer, ms", 0, |m| m.restart.as_ref().map_or(f64::NAN, |r| millis(r.right))),
    ("CPU s until then", 2, |m| m.restart.as_ref().map_or(f64::NAN, |r| r.cpu.as_secs_f64())),
    ("acknowledged and lost, thousand samples", 0, |m| m.found.missing as f64 / 1e3),
];

impl Measured {
    /// CPU time of the engine for one sample, in microseconds.
    pub fn cpu_per_sample(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.sent.accepted as f64
    }

    fn at_rest(&self, figure: impl Fn(&Rest) -> f64) -> f64 {
        self.rest.as_ref().map_or(f64::NAN, |rest| figure(rest) / self.sent.accepted as f64)
    }

    /// The whole data directory when all background work is done, for one sample.
    pub fn bytes_at_rest(&self) -> f64 {
        self.at_rest(|rest| rest.parts.values().sum::<u64>() as f64)
    }

    /// What was written until then, for one sample.
    pub fn written_per_sample(&self) -> f64 {
        self.at_rest(|rest| rest.written as f64)
    }

    /// CPU time of load and background work for one sample, in microseconds.
    pub fn cpu_until_rest(&self) -> f64 {
        self.at_rest(|rest| rest.cpu.as_secs_f64() * 1e6)
    }

    /// Samples a second once all series are known.
    pub fn rate(&self) -> f64 {
        let wall = self.sent.wall.saturating_sub(self.sent.first_scrape);
        self.sent.accepted.saturating_sub(self.series as u64) as f64 / wall.as_secs_f64()
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn percentile(sorted: &[Duration], share: f64) -> f64 {
    let index = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or(f64::NAN, |latency| millis(*latency))
}

/// One run in one line.
pub fn line(m: &Measured) -> String {
    let restart = m.restart.as_ref().map_or(String::new(), |restart| {
        let (ready, right) = (millis(restart.ready), millis(restart.right));
        format!(", kill -9: ready after {ready:.0} ms, right after {right:.0} ms")
    });
    let lost = match m.found.missing {
        0 => ", all read back".to_owned(),
        missing => format!(", {missing} acknowledged samples lost"),
    };
    let rounded = match m.found.rounded {
        0 => String::new(),
        rounded => format!(" ({rounded} of them not to the last bit)"),
    };
    format!(
        "{:.1} million samples in {:.1} s, RSS {:.0}/{:.0} MiB, {:.2} µs per sample{restart}{lost}{rounded}",
        m.sent.accepted as f64 / 1e6,
        m.sent.wall.as_secs_f64(),
        m.memory.rss_mean() / MIB,
        m.memory.rss_max() / MIB,
        m.cpu_per_sample(),
    )
}

/// Prints all figures of each scenario, then the goals.
pub fn print(scenarios: &[Scenario], engines: &[Engine], all: &[Measured]) {
    for scenario in scenarios {
        let kinds: Vec<Kind> =
            engines.iter().map(|engine| engine.kind).filter(|kind| scenario.engines.contains(kind)).collect();
        println!("\n{}: {}\n", scenario.name, scenario.title);
        print_table(&figures(scenario, &kinds, all));
    }
    let reached: Vec<Vec<String>> = goals::GOALS.iter().filter_map(|goal| reached(goal, all)).collect();
    if reached.is_empty() {
        return;
    }
    println!("\nWhat must be reached (medians of {} runs)\n", all.iter().map(|m| m.run).max().unwrap_or(0));
    let head = ["figure", "ours", "against", "theirs", "ours / theirs", "must", "aim", "verdict"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    table.extend(reached);
    print_table(&table);
}

/// One row a figure, one column an engine, then each peer's figure divided by ours.
fn figures(scenario: &Scenario, kinds: &[Kind], all: &[Measured]) -> Vec<Vec<String>> {
    let ours = Kind::Metricsstore;
    let peers = || kinds.iter().filter(|kind| **kind != ours && kinds.contains(&ours));
    let mut head = vec![String::new()];
    head.extend(kinds.iter().map(|kind| kind.name().to_owned()));
    head.extend(peers().map(|peer| format!("{} / ours", peer.name())));
    let mut table = vec![head];
    for (name, decimals, take) in ROWS {
        let of = |kind: Kind| {
            let runs = all.iter().filter(|m| m.scenario == scenario.name && m.engine == kind);
            Figure::of(runs.map(take).collect())
        };
        if kinds.iter().all(|kind| of(*kind).is_none()) {
            continue;
        }
        let mut row = vec![name.to_owned()];
        row.extend(kinds.iter().map(|kind| of(*kind).map_or(String::new(), |figure| figure.text(decimals))));
        row.extend(peers().map(|peer| match (of(*peer), of(ours)) {
            (Some(theirs), Some(ours)) if ours.median != 0.0 => format!("{:.2}", theirs.median / ours.median),
            _ => String::new(),
        }));
        table.push(row);
    }
    table
}

fn reached(goal: &Goal, all: &[Measured]) -> Option<Vec<String>> {
    let ours = Figure::of(goal.ours.of(all))?;
    let mut figure = ours.median;
    let (mut theirs_text, mut ratio) = (String::new(), String::new());
    if let Some(theirs) = &goal.theirs {
        let theirs = Figure::of(theirs.of(all))?;
        figure /= theirs.median;
        theirs_text = theirs.text(goal.decimals);
        ratio = if figure < 0.9 { format!("1/{:.1}", 1.0 / figure) } else { format!("{figure:.2}") };
    }
    let name = format!("{}, {}", goal.name, goal.unit);
    let against = goal.against.to_owned();
    let bound = |value: f64| goal.bound_text(value);
    let verdict = goal.verdict(figure).to_owned();
    Some(vec![
        name,
        ours.text(goal.decimals),
        against,
        theirs_text,
        ratio,
        bound(goal.must),
        bound(goal.aim),
        verdict,
    ])
}

/// As a Markdown table, with its columns aligned.
fn print_table(table: &[Vec<String>]) {
    let columns = table.first().map_or(0, Vec::len);
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (index, row) in table.iter().enumerate() {
        let cells = row.iter().zip(&widths).enumerate();
        let text: String = cells
            .map(
                |(column, (cell, width))| {
                    if column == 0 { format!(" {cell:<width$} |") } else { format!(" {cell:>width$} |") }
                },
            )
            .collect();
        println!("|{text}");
        if index == 0 {
            let rule = widths.iter().enumerate().map(|(column, width)| {
                let rule = "-".repeat(width + 1);
                if column == 0 { format!("{rule}-|") } else { format!("{rule}:|") }
            });
            println!("|{}", rule.collect::<String>());
        }
    }
}
