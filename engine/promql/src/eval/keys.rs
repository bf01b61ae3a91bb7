//! Numbers for label sets reduced to some of their labels: what aggregation groups by and matching joins on.
//!
//! Stored series repeat their group and their residual, so each is reduced once, and each pair of the two is put
//! together once.
use std::sync::Arc;

use hashbrown::HashMap;
use metricsstore_model::LabelBuf;
use metricsstore_model::read::{SeriesLabels, SeriesRef};

use super::Evaluation;
use super::account::{Account, Held};
use super::table::Distinct;
use super::vectors::{Labels, METADATA_LABELS};

/// Which labels count.
#[derive(Debug, Clone)]
pub(super) struct Grouping {
    names: Vec<String>,
    keep: bool,
}

impl Grouping {
    /// Only the named labels.
    pub fn by(names: &[String]) -> Grouping {
        Grouping { names: names.to_vec(), keep: true }
    }

    /// All labels but the named ones and the name.
    pub fn without(names: &[String]) -> Grouping {
        let metadata = METADATA_LABELS.iter().map(|name| (*name).to_owned());
        Grouping { names: names.iter().cloned().chain(metadata).collect(), keep: false }
    }

    /// All labels but exactly the named ones.
    pub fn except(names: &[&str]) -> Grouping {
        Grouping { names: names.iter().map(|name| (*name).to_owned()).collect(), keep: false }
    }

    /// All labels.
    pub fn everything() -> Grouping {
        Grouping { names: Vec::new(), keep: false }
    }

    pub fn keeps(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name) == self.keep
    }
}

/// Gives equal reduced label sets equal numbers, counted from 0 in the order they are met.
pub(super) struct Keys {
    grouping: Grouping,
    sets: Distinct,
    account: Arc<Account>,
}

/// A row of one of the store's two tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Half {
    Group(u32),
    Residual(u32),
}

/// What is remembered while the rows of one select are looked at.
struct Reduced<'l> {
    labels: &'l dyn SeriesLabels,
    nameless: bool,
    /// Halves after reduction.
    parts: Distinct,
    part_of: HashMap<Half, u32>,
    key_of: HashMap<(u32, u32), u32>,
    buffer: LabelBuf,
}

/// Bytes of what is remembered per row at most: its place in two maps, and its number.
const ROW_BYTES: u64 = 64;

impl Keys {
    pub fn new(grouping: Grouping, account: &Arc<Account>) -> Keys {
        Keys { grouping, sets: Distinct::new(account), account: Arc::clone(account) }
    }

    /// Number of different reduced label sets so far.
    pub fn len(&self) -> usize {
        self.sets.len()
    }

    /// The reduced label sets, by number.
    pub fn into_labels(self) -> Labels {
        Labels::owned(self.sets.into_table())
    }

    /// The reduced label set of a number.
    pub fn labels_of(&self, key: usize) -> LabelBuf {
        self.sets.sets().to_labels(key)
    }

    /// The number of a label set that is already reduced and sorted.
    pub fn key(&mut self, labels: &LabelBuf) -> Evaluation<u32> {
        self.sets.row(labels)
    }

    /// The number of each row.
    pub fn assign(&mut self, labels: &Labels) -> Evaluation<Vec<u32>> {
        let mut buffer = LabelBuf::new();
        if self.grouping.keep && self.grouping.names.is_empty() && labels.len() > 0 {
            return Ok(vec![self.key(&buffer)?; labels.len()]);
        }
        let mut scratch = Held::new(&self.account);
        scratch.grow(labels.len() as u64 * ROW_BYTES)?;
        match labels {
            Labels::Stored { labels, ids, nameless } => {
                let mut reduced = Reduced {
                    labels: &**labels,
                    nameless: *nameless,
                    parts: Distinct::new(&self.account),
                    part_of: HashMap::new(),
                    key_of: HashMap::new(),
                    buffer,
                };
                ids.iter().map(|id| self.key_of(&mut reduced, *id)).collect()
            }
            Labels::Owned { .. } => (0..labels.len())
                .map(|row| {
                    labels.get(row, &mut buffer);
                    buffer.retain(|name, _| self.grouping.keeps(name));
                    self.key(&buffer)
                })
                .collect(),
        }
    }

    fn key_of(&mut self, reduced: &mut Reduced<'_>, id: SeriesRef) -> Evaluation<u32> {
        let group = self.part(reduced, Half::Group(id.group))?;
        let residual = self.part(reduced, Half::Residual(id.residual))?;
        if let Some(&key) = reduced.key_of.get(&(group, residual)) {
            return Ok(key);
        }
        reduced.buffer.clear();
        for part in [group, residual] {
            for (name, value) in reduced.parts.sets().pairs(part as usize) {
                reduced.buffer.push(name, value);
            }
        }
        reduced.buffer.sort();
        let key = self.sets.row(&reduced.buffer)?;
        reduced.key_of.insert((group, residual), key);
        Ok(key)
    }

    fn part(&self, reduced: &mut Reduced<'_>, half: Half) -> Evaluation<u32> {
        if let Some(&part) = reduced.part_of.get(&half) {
            return Ok(part);
        }
        let buffer = &mut reduced.buffer;
        buffer.clear();
        match half {
            Half::Group(group) => reduced.labels.push_group(group, buffer),
            Half::Residual(residual) => reduced.labels.push_residual(residual, buffer),
        }
        let dropped = |name: &str| reduced.nameless && METADATA_LABELS.contains(&name);
        buffer.retain(|name, _| self.grouping.keeps(name) && !dropped(name));
        buffer.sort();
        let part = reduced.parts.row(buffer)?;
        reduced.part_of.insert(half, part);
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use metricsstore_model::LabelBuf;
    use metricsstore_model::read::{SeriesLabels, SeriesRef};

    use metricsstore_budget::Grant;

    use super::{Account, Grouping, Keys};
    use crate::eval::table::Table;
    use crate::eval::vectors::Labels;

    fn keys(grouping: Grouping) -> Keys {
        Keys::new(grouping, &Account::new(u64::MAX, &Grant::unlimited()))
    }

    /// Two tables of label pairs.
    struct Tables {
        groups: Vec<Vec<(&'static str, &'static str)>>,
        residuals: Vec<Vec<(&'static str, &'static str)>>,
    }

    impl SeriesLabels for Tables {
        fn push_group(&self, group: u32, labels: &mut LabelBuf) {
            self.groups[group as usize].iter().for_each(|(name, value)| labels.push(name, value));
        }
        fn push_residual(&self, residual: u32, labels: &mut LabelBuf) {
            self.residuals[residual as usize].iter().for_each(|(name, value)| labels.push(name, value));
        }
    }

    fn stored(pairs: &[(u32, u32)], nameless: bool) -> Labels {
        let tables = Tables {
            groups: vec![vec![("job", "a")], vec![]],
            residuals: vec![
                vec![("__name__", "m"), ("x", "1")],
                vec![("__name__", "n"), ("job", "a"), ("x", "1")],
                vec![("__name__", "m"), ("job", "a"), ("x", "1")],
            ],
        };
        let ids = pairs.iter().enumerate();
        let ids = ids.map(|(order, &(group, residual))| SeriesRef { order: order as u64, group, residual });
        Labels::Stored { labels: Arc::new(tables), ids: ids.collect(), nameless }
    }

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn how_a_label_set_is_split_does_not_show() {
        let rows = stored(&[(0, 0), (1, 1), (1, 2)], false);
        assert_eq!(keys(Grouping::everything()).assign(&rows).unwrap(), [0, 1, 0]);
        assert_eq!(keys(Grouping::without(&[])).assign(&rows).unwrap(), [0, 0, 0]);
        let mut by = keys(Grouping::by(&named(&["job", "absent"])));
        assert_eq!(by.assign(&rows).unwrap(), [0, 0, 0]);
        assert_eq!(by.labels_of(0).to_string(), "{job=\"a\"}");
    }

    #[test]
    fn a_dropped_name_is_no_label_any_more() {
        let rows = stored(&[(0, 0), (1, 1)], true);
        assert_eq!(keys(Grouping::by(&named(&["__name__"]))).assign(&rows).unwrap(), [0, 0]);
        assert_eq!(keys(Grouping::everything()).assign(&rows).unwrap(), [0, 0]);
    }

    #[test]
    fn both_sides_of_a_match_share_their_numbers() {
        let mut by = keys(Grouping::by(&named(&["x"])));
        let stored_keys = by.assign(&stored(&[(0, 0)], false)).unwrap();
        let mut table = Table::new(&Account::new(u64::MAX, &Grant::unlimited()));
        table.push([("x", "2")]).unwrap();
        table.push([("x", "1"), ("y", "9")]).unwrap();
        assert_eq!((stored_keys, by.assign(&Labels::owned(table)).unwrap()), (vec![0], vec![1, 0]));
    }
}
