//! Removing series: the next generation of the tables is built beside the present one, in short read sections, while
//! series are found and created as ever; only what happened meanwhile is left to do when it takes its place.
use std::sync::Arc;

use metricsstore_budget::Level;
use roaring::RoaringBitmap;

use super::raw_cache::RawCache;
use super::rows::NONE;
use super::series::SeriesTable;
use super::tables::{PairSet, Tables};
use super::{Identity, ROWS_AT_ONCE};
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Ids and raw keys that are copied in one read section.
const IDS_AT_ONCE: u32 = 2048;
const SLOTS_AT_ONCE: usize = 16 << 10;
/// Rounds of copying the series that were created during the round before.
const MAX_ROUNDS: usize = 16;
/// When more series than this came back to life meanwhile, nothing is removed this time: copying them would keep
/// writers waiting.
const MAX_REVIVED: u64 = 4096;

/// The next generation, on its way to take the place of the present one.
pub struct Removal {
    copy: Copy,
    cache: RawCache,
    leaving: RoaringBitmap,
    /// Series created from this mark on are not copied yet.
    mark: u64,
    room: Room,
}

/// Bytes counted for the copy; given back with it.
struct Room {
    aside: Arc<AtomicU64>,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.aside.store(0, Ordering::Relaxed);
    }
}

/// The series that went, and what held them: dropping it takes a while, so it is not done under a lock.
pub struct Removed {
    /// Their ids.
    pub series: RoaringBitmap,
    _tables: Option<Arc<RwLock<Tables>>>,
    _cache: RawCache,
}

/// Tables that are filled from others.
struct Copy {
    next: Tables,
    /// New rows by old ones.
    moved: Vec<u32>,
    scratch: PairSet,
}

impl Copy {
    fn series(&mut self, from: &Tables, id: u32, order: u64) {
        let Some(rows) = from.series.get(id) else { return };
        self.moved.resize(from.rows.len(), NONE);
        let Copy { next, moved, scratch } = self;
        let rows = rows.map(|row| {
            if moved[row as usize] == NONE {
                moved[row as usize] = next.intern_labels(from.row_labels(row), scratch);
            }
            moved[row as usize]
        });
        next.series.insert(&mut next.rows, id, rows, order);
    }
}

impl Tables {
    fn copy(&self, leaving: &RoaringBitmap) -> Copy {
        let mut next = self.successor();
        let series = self.series.len() - leaving.len() as usize;
        next.series = SeriesTable::with_room(series, self.series.id_bound());
        Copy { next, moved: vec![NONE; self.rows.len()], scratch: PairSet::default() }
    }

    /// The next generation: all series but the `ended` ones, with their ids and orders, and nothing else.
    pub(super) fn without(&self, ended: RoaringBitmap) -> Tables {
        let mut copy = self.copy(&ended);
        let mut order_of = self.series.orders.ascending();
        for (id, _) in self.series.iter().filter(|&(id, _)| !ended.contains(id)) {
            copy.series(self, id, order_of(id));
        }
        copy.finish(ended)
    }
}

impl Copy {
    /// The ids of the `ended` rest until the next removal.
    fn finish(mut self, ended: RoaringBitmap) -> Tables {
        let series = &mut self.next.series;
        series.extend_to(ended.max().map_or(0, |id| id as usize + 1));
        series.free -= &ended;
        series.resting = ended;
        self.next
    }
}

impl Identity {
    /// Begins to remove every series that was created before the mark `before` and is not in `live`; [`None`] when
    /// there is none (ids that rest since the removal before are then free), or no memory for the copy. Series are
    /// found, created and used meanwhile, those that are about to leave too.
    ///
    /// The caller says by calling it that no sample of a series that went earlier is left in the log.
    pub fn prepare_removal(&self, live: &RoaringBitmap, before: u64) -> Option<Removal> {
        let tables = self.tables.load_full();
        let leaving = leaving(&tables.read(), live, before);
        if leaving.is_empty() {
            let _writer = self.writer.lock();
            tables.write().series.release_resting();
            return None;
        }
        let Some(room) = self.set_room_aside(leaving.len()) else {
            tracing::warn!("memory is too short for the copy that the removal of ended series takes");
            return None;
        };
        let mut copy = tables.read().copy(&leaving);
        let bound = tables.read().series.id_bound();
        for first in (0..bound).step_by(IDS_AT_ONCE as usize) {
            let tables = tables.read();
            let mut order_of = tables.series.orders.ascending();
            for id in first..bound.min(first + IDS_AT_ONCE) {
                let order = order_of(id);
                // An id that was free may be in use by now; its series is created after the mark.
                if order < before && !leaving.contains(id) {
                    copy.series(&tables, id, order);
                }
            }
        }
        let cache = self.cache_without(&leaving);
        let mut removal = Removal { copy, cache, leaving, mark: before, room };
        for _ in 0..MAX_ROUNDS {
            if removal.catch_up(&tables.read(), self.next_order.load(Ordering::Acquire)) {
                break;
            }
        }
        Some(removal)
    }

    /// Removes the series of `removal` from symbols, postings, caches and ids, but for those of which `is_alive` says
    /// that they got samples meanwhile. Ids and orders of the others stay. Freed ids rest until the next removal, since
    /// a reader may still hold them, and are given out again after it.
    ///
    /// The caller says that the others are gone from everything that names ids (head, log, segments), and lets no batch
    /// stand between [`Identity::resolve`] and its use of ids of such series.
    pub fn finish_removal(&self, mut removal: Removal, is_alive: impl Fn(u32) -> bool) -> Removed {
        let _writer = self.writer.lock();
        let tables = self.tables.load_full();
        let revived: RoaringBitmap = removal.leaving.iter().filter(|&id| is_alive(id)).collect();
        if revived.len() > MAX_REVIVED {
            return Removed { series: RoaringBitmap::new(), _tables: None, _cache: removal.cache };
        }
        {
            let tables = tables.read();
            while !removal.catch_up(&tables, self.next_order.load(Ordering::Acquire)) {}
            for id in &revived {
                removal.copy.series(&tables, id, tables.series.orders.get(id));
            }
        }
        let ended = removal.leaving - revived;
        self.tables.store(Arc::new(RwLock::new(removal.copy.finish(ended.clone()))));
        let cache = std::mem::replace(&mut *self.cache.write(), removal.cache);
        drop(removal.room);
        self.account();
        Removed { series: ended, _tables: Some(tables), _cache: cache }
    }

    /// The raw keys of series that stay. Keys that are noted meanwhile may be missing: they only save time.
    fn cache_without(&self, leaving: &RoaringBitmap) -> RawCache {
        let (series, keys) = (self.len().max(1), self.cache.read().len());
        let mut cache = RawCache::with_room(keys * series.saturating_sub(leaving.len() as usize) / series);
        let mut slot = 0;
        loop {
            let present = self.cache.read();
            if slot >= present.slots() {
                return cache;
            }
            present.copy_into(slot..slot + SLOTS_AT_ONCE, |id| !leaving.contains(id), &mut cache);
            slot += SLOTS_AT_ONCE;
        }
    }

    /// Counts the copy before it is made. Where there is no room for it, raw keys are given up.
    fn set_room_aside(&self, leaving: u64) -> Option<Room> {
        let fits = || {
            let footprint = self.footprint();
            let tables = footprint.symbols + footprint.identity + footprint.postings;
            let staying = (self.len() as u64).saturating_sub(leaving);
            // With some slack: tables grow in steps.
            let copy = (tables + footprint.raw_cache) * staying / (self.len() as u64).max(1);
            let copy = copy + copy / 8;
            let then = self.budget.counted() + copy;
            (Level::Normal.next(then, self.budget.limit()) < Level::RefuseWrites).then_some(copy)
        };
        let copy = fits().or_else(|| {
            self.shed_raw_keys();
            fits()
        });
        self.aside.store(copy?, Ordering::Relaxed);
        self.account();
        Some(Room { aside: Arc::clone(&self.aside) })
    }
}

impl Removal {
    /// Copies some of the series created since the mark; whether that were all.
    fn catch_up(&mut self, tables: &Tables, next_order: u64) -> bool {
        let (created, mark) = tables.created_in(self.mark..next_order, ROWS_AT_ONCE);
        for (id, order) in created {
            self.copy.series(tables, id, order);
        }
        self.mark = mark;
        mark >= next_order
    }
}

fn leaving(tables: &Tables, live: &RoaringBitmap, before: u64) -> RoaringBitmap {
    let mut leaving = tables.series.ids();
    leaving -= live;
    let mut order_of = tables.series.orders.ascending();
    let young: Vec<u32> = leaving.iter().filter(|&id| order_of(id) >= before).collect();
    for id in young {
        leaving.remove(id);
    }
    leaving
}
