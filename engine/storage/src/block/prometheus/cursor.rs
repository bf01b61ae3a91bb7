//! Reads samples of a Prometheus block. Every chunk has timestamps of its own: those of a row become a stream, and rows
//! with the same timestamps share one, as those of a scrape do.
use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use xxhash_rust::xxh3::Xxh3;

use super::chunk::decode_chunk;
use super::index::ChunkMeta;
use super::reader::PrometheusBlock;
use crate::StorageError;
use crate::block::series::SLICE_SAMPLES;
use crate::block::{BlockCursor, SeriesData};
use crate::column::{Encoding, Piece, put_plain};
use crate::kinds::{HistogramColumn, Kind, KindColumn, StartColumn};

/// Streams that can be asked for, the newest ones.
const STREAMS: usize = 32 << 10;
/// Timestamps that are kept decoded, about.
const KEPT_TIMES: usize = 128 << 10;

pub(crate) struct PrometheusCursor {
    block: Arc<PrometheusBlock>,
    /// The samples read last: of which row, and from when to when all of them.
    read: Option<(u32, (i64, i64))>,
    samples: SeriesData,
    chunks: Vec<ChunkMeta>,
    data: Vec<u8>,
    /// The newest streams; the first of them has the number `first_stream`.
    streams: VecDeque<Stream>,
    first_stream: u32,
    /// Streams by the hash of their timestamps.
    known: HashMap<u128, u32>,
    kept: HashMap<u32, Arc<[i64]>>,
    kept_times: usize,
}

/// Where the timestamps of a stream can be read again.
struct Stream {
    row: u32,
    within_ms: (i64, i64),
    hash: u128,
}

impl PrometheusCursor {
    pub(super) fn new(block: Arc<PrometheusBlock>) -> PrometheusCursor {
        PrometheusCursor {
            block,
            read: None,
            samples: SeriesData::default(),
            chunks: Vec::new(),
            data: Vec::new(),
            streams: VecDeque::new(),
            first_stream: 0,
            known: HashMap::new(),
            kept: HashMap::new(),
            kept_times: 0,
        }
    }

    /// Reads the samples of a row from and to these times into `self.samples`, and perhaps others around them.
    fn load(&mut self, row: u32, within_ms: (i64, i64)) -> Result<(), StorageError> {
        let holds =
            |(of, read): (u32, (i64, i64))| of == row && read.0 <= within_ms.0 && within_ms.1 <= read.1;
        if self.read.is_some_and(holds) {
            return Ok(());
        }
        self.read = None;
        self.samples.clear_samples();
        self.block.index.chunks(row, &mut self.chunks)?;
        let overlap = |chunk: &&ChunkMeta| chunk.max_ms >= within_ms.0 && chunk.min_ms <= within_ms.1;
        for chunk in self.chunks.iter().filter(overlap) {
            let encoding = self.block.chunks.read(chunk.reference, &mut self.data)?;
            let before = self.samples.samples();
            decode_chunk(encoding, &self.data, &mut self.samples).map_err(|what| self.block.damaged(what))?;
            let is_as_told = self.samples.samples() > before
                && self.samples.floats.last().map(|s| s.0).max(self.samples.histograms.last().map(|s| s.0))
                    == Some(chunk.max_ms);
            if !is_as_told {
                return Err(self.block.damaged("a chunk does not end when the index says"));
            }
        }
        let is_sorted = self.samples.floats.is_sorted_by(|a, b| a.0 < b.0)
            && self.samples.histograms.is_sorted_by(|a, b| a.0 < b.0);
        if !is_sorted {
            return Err(self.block.damaged("chunks of a series overlap"));
        }
        self.read = Some((row, within_ms));
        Ok(())
    }

    /// The stream of timestamps that stand at `range` of the floats that were read.
    fn stream_of(&mut self, row: u32, range: std::ops::Range<usize>) -> u32 {
        let floats = &self.samples.floats[range];
        let mut hasher = Xxh3::new();
        for (time, _) in floats {
            hasher.update(&time.to_le_bytes());
        }
        let hash = hasher.digest128();
        if let Some(&stream) = self.known.get(&hash) {
            return stream;
        }
        let times: Arc<[i64]> = floats.iter().map(|sample| sample.0).collect();
        let within_ms = (times.first().copied().unwrap_or(0), times.last().copied().unwrap_or(0));
        if self.streams.len() == STREAMS
            && let Some(oldest) = self.streams.pop_front()
        {
            self.known.remove(&oldest.hash);
            self.first_stream += 1;
        }
        let stream = self.first_stream + self.streams.len() as u32;
        self.streams.push_back(Stream { row, within_ms, hash });
        self.known.insert(hash, stream);
        self.keep(stream, times);
        stream
    }

    fn keep(&mut self, stream: u32, times: Arc<[i64]>) {
        if self.kept_times + times.len() > KEPT_TIMES {
            self.kept.clear();
            self.kept_times = 0;
        }
        self.kept_times += times.len();
        self.kept.insert(stream, times);
    }
}

impl BlockCursor for PrometheusCursor {
    fn pieces_into(
        &mut self,
        row: u32,
        within_ms: (i64, i64),
        payload: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), StorageError> {
        self.load(row, within_ms)?;
        let floats = &self.samples.floats;
        let mut start = floats.partition_point(|sample| sample.0 < within_ms.0);
        let end = floats.partition_point(|sample| sample.0 <= within_ms.1);
        while start < end {
            let slice = start..end.min(start + SLICE_SAMPLES);
            start = slice.end;
            let stream = self.stream_of(row, slice.clone());
            let payload_start = payload.len();
            let floats = &self.samples.floats[slice];
            put_plain(floats.iter().map(|sample| Some(sample.1)), payload);
            pieces.push(Piece {
                stream,
                first_row: 0,
                rows: floats.len() as u32,
                payload: payload_start..payload.len(),
                encoding: Encoding::Plain,
            });
        }
        Ok(())
    }

    fn times(&mut self, stream: u32) -> Result<Arc<[i64]>, StorageError> {
        if let Some(times) = self.kept.get(&stream) {
            return Ok(Arc::clone(times));
        }
        let place = stream.checked_sub(self.first_stream).map(|place| place as usize);
        let known = place.and_then(|place| self.streams.get(place)).map(|known| (known.row, known.within_ms));
        let (row, within_ms) = known.ok_or_else(|| self.block.damaged("a stream is asked for too late"))?;
        self.load(row, within_ms)?;
        let within = self.samples.floats.iter().filter(|s| within_ms.0 <= s.0 && s.0 <= within_ms.1);
        let times: Arc<[i64]> = within.map(|sample| sample.0).collect();
        self.keep(stream, Arc::clone(&times));
        Ok(times)
    }

    fn kind_column(
        &mut self,
        kind: Kind,
        row: u32,
        within_ms: (i64, i64),
    ) -> Result<Option<KindColumn>, StorageError> {
        self.load(row, within_ms)?;
        Ok(match kind {
            Kind::Histograms => {
                let mut column = HistogramColumn::default();
                for (time, histogram) in &self.samples.histograms {
                    column.push(*time, histogram, false);
                }
                column.column()
            }
            Kind::Starts => {
                let mut column = StartColumn::default();
                for &(time, start) in &self.samples.starts {
                    column.push(time, start);
                }
                column.column()
            }
        })
    }
}
