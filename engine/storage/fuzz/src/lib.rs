//! Opens a store in which one file holds any bytes.
//!
//! Whatever they are: opening never panics, hangs or takes memory beyond proportion; nothing is lost that other files
//! hold; what was opened takes a sample, and opens again with the same content.
#![forbid(unsafe_code)]
#[path = "../../tests/common/mod.rs"]
#[allow(dead_code)]
mod common;

pub use common::changed::try_file;
pub use common::formats::Format;
