//! A log of Prometheus with any record.
#![no_main]
use std::path::Path;
use std::sync::Arc;

use metricsstore_vfs::Files;
use metricsstore_vfs::sim::SimFiles;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
    let imported = metricsstore_storage::fuzzing::import_record(&files, Path::new("/prometheus"), bytes);
    assert!(imported.is_ok(), "{imported:?}");
});
