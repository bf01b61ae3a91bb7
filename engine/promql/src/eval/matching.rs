//! Which series of two vectors meet, and what their results are called.
use std::sync::Arc;

use hashbrown::HashMap;
use metricsstore_model::LabelBuf;

use crate::ast::{Binary, Cardinality, Matching};
use crate::error::QueryError;

use super::account::Account;
use super::binary::{changes_meaning, combine};
use super::keys::{Grouping, Keys};
use super::vectors::{ABSENT, Labels, METADATA_LABELS, SAME_LABELS, Vectors, is_absent};
use super::{Evaluation, Query};

fn grouping_of(matching: Option<&Matching>) -> Grouping {
    match matching {
        Some(matching) if matching.on => Grouping::by(&matching.labels),
        Some(matching) => Grouping::without(&matching.labels),
        None => Grouping::without(&[]),
    }
}

/// The match group of each row of both sides, and how many there are.
pub(super) fn keys_of_sides(
    binary: &Binary,
    lhs: &Labels,
    rhs: &Labels,
    account: &Arc<Account>,
) -> Evaluation<(Vec<u32>, Vec<u32>, usize)> {
    let mut keys = Keys::new(grouping_of(binary.matching.as_ref()), account);
    let left = keys.assign(lhs)?;
    let right = keys.assign(rhs)?;
    Ok((left, right, keys.len()))
}

/// Rows of both; rows with one label set become one.
pub(super) fn concatenate(lhs: Vectors, rhs: Vectors, account: &Arc<Account>) -> Evaluation<Vectors> {
    if rhs.len() == 0 {
        return Ok(lhs);
    }
    if lhs.len() == 0 {
        return Ok(rhs);
    }
    let mut table = lhs.labels.edited(account, |_, _| {})?;
    let mut buffer = LabelBuf::new();
    for row in 0..rhs.len() {
        rhs.labels.get(row, &mut buffer);
        table.push(buffer.iter())?;
    }
    let values = [&lhs.values[..], &rhs.values[..]].concat();
    let mut both = Vectors::new(Labels::owned(table), values, lhs.width, account)?;
    both.drop_name = [&lhs.drop_name[..], &rhs.drop_name[..]].concat();
    let mut merged = both.merge_same_labels()?;
    merged.one_name = false;
    Ok(merged)
}

/// The two sides as matching sees them: each row of `many` meets at most one of `one`.
struct Sides<'v> {
    many: &'v Vectors,
    one: &'v Vectors,
    swapped: bool,
    matching: &'v Matching,
    binary: &'v Binary,
}

impl Sides<'_> {
    fn both_present(&self, many_row: usize, one_row: usize) -> impl Iterator<Item = bool> {
        let pairs = self.many.row(many_row).iter().zip(self.one.row(one_row));
        pairs.map(|(a, b)| !is_absent(*a) && !is_absent(*b))
    }

    fn combined(&self, many: f64, one: f64) -> f64 {
        if is_absent(many) || is_absent(one) {
            return ABSENT;
        }
        let (a, b) = if self.swapped { (one, many) } else { (many, one) };
        combine(self.binary, a, b).unwrap_or(ABSENT)
    }

    /// No step may have two samples of one match group on the one side.
    fn check_one_side(&self, rows: &[u32], group: &LabelBuf) -> Evaluation<()> {
        for (index, &second) in rows.iter().enumerate() {
            for &first in &rows[..index] {
                let (first_row, second_row) = (first as usize, second as usize);
                let cells = self.one.row(first_row).iter().zip(self.one.row(second_row));
                if cells.into_iter().any(|(a, b)| !is_absent(*a) && !is_absent(*b)) {
                    return Err(self.duplicate(first_row, second_row, group));
                }
            }
        }
        Ok(())
    }

    fn duplicate(&self, first: usize, second: usize, group: &LabelBuf) -> QueryError {
        let mut texts = [first, second].map(|row| {
            let mut labels = LabelBuf::new();
            self.one.labels.get(row, &mut labels);
            labels.to_string()
        });
        texts.sort();
        let side = if self.swapped { "left" } else { "right" };
        QueryError::Execution(format!(
            "found duplicate series for the match group {group} on the {side} hand-side of the operation: \
             [{}, {}];many-to-many matching not allowed: matching labels must be unique on one side",
            texts[0], texts[1]
        ))
    }

    fn result_labels(&self, many_row: usize, one_row: usize, drop_name: bool, into: &mut LabelBuf) {
        self.many.labels.get(many_row, into);
        let matching = self.matching;
        let one_to_one = matching.cardinality == Cardinality::OneToOne;
        into.retain(|name, _| {
            let named = matching.labels.iter().any(|label| label == name);
            !(drop_name && METADATA_LABELS.contains(&name)) && (!one_to_one || named == matching.on)
        });
        if !matching.include.is_empty() {
            let mut one = LabelBuf::new();
            self.one.labels.get(one_row, &mut one);
            for label in &matching.include {
                into.set(label, one.get(label).unwrap_or_default());
            }
            into.sort();
        }
    }
}

/// A result row: which rows of the many side it was made of, for the checks.
struct ResultRow {
    values: Vec<f64>,
    sources: Vec<(u32, u32)>,
}

impl Query<'_> {
    pub(super) fn match_vectors(&self, binary: &Binary, lhs: &Vectors, rhs: &Vectors) -> Evaluation<Vectors> {
        let default = Matching {
            cardinality: Cardinality::OneToOne,
            on: false,
            labels: Vec::new(),
            include: Vec::new(),
        };
        let matching = binary.matching.as_ref().unwrap_or(&default);
        let swapped = matching.cardinality == Cardinality::OneToMany;
        let (many, one) = if swapped { (rhs, lhs) } else { (lhs, rhs) };
        let sides = Sides { many, one, swapped, matching, binary };
        let mut keys = Keys::new(grouping_of(Some(matching)), &self.account);
        let one_keys = keys.assign(&one.labels)?;
        let many_keys = keys.assign(&many.labels)?;
        let mut one_rows: Vec<Vec<u32>> = vec![Vec::new(); keys.len()];
        for (row, &key) in one_keys.iter().enumerate() {
            one_rows[key as usize].push(row as u32);
        }
        let meets_other_side = has_common_step(many, one);
        for (key, rows) in one_rows.iter().enumerate() {
            if rows.len() > 1 && meets_other_side {
                sides.check_one_side(rows, &keys.labels_of(key))?;
            }
        }
        let drop_name = changes_meaning(binary) || (binary.return_bool && !self.delayed_names());
        let mut results =
            Results { keys: Keys::new(Grouping::everything(), &self.account), rows: Vec::new() };
        let mut scratch = self.scratch(0)?;
        let mut one_to_one_rows: HashMap<u32, Vec<(u32, u32)>> = HashMap::new();
        for (many_row, &key) in many_keys.iter().enumerate() {
            for &one_row in &one_rows[key as usize] {
                if !sides.both_present(many_row, one_row as usize).any(|both| both) {
                    continue;
                }
                let pair = (many_row as u32, one_row);
                if matching.cardinality == Cardinality::OneToOne {
                    let met = one_to_one_rows.entry(key).or_default();
                    check_overlap(
                        &sides,
                        met,
                        pair,
                        "many-to-one matching must be explicit (group_left/group_right)",
                    )?;
                    met.push(pair);
                }
                scratch.grow(many.width as u64 * 8)?;
                results.add(&sides, pair, drop_name, &many_keys)?;
            }
        }
        let values = results.rows.iter().flat_map(|row| row.values.iter().copied()).collect();
        let labels = results.keys.into_labels();
        let mut vectors = Vectors::new(labels, values, many.width, &self.account)?;
        vectors.one_name = drop_name;
        if binary.return_bool {
            vectors.drop_name.fill(self.delayed_names());
        }
        Ok(vectors.without_empty_rows())
    }
}

/// Duplicates do no harm at a step at which the other side is empty.
fn has_common_step(many: &Vectors, one: &Vectors) -> bool {
    let any =
        |vectors: &Vectors, step: usize| (0..vectors.len()).any(|row| !is_absent(vectors.row(row)[step]));
    many.width > 0 && (0..many.width).any(|step| any(many, step) && any(one, step))
}

/// Two pairs of one match group must not meet at the same step.
fn check_overlap(sides: &Sides<'_>, met: &[(u32, u32)], pair: (u32, u32), rule: &str) -> Evaluation<()> {
    for &(many_row, one_row) in met {
        let before = sides.both_present(many_row as usize, one_row as usize);
        let now = sides.both_present(pair.0 as usize, pair.1 as usize);
        if before.zip(now).any(|(before, now)| before && now) {
            return Err(QueryError::Execution(format!("multiple matches for labels: {rule}")));
        }
    }
    Ok(())
}

struct Results {
    keys: Keys,
    rows: Vec<ResultRow>,
}

impl Results {
    fn add(
        &mut self,
        sides: &Sides<'_>,
        pair: (u32, u32),
        drop_name: bool,
        many_keys: &[u32],
    ) -> Evaluation<()> {
        let (many_row, one_row) = (pair.0 as usize, pair.1 as usize);
        let mut labels = LabelBuf::new();
        sides.result_labels(many_row, one_row, drop_name, &mut labels);
        let cells = sides.many.row(many_row).iter().zip(sides.one.row(one_row));
        let values = cells.map(|(many, one)| sides.combined(*many, *one));
        let result = self.keys.key(&labels)? as usize;
        if result == self.rows.len() {
            self.rows.push(ResultRow { values: values.collect(), sources: vec![pair] });
            return Ok(());
        }
        let row = &mut self.rows[result];
        let same_group: Vec<_> = row
            .sources
            .iter()
            .copied()
            .filter(|source| many_keys[source.0 as usize] == many_keys[many_row])
            .collect();
        check_overlap(sides, &same_group, pair, "grouping labels must ensure unique matches")?;
        row.sources.push(pair);
        for (cell, value) in row.values.iter_mut().zip(values) {
            if is_absent(value) {
                continue;
            }
            if !is_absent(*cell) {
                return Err(QueryError::Execution(SAME_LABELS.into()));
            }
            *cell = value;
        }
        Ok(())
    }
}
