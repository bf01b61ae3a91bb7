//! Blocks: immutable parts of the store that carry their own labels, index and samples for one stretch of time.
//!
//! Two formats, one face. [`native`] is small and is what the store keeps unless told otherwise; [`prometheus`] is what
//! Prometheus and Thanos read. Both are read through [`Block`] and [`BlockCursor`], and written through [`BlockSink`] from
//! [`SeriesData`], one series after the other in the order of label sets, so that a merge, an export and an import are the
//! same loop with other ends.
use std::path::PathBuf;
use std::sync::Arc;

use metricsstore_model::{LabelBuf, Matcher};
use roaring::RoaringBitmap;

use crate::StorageError;
use crate::column::Piece;
use crate::kinds::{Kind, KindColumn};

pub(crate) mod files;
pub(crate) mod native;
pub(crate) mod page_cache;
pub(crate) mod prometheus;
pub(crate) mod series;
pub(crate) mod ulid;

pub(crate) use files::BlockFiles;
pub use series::SeriesData;
pub(crate) use series::SeriesStream;
pub use ulid::Ulid;

/// Which bytes a block is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Format {
    /// One file `blocks/<ULID>`.
    Native = 1,
    /// A directory `<ULID>` at the top of the data directory.
    Prometheus,
}

impl Format {
    /// Both.
    pub const ALL: [Format; 2] = [Format::Native, Format::Prometheus];
}

/// What a block says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockMeta {
    /// Its name.
    pub ulid: Ulid,
    /// Which bytes it is made of.
    pub format: Format,
    /// The stretch of time that it is for, `start_ms..end_ms`, aligned to the block range of its level.
    pub start_ms: i64,
    /// The end of it, exclusive.
    pub end_ms: i64,
    /// Oldest sample in it.
    pub min_ms: i64,
    /// Newest sample in it.
    pub max_ms: i64,
    /// 1 as cut from the head; one more than the highest of what was merged into it.
    pub level: u32,
    /// Blocks of level 1 that are in it; its own ULID at level 1.
    pub sources: Vec<Ulid>,
    /// Blocks that were merged into it.
    pub parents: Vec<Parent>,
    /// Whether it was cut from late samples, so that it overlaps others.
    pub is_late: bool,
    /// Rows of it: series.
    pub series: u64,
    /// Samples that are floats.
    pub float_samples: u64,
    /// Samples that are native histograms.
    pub histogram_samples: u64,
    /// Columns of the native format, chunks of Prometheus'.
    pub chunks: u64,
    /// Of all its files.
    pub bytes: u64,
}

/// A block that was merged into another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    /// Its name.
    pub ulid: Ulid,
    /// The stretch of time that it was for, `start_ms..end_ms`.
    pub start_ms: i64,
    /// The end of it, exclusive.
    pub end_ms: i64,
}

/// What is settled about a block before its first series is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewBlock {
    pub(crate) ulid: Ulid,
    pub(crate) start_ms: i64,
    pub(crate) end_ms: i64,
    pub(crate) level: u32,
    pub(crate) sources: Vec<Ulid>,
    pub(crate) parents: Vec<Parent>,
    pub(crate) is_late: bool,
    /// Whether values are entropy-coded (`native` only): smaller, and slower to read.
    pub(crate) is_cold: bool,
}

/// A block that can be read. A *row* is a series of this block: its place in the order of label sets, from 0.
pub(crate) trait Block: Send + Sync {
    fn meta(&self) -> &BlockMeta;

    /// Rows of the series that pass all matchers.
    fn rows(&self, matchers: &[Matcher]) -> Result<RoaringBitmap, StorageError>;

    /// The row of the series with exactly these labels.
    fn row_of(&self, labels: &LabelBuf) -> Result<Option<u32>, StorageError> {
        let matchers: Vec<Matcher> = labels.iter().map(|(name, value)| Matcher::equal(name, value)).collect();
        // Others may have more labels beside these.
        let wanted = series::fingerprint(labels);
        for row in self.rows(&matchers)? {
            if self.fingerprint(row)? == wanted {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// The labels of a row: cleared, filled, sorted.
    fn labels(&self, row: u32, labels: &mut LabelBuf) -> Result<(), StorageError>;

    /// [`series::fingerprint`] of the labels of a row, without decoding them where the format has it.
    fn fingerprint(&self, row: u32) -> Result<u128, StorageError>;

    /// The same of many rows, ascending: appends one for each. Selects join hundreds of thousands of rows by it, so a
    /// format that has them side by side reads them so.
    fn fingerprints_into(&self, rows: &[u32], fingerprints: &mut Vec<u128>) -> Result<(), StorageError> {
        for &row in rows {
            fingerprints.push(self.fingerprint(row)?);
        }
        Ok(())
    }

    /// The rows that have columns of a kind; `None` where only their columns would say.
    fn rows_with(&self, kind: Kind) -> Result<Option<RoaringBitmap>, StorageError>;

    /// Sorted names of the labels of these rows, of all where there are none given.
    fn label_names(&self, rows: Option<&RoaringBitmap>) -> Result<Vec<String>, StorageError>;

    /// Sorted values of a label in these rows, in all where there are none given.
    fn label_values(&self, name: &str, rows: Option<&RoaringBitmap>) -> Result<Vec<String>, StorageError>;

    /// Begins to read samples. Rows are asked for in any order, and fastest in ascending order.
    fn cursor(self: Arc<Self>) -> Box<dyn BlockCursor>;

    /// Its files, those beside the block that hold its tombstones left out.
    fn files(&self) -> Vec<PathBuf>;
}

/// Reads the samples of a block; holds decoded pages while it lives.
pub(crate) trait BlockCursor: Send {
    /// Appends the float columns of a row to `payload` and describes them in `pieces`, oldest first, those without a
    /// sample from `within_ms.0` to `within_ms.1` left out. The streams of pieces of one row do not overlap in time.
    fn pieces_into(
        &mut self,
        row: u32,
        within_ms: (i64, i64),
        payload: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), StorageError>;

    /// The timestamps of a stream that a piece names.
    fn times(&mut self, stream: u32) -> Result<Arc<[i64]>, StorageError>;

    /// Histograms or start timestamps of a row: those from `within_ms.0` to `within_ms.1`, and perhaps others around them.
    fn kind_column(
        &mut self,
        kind: Kind,
        row: u32,
        within_ms: (i64, i64),
    ) -> Result<Option<KindColumn>, StorageError>;

    /// Appends the exemplars of a row in that time, oldest first. Formats without exemplars have none.
    fn exemplars_into(
        &mut self,
        _row: u32,
        _within_ms: (i64, i64),
        _exemplars: &mut Vec<crate::StoredExemplar>,
    ) -> Result<(), StorageError> {
        Ok(())
    }
}

/// Writes a block. What it wrote is not seen under its final name before [`BlockSink::finish`] has made it durable; what
/// is dropped before leaves files that the next start removes.
pub(crate) trait BlockSink: Send {
    /// Adds a series, or a further slice of the last one. Label sets ascend; times ascend within a series.
    fn add(&mut self, series: &SeriesData) -> Result<(), StorageError>;

    /// Makes files and names durable, and says what was written.
    fn finish(self: Box<Self>) -> Result<BlockMeta, StorageError>;

    /// Removes what was written so far.
    fn abandon(self: Box<Self>);
}
