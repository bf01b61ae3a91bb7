//! The series of a select, by their place in it.
use metricsstore_model::read::SeriesRef;

use super::rows::BlockRow;
use crate::identity::SeriesId;

/// Marks the group and the residual of series that only blocks know: identity has no such rows.
const IN_BLOCKS: u32 = 1 << 31;

/// Stands for the series of identity that one in blocks is not.
const NO_SERIES: (SeriesId, SeriesRef) =
    (SeriesId(u32::MAX), SeriesRef { order: u64::MAX, group: IN_BLOCKS, residual: IN_BLOCKS });

/// Who is selected: series of identity, of blocks, or of both.
///
/// Without blocks they stand in the order of their ids and are folded in the order of their creation, as by a Prometheus
/// that reads its head alone. With blocks they stand in the order of their label sets and are folded in it: a Prometheus
/// that reads blocks, or merges them with its head, has them sorted.
#[derive(Default)]
pub(crate) struct Roster {
    live: Vec<(SeriesId, SeriesRef)>,
    /// Where the rows of each series end in `rows`; empty without blocks.
    ends: Vec<u32>,
    rows: Vec<BlockRow>,
}

impl Roster {
    /// Series of identity alone.
    pub(super) fn of_live(live: Vec<(SeriesId, SeriesRef)>) -> Roster {
        Roster { live, ..Roster::default() }
    }

    /// Adds the next series in the order of label sets.
    pub(super) fn push(&mut self, live: Option<(SeriesId, SeriesRef)>, rows: &[BlockRow]) {
        self.live.push(live.unwrap_or(NO_SERIES));
        self.rows.extend_from_slice(rows);
        self.ends.push(self.rows.len() as u32);
    }

    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn live(&self) -> &[(SeriesId, SeriesRef)] {
        &self.live
    }

    /// Its id, where identity knows it.
    pub(crate) fn id(&self, place: usize) -> Option<u32> {
        let (id, _) = self.live[place];
        (id != NO_SERIES.0).then_some(id.0)
    }

    /// Its place in the global creation sequence, where identity knows it; of no series otherwise.
    pub(crate) fn order(&self, place: usize) -> u64 {
        self.live[place].1.order
    }

    /// Its rows in blocks, by block.
    pub(crate) fn rows(&self, place: usize) -> &[BlockRow] {
        let Some(&end) = self.ends.get(place) else { return &[] };
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.rows[start as usize..end as usize]
    }

    /// What it is called in batches.
    pub(crate) fn reference(&self, place: usize) -> SeriesRef {
        let reference = self.live[place].1;
        if self.ends.is_empty() {
            return reference;
        }
        let order = place as u64;
        match reference.group {
            IN_BLOCKS => SeriesRef { order, group: IN_BLOCKS, residual: IN_BLOCKS | place as u32 },
            group => SeriesRef { order, group, residual: reference.residual },
        }
    }

    /// The place of a series that only blocks know, by its residual.
    pub(super) fn place_in_blocks(residual: u32) -> Option<usize> {
        (residual & IN_BLOCKS != 0).then_some((residual & !IN_BLOCKS) as usize)
    }

    /// Whether a group is that of no series of identity.
    pub(super) fn is_in_blocks(group: u32) -> bool {
        group == IN_BLOCKS
    }

    /// Rows of all series.
    pub(super) fn row_count(&self) -> usize {
        self.rows.len()
    }
}
