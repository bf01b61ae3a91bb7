//! What a series has at a timestamp in blocks: they know series by their labels only.
use std::sync::Arc;

use metricsstore_model::LabelBuf;
use metricsstore_model::histogram::Histogram;

use crate::StorageError;
use crate::block::BlockCursor;
use crate::identity::{Identity, SeriesId};
use crate::kinds::{Kind, decode_histograms};
use crate::view::LiveBlock;

/// Looks up samples of one series after the other.
pub(super) struct InBlocks<'v> {
    blocks: &'v [Arc<LiveBlock>],
    identity: &'v Identity,
    /// One for each block, made when its first sample is asked for.
    cursors: Vec<Option<Box<dyn BlockCursor>>>,
    /// The series asked for last, its labels, and its row in the blocks that were looked into.
    series: Option<u32>,
    labels: LabelBuf,
    rows: Vec<Row>,
}

/// The row of a series in a block.
#[derive(Clone, Copy)]
enum Row {
    /// Nobody has asked yet.
    Unknown,
    None,
    Some(u32),
}

/// A row with what reads its samples.
type RowCursor<'c> = (u32, &'c mut Box<dyn BlockCursor>);

impl<'v> InBlocks<'v> {
    pub(super) fn new(blocks: &'v [Arc<LiveBlock>], identity: &'v Identity) -> InBlocks<'v> {
        InBlocks {
            blocks,
            identity,
            cursors: Vec::new(),
            series: None,
            labels: LabelBuf::new(),
            rows: Vec::new(),
        }
    }

    /// The bits of a series' sample at this time.
    pub(super) fn value_at(&mut self, series: u32, timestamp_ms: i64) -> Result<Option<u64>, StorageError> {
        let blocks = self.blocks;
        let (mut payload, mut pieces) = (Vec::new(), Vec::new());
        for at in self.overlapping(timestamp_ms) {
            let Some((row, cursor)) = self.row_in(at, series)? else { continue };
            payload.clear();
            pieces.clear();
            cursor.pieces_into(row, (timestamp_ms, timestamp_ms), &mut payload, &mut pieces)?;
            for piece in &pieces {
                let times = cursor.times(piece.stream)?;
                let Ok(wanted) = times.binary_search(&timestamp_ms) else { continue };
                let (wanted, mut found) = (wanted as u32, None);
                piece
                    .decode(&payload, wanted..wanted + 1, |_, bits| found = Some(bits))
                    .map_err(|what| damaged(&blocks[at], what))?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    /// The histogram of a series at this time.
    pub(super) fn histogram_at(
        &mut self,
        series: u32,
        timestamp_ms: i64,
    ) -> Result<Option<Histogram>, StorageError> {
        let blocks = self.blocks;
        for at in self.overlapping(timestamp_ms) {
            let Some((row, cursor)) = self.row_in(at, series)? else { continue };
            let column = cursor.kind_column(Kind::Histograms, row, (timestamp_ms, timestamp_ms))?;
            let Some(column) = column else { continue };
            let mut found = None;
            decode_histograms(&column.payload, |time, histogram| {
                if time == timestamp_ms && found.is_none() {
                    found = Some(histogram);
                }
            })
            .map_err(|what| damaged(&blocks[at], what))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Blocks that may have a sample at this time.
    fn overlapping(&self, timestamp_ms: i64) -> Vec<usize> {
        let may_have = |&at: &usize| self.blocks[at].overlaps(timestamp_ms, timestamp_ms);
        (0..self.blocks.len()).filter(may_have).collect()
    }

    /// The row of a series in a block, and what reads it; `None` where the block does not have the series.
    fn row_in(&mut self, at: usize, series: u32) -> Result<Option<RowCursor<'_>>, StorageError> {
        if self.series != Some(series) {
            self.series = Some(series);
            self.rows.clear();
            self.rows.resize(self.blocks.len(), Row::Unknown);
            self.identity.labels_of(SeriesId(series), &mut self.labels);
        }
        let block = &self.blocks[at].block;
        if let Row::Unknown = self.rows[at] {
            self.rows[at] = block.row_of(&self.labels)?.map_or(Row::None, Row::Some);
        }
        let Row::Some(row) = self.rows[at] else { return Ok(None) };
        self.cursors.resize_with(self.blocks.len(), || None);
        let cursor = self.cursors[at].get_or_insert_with(|| Arc::clone(block).cursor());
        Ok(Some((row, cursor)))
    }
}

fn damaged(live: &LiveBlock, what: &str) -> StorageError {
    let file = live.block.meta().ulid.to_string();
    StorageError::Corrupt { file, offset: 0, what: what.to_owned() }
}
