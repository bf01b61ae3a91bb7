//! Reads postings lists.
use roaring::RoaringBitmap;

use super::source::{Source, Window};
use crate::StorageError;

/// Adds the references of the list at `offset` to `found`.
pub(super) fn add_list(
    source: &Source,
    window: &mut Window<'_>,
    offset: u64,
    found: &mut RoaringBitmap,
) -> Result<(), StorageError> {
    let content = window.section(offset)?;
    let malformed = || source.damaged(offset, "a list of series is malformed");
    let (count, references) = content.split_first_chunk::<4>().ok_or_else(malformed)?;
    let (references, rest) = references.as_chunks::<4>();
    if !rest.is_empty() || references.len() != u32::from_be_bytes(*count) as usize {
        return Err(malformed());
    }
    let references = references.iter().map(|&reference| u32::from_be_bytes(reference));
    if !references.clone().is_sorted_by(|a, b| a < b) {
        return Err(malformed());
    }
    if found.max() < references.clone().next() {
        found.append(references).map_err(|_| malformed())?;
    } else {
        found.extend(references);
    }
    Ok(())
}
