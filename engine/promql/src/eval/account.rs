//! What a running query holds: samples against `--query.max-samples`, bytes against its grant.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metricsstore_budget::Grant;

use crate::error::QueryError;

#[derive(Debug)]
pub(super) struct Account {
    max_samples: u64,
    held: AtomicU64,
    peak: AtomicU64,
    read: AtomicU64,
    grant: Grant,
}

impl Account {
    pub fn new(max_samples: u64, grant: &Grant) -> Arc<Account> {
        Arc::new(Account {
            max_samples,
            held: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            read: AtomicU64::new(0),
            grant: grant.clone(),
        })
    }

    pub fn max_samples(&self) -> u64 {
        self.max_samples
    }

    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    pub fn read(&self) -> u64 {
        self.read.load(Relaxed)
    }

    /// Counts samples taken from the store.
    pub fn add_read(&self, samples: u64) {
        self.read.fetch_add(samples, Relaxed);
    }

    /// Reserves bytes that stay reserved until the query's grant ends: the result itself.
    pub fn keep_bytes(&self, bytes: u64) -> Result<(), QueryError> {
        Ok(self.grant.reserve(bytes)?)
    }
}

/// A part of what a query holds; given back when dropped.
#[derive(Debug)]
pub(super) struct Held {
    account: Arc<Account>,
    samples: u64,
    bytes: u64,
}

impl Held {
    pub fn new(account: &Arc<Account>) -> Held {
        Held { account: Arc::clone(account), samples: 0, bytes: 0 }
    }

    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Takes more bytes, before they are allocated.
    pub fn grow(&mut self, bytes: u64) -> Result<(), QueryError> {
        self.account.grant.reserve(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Makes room in `values` for so many more. A vector grows by being copied, and as long as both copies are there
    /// both are counted: many queries at once would else take several times what they were granted.
    pub fn make_room(&mut self, values: &mut Vec<f64>, more: usize) -> Result<(), QueryError> {
        let (length, before) = (values.len(), values.capacity());
        if before - length >= more {
            return Ok(());
        }
        let wanted = (length + more).max(before + before / 2);
        self.grow((wanted * size_of::<f64>()) as u64)?;
        values.reserve_exact(wanted - length);
        self.shrink((before * size_of::<f64>()) as u64);
        Ok(())
    }

    /// Gives bytes back early.
    pub fn shrink(&mut self, bytes: u64) {
        let given = bytes.min(self.bytes);
        self.account.grant.release(given);
        self.bytes -= given;
    }

    /// Counts more samples.
    pub fn add_samples(&mut self, samples: u64) -> Result<(), QueryError> {
        self.samples += samples;
        let held = self.account.held.fetch_add(samples, Relaxed) + samples;
        self.account.peak.fetch_max(held, Relaxed);
        if held > self.account.max_samples { Err(QueryError::TooManySamples) } else { Ok(()) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.account.grant.release(self.bytes);
        self.account.held.fetch_sub(self.samples, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use metricsstore_budget::{Budget, Part};

    use super::{Account, Held};

    #[test]
    fn a_growing_vector_counts_both_copies_and_then_all_it_holds() {
        let grown = |limit: u64| {
            let grant = Budget::unlimited().grant(Part::Query, limit);
            let mut held = Held::new(&Account::new(u64::MAX, &grant));
            let mut values = Vec::new();
            held.make_room(&mut values, 100).unwrap();
            assert_eq!((values.capacity(), grant.used()), (100, 800));
            values.resize(100, 0.0);
            held.make_room(&mut values, 1).ok().map(|()| (values.capacity(), grant.used()))
        };
        assert_eq!(grown(1999), None);
        assert_eq!(grown(2000), Some((150, 1200)));
    }
}
