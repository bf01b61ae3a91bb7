//! `status/*`: what the engine is, was told, and has in force.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::State;
use metricsstore_contract::{DiskUsage, RuntimeInfo};
use metricsstore_model::Matcher;
use metricsstore_model::read::Source as _;
use metricsstore_storage::{ProgressState, Store};
use metricsstore_vfs::{Files as _, real::RealFiles};
use serde::Serialize;

use super::{Form, ready_store};
use crate::app::{App, Phase, now_ms, rfc3339};
use crate::block_json::MetaJson;
use crate::http::params::{MAX_TIME_MS, MIN_TIME_MS, Params};
use crate::http::reply::{ApiError, ErrorType, Reply, success};

/// What clients take this for: they switch on features by Prometheus' version. The build metadata after the plus
/// sign is ours, as semantic versioning has it.
pub const COMPATIBLE_VERSION: &str = concat!("3.16.0+metricsstore.", env!("CARGO_PKG_VERSION"));

/// `GET /api/v1/status/buildinfo`.
pub async fn build_info() -> Reply {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct BuildInfo {
        version: &'static str,
        revision: &'static str,
        branch: &'static str,
        build_user: &'static str,
        build_date: &'static str,
        go_version: &'static str,
    }
    success(&BuildInfo {
        version: COMPATIBLE_VERSION,
        revision: concat!("metricsstore-", env!("CARGO_PKG_VERSION")),
        branch: "",
        build_user: "",
        build_date: "",
        go_version: "",
    })
}

/// `GET /api/v1/status/config`.
pub async fn config(State(app): State<Arc<App>>) -> Reply {
    let yaml = app.config.lock().shown();
    success(&BTreeMap::from([("yaml", yaml)]))
}

/// `GET /api/v1/status/flags`.
pub async fn flags(State(app): State<Arc<App>>) -> Reply {
    success(&app.flags.iter().collect::<BTreeMap<_, _>>())
}

/// `GET /api/v1/status/runtimeinfo`.
pub async fn runtime_info(State(app): State<Arc<App>>) -> Reply {
    success(&runtime_info_of(&app))
}

/// What is in force now.
pub fn runtime_info_of(app: &App) -> RuntimeInfo {
    let stats = app.store().map(|store| store.stats()).unwrap_or_default();
    let budget_bytes = app.budget.limit();
    let used = app.memory.used();
    let space = RealFiles.space(&app.options.data_dir).ok();
    let config = app.config.lock();
    let runtime = app.runtime.lock();
    let tasks =
        tokio::runtime::Handle::try_current().map_or(0, |runtime| runtime.metrics().num_alive_tasks());
    RuntimeInfo {
        start_time: rfc3339(app.started_ms),
        cwd: std::env::current_dir().map_or_else(|_| String::new(), |dir| dir.display().to_string()),
        hostname: app.memory.hostname.clone(),
        server_time: rfc3339(now_ms()),
        reload_config_success: app.config_good.load(Relaxed),
        last_config_time: rfc3339(app.config_loaded_ms.load(Relaxed)),
        corruption_count: stats.quarantined,
        goroutine_count: tasks as u64,
        gomaxprocs: app.threads(),
        gomemlimit: i64::try_from(budget_bytes).unwrap_or(i64::MAX),
        gogc: String::new(),
        godebug: String::new(),
        storage_retention: app.retention(&config, &runtime.config).to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ready: app.phase() == Phase::Ready,
        memory_budget_bytes: budget_bytes,
        memory_limit_bytes: app.memory.limit(),
        memory_used_bytes: used,
        budget_used: used as f64 / budget_bytes.max(1) as f64,
        pressure: app.memory.level().name().to_owned(),
        read_only: stats.read_only.map(|reason| format!("{}: {}", reason.name(), reason.cure())),
        cpu_threads: app.threads(),
        series_count: stats.series,
        samples_appended: stats.samples_appended,
        refusals: app
            .refusals(&stats.refused)
            .into_iter()
            .map(|(reason, count)| (reason.to_owned(), count))
            .collect(),
        retention_bytes: stats.retention_bytes,
        disk: DiskUsage {
            data_bytes: stats.disk_bytes,
            used_bytes: space.map_or(0, |space| space.total.saturating_sub(space.available)),
            total_bytes: space.map_or(0, |space| space.total),
        },
        runtime_config: runtime.verdict.clone(),
        unknown_runtime_keys: runtime.unknown.clone(),
        config_files: config.verdicts().to_vec(),
    }
}

/// `GET /api/v1/status/walreplay`; served from the first moment.
pub async fn wal_replay(State(app): State<Arc<App>>) -> Reply {
    #[derive(Serialize)]
    struct WalReplay {
        min: u64,
        max: u64,
        current: u64,
        state: &'static str,
    }
    let (min, max, current) = app.progress.segments();
    let state = match app.progress.state() {
        ProgressState::Waiting => "waiting",
        ProgressState::InProgress => "in progress",
        ProgressState::Done => "done",
    };
    success(&WalReplay { min, max, current, state })
}

/// `GET /api/v1/status/tsdb/blocks`: what `meta.json` says of each block, in Prometheus' names.
pub async fn blocks(State(app): State<Arc<App>>) -> Reply {
    #[derive(Serialize)]
    struct Answer {
        blocks: Vec<MetaJson>,
    }
    match ready_store(&app) {
        Ok(store) => success(&Answer { blocks: store.blocks().iter().map(MetaJson::of).collect() }),
        Err(error) => error.into_reply(),
    }
}

/// Most values counted per label, and most series counted by name, for `status/tsdb`.
const MAX_COUNTED: usize = 200_000;

/// `GET /api/v1/status/tsdb`.
pub async fn tsdb(State(app): State<Arc<App>>, Form(params): Form) -> Reply {
    let prepared = top_limit(&params).and_then(|limit| Ok((limit, ready_store(&app)?)));
    let (limit, store) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return error.into_reply(),
    };
    let status = tokio::task::spawn_blocking(move || tsdb_status(&store, limit)).await;
    match status {
        Ok(Ok(status)) => success(&status),
        Ok(Err(error)) => ApiError::new(ErrorType::Internal, error.to_string()).into_reply(),
        Err(error) => ApiError::new(ErrorType::Internal, error.to_string()).into_reply(),
    }
}

fn top_limit(params: &Params) -> Result<usize, ApiError> {
    const MOST: usize = 10_000;
    let bad = |text: &str| ApiError::new(ErrorType::BadData, text);
    match params.get("limit") {
        "" => Ok(10),
        text => match text.parse::<usize>() {
            Ok(limit @ 1..=MOST) => Ok(limit),
            Ok(limit) if limit > MOST => Err(bad("limit must not exceed 10000")),
            _ => Err(bad("limit must be a positive number")),
        },
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TsdbStatus {
    head_stats: HeadStats,
    series_count_by_metric_name: Vec<Count>,
    label_value_count_by_label_name: Vec<Count>,
    memory_in_bytes_by_label_name: Vec<Count>,
    series_count_by_label_value_pair: Vec<Count>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HeadStats {
    num_series: u64,
    num_label_pairs: u64,
    chunk_count: u64,
    min_time: i64,
    max_time: i64,
}

#[derive(Serialize)]
struct Count {
    name: String,
    value: u64,
}

fn tsdb_status(store: &Store, limit: usize) -> Result<TsdbStatus, metricsstore_model::read::ReadError> {
    let stats = store.stats();
    let every: &[Vec<Matcher>] = &[];
    let (mut values, mut bytes, mut pairs) = (Vec::new(), Vec::new(), 0);
    for name in store.label_names(every, MIN_TIME_MS, MAX_TIME_MS, MAX_COUNTED)?.items {
        let found = store.label_values(&name, every, MIN_TIME_MS, MAX_TIME_MS, MAX_COUNTED)?.items;
        pairs += found.len() as u64;
        values.push(Count { name: name.clone(), value: found.len() as u64 });
        bytes.push(Count { name, value: found.iter().map(|value| value.len() as u64).sum() });
    }
    let (mut names, mut label_pairs) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
    // Counting by name reads every label set, so it is left out where that would take long.
    if stats.series <= MAX_COUNTED as u64 {
        for labels in store.series(every, MIN_TIME_MS, MAX_TIME_MS, MAX_COUNTED)?.items {
            *names.entry(labels.metric_name().to_owned()).or_default() += 1;
            for (name, value) in labels.iter() {
                *label_pairs.entry(format!("{name}={value}")).or_default() += 1;
            }
        }
    }
    let of_map =
        |map: BTreeMap<String, u64>| map.into_iter().map(|(name, value)| Count { name, value }).collect();
    Ok(TsdbStatus {
        head_stats: HeadStats {
            num_series: stats.series,
            num_label_pairs: pairs,
            chunk_count: stats.segment_count,
            min_time: stats.min_time_ms.unwrap_or(i64::MAX),
            max_time: stats.max_time_ms.unwrap_or(i64::MIN),
        },
        series_count_by_metric_name: top(of_map(names), limit),
        label_value_count_by_label_name: top(values, limit),
        memory_in_bytes_by_label_name: top(bytes, limit),
        series_count_by_label_value_pair: top(of_map(label_pairs), limit),
    })
}

/// The largest first.
fn top(mut counts: Vec<Count>, limit: usize) -> Vec<Count> {
    counts.sort_by(|a, b| b.value.cmp(&a.value).then_with(|| a.name.cmp(&b.name)));
    counts.truncate(limit);
    counts
}
