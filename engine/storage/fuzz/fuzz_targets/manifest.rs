//! A store with any bytes as its manifest file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| metricsstore_storage_fuzz::try_file(metricsstore_storage_fuzz::Format::Manifest, bytes));
