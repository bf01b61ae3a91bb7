//! The read side of the store: selects, and what labels there are, over identity and blocks.
use std::sync::Arc;

use metricsstore_budget::Grant;
use metricsstore_model::read::{Limited, ReadError, Selection, SeriesBatches, Source};
use metricsstore_model::{LabelBuf, Matcher};
use roaring::RoaringBitmap;

use super::Select;
use super::rows::MergedRows;
use crate::StorageError;
use crate::block::Block;
use crate::identity::Identity;
use crate::kinds::KindsSelect;
use crate::store::Store;
use crate::view::{LiveBlock, View};

impl View {
    /// Blocks that may have samples in a time range, ends inclusive.
    fn blocks_within(&self, start_ms: i64, end_ms: i64) -> Vec<Arc<LiveBlock>> {
        self.blocks.iter().filter(|live| live.overlaps(start_ms, end_ms)).map(Arc::clone).collect()
    }
}

impl Store {
    /// Series that may have samples in a time range in head and segments, and the blocks that may have some.
    fn within(&self, start_ms: i64, end_ms: i64) -> (RoaringBitmap, Vec<Arc<LiveBlock>>) {
        let start_ms = start_ms.max(self.retained_from_ms(self.clock.now_ms()));
        let view = self.view.load();
        let mut within = RoaringBitmap::new();
        for segment in view.segments.iter().filter(|s| s.min_ms <= end_ms && s.max_ms >= start_ms) {
            within |= &*segment.series;
        }
        for epochs in [&view.frozen, &view.open] {
            for (shard, epoch) in epochs.iter().enumerate() {
                let data = epoch.data.lock();
                if data.samples > 0 && data.min_ms <= end_ms && data.max_ms >= start_ms {
                    within.extend(data.locals().map(|local| self.layout.global(shard, local)));
                }
            }
        }
        (within, view.blocks_within(start_ms, end_ms))
    }

    /// What identity answers of the series with samples in head and segments in a time range, and the blocks of that range,
    /// as of one moment.
    fn ask<T>(
        &self,
        start_ms: i64,
        end_ms: i64,
        identity: impl FnOnce(&Identity, &RoaringBitmap) -> T,
    ) -> (T, Vec<Arc<LiveBlock>>) {
        let _gate = self.gate.read();
        let (within, blocks) = self.within(start_ms, end_ms);
        (identity(&self.identity, &within), blocks)
    }
}

impl Source for Store {
    fn select(&self, selection: &Selection<'_>, grant: &Grant) -> Result<Box<dyn SeriesBatches>, ReadError> {
        let start_ms = selection.start_ms.max(self.retained_from_ms(self.clock.now_ms()));
        let range = (start_ms, selection.end_ms);
        let (select, kinds, blocks) = {
            let _gate = self.gate.read();
            let selected = self.identity.select(selection.matchers);
            let (view, masks) = (self.view.load(), self.tombstones.masks());
            let kinds = KindsSelect::new(&view, self.layout, &selected.series, &masks, range, grant)?;
            let select = Select::new(&view, self.layout, selected, range, masks, grant)?;
            (select, kinds, view.blocks_within(start_ms, selection.end_ms))
        };
        // What is read of blocks from here on keeps no append waiting.
        let select = select.join(&blocks, selection.matchers)?;
        Ok(Box::new(select.with_kinds(kinds, &blocks)?))
    }

    fn label_names(
        &self,
        any_of: &[Vec<Matcher>],
        start_ms: i64,
        end_ms: i64,
        limit: usize,
    ) -> Result<Limited<String>, ReadError> {
        let (live, blocks) =
            self.ask(start_ms, end_ms, |identity, within| identity.label_names(any_of, Some(within), limit));
        united(live, &blocks, limit, |block| block.label_names(rows_of(block, any_of)?.as_ref()))
    }

    fn label_values(
        &self,
        name: &str,
        any_of: &[Vec<Matcher>],
        start_ms: i64,
        end_ms: i64,
        limit: usize,
    ) -> Result<Limited<String>, ReadError> {
        let (live, blocks) = self.ask(start_ms, end_ms, |identity, within| {
            identity.label_values(name, any_of, Some(within), limit)
        });
        united(live, &blocks, limit, |block| block.label_values(name, rows_of(block, any_of)?.as_ref()))
    }

    fn series(
        &self,
        any_of: &[Vec<Matcher>],
        start_ms: i64,
        end_ms: i64,
        limit: usize,
    ) -> Result<Limited<LabelBuf>, ReadError> {
        let (live, blocks) =
            self.ask(start_ms, end_ms, |identity, within| identity.series(any_of, Some(within), limit));
        if blocks.is_empty() { Ok(live) } else { Ok(united_series(live, &blocks, any_of, limit)?) }
    }
}

/// The rows of a block that pass one of the matcher lists; `None`, for all, when there is none.
fn rows_of(block: &dyn Block, any_of: &[Vec<Matcher>]) -> Result<Option<RoaringBitmap>, StorageError> {
    let mut union = None;
    for matchers in any_of {
        let rows = block.rows(matchers)?;
        *union.get_or_insert_with(RoaringBitmap::new) |= rows;
    }
    Ok(union)
}

/// What identity has and what blocks have, each sorted, as one list.
fn united(
    live: Limited<String>,
    blocks: &[Arc<LiveBlock>],
    limit: usize,
    of_block: impl Fn(&dyn Block) -> Result<Vec<String>, StorageError>,
) -> Result<Limited<String>, ReadError> {
    let Limited { mut items, mut truncated } = live;
    for live in blocks {
        items.extend(of_block(&*live.block)?);
        // At most two lists at a time: sorted ones are merged by a stable sort.
        items.sort();
        items.dedup();
        truncated |= items.len() > limit;
        items.truncate(limit);
    }
    Ok(Limited { items, truncated })
}

/// The least label sets of what identity has and of what blocks have: those of identity are its least ones already.
fn united_series(
    live: Limited<LabelBuf>,
    blocks: &[Arc<LiveBlock>],
    any_of: &[Vec<Matcher>],
    limit: usize,
) -> Result<Limited<LabelBuf>, StorageError> {
    let mut rows = Vec::with_capacity(blocks.len());
    for live in blocks {
        let found = rows_of(&*live.block, any_of)?;
        let all = || (0..live.block.meta().series as u32).collect();
        rows.push((&*live.block, found.unwrap_or_else(all)));
    }
    let mut merged = MergedRows::new(rows)?;
    let mut next_row = || -> Result<Option<LabelBuf>, StorageError> {
        if merged.advance()?.is_none() {
            return Ok(None);
        }
        let mut labels = LabelBuf::new();
        merged.labels(&mut labels)?;
        Ok(Some(labels))
    };
    let (mut items, mut truncated) = (Vec::new(), live.truncated);
    let mut live = live.items.into_iter().peekable();
    let mut row = next_row()?;
    loop {
        let next = match (live.peek(), &row) {
            (None, None) => break,
            (Some(first), Some(second)) if first == second => {
                row = next_row()?;
                live.next()
            }
            (Some(first), second) if second.as_ref().is_none_or(|second| first < second) => live.next(),
            _ => std::mem::replace(&mut row, next_row()?),
        };
        if items.len() == limit {
            truncated = true;
            break;
        }
        items.extend(next);
    }
    Ok(Limited { items, truncated })
}
