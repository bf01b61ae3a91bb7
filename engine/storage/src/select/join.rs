//! Joins the series of identity with rows of blocks.
//!
//! Who is who tells [`fingerprint`](crate::block::series::fingerprint), which blocks have by row and which costs two
//! additions for a series of identity. The order of label sets comes with the rows; only series that stand in no block,
//! those that are younger than the newest, have to be sorted.
use std::sync::Arc;

use hashbrown::HashTable;
use metricsstore_budget::Grant;
use metricsstore_model::read::{ReadError, SeriesLabels, SeriesRef};
use metricsstore_model::{LabelBuf, Matcher};
use roaring::RoaringBitmap;

use super::held::Held;
use super::roster::Roster;
use super::rows::{BlockRow, MergedRows};
use crate::StorageError;
use crate::block::Block;
use crate::identity::{Labels, SeriesId};

/// Series whose labels are decoded before more memory is reserved.
const SERIES_AT_ONCE: usize = 1024;
/// Bytes of the result that are reserved at a time.
const BYTES_AT_ONCE: u64 = 256 << 10;
/// Of a series and of a row in it, with room for the growth of vectors.
const SERIES_BYTES: usize = 2 * (size_of::<(SeriesId, SeriesRef)>() + 2 * size_of::<u32>());
const ROW_BYTES: usize = 2 * size_of::<BlockRow>();
/// A fingerprint, its place in the table, and what is remembered of the rows of identity.
const LIVE_BYTES: usize = 64;
/// Text of a label set, beside its pairs, as it is counted before it is known.
const LABEL_BYTES: usize = 512;

/// Nobody in the place of a series of identity.
pub(super) const NOBODY: u32 = u32::MAX;

pub(super) struct Join<'s> {
    pub(super) live: &'s [(SeriesId, SeriesRef)],
    pub(super) labels: &'s Labels,
    pub(super) blocks: &'s [Arc<dyn Block>],
    pub(super) matchers: &'s [Matcher],
    pub(super) grant: &'s Grant,
}

/// Everybody, and where each stood among the series of identity ([`NOBODY`] for those that only blocks know).
pub(super) struct Joined {
    pub(super) roster: Roster,
    pub(super) was: Vec<u32>,
    /// What both take.
    pub(super) held: Held,
}

impl Join<'_> {
    pub(super) fn run(&self) -> Result<Joined, ReadError> {
        let mut scratch = Held::new(self.grant);
        let mut rows: Vec<(&dyn Block, RoaringBitmap)> = Vec::with_capacity(self.blocks.len());
        for block in self.blocks {
            let found = block.rows(self.matchers)?;
            scratch.grow(found.serialized_size() as u64)?;
            rows.push((&**block, found));
        }
        scratch.grow((self.live.len() * LIVE_BYTES) as u64)?;
        let known = Known::new(self.labels.fingerprints(self.live));
        let mut joined = Joined { roster: Roster::default(), was: Vec::new(), held: Held::new(self.grant) };
        let mut is_joined = vec![false; self.live.len()];
        let mut merged = MergedRows::new(rows)?;
        while let Some(fingerprint) = merged.advance()? {
            let place = known.find(fingerprint);
            if let Some(is_joined) = is_joined.get_mut(place as usize) {
                *is_joined = true;
            }
            joined.push(self.live.get(place as usize).copied(), place, &merged.rows)?;
        }
        drop((known, merged));
        scratch.release();
        let young: Vec<u32> = (0..).zip(is_joined).filter_map(|(place, is)| (!is).then_some(place)).collect();
        if young.is_empty() { Ok(joined) } else { self.with_young(&joined, &young, scratch) }
    }

    /// Adds series that stand in no block.
    fn with_young(&self, old: &Joined, young: &[u32], mut scratch: Held) -> Result<Joined, ReadError> {
        let mut sorted: Vec<(LabelBuf, u32)> = Vec::with_capacity(young.len());
        for chunk in young.chunks(SERIES_AT_ONCE) {
            scratch.grow((chunk.len() * (LABEL_BYTES + size_of::<(LabelBuf, u32)>())) as u64)?;
            sorted.extend(chunk.iter().map(|&place| {
                let mut labels = LabelBuf::new();
                self.labels.labels(self.live[place as usize].1, &mut labels);
                (labels, place)
            }));
        }
        sorted.sort_unstable();
        let mut joined = Joined { roster: Roster::default(), was: Vec::new(), held: Held::new(self.grant) };
        let mut from = 0;
        for (labels, place) in sorted {
            let to = self.first_after(&old.roster, from, &labels)?;
            joined.copy(old, from, to)?;
            joined.push(Some(self.live[place as usize]), place, &[])?;
            from = to;
        }
        joined.copy(old, from, old.roster.len())?;
        Ok(joined)
    }

    /// The first series from `from` on with a greater label set, found in few steps when it is near.
    fn first_after(&self, roster: &Roster, from: usize, labels: &LabelBuf) -> Result<usize, StorageError> {
        let mut buffer = LabelBuf::new();
        let mut is_less = |place: usize| match roster.rows(place).first() {
            Some(row) => {
                self.blocks[row.block as usize].labels(row.row, &mut buffer)?;
                Ok::<bool, StorageError>(buffer < *labels)
            }
            None => Ok(true),
        };
        // All before `low` are less, `high` is not, if there is such a one.
        let (mut low, mut high, mut step) = (from, roster.len(), 1);
        while low < high {
            let probe = (low + step - 1).min(high - 1);
            if !is_less(probe)? {
                high = probe;
                break;
            }
            low = probe + 1;
            step *= 2;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if is_less(middle)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

impl Joined {
    fn push(
        &mut self,
        live: Option<(SeriesId, SeriesRef)>,
        was: u32,
        rows: &[BlockRow],
    ) -> Result<(), ReadError> {
        let needed =
            (self.roster.len() + 1) * SERIES_BYTES + (self.roster.row_count() + rows.len()) * ROW_BYTES;
        if self.held.bytes() < needed as u64 {
            self.held.grow(BYTES_AT_ONCE.max(needed as u64 - self.held.bytes()))?;
        }
        self.roster.push(live, rows);
        self.was.push(was);
        Ok(())
    }

    fn copy(&mut self, from: &Joined, start: usize, end: usize) -> Result<(), ReadError> {
        for place in start..end {
            self.push(Some(from.roster.live()[place]), from.was[place], from.roster.rows(place))?;
        }
        Ok(())
    }
}

/// Series of identity by their fingerprints.
struct Known {
    fingerprints: Vec<u128>,
    places: HashTable<u32>,
}

impl Known {
    fn new(fingerprints: Vec<u128>) -> Known {
        let mut places = HashTable::with_capacity(fingerprints.len());
        for (place, &fingerprint) in (0..).zip(&fingerprints) {
            places
                .insert_unique(fingerprint as u64, place, |&other: &u32| fingerprints[other as usize] as u64);
        }
        Known { fingerprints, places }
    }

    fn find(&self, fingerprint: u128) -> u32 {
        let found =
            self.places.find(fingerprint as u64, |&place| self.fingerprints[place as usize] == fingerprint);
        found.copied().unwrap_or(NOBODY)
    }
}
