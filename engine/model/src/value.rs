//! Samples and the staleness marker.

/// Bits of the NaN that ends a series; every other NaN is an ordinary value.
pub const STALE_NAN_BITS: u64 = 0x7ff0_0000_0000_0002;

/// The staleness marker as a value.
pub fn stale_nan() -> f64 {
    f64::from_bits(STALE_NAN_BITS)
}

/// Whether a value is the staleness marker.
pub fn is_stale(value: f64) -> bool {
    value.to_bits() == STALE_NAN_BITS
}

/// One float sample. Two samples are equal when timestamp and value *bits* are.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Milliseconds since the Unix epoch.
    pub timestamp_ms: i64,
    /// Any f64; NaN payloads are kept bit for bit.
    pub value: f64,
}

impl PartialEq for Sample {
    fn eq(&self, other: &Sample) -> bool {
        self.timestamp_ms == other.timestamp_ms && self.value.to_bits() == other.value.to_bits()
    }
}
impl Eq for Sample {}
