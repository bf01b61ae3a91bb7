//! Tests that need the real cluster. They run inside its namespaces (`cargo xtask test` sees to it), where pod and
//! service addresses, cgroups and the audit log are within reach.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod examples;
mod ledger;
mod pairs;
mod platform;
mod pressure;
mod real_input;
mod reconcile;
mod refusals;
mod sizing;
mod support;
mod survival;
