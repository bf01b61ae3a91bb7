//! What can go wrong in a scrape.
use metricsstore_ingest::text::ParseError;
use metricsstore_model::{AppendError, LabelError};

/// Why a scrape failed; shown as the target's last error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScrapeError {
    /// The request got no answer.
    #[error("cannot get {url}: {reason}")]
    Request {
        /// What was requested.
        url: String,
        /// The system's words.
        reason: String,
    },
    /// The whole scrape took longer than its timeout.
    #[error("cannot get {url}: no whole answer within the scrape timeout of {timeout}")]
    Timeout {
        /// What was requested.
        url: String,
        /// The timeout.
        timeout: String,
    },
    /// Any status but 200.
    #[error("server returned HTTP status {0}")]
    Status(String),
    /// More redirects than are followed.
    #[error("stopped after {0} redirects")]
    Redirects(u32),
    /// A file with a secret or a certificate cannot be used.
    #[error("cannot use {what}: {reason}")]
    Credentials {
        /// Which one.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The page is longer than `body_size_limit`.
    #[error("body size limit exceeded")]
    BodySizeLimit,
    /// The page and what is made of it do not fit the memory that pages may hold.
    #[error(
        "the page needs {page} bytes and more, but pages may hold {limit} bytes together, a quarter of the memory \
         budget; set sample_limit or body_size_limit, split the page, or raise the memory limit"
    )]
    Memory {
        /// Bytes that the page asked for so far.
        page: u64,
        /// Bytes for all pages together.
        limit: u64,
    },
    /// The page is not what its `Content-Encoding` says.
    #[error("cannot decompress the page: {0}")]
    Encoding(String),
    /// The page's Content-Type is missing, unreadable or not read.
    #[error("{0}")]
    ContentType(String),
    /// The page is not in the text format.
    #[error("page does not parse at {0}")]
    Parse(#[from] ParseError),
    /// A series of the page has impossible labels.
    #[error("invalid series {series}: {error}")]
    Labels {
        /// The series as the page writes it.
        series: String,
        /// What is wrong.
        error: LabelError,
    },
    /// More samples than `sample_limit`.
    #[error("sample limit exceeded: {samples} samples, limit {limit}")]
    SampleLimit {
        /// Samples after relabelling.
        samples: u64,
        /// The limit.
        limit: u64,
    },
    /// A series breaks one of the label limits.
    #[error("{0}")]
    LabelLimit(String),
    /// The job has more targets than `target_limit`.
    #[error("target_limit exceeded (number of targets: {targets}, limit: {limit})")]
    TargetLimit {
        /// Targets of the job.
        targets: u64,
        /// The limit.
        limit: u64,
    },
    /// The store took nothing.
    #[error(transparent)]
    Append(#[from] AppendError),
}
