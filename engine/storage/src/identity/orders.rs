//! The creation order of each series, as runs: series that were created one after the other usually have
//! neighbouring ids, so that one entry stands for thousands of them.
use std::collections::BTreeMap;
use std::ops::Range;

/// Creation order by id. Ids that are not in use have any order.
#[derive(Default)]
pub(super) struct Orders {
    /// From this id on, up to the next entry: order of the first, one more for each following id.
    runs: BTreeMap<u32, u64>,
}

impl Orders {
    /// The order of an id in use.
    pub(super) fn get(&self, id: u32) -> u64 {
        self.expected(id).unwrap_or(0)
    }

    /// Orders of ids that are asked for in ascending order: most answers need no search.
    pub(super) fn ascending(&self) -> impl FnMut(u32) -> u64 + '_ {
        let (mut first, mut end, mut order) = (0, 0, 0);
        move |id| {
            if !(first..end).contains(&id) {
                let run = self.runs.range(..=id).next_back();
                (first, order) = run.map_or((id, 0), |(&first, &order)| (first, order));
                end = self.runs.range(id.saturating_add(1)..).next().map_or(u32::MAX, |(&next, _)| next);
            }
            order + u64::from(id - first)
        }
    }

    /// Runs of ids below `bound`, with the order of the first.
    pub(super) fn runs(&self, bound: u32) -> impl Iterator<Item = (Range<u32>, u64)> + '_ {
        let ends = self.runs.keys().skip(1).copied().chain([bound]);
        self.runs.iter().zip(ends).map(move |((&first, &order), end)| (first..end.min(bound), order))
    }

    fn expected(&self, id: u32) -> Option<u64> {
        self.runs.range(..=id).next_back().map(|(&first, &order)| order + u64::from(id - first))
    }

    /// Sets the order of an id and leaves all others as they are.
    pub(super) fn set(&mut self, id: u32, order: u64) {
        if self.expected(id) == Some(order) {
            return;
        }
        let after = self.expected(id + 1);
        self.runs.remove(&id);
        if self.expected(id) != Some(order) {
            self.runs.insert(id, order);
        }
        if let Some(after) = after
            && self.expected(id + 1) != Some(after)
        {
            self.runs.insert(id + 1, after);
        }
    }

    /// Bytes held: entries of 12 bytes in nodes that are two thirds full, and what the nodes need themselves.
    pub(super) fn bytes(&self) -> usize {
        self.runs.len() * 20
    }
}

#[cfg(test)]
mod tests {
    use super::Orders;

    #[test]
    fn neighbours_share_a_run_and_setting_one_changes_no_other() {
        let mut orders = Orders::default();
        (0..100).for_each(|id| orders.set(id, u64::from(id)));
        assert_eq!(orders.runs.len(), 1);
        (40..50).for_each(|id| orders.set(id, u64::from(id) + 60));
        let want = |id: u32| u64::from(if (40..50).contains(&id) { id + 60 } else { id });
        assert!((0..100).all(|id| orders.get(id) == want(id)));
        assert_eq!(orders.runs.len(), 3);
    }

    #[test]
    fn any_sequence_of_settings_agrees_with_a_plain_map() {
        let mut orders = Orders::default();
        let mut model = std::collections::BTreeMap::new();
        let mut state = 1_u64;
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (id, order) = ((state >> 33) as u32 % 50, (state >> 40) % 60);
            orders.set(id, order);
            model.insert(id, order);
            assert!(model.iter().all(|(&id, &order)| orders.get(id) == order));
            let mut ascending = orders.ascending();
            assert!(model.iter().all(|(&id, &order)| ascending(id) == order));
        }
    }
}
