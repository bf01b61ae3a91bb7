//! Operators between two expressions.
use crate::ast::{Binary, BinaryOp};

use super::vectors::{ABSENT, Vectors, is_absent};
use super::{Evaluated, Evaluation, Query, Steps};

/// Result of an arithmetic operator.
fn arithmetic(op: BinaryOp, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Mod => a % b,
        BinaryOp::Pow => power(a, b),
        BinaryOp::Atan2 => a.atan2(b),
        _ => f64::NAN,
    }
}

/// As Go's `math.Pow`: -1 raised to an infinite power is 1.
fn power(base: f64, exponent: f64) -> f64 {
    if base == -1.0 && exponent.is_infinite() { 1.0 } else { base.powf(exponent) }
}

fn compares(op: BinaryOp, a: f64, b: f64) -> bool {
    match op {
        BinaryOp::Eq => a == b,
        BinaryOp::Ne => a != b,
        BinaryOp::Lt => a < b,
        BinaryOp::Le => a <= b,
        BinaryOp::Gt => a > b,
        BinaryOp::Ge => a >= b,
        _ => false,
    }
}

/// Result for two samples; `None` where a comparison filters.
pub(super) fn combine(binary: &Binary, a: f64, b: f64) -> Option<f64> {
    if !binary.op.is_comparison() {
        return Some(arithmetic(binary.op, a, b));
    }
    let holds = compares(binary.op, a, b);
    if binary.return_bool { Some(f64::from(u8::from(holds))) } else { holds.then_some(a) }
}

/// Whether results mean something else than their operands, so that the name goes.
pub(super) fn changes_meaning(binary: &Binary) -> bool {
    !binary.op.is_comparison() && !binary.op.is_set()
}

impl Query<'_> {
    pub(super) fn binary(&self, binary: &Binary, steps: Steps) -> Evaluation<Evaluated> {
        let lhs = self.eval(&binary.lhs, steps)?;
        let rhs = self.eval(&binary.rhs, steps)?;
        match (lhs, rhs) {
            (Evaluated::Scalar(mut lhs), Evaluated::Scalar(rhs)) => {
                for (a, b) in lhs.iter_mut().zip(rhs) {
                    *a = if binary.op.is_comparison() {
                        f64::from(u8::from(compares(binary.op, *a, b)))
                    } else {
                        arithmetic(binary.op, *a, b)
                    };
                }
                Ok(Evaluated::Scalar(lhs))
            }
            (Evaluated::Vector(vectors), Evaluated::Scalar(scalar)) => {
                self.with_scalar(binary, vectors, |step, value| combine(binary, value, scalar[step]))
            }
            (Evaluated::Scalar(scalar), Evaluated::Vector(vectors)) => {
                self.with_scalar(binary, vectors, |step, value| {
                    let combined = combine(binary, scalar[step], value)?;
                    // A filter keeps the series' own value, on whichever side it stands.
                    let filters = binary.op.is_comparison() && !binary.return_bool;
                    Some(if filters { value } else { combined })
                })
            }
            (Evaluated::Vector(lhs), Evaluated::Vector(rhs)) => {
                if binary.op.is_set() {
                    self.set_operation(binary, lhs, rhs).map(Evaluated::Vector)
                } else {
                    self.match_vectors(binary, &lhs, &rhs).map(Evaluated::Vector)
                }
            }
            (Evaluated::Text(_), _) => Err(super::type_mismatch(&binary.lhs)),
            (_, Evaluated::Text(_)) => Err(super::type_mismatch(&binary.rhs)),
        }
    }

    fn with_scalar(
        &self,
        binary: &Binary,
        mut vectors: Vectors,
        f: impl Fn(usize, f64) -> Option<f64>,
    ) -> Evaluation<Evaluated> {
        vectors.map_steps(f);
        let vectors = vectors.without_empty_rows();
        if changes_meaning(binary) || binary.return_bool {
            return vectors.drop_names(self.delayed_names()).map(Evaluated::Vector);
        }
        Ok(Evaluated::Vector(vectors))
    }

    fn set_operation(&self, binary: &Binary, mut lhs: Vectors, mut rhs: Vectors) -> Evaluation<Vectors> {
        let (left_keys, right_keys, count) =
            super::matching::keys_of_sides(binary, &lhs.labels, &rhs.labels, &self.account)?;
        let _scratch = self.scratch(count * lhs.width)?;
        if binary.op == BinaryOp::Or {
            let taken = presence(&lhs, &left_keys, count);
            keep_where(&mut rhs, &right_keys, &taken, false);
            return super::matching::concatenate(lhs, rhs.without_empty_rows(), &self.account);
        }
        let found = presence(&rhs, &right_keys, count);
        keep_where(&mut lhs, &left_keys, &found, binary.op == BinaryOp::And);
        Ok(lhs.without_empty_rows())
    }
}

/// Removes the samples whose key is not as `wanted` at their step.
fn keep_where(vectors: &mut Vectors, keys: &[u32], found: &[bool], wanted: bool) {
    let width = vectors.width;
    for (row, &key) in keys.iter().enumerate() {
        let found = &found[key as usize * width..][..width];
        for (value, &found) in vectors.row_mut(row).iter_mut().zip(found) {
            if found != wanted {
                *value = ABSENT;
            }
        }
    }
}

/// For each key and step, whether any row of the key has a sample.
fn presence(vectors: &Vectors, keys: &[u32], count: usize) -> Vec<bool> {
    let width = vectors.width;
    let mut present = vec![false; count * width];
    for (row, &key) in keys.iter().enumerate() {
        let present = &mut present[key as usize * width..][..width];
        for (present, value) in present.iter_mut().zip(vectors.row(row)) {
            *present |= !is_absent(*value);
        }
    }
    present
}
