//! Any bytes as an index.
use std::path::Path;

use metricsstore_model::{LabelBuf, Matcher};
use metricsstore_vfs::Files;

use super::{Contents, FILE_NAME, IndexReader};
use crate::StorageError;

/// Rows that are read.
const MAX_ROWS: u32 = 1000;

/// Makes the checksums of the sections that are read at once match their content, as far as they can be found.
pub(crate) fn reseal(bytes: &mut [u8]) -> Option<()> {
    let start = bytes.len().checked_sub(Contents::BYTES)?;
    let field = |bytes: &[u8], place: usize| {
        let field = bytes[start + 8 * place..].first_chunk::<8>().copied()?;
        usize::try_from(u64::from_be_bytes(field)).ok()
    };
    for place in [0, 4, 5] {
        let Some(offset) = field(bytes, place) else { continue };
        let length = bytes.get(offset..).and_then(|rest| rest.first_chunk::<4>().copied());
        let Some(length) = length.map(|length| u32::from_be_bytes(length) as usize) else { continue };
        let (from, to) = (offset.saturating_add(4), offset.saturating_add(4).saturating_add(length));
        if to.saturating_add(4) <= bytes.len() {
            let crc = crc32c::crc32c(&bytes[from..to]).to_be_bytes();
            bytes[to..to + 4].copy_from_slice(&crc);
        }
    }
    let end = bytes.len() - 4;
    let crc = crc32c::crc32c(&bytes[start..end]).to_be_bytes();
    bytes[end..].copy_from_slice(&crc);
    Some(())
}

/// Reads all that an index in a directory has; damage is fine.
pub(crate) fn read_all(files: &dyn Files, dir: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    files.create_dir_all(dir).map_err(StorageError::io("create", dir))?;
    let path = dir.join(FILE_NAME);
    let file = files.create(&path).map_err(StorageError::io("create", &path))?;
    file.append(bytes).map_err(StorageError::io("write", &path))?;
    let index = IndexReader::open(files, dir)?;
    let (mut labels, mut chunks) = (LabelBuf::new(), Vec::new());
    for row in 0..index.rows().min(MAX_ROWS) {
        let _ = index.labels(row, &mut labels);
        let _ = index.chunks(row, &mut chunks);
    }
    for name in index.label_names(None)? {
        let _ = index.label_values(&name, None);
        let _ = index.matching(&[Matcher::equal(&name, "1")]);
    }
    Ok(())
}
