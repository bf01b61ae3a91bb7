//! What all endpoints and background threads share.
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metricsstore_budget::Budget;
use metricsstore_promql::Engine;
use metricsstore_storage::{Progress, Store};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, watch};

use crate::api::write::WriteDesk;
use crate::config::load::InForce;
use crate::flags::Flags;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::runtime_file::RuntimeFile;
use crate::scraping::Scraping;

/// Where the process stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Replay runs.
    Starting,
    /// Everything is served.
    Ready,
    /// The end was asked for; still served, but not ready.
    Stopping,
}

/// The shared state of one engine.
pub struct App {
    /// Typed flags.
    pub options: Options,
    /// Flags as they were given.
    pub flags: Flags,
    /// Where the process stands.
    pub phase: watch::Sender<Phase>,
    /// Becomes true when the end is asked for by HTTP or by a signal.
    pub quit: watch::Sender<bool>,
    /// The memory budget.
    pub budget: Budget,
    /// What was measured last.
    pub memory: Memory,
    /// How far replay has come.
    pub progress: Arc<Progress>,
    /// How long the store took to open, replay included, once it is open.
    pub replay_time: OnceLock<Duration>,
    store: OnceLock<Arc<Store>>,
    /// The query engine; replaced when the default step of subqueries changes.
    pub engine: RwLock<Engine>,
    /// The configuration in force; locked for the whole of a reload.
    pub config: Mutex<InForce>,
    /// Whether the last load succeeded.
    pub config_good: AtomicBool,
    /// When the configuration in force was loaded, in milliseconds.
    pub config_loaded_ms: AtomicI64,
    /// `engine.yaml` in force.
    pub runtime: Mutex<RuntimeFile>,
    /// Threads in force.
    pub threads: u32,
    /// The scraper.
    pub scraping: Scraping,
    /// Counters.
    pub metrics: Metrics,
    /// Slots for queries.
    pub query_slots: Arc<Semaphore>,
    /// Admission of remote write.
    pub writes: WriteDesk,
    /// When the process started, in milliseconds.
    pub started_ms: i64,
    /// Random per process: the key of all hashes of label bytes.
    pub process_key: u64,
}

impl App {
    /// The store, once replay is done.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.get()
    }

    /// Makes the opened store known.
    pub fn set_store(&self, store: Arc<Store>) {
        // A second store would be a second start; the first stays.
        let _ = self.store.set(store);
    }

    /// Where the process stands.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Threads in force.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// State before anything runs.
    pub fn new(options: Options, flags: Flags, start: Start) -> App {
        let Start { budget, memory, config, runtime, threads, scraping, process_key } = start;
        let mut promql = options.promql.clone();
        if let Some(config) = config.config() {
            promql.default_step_ms = config.global.evaluation_interval.ms();
        }
        App {
            phase: watch::Sender::new(Phase::Starting),
            quit: watch::Sender::new(false),
            memory,
            progress: Arc::new(Progress::default()),
            replay_time: OnceLock::new(),
            store: OnceLock::new(),
            engine: RwLock::new(Engine::new(promql)),
            config_good: AtomicBool::new(config.error().is_none()),
            config_loaded_ms: AtomicI64::new(now_ms()),
            config: Mutex::new(config),
            runtime: Mutex::new(runtime),
            threads,
            scraping,
            metrics: Metrics::default(),
            query_slots: Arc::new(Semaphore::new(options.query_concurrency)),
            writes: WriteDesk::new(&budget, threads, process_key),
            started_ms: now_ms(),
            process_key,
            budget,
            options,
            flags,
        }
    }
}

/// What is worked out before the state exists.
pub struct Start {
    /// The budget with its limit set.
    pub budget: Budget,
    /// The first measurement.
    pub memory: Memory,
    /// The configuration.
    pub config: InForce,
    /// `engine.yaml`.
    pub runtime: RuntimeFile,
    /// Threads in force.
    pub threads: u32,
    /// The scraper.
    pub scraping: Scraping,
    /// Random number for keyed hashes.
    pub process_key: u64,
}

/// The wall clock in milliseconds.
pub fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// A time as RFC 3339.
pub fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).unwrap_or_default().to_string()
}
