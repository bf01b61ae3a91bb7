//! What the engine must reach, as ratios to the peers of the same run or as figures of its own.
use super::engine::Kind;
use super::run::Measured;

/// A figure of one engine in one scenario.
pub struct Take {
    scenario: &'static str,
    engine: Kind,
    figure: fn(&Measured) -> f64,
}

/// Where a goal's figure comes from.
pub enum Source {
    /// One scenario.
    Of(Take),
    /// Difference of the figure between `size-500k` and `size-50k`, for each series more.
    Slope(fn(&Measured) -> f64),
}

impl Source {
    /// The values of all runs.
    pub fn of(&self, all: &[Measured]) -> Vec<f64> {
        match self {
            Source::Of(take) => take.of(all),
            Source::Slope(figure) => {
                let of = |scenario| Take { scenario, engine: Kind::Metricsstore, figure: *figure }.of(all);
                let series = |scenario| {
                    let engine = Kind::Metricsstore;
                    Take { scenario, engine, figure: |m: &Measured| m.series as f64 }.of(all)
                };
                let (large, small) = ("size-500k", "size-50k");
                let more = series(large).into_iter().zip(series(small)).map(|(large, small)| large - small);
                let bytes = of(large).into_iter().zip(of(small)).map(|(large, small)| large - small);
                bytes.zip(more).map(|(bytes, series)| bytes / series).collect()
            }
        }
    }
}

impl Take {
    fn of(&self, all: &[Measured]) -> Vec<f64> {
        let mine = all.iter().filter(|m| m.scenario == self.scenario && m.engine == self.engine);
        mine.map(self.figure).collect()
    }
}

/// One row of the table.
pub struct Goal {
    /// What it is about.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Decimals of the figures.
    pub decimals: usize,
    /// Our figure.
    pub ours: Source,
    /// What it is compared with, in words.
    pub against: &'static str,
    /// What it is divided by.
    pub theirs: Option<Source>,
    /// Whether the figure (or ratio) must be at least, not at most, what follows.
    pub at_least: bool,
    /// Bound that must be kept.
    pub must: f64,
    /// Bound that is aimed at.
    pub aim: f64,
}

impl Goal {
    /// What the figure, or the ratio, comes to.
    pub fn verdict(&self, figure: f64) -> &'static str {
        let keeps = |bound: f64| if self.at_least { figure >= bound } else { figure <= bound };
        match (keeps(self.aim), keeps(self.must)) {
            (true, _) => "aim reached",
            (false, true) => "must reached",
            (false, false) => "MISSED",
        }
    }

    /// A bound in words.
    pub fn bound_text(&self, bound: f64) -> String {
        let sign = if self.at_least { '≥' } else { '≤' };
        match &self.theirs {
            Some(_) if bound < 0.5 => format!("{sign} 1/{}", (10.0 / bound).round() / 10.0),
            Some(_) => format!("{sign} {bound} ×"),
            None => format!("{sign} {bound}"),
        }
    }
}

const MIB: f64 = (1u32 << 20) as f64;
const PROMETHEUS: Kind = Kind::Prometheus;
const VICTORIA: Kind = Kind::VictoriaMetrics;

fn rss_mean(m: &Measured) -> f64 {
    m.memory.rss_mean() / MIB
}

fn rss_max(m: &Measured) -> f64 {
    m.memory.rss_max() / MIB
}

fn rss_at_end(m: &Measured) -> f64 {
    m.memory.rss_at_end() / MIB
}

fn restart_ms(m: &Measured) -> f64 {
    m.restart.as_ref().map_or(f64::NAN, |restart| restart.right.as_secs_f64() * 1000.0)
}

const fn take(scenario: &'static str, engine: Kind, figure: fn(&Measured) -> f64) -> Source {
    Source::Of(Take { scenario, engine, figure })
}

/// Ours in a scenario against a peer in the same scenario: at most `must`, better `aim`.
const fn against(
    (name, unit, decimals): (&'static str, &'static str, usize),
    scenario: &'static str,
    figure: fn(&Measured) -> f64,
    peer: Kind,
    (must, aim): (f64, f64),
) -> Goal {
    let against = match peer {
        Kind::Metricsstore => "itself",
        Kind::Prometheus => "Prometheus",
        Kind::VictoriaMetrics => "VictoriaMetrics",
    };
    let ours = take(scenario, Kind::Metricsstore, figure);
    let theirs = Some(take(scenario, peer, figure));
    Goal { name, unit, decimals, ours, against, theirs, at_least: false, must, aim }
}

/// Ours alone: at most `must`, better `aim`.
const fn alone(
    (name, unit, decimals): (&'static str, &'static str, usize),
    ours: Source,
    (must, aim): (f64, f64),
) -> Goal {
    Goal { name, unit, decimals, ours, against: "–", theirs: None, at_least: false, must, aim }
}

const RSS_MEAN: (&str, &str, usize) = ("RSS mean, 500k series", "MiB", 0);
const RSS_MAX: (&str, &str, usize) = ("RSS max, 500k series", "MiB", 0);
const CPU: (&str, &str, usize) = ("remote write, CPU per sample", "µs", 2);
const RESTART: (&str, &str, usize) = ("kill -9 to right answer, 500k series", "ms", 0);
const RESTART_2H: (&str, &str, usize) = ("the same, 50k series with 2 h of data", "ms", 0);
const AT_REST: (&str, &str, usize) = ("whole directory at rest, times that vary", "bytes per sample", 3);
const WRITTEN: (&str, &str, usize) = ("written to disk until then", "bytes per sample", 2);
const DISK: (&str, &str, usize) =
    ("directory on nearly incompressible data, after the load", "bytes per sample", 2);
const DISK_STOPPED: (&str, &str, usize) = ("the same after a stop", "bytes per sample", 2);

/// Every row.
pub static GOALS: [Goal; 20] = [
    against(RSS_MEAN, "size-500k", rss_mean, PROMETHEUS, (1.0 / 7.0, 1.0 / 10.0)),
    against(RSS_MAX, "size-500k", rss_max, PROMETHEUS, (1.0 / 8.0, 1.0 / 11.0)),
    against(RSS_MEAN, "size-500k", rss_mean, VICTORIA, (1.0 / 3.0, 1.0 / 5.0)),
    against(RSS_MAX, "size-500k", rss_max, VICTORIA, (1.0 / 3.0, 1.0 / 5.0)),
    alone(
        ("RSS mean for each series more, 50k to 500k", "bytes", 0),
        Source::Slope(|m| m.memory.rss_mean()),
        (230.0, 150.0),
    ),
    alone(
        ("RSS max for each series more, 50k to 500k", "bytes", 0),
        Source::Slope(|m| m.memory.rss_max()),
        (230.0, 150.0),
    ),
    against(("RSS mean, own times", "MiB", 0), "jitter", rss_mean, PROMETHEUS, (1.0 / 3.0, 1.0 / 4.0)),
    against(("RSS max, own times", "MiB", 0), "jitter", rss_max, PROMETHEUS, (1.0 / 3.0, 1.0 / 4.0)),
    Goal {
        name: "RSS in the sixth hour of churn",
        unit: "MiB",
        decimals: 0,
        ours: take("churn", Kind::Metricsstore, rss_at_end),
        against: "itself without churn",
        theirs: Some(take("steady", Kind::Metricsstore, rss_at_end)),
        at_least: false,
        must: 1.5,
        aim: 1.2,
    },
    against(CPU, "size-500k", Measured::cpu_per_sample, PROMETHEUS, (1.0 / 5.0, 1.0 / 9.0)),
    against(CPU, "size-500k", Measured::cpu_per_sample, VICTORIA, (1.0 / 2.0, 1.0 / 3.0)),
    Goal {
        name: "highest rate, known series",
        unit: "thousand samples/s",
        decimals: 0,
        ours: take("rate", Kind::Metricsstore, |m| m.rate() / 1e3),
        against: "VictoriaMetrics",
        theirs: Some(take("rate", VICTORIA, |m| m.rate() / 1e3)),
        at_least: true,
        must: 1.6,
        aim: 2.7,
    },
    alone(
        DISK,
        take("incompressible", Kind::Metricsstore, |m| m.disk as f64 / m.sent.accepted as f64),
        (5.0, 4.2),
    ),
    alone(
        DISK_STOPPED,
        take("incompressible", Kind::Metricsstore, |m| m.disk_stopped as f64 / m.sent.accepted as f64),
        (5.0, 4.2),
    ),
    against(RESTART, "size-500k", restart_ms, PROMETHEUS, (1.0 / 12.0, 1.0 / 30.0)),
    against(RESTART_2H, "restart-2h", restart_ms, PROMETHEUS, (1.0 / 12.0, 1.0 / 30.0)),
    against(AT_REST, "disk", Measured::bytes_at_rest, VICTORIA, (0.8, 0.6)),
    against(AT_REST, "disk", Measured::bytes_at_rest, PROMETHEUS, (1.0 / 3.5, 1.0 / 4.7)),
    against(WRITTEN, "disk", Measured::written_per_sample, VICTORIA, (1.5, 1.0)),
    alone(
        ("acknowledged and lost by kill -9", "samples", 0),
        take("size-500k", Kind::Metricsstore, |m| m.found.missing as f64),
        (0.0, 0.0),
    ),
];
