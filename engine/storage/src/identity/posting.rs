//! Ascending lists, compact from one item to all of them: the rows in which a label pair occurs, the series of a
//! group.
//!
//! Items are added in ascending order only, so a list is a stream of runs. A run is a varint `gap << 1 | longer`
//! (`gap` items are skipped since the end of the run before), followed by the varint `length - 2` when `longer` is
//! set; the last run stays open in the header.
use super::row_set::RowSet;
use super::tight::{push_varint, take_varint};

/// A posting list; one run, the commonest case by far, needs no allocation.
pub(super) enum Posting {
    /// From the first to below the second.
    One(u32, u32),
    Many(Box<Runs>),
}

/// Closed runs as bytes, and the open one.
pub(super) struct Runs {
    bytes: Vec<u8>,
    /// End of the last closed run.
    closed_end: u32,
    start: u32,
    end: u32,
}

impl Posting {
    /// The list of one item.
    pub(super) fn new(item: u32) -> Posting {
        Posting::One(item, item + 1)
    }

    /// One more than the last item.
    pub(super) fn end(&self) -> u32 {
        match self {
            Posting::One(_, end) => *end,
            Posting::Many(runs) => runs.end,
        }
    }

    /// Adds an item above all present ones; returns the number of bytes that the list grew by.
    pub(super) fn push(&mut self, item: u32) -> usize {
        debug_assert!(item >= self.end(), "items come in ascending order");
        match self {
            Posting::One(_, end) if *end == item => {
                *end += 1;
                0
            }
            Posting::One(start, end) => {
                let mut runs = Runs { bytes: Vec::new(), closed_end: 0, start: *start, end: *end };
                let grown = size_of::<Runs>() + runs.push(item);
                *self = Posting::Many(Box::new(runs));
                grown
            }
            Posting::Many(runs) => runs.push(item),
        }
    }

    /// Calls `visit` for each run (first, one after the last) until it returns `false`.
    pub(super) fn visit_runs(&self, mut visit: impl FnMut(u32, u32) -> bool) {
        let runs = match self {
            &Posting::One(start, end) => {
                visit(start, end);
                return;
            }
            Posting::Many(runs) => runs,
        };
        let mut bytes = &runs.bytes[..];
        let mut end = 0;
        while let Some(head) = take_varint(&mut bytes) {
            let start = end + (head >> 1) as u32;
            let longer = if head & 1 == 1 { take_varint(&mut bytes).unwrap_or(0) + 1 } else { 0 };
            end = start + 1 + longer as u32;
            if !visit(start, end) {
                return;
            }
        }
        visit(runs.start, runs.end);
    }

    /// Adds all rows to `set`.
    pub(super) fn add_to(&self, set: &mut RowSet) {
        self.visit_runs(|start, end| {
            set.insert_range(start, end);
            true
        });
    }

    /// Whether one of the rows is in `set`.
    pub(super) fn meets(&self, set: &RowSet) -> bool {
        let mut met = false;
        self.visit_runs(|start, end| {
            met = (start..end).any(|row| set.contains(row));
            !met
        });
        met
    }
}

impl Runs {
    fn push(&mut self, item: u32) -> usize {
        if item == self.end {
            self.end += 1;
            return 0;
        }
        let before = self.bytes.capacity();
        if before - self.bytes.len() < 12 {
            self.bytes.reserve_exact(12.max(self.bytes.len() / 4));
        }
        let length = self.end - self.start;
        push_varint(&mut self.bytes, u64::from(self.start - self.closed_end) << 1 | u64::from(length > 1));
        if length > 1 {
            push_varint(&mut self.bytes, u64::from(length - 2));
        }
        self.closed_end = self.end;
        (self.start, self.end) = (item, item + 1);
        self.bytes.capacity() - before
    }
}

#[cfg(test)]
mod tests {
    use super::{Posting, RowSet};

    #[test]
    fn runs_and_single_rows_come_back_as_they_were_added() {
        let rows = [0, 1, 2, 5, 7, 8, 300, 301, 302, 303, 70_000, 70_002];
        for count in 1..=rows.len() {
            let mut posting = Posting::new(rows[0]);
            rows[1..count].iter().for_each(|&row| {
                posting.push(row);
            });
            let mut set = RowSet::new(70_003);
            posting.add_to(&mut set);
            assert_eq!(set.iter().collect::<Vec<_>>(), rows[..count]);
            let mut last = RowSet::new(70_003);
            last.insert(rows[count - 1]);
            assert!(posting.meets(&last));
            assert!(!posting.meets(&RowSet::new(70_003)));
        }
    }
}
