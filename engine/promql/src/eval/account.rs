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
