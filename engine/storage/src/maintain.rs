//! Background work
use crate::manifest::Manifest;
use crate::store::Store;
use crate::{Maintenance, StorageError};
use std::time::Duration;
pub(crate) struct Upkeep {
    pub(crate) manifest: Manifest,
    pub(crate) persisted_order: u64,
    pub(crate) last_seal: Duration,
}
impl Upkeep {
    pub(crate) fn new(manifest: Manifest, persisted_order: u64, now: Duration) -> Upkeep {
        Upkeep { manifest, persisted_order, last_seal: now }
    }
}
impl Store {
    pub(crate) fn tick(&self) -> Result<Maintenance, StorageError> {
        Ok(Maintenance::default())
    }
    pub(crate) fn seal_during_replay(&self, _number: u64) -> Result<(), StorageError> {
        Ok(())
    }
    pub(crate) fn shut_down(&self) -> Result<(), StorageError> {
        self.closed.store(true, std::sync::atomic::Ordering::Relaxed);
        let _ = self.log.sync();
        Ok(())
    }
}
