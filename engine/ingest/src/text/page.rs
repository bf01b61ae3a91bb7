//! A page as rows of a batch.
use metricsstore_model::{RawKey, RawKeyHasher, Row, Sample};

use super::float::{NormalBound, normal_bound};
use super::parser::{Entry, ParseError, Parser, Series};

/// How a page is read.
#[derive(Debug, Clone, Copy)]
pub struct PageOptions {
    /// Makes the rows' keys; its salt must name everything that decides what the raw bytes decode to.
    pub hasher: RawKeyHasher,
    /// Timestamp of samples that have none of their own, in milliseconds.
    pub timestamp_ms: i64,
    /// Use the timestamps that the page gives.
    pub honor_timestamps: bool,
    /// Rows to make room for.
    pub expected_rows: usize,
}

/// All samples of a page, in its order, each a row of its own.
#[derive(Debug, Default)]
pub struct Page<'p> {
    /// One row per sample.
    pub rows: Vec<Row<'p>>,
    /// The sample of each row.
    pub samples: Vec<Sample>,
    /// Whether a row's timestamp is the page's; short when the later rows have none.
    explicit: Vec<bool>,
}

/// A row whose bytes were rewritten.
struct Rewritten {
    row: usize,
    start: usize,
    end: usize,
}

impl<'p> Page<'p> {
    /// Reads a whole page, which may be refused at its end. `rewritten` is room for the rows that are stored under
    /// other bytes than the page's. `metadata` is called for every `HELP` and `TYPE`.
    pub fn parse(
        text: &'p [u8],
        rewritten: &'p mut Vec<u8>,
        options: &PageOptions,
        mut metadata: impl FnMut(&Entry<'p>),
    ) -> Result<Page<'p>, ParseError> {
        rewritten.clear();
        let mut page = Page {
            rows: Vec::with_capacity(options.expected_rows),
            samples: Vec::with_capacity(options.expected_rows),
            explicit: Vec::new(),
        };
        let mut patches = Vec::new();
        let mut parser = Parser::new(text);
        while let Some(entry) = parser.next_entry()? {
            match entry {
                Entry::Series(series) => {
                    if let Some(patch) = page.push(&series, rewritten, options) {
                        patches.push(patch);
                    }
                }
                Entry::Comment(_) => {}
                entry => metadata(&entry),
            }
        }
        let rewritten: &'p [u8] = rewritten;
        for patch in patches {
            let raw_labels = &rewritten[patch.start..patch.end];
            page.rows[patch.row].raw_labels = raw_labels;
            page.rows[patch.row].key = options.hasher.key(raw_labels);
        }
        Ok(page)
    }

    fn push(
        &mut self,
        series: &Series<'p>,
        rewritten: &mut Vec<u8>,
        options: &PageOptions,
    ) -> Option<Rewritten> {
        let row = self.rows.len();
        let samples = row as u32..row as u32 + 1;
        let explicit = series.timestamp_ms.filter(|_| options.honor_timestamps);
        if explicit.is_some() {
            self.explicit.resize(row, false);
            self.explicit.push(true);
        }
        self.samples
            .push(Sample { timestamp_ms: explicit.unwrap_or(options.timestamp_ms), value: series.value });
        let Some((start, end)) = rewrite(series, rewritten) else {
            self.rows.push(Row { raw_labels: series.text, key: options.hasher.key(series.text), samples });
            return None;
        };
        self.rows.push(Row { raw_labels: &[], key: RawKey(0), samples });
        Some(Rewritten { row, start, end })
    }

    /// Whether the row's timestamp is the page's own.
    pub fn has_own_timestamp(&self, row: usize) -> bool {
        self.explicit.get(row).copied().unwrap_or(false)
    }
}

/// Appends the series with its bound in the form that is stored, when that is another one; says where.
fn rewrite(series: &Series<'_>, rewritten: &mut Vec<u8>) -> Option<(usize, usize)> {
    let bound = series.bound.clone()?;
    let start = rewritten.len();
    match normal_bound(&series.text[bound.clone()]) {
        NormalBound::Same => return None,
        NormalBound::WithFraction => {
            rewritten.extend_from_slice(&series.text[..bound.end]);
            rewritten.extend_from_slice(b".0");
        }
        NormalBound::Other(normal) => {
            rewritten.extend_from_slice(&series.text[..bound.start]);
            rewritten.extend_from_slice(normal.as_bytes());
        }
    }
    rewritten.extend_from_slice(&series.text[bound.end..]);
    Some((start, rewritten.len()))
}
