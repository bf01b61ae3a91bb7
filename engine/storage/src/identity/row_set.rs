//! A set of rows as plain bits. Rows are few (10²–10⁵), so the bits fit into a cache and a test is one load.

/// Rows below a bound that is given at creation.
#[derive(Clone)]
pub(super) struct RowSet {
    words: Vec<u64>,
}

impl RowSet {
    /// The empty set over rows below `rows`.
    pub(super) fn new(rows: usize) -> RowSet {
        RowSet { words: vec![0; rows.div_ceil(64)] }
    }

    /// Adds a row; rows at or above the bound are left out.
    pub(super) fn insert(&mut self, row: u32) {
        if let Some(word) = self.words.get_mut(row as usize / 64) {
            *word |= 1 << (row % 64);
        }
    }

    /// Adds the rows from `start` to below `end`.
    pub(super) fn insert_range(&mut self, start: u32, end: u32) {
        let mut row = start;
        while row < end && !row.is_multiple_of(64) {
            self.insert(row);
            row += 1;
        }
        while row + 64 <= end {
            if let Some(word) = self.words.get_mut(row as usize / 64) {
                *word = u64::MAX;
            }
            row += 64;
        }
        (row..end).for_each(|row| self.insert(row));
    }

    /// Whether a row is in the set.
    pub(super) fn contains(&self, row: u32) -> bool {
        self.words.get(row as usize / 64).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }

    /// The rows, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.wrapping_sub(1);
                (bit < 64).then_some(index as u32 * 64 + bit)
            })
        })
    }
}
