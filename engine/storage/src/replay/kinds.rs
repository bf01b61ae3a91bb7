//! Replay of what few series have beside float samples, and of what only the log keeps. All of it may be there already.
use super::Replay;
use crate::head::Limits;
use crate::identity::SeriesId;
use crate::sync::atomic::Ordering::Relaxed;
use crate::wal::exemplar_record::decode_exemplars;
use crate::wal::histogram_record::{LogHistogram, decode_histograms};
use crate::wal::metadata_record::decode_metadata;
use crate::wal::start_record::decode_starts;
use crate::wal::tombstone_record::decode_tombstones;

impl Replay<'_> {
    pub(super) fn histograms(&mut self, body: &[u8]) -> Result<(), String> {
        decode_histograms(body, |entry| self.histogram(entry))?;
        self.recount();
        Ok(())
    }

    fn histogram(&mut self, entry: &LogHistogram) {
        if !self.is_defined(entry.series) {
            return;
        }
        let store = self.store;
        let (local, time) = (store.layout.local(entry.series), entry.timestamp_ms);
        let view = store.view.load();
        let mut data = view.open[store.layout.shard_of(entry.series)].data.lock();
        if !entry.is_late {
            // What is not newer than the series' last sample has been sealed already.
            data.append_histogram(local, time, &entry.histogram, Limits::NONE);
        } else if data.histogram_at(local, time).is_none() {
            // One that has been sealed already becomes a copy of itself: reads and merges keep one.
            data.take_late_histogram(local, time, &entry.histogram);
        }
        store.newest_ms.fetch_max(time, Relaxed);
    }

    pub(super) fn starts(&mut self, body: &[u8]) -> Result<(), String> {
        for start in decode_starts(body)? {
            if self.is_defined(start.series) {
                let store = self.store;
                let view = store.view.load();
                let mut data = view.open[store.layout.shard_of(start.series)].data.lock();
                data.kinds.push_start(store.layout.local(start.series), start.timestamp_ms, start.start_ms);
            }
        }
        self.recount();
        Ok(())
    }

    fn recount(&self) {
        for epoch in &self.store.view.load().open {
            epoch.data.lock().recount();
        }
    }

    fn is_defined(&mut self, series: u32) -> bool {
        let is_defined = self.defined.contains(self.store, series);
        self.undefined += u64::from(!is_defined);
        is_defined
    }

    pub(super) fn exemplars(&mut self, body: &[u8]) -> Result<(), String> {
        let exemplars = decode_exemplars(body)?;
        let room_bytes = self.store.annotation_room_bytes();
        let mut ring = self.store.exemplars.lock();
        if ring.is_enabled() {
            for exemplar in &exemplars {
                drop(ring.push(exemplar, room_bytes));
            }
        }
        Ok(())
    }

    pub(super) fn metadata(&mut self, body: &[u8]) -> Result<(), String> {
        for metadata in decode_metadata(body)? {
            self.store.families.learn(&metadata, self.store.annotation_room_bytes());
        }
        Ok(())
    }

    pub(super) fn tombstones(&mut self, body: &[u8]) -> Result<(), String> {
        let mut tombstones = decode_tombstones(body)?;
        // One of a series that has ended masks nothing, least of all the series that has its id now.
        tombstones.retain(|tombstone| {
            let series = self.store.identity.series_ref(SeriesId(tombstone.series));
            series.is_some_and(|series| series.order == tombstone.order)
        });
        self.store.tombstones.add(&tombstones);
        Ok(())
    }
}
