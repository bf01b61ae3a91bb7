//! Label sets as text while a query runs: counted against its memory, and numbered where equal ones must be found.
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use metricsstore_model::LabelBuf;

use crate::error::QueryError;
use crate::value::LabelTable;

use super::Evaluation;
use super::account::{Account, Held};

/// A table of label sets with the memory that it takes.
pub(super) struct Table {
    sets: LabelTable,
    held: Held,
    reserved: usize,
}

impl Table {
    pub fn new(account: &Arc<Account>) -> Table {
        Table { sets: LabelTable::default(), held: Held::new(account), reserved: 0 }
    }

    pub fn sets(&self) -> &LabelTable {
        &self.sets
    }

    /// The sets alone; their memory is given back and must be counted elsewhere.
    pub fn into_sets(self) -> LabelTable {
        self.sets
    }

    /// Appends a set given in sorted order; returns its row.
    pub fn push<'a>(&mut self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Evaluation<u32> {
        let row = self.sets.push(pairs);
        let bytes = self.sets.bytes();
        if bytes > self.reserved {
            // Ahead of what is needed, so that few steps are taken.
            let more = bytes - self.reserved + self.reserved / 4 + 1024;
            self.held.grow(more as u64)?;
            self.reserved += more;
        }
        if bytes > LabelTable::MAX_BYTES {
            return Err(QueryError::Execution("labels of a query exceed 4 GiB; select fewer series".into()));
        }
        Ok(row)
    }
}

/// A table in which equal sets have one row.
pub(super) struct Distinct {
    table: Table,
    rows: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

/// Bytes of the index per set.
const INDEX_BYTES: u64 = 10;

impl Distinct {
    pub fn new(account: &Arc<Account>) -> Distinct {
        Distinct { table: Table::new(account), rows: HashTable::new(), hasher: DefaultHashBuilder::default() }
    }

    pub fn len(&self) -> usize {
        self.table.sets.len()
    }

    pub fn sets(&self) -> &LabelTable {
        &self.table.sets
    }

    pub fn into_table(self) -> Table {
        self.table
    }

    /// The row of a sorted set, new or known.
    pub fn row(&mut self, labels: &LabelBuf) -> Evaluation<u32> {
        let hash = hash_of(&self.hasher, labels.iter());
        let sets = &self.table.sets;
        let known = self.rows.find(hash, |&row| sets.pairs(row as usize).eq(labels.iter()));
        if let Some(&row) = known {
            return Ok(row);
        }
        self.table.held.grow(INDEX_BYTES)?;
        let row = self.table.push(labels.iter())?;
        let (sets, hasher) = (&self.table.sets, &self.hasher);
        self.rows.insert_unique(hash, row, |&row| hash_of(hasher, sets.pairs(row as usize)));
        Ok(row)
    }
}

fn hash_of<'a>(hasher: &DefaultHashBuilder, pairs: impl Iterator<Item = (&'a str, &'a str)>) -> u64 {
    let mut state = hasher.build_hasher();
    pairs.for_each(|pair| pair.hash(&mut state));
    state.finish()
}
