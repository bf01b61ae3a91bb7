//! Whether an evaluation gives what its script expects.
use metricsstore_budget::Grant;
use metricsstore_model::LabelBuf;
use metricsstore_promql::{Engine, Point, QueryOptions, QueryOutput, Value as Answer};
use regex::Regex;

use crate::script::{Eval, Text, Value};
use crate::store::Store;

type Checked = Result<(), String>;

fn almost_equal(a: f64, b: f64) -> bool {
    if a == b || (a.is_nan() && b.is_nan()) {
        return true;
    }
    let (sum, difference) = (a.abs() + b.abs(), (a - b).abs());
    if a == 0.0 || b == 0.0 || sum < f64::MIN_POSITIVE {
        return difference < 1e-6 * f64::MIN_POSITIVE;
    }
    difference / sum.min(f64::MAX) < 1e-6
}

fn matches((kind, wanted): &(Text, String), found: &str) -> bool {
    match kind {
        Text::Any => true,
        Text::Exact => wanted == found || wanted.trim_matches('"') == found,
        Text::Pattern => Regex::new(&format!("(?s){wanted}")).unwrap().is_match(found),
    }
}

pub fn check(engine: &Engine, store: &Store, eval: &Eval) -> Checked {
    let (options, grant) = (QueryOptions::default(), Grant::unlimited());
    let outcome = match eval.range {
        Some((start, end, step)) => engine.range(store, &eval.query, start, end, step, &options, &grant),
        None => engine.instant(store, &eval.query, eval.at_ms, &options, &grant),
    };
    let output = match outcome {
        Err(error) if eval.fail => {
            let text = error.to_string();
            let good = eval.fail_texts.iter().all(|wanted| matches(wanted, &text));
            return if good {
                Ok(())
            } else {
                Err(format!("fails with {text:?}, want {:?}", eval.fail_texts))
            };
        }
        Err(error) => return Err(format!("fails with {error}")),
        Ok(_) if eval.fail => return Err("succeeds, want an error".into()),
        Ok(output) => output,
    };
    answer(eval, &output.value)?;
    annotations("warning", eval.warn, eval.no_warn, &eval.warn_texts, &output.warnings)?;
    annotations("info", eval.info, eval.no_info, &eval.info_texts, &output.infos)?;
    let has_range_form =
        eval.range.is_none() && eval.range_vector.is_none() && eval.string.is_none() && !eval.ordered;
    if has_range_form && !eval.query.contains("()") {
        middle_of_range(engine, store, eval)?;
    }
    Ok(())
}

/// The same query as the middle step of a range gives the same samples.
fn middle_of_range(engine: &Engine, store: &Store, eval: &Eval) -> Checked {
    let at = eval.at_ms;
    let (options, grant) = (QueryOptions::default(), Grant::unlimited());
    let output: QueryOutput = engine
        .range(store, &eval.query, at - 60_000, at + 60_000, 60_000, &options, &grant)
        .map_err(|error| format!("as a range fails with {error}"))?;
    let Answer::Matrix(matrix) = output.value else { return Err("a range gives no matrix".into()) };
    let mut found = Vec::new();
    for index in 0..matrix.len() {
        for point in matrix.series(index).iter().filter(|point| point.t_ms == at) {
            found.push((matrix.labels.to_labels(index), *point));
        }
    }
    if let Some(wanted) = eval.scalar {
        return match &found[..] {
            [(_, point)] if almost_equal(point.value, wanted) => Ok(()),
            _ => Err(format!("as a range gives {found:?}, want {wanted}")),
        };
    }
    vector(eval, &found).map_err(|problem| format!("as a range: {problem}"))
}

fn annotations(kind: &str, any: bool, none: bool, wanted: &[(Text, String)], found: &[String]) -> Checked {
    if (any || !wanted.is_empty()) && found.is_empty() {
        return Err(format!("gives no {kind}, want {wanted:?}"));
    }
    if none && !found.is_empty() {
        return Err(format!("gives {kind} {found:?}, want none"));
    }
    for text in wanted {
        if !found.iter().any(|found| matches(text, found)) {
            return Err(format!("gives {kind} {found:?}, want {text:?}"));
        }
    }
    let stray =
        found.iter().find(|found| !wanted.is_empty() && !wanted.iter().any(|text| matches(text, found)));
    stray.map_or(Ok(()), |stray| Err(format!("gives {kind} {stray:?} too")))
}

fn answer(eval: &Eval, value: &Answer) -> Checked {
    match value {
        Answer::String { text, .. } => match &eval.string {
            Some(wanted) if wanted == text => Ok(()),
            wanted => Err(format!("gives {text:?}, want {wanted:?}")),
        },
        Answer::Scalar(point) => match eval.scalar {
            Some(wanted) if almost_equal(wanted, point.value) => Ok(()),
            wanted => Err(format!("gives {}, want {wanted:?}", point.value)),
        },
        Answer::Vector(found) => {
            let found: Vec<_> = found
                .points
                .iter()
                .enumerate()
                .map(|(index, point)| (found.labels.to_labels(index), *point))
                .collect();
            vector(eval, &found)
        }
        Answer::Matrix(matrix) => {
            let (start, step) =
                eval.range.map(|(start, _, step)| (start, step)).or(eval.range_vector).unwrap_or_default();
            if matrix.len() != eval.series.len() {
                let found: Vec<_> = (0..matrix.len()).map(|index| matrix.labels.to_labels(index)).collect();
                return Err(format!("gives {found:?}, want {:?}", eval.series));
            }
            let sorted: Vec<LabelBuf> =
                (0..matrix.len()).map(|index| matrix.labels.to_labels(index)).collect();
            if !sorted.is_sorted() {
                return Err("series are not sorted by labels".into());
            }
            for (index, labels) in sorted.iter().enumerate() {
                let Some((_, values)) = eval.series.iter().find(|(wanted, _)| wanted == labels) else {
                    return Err(format!("gives {labels} too"));
                };
                points(matrix.series(index), values, start, step)
                    .map_err(|problem| format!("{labels}: {problem}"))?;
            }
            Ok(())
        }
    }
}

fn points(found: &[Point], values: &[Value], start: i64, step: i64) -> Checked {
    let wanted: Vec<(i64, f64)> = values
        .iter()
        .enumerate()
        .filter_map(|(index, value)| match value {
            Value::Sample(value) => Some((start + index as i64 * step, *value)),
            _ => None,
        })
        .collect();
    let same = wanted.len() == found.len()
        && wanted
            .iter()
            .zip(found)
            .all(|(wanted, found)| wanted.0 == found.t_ms && almost_equal(wanted.1, found.value));
    if same { Ok(()) } else { Err(format!("gives {found:?}, want {wanted:?}")) }
}

fn vector(eval: &Eval, found: &[(LabelBuf, Point)]) -> Checked {
    if eval.scalar.is_some() || found.len() != eval.series.len() {
        return Err(format!("gives {found:?}, want {:?} {:?}", eval.series, eval.scalar));
    }
    for (position, (labels, point)) in found.iter().enumerate() {
        let Some(place) = eval.series.iter().position(|(wanted, _)| wanted == labels) else {
            return Err(format!("gives {labels} {} too, want {:?}", point.value, eval.series));
        };
        if eval.ordered && place != position {
            return Err(format!("gives {labels} at place {position}, want {place}"));
        }
        let wanted = match eval.series[place].1.first() {
            Some(Value::Sample(value)) => *value,
            _ => 0.0,
        };
        if point.t_ms != eval.at_ms || !almost_equal(wanted, point.value) {
            return Err(format!("gives {labels} {}, want {wanted}", point.value));
        }
    }
    Ok(())
}
