//! Aggregations that pick some of their input series at each step: `topk`, `bottomk`, `limitk`, `limit_ratio`.
use std::cmp::Ordering;

use metricsstore_model::LabelBuf;

use crate::ast::{Aggregate, AggregateOp};
use crate::error::QueryError;

use super::aggregate::Groups;
use super::vectors::{ABSENT, Vectors, is_absent};
use super::{Evaluation, Query, Steps};

/// A sample and its row.
type Candidate = (f64, u32);

impl Query<'_> {
    pub(super) fn pick_series(
        &self,
        aggregate: &Aggregate,
        param: &[f64],
        mut input: Vectors,
        groups: &Groups,
        steps: Steps,
    ) -> Evaluation<Vectors> {
        if aggregate.op == AggregateOp::LimitRatio {
            return self.pick_share(aggregate, param, input);
        }
        let greatest = param.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if greatest < 1.0 {
            return Ok(Vectors::empty(steps.count, &self.account));
        }
        check_count(param)?;
        let _scratch = self.scratch(input.values.len())?;
        let mut rows_of: Vec<Vec<u32>> = vec![Vec::new(); groups.count];
        for (row, &group) in groups.of_row.iter().enumerate() {
            rows_of[group as usize].push(row as u32);
        }
        let mut chosen_rows = Vec::new();
        let mut chosen_cells = vec![false; input.values.len()];
        for step in 0..input.width {
            let count = param[step].min(input.len() as f64).max(0.0) as usize;
            for rows in &rows_of {
                let cells = rows.iter().map(|&row| (input.row(row as usize)[step], row));
                let candidates = cells.filter(|(value, _)| !is_absent(*value));
                let chosen = choose(aggregate.op, count, candidates);
                for &(_, row) in &chosen {
                    chosen_cells[row as usize * input.width + step] = true;
                }
                if input.width == 1 {
                    chosen_rows.extend(chosen.into_iter().map(|(_, row)| row));
                }
            }
        }
        for (value, chosen) in input.values.iter_mut().zip(&chosen_cells) {
            if !chosen {
                *value = ABSENT;
            }
        }
        // At a single step the order is part of the answer.
        Ok(if input.width == 1 { input.pick(&chosen_rows) } else { input.without_empty_rows() })
    }
}

impl Query<'_> {
    /// Each series has a fixed place in `0..1`; the ratio says which places are in, from the start or, when it is
    /// negative, from the end.
    fn pick_share(&self, aggregate: &Aggregate, param: &[f64], mut input: Vectors) -> Evaluation<Vectors> {
        if param.iter().any(|ratio| ratio.is_nan()) {
            return Err(QueryError::Execution("Ratio value is NaN".into()));
        }
        let span = aggregate.param.as_ref().map(|param| param.span).unwrap_or_default();
        let greatest = param.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = param.iter().copied().fold(f64::INFINITY, f64::min);
        if greatest > 1.0 {
            self.annotations.borrow_mut().invalid_ratio(greatest, 1.0, span);
        }
        if least < -1.0 {
            self.annotations.borrow_mut().invalid_ratio(least, -1.0, span);
        }
        let mut labels = LabelBuf::new();
        for row in 0..input.len() {
            input.labels.get(row, &mut labels);
            let place = place_of(&labels);
            for (value, ratio) in input.row_mut(row).iter_mut().zip(param) {
                let ratio = ratio.clamp(-1.0, 1.0);
                let is_in = (ratio >= 0.0 && place < ratio) || (ratio < 0.0 && place >= 1.0 + ratio);
                if !is_in {
                    *value = ABSENT;
                }
            }
        }
        Ok(input.without_empty_rows())
    }
}

/// The place of a label set in `0..1`: Prometheus' hash of its own encoding of labels, so that both pick the same.
fn place_of(labels: &LabelBuf) -> f64 {
    let mut encoded = Vec::new();
    for text in labels.iter().flat_map(|(name, value)| [name, value]) {
        let length = text.len();
        if length < 255 {
            encoded.push(length as u8);
        } else {
            encoded.extend_from_slice(&[255, length as u8, (length >> 8) as u8, (length >> 16) as u8]);
        }
        encoded.extend_from_slice(text.as_bytes());
    }
    xxhash_rust::xxh64::xxh64(&encoded, 0) as f64 / u64::MAX as f64
}

fn check_count(param: &[f64]) -> Evaluation<()> {
    let failed = |text: String| Err(QueryError::Execution(text));
    if param.iter().any(|value| value.is_nan()) {
        return failed("Parameter value is NaN".into());
    }
    for &value in param {
        let text = crate::literal::format_g(value, None);
        if value <= i64::MIN as f64 {
            return failed(format!("Scalar value {text} underflows int64"));
        }
        if value >= i64::MAX as f64 {
            return failed(format!("Scalar value {text} overflows int64"));
        }
    }
    Ok(())
}

fn choose(op: AggregateOp, count: usize, candidates: impl Iterator<Item = Candidate>) -> Vec<Candidate> {
    if count == 0 {
        return Vec::new();
    }
    if op == AggregateOp::Limitk {
        return candidates.take(count).collect();
    }
    let top = op == AggregateOp::Topk;
    let mut heap = Heap { entries: Vec::new(), top };
    for candidate in candidates {
        if heap.entries.len() < count {
            heap.push(candidate);
        } else if heap.displaces_root(candidate.0) {
            heap.replace_root(candidate);
        }
    }
    let mut chosen = heap.entries;
    // Best first, NaN last.
    chosen.sort_by(|a, b| worst_first(b.0, a.0, top));
    chosen
}

/// Whether `a` is to be given up before `b`; NaN before everything.
fn worse(a: f64, b: f64, top: bool) -> bool {
    a.is_nan() || if top { a < b } else { a > b }
}

fn worst_first(a: f64, b: f64, top: bool) -> Ordering {
    match (a.is_nan() && b.is_nan(), worse(a, b, top), worse(b, a, top)) {
        (false, true, _) => Ordering::Less,
        (false, false, true) => Ordering::Greater,
        _ => Ordering::Equal,
    }
}

/// A binary heap with the worst value at its root. Which of several equal values stay depends on its exact moves, so
/// they are those of Prometheus' heap.
struct Heap {
    entries: Vec<Candidate>,
    top: bool,
}

impl Heap {
    fn worse(&self, a: usize, b: usize) -> bool {
        worse(self.entries[a].0, self.entries[b].0, self.top)
    }

    fn push(&mut self, candidate: Candidate) {
        self.entries.push(candidate);
        let mut child = self.entries.len() - 1;
        while child > 0 {
            let parent = (child - 1) / 2;
            if !self.worse(child, parent) {
                break;
            }
            self.entries.swap(child, parent);
            child = parent;
        }
    }

    fn displaces_root(&self, value: f64) -> bool {
        let root = self.entries[0].0;
        (if self.top { root < value } else { root > value }) || (root.is_nan() && !value.is_nan())
    }

    fn replace_root(&mut self, candidate: Candidate) {
        self.entries[0] = candidate;
        let mut parent = 0;
        loop {
            let left = 2 * parent + 1;
            if left >= self.entries.len() {
                return;
            }
            let right = left + 1;
            let child = if right < self.entries.len() && self.worse(right, left) { right } else { left };
            if !self.worse(child, parent) {
                return;
            }
            self.entries.swap(parent, child);
            parent = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::choose;
    use crate::ast::AggregateOp;

    #[test]
    fn the_best_come_first_and_nan_last() {
        let candidates = [(1.0, 0), (f64::NAN, 1), (3.0, 2), (2.0, 3)];
        let rows = |op, count| -> Vec<u32> {
            choose(op, count, candidates.into_iter()).into_iter().map(|(_, row)| row).collect()
        };
        assert_eq!(rows(AggregateOp::Topk, 2), [2, 3]);
        assert_eq!(rows(AggregateOp::Bottomk, 9), [0, 3, 2, 1]);
        assert_eq!(rows(AggregateOp::Limitk, 2), [0, 1]);
    }
}
