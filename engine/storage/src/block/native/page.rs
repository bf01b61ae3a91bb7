//! Pages: what a block's file consists of between header and directory.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_vfs::File;

use super::{MAX_PAGE_BYTES, page_crc};
use crate::StorageError;
use crate::block::Ulid;
use crate::block::page_cache::CachedFile;
use crate::bytes::{Cursor, put_varint};

const CRC_BYTES: usize = 4;

/// Where a page is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PageRef {
    pub(super) offset: u64,
    /// With its checksum.
    pub(super) bytes: u32,
}

impl PageRef {
    pub(super) fn put(self, out: &mut Vec<u8>, previous: PageRef) {
        put_varint(out, self.offset - previous.offset);
        put_varint(out, u64::from(self.bytes));
    }

    /// A page that ends before `end`; `None` is damage.
    pub(super) fn take(cursor: &mut Cursor<'_>, previous: PageRef, end: u64) -> Option<PageRef> {
        let offset = previous.offset.checked_add(cursor.varint()?)?;
        PageRef::checked(offset, cursor.varint_u32()?, end)
    }

    pub(super) fn checked(offset: u64, bytes: u32, end: u64) -> Option<PageRef> {
        let fits = (CRC_BYTES as u32..=MAX_PAGE_BYTES).contains(&bytes);
        (fits && offset.checked_add(u64::from(bytes))? <= end).then_some(PageRef { offset, bytes })
    }
}

/// The end of a file that pages are written to.
pub(super) struct PageSink {
    pub(super) file: Arc<dyn File>,
    pub(super) path: PathBuf,
    pub(super) ulid: Ulid,
    pub(super) offset: u64,
}

impl PageSink {
    pub(super) fn put(&mut self, content: &[u8]) -> Result<PageRef, StorageError> {
        let mut page = Vec::with_capacity(CRC_BYTES + content.len());
        page.extend_from_slice(&page_crc(self.ulid, self.offset, content).to_le_bytes());
        page.extend_from_slice(content);
        let reference = PageRef { offset: self.offset, bytes: page.len() as u32 };
        self.put_bare(&page)?;
        Ok(reference)
    }

    pub(super) fn put_bare(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.file.append(bytes).map_err(StorageError::io("write", &self.path))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Reads a page that was written before.
    pub(super) fn read(&self, page: PageRef) -> Result<Vec<u8>, StorageError> {
        read_page(&*self.file, &self.path, self.ulid, page)
    }
}

/// Where pages are read from.
pub(super) struct PageSource {
    pub(super) file: Arc<dyn File>,
    pub(super) path: PathBuf,
    pub(super) ulid: Ulid,
    /// Where the directory begins: pages end before.
    pub(super) end: u64,
    /// What is kept of them.
    pub(super) pages: CachedFile,
}

impl PageSource {
    pub(super) fn read(&self, page: PageRef) -> Result<Arc<[u8]>, StorageError> {
        self.pages.page(page.offset, || read_page(&*self.file, &self.path, self.ulid, page).map(Arc::from))
    }

    pub(super) fn damaged(&self, offset: u64, what: &str) -> StorageError {
        StorageError::corrupt(&self.path, offset, what)
    }
}

fn read_page(file: &dyn File, path: &Path, ulid: Ulid, page: PageRef) -> Result<Vec<u8>, StorageError> {
    let mut crc = [0; CRC_BYTES];
    let read = |buffer: &mut [u8], offset| {
        file.read_exact_at(buffer, offset).map_err(StorageError::io("read", path))
    };
    read(&mut crc, page.offset)?;
    let mut content = vec![0; page.bytes as usize - CRC_BYTES];
    read(&mut content, page.offset + CRC_BYTES as u64)?;
    if page_crc(ulid, page.offset, &content) == u32::from_le_bytes(crc) {
        return Ok(content);
    }
    Err(StorageError::corrupt(path, page.offset, "a page does not match its checksum"))
}
