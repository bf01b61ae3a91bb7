//! Opens a block, and answers what is asked about its rows.
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::HashMap;
use metricsstore_budget::{Budget, Part};
use metricsstore_model::{LabelBuf, Matcher};
use metricsstore_vfs::{File, Files};
use roaring::RoaringBitmap;

use super::cursor::NativeCursor;
use super::directory::Directory;
use super::interner::RowSets;
use super::labels::{ROWS_PER_PAGE, Rows};
use super::page::PageSource;
use super::{END_MAGIC, FOOTER_BYTES, HEADER_BYTES, MAGIC, MAX_PAGE_BYTES, VERSION, dictionary, page_crc};
use crate::StorageError;
use crate::block::page_cache::PageCache;
use crate::block::{Block, BlockCursor, BlockMeta, Ulid};
use crate::bytes::{Cursor, put_varint};
use crate::kinds::Kind;

/// An open block. Its file may be removed while it is read.
pub(crate) struct NativeBlock {
    pub(super) directory: Directory,
    pub(super) source: PageSource,
    budget: Budget,
    counted: u64,
}

/// Under this and its number the text of a set of labels stands in the page cache: no page has such an offset.
const TEXT: u64 = 1 << 63;

/// Pairs of the text of a set: each is the length of its name, the name, the length of its value, the value.
struct Pairs<'t>(Cursor<'t>);

impl<'t> Iterator for Pairs<'t> {
    type Item = (&'t str, &'t str);

    fn next(&mut self) -> Option<(&'t str, &'t str)> {
        let mut text = || {
            let length = self.0.varint_u32()? as usize;
            str::from_utf8(self.0.take(length)?).ok()
        };
        Some((text()?, text()?))
    }
}

impl NativeBlock {
    /// Opens the block of this name in a directory of native blocks.
    pub(crate) fn open(
        files: &Arc<dyn Files>,
        dir: &Path,
        ulid: Ulid,
        pages: &Arc<PageCache>,
    ) -> Result<NativeBlock, StorageError> {
        let path = dir.join(ulid.to_string());
        let file = files.open(&path).map_err(StorageError::io("open", &path))?;
        let bytes = file.len().map_err(StorageError::io("read", &path))?;
        check_header(&*file, &path, ulid, bytes)?;
        let (mut directory, end) = read_directory(&*file, &path, ulid, bytes)?;
        directory.meta.bytes = bytes;
        let counted = directory.bytes() as u64;
        let budget = pages.budget().clone();
        budget.add(Part::Segments, counted);
        let source = PageSource { file, path, ulid, end, pages: pages.open() };
        Ok(NativeBlock { directory, source, budget, counted })
    }

    /// Rows of a page.
    fn page_rows(&self, page: usize) -> Range<u32> {
        let start = page as u32 * ROWS_PER_PAGE;
        start..(start + ROWS_PER_PAGE).min(self.directory.meta.series as u32)
    }

    /// Hands row and sets of these rows, which ascend, to `visit`.
    pub(super) fn visit_rows(
        &self,
        rows: impl Iterator<Item = u32>,
        mut visit: impl FnMut(u32, RowSets),
    ) -> Result<(), StorageError> {
        let mut rows = rows.peekable();
        while let Some(&first) = rows.peek() {
            let number = (first / ROWS_PER_PAGE) as usize;
            let Some(page) = self.directory.rows.get(number) else {
                return Err(self.source.damaged(self.source.end, "there is no such series in the block"));
            };
            let of_page = self.page_rows(number);
            let content = self.source.read(page.page)?;
            let sets = Rows::new(page, &content, of_page.len())
                .ok_or_else(|| self.source.damaged(page.page.offset, "a page of rows is malformed"))?;
            let missing = || self.source.damaged(self.source.end, "there is no such series in the block");
            while let Some(row) = rows.next_if(|&row| row / ROWS_PER_PAGE == number as u32) {
                let index =
                    of_page.contains(&row).then(|| (row - of_page.start) as usize).ok_or_else(missing)?;
                visit(row, sets.get(index));
            }
        }
        Ok(())
    }

    fn sets_of(&self, row: u32) -> Result<RowSets, StorageError> {
        let mut found = RowSets { place: 0, rest: 0 };
        self.visit_rows(std::iter::once(row), |_, sets| found = sets)?;
        Ok(found)
    }

    /// The labels of a set, sorted, as [`Pairs`]: neighbouring rows share them.
    fn text(&self, set: u32) -> Result<Arc<[u8]>, StorageError> {
        self.source.pages.page(TEXT | u64::from(set), || self.read_text(set))
    }

    fn read_text(&self, set: u32) -> Result<Arc<[u8]>, StorageError> {
        let Directory { sets, dictionary, .. } = &self.directory;
        let (mut labels, mut key) = (LabelBuf::new(), Vec::new());
        for pair in sets.set(set, &self.source)?.pairs {
            dictionary.key(pair, &mut key, &self.source)?;
            let Some((name, value)) = dictionary::split(&key) else {
                return Err(self.source.damaged(self.source.end, "a label pair is not text"));
            };
            labels.push(name, value);
        }
        labels.sort();
        let mut text = Vec::new();
        for part in labels.iter().flat_map(|(name, value)| [name, value]) {
            put_varint(&mut text, part.len() as u64);
            text.extend_from_slice(part.as_bytes());
        }
        Ok(text.into())
    }
}

impl Drop for NativeBlock {
    fn drop(&mut self) {
        self.budget.sub(Part::Segments, self.counted);
    }
}

impl Block for NativeBlock {
    fn meta(&self) -> &BlockMeta {
        &self.directory.meta
    }

    fn rows(&self, matchers: &[Matcher]) -> Result<RoaringBitmap, StorageError> {
        self.matching_rows(matchers)
    }

    fn labels(&self, row: u32, labels: &mut LabelBuf) -> Result<(), StorageError> {
        labels.clear();
        let sets = self.sets_of(row)?;
        let (place, rest) = (self.text(sets.place)?, self.text(sets.rest)?);
        let (mut place, mut rest) =
            (Pairs(Cursor::new(&place)).peekable(), Pairs(Cursor::new(&rest)).peekable());
        loop {
            let next = match (place.peek(), rest.peek()) {
                (Some(a), Some(b)) if a < b => place.next(),
                (Some(_), None) => place.next(),
                _ => rest.next(),
            };
            let Some((name, value)) = next else { return Ok(()) };
            labels.push(name, value);
        }
    }

    fn fingerprint(&self, row: u32) -> Result<u128, StorageError> {
        let mut fingerprints = Vec::new();
        self.fingerprints_into(&[row], &mut fingerprints)?;
        Ok(fingerprints.first().copied().unwrap_or_default())
    }

    fn fingerprints_into(&self, rows: &[u32], fingerprints: &mut Vec<u128>) -> Result<(), StorageError> {
        let (mut of_rows, mut of_sets) = (Vec::with_capacity(rows.len()), HashMap::new());
        self.visit_rows(rows.iter().copied(), |_, sets| {
            of_rows.push(sets);
            of_sets.insert(sets.place, 0);
            of_sets.insert(sets.rest, 0);
        })?;
        let mut sets: Vec<u32> = of_sets.keys().copied().collect();
        sets.sort_unstable();
        self.directory.sets.visit_fingerprints(&sets, &self.source, |set, fingerprint| {
            of_sets.insert(set, fingerprint);
        })?;
        let of_set = |set| of_sets.get(&set).copied().unwrap_or_default();
        fingerprints.extend(of_rows.iter().map(|sets| of_set(sets.place).wrapping_add(of_set(sets.rest))));
        Ok(())
    }

    fn rows_with(&self, kind: Kind) -> Result<Option<RoaringBitmap>, StorageError> {
        let Some(page) = self.directory.with[kind as usize] else { return Ok(Some(RoaringBitmap::new())) };
        let content = self.source.read(page)?;
        let rows = RoaringBitmap::deserialize_from(&*content)
            .map_err(|_| self.source.damaged(page.offset, "a bitmap of rows is malformed"))?;
        Ok(Some(rows))
    }

    fn label_names(&self, rows: Option<&RoaringBitmap>) -> Result<Vec<String>, StorageError> {
        self.names_in(rows)
    }

    fn label_values(&self, name: &str, rows: Option<&RoaringBitmap>) -> Result<Vec<String>, StorageError> {
        self.values_in(name, rows)
    }

    fn cursor(self: Arc<Self>) -> Box<dyn BlockCursor> {
        Box::new(NativeCursor::new(self))
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.source.path.clone()]
    }
}

fn check_header(file: &dyn File, path: &Path, ulid: Ulid, bytes: u64) -> Result<(), StorageError> {
    if bytes < (HEADER_BYTES + FOOTER_BYTES) as u64 {
        return Err(StorageError::corrupt(path, bytes, "the file is cut short"));
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).map_err(StorageError::io("read", path))?;
    let mut cursor = Cursor::new(&header);
    let fields = (cursor.take(4), cursor.u32(), cursor.take(16), cursor.u32());
    let (Some(magic), Some(version), Some(found), Some(crc)) = fields else {
        return Err(StorageError::corrupt(path, 0, "the header is cut short"));
    };
    if magic != MAGIC || found != ulid.0.to_le_bytes() || crc32c::crc32c(&header[..HEADER_BYTES - 4]) != crc {
        return Err(StorageError::corrupt(path, 0, "this is not the header of this block"));
    }
    if version != VERSION {
        let file = path.display().to_string();
        return Err(StorageError::Version { file, found: version, supported: VERSION });
    }
    Ok(())
}

/// The directory, and where it begins.
fn read_directory(
    file: &dyn File,
    path: &Path,
    ulid: Ulid,
    bytes: u64,
) -> Result<(Directory, u64), StorageError> {
    let footer_at = bytes - FOOTER_BYTES as u64;
    let mut footer = [0; FOOTER_BYTES];
    file.read_exact_at(&mut footer, footer_at).map_err(StorageError::io("read", path))?;
    let mut cursor = Cursor::new(&footer);
    let fields = (cursor.u64(), cursor.u32(), cursor.u32(), cursor.take(4), cursor.u32());
    let (Some(offset), Some(length), Some(directory_crc), Some(magic), Some(crc)) = fields else {
        return Err(StorageError::corrupt(path, footer_at, "the footer is cut short"));
    };
    if magic != END_MAGIC || crc32c::crc32c(&footer[..FOOTER_BYTES - 4]) != crc {
        return Err(StorageError::corrupt(path, footer_at, "the footer does not match its checksum"));
    }
    if length > MAX_PAGE_BYTES || offset.checked_add(u64::from(length)) != Some(footer_at) {
        return Err(StorageError::corrupt(path, footer_at, "the footer names an impossible directory"));
    }
    let mut directory = vec![0; length as usize];
    file.read_exact_at(&mut directory, offset).map_err(StorageError::io("read", path))?;
    if page_crc(ulid, offset, &directory) != directory_crc {
        return Err(StorageError::corrupt(path, offset, "the directory does not match its checksum"));
    }
    let directory = Directory::take(&directory, ulid, offset)
        .ok_or_else(|| StorageError::corrupt(path, offset, "the directory is malformed"))?;
    Ok((directory, offset))
}
