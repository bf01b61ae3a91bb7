//! Bytes of a query's grant that are given back with what they were reserved for.
use metricsstore_budget::{Exhausted, Grant};

pub(crate) struct Held {
    grant: Grant,
    bytes: u64,
}

impl Held {
    pub(crate) fn new(grant: &Grant) -> Held {
        Held { grant: grant.clone(), bytes: 0 }
    }

    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), Exhausted> {
        self.grant.reserve(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives everything back early.
    pub(crate) fn release(&mut self) {
        self.grant.release(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}
