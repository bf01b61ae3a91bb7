//! Blocks that no writer wrote, behind right checksums: for fuzzing, and for the test that does the same by chance.
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use metricsstore_budget::Budget;
use metricsstore_model::{LabelBuf, Matcher};
use metricsstore_vfs::Files;

use super::{FOOTER_BYTES, HEADER_BYTES, NativeBlock, page_crc};
use crate::block::page_cache::PageCache;
use crate::block::{Block, Ulid};
use crate::kinds::Kind;

const EVER: (i64, i64) = (i64::MIN, i64::MAX);
/// Rows that are read.
const ROWS: u64 = 8;

/// Where the pages of a block are, found by their checksums.
pub(crate) fn pages(bytes: &[u8], ulid: Ulid) -> Option<Vec<Range<usize>>> {
    let footer = bytes.len().checked_sub(FOOTER_BYTES)?;
    let end = usize::try_from(u64::from_le_bytes(bytes[footer..footer + 8].try_into().ok()?)).ok()?;
    let (mut pages, mut start) = (Vec::new(), HEADER_BYTES);
    while start < end {
        let crc = u32::from_le_bytes(bytes.get(start..start + 4)?.try_into().ok()?);
        let content = |stop| bytes.get(start + 4..stop);
        let is_end =
            |&stop: &usize| content(stop).is_some_and(|content| page_crc(ulid, start as u64, content) == crc);
        let stop = (start + 4..=end).find(is_end)?;
        pages.push(start..stop);
        start = stop;
    }
    Some(pages)
}

/// Makes the checksums of pages, directory and footer right again.
pub(crate) fn reseal(bytes: &mut [u8], pages: &[Range<usize>], ulid: Ulid) {
    for page in pages {
        let crc = page_crc(ulid, page.start as u64, &bytes[page.start + 4..page.end]);
        bytes[page.start..page.start + 4].copy_from_slice(&crc.to_le_bytes());
    }
    let (footer, end) = (bytes.len() - FOOTER_BYTES, pages.last().map_or(HEADER_BYTES, |page| page.end));
    let crc = page_crc(ulid, end as u64, &bytes[end..footer]);
    bytes[footer + 12..footer + 16].copy_from_slice(&crc.to_le_bytes());
    let last = bytes.len() - 4;
    let crc = crc32c::crc32c(&bytes[footer..last]);
    bytes[last..].copy_from_slice(&crc.to_le_bytes());
}

/// Asks an open block for everything; answers and errors are all the same to this.
pub(crate) fn read_everything(block: &Arc<NativeBlock>, matchers: &[Matcher]) {
    let rows = block.meta().series.min(ROWS) as u32;
    let mut cursor = Arc::clone(block).cursor();
    let (mut payload, mut pieces, mut labels) = (Vec::new(), Vec::new(), LabelBuf::new());
    for row in 0..rows {
        payload.clear();
        pieces.clear();
        let _ = cursor.pieces_into(row, EVER, &mut payload, &mut pieces);
        for piece in &pieces {
            let _ = cursor.times(piece.stream);
            let _ = piece.decode_all(&payload, |_, _| {});
        }
        for kind in Kind::ALL {
            let _ = cursor.kind_column(kind, row, EVER);
        }
        let _ = cursor.exemplars_into(row, EVER, &mut Vec::new());
        let _ = (block.labels(row, &mut labels), block.fingerprint(row));
    }
    for matcher in matchers {
        let _ = block.rows(std::slice::from_ref(matcher));
        let _ = block.label_values(&matcher.name, None);
    }
    let _ = block.label_names(Some(&(0..rows).collect()));
}

/// Reads a block, given with its name, of which bytes are others: of `edits` two say where, one what.
pub(crate) fn read_edited(
    files: &Arc<dyn Files>,
    dir: &Path,
    ulid: Ulid,
    block: &[u8],
    edits: &[u8],
) -> Option<()> {
    let (pages, mut bytes) = (pages(block, ulid)?, block.to_vec());
    for [low, high, byte] in edits.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([*low, *high]));
        let inside = bytes.len().checked_sub(FOOTER_BYTES + HEADER_BYTES).filter(|&inside| inside > 0)?;
        bytes[HEADER_BYTES + at % inside] = *byte;
    }
    reseal(&mut bytes, &pages, ulid);
    files.create_dir_all(dir).ok()?;
    files.create(&dir.join(ulid.to_string())).ok()?.append(&bytes).ok()?;
    let cache = Arc::new(PageCache::new(&Budget::unlimited()));
    if let Ok(block) = NativeBlock::open(files, dir, ulid, &cache) {
        read_everything(&Arc::new(block), &[Matcher::equal("job", "node"), Matcher::equal("instance", "")]);
    }
    Some(())
}
