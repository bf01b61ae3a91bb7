//! `/metrics`: the engine about itself, under Prometheus' names where Prometheus has the metric.
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::State;
use axum::http::StatusCode;
use metricsstore_budget::Part;
use metricsstore_storage::{ReadOnly, StoreStats};
use metricsstore_vfs::{Files as _, real::RealFiles};

use super::status::COMPATIBLE_VERSION;
use crate::app::{App, Phase};
use crate::http::reply::{Reply, with_type};
use crate::memory::heap;
use crate::metrics::Page;

/// `GET /metrics`.
pub async fn page(State(app): State<Arc<App>>) -> Reply {
    let mut page = Page::default();
    let stats = app.store().map(|store| store.stats()).unwrap_or_default();
    build_and_config(&app, &mut page);
    memory(&app, &mut page);
    refusals(&app, &stats, &mut page);
    head(&stats, &mut page);
    disk(&app, &stats, &mut page);
    queries_and_writes(&app, &mut page);
    app.metrics.requests_page(&mut page);
    process(app.started_ms, &mut page);
    app.scraping.metrics(&mut page);
    with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page.into_text().into_bytes())
}

fn build_and_config(app: &App, page: &mut Page) {
    page.family("prometheus_build_info", "gauge", "What clients take this for.");
    page.sample("", &[("version", COMPATIBLE_VERSION), ("branch", ""), ("revision", "")], 1.0);
    page.family("metricsstore_build_info", "gauge", "The engine's version.");
    page.sample("", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    page.gauge("prometheus_ready", "Whether replay is done.", f64::from(app.phase() == Phase::Ready));
    let good = f64::from(app.config_good.load(Relaxed));
    page.gauge(
        "prometheus_config_last_reload_successful",
        "Whether the last configuration reload attempt was successful.",
        good,
    );
    page.gauge(
        "prometheus_config_last_reload_success_timestamp_seconds",
        "Timestamp of the last successful configuration reload.",
        app.config_loaded_ms.load(Relaxed) as f64 / 1000.0,
    );
    page.counter(
        "metricsstore_config_reload_failures_total",
        "Reloads that failed and left the last good configuration in force.",
        app.metrics.reload_failures.get(),
    );
    let runtime = app.runtime.lock();
    let runtime_good = runtime.verdict.as_ref().is_none_or(|verdict| verdict.error.is_none());
    page.gauge(
        "metricsstore_runtime_config_last_reload_successful",
        "Whether engine.yaml as it is now on disk is in force.",
        f64::from(runtime_good),
    );
    page.gauge(
        "metricsstore_runtime_config_unknown_keys",
        "Keys of engine.yaml that this engine does not know.",
        runtime.unknown.len() as f64,
    );
}

fn memory(app: &App, page: &mut Page) {
    page.family("metricsstore_memory_bytes", "gauge", "Counted bytes by what they are used for.");
    for part in Part::ALL {
        page.sample("", &[("part", part.name())], app.budget.part(part) as f64);
    }
    page.gauge(
        "metricsstore_memory_uncounted_bytes",
        "What is used beyond the counted bytes: stacks, the allocator's slack, the kernel's share.",
        app.memory.used().saturating_sub(app.budget.counted()) as f64,
    );
    page.gauge("metricsstore_memory_budget_bytes", "The memory budget in force.", app.budget.limit() as f64);
    page.gauge(
        "metricsstore_memory_used_bytes",
        "Memory that counts against the budget.",
        app.memory.used() as f64,
    );
    if let Some(limit) = app.memory.limit() {
        page.gauge("metricsstore_memory_limit_bytes", "The live limit of the control group.", limit as f64);
    }
    let heap = heap();
    page.family("metricsstore_heap_bytes", "gauge", "The allocator's own figures.");
    for (kind, bytes) in [("allocated", heap.allocated), ("active", heap.active), ("resident", heap.resident)]
    {
        page.sample("", &[("kind", kind)], bytes as f64);
    }
    page.gauge(
        "metricsstore_memory_pressure_level",
        "0 normal, 1 shrink, 2 seal early, 3 refuse heavy queries, 4 refuse new series, 5 refuse writes.",
        f64::from(app.memory.level() as u8),
    );
    page.family("metricsstore_memory_pressure", "gauge", "1 for the level in force.");
    page.sample("", &[("level", app.memory.level().name())], 1.0);
    page.counter(
        "metricsstore_memory_pressure_changes_total",
        "Changes of the level of memory pressure.",
        app.metrics.pressure_changes.get(),
    );
    page.gauge("metricsstore_cpu_threads", "Threads in force.", f64::from(app.threads()));
}

fn refusals(app: &App, stats: &StoreStats, page: &mut Page) {
    page.family("metricsstore_refused_total", "counter", "Samples, series and requests refused, by reason.");
    for (reason, count) in app.refusals(&stats.refused) {
        page.sample("", &[("reason", reason)], count as f64);
    }
}

fn head(stats: &StoreStats, page: &mut Page) {
    page.gauge("prometheus_tsdb_head_series", "Series in the store.", stats.series as f64);
    page.counter("prometheus_tsdb_head_series_created_total", "Series created.", stats.series_created);
    page.counter("prometheus_tsdb_head_series_removed_total", "Series removed.", stats.series_removed);
    page.family("prometheus_tsdb_head_samples_appended_total", "counter", "Samples appended.");
    page.sample("", &[("type", "float")], stats.samples_appended as f64);
    let times = [
        ("prometheus_tsdb_lowest_timestamp_seconds", "Oldest sample.", stats.min_time_ms),
        ("prometheus_tsdb_head_min_time_seconds", "Oldest sample in memory.", stats.head_min_time_ms),
        ("prometheus_tsdb_head_max_time_seconds", "Newest sample.", stats.max_time_ms),
    ];
    for (name, help, time_ms) in times {
        if let Some(time_ms) = time_ms {
            page.gauge(name, help, time_ms as f64 / 1000.0);
        }
    }
    for (name, help, count) in [
        (
            "prometheus_tsdb_out_of_order_samples_total",
            "Samples refused as out of order.",
            stats.refused.out_of_order,
        ),
        (
            "prometheus_tsdb_out_of_bound_samples_total",
            "Samples refused as out of bounds.",
            stats.refused.out_of_bounds + stats.refused.too_far_in_future,
        ),
        (
            "prometheus_tsdb_too_old_samples_total",
            "Samples refused as older than the out-of-order window.",
            stats.refused.too_old,
        ),
        (
            "prometheus_tsdb_head_out_of_order_samples_appended_total",
            "Samples accepted out of order.",
            stats.late_samples,
        ),
    ] {
        page.family(name, "counter", help);
        page.sample("", &[("type", "float")], count as f64);
    }
    page.gauge("metricsstore_timestamp_streams", "Timestamp streams in memory.", stats.streams as f64);
    page.gauge(
        "metricsstore_private_timestamp_streams",
        "Timestamp streams that one series has for itself.",
        stats.private_streams as f64,
    );
    page.gauge("metricsstore_head_samples", "Samples that are not sealed yet.", stats.head_samples as f64);
}

fn disk(app: &App, stats: &StoreStats, page: &mut Page) {
    page.gauge("prometheus_tsdb_wal_storage_size_bytes", "Bytes of the log.", stats.wal_bytes as f64);
    page.gauge(
        "prometheus_tsdb_storage_blocks_bytes",
        "Bytes of blocks and of sealed segments that will be in blocks.",
        (stats.block_bytes + stats.segment_bytes) as f64,
    );
    page.gauge("prometheus_tsdb_blocks_loaded", "Live blocks.", stats.block_count as f64);
    page.gauge("metricsstore_block_bytes", "Bytes of live blocks.", stats.block_bytes as f64);
    retention(app, stats, page);
    snapshots(stats, page);
    page.counter("prometheus_tsdb_wal_corruptions_total", "Damaged pieces set aside.", stats.quarantined);
    if let Some(time) = app.replay_time.get() {
        page.gauge(
            "prometheus_tsdb_data_replay_duration_seconds",
            "Time the start took to load and to replay what is on disk.",
            time.as_secs_f64(),
        );
    }
    page.gauge("metricsstore_wal_segments", "Files of the log.", stats.wal_segments as f64);
    page.counter("metricsstore_wal_syncs_total", "Syncs of the log.", stats.wal_syncs);
    page.gauge("metricsstore_segments", "Live sealed segments.", stats.segment_count as f64);
    page.counter("metricsstore_seals_total", "Times the head was sealed.", stats.seals);
    page.counter("metricsstore_merges_total", "Merges of segments.", stats.merges);
    page.gauge(
        "metricsstore_unclean_start",
        "Whether the last process was killed before it had shut down.",
        f64::from(stats.unclean_start),
    );
    page.family("metricsstore_read_only", "gauge", "Whether writes are refused, and why.");
    for reason in ReadOnly::ALL {
        let in_force = f64::from(stats.read_only == Some(reason));
        page.sample("", &[("reason", reason.name())], in_force);
    }
    page.counter(
        "metricsstore_read_only_entered_total",
        "Times that writes began to be refused.",
        stats.read_only_entered,
    );
    page.gauge(
        "metricsstore_disk_level",
        "0 normal, 1 tight (merging waits, the head is sealed early), 2 read only.",
        f64::from(stats.disk_level as u8),
    );
    page.gauge(
        "metricsstore_disk_reserve_bytes",
        "Space kept back for a full volume; 0 while it is given up.",
        stats.reserve_bytes as f64,
    );
    page.counter(
        "metricsstore_page_cache_hits_total",
        "Pages of blocks that were asked for and were in memory.",
        stats.page_cache_hits,
    );
    page.counter(
        "metricsstore_page_cache_misses_total",
        "Pages of blocks that had to be read from disk.",
        stats.page_cache_misses,
    );
    page.gauge("metricsstore_disk_bytes", "Everything in the data directory.", stats.disk_bytes as f64);
    if let Ok(space) = RealFiles.space(&app.options.data_dir) {
        page.gauge("metricsstore_disk_total_bytes", "Size of the data's file system.", space.total as f64);
        page.gauge("metricsstore_disk_available_bytes", "What may still be written.", space.available as f64);
    }
}

fn retention(app: &App, stats: &StoreStats, page: &mut Page) {
    let config = app.config.lock();
    let time_ms = app.retention(&config, &app.runtime.lock().config).time_ms;
    page.gauge(
        "prometheus_tsdb_retention_limit_seconds",
        "How long samples are kept; 0 for ever.",
        time_ms.unwrap_or(0) as f64 / 1000.0,
    );
    page.gauge(
        "prometheus_tsdb_retention_limit_bytes",
        "What everything in the data directory may take; 0 without a bound.",
        stats.retention_bytes.unwrap_or(0) as f64,
    );
}

fn snapshots(stats: &StoreStats, page: &mut Page) {
    page.gauge("metricsstore_snapshots", "Snapshots that there are.", stats.snapshots as f64);
    page.gauge(
        "metricsstore_snapshot_bytes",
        "Bytes on disk that only snapshots hold.",
        stats.snapshot_bytes as f64,
    );
    page.counter("metricsstore_snapshots_made_total", "Snapshots made.", stats.snapshots_made);
    page.counter(
        "metricsstore_snapshots_expired_total",
        "Snapshots removed because their time was over.",
        stats.snapshots_expired,
    );
    page.counter(
        "metricsstore_snapshot_failures_total",
        "Snapshots that could not be made.",
        stats.snapshot_failures,
    );
    if let Some(newest_ms) = stats.newest_snapshot_ms {
        page.gauge(
            "metricsstore_snapshot_newest_timestamp_seconds",
            "When the newest snapshot was made.",
            newest_ms as f64 / 1000.0,
        );
    }
}

fn queries_and_writes(app: &App, page: &mut Page) {
    let metrics = &app.metrics;
    page.gauge(
        "prometheus_engine_queries",
        "Queries that run now.",
        metrics.queries_running.load(Relaxed) as f64,
    );
    page.gauge(
        "prometheus_engine_queries_concurrent_max",
        "Queries that may run at once.",
        app.options.query_concurrency as f64,
    );
    page.counter(
        "prometheus_engine_query_samples_total",
        "Samples read by queries.",
        metrics.query_samples.get(),
    );
    page.family("prometheus_engine_query_duration_seconds", "summary", "Time queries took.");
    page.sample("_sum", &[("slice", "inner_eval")], metrics.query_micros.get() as f64 / 1e6);
    page.sample("_count", &[("slice", "inner_eval")], metrics.queries.get() as f64);
    page.counter(
        "metricsstore_remote_write_requests_total",
        "Remote-write requests that were written.",
        metrics.write_requests.get(),
    );
}

fn process(started_ms: i64, page: &mut Page) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command in parentheses may hold spaces; the fields after it are numbered from 3.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let field =
        |number: usize| fields.get(number - 3).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
    let cpu_seconds = (field(14) + field(15)) / ticks;
    page.single("process_cpu_seconds_total", "counter", "User and system CPU time spent.", cpu_seconds);
    page.gauge("process_start_time_seconds", "Start time since the epoch.", started_ms as f64 / 1000.0);
    page.gauge("process_virtual_memory_bytes", "Virtual memory size.", field(23));
    let page_bytes = rustix::param::page_size() as f64;
    page.gauge("process_resident_memory_bytes", "Resident memory size.", field(24) * page_bytes);
    page.gauge("process_num_threads", "Threads of the process.", field(20));
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    page.gauge("process_open_fds", "Open file descriptors.", open as f64);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    page.gauge(
        "process_max_fds",
        "Most open file descriptors.",
        limit.map_or(f64::INFINITY, |most| most as f64),
    );
}
