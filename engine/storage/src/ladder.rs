//! The memory and the disk ladder: what is refused when.
use metricsstore_budget::{Budget, Level, Part};
use metricsstore_model::AppendError;

use crate::DiskLevel;
use crate::disk::Disk;
use crate::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// This share of all series' state exists twice while a seal runs: the columns, not what series are judged by.
const SEALING_SHARE: u64 = 2;
/// What the series that exist still fill with samples before a seal frees it, as a share of their state: about half of
/// them take a fragment of 32 bytes.
const PAYLOAD_SHARE: u64 = 4;
const RETRY_AFTER_SECONDS: u32 = 5;

/// What the store obeys: the higher of what it counts itself and what it is told.
pub(crate) struct Ladder {
    budget: Budget,
    told: AtomicU8,
    /// What the process uses beyond what is counted: program, stacks, slack of the allocator.
    uncounted: AtomicU64,
    /// The state of all series when the head was sealed last. Right after a seal their columns are gone, and come back
    /// with the next samples.
    sealed_state: AtomicU64,
    pub(crate) disk: Disk,
}

impl Ladder {
    pub(crate) fn new(budget: Budget, disk: Disk) -> Ladder {
        Ladder {
            budget,
            told: AtomicU8::new(Level::Normal as u8),
            uncounted: AtomicU64::new(0),
            sealed_state: AtomicU64::new(0),
            disk,
        }
    }

    pub(crate) fn tell(&self, level: Level) {
        self.told.store(level as u8, Relaxed);
    }

    pub(crate) fn tell_used(&self, bytes: u64) {
        self.uncounted.store(bytes.saturating_sub(self.budget.counted()), Relaxed);
    }

    /// Takes note of what series take before the head is sealed.
    pub(crate) fn note_sealing(&self) {
        self.sealed_state.store(self.budget.part(Part::SeriesState), Relaxed);
    }

    /// What the series that exist take, or will take again.
    fn expected_state(&self) -> u64 {
        self.budget.part(Part::SeriesState).max(self.sealed_state.load(Relaxed))
    }

    pub(crate) fn level(&self) -> Level {
        Level::Normal.next(self.budget.counted(), self.budget.limit()).max(self.told())
    }

    fn told(&self) -> Level {
        let told = self.told.load(Relaxed);
        Level::ALL.into_iter().find(|&level| level as u8 == told).unwrap_or(Level::Normal)
    }

    /// Whether anything may be written at present.
    pub(crate) fn admit_writes(&self) -> Result<(), AppendError> {
        if self.disk.level() == DiskLevel::ReadOnly {
            let (left, needed) = (self.disk.available() >> 20, self.disk.seal_bytes() >> 20);
            return Err(busy(format!(
                "the data volume has {left}Mi left and a seal needs {needed}Mi, free space on it or enlarge it"
            )));
        }
        if self.level() < Level::RefuseWrites {
            return Ok(());
        }
        let limit = self.budget.limit().max(1);
        let counted = (u128::from(self.budget.counted()) * 100 / u128::from(limit)) as u64;
        let percent = counted.max(Level::RefuseWrites.threshold_percent());
        Err(busy(format!("memory budget {}Mi is {percent}% used", limit >> 20)))
    }

    /// Whether `more` bytes of histograms may be taken into the head: not where writes would be refused with them there.
    pub(crate) fn admit_histograms(&self, more: u64) -> Result<(), AppendError> {
        let used = self.budget.counted().saturating_add(self.uncounted.load(Relaxed));
        let limit = self.budget.limit();
        if more == 0 || Level::Normal.next(used.saturating_add(more), limit) < Level::RefuseWrites {
            return Ok(());
        }
        let needed = more.div_ceil(1 << 10);
        Err(busy(format!("memory budget {}Mi has no room for {needed}Ki of histograms", limit >> 20)))
    }

    /// Whether new series are admitted: those that exist must have room for their samples until the next seal, and for
    /// the columns that exist in two epochs while it runs.
    pub(crate) fn admits_series(&self) -> bool {
        let samples =
            (self.expected_state() / PAYLOAD_SHARE).saturating_sub(self.budget.part(Part::HeadPayload));
        self.level() < Level::RefuseSeries && self.level_while_sealing(samples) < Level::RefuseQueries
    }

    /// Whether the head is sealed although it is not full: memory is short, or would be while the seal runs.
    pub(crate) fn wants_seal(&self) -> bool {
        self.level() >= Level::SealEarly || self.level_while_sealing(0) >= Level::RefuseQueries
    }

    /// The level that a seal would raise if it began after `more` bytes of samples.
    fn level_while_sealing(&self, more: u64) -> Level {
        let used = self.budget.counted().saturating_add(self.uncounted.load(Relaxed));
        let state = self.expected_state();
        let to_come = state.saturating_sub(self.budget.part(Part::SeriesState));
        let then = used.saturating_add(to_come + more + state / SEALING_SHARE);
        Level::Normal.next(then, self.budget.limit())
    }
}

fn busy(reason: String) -> AppendError {
    AppendError::Busy { reason, retry_after_seconds: RETRY_AFTER_SECONDS }
}

#[cfg(test)]
mod tests {
    use metricsstore_budget::{Budget, Level, Part};

    use super::{Disk, Ladder};

    #[test]
    fn the_higher_of_counted_and_told_is_obeyed() {
        let budget = Budget::new(1000);
        let ladder = Ladder::new(budget.clone(), Disk::new(None, None));
        assert_eq!(ladder.level(), Level::Normal);
        budget.set(Part::HeadPayload, 930);
        assert_eq!(ladder.level(), Level::RefuseSeries);
        ladder.tell(Level::RefuseWrites);
        assert!(ladder.admit_writes().is_err());
        ladder.tell(Level::SealEarly);
        assert!(ladder.admit_writes().is_ok() && !ladder.admits_series());
    }

    #[test]
    fn histograms_are_admitted_while_they_leave_room_for_writes() {
        let budget = Budget::new(1000);
        let ladder = Ladder::new(budget.clone(), Disk::new(None, None));
        budget.set(Part::HeadPayload, 800);
        assert!(ladder.admit_histograms(169).is_ok());
        assert!(ladder.admit_histograms(170).is_err());
        // What the process uses beyond what is counted takes room too; a request without histograms needs none.
        ladder.tell_used(990);
        assert!(ladder.admit_histograms(1).is_err() && ladder.admit_histograms(0).is_ok());
    }

    #[test]
    fn room_is_kept_for_the_samples_of_all_series_and_for_the_seal_that_frees_them() {
        let budget = Budget::new(1000);
        let ladder = Ladder::new(budget.clone(), Disk::new(None, None));
        budget.set(Part::SeriesState, 400);
        budget.set(Part::Identity, 100);
        // 500 now, 100 more of samples, 200 while they are sealed.
        assert!(ladder.admits_series() && !ladder.wants_seal());
        ladder.tell_used(579);
        assert!(ladder.admits_series() && !ladder.wants_seal());
        ladder.tell_used(580);
        assert!(!ladder.admits_series() && !ladder.wants_seal());
        budget.set(Part::HeadPayload, 99);
        assert!(!ladder.wants_seal());
        budget.set(Part::HeadPayload, 100);
        assert!(ladder.wants_seal(), "before memory is so short that the seal itself has no room");
        assert_eq!(ladder.level(), Level::Normal);
    }

    #[test]
    fn columns_that_a_seal_freed_come_back_with_the_next_samples() {
        let budget = Budget::new(1000);
        let ladder = Ladder::new(budget.clone(), Disk::new(None, None));
        budget.set(Part::SeriesState, 600);
        assert!(!ladder.admits_series());
        ladder.note_sealing();
        budget.set(Part::SeriesState, 200);
        assert!(!ladder.admits_series(), "the room is that of the series that exist");
        // Fewer of them go on: the next seal tells.
        ladder.note_sealing();
        assert!(ladder.admits_series());
    }
}
