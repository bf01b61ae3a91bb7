//! Functions of a range vector.
use metricsstore_model::{LabelBuf, METRIC_NAME};

use crate::ast::{Call, Expr, ExprKind, Type};
use crate::error::QueryError;

use super::super::functions::over_time::Quadrature;
use super::super::functions::quantile::{is_invalid, quantile};
use super::super::functions::rate::{Slope, changes, extrapolated, instant, resets};
use super::super::functions::{over_time, regression};
use super::super::vectors::Vectors;
use super::super::window::{Kernel, Window};
use super::super::{Evaluation, Query, Steps, type_mismatch};

/// Names that counters end with.
const COUNTER_SUFFIXES: [&str; 4] = ["_total", "_sum", "_count", "_bucket"];

/// Functions that need nothing but the window.
fn simple(name: &str) -> Option<fn(&Window<'_>) -> Option<f64>> {
    Some(match name {
        "rate" => |w| extrapolated(w, Slope::Rate),
        "increase" => |w| extrapolated(w, Slope::Increase),
        "delta" => |w| extrapolated(w, Slope::Delta),
        "irate" => |w| instant(w, true),
        "idelta" => |w| instant(w, false),
        "deriv" => regression::derivative,
        "changes" => |w| Some(changes(w.values)),
        "resets" => |w| Some(resets(w.values)),
        "sum_over_time" => |w| Some(over_time::sum(w.values)),
        "avg_over_time" => |w| Some(over_time::avg(w.values)),
        "min_over_time" => |w| Some(w.values[over_time::best(w.values, |a, b| a < b)]),
        "max_over_time" => |w| Some(w.values[over_time::best(w.values, |a, b| a > b)]),
        "ts_of_min_over_time" => |w| Some(over_time::seconds(w, over_time::best(w.values, |a, b| a <= b))),
        "ts_of_max_over_time" => |w| Some(over_time::seconds(w, over_time::best(w.values, |a, b| a >= b))),
        "ts_of_first_over_time" => |w| Some(over_time::seconds(w, 0)),
        "ts_of_last_over_time" => |w| Some(over_time::seconds(w, w.times.len() - 1)),
        "count_over_time" => |w| Some(w.values.len() as f64),
        "first_over_time" => |w| w.values.first().copied(),
        "last_over_time" => |w| w.values.last().copied(),
        "present_over_time" | "absent_over_time" => |_| Some(1.0),
        "stdvar_over_time" => |w| Some(over_time::variance(w.values)),
        "stddev_over_time" => |w| Some(over_time::variance(w.values).sqrt()),
        _ => return None,
    })
}

impl Query<'_> {
    pub(super) fn call_over_range(&self, call: &Call, steps: Steps) -> Evaluation<Vectors> {
        let name = call.function.name;
        let mut params = Vec::new();
        let mut range = None;
        for arg in &call.args {
            match arg.value_type() {
                Type::Matrix => range = Some(arg),
                _ => params.push((arg, self.scalar(arg, steps)?)),
            }
        }
        let Some(range) = range else { return Ok(Vectors::empty(steps.count, &self.account)) };
        let vectors = match (simple(name), &params[..]) {
            (Some(function), _) => {
                let mut kernel = function;
                self.over_windows(range, steps, &mut kernel)?
            }
            (None, [(_, first)]) if name == "predict_linear" => {
                self.over_windows(range, steps, &mut |w| regression::prediction(w, first[w.step]))?
            }
            (None, [(param, q)]) if name == "quantile_over_time" => {
                self.quantile_over_time(range, param, q, steps)?
            }
            (None, [(_, smoothing), (_, trend)]) if name == "double_exponential_smoothing" => {
                self.smoothing(range, smoothing, trend, steps)?
            }
            (None, _) if name == "integral" => self.integral(range, params.first(), steps)?,
            (None, []) if name == "mad_over_time" => {
                let mut scratch = Vec::new();
                let kernel: &mut Kernel<'_> =
                    &mut |w| Some(over_time::median_absolute_deviation(w.values, &mut scratch));
                self.over_windows(range, steps, kernel)?
            }
            _ => return Err(type_mismatch(range)),
        };
        match name {
            "absent_over_time" => return self.absent(range, &vectors, steps),
            "first_over_time" | "last_over_time" => return self.keep_names(vectors),
            "rate" | "increase" => self.note_possible_non_counters(range, &vectors),
            _ => {}
        }
        vectors.drop_names(self.delayed_names())
    }

    /// Rows of a subquery may already be marked to lose their names.
    fn keep_names(&self, vectors: Vectors) -> Evaluation<Vectors> {
        if self.delayed_names() { Ok(vectors) } else { vectors.merge_same_labels() }
    }

    fn quantile_over_time(&self, range: &Expr, param: &Expr, q: &[f64], steps: Steps) -> Evaluation<Vectors> {
        let mut scratch = Vec::new();
        self.over_windows(range, steps, &mut |window| {
            let q = q[window.step];
            if is_invalid(q) {
                self.annotations.borrow_mut().invalid_quantile(q, param.span);
            }
            scratch.clear();
            scratch.extend_from_slice(window.values);
            Some(quantile(q, &mut scratch))
        })
    }

    fn integral(&self, range: &Expr, param: Option<&(&Expr, Vec<f64>)>, steps: Steps) -> Evaluation<Vectors> {
        self.over_windows(range, steps, &mut |window| {
            let quadrature = param.map_or(Some(Quadrature::Trapezoidal), |(param, numbers)| {
                let known = Quadrature::from_number(numbers[window.step]);
                if known.is_none() {
                    self.annotations.borrow_mut().invalid_integral_strategy(numbers[window.step], param.span);
                }
                known
            });
            Some(over_time::integral(window, quadrature.unwrap_or(Quadrature::Trapezoidal)))
        })
    }

    fn smoothing(&self, range: &Expr, smoothing: &[f64], trend: &[f64], steps: Steps) -> Evaluation<Vectors> {
        let mut failed = None;
        let vectors = self.over_windows(range, steps, &mut |window| {
            for (what, short, value) in
                [("smoothing", "sf", smoothing[window.step]), ("trend", "tf", trend[window.step])]
            {
                if value <= 0.0 || value >= 1.0 {
                    failed.get_or_insert(format!(
                        "invalid {what} factor. Expected: 0 < {short} < 1, got: {value:.6}"
                    ));
                }
            }
            regression::smoothed(window.values, smoothing[window.step], trend[window.step])
        })?;
        failed.map_or(Ok(vectors), |text| Err(QueryError::Execution(text)))
    }

    fn note_possible_non_counters(&self, range: &Expr, vectors: &Vectors) {
        let by_type = self.options.features.type_and_unit_labels;
        let mut seen: Vec<String> = Vec::new();
        let mut labels = LabelBuf::new();
        // Where the selector fixes the name, one row speaks for all.
        let rows = if vectors.one_name && !by_type { vectors.len().min(1) } else { vectors.len() };
        for row in 0..rows {
            vectors.labels.get(row, &mut labels);
            let name = labels.get(METRIC_NAME).unwrap_or_default();
            if name.is_empty() {
                continue;
            }
            if by_type {
                let type_label = labels.get("__type__").unwrap_or_default();
                if !matches!(type_label, "counter" | "histogram") {
                    self.annotations.borrow_mut().possible_non_counter_type(name, type_label, range.span);
                }
            } else if !COUNTER_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
                && !seen.iter().any(|known| known == name)
            {
                seen.push(name.to_owned());
                self.annotations.borrow_mut().possible_non_counter(name, range.span);
            }
        }
    }
}

/// The selector inside a range vector, unless that is a subquery.
pub(super) fn selector_of(expr: &Expr) -> Option<&crate::ast::Selector> {
    match &expr.unwrap_parens().kind {
        ExprKind::Selector(selector) => Some(selector),
        ExprKind::Range(range) => Some(&range.selector),
        _ => None,
    }
}
