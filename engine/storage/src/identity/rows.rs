//! Interned sets of label pairs. Groups and residuals are both rows of this one table, so there is one lookup and
//! one posting list per pair; which of the two a row is, only the series that use it say.
use super::id_table::IdTable;
use super::tight::{bytes_of, fit, push_tight, push_varint, reserve_tight, take_varint};

/// No row, no series, no run.
pub(super) const NONE: u32 = u32::MAX;

struct Row {
    hash: u32,
    /// End of the row's pairs in `bytes`.
    end: u32,
    /// Newest series with this residual.
    first_series: u32,
    /// Number of series with this group or residual.
    series: u32,
}

/// Rows by dense ids.
#[derive(Default)]
pub(super) struct Rows {
    all: Vec<Row>,
    /// Ids of the pairs, ascending: the first as a varint, the others as varint distances.
    bytes: Vec<u8>,
    table: IdTable,
}

impl Rows {
    /// Ids of a row's pairs, ascending.
    pub(super) fn pairs(&self, row: u32) -> impl Iterator<Item = u32> + '_ {
        pairs_of(&self.all, &self.bytes, row)
    }

    /// Sum of the hashes of a row's pairs.
    pub(super) fn hash(&self, row: u32) -> u32 {
        self.all[row as usize].hash
    }

    /// The row with these pairs (ascending), if known.
    pub(super) fn find(&self, hash: u32, pairs: &[u32]) -> Option<u32> {
        self.table.find(hash.wrapping_mul(0x9e37_79b1), |id| self.pairs(id).eq(pairs.iter().copied()))
    }

    /// Adds a row that is not in the table.
    pub(super) fn push(&mut self, hash: u32, pairs: &[u32]) -> u32 {
        let id = self.all.len() as u32;
        reserve_tight(&mut self.bytes, pairs.len() * 5);
        let mut last = 0;
        for &pair in pairs {
            push_varint(&mut self.bytes, u64::from(pair - last));
            last = pair;
        }
        let row = Row { hash, end: self.bytes.len() as u32, first_series: NONE, series: 0 };
        push_tight(&mut self.all, row);
        let Rows { all, table, .. } = self;
        table.insert(hash.wrapping_mul(0x9e37_79b1), id, |other| {
            all[other as usize].hash.wrapping_mul(0x9e37_79b1)
        });
        id
    }

    /// Makes room for so many more rows at once.
    pub(super) fn reserve(&mut self, more: usize) {
        reserve_tight(&mut self.all, more);
        let Rows { all, table, .. } = self;
        table.reserve(more, |other| all[other as usize].hash.wrapping_mul(0x9e37_79b1));
    }

    /// Gives back what [`Rows::reserve`] took too much.
    pub(super) fn fit(&mut self) {
        fit(&mut self.all);
        let Rows { all, table, .. } = self;
        table.fit(|other| all[other as usize].hash.wrapping_mul(0x9e37_79b1));
    }

    /// Counts a series with this group.
    pub(super) fn add_to_group(&mut self, row: u32) {
        self.all[row as usize].series += 1;
    }

    /// Puts a series in front of the list of those with this residual; returns the one that was there.
    pub(super) fn add_to_residual(&mut self, row: u32, series: u32) -> u32 {
        let row = &mut self.all[row as usize];
        row.series += 1;
        std::mem::replace(&mut row.first_series, series)
    }

    /// Head of the list of series with this residual.
    pub(super) fn first_series(&self, row: u32) -> u32 {
        self.all[row as usize].first_series
    }

    /// Number of series with this group or residual.
    pub(super) fn series(&self, row: u32) -> u32 {
        self.all[row as usize].series
    }

    /// Whether `pairs` more pairs fit into the 32-bit offsets.
    pub(super) fn has_room(&self, pairs: usize) -> bool {
        u32::try_from(self.bytes.len() + pairs * 5).is_ok()
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        bytes_of(&self.all) + bytes_of(&self.bytes) + self.table.bytes()
    }
}

fn pairs_of<'r>(rows: &[Row], bytes: &'r [u8], row: u32) -> impl Iterator<Item = u32> + 'r {
    let row = row as usize;
    let start = if row == 0 { 0 } else { rows[row - 1].end as usize };
    let mut bytes = &bytes[start..rows[row].end as usize];
    let mut last = 0;
    std::iter::from_fn(move || {
        last += take_varint(&mut bytes)? as u32;
        Some(last)
    })
}
