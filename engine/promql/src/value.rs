//! Results: columns of points beside one table of label sets.
use metricsstore_model::{LabelBuf, METRIC_NAME};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pair {
    name_start: u32,
    value_start: u32,
    value_end: u32,
}

/// Label sets in one text arena: two allocations that grow, whatever the number of sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelTable {
    text: String,
    pairs: Vec<Pair>,
    /// End of each set's pairs.
    ends: Vec<u32>,
}

impl LabelTable {
    /// Offsets are 32 bits wide.
    pub(crate) const MAX_BYTES: usize = u32::MAX as usize;

    /// Number of label sets.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no set.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Name and value of each label of set `index`, sorted by name; empty beyond the last set.
    pub fn pairs(&self, index: usize) -> impl ExactSizeIterator<Item = (&str, &str)> + Clone {
        let end = self.ends.get(index).copied().unwrap_or_default();
        let start =
            if index == 0 { 0 } else { self.ends.get(index - 1).copied().unwrap_or_default().min(end) };
        self.pairs[start as usize..end as usize].iter().map(|pair| {
            (
                &self.text[pair.name_start as usize..pair.value_start as usize],
                &self.text[pair.value_start as usize..pair.value_end as usize],
            )
        })
    }

    /// The value of a label of set `index`.
    pub fn get(&self, index: usize, name: &str) -> Option<&str> {
        self.pairs(index).find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// The metric name of set `index`, empty when there is none.
    pub fn metric_name(&self, index: usize) -> &str {
        self.get(index, METRIC_NAME).unwrap_or("")
    }

    /// Set `index` as a buffer of its own.
    pub fn to_labels(&self, index: usize) -> LabelBuf {
        LabelBuf::from_pairs(self.pairs(index))
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.pairs.len() * size_of::<Pair>() + self.ends.len() * 4
    }

    /// Appends a set given in sorted order; returns its index.
    pub(crate) fn push<'a>(&mut self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> u32 {
        for (name, value) in pairs {
            let name_start = self.text.len() as u32;
            self.text.push_str(name);
            let value_start = self.text.len() as u32;
            self.text.push_str(value);
            self.pairs.push(Pair { name_start, value_start, value_end: self.text.len() as u32 });
        }
        self.ends.push(self.pairs.len() as u32);
        self.ends.len() as u32 - 1
    }
}

/// One value at one time.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// Milliseconds since the Unix epoch.
    pub t_ms: i64,
    /// Any f64.
    pub value: f64,
}

/// One sample per series. The order is that of evaluation, which `sort()`, `topk()` and the like decide.
#[derive(Debug, Clone, Default)]
pub struct Vector {
    /// Label set of each series.
    pub labels: LabelTable,
    /// Its sample.
    pub points: Vec<Point>,
}

/// Many samples per series; series sorted by their labels.
#[derive(Debug, Clone, Default)]
pub struct Matrix {
    /// Label set of each series.
    pub labels: LabelTable,
    /// Samples, series after series.
    pub points: Vec<Point>,
    /// End of each series' samples.
    pub ends: Vec<usize>,
}

impl Matrix {
    /// Number of series.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no series.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Samples of series `index`; empty beyond the last.
    pub fn series(&self, index: usize) -> &[Point] {
        let end = self.ends.get(index).copied().unwrap_or_default();
        let start =
            if index == 0 { 0 } else { self.ends.get(index - 1).copied().unwrap_or_default().min(end) };
        &self.points[start..end]
    }
}

/// What a query gives.
#[derive(Debug, Clone)]
pub enum Value {
    /// One number.
    Scalar(Point),
    /// One text.
    String {
        /// Evaluation time in milliseconds.
        t_ms: i64,
        /// The text.
        text: String,
    },
    /// Instant vector.
    Vector(Vector),
    /// Range vector; every range query gives one.
    Matrix(Matrix),
}
