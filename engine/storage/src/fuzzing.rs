//! What fuzz targets call: decoders that stand behind checksums.
use std::path::Path;
use std::sync::Arc;

use metricsstore_codec::checksum::crc32c;
use metricsstore_vfs::Files;

use crate::StorageError;
use crate::block::prometheus::chunk::{Chunk, Encoding, decode_chunk, encode_series};
use crate::block::prometheus::index::fuzz;
use crate::block::{SeriesData, SeriesStream as _, Ulid};
use crate::import;

/// Takes the first byte for an encoding and the others for a chunk. What can be read is written again and read back:
/// `false` where that gives other samples.
pub fn chunk_comes_back(bytes: &[u8]) -> bool {
    let Some((&number, data)) = bytes.split_first() else { return true };
    let (mut series, mut again, mut chunks) = (SeriesData::default(), SeriesData::default(), Vec::new());
    let Some(encoding) = Encoding::from_number(number % 6 + 1) else { return false };
    if decode_chunk(encoding, data, &mut series).is_err() {
        return series.samples() == 0 && series.starts.is_empty();
    }
    encode_series(&series, &mut chunks);
    let mut read = |chunk: &Chunk| decode_chunk(chunk.encoding, &chunk.bytes, &mut again).is_ok();
    let times = |series: &SeriesData| series.histograms.iter().map(|sample| sample.0).collect::<Vec<_>>();
    chunks.iter().all(&mut read) && again.floats == series.floats && times(&again) == times(&series)
}

/// Imports from `dir` a log of one record with these bytes, and reads what came of it.
pub fn import_record(files: &Arc<dyn Files>, dir: &Path, record: &[u8]) -> Result<(), StorageError> {
    let record = &record[..record.len().min(usize::from(u16::MAX) / 2)];
    let mut fragment = vec![1];
    fragment.extend((record.len() as u16).to_be_bytes());
    fragment.extend(crc32c(record).to_be_bytes());
    fragment.extend(record);
    let (wal, path) = (dir.join("wal"), dir.join("wal/00000000"));
    files.create_dir_all(&wal).map_err(StorageError::io("create", &wal))?;
    let file = files.create(&path).map_err(StorageError::io("create", &path))?;
    file.append(&fragment).map_err(StorageError::io("write", &path))?;
    let options =
        import::Options { spill_dir: dir.join("import"), range_ms: 2 * 60 * 60 * 1000, sort_bytes: 4096 };
    let import = import::open(files, dir, &options, &mut |_| true)?;
    let mut series = SeriesData::default();
    for range in import.ranges() {
        let mut stream = import.series(range.start)?;
        while stream.next_into(&mut series)? {}
    }
    Ok(())
}

/// Reads an index of a Prometheus block with these bytes, as they are and with their checksums made right.
pub fn read_index(files: &Arc<dyn Files>, dir: &Path, bytes: &[u8]) {
    let mut resealed = bytes.to_vec();
    let _ = fuzz::reseal(&mut resealed);
    // Damage is a value.
    let _ = fuzz::read_all(&**files, &dir.join("given"), bytes);
    let _ = fuzz::read_all(&**files, &dir.join("resealed"), &resealed);
}

/// Reads a native block of this name in which bytes are others, behind right checksums; `false` where it was none before.
pub fn native_block(files: &Arc<dyn Files>, ulid: u128, block: &[u8], edits: &[u8]) -> bool {
    crate::block::native::forged::read_edited(files, Path::new("/blocks"), Ulid(ulid), block, edits).is_some()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests may panic")]
    use metricsstore_vfs::sim::SimFiles;

    use super::*;

    #[test]
    fn what_is_cut_off_or_crafted_to_take_much_memory_is_refused() {
        let many_spans = [1, 0xff, 0xff, 0, 0, 0x01, 0xfd, 0x02, 0x00, 0x3f].into_iter();
        let bytes: Vec<u8> = many_spans.chain(std::iter::repeat_n(0, 9000)).collect();
        for number in 0..6 {
            for length in [0, 1, 2, 5, 10, 100, 9000] {
                assert!(chunk_comes_back(&[&[number], &bytes[..length]].concat()));
            }
        }
        let index = include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/prometheus/openmetrics/01M8PQN23E00CRNCEY90SM3A3N/index"
        ));
        for place in 0..index.len() {
            let mut changed = index.to_vec();
            changed[place] ^= 1 << (place % 8);
            read_index(&(Arc::new(SimFiles::new(1)) as Arc<dyn Files>), Path::new("/block"), &changed);
            changed[place] = 0xff;
            read_index(&(Arc::new(SimFiles::new(1)) as Arc<dyn Files>), Path::new("/block"), &changed);
        }
        for record in [&b""[..], b"\x01\x00", b"\x02", b"\x07\x00\x00", &[0xff; 40]] {
            let files: Arc<dyn Files> = Arc::new(SimFiles::new(1));
            import_record(&files, Path::new("/prometheus"), record).unwrap();
        }
    }
}
