//! Evaluation: an expression over all steps of a query at once.
//!
//! A selector reads its series once for the whole query; what it gives, and what every operator gives, is a
//! [`Vectors`]: rows of series, one cell per step. Labels stay ids of the store until somebody needs their text.
mod account;
mod aggregate;
mod binary;
pub(crate) mod calendar;
mod call;
mod fold;
mod functions;
mod keys;
mod matching;
mod output;
mod pick;
mod selector;
mod table;
mod vectors;
mod window;

use std::cell::RefCell;
use std::sync::Arc;

use metricsstore_budget::Grant;
use metricsstore_model::read::Source;

use crate::annotation::Annotations;
use crate::ast::{At, Expr, ExprKind, Type};
use crate::engine::{EngineOptions, QueryOptions, QueryOutput};
use crate::error::QueryError;
use crate::value::Value;

use account::{Account, Held};
use selector::LabelSource;
use vectors::Vectors;

type Evaluation<T> = Result<T, QueryError>;

/// The times at which an expression is evaluated.
#[derive(Debug, Clone, Copy)]
struct Steps {
    start_ms: i64,
    step_ms: i64,
    count: usize,
}

impl Steps {
    fn time(self, step: usize) -> i64 {
        self.start_ms + self.step_ms * step as i64
    }

    /// The first half of the steps and the others.
    fn halves(self) -> (Steps, Steps) {
        let first = self.count / 2;
        let second = Steps { start_ms: self.time(first), count: self.count - first, ..self };
        (Steps { count: first, ..self }, second)
    }

    fn times(self) -> impl ExactSizeIterator<Item = i64> {
        (0..self.count).map(move |step| self.time(step))
    }
}

/// What an expression evaluates to; range vectors only exist as arguments, see [`window`].
enum Evaluated {
    /// One number per step.
    Scalar(Vec<f64>),
    Text(String),
    Vector(Vectors),
}

/// One running query.
struct Query<'e> {
    options: &'e EngineOptions,
    source: &'e dyn Source,
    asked: &'e QueryOptions,
    grant: &'e Grant,
    account: Arc<Account>,
    annotations: RefCell<Annotations>,
    /// Where labels are read from, of all selects.
    label_sources: RefCell<Vec<LabelSource>>,
    lookback_ms: i64,
    /// What `start()` and `end()` mean.
    start_ms: i64,
    end_ms: i64,
}

impl<'e> Query<'e> {
    fn new(
        options: &'e EngineOptions,
        source: &'e dyn Source,
        query_options: &'e QueryOptions,
        grant: &'e Grant,
        (start_ms, end_ms): (i64, i64),
    ) -> Query<'e> {
        Query {
            options,
            source,
            asked: query_options,
            grant,
            account: Account::new(options.max_samples, grant),
            annotations: RefCell::default(),
            label_sources: RefCell::default(),
            lookback_ms: query_options.lookback_ms.unwrap_or(options.lookback_ms),
            start_ms,
            end_ms,
        }
    }

    fn delayed_names(&self) -> bool {
        self.options.features.delayed_name_removal
    }

    fn check_interrupt(&self) -> Evaluation<()> {
        self.asked.interrupt.check()
    }

    /// Reserves memory that an operator needs while it works.
    fn scratch(&self, bytes: usize) -> Evaluation<Held> {
        let mut held = Held::new(&self.account);
        held.grow(bytes as u64)?;
        Ok(held)
    }

    /// The time an expression looks at, for each step: fixed by `@`, moved by `offset`.
    fn looked_at(&self, steps: Steps, at: Option<At>, offset_ms: i64) -> Vec<i64> {
        let fixed = at.map(|at| match at {
            At::Time(ms) => ms,
            At::Start => self.start_ms,
            At::End => self.end_ms,
        });
        steps.times().map(|time| fixed.unwrap_or(time).saturating_sub(offset_ms)).collect()
    }

    fn eval(&self, expr: &Expr, steps: Steps) -> Evaluation<Evaluated> {
        self.check_interrupt()?;
        match &expr.kind {
            ExprKind::Number(number) => Ok(Evaluated::Scalar(vec![number.value; steps.count])),
            ExprKind::String(text) => Ok(Evaluated::Text(text.to_string())),
            ExprKind::Selector(selector) => self.instant_selector(selector, steps).map(Evaluated::Vector),
            ExprKind::Paren(inner) => self.eval(inner, steps),
            ExprKind::Unary(unary) => self.unary(unary.negative, &unary.expr, steps),
            ExprKind::Binary(binary) => self.binary(binary, steps),
            ExprKind::Aggregate(aggregate) => self.aggregate(aggregate, steps).map(Evaluated::Vector),
            ExprKind::Call(call) => self.call(call, expr.span, steps),
            ExprKind::Range(_) | ExprKind::Subquery(_) => Err(type_mismatch(expr)),
        }
    }

    fn vector(&self, expr: &Expr, steps: Steps) -> Evaluation<Vectors> {
        match self.eval(expr, steps)? {
            Evaluated::Vector(vectors) => Ok(vectors),
            _ => Err(type_mismatch(expr)),
        }
    }

    fn scalar(&self, expr: &Expr, steps: Steps) -> Evaluation<Vec<f64>> {
        match self.eval(expr, steps)? {
            Evaluated::Scalar(values) => Ok(values),
            _ => Err(type_mismatch(expr)),
        }
    }

    fn text(&self, expr: &Expr, steps: Steps) -> Evaluation<String> {
        match self.eval(expr, steps)? {
            Evaluated::Text(text) => Ok(text),
            _ => Err(type_mismatch(expr)),
        }
    }

    fn unary(&self, negative: bool, expr: &Expr, steps: Steps) -> Evaluation<Evaluated> {
        let operand = self.eval(expr, steps)?;
        if !negative {
            return Ok(operand);
        }
        match operand {
            Evaluated::Scalar(mut values) => {
                for value in &mut values {
                    *value = -*value;
                }
                Ok(Evaluated::Scalar(values))
            }
            Evaluated::Vector(mut vectors) => {
                vectors.map(|value| -value);
                vectors.drop_names(self.delayed_names()).map(Evaluated::Vector)
            }
            Evaluated::Text(_) => Err(type_mismatch(expr)),
        }
    }

    fn finish(self, query: &str, value: Value) -> Evaluation<QueryOutput> {
        if let Some(failure) = self.label_sources.borrow().iter().find_map(|source| source.failure()) {
            return Err(failure.into());
        }
        let (warnings, infos) = self.annotations.into_inner().into_texts(query);
        let (samples, peak_samples) = (self.account.read(), self.account.peak());
        Ok(QueryOutput { value, warnings, infos, samples, peak_samples })
    }
}

/// The checker lets no such expression pass.
fn type_mismatch(expr: &Expr) -> QueryError {
    QueryError::Execution(format!("{} {expr} cannot stand here", expr.value_type().documented()))
}

pub(crate) fn instant(
    options: &EngineOptions,
    source: &dyn Source,
    query: &str,
    expr: &Expr,
    time_ms: i64,
    query_options: &QueryOptions,
    grant: &Grant,
) -> Evaluation<QueryOutput> {
    let running = Query::new(options, source, query_options, grant, (time_ms, time_ms));
    let steps = Steps { start_ms: time_ms, step_ms: 1, count: 1 };
    let value = match expr.value_type() {
        Type::Matrix => running.range_result(expr, steps)?,
        _ => running.instant_result(expr, steps)?,
    };
    running.finish(query, value)
}

pub(crate) fn range(
    options: &EngineOptions,
    source: &dyn Source,
    query: &str,
    expr: &Expr,
    (start_ms, end_ms, step_ms): (i64, i64, i64),
    query_options: &QueryOptions,
    grant: &Grant,
) -> Evaluation<QueryOutput> {
    if !matches!(expr.value_type(), Type::Scalar | Type::Vector) {
        return Err(QueryError::BadData(format!(
            "invalid expression type {} for range query, must be Scalar or instant Vector",
            crate::literal::quote(expr.value_type().documented())
        )));
    }
    if step_ms <= 0 || end_ms < start_ms {
        return crate::engine::range_points(start_ms, end_ms, step_ms)
            .and(Err(QueryError::BadData("range of times is empty".into())));
    }
    let running = Query::new(options, source, query_options, grant, (start_ms, end_ms));
    let count = end_ms.saturating_sub(start_ms) / step_ms + 1;
    if count as u64 > options.max_samples {
        return Err(QueryError::TooManySamples);
    }
    let steps = Steps { start_ms, step_ms, count: count as usize };
    let value = running.steps_result(expr, steps)?;
    running.finish(query, value)
}
