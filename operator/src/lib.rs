//! The operator: turns `MetricsStores` into Kubernetes objects that run the bundled engine.
//!
//! `reconcile` drives five steps, observe → validate → plan → apply → report; everything in `plan` and `validate` is a
//! function of what was observed and is tested without a cluster.
#![forbid(unsafe_code)]

pub mod context;
pub mod controller;
pub mod engines;
pub mod error;
pub mod events;
#[cfg(test)]
pub mod fixtures;
#[cfg(test)]
mod golden;
pub mod metrics;
pub mod options;
pub mod plan;
pub mod reconcile;
pub mod sampler;
pub mod web;
