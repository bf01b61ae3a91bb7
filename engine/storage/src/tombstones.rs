//! Samples that were deleted and still stand in files: masked wherever they are read.
use std::sync::Arc;

use hashbrown::HashMap;

use crate::sync::Mutex;
use crate::wal::tombstone_record::Tombstone;

/// Deleted time ranges by the series' place in the global creation sequence, which no other series ever gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Masks {
    by_order: HashMap<u64, Mask>,
}

/// Of one series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mask {
    series: u32,
    /// First and last ms, ascending, disjoint.
    ranges: Vec<(i64, i64)>,
}

impl Mask {
    /// First and last ms of what was deleted, ascending, disjoint.
    pub(crate) fn ranges(&self) -> &[(i64, i64)] {
        &self.ranges
    }
}

/// Whether a time lies in one of these ranges, which are ascending and disjoint, ends inclusive.
pub(crate) fn is_covered(ranges: &[(i64, i64)], timestamp_ms: i64) -> bool {
    let after = ranges.partition_point(|&(min_ms, _)| min_ms <= timestamp_ms);
    after.checked_sub(1).is_some_and(|place| timestamp_ms <= ranges[place].1)
}

impl Masks {
    /// What was deleted of a series, if anything.
    pub(crate) fn of(&self, order: u64) -> Option<&Mask> {
        if self.by_order.is_empty() { None } else { self.by_order.get(&order) }
    }

    fn add(&mut self, tombstone: &Tombstone) {
        let fresh = || Mask { series: tombstone.series, ranges: Vec::new() };
        let mask = self.by_order.entry(tombstone.order).or_insert_with(fresh);
        add_range(&mut mask.ranges, tombstone.min_ms, tombstone.max_ms);
    }

    fn tombstones(&self) -> impl Iterator<Item = Tombstone> + '_ {
        self.by_order.iter().flat_map(|(&order, mask)| {
            let series = mask.series;
            mask.ranges.iter().map(move |&(min_ms, max_ms)| Tombstone { series, order, min_ms, max_ms })
        })
    }
}

/// Adds a range, ends inclusive, to ranges that are ascending and disjoint; those that touch become one.
pub(crate) fn add_range(ranges: &mut Vec<(i64, i64)>, min_ms: i64, max_ms: i64) {
    let first = ranges.partition_point(|&(_, last_ms)| last_ms < min_ms.saturating_sub(1));
    let after = ranges.partition_point(|&(first_ms, _)| first_ms <= max_ms.saturating_add(1)).max(first);
    let joined = &ranges[first..after];
    let min_ms = joined.first().map_or(min_ms, |range| range.0.min(min_ms));
    let max_ms = joined.last().map_or(max_ms, |range| range.1.max(max_ms));
    ranges.splice(first..after, [(min_ms, max_ms)]);
}

/// The tombstones of the store.
#[derive(Default)]
pub(crate) struct Tombstones {
    masks: Mutex<Arc<Masks>>,
}

impl Tombstones {
    /// What is masked at this moment.
    pub(crate) fn masks(&self) -> Arc<Masks> {
        Arc::clone(&self.masks.lock())
    }

    /// Adds tombstones; again is no change.
    pub(crate) fn add(&self, tombstones: &[Tombstone]) {
        let mut masks = self.masks.lock();
        let mut changed = Masks::clone(&masks);
        for tombstone in tombstones {
            changed.add(tombstone);
        }
        *masks = Arc::new(changed);
    }

    /// Drops those of series for which `order_of` does not say the order they were made with, and those that end before
    /// `from_ms`, where no sample stands any more.
    pub(crate) fn retain(&self, from_ms: i64, order_of: impl Fn(u32) -> Option<u64>) {
        let mut masks = self.masks.lock();
        if masks.by_order.is_empty() {
            return;
        }
        let mut changed = Masks::clone(&masks);
        changed.by_order.retain(|&order, mask| {
            mask.ranges.retain(|&(_, max_ms)| max_ms >= from_ms);
            !mask.ranges.is_empty() && order_of(mask.series) == Some(order)
        });
        if changed != **masks {
            *masks = Arc::new(changed);
        }
    }

    /// All of them, to be written again.
    pub(crate) fn all(&self) -> Vec<Tombstone> {
        self.masks().tombstones().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_adding_one_again_changes_nothing() {
        let tombstones = Tombstones::default();
        let of = |min_ms, max_ms| Tombstone { series: 7, order: 3, min_ms, max_ms };
        tombstones.add(&[of(10, 20), of(30, 40), of(15, 25)]);
        let once = tombstones.masks();
        tombstones.add(&[of(30, 40), of(10, 20)]);
        assert_eq!(tombstones.masks(), once);
        let mask = once.of(3).unwrap();
        let covered: Vec<i64> = (0..50).filter(|&time| is_covered(mask.ranges(), time)).collect();
        assert_eq!(covered, (10..=25).chain(30..=40).collect::<Vec<_>>());
        assert!(once.of(4).is_none());
    }

    #[test]
    fn a_series_that_gets_the_id_of_another_is_not_masked_by_its_tombstones() {
        let tombstones = Tombstones::default();
        tombstones.add(&[Tombstone { series: 7, order: 3, min_ms: 0, max_ms: 100 }]);
        assert!(tombstones.masks().of(9).is_none());
        tombstones.retain(i64::MIN, |_| Some(9));
        assert!(tombstones.masks().of(3).is_none());
    }
}
