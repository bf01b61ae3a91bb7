//! Prometheus' log: the records of a directory of segments.
//!
//! ```text
//! segment    pages of 32 KiB, the last may be shorter
//! page       fragments, then zeros
//! fragment   0:3 | zstd:1 | snappy:1 | type:3 | length of the data u16, big endian | CRC32C of the data u32 | data
//! type       0: the rest of the page is empty | 1: a whole record | 2: its first, 3: a middle, 4: its last fragment
//! record     data of its fragments, in one piece, compressed or not; never in two segments
//! ```
use std::borrow::Cow;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use metricsstore_codec::checksum::crc32c;
use metricsstore_vfs::Files;
use ruzstd::decoding::StreamingDecoder;

use super::report::Report;
use crate::StorageError;

const PAGE_BYTES: usize = 32 << 10;
const HEADER_BYTES: usize = 7;
const TYPE: u8 = 0b111;
const SNAPPY: u8 = 1 << 3;
const ZSTD: u8 = 1 << 4;
/// Bytes of a record, unpacked, at most. Those of Prometheus are as long as what one append brought.
const MAX_RECORD_BYTES: usize = 256 << 20;
/// A name of a segment has as many digits, at least.
const MIN_DIGITS: usize = 6;

/// Takes records, and before each page how many bytes were read since the page before.
pub(super) trait Records {
    /// Says what is wrong with the record if it is none.
    fn record(&mut self, bytes: &[u8]) -> Result<Result<(), &'static str>, StorageError>;
    fn read(&mut self, bytes: u64);
}

/// Segments of a directory, ascending, with their length.
pub(super) fn segments(files: &dyn Files, dir: &Path) -> Result<Vec<(u64, PathBuf, u64)>, StorageError> {
    if !files.exists(dir).map_err(StorageError::io("look for", dir))? {
        return Ok(Vec::new());
    }
    let entries = files.list(dir).map_err(StorageError::io("list", dir))?;
    let mut segments: Vec<(u64, PathBuf, u64)> = entries
        .into_iter()
        .filter(|entry| !entry.is_dir && entry.name.len() >= MIN_DIGITS)
        .filter(|entry| entry.name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|entry| Some((entry.name.parse().ok()?, dir.join(&entry.name), entry.len)))
        .collect();
    segments.sort();
    Ok(segments)
}

/// Hands every record that can be read to `records`, in their order. What cannot be read is reported and costs the rest of
/// its page; that the newest segment ends in the middle of a record is normal.
pub(super) fn read_segments(
    files: &dyn Files,
    segments: &[(u64, PathBuf, u64)],
    report: &mut Report,
    records: &mut dyn Records,
) -> Result<(), StorageError> {
    let mut before = None;
    for (index, (number, path, len)) in segments.iter().enumerate() {
        if before.is_some_and(|before| before + 1 != *number) {
            report.damage(path, 0, "segments before it are missing");
        }
        before = Some(*number);
        let is_newest = index + 1 == segments.len();
        let mut reader =
            Reader { path, is_newest, len: *len, open: None, is_lost: false, packed: Vec::new() };
        reader.read(files, report, records)?;
    }
    Ok(())
}

struct Reader<'p> {
    path: &'p Path,
    is_newest: bool,
    len: u64,
    /// Where the record began that is being put together, and how it is packed.
    open: Option<(u64, u8)>,
    /// Whether the beginning of the present record may have been lost, so that its other fragments are no damage of
    /// their own.
    is_lost: bool,
    packed: Vec<u8>,
}

/// What comes after a fragment.
enum Next {
    Fragment(usize),
    Page,
}

impl Reader<'_> {
    fn read(
        &mut self,
        files: &dyn Files,
        report: &mut Report,
        records: &mut dyn Records,
    ) -> Result<(), StorageError> {
        let file = files.open(self.path).map_err(StorageError::io("open", self.path))?;
        let (mut page, mut offset) = (Vec::with_capacity(PAGE_BYTES), 0);
        while offset < self.len {
            let bytes = (self.len - offset).min(PAGE_BYTES as u64);
            page.resize(bytes as usize, 0);
            file.read_exact_at(&mut page, offset).map_err(StorageError::io("read", self.path))?;
            records.read(bytes);
            let mut at = 0;
            while at < page.len() {
                match self.fragment(&page, at, offset, report, records)? {
                    Next::Fragment(next) => at = next,
                    Next::Page => break,
                }
            }
            offset += bytes;
        }
        if let Some((start, _)) = self.open.take().filter(|_| !self.is_newest) {
            report.damage(self.path, start, "a record without its end");
        }
        Ok(())
    }

    fn fragment(
        &mut self,
        page: &[u8],
        at: usize,
        page_offset: u64,
        report: &mut Report,
        records: &mut dyn Records,
    ) -> Result<Next, StorageError> {
        let offset = page_offset + at as u64;
        let kind = page[at] & TYPE;
        if page[at] == 0 && page[at..].iter().all(|&byte| byte == 0) {
            return Ok(Next::Page);
        }
        let Some((data, crc)) = fragment_at(&page[at..]) else {
            let is_torn = self.is_newest && page.len() < PAGE_BYTES;
            if !is_torn {
                self.lose(offset, "a fragment without its end", report);
            }
            return Ok(Next::Page);
        };
        if crc32c(data) != crc || page[at] & !(TYPE | SNAPPY | ZSTD) != 0 || !(1..=4).contains(&kind) {
            self.lose(offset, "a fragment whose checksum or type is damaged", report);
            return Ok(Next::Page);
        }
        let next = Next::Fragment(at + HEADER_BYTES + data.len());
        let (is_first, is_last) = (kind <= 2, kind == 1 || kind == 4);
        if is_first {
            if let Some((start, _)) = self.open.take() {
                report.damage(self.path, start, "a record without its end");
            }
            self.is_lost = false;
            self.packed.clear();
            self.open = Some((offset, page[at]));
        }
        let Some((start, packing)) = self.open else {
            if !self.is_lost {
                self.lose(offset, "a record without its beginning", report);
            }
            return Ok(next);
        };
        if self.packed.len() + data.len() > MAX_RECORD_BYTES {
            self.lose(start, "a record that is too long", report);
            return Ok(next);
        }
        self.packed.extend_from_slice(data);
        if is_last {
            self.open = None;
            let wrong = match unpacked(packing, &self.packed) {
                Some(record) => records.record(&record)?.err(),
                None => Some("a record that cannot be unpacked"),
            };
            if let Some(what) = wrong {
                report.damage(self.path, start, what);
            }
        }
        Ok(next)
    }

    fn lose(&mut self, offset: u64, what: &'static str, report: &mut Report) {
        report.damage(self.path, self.open.take().map_or(offset, |(start, _)| start), what);
        self.is_lost = true;
    }
}

fn fragment_at(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let (&[_, high, low, a, b, c, d], rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let data = rest.get(..usize::from(u16::from_be_bytes([high, low])))?;
    Some((data, u32::from_be_bytes([a, b, c, d])))
}

fn unpacked(packing: u8, packed: &[u8]) -> Option<Cow<'_, [u8]>> {
    if packing & SNAPPY != 0 {
        let len = snap::raw::decompress_len(packed).ok().filter(|&len| len <= MAX_RECORD_BYTES)?;
        let mut record = vec![0; len];
        let written = snap::raw::Decoder::new().decompress(packed, &mut record).ok()?;
        record.truncate(written);
        return Some(record.into());
    }
    if packing & ZSTD != 0 {
        return unzstd(packed).map(Into::into);
    }
    Some(packed.into())
}

fn unzstd(packed: &[u8]) -> Option<Vec<u8>> {
    let stream = StreamingDecoder::new(packed).ok()?;
    let mut record = Vec::new();
    let read = stream.take(MAX_RECORD_BYTES as u64 + 1).read_to_end(&mut record).ok()?;
    (read <= MAX_RECORD_BYTES).then_some(record)
}
