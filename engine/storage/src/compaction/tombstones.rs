//! What was deleted of a block and still stands in it.
use std::collections::BTreeMap;

use crate::StorageError;
use crate::block::BlockFiles;
use crate::manifest::NamedBlock;

/// Deleted time ranges of a block, by row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BlockTombstones {
    /// First and last ms, ascending, disjoint.
    pub(crate) by_row: BTreeMap<u32, Vec<(i64, i64)>>,
}

impl BlockTombstones {
    /// What was deleted of a block; nothing where there is no file.
    #[expect(clippy::unnecessary_wraps, reason = "there is no file yet")]
    pub(crate) fn load(_files: &BlockFiles, _name: NamedBlock) -> Result<BlockTombstones, StorageError> {
        Ok(BlockTombstones::default())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_row.is_empty()
    }
}
