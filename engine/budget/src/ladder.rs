//! From how full the budget is to what is shed. Levels rise at once and fall only 5 points below the threshold that
//! raised them, so that a store at a threshold does not flap; only writes resume after one point.
use std::fmt;

use crate::Level;

/// How far below its threshold a level still holds, in percent of the limit.
const HYSTERESIS: u64 = 5;

impl Level {
    /// Every level, lowest first.
    pub const ALL: [Level; 6] = [
        Level::Normal,
        Level::Shrink,
        Level::SealEarly,
        Level::RefuseQueries,
        Level::RefuseSeries,
        Level::RefuseWrites,
    ];

    /// From which share of the limit the level is in force, in percent.
    pub const fn threshold_percent(self) -> u64 {
        match self {
            Level::Normal => 0,
            Level::Shrink => 70,
            Level::SealEarly => 80,
            Level::RefuseQueries => 88,
            Level::RefuseSeries => 93,
            Level::RefuseWrites => 97,
        }
    }

    /// Its name in metrics, logs and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Normal => "normal",
            Level::Shrink => "shrink",
            Level::SealEarly => "seal_early",
            Level::RefuseQueries => "refuse_queries",
            Level::RefuseSeries => "refuse_series",
            Level::RefuseWrites => "refuse_writes",
        }
    }

    /// The level at `used` of `limit` bytes after this one was in force.
    #[must_use]
    pub fn next(self, used: u64, limit: u64) -> Level {
        let raised = highest(used, limit, 0);
        let held = highest(used, limit, HYSTERESIS).min(self);
        // Writes wait no longer than they must: what holds the memory may never shrink, and existing series go on.
        let held = if used_below(used, limit, Level::RefuseWrites.threshold_percent() - 1) {
            held.min(Level::RefuseSeries)
        } else {
            held
        };
        raised.max(held)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn used_below(used: u64, limit: u64, percent: u64) -> bool {
    u128::from(used) * 100 < u128::from(percent) * u128::from(limit)
}

/// The highest level whose threshold, lowered by `slack` points, is reached.
fn highest(used: u64, limit: u64, slack: u64) -> Level {
    let reached = |level: &Level| {
        let percent = level.threshold_percent().saturating_sub(slack);
        !used_below(used, limit, percent)
    };
    Level::ALL.into_iter().rev().find(reached).unwrap_or(Level::Normal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Level::{Normal, RefuseQueries, RefuseSeries, RefuseWrites, SealEarly, Shrink};

    #[test]
    fn levels_rise_at_their_thresholds() {
        for (percent, level) in [
            (0, Normal),
            (69, Normal),
            (70, Shrink),
            (79, Shrink),
            (80, SealEarly),
            (87, SealEarly),
            (88, RefuseQueries),
            (92, RefuseQueries),
            (93, RefuseSeries),
            (96, RefuseSeries),
            (97, RefuseWrites),
            (250, RefuseWrites),
        ] {
            assert_eq!(Normal.next(percent, 100), level, "{percent} %");
        }
    }

    #[test]
    fn levels_fall_five_points_below_the_threshold_that_raised_them_and_writes_resume_after_one() {
        for (from, percent, level) in [
            (RefuseWrites, 96, RefuseWrites),
            (RefuseWrites, 95, RefuseSeries),
            (RefuseWrites, 87, RefuseQueries),
            (RefuseSeries, 88, RefuseSeries),
            (RefuseSeries, 83, RefuseQueries),
            (RefuseQueries, 82, SealEarly),
            (SealEarly, 75, SealEarly),
            (SealEarly, 74, Shrink),
            (Shrink, 65, Shrink),
            (Shrink, 64, Normal),
            (RefuseWrites, 0, Normal),
        ] {
            assert_eq!(from.next(percent, 100), level, "{from} at {percent} %");
        }
    }

    #[test]
    fn a_store_that_stays_at_a_threshold_does_not_flap() {
        let mut level = Normal;
        let mut changes = 0;
        for turn in 0..100 {
            let next = level.next(92 + turn % 2, 100);
            changes += usize::from(next != level);
            level = next;
        }
        assert_eq!((changes, level), (2, RefuseSeries));
    }

    #[test]
    fn a_lower_limit_raises_the_level_of_the_same_use() {
        assert_eq!(Normal.next(1_000, 2_000), Normal);
        assert_eq!(Normal.next(1_000, 1_050), RefuseSeries);
    }

    #[test]
    fn sizes_near_the_largest_number_do_not_overflow() {
        assert_eq!(Normal.next(u64::MAX, u64::MAX), RefuseWrites);
        assert_eq!(Normal.next(1 << 40, u64::MAX), Normal);
        assert_eq!(Normal.next(0, 0), RefuseWrites);
    }
}
