//! Files as the storage core sees them: append, positional read, explicit sync. No mmap of what we write: an I/O
//! error under a mapping kills the process, and mapped pages are counted against us.
use std::io;
use std::path::Path;
use std::sync::Arc;

/// One open file. Writing appends; reading is positional and may run beside a writer.
pub trait File: Send + Sync {
    /// Appends all of `bytes` at the end of the file. On error any prefix may have been written.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;
    /// Fills `buffer` from `offset`; an error of kind `UnexpectedEof` when the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Current length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Makes the bytes written so far durable (`fdatasync`). After an error the file is poisoned: every later
    /// `append` and `sync` fails too, as the kernel may have dropped the dirty pages.
    fn sync(&self) -> io::Result<()>;
}

/// A name found in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// File name without its directory.
    pub name: String,
    /// Whether the name is a directory.
    pub is_dir: bool,
    /// Length in bytes; 0 for a directory.
    pub len: u64,
    /// Names that the file has, this one included; hard links make more than one. 1 for a directory.
    pub links: u64,
    /// The same for all names of one file, and for no other file of the file system.
    pub id: u64,
}

/// Size and free space of the file system that holds a path, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Size of the file system.
    pub total: u64,
    /// What an unprivileged process may still write.
    pub available: u64,
}

/// A file system.
pub trait Files: Send + Sync {
    /// Creates a new empty file for appending; an error of kind `AlreadyExists` when the name is taken.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens an existing file for reading.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Whole contents of a file of at most `limit` bytes; an error of kind `FileTooLarge` above it.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>>;
    /// Names in a directory, sorted; `.` and `..` left out.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// Renames atomically, replacing a file at `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory and everything below it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Creates a directory and its missing parents, durably; fine when it exists.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Gives a file a second name (hard link).
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names of a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Creates a file of `bytes` bytes for which the file system sets real space aside; an error of kind
    /// `AlreadyExists` when the name is taken. What a failed call leaves behind is the caller's to remove. A file system
    /// that compresses may take less than it is asked for.
    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<()>;
    /// Size and free space of the file system below `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// Takes an exclusive lock that lives as long as the returned guard (and dies with the process); an error of
    /// kind `WouldBlock` when another process holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>>;
    /// Whether the path exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
}
