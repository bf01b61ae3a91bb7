//! Everything that needs the whole of metricsstore: the real cluster, the image, the demo, the tests and the benchmarks.
//!
//! `cargo xtask` is a thin command line over this crate. It talks to other programs (cargo, go, buildah, kubectl, helm)
//! and links none of their libraries, so that it builds in seconds.
#![forbid(unsafe_code)]

pub mod audit;
pub mod bench;
mod buildah;
pub mod cluster;
pub mod crds;
pub mod demo;
mod error;
pub mod image;
pub mod kubectl;
pub mod measure;
pub mod packages;
pub mod pipeline;
pub mod places;
mod program;
pub mod progress;
pub mod proofs;
pub mod release;
pub mod sabotage;
pub mod soak;
pub mod tools;
pub mod wait;

pub use error::{Error, Result};
