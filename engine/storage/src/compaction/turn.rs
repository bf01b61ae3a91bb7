//! How long background work lets others have their turn.
use std::ops::DerefMut;

use crate::maintain::Upkeep;
use crate::store::Store;
use crate::sync::atomic::Ordering::Relaxed;
use crate::{Maintenance, StorageError};

impl Store {
    /// The lock of background work, for a request that cannot wait for long work: that is broken off and begun again
    /// later.
    pub(crate) fn upkeep_soon(&self) -> impl DerefMut<Target = Upkeep> + '_ {
        self.waiting.fetch_add(1, Relaxed);
        let upkeep = self.upkeep.lock();
        self.waiting.fetch_sub(1, Relaxed);
        upkeep
    }

    /// Long work calls this now and then: it makes snapshots that are waited for, seals what is due, and says that the work is to be broken off when the store
    /// closes or a request waits.
    pub(crate) fn take_turn(&self, upkeep: &mut Upkeep, done: &mut Maintenance) -> Result<(), StorageError> {
        if self.closed.load(Relaxed) {
            return Err(StorageError::ShuttingDown);
        }
        if self.waiting.load(Relaxed) > 0 {
            return Err(StorageError::Interrupted);
        }
        self.serve_snapshots(upkeep);
        self.seal_when_due(upkeep, done)
    }
}
