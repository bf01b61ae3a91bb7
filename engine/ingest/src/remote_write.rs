//! Remote write 1.0: a snappy block that holds a protobuf `WriteRequest`.
//!
//! ```text
//! WriteRequest { repeated TimeSeries timeseries = 1; repeated MetricMetadata metadata = 3 }
//! TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2; repeated Exemplar exemplars = 3;
//!                repeated Histogram histograms = 4 }
//! Label        { string name = 1; string value = 2 }
//! Sample       { double value = 1; int64 timestamp = 2 }
//! ```
//! Histograms, exemplars and metadata are read by `extras`.
//!
//! The raw label bytes of a row are the encoded `labels` fields, tags included. Senders write them one after the
//! other, so they are a slice of the body; a row whose label fields are scattered is copied together.
mod extras;

use extras::{read_exemplar, read_histogram, read_metadata};
use metricsstore_model::{
    Batch, Extras, LabelBuf, LabelDecoder, LabelError, METRIC_NAME, Origin, RawKey, RawKeyHasher, Row, Sample,
};

use crate::proto::{Field, Malformed, Reader};

/// Largest decompressed request, in bytes.
pub const MAX_DECODED_BYTES: usize = 32 << 20;

/// Most samples in one request.
pub const MAX_SAMPLES: usize = 1 << 20;

/// Most native histograms in one request, and most exemplars, and most statements of metadata: an empty one takes two
/// bytes in the request and many more here.
pub const MAX_EXTRAS: usize = 1 << 16;

/// Most spans, buckets and bounds of all histograms of a request.
pub const MAX_PARTS_PER_REQUEST: usize = 1 << 21;

/// Buffers above this size, in bytes, are given back after a request.
const KEPT_BUFFER_BYTES: usize = 4 << 20;

/// A snappy copy of three bytes yields at most 64, so no honest block declares more than this ratio.
const SNAPPY_MAX_RATIO: usize = 22;

/// Names the encoding in the keyed hash.
const KEY_SALT: &[u8] = b"remote write 1.0";

/// A request body that is not a remote write 1.0 request. Sending it again cannot help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The body is not a snappy block.
    #[error("the body is not a snappy block: {0}; send remote write with block-format snappy")]
    Snappy(String),
    /// The block declares more bytes than are accepted.
    #[error("the request declares {declared} decompressed bytes, more than {limit}; send smaller requests")]
    TooLarge {
        /// Bytes declared.
        declared: usize,
        /// Bytes accepted.
        limit: usize,
    },
    /// The decompressed bytes are not a `WriteRequest`.
    #[error("malformed write request at byte {offset} after decompression: {what}")]
    Protobuf {
        /// Offset in the decompressed body.
        offset: usize,
        /// What was expected there.
        what: &'static str,
    },
    /// The request holds more of something than is accepted at once.
    #[error("the request holds more than {limit} {what}; send smaller requests")]
    TooMany {
        /// What.
        what: &'static str,
        /// How much is accepted.
        limit: usize,
    },
}

impl From<Malformed> for DecodeError {
    fn from(malformed: Malformed) -> DecodeError {
        DecodeError::Protobuf { offset: malformed.offset, what: malformed.what }
    }
}

/// Bytes that a compressed body decompresses to, for a reservation before the work. Checks the bound.
pub fn decoded_len(compressed: &[u8]) -> Result<usize, DecodeError> {
    let declared =
        snap::raw::decompress_len(compressed).map_err(|error| DecodeError::Snappy(error.to_string()))?;
    if declared > MAX_DECODED_BYTES {
        return Err(DecodeError::TooLarge { declared, limit: MAX_DECODED_BYTES });
    }
    if declared > compressed.len().saturating_mul(SNAPPY_MAX_RATIO) + 64 {
        return Err(DecodeError::Snappy(format!("{} bytes cannot hold {declared}", compressed.len())));
    }
    Ok(declared)
}

/// Decodes requests one after the other with buffers that are kept between them.
pub struct Decoder {
    hasher: RawKeyHasher,
    keeps_exemplars: bool,
    max_samples: usize,
    body: Vec<u8>,
    rows: Vec<Row<'static>>,
    samples: Vec<Sample>,
    /// Label fields of the rows that scatter them.
    gathered: Vec<u8>,
    snappy: snap::raw::Decoder,
}

impl Decoder {
    /// `process_key` is random per process and the same for all decoders of one store, so that they agree on keys.
    pub fn new(process_key: u64) -> Decoder {
        Decoder {
            hasher: RawKeyHasher::new(process_key, KEY_SALT),
            keeps_exemplars: false,
            max_samples: MAX_SAMPLES,
            body: Vec::new(),
            rows: Vec::new(),
            samples: Vec::new(),
            gathered: Vec::new(),
            snappy: snap::raw::Decoder::new(),
        }
    }

    /// Whether exemplars are handed over from now on; at first they are not, since most stores keep none.
    pub fn keep_exemplars(&mut self, keep: bool) {
        self.keeps_exemplars = keep;
    }

    /// Most samples, and most series, of a request from now on; never above [`MAX_SAMPLES`].
    pub fn limit_samples(&mut self, max_samples: usize) {
        self.max_samples = max_samples.min(MAX_SAMPLES);
    }

    /// Decompresses and decodes one body and hands the batch to `consume`, whose result it returns. Nothing is
    /// handed over when any part of the body is malformed.
    pub fn decode<R>(
        &mut self,
        compressed: &[u8],
        origin: Origin,
        consume: impl FnOnce(&Batch<'_>) -> R,
    ) -> Result<R, DecodeError> {
        let declared = decoded_len(compressed)?;
        if self.body.len() < declared {
            self.body.resize(declared, 0);
        }
        let written = self
            .snappy
            .decompress(compressed, &mut self.body[..declared])
            .map_err(|error| DecodeError::Snappy(error.to_string()))?;
        let result = self.decode_plain(written, origin, consume);
        self.shrink();
        result
    }

    fn decode_plain<R>(
        &mut self,
        length: usize,
        origin: Origin,
        consume: impl FnOnce(&Batch<'_>) -> R,
    ) -> Result<R, DecodeError> {
        let body = &self.body[..length];
        self.samples.clear();
        self.gathered.clear();
        let mut request = Request {
            hasher: self.hasher,
            keeps_exemplars: self.keeps_exemplars,
            max_samples: self.max_samples,
            rows: rebind(std::mem::take(&mut self.rows)),
            samples: &mut self.samples,
            gathered: &mut self.gathered,
            scattered: Vec::new(),
            extras: Extras::default(),
            histogram_parts: 0,
        };
        request.read(body)?;
        let Request { mut rows, scattered, extras, .. } = request;
        for entry in &scattered {
            let raw_labels = &self.gathered[entry.start..entry.end];
            rows[entry.row].key = self.hasher.key(raw_labels);
            rows[entry.row].raw_labels = raw_labels;
        }
        let samples = std::mem::take(&mut self.samples);
        let batch = Batch { origin, decoder: &Labels, rows, samples, extras };
        let result = consume(&batch);
        self.rows = rebind(batch.rows);
        self.samples = batch.samples;
        Ok(result)
    }

    /// Bytes of the buffers that are kept for the next request.
    pub fn bytes(&self) -> u64 {
        let rows = self.rows.capacity() * size_of::<Row<'static>>();
        let samples = self.samples.capacity() * size_of::<Sample>();
        (self.body.capacity() + rows + samples + self.gathered.capacity()) as u64
    }

    /// Gives back what one unusually large request left behind.
    fn shrink(&mut self) {
        if self.body.len() > KEPT_BUFFER_BYTES {
            self.body.truncate(KEPT_BUFFER_BYTES);
            self.body.shrink_to(KEPT_BUFFER_BYTES);
        }
        self.rows.shrink_to(KEPT_BUFFER_BYTES / size_of::<Row<'static>>());
        self.samples.shrink_to(KEPT_BUFFER_BYTES / size_of::<Sample>());
        self.gathered.shrink_to(KEPT_BUFFER_BYTES);
    }
}

/// Empties `rows` and gives its memory another lifetime: collecting a mapped vector of the same layout reuses the
/// allocation.
fn rebind<'a>(mut rows: Vec<Row<'_>>) -> Vec<Row<'a>> {
    rows.clear();
    rows.into_iter().map(|row| Row { raw_labels: &[], key: row.key, samples: row.samples }).collect()
}

/// A row whose label bytes are in [`Request::gathered`].
struct Scattered {
    row: usize,
    start: usize,
    end: usize,
}

struct Request<'b, 'd> {
    hasher: RawKeyHasher,
    keeps_exemplars: bool,
    max_samples: usize,
    rows: Vec<Row<'b>>,
    samples: &'d mut Vec<Sample>,
    gathered: &'d mut Vec<u8>,
    scattered: Vec<Scattered>,
    extras: Extras<'b>,
    /// Spans, buckets and bounds so far.
    histogram_parts: usize,
}

impl<'b> Request<'b, '_> {
    fn read(&mut self, body: &'b [u8]) -> Result<(), DecodeError> {
        let mut reader = Reader::new(body);
        while let Some(field) = reader.field()? {
            match field {
                Field { number: 1, .. } => {
                    self.read_series(body, reader.message(field)?)?;
                }
                Field { number: 3, .. } => {
                    check_room(self.extras.metadata.len(), "statements of metadata")?;
                    self.extras.metadata.push(read_metadata(reader.message(field)?)?);
                }
                _ => reader.skip(field)?,
            }
        }
        Ok(())
    }

    fn read_series(&mut self, body: &'b [u8], mut series: Reader<'b>) -> Result<(), DecodeError> {
        let first_sample = self.samples.len() as u32;
        let extras = self.extras.histograms.len() + self.extras.exemplars.len();
        let row = self.rows.len() as u32;
        let mut labels = series.position()..series.position();
        let mut gathered_from = None;
        while let Some(field) = series.field()? {
            match field.number {
                1 => {
                    series.message(field)?;
                    let encoded = field.start..series.position();
                    if labels.is_empty() {
                        labels = encoded;
                    } else if gathered_from.is_none() && labels.end == encoded.start {
                        labels.end = encoded.end;
                    } else {
                        if gathered_from.is_none() {
                            gathered_from = Some(self.gathered.len());
                            self.gathered.extend_from_slice(&body[labels.clone()]);
                        }
                        self.gathered.extend_from_slice(&body[encoded]);
                    }
                }
                // Judged one by one: an empty sample takes two bytes in the request and many more here.
                2 if self.samples.len() == self.max_samples => {
                    return Err(DecodeError::TooMany { what: "samples", limit: self.max_samples });
                }
                2 => self.samples.push(read_sample(series.message(field)?)?),
                3 if self.keeps_exemplars => {
                    check_room(self.extras.exemplars.len(), "exemplars")?;
                    self.extras.exemplars.push(read_exemplar(series.message(field)?, row)?);
                }
                4 => {
                    check_room(self.extras.histograms.len(), "histograms")?;
                    let message = series.message(field)?;
                    let histogram = read_histogram(message, row, &mut self.histogram_parts)?;
                    self.extras.histograms.push(histogram);
                }
                _ => series.skip(field)?,
            }
        }
        let samples = first_sample..self.samples.len() as u32;
        if samples.is_empty() && extras == self.extras.histograms.len() + self.extras.exemplars.len() {
            return Ok(());
        }
        if self.rows.len() == self.max_samples {
            return Err(DecodeError::TooMany { what: "series", limit: self.max_samples });
        }
        let row = match gathered_from {
            None => {
                let raw_labels = &body[labels];
                Row { raw_labels, key: self.hasher.key(raw_labels), samples }
            }
            Some(start) => {
                self.scattered.push(Scattered { row: self.rows.len(), start, end: self.gathered.len() });
                Row { raw_labels: &[], key: RawKey(0), samples }
            }
        };
        self.rows.push(row);
        Ok(())
    }
}

fn check_room(held: usize, what: &'static str) -> Result<(), DecodeError> {
    if held < MAX_EXTRAS { Ok(()) } else { Err(DecodeError::TooMany { what, limit: MAX_EXTRAS }) }
}

fn read_sample(mut message: Reader<'_>) -> Result<Sample, Malformed> {
    let mut sample = Sample { timestamp_ms: 0, value: 0.0 };
    while let Some(field) = message.field()? {
        match field.number {
            1 => sample.value = f64::from_bits(message.fixed64(field)?),
            2 => sample.timestamp_ms = message.varint_field(field)? as i64,
            _ => message.skip(field)?,
        }
    }
    Ok(sample)
}

/// Decodes the label fields of a time series.
#[derive(Debug, Clone, Copy, Default)]
pub struct Labels;

impl LabelDecoder for Labels {
    fn decode(&self, raw_labels: &[u8], labels: &mut LabelBuf) -> Result<bool, LabelError> {
        labels.clear();
        read_labels(raw_labels, labels)?;
        labels.sort();
        if let Some(name) = labels.duplicate_name() {
            return Err(LabelError::Duplicate(name.to_owned()));
        }
        if labels.is_empty() {
            return Err(LabelError::NoLabels);
        }
        if labels.metric_name().is_empty() {
            return Err(LabelError::NoMetricName);
        }
        Ok(true)
    }

    fn decode_exemplar(&self, raw_labels: &[u8], labels: &mut LabelBuf) -> Result<(), LabelError> {
        labels.clear();
        read_labels(raw_labels, labels)?;
        labels.sort();
        labels.duplicate_name().map_or(Ok(()), |name| Err(LabelError::Duplicate(name.to_owned())))
    }
}

/// Reads the label fields; those of an exemplar have others between them.
fn read_labels(raw_labels: &[u8], labels: &mut LabelBuf) -> Result<(), LabelError> {
    let mut reader = Reader::new(raw_labels);
    while let Some(field) = reader.field()? {
        if field.number != 1 {
            reader.skip(field)?;
            continue;
        }
        let (mut name, mut value): (&[u8], &[u8]) = (b"", b"");
        let mut message = reader.message(field)?;
        while let Some(part) = message.field()? {
            match part.number {
                1 => name = message.bytes(part)?,
                2 => value = message.bytes(part)?,
                _ => message.skip(part)?,
            }
        }
        if name.is_empty() {
            return Err(LabelError::EmptyName);
        }
        let name = text(name, name)?;
        let value = text(value, name.as_bytes())?;
        if !value.is_empty() || name == METRIC_NAME {
            labels.push(name, value);
        }
    }
    Ok(())
}

fn text<'t>(bytes: &'t [u8], name: &[u8]) -> Result<&'t str, LabelError> {
    std::str::from_utf8(bytes).map_err(|_| LabelError::NotUtf8(String::from_utf8_lossy(name).into_owned()))
}

impl From<Malformed> for LabelError {
    fn from(malformed: Malformed) -> LabelError {
        LabelError::Malformed { offset: malformed.offset as u32, what: malformed.what }
    }
}
