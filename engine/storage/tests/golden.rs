//! Directories written by earlier releases stay readable: one per format version, made once and never again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
mod common;

use common::golden::{golden_files, lay_out, write_golden};
use common::{Contents, Machine, NOW_MS, append, read_all};
use metricsstore_model::{Acknowledge, stale_nan};

/// What the directories hold: rows up to step 20 in a segment, the rest in the log.
fn rows(step: i64) -> Vec<(u32, i64, f64)> {
    let time = NOW_MS + step * 15_000;
    let mut rows = vec![
        (1, time, 1.0),
        (2, time, step as f64 * 3.0),
        (3, time, step as f64 * 0.25 - 1.0),
        (4, time + step % 3, 1.0 / (step as f64 + 0.5)),
    ];
    if step % 5 == 0 {
        rows.push((5, time, f64::from_bits(0x7ff8_dead_beef_0000 + step as u64)));
        rows.push((6, time - 60_000, f64::INFINITY));
    }
    if step == 13 {
        rows.push((5, time, stale_nan()));
    }
    rows
}

fn expected() -> Contents {
    let mut contents = Contents::new();
    for (number, time, value) in (0..30).flat_map(rows) {
        contents.entry(number).or_default().insert(time, value.to_bits());
    }
    contents
}

#[test]
fn a_directory_of_version_1_is_read_bit_for_bit() {
    let machine = Machine::new(1);
    lay_out(&machine, &golden_files("v1"));
    let store = machine.open();
    assert_eq!(store.stats().segment_count, 1);
    assert_eq!(read_all(&store), expected());
    assert_eq!(store.stats().quarantined, 0);
}

#[test]
#[ignore = "writes the directory of the present version; a version that was released is never written again"]
fn write_the_directory_of_the_present_version() {
    let machine = Machine::new(1);
    let store = machine.open();
    for step in 0..30 {
        append(&store, &rows(step), Acknowledge::Durable).unwrap();
        if step == 19 {
            machine.clock.advance(std::time::Duration::from_mins(30));
            assert!(store.maintain().unwrap().sealed);
        }
    }
    write_golden(&machine, "v1");
}
