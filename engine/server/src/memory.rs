//! The memory budget of the whole process: measured several times a second, turned into a level of pressure with
//! hysteresis, reported to the store.
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use metricsstore_budget::{Budget, Host, Level, MemoryUse};
use metricsstore_contract::{BudgetPolicy, EngineConfig, Quantity, budget_bytes};
use tikv_jemalloc_ctl::{Access as _, AsName as _, epoch, stats};

/// Unused pages are given back at once under pressure when they are more than this part of the budget.
const PURGE_SHARE: u64 = 32;
/// Time after which unused pages go back to the system.
const DECAY_MS: isize = 2000;

/// What was measured last.
#[derive(Debug)]
pub struct Memory {
    /// The machine's name, in a cluster the pod's.
    pub hostname: String,
    host: Host,
    policy: Option<BudgetPolicy>,
    machine_bytes: u64,
    limit: AtomicU64,
    used: AtomicU64,
    level: AtomicU8,
}

impl Memory {
    /// Before the first measurement; `policy` is `--memory.budget`.
    pub fn new(policy: Option<BudgetPolicy>) -> Memory {
        let mut memory = Memory {
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            host: Host::discover(),
            policy,
            machine_bytes: 0,
            limit: AtomicU64::new(0),
            used: AtomicU64::new(0),
            level: AtomicU8::new(0),
        };
        memory.machine_bytes = memory.host.machine_memory();
        memory.limit.store(memory.host.memory_limit().unwrap_or(0), Relaxed);
        memory
    }

    /// The budget that the live limit and the rule in force give.
    pub fn budget_bytes(&self, runtime: &EngineConfig) -> u64 {
        let limit = self.limit();
        match &runtime.budget {
            Some(budget) => budget.under(limit, self.machine_bytes),
            None => budget_bytes(self.policy.unwrap_or_default(), limit, self.machine_bytes),
        }
    }

    /// The live cgroup limit.
    pub fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Relaxed)).filter(|limit| *limit > 0)
    }

    fn measure_used(&self) -> u64 {
        self.host.memory_use().as_ref().map_or(0, MemoryUse::total)
    }

    /// The CPU limit of the group and the machine's processors.
    pub fn cpus(&self) -> (Option<Quantity>, u32) {
        let quota = self.host.cpu_quota_millis();
        (quota.and_then(|millis| Quantity::parse(&format!("{millis}m")).ok()), self.host.machine_cpus())
    }

    /// Bytes that count against the budget.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The level in force.
    pub fn level(&self) -> Level {
        Level::ALL[usize::from(self.level.load(Relaxed)).min(Level::ALL.len() - 1)]
    }

    /// `busy: …` with numbers.
    pub fn busy_text(&self, what: &str, above: u64, budget: u64) -> String {
        let (used, budget) = (percent(self.used(), budget), mebibytes(budget));
        format!("busy: memory budget {budget} is {used}% used and {what} wait above {above}%, retry after 5s")
    }

    /// Measures, works out budget and level; returns the level when it changed.
    pub fn measure(&self, budget: &Budget, runtime: &EngineConfig) -> Option<Level> {
        self.limit.store(self.host.memory_limit().unwrap_or(0), Relaxed);
        budget.set_limit(self.budget_bytes(runtime));
        let mut used = self.measure_used();
        if Level::Normal.next(used, budget.limit()) >= Level::Shrink && gives_back(budget.limit()) {
            purge();
            used = self.measure_used();
        }
        self.used.store(used, Relaxed);
        let before = self.level();
        let level = before.next(used, budget.limit());
        self.level.store(level as u8, Relaxed);
        (level != before).then_some(level)
    }
}

/// Whole per cent of a budget, rounded down.
pub fn percent(used: u64, budget: u64) -> u64 {
    (u128::from(used) * 100 / u128::from(budget.max(1))) as u64
}

/// Bytes as whole mebibytes: `1843Mi`.
pub fn mebibytes(bytes: u64) -> String {
    format!("{}Mi", bytes >> 20)
}

/// The allocator's own figures, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Heap {
    /// In use by the engine.
    pub allocated: u64,
    /// In pages that hold at least one allocation.
    pub active: u64,
    /// Mapped and touched.
    pub resident: u64,
}

/// Reads them.
pub fn heap() -> Heap {
    // The epoch refreshes the figures; without statistics compiled in all of them are zero.
    let _ = epoch::advance();
    let of = |bytes: Result<usize, tikv_jemalloc_ctl::Error>| bytes.unwrap_or(0) as u64;
    Heap {
        allocated: of(stats::allocated::read()),
        active: of(stats::active::read()),
        resident: of(stats::resident::read()),
    }
}

/// Lets the allocator give unused pages back by itself, soon.
pub fn tune_allocator() {
    let settings = [
        tikv_jemalloc_ctl::background_thread::write(true),
        b"arenas.dirty_decay_ms\0".as_slice().name().write(DECAY_MS),
        b"arenas.muzzy_decay_ms\0".as_slice().name().write(0isize),
    ];
    // The settings are for arenas to come; the first one exists already.
    let first = b"arena.0.dirty_decay_ms\0".as_slice().name().write(DECAY_MS);
    for error in settings.into_iter().chain([first]).filter_map(Result::err) {
        tracing::warn!(%error, "the allocator does not take a setting");
    }
}

/// Lets the calling thread share one of so many arenas with others. Left alone, every thread would get an arena, each
/// with pages of its own, and blocking threads are many.
pub fn share_arenas(arenas: u32) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let arena = NEXT.fetch_add(1, Relaxed) % arenas.max(1);
    // A machine with fewer arenas keeps the allocator's own choice.
    let _ = b"thread.arena\0".as_slice().name().write(arena);
}

/// Whether the allocator holds enough unused pages that giving them back is worth the faults it costs later.
fn gives_back(budget: u64) -> bool {
    let heap = heap();
    heap.resident.saturating_sub(heap.active) > budget / PURGE_SHARE
}

/// Gives unused pages back at once.
fn purge() {
    let arenas: u32 = b"arenas.narenas\0".as_slice().name().read().unwrap_or(0);
    for arena in 0..arenas.min(1024) {
        let name = format!("arena.{arena}.dirty_decay_ms\0");
        let name = name.as_bytes().name();
        // Arenas that were never used have no value, and that for huge allocations keeps nothing anyway.
        let keeps: isize = name.read().unwrap_or(0);
        if keeps != 0 && name.write(0isize).is_ok() {
            let _ = name.write(DECAY_MS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn per_cent_round_down_and_survive_any_size() {
        assert_eq!(percent(1_816_771_167, 1_932_735_283), 94);
        assert_eq!(percent(u64::MAX, u64::MAX), 100);
        assert_eq!(percent(5, 0), 500);
    }
}
