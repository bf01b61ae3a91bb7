//! Wire formats to [`Batch`](metricsstore_model::Batch): bytes in, batches out, no network.
//!
//! Rows keep the raw label bytes as they came and a keyed hash of them; labels are decoded only when the store has
//! not seen the key. Buffers live in the decoders and are reused, so a steady sender costs no allocation.
#![forbid(unsafe_code)]

mod proto;
pub mod remote_write;
pub mod text;
