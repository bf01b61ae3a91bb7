//! The loop of one target: when to scrape, and what happens when it ends.
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use metricsstore_model::RawKeyHasher;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::client::SharedClient;
use crate::manager::Shared;
use crate::metadata::MetadataList;
use crate::target::Target;
use crate::write::{TargetState, Writer};
use crate::{Health, ScrapeConfig, ScrapeError};

/// Scrapes that begin this little after their due time get the due time as timestamp, so that timestamps are
/// regular; at most 1 % of the interval.
const TIMESTAMP_TOLERANCE: Duration = Duration::from_millis(2);

/// How the last scrape of a target went.
#[derive(Debug, Clone, Default)]
pub(crate) struct Status {
    pub(crate) health: Health,
    pub(crate) last_error: String,
    pub(crate) last_scrape_ms: Option<i64>,
    pub(crate) last_duration: Duration,
    /// What the last page said about its metrics; here so that reading it never waits for a page being written.
    metadata: Arc<MetadataList>,
}

/// A target being scraped.
pub(crate) struct ScrapeLoop {
    pub(crate) shared: Arc<Shared>,
    pub(crate) config: Arc<ScrapeConfig>,
    pub(crate) client: SharedClient,
    pub(crate) target: Target,
    pub(crate) hasher: RawKeyHasher,
    /// Handed on when the loop is replaced by one that decodes pages alike.
    pub(crate) state: Arc<Mutex<TargetState>>,
    pub(crate) status: Mutex<Status>,
    /// Fails every scrape.
    pub(crate) forced_error: Mutex<Option<ScrapeError>>,
    /// Ends the loop.
    pub(crate) stop: CancellationToken,
    /// The loop has ended; only markers may follow.
    pub(crate) stopped: CancellationToken,
    /// The series are scraped on, by another loop.
    pub(crate) without_end_of_run: AtomicBool,
}

impl ScrapeLoop {
    /// Runs until it is stopped, then ends the target's series, unless everything is shutting down.
    pub(crate) async fn run(self: Arc<Self>, after: Option<CancellationToken>) {
        if let Some(after) = after {
            after.cancelled().await;
        }
        let last_scrape = self.scrape_until_stopped().await;
        self.stopped.cancel();
        if let Some(last_scrape) = last_scrape {
            self.end_of_run(last_scrape).await;
        }
    }

    /// What its last page says about its metrics.
    pub(crate) fn metadata(&self) -> Arc<MetadataList> {
        Arc::clone(&self.status.lock().unwrap_or_else(PoisonError::into_inner).metadata)
    }

    async fn scrape_until_stopped(self: &Arc<Self>) -> Option<tokio::time::Instant> {
        let interval = self.target.interval;
        let offset = offset(self.target.id ^ self.shared.options.offset_seed, interval, wall_time());
        if !self.wait(tokio::time::sleep(offset)).await {
            return None;
        }
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut last_scrape = None;
        let mut due = wall_time();
        loop {
            // The first tick comes at once.
            if !self.wait(ticks.tick()).await {
                return last_scrape;
            }
            last_scrape = Some(tokio::time::Instant::now());
            let (time, next_due) = align(wall_time(), due, interval);
            due = next_due;
            self.scrape(time).await;
        }
    }

    /// Waits for `event`; `false` when the loop shall end first.
    async fn wait<T>(&self, event: impl Future<Output = T>) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            _ = event => !self.stop.is_cancelled(),
        }
    }

    async fn scrape(self: &Arc<Self>, time: Duration) {
        let counters = &self.shared.counters;
        if (self.shared.options.skip_scrapes)() {
            counters.skipped.fetch_add(1, Relaxed);
            return;
        }
        let started = Instant::now();
        let forced = self.forced_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let response = if let Some(error) = forced {
            Err(error)
        } else {
            // Only the request is given up at shutdown; what has come is written.
            tokio::select! {
                response = self.client.get(&self.target.url, self.target.timeout) => response,
                () = self.shared.shutdown.cancelled() => return,
            }
        };
        let timestamp_ms = time.as_millis() as i64;
        let outcome =
            self.write(move |writer, state| writer.scrape(state, response, timestamp_ms, started)).await;
        match &outcome {
            Ok(()) => counters.succeeded.fetch_add(1, Relaxed),
            Err(ScrapeError::Append(_)) => counters.appends_failed.fetch_add(1, Relaxed),
            Err(_) => counters.failed.fetch_add(1, Relaxed),
        };
        let metadata = Arc::clone(&self.state.lock().unwrap_or_else(PoisonError::into_inner).metadata);
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.metadata = metadata;
        status.health = if outcome.is_ok() { Health::Up } else { Health::Down };
        status.last_error = outcome.err().map_or_else(String::new, |error| error.to_string());
        status.last_scrape_ms = Some(timestamp_ms);
        status.last_duration = started.elapsed();
    }

    /// Runs `work` on a blocking thread when one of the slots for decoded pages is free.
    async fn write(
        self: &Arc<Self>,
        work: impl FnOnce(&Writer<'_>, &mut TargetState) -> Result<(), ScrapeError> + Send + 'static,
    ) -> Result<(), ScrapeError> {
        let shut_down = || ScrapeError::Append(metricsstore_model::AppendError::ShuttingDown);
        let slot = self.shared.slots.clone().acquire_owned().await.map_err(|_| shut_down())?;
        let this = Arc::clone(self);
        let written = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            let writer = Writer {
                target: &this.target,
                config: &this.config,
                hasher: this.hasher,
                append: &*this.shared.append,
                budget: &this.shared.options.budget,
                counters: &this.shared.counters,
                metadata: &this.shared.metadata,
            };
            work(&writer, &mut this.state.lock().unwrap_or_else(PoisonError::into_inner))
        });
        written.await.map_err(|_| shut_down())?
    }

    /// Waits until a target that comes back has been scraped, then ends the series. Series that have been scraped
    /// again are newer than the marker, which the store then refuses.
    async fn end_of_run(self: &Arc<Self>, last_scrape: tokio::time::Instant) {
        let interval = self.target.interval;
        let is_over = async {
            tokio::time::sleep_until(last_scrape + interval).await;
            let timestamp = wall_time();
            tokio::time::sleep(interval + interval / 10).await;
            timestamp
        };
        let timestamp = tokio::select! {
            timestamp = is_over => timestamp,
            () = self.shared.shutdown.cancelled() => return,
        };
        if self.without_end_of_run.load(Relaxed) {
            return;
        }
        let timestamp_ms = timestamp.as_millis() as i64;
        if let Err(error) = self.write(move |writer, state| writer.end_of_run(state, timestamp_ms)).await {
            tracing::warn!(url = self.target.url, %error, "series of a removed target were not ended");
        }
    }
}

/// Time since the epoch.
fn wall_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Time until the first scrape: targets are spread over the interval by their identity, and always at the same
/// place in it.
fn offset(id: u64, interval: Duration, now: Duration) -> Duration {
    let interval = (interval.as_nanos() as u64).max(1);
    let now = (now.as_nanos() % u128::from(interval)) as u64;
    let place = id % interval;
    Duration::from_nanos(if place >= now { place - now } else { interval - now + place })
}

/// The timestamp of a scrape at `now` whose due time was `due` or a multiple of the interval later, and the due time.
fn align(now: Duration, due: Duration, interval: Duration) -> (Duration, Duration) {
    let tolerance = TIMESTAMP_TOLERANCE.min(interval / 100);
    if due > now + tolerance {
        // The clock went back; timestamps follow it.
        return (now, now);
    }
    let late = now.saturating_sub(due);
    let intervals = u32::try_from(late.as_nanos() / interval.as_nanos().max(1)).unwrap_or(u32::MAX);
    let due = due + interval.saturating_mul(intervals);
    let is_close = now.saturating_sub(due) <= tolerance;
    (if is_close { due } else { now }, due)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{align, offset};

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_target_is_always_scraped_at_the_same_place_of_the_interval() {
        let interval = ms(15_000);
        for now in [0, 1, 7_000, 14_999, 1_700_000_003_217] {
            let first = ms(now) + offset(7_000_000_000 + 15_000_000_000 * 3, interval, ms(now));
            assert_eq!(first.as_nanos() % interval.as_nanos(), 7_000_000_000);
            assert!(first < ms(now) + interval);
        }
    }

    #[test]
    fn timestamps_within_the_tolerance_are_aligned() {
        let interval = ms(15_000);
        assert_eq!(align(ms(1_002), ms(1_000), interval), (ms(1_000), ms(1_000)));
        assert_eq!(align(ms(1_003), ms(1_000), interval), (ms(1_003), ms(1_000)));
        assert_eq!(align(ms(16_001), ms(1_000), interval), (ms(16_000), ms(16_000)));
        // A tick was skipped.
        assert_eq!(align(ms(46_001), ms(1_000), interval), (ms(46_000), ms(46_000)));
        // At most 1 % of the interval.
        assert_eq!(align(ms(102), ms(100), ms(100)), (ms(102), ms(100)));
        assert_eq!(align(ms(101), ms(100), ms(100)), (ms(100), ms(100)));
        assert_eq!(align(ms(999), ms(1_000), interval), (ms(1_000), ms(1_000)));
        // The clock went back.
        assert_eq!(align(ms(500), ms(1_000), interval), (ms(500), ms(500)));
    }
}
