//! Reads samples.
use std::sync::Arc;

use super::NativeBlock;
use super::extras::{ExtrasCursor, read_exemplars};
use super::times::TimesCursor;
use super::values::{PageColumn, ValuesCursor};
use crate::block::BlockCursor;
use crate::column::{Encoding, Piece};
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
    found: Vec<PageColumn>,
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
            found: Vec::new(),
        }
    }

    /// Whether a column has a row from `from_ms` to `to_ms`; checks that its stream has the rows that it names.
    fn is_within(&mut self, column: &PageColumn, (from_ms, to_ms): (i64, i64)) -> Result<bool, StorageError> {
        let (table, source) = (&self.block.directory.times, &self.block.source);
        let stream = self.times.stream(column.stream, table, source)?;
        if column.first_row + column.rows > stream.rows {
            return Err(
                source.damaged(source.end, "a column has rows that its timestamp stream does not have")
            );
        }
        if stream.last_ms < from_ms || stream.first_ms > to_ms {
            return Ok(false);
        }
        if stream.first_ms >= from_ms && stream.last_ms <= to_ms {
            return Ok(true);
        }
        let times = self.times.times(column.stream, table, source)?;
        let rows = column.first_row as usize..(column.first_row + column.rows) as usize;
        let rows = times.get(rows).unwrap_or_default();
        Ok(rows.first().is_some_and(|&first| first <= to_ms)
            && rows.last().is_some_and(|&last| last >= from_ms))
    }
}

impl BlockCursor for NativeCursor {
    fn pieces_into(
        &mut self,
        row: u32,
        within_ms: (i64, i64),
        payload: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), StorageError> {
        let block = Arc::clone(&self.block);
        let (directory, source) = (&block.directory, &block.source);
        for part in directory.parts.within(within_ms) {
            let mut found = std::mem::take(&mut self.found);
            found.clear();
            let table = &directory.values[part as usize];
            self.values[part as usize].visit(table, source, row, within_ms, |page| {
                for column in page.of_row(row) {
                    let at = payload.len();
                    payload.extend_from_slice(page.payload(column));
                    found.push(PageColumn { payload: at..payload.len(), ..*column });
                }
                Ok(())
            })?;
            for column in &found {
                if self.is_within(column, within_ms)? {
                    pieces.push(Piece {
                        stream: column.stream,
                        first_row: column.first_row,
                        rows: column.rows,
                        payload: column.payload.clone(),
                        encoding: Encoding::Column,
                    });
                }
            }
            self.found = found;
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
