//! Definitions into tables, and which series were created when.
use std::ops::Range;

use roaring::RoaringBitmap;

use super::DefinitionError;
use super::definitions::{Definition, Record};
use super::tables::{PairSet, Tables};

/// What the present tables say about a definition.
enum Judgement {
    /// It is there, or something later is.
    Skip,
    /// It is missing; these older series give way.
    Add([Option<u32>; 2]),
}

/// Files and log repeat definitions. Of those that are there already, by id and creation order, one in so many is
/// compared by its labels too: where whole records belong to another store, each of them tells.
const SPOT_CHECK: usize = 16;

/// The rows of a record as pairs of the tables, looked up when they are first asked for.
struct KnownRows<'t> {
    tables: &'t Tables,
    record: &'t Record<'t>,
    asked: Vec<bool>,
    sets: Vec<Option<PairSet>>,
}

impl KnownRows<'_> {
    /// Whether all pairs of a row are known.
    fn has(&mut self, row: u32) -> bool {
        let at = row as usize;
        if !self.asked[at] {
            self.asked[at] = true;
            self.sets[at] = self.tables.known_set(self.record.row(row));
        }
        self.sets[at].is_some()
    }

    /// The pairs of a row that was asked for by [`KnownRows::has`].
    fn set(&self, row: u32) -> Option<&PairSet> {
        self.sets[row as usize].as_ref()
    }
}

fn corrupt(what: &'static str) -> DefinitionError {
    DefinitionError::Corrupt { offset: 0, what }
}

impl Tables {
    /// The definitions that are to be added, and the series that they supersede.
    pub(super) fn judge(
        &self,
        record: &Record<'_>,
    ) -> Result<(Vec<Definition>, RoaringBitmap), DefinitionError> {
        let (asked, mut sets) = (vec![false; record.row_count()], Vec::new());
        sets.resize_with(record.row_count(), || None);
        let mut known = KnownRows { tables: self, record, asked, sets };
        let mut scratch = PairSet::default();
        let mut add = Vec::new();
        let mut superseded = RoaringBitmap::new();
        for (index, &definition) in record.series.iter().enumerate() {
            if index % SPOT_CHECK != 0 && self.is_held(definition) {
                continue;
            }
            let [group, residual] = definition.rows;
            // Mostly the group is new, and with it the series.
            let namesake = (known.has(group) && known.has(residual))
                .then(|| known.set(group).zip(known.set(residual)))
                .flatten()
                .and_then(|(group, residual)| self.find_union(group, residual, &mut scratch));
            if let Judgement::Add(older) = self.judge_one(definition, namesake)? {
                add.push(definition);
                superseded.extend(older.into_iter().flatten());
            }
        }
        Ok((add, superseded))
    }

    /// Whether the series of this id and creation order is there.
    fn is_held(&self, definition: Definition) -> bool {
        self.series.get(definition.id).is_some() && self.series.orders.get(definition.id) == definition.order
    }

    /// `namesake`: the present series with the same labels.
    fn judge_one(&self, definition: Definition, namesake: Option<u32>) -> Result<Judgement, DefinitionError> {
        let holder = self.series.get(definition.id).map(|_| definition.id);
        for present in [holder, namesake].into_iter().flatten() {
            let order = self.series.orders.get(present);
            if order > definition.order {
                return Ok(Judgement::Skip);
            }
            if order == definition.order {
                let same = holder == namesake;
                return same.then_some(Judgement::Skip).ok_or(corrupt("two series with one creation order"));
            }
        }
        Ok(Judgement::Add([holder, namesake]))
    }

    /// Adds definitions that [`Tables::judge`] let pass; returns how many series are new.
    pub(super) fn add(&mut self, record: &Record<'_>, add: &[Definition]) -> Result<usize, DefinitionError> {
        let (text_bytes, pairs) = record.size();
        if !self.has_room(text_bytes, pairs) {
            return Err(corrupt("more text than one store can hold"));
        }
        let mut used: Vec<bool> = vec![false; record.row_count()];
        add.iter().flat_map(|definition| definition.rows).for_each(|row| used[row as usize] = true);
        let mut scratch = PairSet::default();
        let mut rows = Vec::with_capacity(used.len());
        for (row, used) in (0..).zip(used) {
            // Labels of series that are left out must not show up among the names and values.
            rows.push(if used { self.intern_labels(record.row(row), &mut scratch) } else { 0 });
        }
        let mut added = 0;
        for definition in add {
            let sides = definition.rows.map(|row| rows[row as usize]);
            let (_, new) = self.intern_series(sides, definition.id, definition.order, &mut scratch);
            added += usize::from(new);
        }
        Ok(added)
    }

    /// The first `max_series` series with orders in `orders`, and the mark before which none was left out. Costs what
    /// the runs of creation cost, not what all series would.
    pub(super) fn created_in(&self, orders: Range<u64>, max_series: usize) -> (Vec<(u32, u64)>, u64) {
        let bound = self.series.id_bound();
        let mut runs: Vec<(u64, Range<u32>)> = self
            .series
            .orders
            .runs(bound)
            .filter_map(|(ids, order)| {
                let skipped = u32::try_from(orders.start.saturating_sub(order)).unwrap_or(u32::MAX);
                let mut ids = ids.start.saturating_add(skipped)..ids.end;
                let first = ids.find(|&id| self.series.get(id).is_some())?;
                Some((self.series.orders.get(first), first..ids.end))
            })
            .filter(|(first, _)| orders.contains(first))
            .collect();
        runs.sort_unstable_by_key(|&(first, _)| first);
        let (mut chosen, mut mark) = (Vec::new(), orders.end);
        for (first, ids) in runs {
            let mut live = ids.zip(first..orders.end).filter(|&(id, _)| self.series.get(id).is_some());
            chosen.extend(live.by_ref().take(max_series - chosen.len()));
            if let Some((_, left_out)) = live.next() {
                mark = mark.min(left_out);
            }
            if first > mark {
                break;
            }
        }
        (chosen, mark)
    }
}
