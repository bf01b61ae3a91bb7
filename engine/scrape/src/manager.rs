//! All scrape loops: started, kept, replaced and ended as the configuration says.
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metricsstore_budget::Budget;
use metricsstore_model::{Append, LabelBuf};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::{JobClient, SharedClient};
use crate::metadata::MetadataCache;
use crate::room::Room;
use crate::scrape_loop::ScrapeLoop;
use crate::stats::Counters;
use crate::target::{Target, resolve};
use crate::write::hasher;
use crate::{MAX_DROPPED_TARGETS, Metadata, ScrapeConfig, ScrapeError, ScrapeStats};

/// Settings of all scrapes.
#[derive(Clone)]
pub struct ScrapeOptions {
    /// Random per process: the key of the hashes of label bytes.
    pub process_key: u64,
    /// Spreads the scrapes of one target by several servers; the same after a restart.
    pub offset_seed: u64,
    /// Says whether scrapes shall be skipped now because memory is short.
    pub skip_scrapes: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Pages and their rows are counted here while they are decoded.
    pub budget: Budget,
    /// Pages that are decoded and written at the same time; others wait, compressed.
    pub pages_at_once: usize,
}

impl std::fmt::Debug for ScrapeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScrapeOptions").field("pages_at_once", &self.pages_at_once).finish_non_exhaustive()
    }
}

impl ScrapeOptions {
    /// No pressure, no budget, one page at once.
    pub fn new(process_key: u64) -> ScrapeOptions {
        ScrapeOptions {
            process_key,
            offset_seed: 0,
            skip_scrapes: Arc::new(|| false),
            budget: Budget::unlimited(),
            pages_at_once: 1,
        }
    }
}

/// A target's health by its last scrape.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Health {
    /// Not scraped yet.
    #[default]
    Unknown,
    /// The last scrape succeeded.
    Up,
    /// The last scrape failed.
    Down,
}

impl Health {
    /// The name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Health::Unknown => "unknown",
            Health::Up => "up",
            Health::Down => "down",
        }
    }
}

/// A target that is scraped, as the API shows it.
#[derive(Debug, Clone)]
pub struct ActiveTarget {
    /// Labels before relabelling.
    pub discovered_labels: LabelBuf,
    /// Labels of its series.
    pub labels: LabelBuf,
    /// The job.
    pub scrape_pool: String,
    /// What is requested.
    pub scrape_url: String,
    /// Why the last scrape failed; empty when it did not.
    pub last_error: String,
    /// Timestamp of the last scrape, in milliseconds.
    pub last_scrape_ms: Option<i64>,
    /// How long it took.
    pub last_scrape_duration: Duration,
    /// Whether it succeeded.
    pub health: Health,
    /// Time between scrapes.
    pub scrape_interval: Duration,
    /// Longest duration of a scrape.
    pub scrape_timeout: Duration,
}

/// A target that relabelling dropped.
#[derive(Debug, Clone)]
pub struct DroppedTarget {
    /// Labels before relabelling.
    pub discovered_labels: LabelBuf,
    /// The job.
    pub scrape_pool: String,
}

/// All targets.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    /// Scraped ones, job by job.
    pub active: Vec<ActiveTarget>,
    /// Dropped ones, as many as are kept.
    pub dropped: Vec<DroppedTarget>,
    /// How many were dropped of each job.
    pub dropped_counts: BTreeMap<String, u64>,
}

/// What all loops share.
pub(crate) struct Shared {
    pub(crate) append: Arc<dyn Append>,
    pub(crate) options: ScrapeOptions,
    pub(crate) counters: Counters,
    pub(crate) metadata: MetadataCache,
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) room: Room,
    pub(crate) shutdown: CancellationToken,
}

struct Job {
    config: Arc<ScrapeConfig>,
    client: SharedClient,
    loops: HashMap<u64, Arc<ScrapeLoop>>,
    dropped: Vec<LabelBuf>,
    dropped_count: u64,
}

impl Job {
    fn stop(&self) {
        for running in self.loops.values() {
            running.stop.cancel();
        }
    }
}

/// Scrapes the targets of all jobs.
pub struct ScrapeManager {
    shared: Arc<Shared>,
    runtime: Handle,
    tasks: TaskTracker,
    jobs: Mutex<BTreeMap<String, Job>>,
}

impl ScrapeManager {
    /// A manager without jobs. Must be called on a tokio runtime, which runs the loops.
    pub fn new(append: Arc<dyn Append>, options: ScrapeOptions) -> ScrapeManager {
        let slots = Arc::new(Semaphore::new(options.pages_at_once.max(1)));
        let shared = Shared {
            append,
            room: Room::new(options.budget.clone()),
            options,
            counters: Counters::default(),
            metadata: MetadataCache::default(),
            slots,
            shutdown: CancellationToken::new(),
        };
        ScrapeManager {
            shared: Arc::new(shared),
            runtime: Handle::current(),
            tasks: TaskTracker::new(),
            jobs: Mutex::new(BTreeMap::new()),
        }
    }

    /// Scrapes these jobs from now on. Targets whose job is unchanged go on undisturbed; those of a changed job keep
    /// what they know when pages are decoded alike; vanished ones are ended, about two intervals later.
    pub fn apply(&self, configs: Vec<ScrapeConfig>) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let names: HashSet<String> = configs.iter().map(|config| config.job_name.clone()).collect();
        jobs.retain(|name, job| {
            let stays = names.contains(name);
            if !stays {
                job.stop();
            }
            stays
        });
        for config in configs {
            let old = jobs.remove(&config.job_name);
            let name = config.job_name.clone();
            let job = match old {
                Some(job) if *job.config == config => job,
                old => self.start(config, old),
            };
            jobs.insert(name, job);
        }
    }

    fn start(&self, config: ScrapeConfig, old: Option<Job>) -> Job {
        let resolved = resolve(&config);
        for (address, error) in &resolved.failed {
            tracing::error!(job = config.job_name, address, %error, "target cannot be scraped");
        }
        let config = Arc::new(config);
        let keeps_loops = old.as_ref().is_some_and(|old| scrapes_alike(&old.config, &config));
        let keeps_state = old.as_ref().is_some_and(|old| decodes_alike(&old.config, &config));
        let (mut old_loops, client) = match old {
            Some(old) if keeps_loops => (old.loops, old.client),
            Some(old) => (old.loops, Arc::new(JobClient::new(&config, self.shared.room.clone()))),
            None => (HashMap::new(), Arc::new(JobClient::new(&config, self.shared.room.clone()))),
        };
        let targets = resolved.active.len() as u64;
        let is_over_limit = config.target_limit > 0 && targets > config.target_limit;
        let forced = is_over_limit.then(|| ScrapeError::TargetLimit { targets, limit: config.target_limit });
        let mut loops = HashMap::new();
        for target in resolved.active {
            let id = target.id;
            let running = match old_loops.remove(&id) {
                Some(old) if keeps_loops && old.target == target => old,
                old => {
                    if let Some(old) = &old {
                        old.stop.cancel();
                    }
                    self.start_loop(&config, &client, target, old.as_ref(), keeps_state)
                }
            };
            running.forced_error.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&forced);
            loops.insert(id, running);
        }
        for vanished in old_loops.values() {
            vanished.stop.cancel();
        }
        let kept =
            if config.keep_dropped_targets == 0 { MAX_DROPPED_TARGETS } else { config.keep_dropped_targets };
        let dropped_count = resolved.dropped.len() as u64;
        let mut dropped = resolved.dropped;
        dropped.truncate(kept as usize);
        Job { config, client, loops, dropped, dropped_count }
    }

    fn start_loop(
        &self,
        config: &Arc<ScrapeConfig>,
        client: &SharedClient,
        target: Target,
        predecessor: Option<&Arc<ScrapeLoop>>,
        keeps_state: bool,
    ) -> Arc<ScrapeLoop> {
        let hasher = hasher(self.shared.options.process_key, &target, config);
        let state = predecessor.filter(|_| keeps_state).map(|old| {
            old.without_end_of_run.store(true, Relaxed);
            Arc::clone(&old.state)
        });
        let after = predecessor.map(|old| old.stopped.clone());
        let running = Arc::new(ScrapeLoop {
            shared: Arc::clone(&self.shared),
            config: Arc::clone(config),
            client: Arc::clone(client),
            target,
            hasher,
            state: state.unwrap_or_default(),
            status: Mutex::default(),
            forced_error: Mutex::new(None),
            stop: CancellationToken::new(),
            stopped: CancellationToken::new(),
            without_end_of_run: AtomicBool::new(false),
        });
        self.tasks.spawn_on(Arc::clone(&running).run(after), &self.runtime);
        running
    }

    /// All targets as they are now.
    pub fn targets(&self) -> Targets {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let mut targets = Targets::default();
        for (name, job) in &*jobs {
            let mut active: Vec<ActiveTarget> =
                job.loops.values().map(|running| active(name, running)).collect();
            active.sort_by(|a, b| a.labels.cmp(&b.labels).then_with(|| a.scrape_url.cmp(&b.scrape_url)));
            targets.active.append(&mut active);
            targets.dropped.extend(job.dropped.iter().map(|labels| DroppedTarget {
                discovered_labels: labels.clone(),
                scrape_pool: name.clone(),
            }));
            targets.dropped_counts.insert(name.clone(), job.dropped_count);
        }
        targets
    }

    /// What the pages of all targets say about their metrics: the distinct statements of each metric.
    pub fn metadata(&self) -> BTreeMap<String, BTreeSet<Metadata>> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let loops = jobs.values().flat_map(|job| job.loops.values());
        let lists: Vec<_> = loops.map(|running| running.metadata()).collect();
        drop(jobs);
        let mut merged: BTreeMap<String, BTreeSet<Metadata>> = BTreeMap::new();
        let mut merged_lists = HashSet::new();
        for list in lists {
            if !merged_lists.insert(Arc::as_ptr(&list)) {
                continue;
            }
            for (name, metadata) in &*list {
                merged.entry(name.clone()).or_default().insert(metadata.clone());
            }
        }
        merged
    }

    /// What has happened since the start.
    pub fn stats(&self) -> ScrapeStats {
        self.shared.counters.snapshot()
    }

    /// Ends all loops and waits for what they are writing. No series is ended: after a restart they go on.
    pub async fn stop(&self) {
        self.shared.shutdown.cancel();
        for job in self.jobs.lock().unwrap_or_else(PoisonError::into_inner).values() {
            job.stop();
        }
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn active(job: &str, running: &ScrapeLoop) -> ActiveTarget {
    let status = running.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
    ActiveTarget {
        discovered_labels: running.target.discovered.clone(),
        labels: running.target.labels.clone(),
        scrape_pool: job.to_owned(),
        scrape_url: running.target.url.clone(),
        last_error: status.last_error,
        last_scrape_ms: status.last_scrape_ms,
        last_scrape_duration: status.last_duration,
        health: status.health,
        scrape_interval: running.target.interval,
        scrape_timeout: running.target.timeout,
    }
}

/// Whether the jobs differ at most in their targets.
fn scrapes_alike(one: &ScrapeConfig, other: &ScrapeConfig) -> bool {
    let without_targets = |config: &ScrapeConfig| ScrapeConfig {
        static_configs: Vec::new(),
        relabel_configs: Vec::new(),
        target_limit: 0,
        keep_dropped_targets: 0,
        ..config.clone()
    };
    without_targets(one) == without_targets(other)
}

/// Whether what is known of a page of one job is true of the other's.
fn decodes_alike(one: &ScrapeConfig, other: &ScrapeConfig) -> bool {
    one.honor_labels == other.honor_labels
        && one.metric_relabel_configs == other.metric_relabel_configs
        && one.label_limit == other.label_limit
        && one.label_name_length_limit == other.label_name_length_limit
        && one.label_value_length_limit == other.label_value_length_limit
}
