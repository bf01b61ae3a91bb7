//! The memory budget: exact counters per part, grants for work that is about to start, levels of pressure.
//!
//! - [`Budget`] and [`Grant`]: what is counted and reserved;
//! - [`Level`]: how full the budget is, and with it what is shed;
//! - [`Host`]: limit, use and CPUs as the control group and the machine have them at this moment.
#![forbid(unsafe_code)]

pub mod host;
mod ladder;

pub use host::{Host, MemoryUse};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What bytes are used for; one gauge each in `metricsstore_memory_bytes{part=…}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Part {
    /// Label names and values, each stored once.
    Symbols,
    /// Group, residual and series tables and the lookup over them.
    Identity,
    /// Bitmaps from label pairs to groups and residuals.
    Postings,
    /// Raw label bytes' hash to series id.
    RawCache,
    /// Fixed state of each open column and timestamp stream.
    SeriesState,
    /// Encoded samples that are not yet sealed.
    HeadPayload,
    /// Directories of the sealed segments.
    Segments,
    /// Buffers of the write-ahead log.
    Wal,
    /// Exemplars and what is known of metric families.
    Annotations,
    /// Request bodies and scraped pages with what is decoded from them.
    Ingest,
    /// Running queries.
    Query,
    /// Pages read from disk.
    PageCache,
}

impl Part {
    /// Every part, in the order of the enum.
    pub const ALL: [Part; 12] = [
        Part::Symbols,
        Part::Identity,
        Part::Postings,
        Part::RawCache,
        Part::SeriesState,
        Part::HeadPayload,
        Part::Segments,
        Part::Wal,
        Part::Annotations,
        Part::Ingest,
        Part::Query,
        Part::PageCache,
    ];

    /// The value of the `part` label.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Symbols => "symbols",
            Part::Identity => "identity",
            Part::Postings => "postings",
            Part::RawCache => "raw_cache",
            Part::SeriesState => "series_state",
            Part::HeadPayload => "head_payload",
            Part::Segments => "segments",
            Part::Wal => "wal",
            Part::Annotations => "annotations",
            Part::Ingest => "ingest",
            Part::Query => "query",
            Part::PageCache => "page_cache",
        }
    }
}

/// How full the budget is. Each level includes what the lower ones do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Below 70 %: nothing is shed.
    Normal,
    /// From 70 %: caches shrink, the allocator gives pages back.
    Shrink,
    /// From 80 %: open columns are sealed early, merging pauses.
    SealEarly,
    /// From 88 %: heavy queries queue, then are refused.
    RefuseQueries,
    /// From 93 %: new series are refused.
    RefuseSeries,
    /// From 97 %: writes are refused, scrapes are skipped.
    RefuseWrites,
}

/// All queries together may reserve this part of the budget: each is bounded by itself, but many run at once.
const QUERIES_SHARE: u64 = 2;

/// The bytes are not to be had; says how many were asked for and how many were left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{asked} bytes of memory are not to be had: {left} of {limit} bytes are left")]
pub struct Exhausted {
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes left.
    pub left: u64,
    /// The limit they are counted against.
    pub limit: u64,
}

#[derive(Debug)]
struct Counters {
    limit: AtomicU64,
    parts: [AtomicU64; Part::ALL.len()],
}

/// The budget of one store. Cloning gives another handle to the same counters.
#[derive(Debug, Clone)]
pub struct Budget {
    counters: Arc<Counters>,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Budget {
        Budget { counters: Arc::new(Counters { limit: AtomicU64::new(limit), parts: Default::default() }) }
    }

    /// A budget that is never exhausted, for tests and tools.
    pub fn unlimited() -> Budget {
        Budget::new(u64::MAX)
    }

    /// The bytes in force.
    pub fn limit(&self) -> u64 {
        self.counters.limit.load(Relaxed)
    }

    /// Changes the bytes in force while running.
    pub fn set_limit(&self, limit: u64) {
        self.counters.limit.store(limit, Relaxed);
    }

    /// Counted bytes of one part.
    pub fn part(&self, part: Part) -> u64 {
        self.counters.parts[part as usize].load(Relaxed)
    }

    /// Counted bytes of all parts.
    pub fn counted(&self) -> u64 {
        Part::ALL.iter().map(|&part| self.part(part)).sum()
    }

    /// Adds `bytes` to a part, unconditionally: for growth that has already been admitted.
    pub fn add(&self, part: Part, bytes: u64) {
        self.counters.parts[part as usize].fetch_add(bytes, Relaxed);
    }

    /// Takes `bytes` off a part.
    pub fn sub(&self, part: Part, bytes: u64) {
        self.counters.parts[part as usize].fetch_sub(bytes, Relaxed);
    }

    /// Sets a part's bytes, for parts whose owner measures itself.
    pub fn set(&self, part: Part, bytes: u64) {
        self.counters.parts[part as usize].store(bytes, Relaxed);
    }

    /// A grant of at most `limit` bytes for one piece of work, counted under `part`.
    pub fn grant(&self, part: Part, limit: u64) -> Grant {
        Grant { shared: Arc::new(GrantShared { budget: self.clone(), part, limit, used: AtomicU64::new(0) }) }
    }
}

#[derive(Debug)]
struct GrantShared {
    budget: Budget,
    part: Part,
    limit: u64,
    used: AtomicU64,
}

impl Drop for GrantShared {
    fn drop(&mut self) {
        self.budget.sub(self.part, *self.used.get_mut());
    }
}

/// The right to use bytes for one piece of work (a query, a request). What is still reserved is given back when the
/// last handle is dropped.
#[derive(Debug, Clone)]
pub struct Grant {
    shared: Arc<GrantShared>,
}

impl Grant {
    /// A grant without bounds, for tests and tools.
    pub fn unlimited() -> Grant {
        Budget::unlimited().grant(Part::Query, u64::MAX)
    }

    /// Reserves `bytes` until they are released or the grant ends. Fails beyond the grant's own limit; for queries also
    /// beyond half of the budget, which is what all of them may reserve together.
    pub fn reserve(&self, bytes: u64) -> Result<(), Exhausted> {
        let shared = &*self.shared;
        take(&shared.used, bytes, shared.limit)?;
        let counters = &shared.budget.counters;
        let most = match shared.part {
            Part::Query => shared.budget.limit() / QUERIES_SHARE,
            _ => u64::MAX,
        };
        take(&counters.parts[shared.part as usize], bytes, most).inspect_err(|_| {
            shared.used.fetch_sub(bytes, Relaxed);
        })
    }

    /// Gives `bytes` back early.
    pub fn release(&self, bytes: u64) {
        self.shared.used.fetch_sub(bytes, Relaxed);
        self.shared.budget.sub(self.shared.part, bytes);
    }

    /// Bytes reserved now.
    pub fn used(&self) -> u64 {
        self.shared.used.load(Relaxed)
    }
}

/// Adds `bytes` to a counter unless it would go above `limit`.
fn take(counter: &AtomicU64, bytes: u64, limit: u64) -> Result<(), Exhausted> {
    let taken =
        counter.fetch_update(Relaxed, Relaxed, |used| used.checked_add(bytes).filter(|&sum| sum <= limit));
    taken.map(drop).map_err(|used| Exhausted { asked: bytes, left: limit.saturating_sub(used), limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_reserves_up_to_its_limit_and_gives_everything_back() {
        let budget = Budget::new(1_000);
        let grant = budget.grant(Part::Query, 100);
        let other = grant.clone();
        assert_eq!(grant.reserve(60), Ok(()));
        assert_eq!(other.reserve(50), Err(Exhausted { asked: 50, left: 40, limit: 100 }));
        grant.release(20);
        assert_eq!(other.reserve(50), Ok(()));
        assert_eq!((grant.used(), budget.part(Part::Query)), (90, 90));
        drop(grant);
        assert_eq!(budget.counted(), 90);
        drop(other);
        assert_eq!(budget.counted(), 0);
    }

    #[test]
    fn all_queries_together_reserve_at_most_half_of_the_budget() {
        let budget = Budget::new(1_000);
        let grants = [budget.grant(Part::Query, 400), budget.grant(Part::Query, 400)];
        assert_eq!(grants[0].reserve(300), Ok(()));
        assert_eq!(grants[1].reserve(201), Err(Exhausted { asked: 201, left: 200, limit: 500 }));
        assert_eq!((grants[1].used(), budget.part(Part::Query)), (0, 300));
        assert_eq!(grants[1].reserve(200), Ok(()));
        drop(grants);
        assert_eq!(budget.counted(), 0);
    }

    #[test]
    fn parts_are_counted_apart_and_together() {
        let budget = Budget::new(1_000);
        budget.add(Part::Wal, 7);
        budget.set(Part::Symbols, 5);
        budget.sub(Part::Wal, 2);
        assert_eq!((budget.part(Part::Wal), budget.part(Part::Symbols), budget.counted()), (5, 5, 10));
        budget.set_limit(10);
        assert_eq!(budget.limit(), 10);
        assert!(Part::ALL.iter().enumerate().all(|(place, &part)| part as usize == place));
    }
}
