//! The words the rooms of the engine share: labels, matchers, samples, what is appended ([`append`]) and what is
//! selected ([`read`]). No I/O, no threads.
#![forbid(unsafe_code)]

pub mod append;
mod labels;
mod matcher;
mod metadata;
pub mod read;
mod value;

pub use append::{
    Acknowledge, Append, AppendError, Batch, Exemplar, Extras, HistogramSample, Judged, LabelDecoder,
    LabelError, MAX_EXEMPLAR_CHARS, Origin, RawKey, RawKeyHasher, Refusal, Refused, Row, Verdicts,
};
pub use labels::{LabelBuf, METRIC_NAME, is_legacy_label_name};
pub use matcher::{MatchOp, Matcher, MatcherError};
pub use metadata::{Metadata, MetricType};
/// Native histograms, as `codec` writes them.
pub use metricsstore_codec::histogram;
pub use value::{STALE_NAN_BITS, Sample, is_stale, stale_nan};
