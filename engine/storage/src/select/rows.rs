//! Rows of several blocks, merged in the order of label sets.
//!
//! Blocks that follow each other mostly have the same series, so their rows run side by side and one comparison of
//! fingerprints tells it. Only where they differ are labels decoded, each row's once, to see which comes first.
use metricsstore_model::LabelBuf;
use roaring::RoaringBitmap;

use crate::StorageError;
use crate::block::Block;

/// Rows of a block whose fingerprints are read at once: as many as a native block has in a page.
const ROWS_AT_ONCE: usize = 4096;

/// A row of one of the blocks of a select.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRow {
    /// The block's place among them.
    pub(crate) block: u32,
    pub(crate) row: u32,
}

/// Ascending rows of one block.
struct BlockRows<'b> {
    block: &'b dyn Block,
    rows: roaring::bitmap::IntoIter,
    /// The next ones, with their fingerprints.
    next: Vec<u32>,
    fingerprints: Vec<u128>,
    at: usize,
    /// The labels of the first of them, once they are known.
    labels: LabelBuf,
    has_labels: bool,
}

impl<'b> BlockRows<'b> {
    fn new(block: &'b dyn Block, rows: RoaringBitmap) -> Result<BlockRows<'b>, StorageError> {
        let mut new = BlockRows {
            block,
            rows: rows.into_iter(),
            next: Vec::new(),
            fingerprints: Vec::new(),
            at: 0,
            labels: LabelBuf::new(),
            has_labels: false,
        };
        new.refill()?;
        Ok(new)
    }

    fn refill(&mut self) -> Result<(), StorageError> {
        self.next.clear();
        self.next.extend(self.rows.by_ref().take(ROWS_AT_ONCE));
        self.fingerprints.clear();
        self.block.fingerprints_into(&self.next, &mut self.fingerprints)?;
        self.at = 0;
        Ok(())
    }

    /// The fingerprint of the first row that is left.
    fn fingerprint(&self) -> Option<u128> {
        self.fingerprints.get(self.at).copied()
    }

    fn advance(&mut self) -> Result<u32, StorageError> {
        let row = self.next[self.at];
        self.at += 1;
        self.has_labels = false;
        if self.at == self.next.len() {
            self.refill()?;
        }
        Ok(row)
    }

    fn know_labels(&mut self) -> Result<(), StorageError> {
        if !self.has_labels {
            self.block.labels(self.next[self.at], &mut self.labels)?;
            self.has_labels = true;
        }
        Ok(())
    }
}

/// The series of several blocks in the order of label sets.
pub(super) struct MergedRows<'b> {
    blocks: Vec<BlockRows<'b>>,
    /// The rows of the present series, by block.
    pub(super) rows: Vec<BlockRow>,
}

impl<'b> MergedRows<'b> {
    /// Of these rows of each block.
    pub(super) fn new(
        blocks: impl IntoIterator<Item = (&'b dyn Block, RoaringBitmap)>,
    ) -> Result<MergedRows<'b>, StorageError> {
        let blocks = blocks.into_iter().map(|(block, rows)| BlockRows::new(block, rows));
        Ok(MergedRows { blocks: blocks.collect::<Result<_, _>>()?, rows: Vec::new() })
    }

    /// Goes on to the next series: its fingerprint, `None` after the last.
    pub(super) fn advance(&mut self) -> Result<Option<u128>, StorageError> {
        self.rows.clear();
        let Some(first) = self.first()? else { return Ok(None) };
        let fingerprint = self.blocks[first].fingerprint();
        for (place, block) in self.blocks.iter_mut().enumerate() {
            if block.fingerprint() == fingerprint {
                self.rows.push(BlockRow { block: place as u32, row: block.advance()? });
            }
        }
        Ok(fingerprint)
    }

    /// A block whose next row has the least label set of all.
    fn first(&mut self) -> Result<Option<usize>, StorageError> {
        let mut least: Option<(usize, u128)> = None;
        // A fingerprint that was found to be greater.
        let mut greater = None;
        for place in 0..self.blocks.len() {
            let Some(fingerprint) = self.blocks[place].fingerprint() else { continue };
            let Some((before, known)) = least else {
                least = Some((place, fingerprint));
                continue;
            };
            if fingerprint == known || Some(fingerprint) == greater {
                continue;
            }
            self.blocks[before].know_labels()?;
            self.blocks[place].know_labels()?;
            if self.blocks[place].labels < self.blocks[before].labels {
                least = Some((place, fingerprint));
                greater = Some(known);
            } else {
                greater = Some(fingerprint);
            }
        }
        Ok(least.map(|(place, _)| place))
    }

    /// The labels of the series that [`MergedRows::advance`] went to.
    pub(super) fn labels(&self, labels: &mut LabelBuf) -> Result<(), StorageError> {
        labels.clear();
        match self.rows.first() {
            Some(first) => self.blocks[first.block as usize].block.labels(first.row, labels),
            None => Ok(()),
        }
    }
}
