//! A native block with any bytes behind right checksums.
#![no_main]
use std::sync::Arc;

use metricsstore_vfs::Files;
use metricsstore_vfs::sim::SimFiles;

const ULID: u128 = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;
const BLOCKS: [&[u8]; 2] =
    [include_bytes!("../../tests/golden/native-v1/hot"), include_bytes!("../../tests/golden/native-v1/cold")];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for block in BLOCKS {
        let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
        assert!(metricsstore_storage::fuzzing::native_block(&files, ULID, block, bytes));
    }
});
