//! A chunk of Prometheus, of any encoding, with any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| assert!(metricsstore_storage::fuzzing::chunk_comes_back(bytes)));
