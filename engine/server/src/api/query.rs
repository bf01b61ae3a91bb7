//! `query`, `query_range` and `format_query`.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::extract::State;
use metricsstore_budget::{Grant, Level, Part};
use metricsstore_promql::{Interrupt, QueryError, QueryOptions, QueryOutput};
use metricsstore_storage::Store;

use super::result::{estimate_bytes, push_result, series_count};
use super::{Form, TRUNCATED, ready_store};
use crate::app::{App, now_ms};
use crate::http::params::Params;
use crate::http::reply::{ApiError, Envelope, ErrorType, Reply};
use crate::number::push_float;

/// One query may use this part of the budget, but never less than [`MIN_GRANT_BYTES`].
const GRANT_SHARE: u64 = 4;
const MIN_GRANT_BYTES: u64 = 16 << 20;
/// How long a heavy query waits for memory pressure to fall before it is refused.
const PRESSURE_WAIT: Duration = Duration::from_secs(5);
const PRESSURE_POLL: Duration = Duration::from_millis(100);

/// `GET` and `POST /api/v1/query`.
pub async fn instant(State(app): State<Arc<App>>, Form(params): Form) -> Reply {
    answer(instant_inner(&app, params).await)
}

/// `GET` and `POST /api/v1/query_range`.
pub async fn range(State(app): State<Arc<App>>, Form(params): Form) -> Reply {
    answer(range_inner(&app, params).await)
}

/// `GET` and `POST /api/v1/format_query`.
pub async fn format(State(app): State<Arc<App>>, Form(params): Form) -> Reply {
    let parsed = app.engine.read().parse(params.get("query"));
    answer(parsed.map_err(ApiError::from).map(|expr| crate::http::reply::success(&expr.to_string())))
}

fn answer(result: Result<Reply, ApiError>) -> Reply {
    result.unwrap_or_else(ApiError::into_reply)
}

async fn instant_inner(app: &Arc<App>, params: Params) -> Result<Reply, ApiError> {
    let common = Common::read(app, &params)?;
    let time_ms = params.time_or("time", now_ms())?;
    let query = params.get("query").to_owned();
    run(app, common, Weight::Light, move |app, store, options, grant| {
        let engine = app.engine.read().clone();
        engine.instant(store.as_ref(), &query, time_ms, options, grant)
    })
    .await
}

async fn range_inner(app: &Arc<App>, params: Params) -> Result<Reply, ApiError> {
    let limit = params.limit()?;
    let start_ms = params.time("start")?;
    let end_ms = params.time("end")?;
    if end_ms < start_ms {
        return Err(ApiError::invalid("end", "end timestamp must not be before start time"));
    }
    let step_ms = crate::http::params::parse_duration(params.get("step"))
        .map_err(|error| ApiError::invalid("step", &error))?;
    if step_ms <= 0 {
        return Err(ApiError::invalid(
            "step",
            "zero or negative query resolution step widths are not accepted. Try a positive integer",
        ));
    }
    metricsstore_promql::range_points(start_ms, end_ms, step_ms)
        .map_err(|error| ApiError::new(ErrorType::BadData, error.to_string()))?;
    let common = Common { limit, ..Common::read(app, &params)? };
    let query = params.get("query").to_owned();
    run(app, common, Weight::Heavy, move |app, store, options, grant| {
        let engine = app.engine.read().clone();
        engine.range(store.as_ref(), &query, start_ms, end_ms, step_ms, options, grant)
    })
    .await
}

/// Parameters that both kinds of query share.
struct Common {
    limit: Option<usize>,
    timeout: Duration,
    lookback_ms: Option<i64>,
    stats: String,
}

impl Common {
    fn read(app: &App, params: &Params) -> Result<Common, ApiError> {
        let limit = params.limit()?;
        let timeout = params.duration("timeout").map_err(|error| ApiError::invalid("timeout", &error))?;
        let timeout = match timeout {
            None => app.options.query_timeout,
            Some(ms @ 1..) => Duration::from_millis(ms as u64).min(app.options.query_timeout),
            Some(ms) => {
                let text = format!("timeout must be positive, got {}s", ms / 1000);
                return Err(ApiError::invalid("timeout", &text));
            }
        };
        let lookback_ms = params.duration("lookback_delta").map_err(|error| {
            ApiError::new(ErrorType::BadData, format!("error parsing lookback delta duration: {error}"))
        })?;
        let lookback_ms = lookback_ms.filter(|ms| *ms > 0);
        Ok(Common { limit, timeout, lookback_ms, stats: params.get("stats").to_owned() })
    }
}

/// Whether a query may be refused under memory pressure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weight {
    Light,
    Heavy,
}

/// Sets the flag when dropped: the client went away, or the answer is out and nobody looks at it any more.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Counts a running query, also when it panics.
struct Running<'a>(&'a AtomicU64);

impl<'a> Running<'a> {
    fn new(count: &'a AtomicU64) -> Running<'a> {
        count.fetch_add(1, Relaxed);
        Running(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

async fn run<F>(app: &Arc<App>, common: Common, weight: Weight, evaluate: F) -> Result<Reply, ApiError>
where
    F: FnOnce(&App, &Arc<Store>, &QueryOptions, &Grant) -> Result<QueryOutput, QueryError> + Send + 'static,
{
    let store = ready_store(app)?;
    let queued = Instant::now();
    let deadline = queued + common.timeout;
    wait_for_memory(app, weight, deadline).await?;
    let slots = app.query_slots.clone().acquire_owned();
    let Ok(Ok(slot)) = tokio::time::timeout_at(deadline.into(), slots).await else {
        app.metrics.queries_refused.inc();
        return Err(ApiError::new(ErrorType::Timeout, "query timed out in query queue"));
    };
    let cancelled = Arc::new(AtomicBool::new(false));
    let _cancel = CancelOnDrop(cancelled.clone());
    let options = QueryOptions {
        lookback_ms: common.lookback_ms,
        interrupt: Interrupt { cancelled, deadline: Some(deadline) },
    };
    let app = app.clone();
    let waited = queued.elapsed();
    let task = tokio::task::spawn_blocking(move || {
        let _slot = slot;
        let _running = Running::new(&app.metrics.queries_running);
        let started = Instant::now();
        let grant = query_grant(&app);
        let result = evaluate(&app, &store, &options, &grant);
        app.metrics.queries.inc();
        app.metrics.query_micros.add(started.elapsed().as_micros() as u64);
        let output = result?;
        app.metrics.query_samples.add(output.samples);
        write_answer(&common, &output, &grant, waited, started.elapsed())
    });
    task.await.map_err(|error| ApiError::new(ErrorType::Internal, format!("the query failed: {error}")))?
}

/// Bytes that one query may use: less when less is free, so that the largest is what fails under pressure.
fn query_grant(app: &App) -> Grant {
    let budget = app.budget.limit();
    let half_of_free = budget.saturating_sub(app.memory.used()) / 2;
    let limit = (budget / GRANT_SHARE).min(half_of_free).max(MIN_GRANT_BYTES);
    app.budget.grant(Part::Query, limit)
}

/// A heavy query waits a little for pressure to fall, then is refused.
async fn wait_for_memory(app: &App, weight: Weight, deadline: Instant) -> Result<(), ApiError> {
    let until = (Instant::now() + PRESSURE_WAIT).min(deadline);
    while weight == Weight::Heavy && app.memory.level() >= Level::RefuseQueries {
        if Instant::now() >= until {
            app.metrics.queries_refused.inc();
            return Err(ApiError::new(
                ErrorType::Overloaded,
                app.memory.busy_text("range queries", 88, app.budget.limit()),
            ));
        }
        tokio::time::sleep(PRESSURE_POLL).await;
    }
    Ok(())
}

fn write_answer(
    common: &Common,
    output: &QueryOutput,
    grant: &Grant,
    waited: Duration,
    took: Duration,
) -> Result<Reply, ApiError> {
    grant.reserve(estimate_bytes(&output.value) as u64).map_err(QueryError::from)?;
    let limit = common.limit.unwrap_or(usize::MAX);
    let mut warnings = output.warnings.clone();
    if series_count(&output.value).is_some_and(|series| series > limit) {
        warnings.push(TRUNCATED.to_owned());
    }
    if !matches!(common.stats.as_str(), "" | "true" | "all") {
        warnings.push(format!(
            "value {:?} for parameter \"stats\" is deprecated and will be rejected in the next major release, \
             use \"true\" or \"all\"",
            common.stats
        ));
    }
    let mut envelope = Envelope::start();
    envelope.out.push(b'{');
    push_result(&mut envelope.out, &output.value, limit);
    if !common.stats.is_empty() {
        push_stats(&mut envelope.out, output, waited.as_secs_f64(), took.as_secs_f64());
    }
    envelope.out.push(b'}');
    Ok(envelope.finish(&warnings, &output.infos))
}

fn push_stats(out: &mut Vec<u8>, output: &QueryOutput, waited: f64, took: f64) {
    let timings = [
        ("evalTotalTime", took),
        ("resultSortTime", 0.0),
        ("queryPreparationTime", 0.0),
        ("innerEvalTime", took),
        ("execQueueTime", waited),
        ("execTotalTime", waited + took),
    ];
    out.extend_from_slice(b",\"stats\":{\"timings\":{");
    for (index, (name, seconds)) in timings.into_iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        out.extend_from_slice(format!("{comma}\"{name}\":").as_bytes());
        push_float(out, seconds);
    }
    let samples = format!(
        "}},\"samples\":{{\"totalQueryableSamples\":{},\"peakSamples\":{}}}}}",
        output.samples, output.peak_samples
    );
    out.extend_from_slice(samples.as_bytes());
}
