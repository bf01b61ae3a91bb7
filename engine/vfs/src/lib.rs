//! Everything that touches the world: files and the clock, behind traits, real and simulated.
//!
//! The storage core takes `Arc<dyn Files>` and `Arc<dyn Clock>` and never reaches for `std::fs` or the system
//! time itself. That is what lets one process be crashed thousands of times a second under test.
//!
//! # What is assumed about the medium
//! - Bytes written to a file are durable only after [`File::sync`] returned `Ok`; before that a crash may keep,
//!   lose or tear any part of them.
//! - A created, renamed or removed name of a file is durable only after [`Files::sync_dir`] of its directory;
//!   [`Files::create_dir_all`] does that itself.
//! - A rename is atomic: after a crash the name shows the old file or the new one, never a mixture.
//! - A failed `sync` says nothing about which bytes reached the medium; it is never retried on the same file.

#![forbid(unsafe_code)]

mod clock;
mod files;
pub mod overlay;
pub mod real;
pub mod sim;

pub use clock::Clock;
pub use files::{DirEntry, File, Files, Space};
