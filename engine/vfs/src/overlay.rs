//! A file system seen through a sheet of glass: what is below is read and never changed, what is written stays in memory.
//!
//! With it a tool opens a data directory that another process is using, or one that must not be touched, with the same
//! code that serves it.
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{DirEntry, File, Files, Space};

/// What a volume that is memory says of its size: enough for anybody, and no reason to shed anything.
const SPACE: Space = Space { total: 1 << 50, available: 1 << 50 };

/// See the module's documentation. What is written is lost with it.
pub struct OverlayFiles {
    below: Arc<dyn Files>,
    names: Mutex<BTreeMap<PathBuf, Node>>,
}

/// What stands over a name below.
#[derive(Clone)]
enum Node {
    /// Nothing is there any more.
    Gone,
    /// A directory that is not below.
    Dir,
    /// A file that is not below.
    File(Arc<MemoryFile>),
    /// What is below under this name.
    Below(PathBuf),
}

/// Where a name leads.
enum Found {
    Nothing,
    Dir,
    File(Arc<MemoryFile>),
    Below(PathBuf),
}

#[derive(Default)]
struct MemoryFile {
    bytes: Mutex<Vec<u8>>,
}

impl OverlayFiles {
    /// A view of `below`.
    pub fn new(below: Arc<dyn Files>) -> OverlayFiles {
        OverlayFiles { below, names: Mutex::new(BTreeMap::new()) }
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Node>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nearest name that something stands over decides.
    fn find(&self, path: &Path) -> Found {
        let names = self.names();
        for above in path.ancestors() {
            let Some(node) = names.get(above) else { continue };
            let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
            return match node {
                Node::Below(below) if above == path => Found::Below(below.clone()),
                Node::Below(below) => Found::Below(below.join(rest)),
                Node::Dir if above == path => Found::Dir,
                Node::File(file) if above == path => Found::File(Arc::clone(file)),
                Node::Gone | Node::Dir | Node::File(_) => Found::Nothing,
            };
        }
        Found::Below(path.to_owned())
    }

    fn new_file(&self, path: &Path) -> io::Result<Arc<MemoryFile>> {
        if self.exists(path)? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = Arc::new(MemoryFile::default());
        self.names().insert(path.to_owned(), Node::File(Arc::clone(&file)));
        Ok(file)
    }

    /// What a name is to stand for when it gets another one.
    fn node(&self, path: &Path) -> io::Result<Node> {
        match self.find(path) {
            Found::Dir => Ok(Node::Dir),
            Found::File(file) => Ok(Node::File(file)),
            Found::Below(below) if self.below.exists(&below)? => Ok(Node::Below(below)),
            Found::Nothing | Found::Below(_) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Takes a name and everything under it away.
    fn cover(&self, path: &Path) {
        let mut names = self.names();
        names.retain(|name, _| !name.starts_with(path));
        names.insert(path.to_owned(), Node::Gone);
    }
}

impl Files for OverlayFiles {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        Ok(self.new_file(path)?)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        match self.find(path) {
            Found::File(file) => Ok(file),
            Found::Below(below) => Ok(Arc::new(ReadOnly(self.below.open(&below)?))),
            Found::Nothing | Found::Dir => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        match self.find(path) {
            Found::File(file) if file.len()? > limit => Err(io::ErrorKind::FileTooLarge.into()),
            Found::File(file) => Ok(file.bytes().clone()),
            Found::Below(below) => self.below.read(&below, limit),
            Found::Nothing | Found::Dir => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let below = match self.find(dir) {
            Found::Below(below) => self.below.list(&below)?,
            Found::Dir => Vec::new(),
            Found::Nothing | Found::File(_) => return Err(io::ErrorKind::NotFound.into()),
        };
        let is_over = |name: &str| self.names().contains_key(&dir.join(name));
        let mut entries: BTreeSet<DirEntry> =
            below.into_iter().filter(|entry| !is_over(&entry.name)).collect();
        let above: Vec<(PathBuf, Node)> =
            self.names().iter().map(|(name, node)| (name.clone(), node.clone())).collect();
        for (path, node) in above.into_iter().filter(|(path, _)| path.parent() == Some(dir)) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match node {
                Node::Gone => {}
                Node::Dir => _ = entries.insert(entry(name, true, 0)),
                Node::File(file) => _ = entries.insert(entry(name, false, file.len()?)),
                Node::Below(below) => {
                    let len = self.below.open(&below).and_then(|file| file.len());
                    let is_dir = self.below.list(&below).is_ok();
                    entries.insert(entry(name, is_dir, if is_dir { 0 } else { len? }));
                }
            }
        }
        Ok(entries.into_iter().collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.node(from)?;
        let moved: Vec<(PathBuf, Node)> = self
            .names()
            .iter()
            .filter(|(name, _)| name.starts_with(from) && name.as_path() != from)
            .map(|(name, node)| (to.join(name.strip_prefix(from).unwrap_or(name)), node.clone()))
            .collect();
        self.cover(from);
        let mut names = self.names();
        names.insert(to.to_owned(), node);
        names.extend(moved);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.node(path)?;
        self.cover(path);
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.remove(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        for dir in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
            if !dir.as_os_str().is_empty() && !self.exists(dir)? {
                self.names().insert(dir.to_owned(), Node::Dir);
            }
        }
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.exists(to)? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let node = self.node(from)?;
        self.names().insert(to.to_owned(), node);
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    /// Takes no memory: nothing is ever short here.
    fn allocate(&self, path: &Path, _bytes: u64) -> io::Result<()> {
        self.new_file(path).map(|_| ())
    }

    fn space(&self, _path: &Path) -> io::Result<Space> {
        Ok(SPACE)
    }

    /// Always to be had: nobody is disturbed.
    fn lock(&self, _path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        Ok(Box::new(()))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.find(path) {
            Found::Nothing => Ok(false),
            Found::Dir | Found::File(_) => Ok(true),
            Found::Below(below) => self.below.exists(&below),
        }
    }
}

/// Of what stands over a name, no other name is told.
fn entry(name: String, is_dir: bool, len: u64) -> DirEntry {
    DirEntry { name, is_dir, len, links: 1, id: 0 }
}

impl MemoryFile {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File for MemoryFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.bytes().extend_from_slice(bytes);
        Ok(())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.bytes();
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = bytes.get(from..from.saturating_add(buffer.len()));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A file below. Nothing is appended to it; to make it durable is its owner's business.
struct ReadOnly(Arc<dyn File>);

impl File for ReadOnly {
    fn append(&self, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::OverlayFiles;
    use crate::Files;
    use crate::sim::SimFiles;

    fn file(files: &dyn Files, path: &str, text: &str) {
        let file = files.create(Path::new(path)).unwrap();
        file.append(text.as_bytes()).unwrap();
        file.sync().unwrap();
    }

    fn names(files: &dyn Files, dir: &str) -> Vec<String> {
        files.list(Path::new(dir)).unwrap().into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn what_is_below_is_read_and_never_changed() {
        let below = SimFiles::new(1);
        below.create_dir_all(Path::new("/d/e")).unwrap();
        file(&below, "/d/a", "one");
        file(&below, "/d/e/b", "two");
        for dir in ["/d", "/d/e"] {
            below.sync_dir(Path::new(dir)).unwrap();
        }
        let over = OverlayFiles::new(Arc::new(below.clone()));
        assert_eq!(over.read(Path::new("/d/a"), 9).unwrap(), b"one");
        file(&over, "/d/c", "three");
        over.rename(Path::new("/d/a"), Path::new("/d/moved")).unwrap();
        assert_eq!(over.read(Path::new("/d/moved"), 9).unwrap(), b"one");
        over.rename(Path::new("/d/e"), Path::new("/d/f")).unwrap();
        assert_eq!(over.read(Path::new("/d/f/b"), 9).unwrap(), b"two");
        over.remove(Path::new("/d/f/b")).unwrap();
        over.create_dir_all(Path::new("/d/g/h")).unwrap();
        file(&over, "/d/a", "again");
        assert_eq!(names(&over, "/d"), ["a", "c", "f", "g", "moved"]);
        assert!(names(&over, "/d/f").is_empty());
        assert!(!over.exists(Path::new("/d/e/b")).unwrap());
        assert_eq!(over.create(Path::new("/d/a")).err().unwrap().kind(), std::io::ErrorKind::AlreadyExists);
        assert!(over.open(Path::new("/d/moved")).unwrap().append(b"x").is_err());
        over.remove_dir_all(Path::new("/d")).unwrap();
        assert!(over.list(Path::new("/d")).is_err());
        assert_eq!(
            (names(&below, "/d"), names(&below, "/d/e")),
            (vec!["a".into(), "e".into()], vec!["b".into()])
        );
    }
}
