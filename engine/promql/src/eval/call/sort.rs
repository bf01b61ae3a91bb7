//! Sorting, which only shows at a single step.
use std::cmp::Ordering;

use metricsstore_model::LabelBuf;

use crate::ast::{Call, Span};

use super::super::vectors::Vectors;
use super::super::{Evaluation, Query, Steps};

impl Query<'_> {
    pub(super) fn call_sort(&self, call: &Call, span: Span, steps: Steps) -> Evaluation<Vectors> {
        let vectors = self.vector(&call.args[0], steps)?;
        let by = call.args[1..].iter().map(|arg| self.text(arg, steps)).collect::<Evaluation<Vec<_>>>()?;
        if steps.count != 1 {
            self.annotations.borrow_mut().sort_in_range_query(span);
            return Ok(vectors);
        }
        let mut order: Vec<u32> = (0..vectors.len() as u32).collect();
        match call.function.name {
            "sort" => order
                .sort_by(|a, b| nan_last(vectors.row(*a as usize)[0], vectors.row(*b as usize)[0], false)),
            "sort_desc" => {
                order
                    .sort_by(|a, b| nan_last(vectors.row(*a as usize)[0], vectors.row(*b as usize)[0], true));
            }
            name => {
                let sets: Vec<LabelBuf> = (0..vectors.len())
                    .map(|row| {
                        let mut labels = LabelBuf::new();
                        vectors.labels.get(row, &mut labels);
                        labels
                    })
                    .collect();
                order.sort_by(|a, b| {
                    let ordering = by_labels(&sets[*a as usize], &sets[*b as usize], &by);
                    if name == "sort_by_label_desc" { ordering.reverse() } else { ordering }
                });
            }
        }
        Ok(vectors.pick(&order))
    }
}

fn nan_last(a: f64, b: f64, descending: bool) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => {
            let ordering = a.partial_cmp(&b).unwrap_or(Ordering::Equal);
            if descending { ordering.reverse() } else { ordering }
        }
        (a_is_nan, b_is_nan) => a_is_nan.cmp(&b_is_nan),
    }
}

fn by_labels(a: &LabelBuf, b: &LabelBuf, names: &[String]) -> Ordering {
    for name in names {
        let (left, right) = (a.get(name).unwrap_or_default(), b.get(name).unwrap_or_default());
        if left != right {
            return natural(left, right);
        }
    }
    a.cmp(b)
}

/// Compares runs of digits as numbers.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    while let (Some(&left), Some(&right)) = (a.first(), b.first()) {
        if left.is_ascii_digit() && right.is_ascii_digit() {
            let (left, right) = (take_number(&mut a), take_number(&mut b));
            let ordering = left.len().cmp(&right.len()).then(left.cmp(right));
            if ordering != Ordering::Equal {
                return ordering;
            }
        } else if left == right {
            (a, b) = (&a[1..], &b[1..]);
        } else {
            return left.cmp(&right);
        }
    }
    a.len().cmp(&b.len())
}

/// Digits without leading zeros.
fn take_number<'t>(text: &mut &'t [u8]) -> &'t [u8] {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    *text = rest;
    let zeros = number.iter().take_while(|byte| **byte == b'0').count();
    &number[zeros..]
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::{nan_last, natural};

    #[test]
    fn numbers_inside_texts_compare_as_numbers() {
        assert_eq!(natural("cpu2", "cpu10"), Ordering::Less);
        assert_eq!(natural("a", "b"), Ordering::Less);
        assert_eq!(natural("node1.2", "node1.10"), Ordering::Less);
        assert_eq!(natural("7", "007"), Ordering::Equal);
    }

    #[test]
    fn nan_comes_last_both_ways() {
        assert_eq!(nan_last(f64::NAN, 1.0, false), Ordering::Greater);
        assert_eq!(nan_last(f64::NAN, 1.0, true), Ordering::Greater);
    }
}
