//! Functions that change labels.
use std::sync::Arc;

use metricsstore_model::{LabelBuf, METRIC_NAME, MatchOp};

use crate::ast::{Call, Expr};
use crate::error::QueryError;

use super::super::account::Account;
use super::super::vectors::{Labels, METADATA_LABELS, Vectors};
use super::super::{Evaluation, Query, Steps};
use super::over_range::selector_of;

/// Labels that a selector fixes to one value each; a label that it names twice is fixed to none.
pub(super) fn fixed_by_selector(expr: &Expr) -> LabelBuf {
    let mut labels = LabelBuf::new();
    let mut seen: Vec<&str> = Vec::new();
    for matcher in selector_of(expr).map_or(&[][..], |selector| &selector.matchers) {
        if METADATA_LABELS.contains(&&*matcher.name) {
            continue;
        }
        if matcher.op == MatchOp::Equal && !seen.contains(&&*matcher.name) {
            labels.set(&matcher.name, &matcher.value);
            seen.push(&matcher.name);
        } else {
            labels.remove(&matcher.name);
        }
    }
    labels.sort();
    labels
}

fn failed<T>(text: String) -> Evaluation<T> {
    Err(QueryError::Execution(text))
}

impl Query<'_> {
    pub(super) fn label_replace(&self, call: &Call, steps: Steps) -> Evaluation<Vectors> {
        let [destination, replacement, source, pattern] =
            [1, 2, 3, 4].map(|index| self.text(&call.args[index], steps));
        let (destination, replacement, source, pattern) = (destination?, replacement?, source?, pattern?);
        let Ok(regex) = regex::RegexBuilder::new(&format!("^(?s:{pattern})$")).size_limit(10 << 20).build()
        else {
            return failed(format!("invalid regular expression in label_replace(): {pattern}"));
        };
        if destination.is_empty() {
            return failed(format!("invalid destination label name in label_replace(): {destination}"));
        }
        let vectors = self.vector(&call.args[0], steps)?;
        let mut replaced = String::new();
        relabelled(&self.account, vectors, &destination, |labels| {
            let captures = regex.captures(labels.get(&source).unwrap_or_default())?;
            replaced.clear();
            captures.expand(&replacement, &mut replaced);
            Some(replaced.clone())
        })
    }

    pub(super) fn label_join(&self, call: &Call, steps: Steps) -> Evaluation<Vectors> {
        let destination = self.text(&call.args[1], steps)?;
        let separator = self.text(&call.args[2], steps)?;
        let sources =
            call.args[3..].iter().map(|arg| self.text(arg, steps)).collect::<Evaluation<Vec<_>>>()?;
        if sources.iter().any(String::is_empty) {
            return failed("invalid source label name in label_join(): ".into());
        }
        if destination.is_empty() {
            return failed(format!("invalid destination label name in label_join(): {destination}"));
        }
        let vectors = self.vector(&call.args[0], steps)?;
        relabelled(&self.account, vectors, &destination, |labels| {
            let values: Vec<&str> =
                sources.iter().map(|source| labels.get(source).unwrap_or_default()).collect();
            Some(values.join(&separator))
        })
    }
}

/// Sets one label of each row; `None` leaves a row as it is.
fn relabelled(
    account: &Arc<Account>,
    mut vectors: Vectors,
    destination: &str,
    mut value: impl FnMut(&LabelBuf) -> Option<String>,
) -> Evaluation<Vectors> {
    let is_name = destination == METRIC_NAME;
    let drop_name = &mut vectors.drop_name;
    let table = vectors.labels.edited(account, |row, labels| {
        if let Some(value) = value(labels) {
            labels.set(destination, &value);
            if is_name {
                drop_name[row] = false;
            }
        }
    })?;
    vectors.labels = Labels::owned(table);
    let mut merged = vectors.merge_same_labels()?;
    merged.one_name = false;
    Ok(merged)
}
