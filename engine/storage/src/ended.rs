//! When ended series go: those that have no sample anywhere, once the rebuilding of the tables pays or they have waited
//! for long enough. How they go is `identity`'s.
use std::time::Duration;

use roaring::RoaringBitmap;

use crate::identity::{Removal, Removed};
use crate::maintain::Upkeep;
use crate::seal::SEAL_AFTER;
use crate::store::Store;
use crate::view::View;

/// Ended series are removed once they are this share of all.
const ENDED_SHARE: u64 = 16;
/// However few they are, they are removed so often while a block's time passes: with the seal that does it, each leaves
/// within one cut.
const REMOVALS_PER_BLOCK: i64 = 2;

/// A point in time, by the newest sample and by the clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemovalMark {
    data_ms: i64,
    clock: Duration,
}

impl RemovalMark {
    /// Nothing was removed yet in this process, which began then.
    pub(crate) fn before_any(clock: Duration) -> RemovalMark {
        RemovalMark { data_ms: i64::MIN, clock }
    }
}

impl Store {
    /// Begins to remove what has ended, when that is due. Writes go on meanwhile. Nothing is pending, and the log does
    /// not lag: it has no samples of series that went before.
    pub(crate) fn begin_removal(&self, upkeep: &mut Upkeep) -> Option<Removal> {
        // Series that are created from here on may get their first sample at any time.
        let before = self.identity.next_order();
        let live = self.live_series(&self.view.load());
        if upkeep.log_lags || !self.is_removal_due(upkeep, &live) {
            return None;
        }
        let removal = self.identity.prepare_removal(&live, before);
        if removal.is_some() {
            upkeep.removal = self.removal_mark();
        }
        removal
    }

    /// Removes them but for those that got a sample meanwhile. Nobody appends.
    pub(crate) fn finish_removal(&self, view: &View, removal: Removal) -> Removed {
        let shards: Vec<_> = view.open.iter().map(|epoch| epoch.data.lock()).collect();
        self.identity.finish_removal(removal, |id| {
            shards.get(self.layout.shard_of(id)).is_some_and(|data| data.has_samples(self.layout.local(id)))
        })
    }

    /// Series end, too, where nothing is written any more, so that nothing is ever sealed. Nothing is pending.
    pub(crate) fn is_idle_removal_due(&self, upkeep: &Upkeep) -> bool {
        self.clock.monotonic().saturating_sub(upkeep.epoch_began) >= SEAL_AFTER
            && self.head_figures().samples == 0
            && self.is_removal_due(upkeep, &self.live_series(&self.view.load()))
    }

    fn is_removal_due(&self, upkeep: &Upkeep, live: &RoaringBitmap) -> bool {
        let series = self.identity.len() as u64;
        let ended = series.saturating_sub(live.len());
        let (last, now) = (upkeep.removal, self.removal_mark());
        let wait_ms = self.options.block_duration_ms / REMOVALS_PER_BLOCK;
        let has_waited = now.data_ms.saturating_sub(last.data_ms) >= wait_ms
            || now.clock.saturating_sub(last.clock).as_millis() >= u128::from(wait_ms.unsigned_abs());
        ended > 0 && (has_waited || ended * ENDED_SHARE >= series)
    }

    fn removal_mark(&self) -> RemovalMark {
        RemovalMark { data_ms: self.credible_newest_ms(), clock: self.clock.monotonic() }
    }

    /// Series that have a sample anywhere. Nothing is frozen when this is asked.
    fn live_series(&self, view: &View) -> RoaringBitmap {
        let mut live = RoaringBitmap::new();
        for segment in &view.segments {
            live |= &*segment.all_series;
        }
        for (shard, epoch) in view.open.iter().enumerate() {
            live.extend(epoch.data.lock().locals().map(|local| self.layout.global(shard, local)));
        }
        live
    }
}
