//! A page of cold columns with any bytes.
#![no_main]

use metricsstore_codec::cold::{MAX_ROWS, PageReader, Values};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = PageReader::new(bytes) else { return };
    let mut values = Values::default();
    for column in 0..reader.columns() {
        if reader.read(column, &mut values).is_ok() {
            assert!(values.values.len() <= MAX_ROWS);
        }
    }
});
