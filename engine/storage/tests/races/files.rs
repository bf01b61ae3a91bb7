//! Files at whose every call another thread may get its turn, before it takes effect and before it answers.
use std::io;
use std::path::Path;
use std::sync::Arc;

use metricsstore_vfs::sim::SimFiles;
use metricsstore_vfs::{DirEntry, File, Files, Space};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};

pub struct SwitchingFiles {
    files: SimFiles,
    turns: Arc<Turns>,
}

/// An access that the scheduler sees.
#[derive(Default)]
struct Turns(AtomicU64);

impl Turns {
    fn around<T>(&self, call: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, SeqCst);
        let result = call();
        self.0.fetch_add(1, SeqCst);
        result
    }
}

impl SwitchingFiles {
    pub fn new(files: &SimFiles) -> SwitchingFiles {
        SwitchingFiles { files: files.clone(), turns: Arc::default() }
    }

    fn file(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(SwitchingFile { file, turns: Arc::clone(&self.turns) })
    }
}

struct SwitchingFile {
    file: Arc<dyn File>,
    turns: Arc<Turns>,
}

impl File for SwitchingFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.turns.around(|| self.file.append(bytes))
    }
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.turns.around(|| self.file.read_exact_at(buffer, offset))
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn sync(&self) -> io::Result<()> {
        self.turns.around(|| self.file.sync())
    }
}

impl Files for SwitchingFiles {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.turns.around(|| self.files.create(path)).map(|file| self.file(file))
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.turns.around(|| self.files.open(path)).map(|file| self.file(file))
    }
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.turns.around(|| self.files.read(path, limit))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.turns.around(|| self.files.list(dir))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.turns.around(|| self.files.rename(from, to))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.turns.around(|| self.files.remove(path))
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.turns.around(|| self.files.remove_dir_all(path))
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.turns.around(|| self.files.create_dir_all(path))
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.turns.around(|| self.files.hard_link(from, to))
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.turns.around(|| self.files.sync_dir(dir))
    }
    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.turns.around(|| self.files.allocate(path, bytes))
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        self.files.space(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        self.files.lock(path)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.turns.around(|| self.files.exists(path))
    }
}
