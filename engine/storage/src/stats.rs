//! The store in numbers.

use crate::StoreStats;
use crate::store::Store;
use crate::sync::atomic::Ordering::Relaxed;

pub(crate) fn collect(store: &Store) -> StoreStats {
    let counters = &store.counters;
    let (wal_segments, wal_bytes, wal_syncs) = store.log.figures();
    let pages = store.blocks.pages.figures();
    let mut stats = StoreStats {
        page_cache_hits: pages.hits,
        page_cache_misses: pages.misses,
        series: store.identity.len() as u64,
        series_created: counters.series_created.load(Relaxed),
        series_removed: counters.series_removed.load(Relaxed),
        samples_appended: counters.samples_appended.load(Relaxed),
        late_samples: counters.late_samples.load(Relaxed),
        wal_bytes,
        wal_segments,
        wal_syncs,
        disk_bytes: counters.disk_bytes.load(Relaxed),
        seals: counters.seals.load(Relaxed),
        cuts: counters.cuts.load(Relaxed),
        merges: counters.merges.load(Relaxed),
        compactions: counters.compactions.load(Relaxed),
        compactions_failed: counters.compactions_failed.load(Relaxed),
        series_left_out: counters.series_left_out.load(Relaxed),
        quarantined: counters.quarantined.load(Relaxed),
        unclean_start: counters.unclean_start.load(Relaxed),
        read_only: store.read_only(),
        read_only_entered: store.ladder.disk.read_only_entered.load(Relaxed),
        disk_level: store.ladder.disk.level(),
        retention_bytes: store.ladder.disk.allowed(),
        reserve_bytes: store.ladder.disk.reserve(),
        refused: counters.refused(),
        ..StoreStats::default()
    };
    [stats.snapshots, stats.snapshots_made, stats.snapshots_expired, stats.snapshot_failures] =
        store.snapshots.figures();
    stats.newest_snapshot_ms = store.snapshots.newest_ms();
    stats.snapshot_bytes = counters.snapshot_bytes.load(Relaxed);
    let view = store.view.load();
    for live in &view.blocks {
        let meta = live.block.meta();
        stats.block_count += 1;
        stats.block_bytes += meta.bytes;
        widen(&mut stats, meta.min_ms, meta.max_ms);
    }
    for segment in &view.segments {
        stats.segment_count += 1;
        stats.segment_bytes += segment.bytes;
        widen(&mut stats, segment.min_ms, segment.max_ms);
    }
    for epoch in view.frozen.iter().chain(&view.open) {
        let data = epoch.data.lock();
        let (streams, private) = data.stream_figures();
        stats.streams += streams;
        stats.private_streams += private;
        stats.head_samples += data.samples;
        if data.samples > 0 {
            widen(&mut stats, data.min_ms, data.max_ms);
            let head_min = stats.head_min_time_ms.map_or(data.min_ms, |ms| ms.min(data.min_ms));
            stats.head_min_time_ms = Some(head_min);
        }
    }
    stats
}

fn widen(stats: &mut StoreStats, min_ms: i64, max_ms: i64) {
    stats.min_time_ms = Some(stats.min_time_ms.map_or(min_ms, |ms| ms.min(min_ms)));
    stats.max_time_ms = Some(stats.max_time_ms.map_or(max_ms, |ms| ms.max(max_ms)));
}
