//! An index of a Prometheus block with any bytes.
#![no_main]
use std::path::Path;
use std::sync::Arc;

use metricsstore_vfs::Files;
use metricsstore_vfs::sim::SimFiles;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
    metricsstore_storage::fuzzing::read_index(&files, Path::new("/block"), bytes);
});
