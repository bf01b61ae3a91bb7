//! Pages of blocks that were read and found whole, kept in memory as long as the budget has room for them.
//!
//! A page that is read for the first time waits in a short queue, and goes when it reaches its end without having been
//! asked for again; else it moves to the main queue, where each time it was asked for (three at most) gives it another
//! round. So one scan of a block pushes out only what other scans left: the idea of S3-FIFO (Yang et al., SOSP 2023),
//! without its memory of what went.
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap};
use metricsstore_budget::{Budget, Level, Part};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Locks over disjoint parts of the pages.
const SHARDS: usize = 8;
/// The cache takes at most this share of the budget; half of it at [`Level::Shrink`], a quarter at [`Level::SealEarly`],
/// nothing above.
const SHARE: u64 = 8;
/// Of that, pages that were read once take about this share.
const FRESH_SHARE: u64 = 4;
/// A page that is larger than this share of its shard is not kept.
const LARGEST_SHARE: u64 = 2;
/// What a page takes beside its bytes: its entries in map and queue, and the allocator's.
const ENTRY_BYTES: u64 = 112;
/// How often a page can be asked for until it makes no difference.
const MAX_USES: u8 = 3;

/// File and offset of a page.
type Key = (u64, u64);

/// The pages of all blocks of one store.
pub(crate) struct PageCache {
    budget: Budget,
    shards: [Mutex<Shard>; SHARDS],
    hasher: DefaultHashBuilder,
    next_file: AtomicU64,
    told: AtomicU8,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What a cache did since the start, and what it holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PageCacheFigures {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) bytes: u64,
}

/// One open file in a cache: its pages leave the cache with it.
pub(crate) struct CachedFile {
    cache: Arc<PageCache>,
    file: u64,
}

#[derive(Default)]
struct Shard {
    pages: HashMap<Key, Kept>,
    fresh: Queue,
    main: Queue,
}

struct Kept {
    page: Arc<[u8]>,
    uses: u8,
}

#[derive(Default)]
struct Queue {
    keys: VecDeque<Key>,
    bytes: u64,
}

impl PageCache {
    /// An empty cache that counts what it holds in `budget`.
    pub(crate) fn new(budget: &Budget) -> PageCache {
        PageCache {
            budget: budget.clone(),
            shards: std::array::from_fn(|_| Mutex::new(Shard::default())),
            hasher: DefaultHashBuilder::default(),
            next_file: AtomicU64::new(0),
            told: AtomicU8::new(Level::Normal as u8),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// What it counts in.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Takes a file in whose pages are to be kept.
    pub(crate) fn open(self: &Arc<Self>) -> CachedFile {
        CachedFile { cache: Arc::clone(self), file: self.next_file.fetch_add(1, Relaxed) }
    }

    /// Holds no more from here on than a level of pressure allows, and drops what is too much.
    pub(crate) fn obey(&self, level: Level) {
        self.told.store(level as u8, Relaxed);
        let room = self.capacity() / SHARDS as u64;
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.budget.sub(Part::PageCache, shard.shrink(room));
        }
    }

    pub(crate) fn figures(&self) -> PageCacheFigures {
        PageCacheFigures {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            bytes: self.budget.part(Part::PageCache),
        }
    }

    /// Bytes that it may hold at present.
    fn capacity(&self) -> u64 {
        let limit = self.budget.limit();
        let counted = Level::Normal.next(self.budget.counted(), limit) as u8;
        match counted.max(self.told.load(Relaxed)) {
            level if level > Level::SealEarly as u8 => 0,
            halvings => (limit / SHARE) >> halvings,
        }
    }

    fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    fn find(&self, key: Key) -> Option<Arc<[u8]>> {
        let found = self.shard(key).lock().find(key);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Relaxed);
        found
    }

    fn keep(&self, key: Key, page: &Arc<[u8]>) {
        let room = self.capacity() / SHARDS as u64;
        if size(page) > room / LARGEST_SHARE {
            return;
        }
        let mut shard = self.shard(key).lock();
        // Counted while the shard is locked, so that nothing is taken off before it was added.
        self.budget.sub(Part::PageCache, shard.shrink(room - size(page)));
        self.budget.add(Part::PageCache, shard.insert(key, page));
    }

    fn forget(&self, file: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.budget.sub(Part::PageCache, shard.forget(file));
        }
    }
}

impl Drop for PageCache {
    fn drop(&mut self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.budget.sub(Part::PageCache, shard.shrink(0));
        }
    }
}

impl CachedFile {
    /// The page at an offset: from memory, or as `read` gives it, which must have verified it. Several threads that miss
    /// the same page read it each for itself.
    pub(crate) fn page<E>(
        &self,
        offset: u64,
        read: impl FnOnce() -> Result<Arc<[u8]>, E>,
    ) -> Result<Arc<[u8]>, E> {
        let key = (self.file, offset);
        if let Some(page) = self.cache.find(key) {
            return Ok(page);
        }
        let page = read()?;
        self.cache.keep(key, &page);
        Ok(page)
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        self.cache.forget(self.file);
    }
}

fn size(page: &Arc<[u8]>) -> u64 {
    page.len() as u64 + ENTRY_BYTES
}

impl Shard {
    fn find(&mut self, key: Key) -> Option<Arc<[u8]>> {
        let kept = self.pages.get_mut(&key)?;
        kept.uses = (kept.uses + 1).min(MAX_USES);
        Some(Arc::clone(&kept.page))
    }

    /// Adds a page unless it is there; the bytes that came.
    fn insert(&mut self, key: Key, page: &Arc<[u8]>) -> u64 {
        if self.pages.contains_key(&key) {
            return 0;
        }
        self.pages.insert(key, Kept { page: Arc::clone(page), uses: 0 });
        self.fresh.push(key, size(page));
        size(page)
    }

    /// Drops pages until at most `room` bytes are left; the bytes that went. Ends, as each turn either drops a page, moves
    /// one from the fresh to the main queue, or takes one of its uses off one of the main queue.
    fn shrink(&mut self, room: u64) -> u64 {
        let before = self.bytes();
        while self.bytes() > room {
            let from_fresh = self.fresh.bytes > room / FRESH_SHARE || self.main.keys.is_empty();
            let queue = if from_fresh { &mut self.fresh } else { &mut self.main };
            let Some(key) = queue.keys.pop_front() else { break };
            let Some(kept) = self.pages.get_mut(&key) else { continue };
            let bytes = size(&kept.page);
            queue.bytes -= bytes;
            if kept.uses == 0 {
                self.pages.remove(&key);
            } else {
                kept.uses = if from_fresh { 0 } else { kept.uses - 1 };
                self.main.push(key, bytes);
            }
        }
        before - self.bytes()
    }

    fn forget(&mut self, file: u64) -> u64 {
        let before = self.bytes();
        let pages = &mut self.pages;
        for queue in [&mut self.fresh, &mut self.main] {
            queue.keys.retain(|key| {
                if key.0 != file {
                    return true;
                }
                if let Some(kept) = pages.remove(key) {
                    queue.bytes -= size(&kept.page);
                }
                false
            });
        }
        before - self.bytes()
    }

    fn bytes(&self) -> u64 {
        self.fresh.bytes + self.main.bytes
    }
}

impl Queue {
    fn push(&mut self, key: Key, bytes: u64) {
        self.keys.push_back(key);
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::path::Path;

    use metricsstore_vfs::sim::SimFiles;
    use metricsstore_vfs::{File, Files};

    use super::*;

    const PAGE: usize = 1000;

    fn cache(budget: u64) -> (Budget, Arc<PageCache>) {
        let budget = Budget::new(budget);
        let cache = Arc::new(PageCache::new(&budget));
        (budget, cache)
    }

    /// Asks for a page that is made anew when it is not kept; whether it was kept.
    fn ask(file: &CachedFile, number: u64) -> bool {
        let mut was_kept = true;
        let page = file.page(number * PAGE as u64, || {
            was_kept = false;
            Ok::<_, Infallible>(Arc::from(vec![number as u8; PAGE]))
        });
        assert_eq!(page.unwrap()[..], [number as u8; PAGE]);
        was_kept
    }

    #[test]
    fn a_page_is_read_from_its_file_once() {
        let files = SimFiles::new(1);
        let path = Path::new("/data/block");
        files.create_dir_all(Path::new("/data")).unwrap();
        let writer = files.create(path).unwrap();
        writer.append(&[7; PAGE]).unwrap();
        writer.append(&[8; PAGE]).unwrap();
        writer.sync().unwrap();
        let file: Arc<dyn File> = files.open(path).unwrap();
        let (budget, cache) = cache(1 << 20);
        let cached = cache.open();
        let mut reads = 0;
        for offset in [0, PAGE as u64, 0, PAGE as u64, 0] {
            let page = cached.page(offset, || {
                reads += 1;
                let mut page = vec![0; PAGE];
                file.read_exact_at(&mut page, offset).map(|()| Arc::from(page))
            });
            assert_eq!(page.unwrap()[..], [7 + u8::from(offset > 0); PAGE]);
        }
        assert_eq!(reads, 2);
        let bytes = 2 * (PAGE as u64 + ENTRY_BYTES);
        assert_eq!(cache.figures(), PageCacheFigures { hits: 3, misses: 2, bytes });
        drop(cached);
        assert_eq!(budget.counted(), 0, "a file that is closed takes its pages with it");
    }

    #[test]
    fn what_could_not_be_read_is_not_kept() {
        let (budget, cache) = cache(1 << 20);
        let file = cache.open();
        assert_eq!(file.page(0, || Err("no luck")), Err("no luck"));
        assert_eq!(budget.counted(), 0);
        assert!(!ask(&file, 0));
        assert!(ask(&file, 0));
    }

    #[test]
    fn the_cache_stays_within_its_share_of_the_budget() {
        let (budget, cache) = cache(8 << 20);
        let file = cache.open();
        for number in 0..10_000 {
            ask(&file, number);
            assert!(budget.part(Part::PageCache) <= 1 << 20);
        }
        assert!(budget.part(Part::PageCache) > 900 << 10, "and uses it");
    }

    #[test]
    fn one_scan_does_not_push_out_what_is_used() {
        let (_, cache) = cache(8 << 20);
        let file = cache.open();
        let used = 0..300;
        for _ in 0..3 {
            used.clone().for_each(|number| _ = ask(&file, number));
        }
        let scan = cache.open();
        (0..20_000).for_each(|number| _ = ask(&scan, number));
        let kept = used.filter(|&number| ask(&file, number)).count();
        assert!(kept > 290, "{kept} of 300 are still there");
    }

    #[test]
    fn pages_that_nobody_asks_for_any_more_go() {
        let (_, cache) = cache(8 << 20);
        let file = cache.open();
        for _ in 0..9 {
            (0..400).for_each(|number| _ = ask(&file, number));
        }
        // Enough others that are in use for each of the old ones to go round until its uses are spent.
        for first in (1000..9000).step_by(100) {
            for _ in 0..3 {
                (first..first + 100).for_each(|number| _ = ask(&file, number));
            }
        }
        assert!((0..400).filter(|&number| ask(&file, number)).count() < 40);
    }

    #[test]
    fn pressure_shrinks_the_cache_and_its_end_lets_it_grow() {
        let (budget, cache) = cache(8 << 20);
        let file = cache.open();
        let fill = || (0..2000).for_each(|number| _ = ask(&file, number));
        fill();
        for (level, most) in [
            (Level::Shrink, 512 << 10),
            (Level::SealEarly, 256 << 10),
            (Level::RefuseQueries, 0),
            (Level::RefuseWrites, 0),
        ] {
            cache.obey(level);
            assert!(budget.part(Part::PageCache) <= most, "{level}");
            fill();
            assert!(budget.part(Part::PageCache) <= most, "{level}");
        }
        cache.obey(Level::Normal);
        fill();
        assert!(budget.part(Part::PageCache) > 900 << 10);
        // What others use counts too.
        budget.set(Part::HeadPayload, 7 << 20);
        cache.obey(Level::Normal);
        assert_eq!(budget.part(Part::PageCache), 0);
    }

    #[test]
    fn a_page_that_would_fill_the_cache_is_not_kept() {
        let (budget, cache) = cache(8 << 20);
        let file = cache.open();
        let page = file.page(0, || Ok::<_, Infallible>(Arc::from(vec![0; 100 << 10])));
        assert_eq!((page.unwrap().len(), budget.counted()), (100 << 10, 0));
    }

    #[test]
    fn threads_share_the_cache() {
        let (budget, cache) = cache(8 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let cache = &cache;
                scope.spawn(move || {
                    let file = cache.open();
                    for turn in 0..2000_u64 {
                        ask(&file, (turn * (thread + 3)) % 200);
                    }
                });
            }
        });
        assert_eq!(budget.counted(), 0, "all files are closed");
        let figures = cache.figures();
        assert_eq!(figures.hits + figures.misses, 4 * 2000);
    }
}
