//! Threads that run beside the requests: the budget controller and the store's maintenance.
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use metricsstore_budget::Level;
use metricsstore_storage::Store;
use parking_lot::{Condvar, Mutex};

use crate::app::App;
use crate::memory::{mebibytes, percent, share_arenas};

/// Time between two measurements of memory.
const MEASURE_INTERVAL: Duration = Duration::from_millis(250);
/// The same when the budget is nearly full: new series come fast.
const MEASURE_INTERVAL_UNDER_PRESSURE: Duration = Duration::from_millis(50);
/// Time between two ticks of maintenance. A tick that finds nothing to do takes microseconds; at millions of samples in a
/// second, a head that is full must not wait for long to be sealed.
const MAINTAIN_INTERVAL: Duration = Duration::from_millis(250);

/// Asks threads to end and wakes them.
#[derive(Debug, Default)]
struct Stop {
    asked: Mutex<bool>,
    wake: Condvar,
}

impl Stop {
    /// Waits; false when the end was asked for.
    fn pause(&self, time: Duration) -> bool {
        let mut asked = self.asked.lock();
        if !*asked {
            self.wake.wait_for(&mut asked, time);
        }
        !*asked
    }
}

/// A thread that ends when it is told to.
pub struct Worker {
    stop: Arc<Stop>,
    handle: Option<JoinHandle<()>>,
}

impl Worker {
    /// `tick` says how long to wait until the next one.
    fn start(name: &str, mut tick: impl FnMut() -> Duration + Send + 'static) -> std::io::Result<Worker> {
        let stop = Arc::new(Stop::default());
        let theirs = stop.clone();
        let handle = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            share_arenas(1);
            let mut interval = Duration::ZERO;
            while theirs.pause(interval) {
                interval = tick();
            }
        })?;
        Ok(Worker { stop, handle: Some(handle) })
    }

    /// Ends the thread and waits for the tick that runs.
    pub fn end(mut self) {
        *self.stop.asked.lock() = true;
        self.stop.wake.notify_all();
        if let Some(handle) = self.handle.take() {
            // A panic in the thread was already reported when it happened.
            let _ = handle.join();
        }
    }
}

/// Measures memory and tells the store how full the budget is.
pub fn controller(app: Arc<App>) -> std::io::Result<Worker> {
    Worker::start("controller", move || {
        // A copy, as requests wait for the lock and giving pages back takes a while.
        let runtime = app.runtime.lock().config.clone();
        let changed = app.memory.measure(&app.budget, &runtime);
        let level = app.memory.level();
        app.writes.resize(app.budget.limit());
        if let Some(store) = app.store() {
            store.set_pressure(level);
            store.set_used(app.memory.used());
        }
        if changed.is_some() {
            app.metrics.pressure_changes.inc();
            report(&app, level);
        }
        if level >= Level::Shrink { MEASURE_INTERVAL_UNDER_PRESSURE } else { MEASURE_INTERVAL }
    })
}

fn report(app: &App, level: Level) {
    let (used, budget) = (app.memory.used(), app.budget.limit());
    let numbers = format!("{}% of {} used", percent(used, budget), mebibytes(budget));
    let level_name = level.name();
    if level >= Level::RefuseSeries {
        tracing::error!(
            level = level_name,
            numbers,
            "memory is short: new work is refused; raise the memory limit or send fewer series"
        );
    } else if level >= Level::RefuseQueries {
        tracing::warn!(level = level_name, numbers, "memory is short: heavy queries wait");
    } else {
        tracing::info!(level = level_name, numbers, "memory pressure changed");
    }
}

/// Calls the store's maintenance again and again.
pub fn maintenance(store: Arc<Store>) -> std::io::Result<Worker> {
    let mut last_error = String::new();
    Worker::start("maintenance", move || {
        let error = store.maintain().err().map_or_else(String::new, |error| error.to_string());
        if error != last_error {
            if error.is_empty() {
                tracing::info!("maintenance works again");
            } else {
                tracing::error!(error, "maintenance failed and is tried again");
            }
            last_error = error;
        }
        MAINTAIN_INTERVAL
    })
}
