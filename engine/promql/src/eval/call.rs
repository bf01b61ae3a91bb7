//! Function calls: which function is computed how.
mod histogram;
mod labels;
mod math;
mod over_range;
mod sort;

use crate::ast::{Call, Expr, ExprKind, Span, Type};

use super::selector::Wanted;
use super::table::Table;
use super::vectors::{ABSENT, Labels, Vectors, is_absent};
use super::{Evaluated, Evaluation, Query, Steps};

impl Query<'_> {
    pub(super) fn call(&self, call: &Call, span: Span, steps: Steps) -> Evaluation<Evaluated> {
        let name = call.function.name;
        if call.args.iter().any(|arg| arg.value_type() == Type::Matrix) {
            return self.call_over_range(call, steps).map(Evaluated::Vector);
        }
        let vector = match name {
            "time" => return Ok(Evaluated::Scalar(steps.times().map(|time| time as f64 / 1000.0).collect())),
            "pi" => return Ok(Evaluated::Scalar(vec![std::f64::consts::PI; steps.count])),
            "scalar" => return self.call_scalar(&call.args[0], steps).map(Evaluated::Scalar),
            "max_of" | "min_of" => {
                let (a, b) = (self.scalar(&call.args[0], steps)?, self.scalar(&call.args[1], steps)?);
                let pick = if name == "max_of" { math::max } else { math::min };
                return Ok(Evaluated::Scalar(a.into_iter().zip(b).map(|(a, b)| pick(a, b)).collect()));
            }
            "vector" => {
                let values = self.scalar(&call.args[0], steps)?;
                return self.nameless(values, steps).map(Evaluated::Vector);
            }
            "timestamp" => self.call_timestamp(&call.args[0], steps)?,
            "absent" => self.call_absent(&call.args[0], steps)?,
            "label_replace" => self.label_replace(call, steps)?,
            "label_join" => self.label_join(call, steps)?,
            "sort" | "sort_desc" | "sort_by_label" | "sort_by_label_desc" => {
                self.call_sort(call, span, steps)?
            }
            "histogram_quantile" => self.histogram_quantile(call, steps)?,
            "histogram_fraction" => self.histogram_fraction(call, steps)?,
            _ => self.call_math(call, steps)?,
        };
        Ok(Evaluated::Vector(vector))
    }

    /// One row without labels.
    pub(super) fn nameless(&self, values: Vec<f64>, steps: Steps) -> Evaluation<Vectors> {
        let mut table = Table::new(&self.account);
        table.push([])?;
        let mut vectors = Vectors::new(Labels::owned(table), values, steps.count, &self.account)?;
        vectors.one_name = true;
        Ok(vectors.without_empty_rows())
    }

    /// The only sample of a step; NaN when there is none or more than one.
    fn call_scalar(&self, arg: &Expr, steps: Steps) -> Evaluation<Vec<f64>> {
        let vectors = self.vector(arg, steps)?;
        Ok((0..steps.count)
            .map(|step| {
                let mut cells =
                    (0..vectors.len()).map(|row| vectors.row(row)[step]).filter(|cell| !is_absent(*cell));
                match (cells.next(), cells.next()) {
                    (Some(only), None) => only,
                    _ => f64::NAN,
                }
            })
            .collect())
    }

    /// When samples were taken, for a selector; else when the expression is evaluated.
    fn call_timestamp(&self, arg: &Expr, steps: Steps) -> Evaluation<Vectors> {
        let vectors = if let ExprKind::Selector(selector) = &arg.unwrap_parens().kind {
            self.select_instants(selector, steps, Wanted::Timestamp)?
        } else {
            let mut vectors = self.vector(arg, steps)?;
            vectors.map_steps(|step, _| Some(steps.time(step) as f64 / 1000.0));
            vectors
        };
        vectors.drop_names(self.delayed_names())
    }

    fn call_absent(&self, arg: &Expr, steps: Steps) -> Evaluation<Vectors> {
        let vectors = self.vector(arg, steps)?;
        self.absent(arg, &vectors, steps)
    }

    /// 1 at each step without any sample, with the labels that the selector fixes.
    pub(super) fn absent(&self, arg: &Expr, vectors: &Vectors, steps: Steps) -> Evaluation<Vectors> {
        let mut values = vec![1.0; steps.count];
        for row in 0..vectors.len() {
            for (value, cell) in values.iter_mut().zip(vectors.row(row)) {
                if !is_absent(*cell) {
                    *value = ABSENT;
                }
            }
        }
        let mut table = Table::new(&self.account);
        table.push(labels::fixed_by_selector(arg).iter())?;
        let vectors = Vectors::new(Labels::owned(table), values, steps.count, &self.account)?;
        Ok(vectors.without_empty_rows())
    }
}
