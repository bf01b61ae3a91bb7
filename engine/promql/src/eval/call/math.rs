//! Functions of one sample: arithmetic, trigonometry, parts of dates.
use crate::ast::Call;

use super::super::calendar::{Date, days_in_month};
use super::super::vectors::Vectors;
use super::super::{Evaluation, Query, Steps};

/// As Go's `math.Max`: +Inf when one is, else NaN when one is.
pub(super) fn max(a: f64, b: f64) -> f64 {
    let infinite = a == f64::INFINITY || b == f64::INFINITY;
    if (a.is_nan() || b.is_nan()) && !infinite { f64::NAN } else { a.max(b) }
}

/// As Go's `math.Min`: -Inf when one is, else NaN when one is.
pub(super) fn min(a: f64, b: f64) -> f64 {
    let infinite = a == f64::NEG_INFINITY || b == f64::NEG_INFINITY;
    if (a.is_nan() || b.is_nan()) && !infinite { f64::NAN } else { a.min(b) }
}

fn sign(value: f64) -> f64 {
    if value > 0.0 {
        1.0
    } else if value < 0.0 {
        -1.0
    } else {
        value
    }
}

/// Functions that need nothing but the value.
fn simple(name: &str) -> Option<fn(f64) -> f64> {
    Some(match name {
        "abs" => f64::abs,
        "ceil" => f64::ceil,
        "floor" => f64::floor,
        "exp" => f64::exp,
        "ln" => f64::ln,
        "log2" => f64::log2,
        "log10" => f64::log10,
        "sqrt" => f64::sqrt,
        "sgn" => sign,
        "sin" => f64::sin,
        "cos" => f64::cos,
        "tan" => f64::tan,
        "asin" => f64::asin,
        "acos" => f64::acos,
        "atan" => f64::atan,
        "sinh" => f64::sinh,
        "cosh" => f64::cosh,
        "tanh" => f64::tanh,
        "asinh" => f64::asinh,
        "acosh" => f64::acosh,
        "atanh" => f64::atanh,
        "deg" => |value| value * (180.0 / std::f64::consts::PI),
        "rad" => |value| value * (std::f64::consts::PI / 180.0),
        _ => return None,
    })
}

/// Parts of a date.
fn date_part(name: &str) -> Option<fn(Date) -> i64> {
    Some(match name {
        "day_of_month" => |date| date.day,
        "day_of_week" => |date| date.weekday,
        "day_of_year" => |date| date.year_day,
        "days_in_month" => |date| days_in_month(date.year, date.month),
        "hour" => |date| date.hour,
        "minute" => |date| date.minute,
        "month" => |date| date.month,
        "year" => |date| date.year,
        _ => return None,
    })
}

impl Query<'_> {
    pub(super) fn call_math(&self, call: &Call, steps: Steps) -> Evaluation<Vectors> {
        let name = call.function.name;
        let Some(arg) = call.args.first() else {
            let Some(part) = date_part(name) else { return Ok(Vectors::empty(steps.count, &self.account)) };
            let values = steps.times().map(|time| part(Date::from_unix(time.div_euclid(1000))) as f64);
            return self.nameless(values.collect(), steps);
        };
        let params =
            call.args[1..].iter().map(|param| self.scalar(param, steps)).collect::<Evaluation<Vec<_>>>()?;
        let mut vectors = self.vector(arg, steps)?;
        if let Some(function) = simple(name) {
            vectors.map(function);
        } else if let Some(part) = date_part(name) {
            vectors.map(|value| part(Date::from_float(value)) as f64);
        } else {
            let param = |index: usize, step: usize| params.get(index).map(|values: &Vec<f64>| values[step]);
            let bounds = |step: usize| {
                Some(match name {
                    "clamp" => (param(0, step)?, param(1, step)?),
                    "clamp_min" => (param(0, step)?, f64::INFINITY),
                    _ => (f64::NEG_INFINITY, param(0, step)?),
                })
            };
            if name == "round" {
                vectors.map_steps(|step, value| {
                    let inverse = 1.0 / param(0, step).unwrap_or(1.0);
                    Some((value * inverse + 0.5).floor() / inverse)
                });
            } else {
                vectors.map_steps(|step, value| {
                    let (least, greatest) = bounds(step)?;
                    clamp(value, least, greatest)
                });
            }
            vectors = vectors.without_empty_rows();
        }
        vectors.drop_names(self.delayed_names())
    }
}

/// Nothing when the bounds are the wrong way round.
fn clamp(value: f64, least: f64, greatest: f64) -> Option<f64> {
    (greatest >= least || greatest.is_nan() || least.is_nan()).then(|| max(least, min(greatest, value)))
}
