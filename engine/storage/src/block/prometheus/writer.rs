//! Writes a block as Prometheus does: into `<ULID>.tmp-for-creation`, which gets its name once all of it is durable.
//!
//! Chunks have no room for start timestamps and exemplars: they are left out.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_model::LabelBuf;
use metricsstore_vfs::Files;

use super::CHUNKS;
use super::chunk::{Chunk, encode_series};
use super::chunk_files::ChunkWriter;
use super::index::{ChunkMeta, IndexWriter};
use super::meta::{Meta, Stats};
use super::tombstones;
use crate::StorageError;
use crate::block::{BlockMeta, BlockSink, NewBlock, SeriesData};

/// See the module's documentation.
pub(crate) struct PrometheusWriter {
    files: Arc<dyn Files>,
    parent: PathBuf,
    /// Where it is written.
    dir: PathBuf,
    new: NewBlock,
    index: IndexWriter,
    chunks: ChunkWriter,
    /// The series whose chunks are being written, and those written so far.
    labels: LabelBuf,
    written: Vec<ChunkMeta>,
    encoded: Vec<Chunk>,
    stats: Stats,
    min_ms: i64,
    max_ms: i64,
}

impl PrometheusWriter {
    /// Begins a block that becomes `parent/<ULID>`.
    pub(crate) fn create(
        files: &Arc<dyn Files>,
        parent: &Path,
        new: NewBlock,
    ) -> Result<PrometheusWriter, StorageError> {
        let dir = parent.join(format!("{}.tmp-for-creation", new.ulid));
        let chunks = dir.join(CHUNKS);
        files.create_dir_all(&chunks).map_err(StorageError::io("create", &chunks))?;
        Ok(PrometheusWriter {
            files: Arc::clone(files),
            parent: parent.to_owned(),
            index: IndexWriter::create(files, &dir)?,
            chunks: ChunkWriter::new(Arc::clone(files), chunks),
            dir,
            new,
            labels: LabelBuf::new(),
            written: Vec::new(),
            encoded: Vec::new(),
            stats: Stats::default(),
            min_ms: i64::MAX,
            max_ms: i64::MIN,
        })
    }

    /// Puts the series whose chunks were written into the index.
    fn end_series(&mut self) -> Result<(), StorageError> {
        if self.written.is_empty() {
            return Ok(());
        }
        let added = self.index.add(&self.labels, &self.written);
        self.written.clear();
        added
    }

    /// Whether a slice can stand behind what was written.
    fn check(&self, series: &SeriesData) -> Result<(), StorageError> {
        let refused = |what: &str| {
            let what = format!("the series {} does not fit into it: {what}", series.labels);
            Err(StorageError::corrupt(&self.dir, 0, what))
        };
        if series.is_continuation && series.labels != self.labels {
            return refused("it goes on with another series");
        }
        let times = [
            (series.floats.first().map(|sample| sample.0), series.floats.last().map(|sample| sample.0)),
            (
                series.histograms.first().map(|sample| sample.0),
                series.histograms.last().map(|sample| sample.0),
            ),
        ];
        let last_ms = self.written.last().map(|chunk| chunk.max_ms);
        for (first, last) in times {
            let (Some(first), Some(last)) = (first, last) else { continue };
            if first < self.new.start_ms || last >= self.new.end_ms {
                return refused("it has samples outside the time of the block");
            }
            if last_ms.is_some_and(|last_ms| first <= last_ms) {
                return refused("it has samples that are not later than those before");
            }
        }
        let is_sorted =
            series.floats.is_sorted_by(|a, b| a.0 < b.0) && series.histograms.is_sorted_by(|a, b| a.0 < b.0);
        if is_sorted { Ok(()) } else { refused("its samples are not in the order of time") }
    }

    fn put_chunks(&mut self) -> Result<(), StorageError> {
        for chunk in &self.encoded {
            let reference = self.chunks.add(chunk)?;
            self.written.push(ChunkMeta { min_ms: chunk.min_ms, max_ms: chunk.max_ms, reference });
            let samples = u64::from(chunk.samples);
            self.stats.num_samples += samples;
            if chunk.encoding.is_float() {
                self.stats.num_float_samples += samples;
            } else {
                self.stats.num_histogram_samples += samples;
            }
            self.stats.num_chunks += 1;
            self.min_ms = self.min_ms.min(chunk.min_ms);
            self.max_ms = self.max_ms.max(chunk.max_ms);
        }
        Ok(())
    }

    /// Makes all files durable and gives the directory its name.
    fn write_all(mut self) -> Result<BlockMeta, StorageError> {
        self.end_series()?;
        self.stats.num_series = u64::from(self.index.series());
        let (files, dir) = (&*self.files, &self.dir);
        let mut bytes = self.chunks.finish()? + self.index.finish()?;
        bytes += tombstones::write_none(files, dir)?;
        let meta = Meta::new(&self.new, self.stats);
        bytes += meta.write(files, dir)?;
        files.sync_dir(dir).map_err(StorageError::io("sync", dir))?;
        let named = self.parent.join(self.new.ulid.to_string());
        files.rename(dir, &named).map_err(StorageError::io("rename", dir))?;
        files.sync_dir(&self.parent).map_err(StorageError::io("sync", &self.parent))?;
        let block = meta.block();
        let (min_ms, max_ms) =
            if self.min_ms > self.max_ms { (block.min_ms, block.max_ms) } else { (self.min_ms, self.max_ms) };
        Ok(BlockMeta { min_ms, max_ms, bytes, ..block })
    }
}

impl BlockSink for PrometheusWriter {
    /// A slice that does not fit is refused before anything of it is written.
    fn add(&mut self, series: &SeriesData) -> Result<(), StorageError> {
        if !series.is_continuation {
            self.end_series()?;
            self.index.check_labels(&series.labels)?;
            self.labels.clone_from(&series.labels);
        }
        self.check(series)?;
        self.encoded.clear();
        encode_series(series, &mut self.encoded);
        self.put_chunks()
    }

    fn finish(self: Box<Self>) -> Result<BlockMeta, StorageError> {
        self.write_all()
    }

    fn abandon(self: Box<Self>) {
        if let Err(error) = self.files.remove_dir_all(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "an unfinished block could not be removed");
        }
    }
}
