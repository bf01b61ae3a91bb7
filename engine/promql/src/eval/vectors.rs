//! Series × steps: what an expression of type instant vector evaluates to.
use std::sync::Arc;

use metricsstore_model::read::{SeriesLabels, SeriesRef};
use metricsstore_model::{LabelBuf, METRIC_NAME, STALE_NAN_BITS};

use crate::error::QueryError;

use super::Evaluation;
use super::account::{Account, Held};
use super::keys::{Grouping, Keys};
use super::table::Table;

/// Marks a cell without a sample. Stale markers never are a result, and no operation makes one.
pub(super) const ABSENT: f64 = f64::from_bits(STALE_NAN_BITS);

pub(super) fn is_absent(value: f64) -> bool {
    value.to_bits() == STALE_NAN_BITS
}

/// The labels that go when a name is dropped.
pub(super) const METADATA_LABELS: [&str; 3] = [METRIC_NAME, "__type__", "__unit__"];

pub(super) const SAME_LABELS: &str = "vector cannot contain metrics with the same labelset";

/// Label sets of the rows.
#[derive(Clone)]
pub(super) enum Labels {
    /// As they are in the store; nothing is decoded until somebody asks.
    Stored { labels: Arc<dyn SeriesLabels>, ids: Vec<SeriesRef>, nameless: bool },
    /// Rows of a table.
    Owned { table: Arc<Table>, rows: Vec<u32> },
}

impl Labels {
    pub fn owned(table: Table) -> Labels {
        let rows = (0..table.sets().len() as u32).collect();
        Labels::Owned { table: Arc::new(table), rows }
    }

    pub fn len(&self) -> usize {
        match self {
            Labels::Stored { ids, .. } => ids.len(),
            Labels::Owned { rows, .. } => rows.len(),
        }
    }

    /// The label set of a row: cleared, filled, sorted.
    pub fn get(&self, row: usize, into: &mut LabelBuf) {
        match self {
            Labels::Stored { labels, ids, nameless } => {
                labels.labels(ids[row], into);
                if *nameless {
                    into.retain(|name, _| !METADATA_LABELS.contains(&name));
                }
            }
            Labels::Owned { table, rows } => {
                into.clear();
                for (name, value) in table.sets().pairs(rows[row] as usize) {
                    into.push(name, value);
                }
            }
        }
    }

    /// The rows of `order`, in that order.
    pub fn pick(&self, order: &[u32]) -> Labels {
        match self {
            Labels::Stored { labels, ids, nameless } => Labels::Stored {
                labels: Arc::clone(labels),
                ids: order.iter().map(|&row| ids[row as usize]).collect(),
                nameless: *nameless,
            },
            Labels::Owned { table, rows } => Labels::Owned {
                table: Arc::clone(table),
                rows: order.iter().map(|&row| rows[row as usize]).collect(),
            },
        }
    }

    /// A table of all rows, each changed by `edit` (and sorted again).
    pub fn edited(
        &self,
        account: &Arc<Account>,
        mut edit: impl FnMut(usize, &mut LabelBuf),
    ) -> Evaluation<Table> {
        let mut table = Table::new(account);
        let mut buffer = LabelBuf::new();
        for row in 0..self.len() {
            self.get(row, &mut buffer);
            edit(row, &mut buffer);
            buffer.sort();
            table.push(buffer.iter())?;
        }
        Ok(table)
    }

    fn without_metadata(self, account: &Arc<Account>) -> Evaluation<Labels> {
        if let Labels::Stored { labels, ids, .. } = self {
            return Ok(Labels::Stored { labels, ids, nameless: true });
        }
        let drop = |_, labels: &mut LabelBuf| labels.retain(|name, _| !METADATA_LABELS.contains(&name));
        self.edited(account, drop).map(Labels::owned)
    }
}

/// Rows of samples, one cell per step.
pub(super) struct Vectors {
    pub labels: Labels,
    /// With delayed name removal: whether the name goes at the end.
    pub drop_name: Vec<bool>,
    /// Row after row; [`ABSENT`] where there is no sample.
    pub values: Vec<f64>,
    /// Cells per row.
    pub width: usize,
    /// Dropping names cannot make two label sets equal.
    pub one_name: bool,
    held: Held,
}

impl Vectors {
    /// No rows.
    pub fn empty(width: usize, account: &Arc<Account>) -> Vectors {
        Vectors {
            labels: Labels::owned(Table::new(account)),
            drop_name: Vec::new(),
            values: Vec::new(),
            width,
            one_name: true,
            held: Held::new(account),
        }
    }

    /// Rows without names to drop; their memory is counted here.
    pub fn new(
        labels: Labels,
        values: Vec<f64>,
        width: usize,
        account: &Arc<Account>,
    ) -> Result<Vectors, QueryError> {
        let mut held = Held::new(account);
        held.grow(values.len() as u64 * 8)?;
        let mut vectors =
            Vectors { drop_name: vec![false; labels.len()], labels, values, width, one_name: false, held };
        vectors.count()?;
        Ok(vectors)
    }

    /// Rows whose memory was reserved as they grew.
    pub fn with_held(
        labels: Labels,
        values: Vec<f64>,
        width: usize,
        held: Held,
    ) -> Result<Vectors, QueryError> {
        let mut vectors =
            Vectors { drop_name: vec![false; labels.len()], labels, values, width, one_name: false, held };
        vectors.count()?;
        Ok(vectors)
    }

    fn count(&mut self) -> Result<(), QueryError> {
        let present = self.values.iter().filter(|value| !is_absent(**value)).count();
        self.held.add_samples(present as u64)
    }

    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Gives back memory that was reserved for a copy.
    pub fn release(&mut self, bytes: u64) {
        self.held.shrink(bytes);
    }

    pub fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.width..(row + 1) * self.width]
    }

    pub fn row_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.values[row * self.width..(row + 1) * self.width]
    }

    /// Replaces every sample.
    pub fn map(&mut self, f: impl Fn(f64) -> f64) {
        for value in &mut self.values {
            if !is_absent(*value) {
                *value = f(*value);
            }
        }
    }

    /// Replaces every sample, or removes it; `f` is given the step.
    pub fn map_steps(&mut self, f: impl Fn(usize, f64) -> Option<f64>) {
        if self.width == 0 {
            return;
        }
        for row in self.values.chunks_exact_mut(self.width) {
            for (step, value) in row.iter_mut().enumerate() {
                if !is_absent(*value) {
                    *value = f(step, *value).unwrap_or(ABSENT);
                }
            }
        }
    }

    /// The rows of `order`, in that order. Rows that only move forward are moved in place.
    pub fn pick(mut self, order: &[u32]) -> Vectors {
        let width = self.width;
        let values = if order.is_sorted_by(|a, b| a < b) {
            for (to, &from) in order.iter().enumerate() {
                let from = from as usize * width;
                self.values.copy_within(from..from + width, to * width);
            }
            self.values.truncate(order.len() * width);
            self.values
        } else {
            let rows = order.iter().map(|&row| &self.values[row as usize * width..][..width]);
            rows.flatten().copied().collect()
        };
        Vectors {
            labels: self.labels.pick(order),
            drop_name: order.iter().map(|&row| self.drop_name[row as usize]).collect(),
            values,
            width,
            one_name: self.one_name,
            held: self.held,
        }
    }

    /// Leaves out rows without any sample.
    pub fn without_empty_rows(self) -> Vectors {
        let kept: Vec<u32> = (0..self.len() as u32)
            .filter(|&row| self.row(row as usize).iter().any(|value| !is_absent(*value)))
            .collect();
        if kept.len() == self.len() { self } else { self.pick(&kept) }
    }

    /// What a function that changes the meaning of values does to names: drops them now, or marks them to be
    /// dropped at the end.
    pub fn drop_names(mut self, delayed: bool) -> Result<Vectors, QueryError> {
        if delayed {
            self.drop_name.fill(true);
            return Ok(self);
        }
        self.labels = self.labels.without_metadata(self.held.account())?;
        if self.one_name {
            return Ok(self);
        }
        self.merge_same_labels()
    }

    /// Drops the names that were marked.
    pub fn drop_marked_names(mut self) -> Result<Vectors, QueryError> {
        if !self.drop_name.contains(&true) {
            return Ok(self);
        }
        if self.drop_name.contains(&false) {
            let marked = &self.drop_name;
            let table = self.labels.edited(self.held.account(), |row, labels| {
                if marked[row] {
                    labels.retain(|name, _| !METADATA_LABELS.contains(&name));
                }
            })?;
            self.labels = Labels::owned(table);
        } else {
            self.labels = self.labels.without_metadata(self.held.account())?;
        }
        self.merge_same_labels()
    }

    /// Makes one row of rows with one label set, which must not have samples at the same step.
    pub fn merge_same_labels(mut self) -> Result<Vectors, QueryError> {
        let mut keys = Keys::new(Grouping::everything(), self.held.account());
        let key_of = keys.assign(&self.labels)?;
        self.one_name = true;
        if keys.len() == self.len() {
            return Ok(self);
        }
        let mut first_row = vec![u32::MAX; keys.len()];
        let mut kept = Vec::with_capacity(keys.len());
        for (row, &key) in key_of.iter().enumerate() {
            let first = &mut first_row[key as usize];
            if *first == u32::MAX {
                *first = row as u32;
                kept.push(row as u32);
                continue;
            }
            let (before, from) = self.values.split_at_mut(row * self.width);
            let target = &mut before[*first as usize * self.width..][..self.width];
            for (into, &value) in target.iter_mut().zip(&from[..self.width]) {
                if is_absent(value) {
                    continue;
                }
                if !is_absent(*into) {
                    return Err(QueryError::Execution(SAME_LABELS.into()));
                }
                *into = value;
            }
        }
        Ok(self.pick(&kept))
    }
}
