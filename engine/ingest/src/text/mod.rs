//! The Prometheus text format, versions 0.0.4 and 1.0.0: one page of a scrape.
//!
//! Verdicts are those of Prometheus' own parser, peculiarities included: a page that it refuses is refused, and what
//! it reads has the same labels, values and timestamps. The raw label bytes of a row are the series as the page writes
//! it, `name{labels}`. One exception: where the page's `TYPE` makes a value of `le` or `quantile` a number
//! that is stored in another form (`1` as `1.0`), the row gets rewritten bytes, so that raw bytes alone always
//! determine the labels.
mod cursor;
mod float;
mod labels;
mod page;
mod parser;

pub use float::format_bound;
pub use labels::TextLabels;
pub use page::{Page, PageOptions};
pub use parser::{Entry, MetricKind, ParseError, Parser, Series};
