//! Reads the columns of the kinds that few series have: native histograms and start timestamps.
use std::ops::Range;

use roaring::RoaringBitmap;

use super::{Segment, SegmentCursor};
use crate::StorageError;
use crate::bytes::Cursor;
use crate::kinds::{Kind, KindColumn};

/// A block that is loaded.
#[derive(Default)]
pub(super) struct KindBlock {
    /// Which one it is.
    loaded: Option<usize>,
    content: Vec<u8>,
    entries: Vec<Entry>,
}

struct Entry {
    series: u32,
    min_ms: i64,
    max_ms: i64,
    entries: u64,
    payload: Range<usize>,
}

impl Segment {
    /// The series that have columns of a kind.
    pub(crate) fn series_with(&self, kind: Kind) -> &RoaringBitmap {
        &self.kinds[kind as usize].series
    }
}

impl SegmentCursor {
    /// The column of a kind of a series; `None` where it has none.
    pub(crate) fn kind_column(
        &mut self,
        kind: Kind,
        series: u32,
    ) -> Result<Option<KindColumn>, StorageError> {
        let directory = &self.segment.kinds[kind as usize];
        if !directory.series.contains(series) {
            return Ok(None);
        }
        let after = directory.blocks.partition_point(|block| block.first <= series);
        let Some(number) = after.checked_sub(1) else { return Ok(None) };
        let block = &mut self.kinds.get_or_insert_default()[kind as usize];
        if block.loaded != Some(number) {
            let reference = directory.blocks[number];
            block.loaded = None;
            block.entries.clear();
            self.segment.read_block(reference, &mut block.content)?;
            if decode(&block.content, &mut block.entries).is_none() {
                return Err(self.segment.damaged_at(reference.offset, "a block of columns is malformed"));
            }
            block.loaded = Some(number);
        }
        let Ok(place) = block.entries.binary_search_by_key(&series, |entry| entry.series) else {
            return Ok(None);
        };
        let entry = &block.entries[place];
        Ok(Some(KindColumn {
            min_ms: entry.min_ms,
            max_ms: entry.max_ms,
            entries: entry.entries,
            payload: block.content[entry.payload.clone()].to_vec(),
        }))
    }
}

fn decode(content: &[u8], entries: &mut Vec<Entry>) -> Option<()> {
    let mut cursor = Cursor::new(content);
    let count = cursor.varint()?;
    let (mut series, mut payload) = (0u32, 0usize);
    for _ in 0..count {
        series = series.checked_add(cursor.varint_u32()?)?;
        let min_ms = cursor.signed()?;
        let max_ms = min_ms.wrapping_add(cursor.varint()? as i64);
        let count = cursor.varint()?;
        let end = payload.checked_add(usize::try_from(cursor.varint()?).ok()?)?;
        entries.push(Entry { series, min_ms, max_ms, entries: count, payload: payload..end });
        payload = end;
    }
    let base = cursor.position();
    if base.checked_add(payload)? != content.len() || !entries.is_sorted_by(|a, b| a.series < b.series) {
        return None;
    }
    for entry in entries {
        entry.payload = entry.payload.start + base..entry.payload.end + base;
    }
    Some(())
}
