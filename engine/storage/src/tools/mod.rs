//! What command-line tools see of a data directory: what is in it, series after series, and whether it is whole; and how
//! they carry blocks from one directory into another.
mod check;
mod dir;
mod export;
mod import;

pub use crate::block::SeriesData;
pub use check::{PartReport, Problem};
pub use dir::{BlockInfo, Contents, DataDir, Selected, Series};
pub use export::{Export, ExportStep};
pub use import::{Import, ImportStep, Imported};
