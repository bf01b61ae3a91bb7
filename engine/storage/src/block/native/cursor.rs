//! Reads samples.
use std::sync::Arc;

use super::NativeBlock;
use super::extras::{ExtrasCursor, read_exemplars};
use super::times::TimesCursor;
use super::values::{PageColumn, ValuesCursor};
use crate::block::BlockCursor;
use crate::column::Piece;
use crate::kinds::{Kind, KindColumn, merge_kinds};
use crate::{StorageError, StoredExemplar};

pub(crate) struct NativeCursor {
    block: Arc<NativeBlock>,
    times: TimesCursor,
    /// By part.
    values: Vec<ValuesCursor>,
    /// By kind and part.
    kinds: [Vec<ExtrasCursor>; 2],
    exemplars: ExtrasCursor,
}

impl NativeCursor {
    pub(super) fn new(block: Arc<NativeBlock>) -> NativeCursor {
        let parts = block.directory.parts.count;
        let by_part = || (0..parts).map(|_| ExtrasCursor::default()).collect();
        NativeCursor {
            block,
            times: TimesCursor::default(),
            values: (0..parts).map(|_| ValuesCursor::default()).collect(),
            kinds: [by_part(), by_part()],
            exemplars: ExtrasCursor::default(),
        }
    }
}

/// Whether a column has a row in that time; checks that its stream has the rows that it names.
fn is_within(
    times: &mut TimesCursor,
    block: &NativeBlock,
    column: &PageColumn,
    (from_ms, to_ms): (i64, i64),
) -> Result<bool, StorageError> {
    let (table, source) = (&block.directory.times, &block.source);
    let stream = times.stream(column.stream, table, source)?;
    if column.first_row + column.rows > stream.rows {
        return Err(source.damaged(source.end, "a column has rows that its timestamp stream does not have"));
    }
    if stream.last_ms < from_ms || stream.first_ms > to_ms {
        return Ok(false);
    }
    if stream.first_ms >= from_ms && stream.last_ms <= to_ms {
        return Ok(true);
    }
    let times = times.times(column.stream, table, source)?;
    let rows = times.get(column.first_row as usize..(column.first_row + column.rows) as usize);
    Ok(rows.is_some_and(|rows| rows[0] <= to_ms && rows[rows.len() - 1] >= from_ms))
}

impl BlockCursor for NativeCursor {
    fn pieces_into(
        &mut self,
        row: u32,
        within_ms: (i64, i64),
        payload: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), StorageError> {
        let NativeCursor { block, times, values, .. } = self;
        let (directory, source) = (&block.directory, &block.source);
        for part in directory.parts.within(within_ms) {
            let table = directory.values[part as usize].as_slice();
            let is_wanted = |column: &PageColumn| is_within(times, block, column, within_ms);
            let wanted = (row, within_ms);
            values[part as usize].pieces_into((table, source), wanted, is_wanted, payload, pieces)?;
        }
        Ok(())
    }

    fn times(&mut self, stream: u32) -> Result<Arc<[i64]>, StorageError> {
        self.times.times(stream, &self.block.directory.times, &self.block.source)
    }

    fn kind_column(
        &mut self,
        kind: Kind,
        row: u32,
        within_ms: (i64, i64),
    ) -> Result<Option<KindColumn>, StorageError> {
        let (directory, source) = (&self.block.directory, &self.block.source);
        let mut columns = Vec::new();
        for part in directory.parts.within(within_ms) {
            let table = &directory.kinds[kind as usize][part as usize];
            let cursor = &mut self.kinds[kind as usize][part as usize];
            cursor.columns_into(table, source, row, within_ms, &mut columns)?;
        }
        let mut damage = None;
        let merged = merge_kinds(kind, columns, |_| i64::MIN, |_, what| damage = Some(what));
        match damage {
            Some(what) => Err(source.damaged(source.end, what)),
            None => Ok(merged),
        }
    }

    fn exemplars_into(
        &mut self,
        row: u32,
        within_ms: (i64, i64),
        exemplars: &mut Vec<StoredExemplar>,
    ) -> Result<(), StorageError> {
        let (table, source) = (&self.block.directory.exemplars, &self.block.source);
        let mut columns = Vec::new();
        self.exemplars.columns_into(table, source, row, within_ms, &mut columns)?;
        for column in columns {
            let read = read_exemplars(&column.payload, |exemplar| {
                if (within_ms.0..=within_ms.1).contains(&exemplar.timestamp_ms) {
                    exemplars.push(exemplar);
                }
            });
            read.ok_or_else(|| source.damaged(source.end, "exemplars are malformed"))?;
        }
        Ok(())
    }
}
