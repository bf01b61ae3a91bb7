//! What functions compute: pure over slices, without labels.
pub(super) mod buckets;
pub(super) mod kahan;
pub(super) mod over_time;
pub(super) mod quantile;
pub(super) mod rate;
pub(super) mod regression;
