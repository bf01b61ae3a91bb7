//! Reads an index. Symbols and the table of postings are verified when it is opened; series and postings when they are
//! read. In memory: about a byte for each series and two for each label pair.
use std::collections::BTreeSet;
use std::path::Path;

use hashbrown::HashMap;
use metricsstore_model::LabelBuf;
use metricsstore_vfs::Files;
use roaring::RoaringBitmap;

use super::offset_table::OffsetTable;
use super::postings::add_list;
use super::source::{Source, Window};
use super::symbols::Symbols;
use super::{ChunkMeta, Contents, FILE_NAME, HEADER_BYTES, MAGIC, NEWEST, SERIES_ALIGN};
use crate::StorageError;
use crate::block::series::pair_fingerprint;
use crate::bytes::Cursor;

/// Label pairs whose fingerprints are remembered while many rows are read.
const KNOWN_PAIRS: usize = 16 << 10;

/// An open index. A *row* is a series by its rank.
pub(crate) struct IndexReader {
    source: Source,
    /// What references are multiplied by to get offsets.
    align: u64,
    /// Where the last series ends at the latest.
    series_end: u64,
    symbols: Symbols,
    table: OffsetTable,
    references: RoaringBitmap,
}

impl IndexReader {
    /// Opens the index in the directory of a block.
    pub(crate) fn open(files: &dyn Files, dir: &Path) -> Result<IndexReader, StorageError> {
        let source = Source::open(files, &dir.join(FILE_NAME))?;
        let version = read_version(&source)?;
        let contents = read_contents(&source)?;
        let symbols = Symbols::read(&source, version, contents.symbols)?;
        let table = OffsetTable::read(&source, version, contents.postings_table)?;
        let mut references = RoaringBitmap::new();
        if let Some(offset) = table.find(&source, "", "")? {
            add_list(&source, &mut Window::new(&source), offset, &mut references)?;
        }
        let align = if version == 1 { 1 } else { SERIES_ALIGN };
        let ends = [contents.label_indices, contents.postings, contents.postings_table];
        let series_end = ends.into_iter().filter(|&end| end > contents.series).min().unwrap_or(source.len());
        Ok(IndexReader { source, align, series_end, symbols, table, references })
    }

    /// Rows in it.
    pub(crate) fn rows(&self) -> u32 {
        self.references.len() as u32
    }

    /// The row of the series with a reference.
    pub(crate) fn row_of(&self, reference: u64) -> Option<u32> {
        let reference = u32::try_from(reference).ok()?;
        self.references.contains(reference).then(|| self.references.rank(reference) as u32 - 1)
    }

    /// The reference of a row.
    pub(crate) fn reference_of(&self, row: u32) -> Option<u32> {
        self.references.select(row)
    }

    pub(super) fn references(&self) -> &RoaringBitmap {
        &self.references
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.symbols.bytes() + self.table.bytes() + self.references.serialized_size()
    }

    /// The labels of a row: cleared, filled.
    pub(crate) fn labels(&self, row: u32, labels: &mut LabelBuf) -> Result<(), StorageError> {
        let mut window = Window::narrow(&self.source);
        let (offset, body) = self.body(&mut window, row)?;
        self.read_labels(offset, &mut Cursor::new(body), labels)
    }

    /// The chunks of a row, oldest first: cleared, filled.
    pub(crate) fn chunks(&self, row: u32, chunks: &mut Vec<ChunkMeta>) -> Result<(), StorageError> {
        chunks.clear();
        let mut window = Window::narrow(&self.source);
        let (offset, body) = self.body(&mut window, row)?;
        let malformed = || self.source.damaged(offset, "the chunks of a series are malformed");
        let mut cursor = Cursor::new(body);
        let pairs = cursor.varint().ok_or_else(malformed)?;
        for _ in 0..pairs.saturating_mul(2) {
            cursor.varint().ok_or_else(malformed)?;
        }
        read_chunks(&mut cursor, chunks).ok_or_else(malformed)
    }

    /// Appends the fingerprint of each of these rows, which ascend.
    pub(crate) fn fingerprints_into(
        &self,
        rows: &[u32],
        fingerprints: &mut Vec<u128>,
    ) -> Result<(), StorageError> {
        let mut window =
            if rows.len() > 1 { Window::new(&self.source) } else { Window::narrow(&self.source) };
        let mut pairs: HashMap<(u32, u32), u128> = HashMap::new();
        for &row in rows {
            let (offset, body) = self.body(&mut window, row)?;
            let malformed = || self.source.damaged(offset, "the labels of a series are malformed");
            let mut cursor = Cursor::new(body);
            let mut fingerprint = 0u128;
            for _ in 0..cursor.varint().ok_or_else(malformed)? {
                let symbols = (cursor.varint_u32(), cursor.varint_u32());
                let (Some(name), Some(value)) = symbols else { return Err(malformed()) };
                let of_pair = match pairs.get(&(name, value)) {
                    Some(known) => *known,
                    None => self.pair_fingerprint(name, value)?,
                };
                if pairs.len() < KNOWN_PAIRS {
                    pairs.insert((name, value), of_pair);
                }
                fingerprint = fingerprint.wrapping_add(of_pair);
            }
            fingerprints.push(fingerprint);
        }
        Ok(())
    }

    fn pair_fingerprint(&self, name: u32, value: u32) -> Result<u128, StorageError> {
        let name = self.symbols.get(&self.source, name, str::to_owned)?;
        self.symbols.get(&self.source, value, |value| pair_fingerprint(&name, value))
    }

    /// What stands about a row, verified, and where.
    fn body<'w>(&self, window: &'w mut Window<'_>, row: u32) -> Result<(u64, &'w [u8]), StorageError> {
        let unknown = || self.source.damaged(0, format!("there is no series {row}"));
        let offset = u64::from(self.references.select(row).ok_or_else(unknown)?) * self.align;
        let next = row.checked_add(1).and_then(|next| self.references.select(next));
        let end = next.map_or(self.series_end, |next| u64::from(next) * self.align);
        let malformed = || self.source.damaged(offset, "a series is malformed");
        let room = end.checked_sub(offset).ok_or_else(malformed)?;
        let bytes = window.get(offset, usize::try_from(room).unwrap_or(usize::MAX))?;
        let mut cursor = Cursor::new(bytes);
        let length = cursor.varint().and_then(|length| usize::try_from(length).ok()).ok_or_else(malformed)?;
        let (Some(body), Some(crc)) = (cursor.take(length), cursor.take(4)) else { return Err(malformed()) };
        if crc32c::crc32c(body).to_be_bytes() == *crc {
            return Ok((offset, body));
        }
        Err(self.source.damaged(offset, "a series does not match its checksum"))
    }

    fn read_labels(
        &self,
        offset: u64,
        cursor: &mut Cursor<'_>,
        labels: &mut LabelBuf,
    ) -> Result<(), StorageError> {
        labels.clear();
        let malformed = || self.source.damaged(offset, "the labels of a series are malformed");
        let pairs = cursor.varint().ok_or_else(malformed)?;
        let mut name = String::new();
        for _ in 0..pairs {
            let symbols = (cursor.varint_u32(), cursor.varint_u32());
            let (Some(of_name), Some(of_value)) = symbols else { return Err(malformed()) };
            self.symbols.get(&self.source, of_name, |text| {
                name.clear();
                name.push_str(text);
            })?;
            self.symbols.get(&self.source, of_value, |value| labels.push(&name, value))?;
        }
        if labels.iter().is_sorted_by(|a, b| a.0 < b.0) { Ok(()) } else { Err(malformed()) }
    }

    /// Sorted names of the labels of these rows, of all where there are none given.
    pub(crate) fn label_names(&self, rows: Option<&RoaringBitmap>) -> Result<Vec<String>, StorageError> {
        let Some(rows) = rows else { return Ok(self.table.names().map(str::to_owned).collect()) };
        let (mut symbols, mut window) = (BTreeSet::new(), Window::new(&self.source));
        for row in rows {
            let (offset, body) = self.body(&mut window, row)?;
            let malformed = || self.source.damaged(offset, "the labels of a series are malformed");
            let mut cursor = Cursor::new(body);
            for _ in 0..cursor.varint().ok_or_else(malformed)? {
                symbols.insert(cursor.varint_u32().ok_or_else(malformed)?);
                cursor.varint_u32().ok_or_else(malformed)?;
            }
        }
        let mut names = Vec::with_capacity(symbols.len());
        for symbol in symbols {
            names.push(self.symbols.get(&self.source, symbol, str::to_owned)?);
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Sorted values of a label in these rows, in all where there are none given.
    pub(crate) fn label_values(
        &self,
        name: &str,
        rows: Option<&RoaringBitmap>,
    ) -> Result<Vec<String>, StorageError> {
        match rows {
            Some(rows) if rows.len() < u64::from(self.values(name)) => self.values_of_rows(name, rows),
            _ => {
                let references = rows.map(|rows| self.references_of(rows));
                let (mut values, mut list) = (Vec::new(), RoaringBitmap::new());
                let mut window = Window::new(&self.source);
                self.table.visit(&self.source, name, |value, postings| {
                    if let Some(references) = &references {
                        list.clear();
                        add_list(&self.source, &mut window, postings, &mut list)?;
                        if list.is_disjoint(references) {
                            return Ok(());
                        }
                    }
                    values.push(value.to_owned());
                    Ok(())
                })?;
                Ok(values)
            }
        }
    }

    fn values_of_rows(&self, name: &str, rows: &RoaringBitmap) -> Result<Vec<String>, StorageError> {
        let (mut values, mut labels) = (BTreeSet::new(), LabelBuf::new());
        let mut window = Window::new(&self.source);
        for row in rows {
            let (offset, body) = self.body(&mut window, row)?;
            self.read_labels(offset, &mut Cursor::new(body), &mut labels)?;
            if let Some(value) = labels.get(name).filter(|value| !values.contains(*value)) {
                values.insert(value.to_owned());
            }
        }
        Ok(values.into_iter().collect())
    }

    /// Values of a label.
    pub(super) fn values(&self, name: &str) -> u32 {
        if name.is_empty() { 0 } else { self.table.count(name) }
    }

    /// References of the series that have a label with one of these values.
    pub(super) fn union(&self, name: &str, values: &[&str]) -> Result<RoaringBitmap, StorageError> {
        let (mut found, mut window) = (RoaringBitmap::new(), Window::new(&self.source));
        for value in values.iter().filter(|_| !name.is_empty()) {
            if let Some(offset) = self.table.find(&self.source, name, value)? {
                add_list(&self.source, &mut window, offset, &mut found)?;
            }
        }
        Ok(found)
    }

    /// References of the series that have a label with a value for which `is` holds.
    pub(super) fn union_where(
        &self,
        name: &str,
        is: impl Fn(&str) -> bool,
    ) -> Result<RoaringBitmap, StorageError> {
        let (mut found, mut window) = (RoaringBitmap::new(), Window::new(&self.source));
        if name.is_empty() {
            return Ok(found);
        }
        self.table.visit(&self.source, name, |value, postings| {
            if is(value) { add_list(&self.source, &mut window, postings, &mut found) } else { Ok(()) }
        })?;
        Ok(found)
    }

    /// Rows of references, all of which are known.
    pub(super) fn rows_of(&self, references: &RoaringBitmap) -> RoaringBitmap {
        if references.len() == self.references.len() {
            return RoaringBitmap::from_sorted_iter(0..self.rows()).unwrap_or_default();
        }
        if references.len().saturating_mul(64) < self.references.len() {
            return references.iter().map(|reference| self.references.rank(reference) as u32 - 1).collect();
        }
        let all = self.references.iter().zip(0u32..);
        let mut wanted = references.iter().peekable();
        let rows = all.filter_map(|(reference, row)| wanted.next_if_eq(&reference).map(|_| row));
        rows.collect()
    }

    fn references_of(&self, rows: &RoaringBitmap) -> RoaringBitmap {
        let all = self.references.iter().zip(0u32..);
        let mut wanted = rows.iter().peekable();
        all.filter_map(|(reference, row)| wanted.next_if_eq(&row).map(|_| reference)).collect()
    }
}

fn read_version(source: &Source) -> Result<u8, StorageError> {
    let mut header = [0; HEADER_BYTES as usize];
    source.read(0, &mut header)?;
    if header[..4] != MAGIC {
        return Err(source.damaged(0, "this is not the index of a Prometheus block"));
    }
    match header[4] {
        version @ 1..=NEWEST => Ok(version),
        found => Err(StorageError::Version {
            file: source.path().display().to_string(),
            found: u32::from(found),
            supported: u32::from(NEWEST),
        }),
    }
}

fn read_contents(source: &Source) -> Result<Contents, StorageError> {
    let mut bytes = [0; Contents::BYTES];
    let offset = source.len().saturating_sub(Contents::BYTES as u64);
    source.read(offset, &mut bytes)?;
    Contents::decode(&bytes)
        .ok_or_else(|| source.damaged(offset, "the table of contents does not match its checksum"))
}

fn read_chunks(cursor: &mut Cursor<'_>, chunks: &mut Vec<ChunkMeta>) -> Option<()> {
    let count = cursor.varint()?;
    for place in 0..count {
        let chunk = match chunks.last().filter(|_| place > 0) {
            None => {
                let min_ms = cursor.signed()?;
                let max_ms = min_ms.checked_add_unsigned(cursor.varint()?)?;
                ChunkMeta { min_ms, max_ms, reference: cursor.varint()? }
            }
            Some(&last) => {
                let min_ms = last.max_ms.checked_add_unsigned(cursor.varint()?)?;
                let max_ms = min_ms.checked_add_unsigned(cursor.varint()?)?;
                ChunkMeta { min_ms, max_ms, reference: last.reference.checked_add_signed(cursor.signed()?)? }
            }
        };
        chunks.push(chunk);
    }
    cursor.is_at_end().then_some(())
}
