//! The operating system's files and clock.
use std::fs::{self, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{Clock, DirEntry, File, Files, Space};

/// Files of the operating system. Errors name the path they happened on and keep their kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFiles;

struct RealFile {
    file: fs::File,
    path: PathBuf,
    /// Set by a failed sync: the kernel may have dropped the dirty pages and would report success next time.
    poisoned: AtomicBool,
}

impl RealFile {
    fn check_poison(&self) -> io::Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(poison_error(&self.path));
        }
        Ok(())
    }
}

/// The error of every write to a file whose sync failed before.
pub(crate) fn poison_error(path: &Path) -> io::Error {
    io::Error::other(format!(
        "{}: an earlier sync failed, so what is on the medium is unknown",
        path.display()
    ))
}

/// Adds the path to an error and keeps its kind.
fn on(path: &Path) -> impl FnOnce(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl File for RealFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.check_poison()?;
        (&self.file).write_all(bytes).map_err(on(&self.path))
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset).map_err(on(&self.path))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata().map_err(on(&self.path))?.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.check_poison()?;
        self.file.sync_data().map_err(|error| {
            self.poisoned.store(true, Ordering::Release);
            on(&self.path)(error)
        })
    }
}

impl RealFiles {
    fn handle(path: &Path, options: &OpenOptions) -> io::Result<Arc<dyn File>> {
        let file = options.open(path).map_err(on(path))?;
        Ok(Arc::new(RealFile { file, path: path.to_owned(), poisoned: AtomicBool::new(false) }))
    }
}

impl Files for RealFiles {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        RealFiles::handle(path, OpenOptions::new().read(true).append(true).create_new(true))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        RealFiles::handle(path, OpenOptions::new().read(true))
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let file = fs::File::open(path).map_err(on(path))?;
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(on(path))?;
        if bytes.len() as u64 > limit {
            return Err(too_large(path, limit));
        }
        Ok(bytes)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir).map_err(on(dir))? {
            let entry = entry.map_err(on(dir))?;
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                // Removed since the directory was read.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(on(&entry.path())(error)),
            };
            entries.push(DirEntry {
                name: entry.file_name().to_string_lossy().into_owned(),
                is_dir: metadata.is_dir(),
                len: if metadata.is_dir() { 0 } else { metadata.len() },
                links: if metadata.is_dir() { 1 } else { metadata.nlink() },
                id: metadata.ino(),
            });
        }
        entries.sort();
        Ok(entries)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to).map_err(on(from))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path).map_err(on(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path).map_err(on(path))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let missing: Vec<&Path> =
            path.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.is_dir()).collect();
        for dir in missing.into_iter().rev() {
            match fs::create_dir(dir) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(on(dir)(error)),
                _ => self.sync_dir(parent_of(dir))?,
            }
        }
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to).map_err(on(to))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir).and_then(|handle| handle.sync_all()).map_err(on(dir))
    }

    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(on(path))?;
        let allocated = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes);
        match allocated.map_err(io::Error::from) {
            Err(error) if error.kind() == ErrorKind::Unsupported => write_zeros(&file, bytes),
            allocated => allocated,
        }
        .map_err(on(path))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let found = rustix::fs::statvfs(path).map_err(|errno| on(path)(errno.into()))?;
        Ok(Space {
            total: found.f_blocks.saturating_mul(found.f_frsize),
            available: found.f_bavail.saturating_mul(found.f_frsize),
        })
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(on(path))?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(file)),
            Err(TryLockError::WouldBlock) => Err(lock_held(path)),
            Err(TryLockError::Error(error)) => Err(on(path)(error)),
        }
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        fs::exists(path).map_err(on(path))
    }
}

/// Takes space where the file system cannot set it aside otherwise.
fn write_zeros(mut file: &fs::File, bytes: u64) -> io::Result<()> {
    const ZEROS: [u8; 16 << 10] = [0; 16 << 10];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(ZEROS.len() as u64);
        file.write_all(&ZEROS[..part as usize])?;
        left -= part;
    }
    file.sync_data()
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

pub(crate) fn too_large(path: &Path, limit: u64) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("{}: larger than {limit} bytes", path.display()))
}

pub(crate) fn lock_held(path: &Path) -> io::Error {
    io::Error::new(ErrorKind::WouldBlock, format!("{}: locked by another process", path.display()))
}

/// The system's clocks.
#[derive(Debug, Clone, Copy)]
pub struct RealClock {
    start: Instant,
}

impl RealClock {
    /// A clock whose monotonic time starts now.
    pub fn new() -> RealClock {
        RealClock { start: Instant::now() }
    }
}

impl Default for RealClock {
    fn default() -> RealClock {
        RealClock::new()
    }
}

impl Clock for RealClock {
    fn now_ms(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_millis() as i64,
            Err(before) => -(before.duration().as_millis() as i64),
        }
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}
