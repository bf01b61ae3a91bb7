//! Finds the timestamp stream that a series shares: its samples come decoded, and which stream they came from is known
//! no longer.
//!
//! Most series have all the times of their stream, and a hash of the times finds it. The others (a series that began or
//! ended within the block, a scrape that lacked it) have some of them: a few times of each stream, chosen by a hash of
//! the time, lead to the streams that may have all of a series' times, and reading those shows whether they do. The rows
//! that the series lacks are absent cells then, which cost far less than a stream of its own.
use std::sync::Arc;

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_128;

use super::page::PageSink;
use super::times::TimesWriter;
use crate::StorageError;

/// Streams that are known by the hash of their times; with more, learning starts anew.
const MAX_KNOWN: usize = 7 << 15;
/// Times that lead to streams; with more, every other one is forgotten.
const MAX_ANCHORS: usize = 7 << 15;
/// One in 16 times is an anchor at first.
const FIRST_LEVEL: u32 = 4;
/// Anchors of one stream, its ends aside.
const STREAM_ANCHORS: usize = 256;
/// Streams that are compared with a series.
const CANDIDATES: usize = 4;
/// Anchors of a series that are looked up.
const LOOKUPS: usize = 12;
/// A series uses a stream of which it has at least one in so many rows.
const MIN_SHARE: usize = 2;
/// Decoded times that are kept to compare with.
const CACHED_TIMES: usize = 256 << 10;

#[derive(Default)]
pub(super) struct Finder {
    known: HashMap<[u64; 2], u32>,
    anchors: HashMap<i64, u32>,
    /// How often anchors became fewer.
    thinned: u32,
    decoded: HashMap<u32, Arc<[i64]>>,
    decoded_times: usize,
    bytes: Vec<u8>,
}

/// The stream of a series.
pub(super) enum Found {
    /// The times are those of the stream.
    Whole(u32),
    /// The times are in these rows of it.
    Rows(u32, Vec<u32>),
}

/// Times are alike in their low bits, their hashes are not.
fn level_of(time_ms: i64) -> u32 {
    (time_ms as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).leading_zeros()
}

impl Finder {
    /// What [`level_of`] an anchor has at least.
    fn level(&self) -> u32 {
        FIRST_LEVEL + self.thinned
    }

    /// Finds the stream for these ascending times, of which there is one at least, or writes it.
    pub(super) fn stream(
        &mut self,
        times: &[i64],
        writer: &mut TimesWriter,
        sink: &mut PageSink,
    ) -> Result<Found, StorageError> {
        self.bytes.clear();
        self.bytes.extend(times.iter().flat_map(|time| time.to_le_bytes()));
        let hash = xxh3_128(&self.bytes);
        let key = [hash as u64, (hash >> 64) as u64];
        if let Some(&stream) = self.known.get(&key) {
            return Ok(Found::Whole(stream));
        }
        for stream in self.candidates(times) {
            let all = self.times(stream, writer, sink)?;
            if let Some(rows) = rows_in(&all, times) {
                return Ok(Found::Rows(stream, rows));
            }
        }
        let stream = writer.push(times, sink)?;
        self.learn(key, stream, times);
        Ok(Found::Whole(stream))
    }

    fn candidates(&self, times: &[i64]) -> Vec<u32> {
        let ends = [times[0], times[times.len() - 1]];
        let level = self.level();
        let chosen = times.iter().copied().filter(|&time| level_of(time) >= level).take(LOOKUPS);
        let mut found = Vec::new();
        for time in ends.into_iter().chain(chosen) {
            if let Some(&stream) = self.anchors.get(&time)
                && !found.contains(&stream)
                && found.len() < CANDIDATES
            {
                found.push(stream);
            }
        }
        found
    }

    fn times(
        &mut self,
        stream: u32,
        writer: &TimesWriter,
        sink: &PageSink,
    ) -> Result<Arc<[i64]>, StorageError> {
        if let Some(times) = self.decoded.get(&stream) {
            return Ok(Arc::clone(times));
        }
        let times = writer.read(stream, sink)?;
        if self.decoded_times + times.len() > CACHED_TIMES {
            self.decoded.clear();
            self.decoded_times = 0;
        }
        self.decoded_times += times.len();
        self.decoded.insert(stream, Arc::clone(&times));
        Ok(times)
    }

    fn learn(&mut self, key: [u64; 2], stream: u32, times: &[i64]) {
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(key, stream);
        while self.anchors.len() + STREAM_ANCHORS + 2 > MAX_ANCHORS {
            self.thinned += 1;
            let level = self.level();
            self.anchors.retain(|&time, _| level_of(time) >= level);
        }
        let level = self.level();
        let chosen = times.iter().copied().filter(|&time| level_of(time) >= level).take(STREAM_ANCHORS);
        for time in [times[0], times[times.len() - 1]].into_iter().chain(chosen) {
            // A longer stream is the better candidate, and a shorter one of the same times is of no use beside it.
            self.anchors.insert(time, stream);
        }
    }
}

/// The rows of `all` that have `times`; `None` where one is not in there, or they are too few of those that they span.
fn rows_in(all: &[i64], times: &[i64]) -> Option<Vec<u32>> {
    let start = all.binary_search(&times[0]).ok()?;
    let end = all.binary_search(&times[times.len() - 1]).ok()? + 1;
    if end - start > times.len() * MIN_SHARE {
        return None;
    }
    let mut rows = Vec::with_capacity(times.len());
    let mut wanted = times.iter().peekable();
    for (row, time) in all[start..end].iter().enumerate() {
        if wanted.next_if_eq(&time).is_some() {
            rows.push((start + row) as u32);
        }
    }
    wanted.next().is_none().then_some(rows)
}
