//! The memory and the disk ladder: what is refused when.
use metricsstore_budget::{Budget, Level, Part};
use metricsstore_model::AppendError;

use crate::DiskLevel;
use crate::disk::Disk;
use crate::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// This share of all series' state may exist twice while a seal runs.
const SEALING_SHARE: u64 = 4;
/// What the series that exist still fill with samples before a seal frees it, as a share of their state: about half of
/// them take a fragment of 32 bytes.
const PAYLOAD_SHARE: u64 = 4;
const RETRY_AFTER_SECONDS: u32 = 5;

/// What the store obeys: the higher of what it counts itself and what it is told.
pub(crate) struct Ladder {
    budget: Budget,
    told: AtomicU8,
    pub(crate) disk: Disk,
}

impl Ladder {
    pub(crate) fn new(budget: Budget, disk: Disk) -> Ladder {
        Ladder { budget, told: AtomicU8::new(Level::Normal as u8), disk }
    }

    pub(crate) fn tell(&self, level: Level) {
        self.told.store(level as u8, Relaxed);
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

    /// Whether new series are admitted: those that exist must have room for their samples until the next seal, and for
    /// the columns that some have in two epochs while it runs. What the process needs besides is not counted here, so
    /// that this ends a good way below the level at which series are refused.
    pub(crate) fn admits_series(&self) -> bool {
        let state = self.budget.part(Part::SeriesState);
        let samples = (state / PAYLOAD_SHARE).saturating_sub(self.budget.part(Part::HeadPayload));
        let then = self.budget.counted() + samples + state / SEALING_SHARE;
        self.level() < Level::RefuseSeries
            && Level::Normal.next(then, self.budget.limit()) < Level::RefuseQueries
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
        let ladder = Ladder::new(budget.clone(), Disk::new(None));
        assert_eq!(ladder.level(), Level::Normal);
        budget.set(Part::HeadPayload, 930);
        assert_eq!(ladder.level(), Level::RefuseSeries);
        ladder.tell(Level::RefuseWrites);
        assert!(ladder.admit_writes().is_err());
        ladder.tell(Level::SealEarly);
        assert!(ladder.admit_writes().is_ok() && !ladder.admits_series());
    }
}
