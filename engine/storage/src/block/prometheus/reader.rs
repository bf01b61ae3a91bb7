//! Reads a block as Prometheus writes it, whoever wrote it.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_budget::{Budget, Part};
use metricsstore_model::{LabelBuf, Matcher};
use metricsstore_vfs::Files;
use roaring::RoaringBitmap;

use super::CHUNKS;
use super::chunk_files::ChunkReader;
use super::cursor::PrometheusCursor;
use super::index::{self, IndexReader};
use super::meta::{self, Meta};
use crate::StorageError;
use crate::block::{Block, BlockCursor, BlockMeta};
use crate::kinds::Kind;

/// An open block. Its files may be removed while it is read.
pub(crate) struct PrometheusBlock {
    meta: BlockMeta,
    dir: PathBuf,
    pub(super) index: IndexReader,
    pub(super) chunks: ChunkReader,
    /// Whether `meta.json` tells histograms from floats.
    is_split: bool,
    budget: Budget,
    counted: u64,
}

impl PrometheusBlock {
    /// Opens the block in this directory.
    pub(crate) fn open(
        files: &Arc<dyn Files>,
        dir: &Path,
        budget: &Budget,
    ) -> Result<PrometheusBlock, StorageError> {
        let files = &**files;
        let described = Meta::read(files, dir)?;
        let index = IndexReader::open(files, dir)?;
        let chunks = ChunkReader::open(files, &dir.join(CHUNKS))?;
        let mut bytes = chunks.bytes();
        for entry in files.list(dir).map_err(StorageError::io("list", dir))? {
            bytes += entry.len;
        }
        let stats = &described.stats;
        let is_split = stats.num_float_samples + stats.num_histogram_samples > 0;
        let meta = BlockMeta { bytes, series: u64::from(index.rows()), ..described.block() };
        let counted = index.bytes() as u64;
        budget.add(Part::Segments, counted);
        Ok(PrometheusBlock {
            meta,
            dir: dir.to_owned(),
            index,
            chunks,
            is_split,
            budget: budget.clone(),
            counted,
        })
    }

    /// Damage of a row.
    pub(super) fn damaged(&self, what: &str) -> StorageError {
        StorageError::corrupt(&self.dir, 0, what)
    }
}

impl Drop for PrometheusBlock {
    fn drop(&mut self) {
        self.budget.sub(Part::Segments, self.counted);
    }
}

impl Block for PrometheusBlock {
    fn meta(&self) -> &BlockMeta {
        &self.meta
    }

    fn rows(&self, matchers: &[Matcher]) -> Result<RoaringBitmap, StorageError> {
        self.index.matching(matchers)
    }

    fn labels(&self, row: u32, labels: &mut LabelBuf) -> Result<(), StorageError> {
        self.index.labels(row, labels)
    }

    fn fingerprint(&self, row: u32) -> Result<u128, StorageError> {
        let mut fingerprints = Vec::with_capacity(1);
        self.index.fingerprints_into(&[row], &mut fingerprints)?;
        fingerprints.pop().ok_or_else(|| self.damaged("there is no such series"))
    }

    fn fingerprints_into(&self, rows: &[u32], fingerprints: &mut Vec<u128>) -> Result<(), StorageError> {
        self.index.fingerprints_into(rows, fingerprints)
    }

    /// Only the encodings of chunks tell which rows have what; whether any has histograms says `meta.json`.
    fn rows_with(&self, kind: Kind) -> Result<Option<RoaringBitmap>, StorageError> {
        let has_none = kind == Kind::Histograms && self.is_split && self.meta.histogram_samples == 0;
        Ok(has_none.then(RoaringBitmap::new))
    }

    fn label_names(&self, rows: Option<&RoaringBitmap>) -> Result<Vec<String>, StorageError> {
        self.index.label_names(rows)
    }

    fn label_values(&self, name: &str, rows: Option<&RoaringBitmap>) -> Result<Vec<String>, StorageError> {
        self.index.label_values(name, rows)
    }

    fn cursor(self: Arc<Self>) -> Box<dyn BlockCursor> {
        Box::new(PrometheusCursor::new(self))
    }

    fn files(&self) -> Vec<PathBuf> {
        let beside = [meta::FILE_NAME, index::FILE_NAME].map(|name| self.dir.join(name));
        self.chunks.paths().map(Path::to_owned).chain(beside).collect()
    }
}
