//! Time as the storage core sees it.
use std::time::Duration;

/// Wall time and monotonic time, injected so that tests own both.
pub trait Clock: Send + Sync {
    /// Milliseconds since the Unix epoch; may jump in either direction.
    fn now_ms(&self) -> i64;
    /// Time since an arbitrary start; never goes back.
    fn monotonic(&self) -> Duration;
}
