//! Numbers for label sets reduced to some of their labels: what aggregation groups by and matching joins on.
//!
//! Stored series repeat their group and their residual, so each is reduced once, and each pair of the two is put
//! together once.
use hashbrown::HashMap;
use metricsstore_model::LabelBuf;
use metricsstore_model::read::SeriesLabels;

use crate::value::LabelTable;

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

/// Part of a label set after reduction; equal parts have one number.
type Part = u32;

/// Gives equal reduced label sets equal numbers, counted from 0 in the order they are met.
pub(super) struct Keys {
    grouping: Grouping,
    by_text: HashMap<Vec<u8>, u32>,
    table: LabelTable,
}

/// A row of one of the store's two tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Half {
    Group(u32),
    Residual(u32),
}

/// What is remembered while the rows of one select are looked at.
#[derive(Default)]
struct Reduced {
    part_of_text: HashMap<Vec<u8>, Part>,
    parts: Vec<LabelBuf>,
    halves: HashMap<Half, Part>,
    pairs: HashMap<(Part, Part), u32>,
}

impl Keys {
    pub fn new(grouping: Grouping) -> Keys {
        Keys { grouping, by_text: HashMap::new(), table: LabelTable::default() }
    }

    /// Number of different reduced label sets so far.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// The reduced label sets, by number.
    pub fn into_table(self) -> LabelTable {
        self.table
    }

    /// The reduced label sets, by number.
    pub fn table(&self) -> &LabelTable {
        &self.table
    }

    /// The number of each row.
    pub fn assign(&mut self, labels: &Labels) -> Vec<u32> {
        let mut buffer = LabelBuf::new();
        if self.grouping.keep && self.grouping.names.is_empty() && labels.len() > 0 {
            return vec![self.key(&buffer); labels.len()];
        }
        match labels {
            Labels::Stored { labels, ids, nameless } => {
                let mut reduced = Reduced::default();
                ids.iter()
                    .map(|id| {
                        let halves = [Half::Group(id.group), Half::Residual(id.residual)];
                        let [group, residual] = halves
                            .map(|half| self.part(&mut reduced, &**labels, *nameless, half, &mut buffer));
                        if let Some(&key) = reduced.pairs.get(&(group, residual)) {
                            return key;
                        }
                        buffer.clear();
                        for part in [group, residual] {
                            for (name, value) in reduced.parts[part as usize].iter() {
                                buffer.push(name, value);
                            }
                        }
                        buffer.sort();
                        let key = self.key(&buffer);
                        reduced.pairs.insert((group, residual), key);
                        key
                    })
                    .collect()
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

    fn part(
        &self,
        reduced: &mut Reduced,
        labels: &dyn SeriesLabels,
        nameless: bool,
        half: Half,
        buffer: &mut LabelBuf,
    ) -> Part {
        if let Some(&part) = reduced.halves.get(&half) {
            return part;
        }
        buffer.clear();
        match half {
            Half::Group(group) => labels.push_group(group, buffer),
            Half::Residual(residual) => labels.push_residual(residual, buffer),
        }
        buffer.retain(|name, _| self.grouping.keeps(name) && !(nameless && METADATA_LABELS.contains(&name)));
        buffer.sort();
        let next = reduced.parts.len() as Part;
        let part = *reduced.part_of_text.entry(text_of(buffer)).or_insert(next);
        if part == next {
            reduced.parts.push(buffer.clone());
        }
        reduced.halves.insert(half, part);
        part
    }

    /// The number of a label set that is already reduced and sorted.
    pub fn key(&mut self, labels: &LabelBuf) -> u32 {
        let next = self.table.len() as u32;
        let key = *self.by_text.entry(text_of(labels)).or_insert(next);
        if key == next {
            self.table.push(labels.iter());
        }
        key
    }
}

/// Names and values, each with its length, so that different sets have different texts.
fn text_of(labels: &LabelBuf) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in labels.iter() {
        for part in [name, value] {
            text.extend_from_slice(&(part.len() as u32).to_le_bytes());
            text.extend_from_slice(part.as_bytes());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use metricsstore_model::LabelBuf;
    use metricsstore_model::read::{SeriesLabels, SeriesRef};

    use super::{Grouping, Keys};
    use crate::eval::vectors::Labels;

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
        assert_eq!(Keys::new(Grouping::everything()).assign(&rows), [0, 1, 0]);
        assert_eq!(Keys::new(Grouping::without(&[])).assign(&rows), [0, 0, 0]);
        let mut keys = Keys::new(Grouping::by(&named(&["job", "absent"])));
        assert_eq!(keys.assign(&rows), [0, 0, 0]);
        assert_eq!(keys.table().to_labels(0).to_string(), "{job=\"a\"}");
    }

    #[test]
    fn a_dropped_name_is_no_label_any_more() {
        let rows = stored(&[(0, 0), (1, 1)], true);
        assert_eq!(Keys::new(Grouping::by(&named(&["__name__"]))).assign(&rows), [0, 0]);
        assert_eq!(Keys::new(Grouping::everything()).assign(&rows), [0, 0]);
    }

    #[test]
    fn both_sides_of_a_match_share_their_numbers() {
        let mut keys = Keys::new(Grouping::by(&named(&["x"])));
        let stored_keys = keys.assign(&stored(&[(0, 0)], false));
        let mut table = crate::value::LabelTable::default();
        table.push([("x", "2")]);
        table.push([("x", "1"), ("y", "9")]);
        assert_eq!((stored_keys, keys.assign(&Labels::owned(table))), (vec![0], vec![1, 0]));
    }
}
