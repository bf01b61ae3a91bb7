//! The store against plain maps, on a simulated machine whose power fails, whose disk fills up and whose calls fail:
//! a million random operations and thousands of crashes. Whatever was acknowledged as durable is read after any crash,
//! nothing is ever read that was not appended, and every answer of an append is the one that the rules foresee.
//!
//! | setting | effect |
//! |---|---|
//! | `MODEL_SEED=n` | runs one seed: how a failure is repeated |
//! | `MODEL_RUNS=n` | so many seeds |
//! | `MODEL_FIRST=n` | from this seed on |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may panic")]
#[path = "../common/mod.rs"]
mod common;
mod oracle;
mod random;
mod readers;
mod tally;
mod traffic;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metricsstore_vfs::sim::Call;
use tally::Tally;
use world::World;

const OPERATIONS: u64 = 4000;
const RUNS: u64 = 250;
/// Fewer seeds may miss something that a run over many must have done.
const MANY_RUNS: u64 = 20;
const WORKERS: usize = 2;

/// Calls of which all may fail for a while.
const FAILING_CALLS: [Call; 6] =
    [Call::Create, Call::Append, Call::Sync, Call::SyncDir, Call::Rename, Call::Remove];

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_read_or_answered_wrong() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = setting("MODEL_FIRST").unwrap_or(0);
    let runs = setting("MODEL_RUNS").unwrap_or(RUNS);
    let seeds = setting("MODEL_SEED").map_or(first..first + runs, |seed| seed..seed + 1);
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let tally = run(seed);
                    total.lock().unwrap().add(&tally);
                }
            });
        }
    });
    let total = total.into_inner().unwrap();
    total.print();
    let runs = seeds.end - seeds.start;
    if runs >= MANY_RUNS {
        total.demand_enough(runs);
    }
}

fn run(seed: u64) -> Tally {
    let mut world = World::new(seed);
    if let Err(failure) = catch_unwind(AssertUnwindSafe(|| world.run(OPERATIONS))) {
        println!("files of seed {seed}: {:#?}", world.files());
        println!(
            "seed {seed} failed; again: MODEL_SEED={seed} cargo test -p metricsstore-storage --test model"
        );
        std::panic::resume_unwind(failure);
    }
    world.tally
}
