//! What is appended: a [`Batch`] of rows that keep the **raw label bytes and their hash**, borrowed from the body
//! they came in. A known series costs one hash; labels are decoded only when the store has not seen the key.
use std::ops::Range;

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use crate::histogram::{Histogram, HistogramError};
use crate::{LabelBuf, Metadata, Sample};

/// Keyed 128-bit hash of a series' raw label bytes together with everything that decides what they decode to
/// (encoding, target labels). Never persisted: the key is drawn anew by each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RawKey(pub u128);

/// Makes [`RawKey`]s: one per kind of raw bytes.
#[derive(Clone, Copy, Debug)]
pub struct RawKeyHasher {
    seed: u64,
}

impl RawKeyHasher {
    /// `process_key` is random per process, so that a sender cannot choose collisions; `salt` names the encoding
    /// and, for a scrape, the target's labels and relabelling.
    pub fn new(process_key: u64, salt: &[u8]) -> RawKeyHasher {
        RawKeyHasher { seed: xxh3_64_with_seed(salt, process_key) }
    }

    /// The key of one series' raw label bytes.
    pub fn key(&self, raw_labels: &[u8]) -> RawKey {
        RawKey(xxh3_128_with_seed(raw_labels, self.seed))
    }
}

/// Where a batch came from: learns the split into group and residual and finds the timestamp stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A sender by remote write; the number stands for the connection or sender identity, 0 when unknown.
    RemoteWrite(u64),
    /// One scrape of the target with this id: all rows share the target's labels.
    Scrape(u64),
    /// Anything else (rules, import).
    Internal,
}

/// Raw label bytes that do not decode to a label set; the texts are Prometheus' where it has one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// The bytes are not what their encoding says.
    #[error("malformed labels at byte {offset}: {what}")]
    Malformed {
        /// Offset in the raw label bytes.
        offset: u32,
        /// What was expected.
        what: &'static str,
    },
    /// A name or value is not UTF-8.
    #[error("label {0:?} is not valid UTF-8")]
    NotUtf8(String),
    /// A label has no name.
    #[error("label name is empty")]
    EmptyName,
    /// Two labels have one name.
    #[error("label {0:?} stands twice in one series")]
    Duplicate(String),
    /// The series has no labels, or none with a value.
    #[error("series has no labels")]
    NoLabels,
    /// The series has no name.
    #[error("missing metric name (__name__ label)")]
    NoMetricName,
    /// A configured or built-in bound is exceeded.
    #[error("labels exceed a limit: {0}")]
    Limit(String),
}

/// Turns raw label bytes into labels; one per batch, from the room that knows the encoding.
pub trait LabelDecoder {
    /// Fills `labels` (cleared first), sorted, without empty values. `Ok(false)`: the series is dropped by
    /// relabelling, and its samples with it.
    fn decode(&self, raw_labels: &[u8], labels: &mut LabelBuf) -> Result<bool, LabelError>;

    /// Fills `labels` (cleared first), sorted, with an exemplar's labels, which need no metric name. Encodings without
    /// exemplars refuse.
    fn decode_exemplar(&self, raw_labels: &[u8], labels: &mut LabelBuf) -> Result<(), LabelError> {
        let _ = raw_labels;
        labels.clear();
        Err(LabelError::Malformed { offset: 0, what: "an encoding with exemplars" })
    }
}

/// One series of a batch with its samples.
#[derive(Debug, Clone)]
pub struct Row<'b> {
    /// The label bytes as they came; opaque to everyone but the batch's decoder.
    pub raw_labels: &'b [u8],
    /// Keyed hash of them.
    pub key: RawKey,
    /// The row's part of [`Batch::samples`].
    pub samples: Range<u32>,
}

/// Samples as they came. Rows keep the sender's order; the samples of a row are judged in that order.
pub struct Batch<'b> {
    /// Where it came from.
    pub origin: Origin,
    /// Decodes the raw label bytes of every row.
    pub decoder: &'b dyn LabelDecoder,
    /// One entry per series and message.
    pub rows: Vec<Row<'b>>,
    /// Samples of all rows, row after row.
    pub samples: Vec<Sample>,
    /// What there is beside float samples; mostly nothing.
    pub extras: Extras<'b>,
}

/// What a batch holds beside float samples. The default is nothing.
#[derive(Debug, Clone, Default)]
pub struct Extras<'b> {
    /// When the counter behind each of [`Batch::samples`] began, in milliseconds, 0 where that is unknown; empty when
    /// it is unknown everywhere. A start that is not before its sample is ignored, which is no error.
    pub starts_ms: Vec<i64>,
    /// Native histograms; those of a row are judged in this order.
    pub histograms: Vec<HistogramSample>,
    /// Exemplars, likewise.
    pub exemplars: Vec<Exemplar<'b>>,
    /// What metric families are.
    pub metadata: Vec<Metadata>,
}

impl Extras<'_> {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.starts_ms.is_empty()
            && self.histograms.is_empty()
            && self.exemplars.is_empty()
            && self.metadata.is_empty()
    }
}

/// One native histogram of a series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistogramSample {
    /// Index into [`Batch::rows`].
    pub row: u32,
    /// Milliseconds since the Unix epoch.
    pub timestamp_ms: i64,
    /// When the counter began, in milliseconds; 0 when that is unknown.
    pub start_ms: i64,
    /// The histogram, not validated yet, or why what came is none.
    pub histogram: Result<Histogram, HistogramError>,
}

/// One exemplar of a series: a single observation with labels of its own.
#[derive(Debug, Clone)]
pub struct Exemplar<'b> {
    /// Index into [`Batch::rows`].
    pub row: u32,
    /// Its label bytes as they came, for [`LabelDecoder::decode_exemplar`].
    pub raw_labels: &'b [u8],
    /// Milliseconds since the Unix epoch.
    pub timestamp_ms: i64,
    /// Any f64.
    pub value: f64,
}

/// When [`Append::append`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledge {
    /// After the samples are durable as `--storage.wal-sync` defines it: remote write.
    Durable,
    /// As soon as the samples are written to the log: scrapes, which nobody waits for.
    Written,
}

/// Why a sample (or with it the whole row) was not written. Never retryable: sending it again cannot help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Older than the series' newest sample, and nothing is accepted out of order.
    #[error("out of order sample")]
    OutOfOrder,
    /// Another value at a timestamp that is taken.
    #[error("duplicate sample for timestamp")]
    DuplicateTimestamp,
    /// Before what is accepted of any series, or past retention; nothing is accepted out of order.
    #[error("out of bounds")]
    OutOfBounds,
    /// Before the out-of-order window, or past retention.
    #[error("too old sample")]
    TooOld,
    /// Later than now + 10 minutes.
    #[error("out of bounds: more than 10m in the future")]
    TooFarInFuture,
    /// The row's labels do not form a series.
    #[error("{0}")]
    Labels(#[from] LabelError),
    /// The memory budget admits no new series at present.
    #[error("memory budget is too full for a new series")]
    SeriesBudget,
    /// The parts of a native histogram contradict each other.
    #[error(transparent)]
    Histogram(#[from] HistogramError),
    /// Older than the series' newest exemplar, or than the one that it would replace.
    #[error("out of order exemplar")]
    ExemplarOutOfOrder,
    /// The labels of an exemplar are longer than Prometheus takes.
    #[error("label length for exemplar exceeds maximum of {MAX_EXEMPLAR_CHARS} UTF-8 characters")]
    ExemplarLabels,
}

/// Characters that the names and values of an exemplar's labels may have in all.
pub const MAX_EXEMPLAR_CHARS: usize = 128;

/// One refused sample or row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Index into [`Batch::rows`].
    pub row: u32,
    /// Index into [`Batch::samples`], or into the list of histograms or exemplars where those are judged; `None` when
    /// the whole row was refused.
    pub sample: Option<u32>,
    /// Why.
    pub refusal: Refusal,
}

/// What became of a batch, sample by sample.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Samples that were written, exact duplicates included (they succeed silently).
    pub written: u32,
    /// Series that did not exist before.
    pub series_created: u32,
    /// Rows that relabelling dropped.
    pub rows_dropped: u32,
    /// What was refused and why, in the order of the rows. A row that was refused as a whole stands here only, whatever
    /// it holds.
    pub refused: Vec<Refused>,
    /// What became of [`Extras::histograms`].
    pub histograms: Judged,
    /// What became of [`Extras::exemplars`]; those that are not kept because there is no exemplar storage are neither
    /// written nor refused.
    pub exemplars: Judged,
}

/// What became of one list of a batch's extras.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Judged {
    /// Written, exact duplicates included.
    pub written: u32,
    /// Refused and why, in the order of the list.
    pub refused: Vec<Refused>,
}

/// Nothing of the batch was acknowledged; the sender shall retry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The memory or disk ladder refuses writes at present; nothing was written.
    #[error("busy: {reason}, nothing of this request was written, retry after {retry_after_seconds}s")]
    Busy {
        /// What is full, with numbers.
        reason: String,
        /// For the `Retry-After` header.
        retry_after_seconds: u32,
    },
    /// The log could not be written or synced; the store is read-only until it can.
    #[error("the write-ahead log failed: {0}")]
    Log(String),
    /// The store is shutting down.
    #[error("the store is shutting down")]
    ShuttingDown,
}

/// The write side of a store. Blocks; callers on an async runtime use a blocking thread.
pub trait Append: Send + Sync {
    /// Appends what can be appended and says what could not.
    fn append(&self, batch: &Batch<'_>, acknowledge: Acknowledge) -> Result<Verdicts, AppendError>;
}

#[cfg(test)]
mod tests {
    use super::RawKeyHasher;

    #[test]
    fn the_same_bytes_of_two_targets_have_two_keys() {
        let one = RawKeyHasher::new(7, b"target one");
        let two = RawKeyHasher::new(7, b"target two");
        assert_ne!(one.key(b"up"), two.key(b"up"));
        assert_eq!(one.key(b"up"), RawKeyHasher::new(7, b"target one").key(b"up"));
    }
}
