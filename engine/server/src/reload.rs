//! Reloads: of Prometheus' configuration and of `engine.yaml`, by request, by signal and when contents change.
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use metricsstore_contract::EngineConfig;
use metricsstore_promql::Engine;
use metricsstore_storage::RefusedCounts;

use crate::app::{App, now_ms};
use crate::config::load::InForce;

/// How often files are looked at; a `ConfigMap` is swapped by links, which no file event tells reliably.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

impl App {
    /// How many exemplars are kept: none without `--enable-feature=exemplar-storage`.
    pub fn max_exemplars(&self, config: &InForce) -> usize {
        let is_on = self.options.features.iter().any(|name| name == "exemplar-storage");
        if is_on { config.max_exemplars() } else { 0 }
    }

    /// Refusals since the start, by reason: the store's and the server's own.
    pub fn refusals(&self, refused: &RefusedCounts) -> Vec<(&'static str, u64)> {
        vec![
            ("out_of_order", refused.out_of_order),
            ("duplicate_timestamp", refused.duplicate_timestamp),
            ("out_of_bounds", refused.out_of_bounds),
            ("too_old", refused.too_old),
            ("too_far_in_future", refused.too_far_in_future),
            ("labels", refused.labels),
            ("new_series", refused.series_budget),
            ("histogram", refused.histogram),
            ("exemplar", refused.exemplar),
            ("busy", refused.busy_requests + self.metrics.write_busy.get()),
            ("log_failure", refused.log_failures),
            ("undecodable", self.metrics.write_undecodable.get()),
            ("wrong_host", self.metrics.write_wrong_host.get()),
            ("queries", self.metrics.queries_refused.get()),
        ]
    }
}

/// Reads all configuration again. The error says what is not in force.
pub fn reload(app: &App) -> Result<(), String> {
    reload_runtime(app);
    reload_config(app)
}

fn reload_config(app: &App) -> Result<(), String> {
    let Some(path) = &app.options.config_file else { return Ok(()) };
    let mut config = app.config.lock();
    let jobs_before = config.jobs().len();
    config.reload(path);
    let error = config.error();
    app.config_good.store(error.is_none(), Relaxed);
    if let Some(main) = config.config() {
        let step_ms = main.global.evaluation_interval.ms();
        let mut engine = app.engine.write();
        if engine.options().default_step_ms != step_ms {
            let options =
                metricsstore_promql::EngineOptions { default_step_ms: step_ms, ..engine.options().clone() };
            *engine = Engine::new(options);
        }
    }
    if let Some(store) = app.store() {
        store.set_out_of_order_window_ms(config.out_of_order_window_ms());
        store.set_max_exemplars(app.max_exemplars(&config));
        app.retention(&config, &app.runtime.lock().config).apply(store);
    }
    let jobs = config.jobs();
    if jobs.is_empty() && jobs_before > 0 {
        tracing::warn!(jobs_before, "the configuration has no scrape jobs any more: all targets are dropped");
    }
    app.scraping.apply(jobs);
    match error {
        None => {
            app.config_loaded_ms.store(now_ms(), Relaxed);
            tracing::info!(file = %path.display(), "configuration is in force");
            Ok(())
        }
        Some(error) => {
            app.metrics.reload_failures.inc();
            tracing::error!(%error, "configuration is not in force as it is on disk; the last good one stays");
            Err(error)
        }
    }
}

fn reload_runtime(app: &App) {
    let Some(path) = &app.options.runtime_file else { return };
    // In this order, as everywhere.
    let config = app.config.lock();
    let mut runtime = app.runtime.lock();
    if !runtime.reload(path) {
        return;
    }
    if let Some(error) = runtime.verdict.as_ref().and_then(|verdict| verdict.error.as_ref()) {
        tracing::error!(%error, "engine.yaml is not in force as it is on disk; the last good one stays");
        return;
    }
    for key in &runtime.unknown {
        tracing::warn!(key, "engine.yaml has a key that this engine does not know");
    }
    app.budget.set_limit(app.memory.budget_bytes(&runtime.config));
    let retention = app.retention(&config, &runtime.config);
    if let Some(store) = app.store() {
        retention.apply(store);
    }
    // Threads and shards are made at the start: another number waits for the next one, and the present is reported.
    tracing::info!(
        budget_bytes = app.budget.limit(),
        %retention,
        "engine.yaml is in force"
    );
}

/// Threads that `engine.yaml`, the flag or the CPU limit give.
pub fn threads_of(
    flag: Option<u32>,
    runtime: &EngineConfig,
    (cpu_limit, machine): (Option<metricsstore_contract::Quantity>, u32),
) -> u32 {
    match &runtime.threads {
        Some(threads) => threads.on(machine),
        None => metricsstore_contract::ThreadRule::new(flag, cpu_limit, None).on(machine),
    }
}

/// Reloads whenever the contents of the files change, until the task is dropped.
pub async fn watch(app: Arc<App>) {
    let mut last = fingerprint(&app).await;
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        let now = fingerprint(&app).await;
        let changed = now != last;
        last = now;
        let app = app.clone();
        // What went wrong is logged, counted and shown in the runtime info.
        let _ = tokio::task::spawn_blocking(move || {
            reload_runtime(&app);
            if changed {
                let _ = reload_config(&app);
            }
        })
        .await;
    }
}

async fn fingerprint(app: &Arc<App>) -> String {
    let app = app.clone();
    let task = tokio::task::spawn_blocking(move || match &app.options.config_file {
        Some(path) => app.config.lock().fingerprint(path),
        None => String::new(),
    });
    task.await.unwrap_or_default()
}
