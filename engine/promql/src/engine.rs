//! The engine: options, and the two ways to evaluate a query.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use metricsstore_budget::Grant;
use metricsstore_model::read::Source;

use crate::ast::Expr;
use crate::error::QueryError;
use crate::value::Value;

/// Most points per series that a range query may ask for.
pub const MAX_RANGE_POINTS: i64 = 11_000;

/// Parts of the language behind `--enable-feature`, named as Prometheus names them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub struct Features {
    /// `promql-experimental-functions`
    pub experimental_functions: bool,
    /// `promql-delayed-name-removal`
    pub delayed_name_removal: bool,
    /// `promql-unquoted-utf8-names`
    pub unquoted_utf8_names: bool,
    /// `promql-binop-fill-modifiers`
    pub binop_fill_modifiers: bool,
    /// `promql-extended-range-selectors`
    pub extended_range_selectors: bool,
    /// `type-and-unit-labels`
    pub type_and_unit_labels: bool,
}

/// What holds for every query.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// `--query.lookback-delta` in milliseconds.
    pub lookback_ms: i64,
    /// `--query.max-samples`: samples that one query may hold at once.
    pub max_samples: u64,
    /// Step of subqueries that name none: the global evaluation interval, in milliseconds.
    pub default_step_ms: i64,
    /// Parts of the language that are on.
    pub features: Features,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            lookback_ms: 300_000,
            max_samples: 50_000_000,
            default_step_ms: 60_000,
            features: Features::default(),
        }
    }
}

/// Ends a running query; checked once per batch of series.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    /// Set by the caller when nobody waits for the answer any more.
    pub cancelled: Arc<AtomicBool>,
    /// `--query.timeout` counted from the query's start.
    pub deadline: Option<Instant>,
}

impl Interrupt {
    pub(crate) fn check(&self) -> Result<(), QueryError> {
        if self.cancelled.load(Relaxed) {
            return Err(QueryError::Canceled);
        }
        match self.deadline {
            Some(deadline) if Instant::now() > deadline => Err(QueryError::Timeout),
            _ => Ok(()),
        }
    }
}

/// What holds for one query.
#[derive(Debug, Clone, Default)]
pub struct QueryOptions {
    /// The parameter `lookback_delta` in milliseconds.
    pub lookback_ms: Option<i64>,
    /// Cancellation and timeout.
    pub interrupt: Interrupt,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct QueryOutput {
    /// The result.
    pub value: Value,
    /// `PromQL warning: …`, each with its position, at most ten and a line that counts the rest.
    pub warnings: Vec<String>,
    /// `PromQL info: …`, likewise.
    pub infos: Vec<String>,
    /// Samples that the query read, summed over its steps.
    pub samples: u64,
    /// Most samples held at once.
    pub peak_samples: u64,
}

/// Points per series of a range query, when it makes sense.
pub fn range_points(start_ms: i64, end_ms: i64, step_ms: i64) -> Result<i64, QueryError> {
    if end_ms < start_ms {
        return Err(QueryError::BadData("end timestamp must not be before start time".into()));
    }
    if step_ms <= 0 {
        return Err(QueryError::BadData(
            "zero or negative query resolution step widths are not accepted. Try a positive integer".into(),
        ));
    }
    let points = (end_ms.saturating_sub(start_ms)) / step_ms;
    if points > MAX_RANGE_POINTS {
        return Err(QueryError::BadData(
            "exceeded maximum resolution of 11,000 points per timeseries. \
             Try decreasing the query resolution (?step=XX)"
                .into(),
        ));
    }
    Ok(points + 1)
}

/// Evaluates queries. Cheap to share: holds options only.
#[derive(Debug, Clone)]
pub struct Engine {
    options: EngineOptions,
}

impl Engine {
    /// An engine.
    pub fn new(options: EngineOptions) -> Engine {
        Engine { options }
    }

    /// The options in force.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Parses and checks a query with the engine's features.
    pub fn parse(&self, query: &str) -> Result<Expr, QueryError> {
        Ok(crate::parser::parse_with(query, self.options.features)?)
    }

    /// Evaluates at one time.
    pub fn instant(
        &self,
        source: &dyn Source,
        query: &str,
        time_ms: i64,
        options: &QueryOptions,
        grant: &Grant,
    ) -> Result<QueryOutput, QueryError> {
        let expr = self.parse(query)?;
        crate::eval::instant(&self.options, source, query, &expr, time_ms, options, grant)
    }

    /// Evaluates at `start_ms`, `start_ms + step_ms`, … up to `end_ms`; always gives a [`Value::Matrix`].
    #[expect(clippy::too_many_arguments, reason = "start, end and step are the parameters of the HTTP API")]
    pub fn range(
        &self,
        source: &dyn Source,
        query: &str,
        start_ms: i64,
        end_ms: i64,
        step_ms: i64,
        options: &QueryOptions,
        grant: &Grant,
    ) -> Result<QueryOutput, QueryError> {
        let expr = self.parse(query)?;
        crate::eval::range(&self.options, source, query, &expr, (start_ms, end_ms, step_ms), options, grant)
    }
}
