//! Series in the order of their label sets, as blocks have them: worked out from ranks of label pairs, without a label
//! set in memory.
use std::sync::Arc;

use metricsstore_model::LabelBuf;
use roaring::RoaringBitmap;

use super::tables::Tables;
use super::{Identity, SeriesId};
use crate::sync::RwLock;

/// Series that are looked up in one read section.
const AT_ONCE: usize = 1024;

impl Identity {
    /// Those of `series` that are known, in Prometheus' order of label sets. They must not be removed meanwhile.
    ///
    /// Takes 16 bytes a series and 4 a label pair while it runs. Nobody creates series while the values of one label are
    /// put in order.
    pub(crate) fn in_label_order(&self, series: &RoaringBitmap) -> Vec<u32> {
        let tables = self.tables.load_full();
        let ranks = pair_ranks(&tables);
        let mut sorter = Sorter { tables: &tables, ranks: &ranks, scratch: Vec::new() };
        let known = |id: &u32| tables.read().series.get(*id).is_some();
        let mut keyed: Vec<Keyed> = series.iter().filter(known).map(|id| Keyed { key: 0, id }).collect();
        sorter.sort(&mut keyed, 0);
        keyed.into_iter().map(|keyed| keyed.id).collect()
    }

    /// Clears `labels` and fills in those of a series, sorted; the place of the series in the creation order, `None` where
    /// it is not known.
    pub(crate) fn labels_of(&self, id: SeriesId, labels: &mut LabelBuf) -> Option<u64> {
        labels.clear();
        let tables = self.tables.load();
        let tables = tables.read();
        let rows = tables.series.get(id.0)?;
        tables.labels(rows, labels);
        Some(tables.series.orders.get(id.0))
    }
}

/// The place of each pair, by id, in the order of names and then of values; from 1.
fn pair_ranks(tables: &Arc<RwLock<Tables>>) -> Vec<u32> {
    let names = {
        let tables = tables.read();
        let mut names: Vec<u32> = tables.pairs.names().collect();
        names.sort_unstable_by(|&a, &b| tables.symbols.get(a).cmp(tables.symbols.get(b)));
        names
    };
    let mut ranks = Vec::new();
    let mut next = 1;
    for name in names {
        let tables = tables.read();
        let value = |pair: u32| tables.symbols.get(tables.pairs.get(pair).1);
        let mut pairs = tables.pairs.of_name(name).to_vec();
        pairs.sort_unstable_by(|&a, &b| value(a).cmp(value(b)));
        let bound = pairs.iter().max().map_or(0, |&pair| pair as usize + 1);
        ranks.resize(ranks.len().max(bound), 0);
        for pair in pairs {
            ranks[pair as usize] = next;
            next += 1;
        }
    }
    ranks
}

/// A series with the ranks of two of its labels; 0 stands for no label, before all others.
struct Keyed {
    key: u64,
    id: u32,
}

struct Sorter<'s> {
    tables: &'s Arc<RwLock<Tables>>,
    ranks: &'s [u32],
    scratch: Vec<u32>,
}

impl Sorter<'_> {
    /// Sorts series that are alike in their first `depth` labels, two labels at a time.
    fn sort(&mut self, series: &mut [Keyed], depth: usize) {
        for part in series.chunks_mut(AT_ONCE) {
            let tables = self.tables.read();
            for keyed in part {
                keyed.key = self.key(&tables, keyed.id, depth);
            }
        }
        series.sort_unstable_by_key(|keyed| keyed.key);
        let mut rest = series;
        while let Some(first) = rest.first() {
            let key = first.key;
            let (alike, after) = rest.split_at_mut(rest.partition_point(|keyed| keyed.key == key));
            // Where the second label is missing the sets are the same: there is only one series with them.
            if alike.len() > 1 && key & u64::from(u32::MAX) != 0 {
                self.sort(alike, depth + 2);
            }
            rest = after;
        }
    }

    fn key(&mut self, tables: &Tables, id: u32, depth: usize) -> u64 {
        self.scratch.clear();
        for row in tables.series.get(id).into_iter().flatten() {
            let rank = |pair: u32| self.ranks.get(pair as usize).copied().unwrap_or(0);
            self.scratch.extend(tables.rows.pairs(row).map(rank));
        }
        self.scratch.sort_unstable();
        let rank = |place: usize| u64::from(self.scratch.get(place).copied().unwrap_or(0));
        rank(depth) << 32 | rank(depth + 1)
    }
}
