//! `metricsstore serve`: start, run, end.
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metricsstore_budget::Budget;
use metricsstore_storage::{Store, StoreOptions};
use metricsstore_vfs::real::{RealClock, RealFiles};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::router;
use crate::app::{App, Phase, Start};
use crate::background::{self, Worker};
use crate::config::Config;
use crate::config::load::InForce;
use crate::features;
use crate::flags::Flags;
use crate::http::listener;
use crate::log;
use crate::memory::{Memory, share_arenas, tune_allocator};
use crate::options::Options;
use crate::reload;
use crate::runtime_file::RuntimeFile;
use crate::scraping::Scraping;
use crate::suggest;

/// After SIGTERM requests are still answered for so long, as clients learn late that the pod is not ready.
const DRAIN: Duration = Duration::from_secs(5);
/// And then running requests have so long to end.
const GRACE: Duration = Duration::from_secs(6);
/// Scrapes have so long to finish what they write.
const SCRAPES_END: Duration = Duration::from_millis(500);
/// From the end of serving to the end of the process.
const END: Duration = Duration::from_millis(9500);

/// Runs until the end is asked for. Errors are one sentence on standard error.
pub fn run(flags: &Flags) -> ExitCode {
    let options = match Options::from_flags(flags) {
        Ok(options) => options,
        Err(error) => return fail(&error.to_string()),
    };
    log::start(options.log_level, options.log_json);
    match start(options, flags.clone()) {
        Ok(code) => code,
        Err(message) => fail(&message),
    }
}

/// Prints why nothing runs.
pub fn fail(message: &str) -> ExitCode {
    eprintln!("metricsstore: {message}");
    ExitCode::FAILURE
}

fn start(options: Options, flags: Flags) -> Result<ExitCode, String> {
    tune_allocator();
    warn_of_flags(&flags);
    warn_of_features(&options);
    let memory = Memory::new(options.budget);
    let mut runtime = RuntimeFile::none();
    if let Some(path) = &options.runtime_file {
        runtime.reload(path);
        if let Some(error) = runtime.verdict.as_ref().and_then(|verdict| verdict.error.as_ref()) {
            tracing::error!(%error, "engine.yaml is not in force; flags and defaults hold");
        }
    }
    let config = first_config(&options)?;
    let threads = reload::threads_of(options.threads, &runtime.config, memory.cpus());
    let budget = Budget::new(memory.budget_bytes(&runtime.config));
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        budget_bytes = budget.limit(),
        limit_bytes = memory.limit(),
        threads,
        "starting"
    );
    // Queries and writes run on blocking threads, bounded by their own slots; a few more do file work.
    let blocking = options.query_concurrency + threads as usize * 4 + 8;
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads as usize)
        .max_blocking_threads(blocking)
        .on_thread_start(move || share_arenas(threads))
        .thread_keep_alive(Duration::from_secs(10))
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start threads: {error}"))?;
    let process_key = RandomState::new().build_hasher().finish();
    let start =
        Start { budget, memory, config, runtime, threads, scraping: Scraping::default(), process_key };
    let app = Arc::new(App::new(options, flags, start));
    let code = tokio.block_on(serve(&app));
    // What still runs has had its time.
    tokio.shutdown_timeout(Duration::from_millis(100));
    code
}

/// Flags that are taken so that a command line for Prometheus works, and do nothing in this version.
const WITHOUT_EFFECT: [&str; 1] = ["web.enable-otlp-receiver"];

fn warn_of_flags(flags: &Flags) {
    for flag in WITHOUT_EFFECT.iter().filter(|flag| flags.is_on(flag)) {
        tracing::warn!("--{flag} has no effect in this version");
    }
}

fn warn_of_features(options: &Options) {
    for name in &options.features {
        if !features::KNOWN.contains(&name.as_str()) {
            let text = suggest::unknown("feature", name, features::KNOWN.iter().copied());
            tracing::warn!("--enable-feature: {text}");
        } else if !features::EFFECTIVE.contains(&name.as_str()) {
            tracing::info!(feature = name, "the feature has no effect in this version");
        }
    }
}

/// The configuration at the start. A bad main file ends the start. A bad file that it names does so too, unless an
/// operator watches over the engine, which reads the verdict and must not lose the pod to it.
fn first_config(options: &Options) -> Result<InForce, String> {
    let Some(path) = &options.config_file else {
        let port = options.listen.first().map_or(9090, std::net::SocketAddr::port);
        let config = Config::scraping_itself(
            &format!("localhost:{port}"),
            &format!("{}/metrics", options.route_prefix),
        );
        return Ok(InForce::without_file(config));
    };
    let mut in_force = InForce::default();
    in_force.reload(path);
    match in_force.error() {
        Some(error) if in_force.config().is_none() || options.runtime_file.is_none() => Err(error),
        Some(error) => {
            tracing::error!(%error, "a scrape configuration is not in force");
            Ok(in_force)
        }
        None => Ok(in_force),
    }
}

async fn serve(app: &Arc<App>) -> Result<ExitCode, String> {
    let mut signals = Signals::new()?;
    let (stop, stopped) = watch::channel(false);
    let listeners = listen(app, &stopped).await?;
    let controller =
        background::controller(app.clone()).map_err(|error| format!("cannot start a thread: {error}"))?;
    let opening = open_store(app);
    tokio::pin!(opening);
    let mut quit = app.quit.subscribe();
    let maintenance = loop {
        tokio::select! {
            opened = &mut opening => break Some(opened?),
            signal = signals.next() => match signal {
                Signal::End => break None,
                // What replay needs is already read; the files are looked at again once it is done.
                Signal::Reload => {}
            },
            _ = quit.wait_for(|quit| *quit) => break None,
        }
    };
    let Some(maintenance) = maintenance else {
        // Replay writes nothing that a later start would miss.
        tracing::info!("ending during replay");
        return Ok(ExitCode::SUCCESS);
    };
    let watcher = tokio::spawn(reload::watch(app.clone()));
    run_until_end(app, &mut signals).await;
    watcher.abort();
    end(app, &stop, listeners, maintenance, controller).await
}

async fn run_until_end(app: &Arc<App>, signals: &mut Signals) {
    let mut quit = app.quit.subscribe();
    loop {
        tokio::select! {
            _ = quit.wait_for(|quit| *quit) => return,
            signal = signals.next() => match signal {
                Signal::End => return,
                Signal::Reload => {
                    let app = app.clone();
                    // What went wrong is logged, counted and shown in the runtime info.
                    let _ = tokio::task::spawn_blocking(move || reload::reload(&app)).await;
                }
            },
        }
    }
}

async fn listen(app: &Arc<App>, stopped: &watch::Receiver<bool>) -> Result<Vec<JoinHandle<()>>, String> {
    let options = &app.options;
    let mut bound: Vec<(TcpListener, axum::Router)> = Vec::new();
    for address in &options.listen {
        bound.push((listener::bind(*address, "web.listen-address").await?, router::web(app)));
    }
    for address in options.ops.iter().flat_map(|ops| &ops.listen) {
        bound.push((listener::bind(*address, "ops.listen-address").await?, router::ops(app)));
    }
    let serve = |(listener, router): (TcpListener, axum::Router)| {
        if let Ok(address) = listener.local_addr() {
            tracing::info!(%address, "listening");
        }
        tokio::spawn(listener::serve(listener, router, options.max_connections, stopped.clone(), GRACE))
    };
    Ok(bound.into_iter().map(serve).collect())
}

async fn open_store(app: &Arc<App>) -> Result<Worker, String> {
    let opened = app.clone();
    let begun = Instant::now();
    let task = tokio::task::spawn_blocking(move || {
        let options = &opened.options;
        let config = opened.config.lock();
        let (out_of_order_window_ms, max_exemplars) =
            (config.out_of_order_window_ms(), opened.max_exemplars(&config));
        let retention = opened.retention(&config, &opened.runtime.lock().config);
        drop(config);
        let (retention_bytes, retention_share) = retention.size();
        let store_options = StoreOptions {
            shards: opened.threads() as usize,
            retention_ms: retention.time_ms,
            retention_bytes,
            retention_share,
            out_of_order_window_ms,
            max_exemplars,
            block_duration_ms: options.block_duration_ms,
            max_block_duration_ms: options.max_block_duration_ms,
            block_format: options.block_format,
            delay_compact_file: options.delay_compact_file.clone(),
            wal_sync: options.wal_sync,
            ..StoreOptions::new(&options.data_dir)
        };
        let (files, clock) = (Arc::new(RealFiles), Arc::new(RealClock::default()));
        Store::open(store_options, files, clock, opened.budget.clone(), opened.progress.clone())
    });
    let store = task
        .await
        .map_err(|error| format!("opening the store failed: {error}"))?
        .map_err(|error| error.to_string())?;
    app.set_store(store.clone());
    // The store is opened once.
    let _ = app.replay_time.set(begun.elapsed());
    let maintenance =
        background::maintenance(store.clone()).map_err(|error| format!("cannot start a thread: {error}"))?;
    app.scraping.start(app, store.clone(), app.process_key);
    // A reload may run beside this; its lock keeps the later configuration the one in force.
    let config = app.config.lock();
    store.set_out_of_order_window_ms(config.out_of_order_window_ms());
    store.set_max_exemplars(app.max_exemplars(&config));
    app.retention(&config, &app.runtime.lock().config).apply(&store);
    app.scraping.apply(config.jobs());
    drop(config);
    app.phase.send_replace(Phase::Ready);
    tracing::info!("ready");
    Ok(maintenance)
}

async fn end(
    app: &Arc<App>,
    stop: &watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
    maintenance: Worker,
    controller: Worker,
) -> Result<ExitCode, String> {
    app.phase.send_replace(Phase::Stopping);
    tracing::info!("ending: not ready any more, serving a little longer");
    tokio::time::sleep(DRAIN).await;
    let deadline = Instant::now() + END;
    stop.send_replace(true);
    for listener in listeners {
        let _ = listener.await;
    }
    if tokio::time::timeout(SCRAPES_END, app.scraping.stop()).await.is_err() {
        tracing::warn!("scrapes were still running at the end and are cut off");
    }
    let store = app.store().cloned();
    let closing = tokio::task::spawn_blocking(move || {
        maintenance.end();
        controller.end();
        store.map_or(Ok(()), |store| store.close())
    });
    match tokio::time::timeout_at(deadline.into(), closing).await {
        Ok(Ok(Ok(()))) => {
            tracing::info!("ended");
            Ok(ExitCode::SUCCESS)
        }
        Ok(Ok(Err(error))) => Err(format!("the store did not close cleanly: {error}")),
        Ok(Err(error)) => Err(format!("the store did not close cleanly: {error}")),
        Err(_) => {
            tracing::warn!("closing takes long and is left to the next start, which replays the log");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What a signal asks for.
enum Signal {
    End,
    Reload,
}

/// The signals that are obeyed.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Signals, String> {
        let of = |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
        Ok(Signals {
            terminate: of(SignalKind::terminate())?,
            interrupt: of(SignalKind::interrupt())?,
            hangup: of(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::End,
            _ = self.interrupt.recv() => Signal::End,
            _ = self.hangup.recv() => Signal::Reload,
        }
    }
}
