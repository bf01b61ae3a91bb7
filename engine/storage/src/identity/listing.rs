//! Label names, label values and label sets, answered from the tables alone.
use std::collections::BinaryHeap;

use metricsstore_model::read::Limited;
use metricsstore_model::{LabelBuf, Matcher};
use roaring::RoaringBitmap;

use super::row_set::RowSet;
use super::select::select;
use super::tables::Tables;
use crate::sync::RwLock;

/// Items that are copied out in one read section.
const AT_ONCE: usize = 1024;

/// Which series a listing is about.
#[derive(Clone, Copy)]
pub(super) struct Scope<'s> {
    pub(super) any_of: &'s [Vec<Matcher>],
    pub(super) within: Option<&'s RoaringBitmap>,
}

impl Scope<'_> {
    fn is_everything(&self) -> bool {
        self.any_of.is_empty() && self.within.is_none()
    }

    /// Series with group and residual, ascending by id.
    fn series(&self, tables: &RwLock<Tables>) -> Vec<(u32, [u32; 2])> {
        let mut found = Vec::new();
        let everything = [Vec::new()];
        let lists = if self.any_of.is_empty() { &everything[..] } else { self.any_of };
        for matchers in lists {
            let selected = select(tables, matchers).into_iter();
            let selected = selected.map(|(id, series)| (id.0, [series.group, series.residual]));
            found.extend(selected.filter(|&(id, _)| self.within.is_none_or(|within| within.contains(id))));
        }
        if lists.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        found
    }

    /// Groups and residuals of those series.
    fn rows(&self, tables: &RwLock<Tables>) -> RowSet {
        let series = self.series(tables);
        let mut set = RowSet::new(tables.read().rows.len());
        series.into_iter().flat_map(|(_, rows)| rows).for_each(|row| set.insert(row));
        set
    }
}

fn cut(mut items: Vec<String>, limit: usize) -> Limited<String> {
    items.sort_unstable();
    let truncated = items.len() > limit;
    items.truncate(limit);
    Limited { items, truncated }
}

/// Sorted names of the labels in scope.
pub(super) fn names(tables: &RwLock<Tables>, scope: Scope<'_>, limit: usize) -> Limited<String> {
    let rows = (!scope.is_everything()).then(|| scope.rows(tables));
    let names: Vec<u32> = tables.read().pairs.names().collect();
    let mut items = Vec::new();
    for name in names {
        let tables = tables.read();
        let mut postings = tables.pairs.of_name(name).iter().filter_map(|&pair| tables.pairs.rows(pair));
        if rows.as_ref().is_none_or(|set| postings.any(|rows| rows.meets(set))) {
            items.push(tables.symbols.get(name).to_owned());
        }
    }
    cut(items, limit)
}

/// Sorted values of one label in scope.
pub(super) fn values(tables: &RwLock<Tables>, name: &str, scope: Scope<'_>, limit: usize) -> Limited<String> {
    let pairs = {
        let tables = tables.read();
        let name = tables.symbols.find(name);
        name.map(|name| tables.pairs.of_name(name).to_vec()).unwrap_or_default()
    };
    let rows = (!pairs.is_empty() && !scope.is_everything()).then(|| scope.rows(tables));
    let mut items = Vec::new();
    for chunk in pairs.chunks(AT_ONCE) {
        let tables = tables.read();
        let in_scope = |pair: u32| {
            rows.as_ref().is_none_or(|set| tables.pairs.rows(pair).is_some_and(|rows| rows.meets(set)))
        };
        let value = |pair: u32| tables.symbols.get(tables.pairs.get(pair).1).to_owned();
        items.extend(chunk.iter().copied().filter(|&pair| in_scope(pair)).map(value));
    }
    cut(items, limit)
}

/// Label sets in scope, in their order; at most `limit` are held at a time.
pub(super) fn label_sets(tables: &RwLock<Tables>, scope: Scope<'_>, limit: usize) -> Limited<LabelBuf> {
    let series = scope.series(tables);
    let mut lowest = BinaryHeap::new();
    for chunk in series.chunks(AT_ONCE) {
        let tables = tables.read();
        for &(_, rows) in chunk {
            let mut labels = LabelBuf::new();
            tables.labels(rows, &mut labels);
            if lowest.len() < limit {
                lowest.push(labels);
            } else if let Some(mut highest) = lowest.peek_mut()
                && labels < *highest
            {
                *highest = labels;
            }
        }
    }
    Limited { truncated: series.len() > limit, items: lowest.into_sorted_vec() }
}
