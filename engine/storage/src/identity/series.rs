//! The table of series, 12 bytes each (group, residual, link), and the lookup over it.
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use roaring::RoaringBitmap;

use super::id_table::IdTable;
use super::orders::Orders;
use super::posting::Posting;
use super::rows::{NONE, Rows};
use super::tight::{bytes_of, fit, push_tight, reserve_tight};

/// Series by id.
#[derive(Default)]
pub(super) struct SeriesTable {
    /// Group and residual; `NONE` twice where the id is not in use.
    rows: Vec<[u32; 2]>,
    /// The series before this one with the same residual.
    links: Vec<u32>,
    /// Series of each group, ascending.
    groups: HashMap<u32, Posting>,
    group_bytes: usize,
    /// Series of groups whose id was given out again and lies below the group's end, until the next rebuild.
    reused: HashMap<u32, Vec<u32>>,
    table: IdTable,
    pub(super) orders: Orders,
    /// Ids that may be given out.
    pub(super) free: RoaringBitmap,
    /// Ids that ended in the last removal: a reader that selected before it may still hold them, so they are given
    /// out only after the next one.
    pub(super) resting: RoaringBitmap,
    live: usize,
}

/// Hash of a whole label set from the sums of its pairs' hashes: the same however it is split.
pub(super) fn series_hash(sum: u32) -> u32 {
    let mixed = (sum ^ (sum >> 16)).wrapping_mul(0x85eb_ca6b);
    let mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
    mixed ^ (mixed >> 16)
}

fn hash_of(rows: &Rows, [group, residual]: [u32; 2]) -> u32 {
    series_hash(rows.hash(group).wrapping_add(rows.hash(residual)))
}

impl SeriesTable {
    /// An empty table with room for `series` series and ids below `bound`.
    pub(super) fn with_room(series: usize, bound: u32) -> SeriesTable {
        SeriesTable {
            rows: Vec::with_capacity(bound as usize),
            links: Vec::with_capacity(bound as usize),
            table: IdTable::with_room(series),
            ..SeriesTable::default()
        }
    }

    /// Group and residual of an id in use.
    pub(super) fn get(&self, id: u32) -> Option<[u32; 2]> {
        self.rows.get(id as usize).copied().filter(|rows| rows[1] != NONE)
    }

    /// The series with this sum of its pairs' hashes for whose group and residual `is` holds.
    pub(super) fn find(&self, sum: u32, mut is: impl FnMut([u32; 2]) -> bool) -> Option<u32> {
        self.table.find(series_hash(sum), |id| is(self.rows[id as usize]))
    }

    /// The id for the next new series.
    pub(super) fn next_id(&self) -> u32 {
        self.free.min().unwrap_or(self.rows.len() as u32)
    }

    /// Adds a series whose label set and id are not in the table.
    pub(super) fn insert(&mut self, rows: &mut Rows, id: u32, [group, residual]: [u32; 2], order: u64) {
        let link = rows.add_to_residual(residual, id);
        self.extend_to(id as usize);
        if id as usize == self.rows.len() {
            push_tight(&mut self.rows, [group, residual]);
            push_tight(&mut self.links, link);
        } else {
            self.free.remove(id);
            self.resting.remove(id);
            self.rows[id as usize] = [group, residual];
            self.links[id as usize] = link;
        }
        rows.add_to_group(group);
        self.add_to_group(group, id);
        self.orders.set(id, order);
        self.live += 1;
        let SeriesTable { rows: series, table, .. } = self;
        table.insert(hash_of(rows, [group, residual]), id, |other| hash_of(rows, series[other as usize]));
    }

    /// Makes room for so many more series at once.
    pub(super) fn reserve(&mut self, rows: &Rows, more: usize) {
        reserve_tight(&mut self.rows, more);
        reserve_tight(&mut self.links, more);
        let SeriesTable { rows: series, table, .. } = self;
        table.reserve(more, |other| hash_of(rows, series[other as usize]));
    }

    /// Gives back what [`SeriesTable::reserve`] took too much.
    pub(super) fn fit(&mut self, rows: &Rows) {
        fit(&mut self.rows);
        fit(&mut self.links);
        let SeriesTable { rows: series, table, .. } = self;
        table.fit(|other| hash_of(rows, series[other as usize]));
    }

    /// Makes ids below `bound` known, as free ones.
    pub(super) fn extend_to(&mut self, bound: usize) {
        while self.rows.len() < bound {
            self.free.insert(self.rows.len() as u32);
            push_tight(&mut self.rows, [NONE; 2]);
            push_tight(&mut self.links, NONE);
        }
    }

    /// Lets the ids that ended in the removal before the last be given out.
    pub(super) fn release_resting(&mut self) {
        self.free |= std::mem::take(&mut self.resting);
    }

    fn add_to_group(&mut self, group: u32, id: u32) {
        match self.groups.entry(group) {
            Entry::Vacant(entry) => {
                entry.insert(Posting::new(id));
            }
            Entry::Occupied(mut entry) if id >= entry.get().end() => {
                self.group_bytes += entry.get_mut().push(id);
            }
            Entry::Occupied(_) => push_tight(self.reused.entry(group).or_default(), id),
        }
    }

    /// Calls `visit` for every series that has `row` as its group or its residual.
    pub(super) fn visit_row(&self, rows: &Rows, row: u32, mut visit: impl FnMut(u32)) {
        let mut id = rows.first_series(row);
        while id != NONE {
            visit(id);
            id = self.links[id as usize];
        }
        if let Some(ids) = self.groups.get(&row) {
            ids.visit_runs(|start, end| {
                (start..end).for_each(&mut visit);
                true
            });
            self.reused.get(&row).into_iter().flatten().copied().for_each(visit);
        }
    }

    /// The ids in use.
    pub(super) fn ids(&self) -> RoaringBitmap {
        // Ascending, so that nothing can be out of order.
        RoaringBitmap::from_sorted_iter(self.iter().map(|(id, _)| id)).unwrap_or_default()
    }

    /// All series in use with group and residual, ascending by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, [u32; 2])> + '_ {
        (0..).zip(self.rows.iter().copied()).filter(|(_, rows)| rows[1] != NONE)
    }

    /// One more than the highest id that was ever in use.
    pub(super) fn id_bound(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Number of series in use.
    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        bytes_of(&self.rows)
            + bytes_of(&self.links)
            + self.groups.allocation_size()
            + self.group_bytes
            + self.reused.allocation_size()
            + self.reused.values().map(bytes_of).sum::<usize>()
            + self.table.bytes()
            + self.orders.bytes()
            + self.free.serialized_size()
            + self.resting.serialized_size()
    }
}
