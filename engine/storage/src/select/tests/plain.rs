//! A block in memory that is made of nothing but what it is asked for: what selects make of blocks is tested with it.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use metricsstore_model::histogram::Histogram;
use metricsstore_model::{LabelBuf, Matcher};
use roaring::RoaringBitmap;

use super::random::Random;
use crate::StorageError;
use crate::block::series::fingerprint;
use crate::block::{Block, BlockCursor, BlockMeta, Format, Ulid};
use crate::column::{Encoder, Encoding, Piece, put_plain};
use crate::kinds::{Kind, KindColumn, Kinds};

/// What a series has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    /// Bits of values by time.
    pub floats: BTreeMap<i64, u64>,
    /// Bits of sums by time.
    pub histograms: BTreeMap<i64, u64>,
    /// When the counter began, by the time of the sample.
    pub starts: BTreeMap<i64, i64>,
}

impl Samples {
    pub fn is_empty(&self) -> bool {
        self.floats.is_empty() && self.histograms.is_empty()
    }

    pub fn times(&self) -> impl Iterator<Item = i64> + '_ {
        self.floats.keys().chain(self.histograms.keys()).copied()
    }
}

/// Series by their label sets.
pub type Contents = BTreeMap<LabelBuf, Samples>;

pub fn histogram_of(bits: u64) -> Histogram {
    Histogram { sum: f64::from_bits(bits), ..Histogram::default() }
}

pub struct PlainBlock {
    meta: BlockMeta,
    rows: Vec<Row>,
    /// Times of each stream.
    streams: Vec<Arc<[i64]>>,
    /// Does not say which rows have histograms and start timestamps.
    is_silent: bool,
}

struct Row {
    labels: LabelBuf,
    pages: Vec<Page>,
    kinds: [Option<KindColumn>; 2],
}

struct Page {
    piece: Piece,
    payload: Vec<u8>,
    min_ms: i64,
    max_ms: i64,
}

impl PlainBlock {
    /// Series with the same `job` share a stream; pages end and encodings change at random.
    pub fn new(number: u64, contents: &Contents, random: &mut Random) -> PlainBlock {
        let mut streams: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (labels, samples) in contents {
            let stream = streams.entry(stream_of(labels)).or_default();
            stream.extend(samples.floats.keys());
            stream.sort_unstable();
            stream.dedup();
        }
        let numbers: BTreeMap<String, u32> = streams.keys().cloned().zip(0..).collect();
        let rows = contents.iter().map(|(labels, samples)| {
            let job = stream_of(labels);
            let pages = pages(numbers[&job], &streams[&job], &samples.floats, random);
            Row { labels: labels.clone(), pages, kinds: kinds(samples) }
        });
        let rows: Vec<Row> = rows.collect();
        let times = || contents.values().flat_map(Samples::times);
        let (min_ms, max_ms) = (times().min().unwrap_or(0), times().max().unwrap_or(-1));
        let ulid = Ulid(u128::from(number));
        let meta = BlockMeta {
            ulid,
            format: Format::Native,
            start_ms: min_ms,
            end_ms: max_ms + 1,
            min_ms,
            max_ms,
            level: 1,
            sources: vec![ulid],
            parents: Vec::new(),
            is_late: false,
            series: rows.len() as u64,
            float_samples: contents.values().map(|samples| samples.floats.len() as u64).sum(),
            histogram_samples: contents.values().map(|samples| samples.histograms.len() as u64).sum(),
            chunks: 0,
            bytes: 0,
        };
        let streams = streams.into_values().map(Arc::from).collect();
        PlainBlock { meta, rows, streams, is_silent: random.one_in(3) }
    }

    fn of(&self, rows: Option<&RoaringBitmap>) -> impl Iterator<Item = &LabelBuf> {
        let is_in = move |row: u32| rows.is_none_or(|rows| rows.contains(row));
        (0..).zip(&self.rows).filter(move |(number, _)| is_in(*number)).map(|(_, row)| &row.labels)
    }
}

fn stream_of(labels: &LabelBuf) -> String {
    labels.get("job").unwrap_or_default().to_owned()
}

fn pages(stream: u32, times: &[i64], floats: &BTreeMap<i64, u64>, random: &mut Random) -> Vec<Page> {
    let mut pages = Vec::new();
    let rows: Vec<(u32, i64, u64)> = (0..)
        .zip(times)
        .filter_map(|(row, &time)| floats.get(&time).map(|&bits| (row, time, bits)))
        .collect();
    let mut rest = &rows[..];
    while !rest.is_empty() {
        let (page, after) = rest.split_at(1 + random.below(rest.len() as u64) as usize);
        rest = after;
        let (first_row, end_row) = (page[0].0, page[page.len() - 1].0 + 1);
        let mut payload = Vec::new();
        let encoding = random.pick(&[Encoding::Column, Encoding::Plain]);
        match encoding {
            Encoding::Column => {
                let mut encoder = Encoder::default();
                for &(row, _, bits) in page {
                    encoder.set(row - first_row, bits);
                }
                encoder.finish(&mut payload);
            }
            Encoding::Plain => {
                let mut cells = vec![None; (end_row - first_row) as usize];
                for &(row, _, bits) in page {
                    cells[(row - first_row) as usize] = Some(bits);
                }
                put_plain(cells.iter().copied(), &mut payload);
            }
        }
        let rows = end_row - first_row;
        let piece = Piece { stream, first_row, rows, payload: 0..payload.len(), encoding };
        pages.push(Page { piece, payload, min_ms: page[0].1, max_ms: page[page.len() - 1].1 });
    }
    pages
}

fn kinds(samples: &Samples) -> [Option<KindColumn>; 2] {
    let mut kinds = Kinds::default();
    for (&time, &bits) in &samples.histograms {
        kinds.push_histogram(0, time, &histogram_of(bits), false);
    }
    for (&time, &start) in &samples.starts {
        kinds.push_start(0, time, start);
    }
    Kind::ALL.map(|kind| kinds.column(kind, 0))
}

impl Block for PlainBlock {
    fn meta(&self) -> &BlockMeta {
        &self.meta
    }

    fn rows(&self, matchers: &[Matcher]) -> Result<RoaringBitmap, StorageError> {
        let passes = |labels: &LabelBuf| {
            matchers.iter().all(|matcher| matcher.matches(labels.get(&matcher.name).unwrap_or_default()))
        };
        Ok((0..).zip(&self.rows).filter(|(_, row)| passes(&row.labels)).map(|(number, _)| number).collect())
    }

    fn labels(&self, row: u32, labels: &mut LabelBuf) -> Result<(), StorageError> {
        labels.clear();
        self.rows[row as usize].labels.iter().for_each(|(name, value)| labels.push(name, value));
        Ok(())
    }

    fn fingerprint(&self, row: u32) -> Result<u128, StorageError> {
        Ok(fingerprint(&self.rows[row as usize].labels))
    }

    fn rows_with(&self, kind: Kind) -> Result<Option<RoaringBitmap>, StorageError> {
        let with = (0..).zip(&self.rows).filter(|(_, row)| row.kinds[kind as usize].is_some());
        Ok((!self.is_silent).then(|| with.map(|(number, _)| number).collect()))
    }

    fn label_names(&self, rows: Option<&RoaringBitmap>) -> Result<Vec<String>, StorageError> {
        let names = self.of(rows).flat_map(|labels| labels.iter().map(|(name, _)| name.to_owned()));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn label_values(&self, name: &str, rows: Option<&RoaringBitmap>) -> Result<Vec<String>, StorageError> {
        let values = self.of(rows).filter_map(|labels| labels.get(name)).map(str::to_owned);
        let mut values: Vec<String> = values.collect();
        values.sort();
        values.dedup();
        Ok(values)
    }

    fn cursor(self: Arc<Self>) -> Box<dyn BlockCursor> {
        Box::new(PlainCursor(self))
    }

    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

struct PlainCursor(Arc<PlainBlock>);

impl BlockCursor for PlainCursor {
    fn pieces_into(
        &mut self,
        row: u32,
        (start_ms, end_ms): (i64, i64),
        payload: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), StorageError> {
        let pages = self.0.rows[row as usize].pages.iter();
        for page in pages.filter(|page| page.min_ms <= end_ms && page.max_ms >= start_ms) {
            let start = payload.len();
            payload.extend_from_slice(&page.payload);
            pieces.push(Piece { payload: start..payload.len(), ..page.piece });
        }
        Ok(())
    }

    fn times(&mut self, stream: u32) -> Result<Arc<[i64]>, StorageError> {
        Ok(Arc::clone(&self.0.streams[stream as usize]))
    }

    fn kind_column(
        &mut self,
        kind: Kind,
        row: u32,
        _within_ms: (i64, i64),
    ) -> Result<Option<KindColumn>, StorageError> {
        Ok(self.0.rows[row as usize].kinds[kind as usize].clone())
    }
}
