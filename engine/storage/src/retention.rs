//! Retention: whole segments and blocks go, by time, and by what everything on disk takes.
//!
//! First out of the manifest, then off the disk. It runs before what needs space, seals, cuts and merges, and never as an
//! answer to an error (prometheus/prometheus#10890, #7245).
//!
//! *By time* goes by the wall clock, as far as it is believed: one that is suddenly ahead of what has passed since the last
//! look is believed only after it was so for a day. Samples that are past retention by it are hidden at once and seen again
//! when it is set right (prometheus/prometheus#2893).
//!
//! *By bytes* takes the oldest first, but nothing of which the disk would not get less: a block whose files have other
//! names, in a snapshot above all, stays as long as they do.
use std::sync::Arc;
use std::time::Duration;

use crate::Maintenance;
use crate::StorageError;
use crate::maintain::Upkeep;
use crate::segment::Segment;
use crate::store::Store;
use crate::sync::atomic::Ordering::Relaxed;
use crate::usage::Usage;
use crate::view::{LiveBlock, View};

/// A clock may be ahead of what has passed by so much.
const MAX_AHEAD_MS: i64 = 10 * 60_000;
/// A clock that is ahead for so long is right.
const DOUBTED: Duration = Duration::from_hours(24);

/// The wall clock as far as it is believed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Believed {
    ms: i64,
    /// When that was, in monotonic time.
    at: Duration,
    /// Since when the wall clock is ahead of it.
    ahead_since: Option<Duration>,
}

impl Believed {
    /// At a start only the newest sample tells how late it is.
    pub(crate) fn at_start(newest_ms: i64, wall_ms: i64, now: Duration) -> Believed {
        let ms = if newest_ms == i64::MIN { wall_ms } else { newest_ms.min(wall_ms) };
        Believed { ms, at: now, ahead_since: None }
    }

    /// Takes what the clocks show into account and returns the time that is believed.
    pub(crate) fn look(&mut self, wall_ms: i64, now: Duration) -> i64 {
        let passed_ms = i64::try_from(now.saturating_sub(self.at).as_millis()).unwrap_or(i64::MAX);
        let expected_ms = self.ms.saturating_add(passed_ms);
        let is_ahead = wall_ms > expected_ms.saturating_add(MAX_AHEAD_MS);
        if is_ahead && self.ahead_since.is_none() {
            let ahead_ms = wall_ms.saturating_sub(expected_ms);
            tracing::warn!(
                ahead_ms,
                "the clock is ahead of the time that has passed; nothing expires by it yet"
            );
        }
        self.ahead_since = is_ahead.then(|| self.ahead_since.unwrap_or(now));
        let is_right = self.ahead_since.is_none_or(|since| now.saturating_sub(since) >= DOUBTED);
        (self.ms, self.at) = (if is_right { wall_ms } else { expected_ms }, now);
        self.ms
    }
}

/// What may go.
enum Candidate {
    Segment(Arc<Segment>),
    Block(Arc<LiveBlock>),
}

impl Candidate {
    /// Its newest sample.
    fn max_ms(&self) -> i64 {
        match self {
            Candidate::Segment(segment) => segment.max_ms,
            Candidate::Block(live) => live.block.meta().max_ms,
        }
    }
}

impl Store {
    /// Everything is loaded and replayed.
    pub(crate) fn believe_clock(&self) {
        let newest_ms = self.newest_ms.load(Relaxed);
        let (wall_ms, now) = (self.clock.now_ms(), self.clock.monotonic());
        self.upkeep.lock().believed = Believed::at_start(newest_ms, wall_ms, now);
    }

    pub(crate) fn expire_when_due(
        &self,
        upkeep: &mut Upkeep,
        done: &mut Maintenance,
    ) -> Result<(), StorageError> {
        let now = self.clock.monotonic();
        let wall_ms = self.clock.now_ms();
        let believed_ms = upkeep.believed.look(wall_ms, now);
        if !upkeep.expiry.is_due(now) {
            return Ok(());
        }
        let expired = self.expire(believed_ms, upkeep, done);
        upkeep.expiry.note(now, expired)
    }

    fn expire(&self, now_ms: i64, upkeep: &mut Upkeep, done: &mut Maintenance) -> Result<(), StorageError> {
        let from_ms = self.retained_from_ms(now_ms);
        let view = self.view.load_full();
        let segments = view.segments.iter().cloned().map(Candidate::Segment);
        let mut candidates: Vec<Candidate> =
            segments.chain(view.blocks.iter().cloned().map(Candidate::Block)).collect();
        candidates.sort_by_key(Candidate::max_ms);
        let mut excess = self.excess_bytes(upkeep);
        let mut going = View { segments: Vec::new(), blocks: Vec::new(), ..View::clone(&view) };
        for candidate in candidates {
            let gain = self.gain_of(&upkeep.usage, &candidate);
            if candidate.max_ms() >= from_ms && (excess == 0 || gain == 0) {
                continue;
            }
            excess = excess.saturating_sub(gain);
            match candidate {
                Candidate::Segment(segment) => going.segments.push(segment),
                Candidate::Block(block) => going.blocks.push(block),
            }
        }
        if going.segments.is_empty() && going.blocks.is_empty() {
            return Ok(());
        }
        let mut kept = View::clone(&view);
        kept.segments.retain(|segment| going.segments.iter().all(|gone| gone.number != segment.number));
        kept.blocks.retain(|live| going.blocks.iter().all(|gone| gone.name() != live.name()));
        self.commit_view(upkeep, kept)?;
        self.remove_segments(upkeep, &going.segments);
        let names: Vec<_> = going.blocks.iter().map(|live| live.name()).collect();
        self.remove_blocks(upkeep, &names);
        done.expired = (going.segments.len() + going.blocks.len()) as u32;
        Ok(())
    }

    /// Bytes above what everything on disk may take. What is in quarantine does not count: good samples must not go for
    /// damaged files, which nobody but the operator removes.
    fn excess_bytes(&self, upkeep: &Upkeep) -> u64 {
        // What could not be removed is on its way out and still counted: nothing goes in its place.
        if upkeep.has_remains() {
            return 0;
        }
        let counted = upkeep.usage.bytes - upkeep.usage.aside_bytes;
        self.ladder.disk.allowed().map_or(0, |allowed| counted.saturating_sub(allowed))
    }

    /// What the disk gets back when this goes.
    fn gain_of(&self, usage: &Usage, candidate: &Candidate) -> u64 {
        match candidate {
            Candidate::Segment(segment) => {
                usage.gain_of_file(&self.segment_path(segment.number), segment.bytes)
            }
            Candidate::Block(live) => usage.gain_of(&live.block.files(), live.block.meta().bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Believed, DOUBTED};

    const HOUR_MS: i64 = 3_600_000;
    const YEAR_MS: i64 = 365 * 24 * HOUR_MS;
    const START_MS: i64 = 1_700_000_000_000;

    #[test]
    fn a_clock_that_runs_ahead_for_less_than_a_day_is_not_believed() {
        let mut believed = Believed::at_start(i64::MIN, START_MS, Duration::ZERO);
        let at = |hours: u64| Duration::from_hours(hours);
        assert_eq!(believed.look(START_MS + HOUR_MS, at(1)), START_MS + HOUR_MS);
        for hours in 2..20 {
            let passed_ms = hours as i64 * HOUR_MS;
            assert_eq!(believed.look(START_MS + YEAR_MS + passed_ms, at(hours)), START_MS + passed_ms);
        }
        assert_eq!(believed.look(START_MS + 20 * HOUR_MS, at(20)), START_MS + 20 * HOUR_MS);
        // The day begins anew.
        assert_eq!(believed.look(START_MS + YEAR_MS, at(21)), START_MS + 21 * HOUR_MS);
        assert_eq!(believed.look(START_MS + YEAR_MS, at(21) + DOUBTED), START_MS + YEAR_MS);
    }

    #[test]
    fn at_a_start_the_newest_sample_tells_how_late_it_is() {
        let mut believed = Believed::at_start(START_MS, START_MS + YEAR_MS, Duration::ZERO);
        assert_eq!(believed.look(START_MS + YEAR_MS, Duration::ZERO), START_MS);
        let mut believed = Believed::at_start(START_MS + YEAR_MS, START_MS, Duration::ZERO);
        assert_eq!(believed.look(START_MS, Duration::ZERO), START_MS);
    }

    #[test]
    fn a_clock_that_is_set_back_is_believed_at_once() {
        let mut believed = Believed::at_start(i64::MIN, START_MS, Duration::ZERO);
        assert_eq!(believed.look(START_MS - YEAR_MS, Duration::from_secs(1)), START_MS - YEAR_MS);
    }
}
