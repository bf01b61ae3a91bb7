//! What is measured: each scenario is one population, loaded into an engine, and what happens to it then.
use super::engine::Kind;
use super::population::{Shape, Times, Values};

/// What happens after the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Everything is read back.
    ReadBack,
    /// The engine is killed and started again before everything is read back.
    KillAndReadBack,
}

/// One load.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Short name.
    pub name: &'static str,
    /// Name of its group: `size` (memory, CPU per sample, restart), `rate`, `jitter`, `churn`, `incompressible`, `restart`.
    pub group: &'static str,
    /// One line about it.
    pub title: &'static str,
    /// Kind of series.
    pub shape: Shape,
    /// Number of series at any time.
    pub series: usize,
    /// Scrapes of every series, 15 s of data time apart.
    pub scrapes: usize,
    /// Connections that send side by side.
    pub senders: usize,
    /// What follows.
    pub then: Then,
    /// Engines that take part.
    pub engines: &'static [Kind],
}

const ALL: &[Kind] = &[Kind::Metricsstore, Kind::Prometheus, Kind::VictoriaMetrics];
const OURS: &[Kind] = &[Kind::Metricsstore];

const BASE: Scenario = Scenario {
    name: "",
    group: "size",
    title: "",
    shape: Shape::USUAL,
    series: 500_000,
    scrapes: 36,
    senders: 4,
    then: Then::ReadBack,
    engines: ALL,
};

/// Six hours of data, 15 s apart.
const SIX_HOURS: usize = 6 * 240;
const TWO_HOURS: usize = 2 * 240;

/// All scenarios, in the order in which they run.
pub const SCENARIOS: [Scenario; 9] = [
    Scenario { name: "size-50k", title: "50k series", series: 50_000, ..BASE },
    Scenario { name: "size-200k", title: "200k series", series: 200_000, ..BASE },
    Scenario {
        name: "size-500k",
        title: "500k series, then kill -9 and restart",
        then: Then::KillAndReadBack,
        ..BASE
    },
    Scenario {
        name: "rate",
        group: "rate",
        title: "200k series over 16 connections",
        series: 200_000,
        scrapes: 60,
        senders: 16,
        ..BASE
    },
    Scenario {
        name: "jitter",
        group: "jitter",
        title: "500k series, every series with its own times, which vary by up to 100 ms",
        shape: Shape { times: Times::OfSeries, ..Shape::USUAL },
        ..BASE
    },
    Scenario {
        name: "steady",
        group: "churn",
        title: "50k series, six hours of data, always the same series",
        series: 50_000,
        scrapes: SIX_HOURS,
        engines: OURS,
        ..BASE
    },
    Scenario {
        name: "churn",
        group: "churn",
        title: "50k series, six hours of data, a tenth of the targets replaced every ten minutes",
        shape: Shape { churn: true, ..Shape::USUAL },
        series: 50_000,
        scrapes: SIX_HOURS,
        engines: OURS,
        ..BASE
    },
    Scenario {
        name: "incompressible",
        group: "incompressible",
        title: "50k series, two hours of data: half of them random doubles, half counters of full precision",
        shape: Shape { values: Values::Incompressible, ..Shape::USUAL },
        series: 50_000,
        scrapes: TWO_HOURS,
        ..BASE
    },
    Scenario {
        name: "restart-2h",
        group: "restart",
        title: "50k series, two hours of data, then kill -9 and restart",
        series: 50_000,
        scrapes: TWO_HOURS,
        then: Then::KillAndReadBack,
        ..BASE
    },
];
