//! What command-line tools and status pages see of a store.
use crate::BlockMeta;
use crate::store::Store;

/// A live block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockInfo {
    /// What it says of itself.
    pub meta: BlockMeta,
    /// Deleted time ranges that still stand in it.
    pub tombstones: u64,
}

impl Store {
    /// The live blocks, in the order of their time.
    pub fn blocks(&self) -> Vec<BlockInfo> {
        let view = self.view.load();
        let info = |live: &std::sync::Arc<crate::view::LiveBlock>| BlockInfo {
            meta: live.block.meta().clone(),
            tombstones: live.tombstones.by_row.values().map(|ranges| ranges.len() as u64).sum(),
        };
        view.blocks.iter().map(info).collect()
    }
}
