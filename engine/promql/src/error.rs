//! What can go wrong, and what the HTTP API calls it.
use metricsstore_budget::Exhausted;
use metricsstore_model::read::ReadError;

use crate::ast::Span;

/// A query that is not PromQL. Displays as `line:column: parse error: message`, both counted from 1, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: parse error: {message}")]
pub struct ParseError {
    /// What is wrong.
    pub message: String,
    /// Where, in bytes of the query.
    pub span: Span,
    /// Line of the span's start, from 1.
    pub line: u32,
    /// Column of the span's start in bytes, from 1.
    pub column: u32,
}

impl ParseError {
    pub(crate) fn new(query: &str, span: Span, message: impl Into<String>) -> ParseError {
        let (line, column) = line_and_column(query, span.start);
        ParseError { message: message.into(), span, line, column }
    }
}

/// Line and column of a byte offset, both from 1.
pub(crate) fn line_and_column(query: &str, offset: u32) -> (u32, u32) {
    let before = &query.as_bytes()[..(offset as usize).min(query.len())];
    let line = before.split(|&b| b == b'\n').count() as u32;
    let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
    (line, (before.len() - line_start) as u32 + 1)
}

/// The `errorType` of the HTTP API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// `bad_data`, 400.
    BadData,
    /// `execution`, 422.
    Execution,
    /// `canceled`, 499.
    Canceled,
    /// `timeout`, 503.
    Timeout,
    /// `internal`, 500.
    Internal,
}

/// Why a query has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The text is not PromQL.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The parameters make no sense together.
    #[error("{0}")]
    BadData(String),
    /// Evaluation met something the language forbids; the text is Prometheus'.
    #[error("{0}")]
    Execution(String),
    /// `--query.max-samples` is reached.
    #[error("query processing would load too many samples into memory in query execution")]
    TooManySamples,
    /// The query's memory is used up.
    #[error("query needs more memory than it may use: {0}; narrow the selectors, the range or the step")]
    Memory(Exhausted),
    /// The caller cancelled.
    #[error("query was canceled in expression evaluation")]
    Canceled,
    /// The deadline passed.
    #[error("query timed out in expression evaluation")]
    Timeout,
    /// Data could not be read.
    #[error("expanding series: {0}")]
    Read(ReadError),
}

impl QueryError {
    /// What the HTTP API calls it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            QueryError::Parse(_) | QueryError::BadData(_) => ErrorKind::BadData,
            QueryError::Execution(_) | QueryError::TooManySamples | QueryError::Memory(_) => {
                ErrorKind::Execution
            }
            QueryError::Canceled => ErrorKind::Canceled,
            QueryError::Timeout => ErrorKind::Timeout,
            QueryError::Read(_) => ErrorKind::Internal,
        }
    }
}

impl From<Exhausted> for QueryError {
    fn from(error: Exhausted) -> QueryError {
        QueryError::Memory(error)
    }
}

impl From<ReadError> for QueryError {
    fn from(error: ReadError) -> QueryError {
        match error {
            ReadError::Memory(exhausted) => QueryError::Memory(exhausted),
            other => QueryError::Read(other),
        }
    }
}
