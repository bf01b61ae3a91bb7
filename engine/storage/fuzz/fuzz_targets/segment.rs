//! A store with any bytes as its segment file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| metricsstore_storage_fuzz::try_file(metricsstore_storage_fuzz::Format::Segment, bytes));
