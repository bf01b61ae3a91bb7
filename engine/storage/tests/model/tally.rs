//! What happened over a run: a test that never merges proves nothing about merges.
use std::collections::BTreeMap;

/// What must have happened at least once for each seed, over many seeds.
const DEMANDED: [&str; 33] = [
    "appends",
    "failed appends",
    "samples",
    "written",
    "histograms written",
    "duplicates refused",
    "out of order",
    "out of bounds",
    "too old",
    "too far in the future",
    "series refused",
    "seals",
    "cuts",
    "merges",
    "segments expired",
    "series removed",
    "failed maintenance",
    "power failures",
    "kills",
    "restarts",
    "failed starts",
    "full disks",
    "recoveries",
    "clock jumps",
    "full reads",
    "range reads",
    "snapshots read",
    "label queries",
    "deletions",
    "samples deleted",
    "compactions",
    "blocks cleaned",
    "snapshots opened",
];

#[derive(Default)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    pub fn count(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub fn add(&mut self, other: &Tally) {
        for (what, &times) in &other.0 {
            self.count(what, times);
        }
    }

    /// Panics when something happened so seldom that the run proves nothing about it.
    pub fn demand_enough(&self, seeds: u64) {
        for what in DEMANDED {
            assert!(self.of(what) >= seeds, "{seeds} seeds did too little: {} {what}", self.of(what));
        }
        let crashes = self.of("power failures") + self.of("kills");
        assert!(crashes >= 4 * seeds, "{seeds} seeds did too little: {crashes} crashes");
        let exact = self.of("predicted exactly");
        let samples = self.of("samples") - self.of("samples at deleted times");
        // Bounds of half a short block are uncertain for a while after each failure.
        assert!(exact * 20 >= samples * 17, "only {exact} of {samples} answers could be predicted exactly");
    }

    pub fn print(&self) {
        let counts: Vec<String> = self.0.iter().map(|(what, times)| format!("{times} {what}")).collect();
        println!("{}", counts.join(", "));
    }
}
