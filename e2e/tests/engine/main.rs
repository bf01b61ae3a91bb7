//! What only the real binary can show: syncs before answers, `kill -9`, a full disk, a small control group. No cluster is
//! involved; `cargo xtask test` runs this as root, with `METRICSSTORE_ENGINE` naming the binary of the image.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "support of tests: a failure is a failed test, and what was measured is worth a line"
)]

mod blocks;
mod full_disk;
mod kill;
mod ledger;
mod matrix;
mod process;
mod small_memory;
mod sync_before_response;
mod trace;
