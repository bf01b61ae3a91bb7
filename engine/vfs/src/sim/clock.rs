//! A clock that stands still until it is told otherwise.
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use crate::Clock;

/// A clock moved by the test; cloning gives another handle to the same one.
#[derive(Debug, Clone)]
pub struct SimClock {
    wall_ms: Arc<AtomicI64>,
    monotonic_ns: Arc<AtomicU64>,
}

impl SimClock {
    /// A clock whose wall time is `now_ms`.
    pub fn new(now_ms: i64) -> SimClock {
        SimClock { wall_ms: Arc::new(AtomicI64::new(now_ms)), monotonic_ns: Arc::new(AtomicU64::new(0)) }
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.wall_ms.fetch_add(by.as_millis() as i64, SeqCst);
        self.monotonic_ns.fetch_add(by.as_nanos() as u64, SeqCst);
    }

    /// Sets the wall clock, as an administrator or NTP does; monotonic time is not touched.
    pub fn set_wall_ms(&self, now_ms: i64) {
        self.wall_ms.store(now_ms, SeqCst);
    }
}

impl Clock for SimClock {
    fn now_ms(&self) -> i64 {
        self.wall_ms.load(SeqCst)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_ns.load(SeqCst))
    }
}
