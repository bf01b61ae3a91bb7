//! A simulated file system and clock: loses, tears and reorders unsynced writes at a crash, and fails on demand.
//!
//! Everything is a function of the seed and of the calls made, so a failing run can be repeated. Three ways to end a
//! process, each giving a new [`SimFiles`] on which the next one starts:
//! - [`SimFiles::crash`]: the power fails; the medium shows what was synced and any legal part of the rest;
//! - [`SimFiles::image`]: the same, without ending the running process, to try many outcomes of one moment;
//! - [`SimFiles::kill`]: the process dies and the kernel lives on; nothing is lost, nothing becomes durable.
//!
//! ```
//! # use std::path::Path;
//! # use metricsstore_vfs::{File, Files, sim::SimFiles};
//! # fn main() -> std::io::Result<()> {
//! let files = SimFiles::new(42);
//! files.create_dir_all(Path::new("/data"))?;
//! let log = files.create(Path::new("/data/log"))?;
//! log.append(b"acknowledged")?;
//! log.sync()?;
//! files.sync_dir(Path::new("/data"))?;
//! log.append(b"in flight")?;
//! let after = files.crash();
//! assert!(after.read(Path::new("/data/log"), 100)?.starts_with(b"acknowledged"));
//! # Ok(())
//! # }
//! ```
mod clock;
mod crash;
mod faults;
mod random;
mod tree;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

pub use clock::SimClock;
pub use faults::{Call, Fault, PowerOff};

use crate::real::{lock_held, poison_error, too_large};
use crate::{DirEntry, File, Files, Space};
use faults::{Faults, Outcome};
use random::Random;
use tree::{Content, Tree};

/// Size that [`Files::space`] tells when no capacity is set.
const UNLIMITED_SPACE: u64 = 1 << 40;

/// A simulated file system; cloning gives another handle to the same one.
#[derive(Clone)]
pub struct SimFiles {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    tree: Tree,
    random: Random,
    faults: Faults,
    locks: BTreeSet<PathBuf>,
    capacity: Option<u64>,
    /// Whether use of data that were never made durable panics.
    strict: bool,
}

impl SimFiles {
    /// An empty, strict file system with no bound on its size.
    pub fn new(seed: u64) -> SimFiles {
        SimFiles::from_tree(Tree::new(), Random::new(seed), None, true)
    }

    fn from_tree(tree: Tree, random: Random, capacity: Option<u64>, strict: bool) -> SimFiles {
        let shared =
            Shared { tree, random, faults: Faults::default(), locks: BTreeSet::new(), capacity, strict };
        SimFiles { shared: Arc::new(Mutex::new(shared)) }
    }

    /// The power fails now: gives the file system as the medium might show it. Every later call on `self` and on
    /// its handles fails; locks and injected faults are gone.
    #[must_use]
    pub fn crash(&self) -> SimFiles {
        let after = self.image();
        self.shared.lock().faults.power_off();
        after
    }

    /// What the medium might show if the power failed now; `self` runs on. Every call may give another outcome.
    #[must_use]
    pub fn image(&self) -> SimFiles {
        let mut shared = self.shared.lock();
        let mut random = shared.random.fork();
        let tree = crash::image(&shared.tree, &mut random);
        SimFiles::from_tree(tree, random, shared.capacity, shared.strict)
    }

    /// The process dies and the kernel lives on: the next process sees every byte written, and what was not synced
    /// may still be lost by a later crash. Every later call on `self` and on its handles fails.
    #[must_use]
    pub fn kill(&self) -> SimFiles {
        let mut shared = self.shared.lock();
        let random = shared.random.fork();
        shared.faults.power_off();
        SimFiles::from_tree(shared.tree.deep_copy(), random, shared.capacity, shared.strict)
    }

    /// Sets how many bytes of content fit; `None` for no bound. Appends beyond it write what fits and then fail
    /// with `StorageFull`; raising it lets them succeed again.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.lock().capacity = bytes;
    }

    /// Switches the panic on use of data that were never made durable (on by default): a file renamed or linked
    /// before it was synced, a directory renamed before everything in it was.
    pub fn set_strict(&self, strict: bool) {
        self.shared.lock().strict = strict;
    }

    /// Fails the `n`-th call from now (0 is the next) once.
    pub fn fail_nth(&self, n: u64, fault: Fault) {
        self.shared.lock().faults.fail_nth(n, fault);
    }

    /// Fails every call for which `predicate` holds, until [`SimFiles::heal`].
    pub fn fail_when(&self, fault: Fault, predicate: impl FnMut(Call, &Path) -> bool + Send + 'static) {
        self.shared.lock().faults.fail_when(fault, Box::new(predicate));
    }

    /// Cuts the power at the `n`-th call from now (0 is the next): it may or may not take effect, it and all later
    /// ones fail. [`SimFiles::crash`] then gives the medium.
    pub fn power_off_at(&self, n: u64) {
        self.power_off(n, PowerOff::Either);
    }

    /// The same, with a choice whether the `n`-th call takes effect.
    pub fn power_off(&self, n: u64, when: PowerOff) {
        self.shared.lock().faults.power_off_at(n, when);
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.shared.lock().faults.is_off()
    }

    /// Forgets all injected faults. Files poisoned by a failed sync stay so.
    pub fn heal(&self) {
        self.shared.lock().faults.heal();
    }

    /// Calls made so far, on the file system and on its handles.
    pub fn calls(&self) -> u64 {
        self.shared.lock().faults.calls()
    }

    /// Whether a file's content and all names on its path would survive any crash.
    pub fn is_durable(&self, path: &Path) -> bool {
        self.shared.lock().tree.is_durable(path)
    }

    /// Counts the call and lets injected faults decide; another outcome than [`Outcome::Normal`] means: take effect,
    /// then fail.
    fn enter(&self, call: Call, path: &Path) -> io::Result<(MutexGuard<'_, Shared>, Outcome)> {
        let mut guard = self.shared.lock();
        let shared = &mut *guard;
        let outcome = shared.faults.on_call(call, path, &mut shared.random)?;
        Ok((guard, outcome))
    }

    fn handle(&self, content: Arc<Mutex<Content>>, path: &Path, writable: bool) -> Arc<dyn File> {
        Arc::new(SimFile {
            files: self.clone(),
            content,
            path: path.to_owned(),
            writable,
            poisoned: AtomicBool::new(false),
        })
    }
}

impl Shared {
    /// Bytes that still fit.
    fn room(&self) -> u64 {
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.tree.used()))
    }

    /// Panics when a file about to be given another name could come back from a crash without its content.
    #[expect(clippy::panic, reason = "the simulator's purpose: a test must not go on after this mistake")]
    fn demand_synced(&self, path: &Path) {
        if self.strict
            && let Some(what) = self.tree.unsynced_below(path)
        {
            panic!("{}: data used that were never made durable", what.display());
        }
    }
}

impl Files for SimFiles {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let (mut shared, outcome) = self.enter(Call::Create, path)?;
        let content = shared.tree.create(path)?;
        outcome.answer(path, ())?;
        Ok(self.handle(content, path, true))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let (shared, outcome) = self.enter(Call::Open, path)?;
        let content = shared.tree.file(path)?;
        outcome.answer(path, ())?;
        Ok(self.handle(content, path, false))
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let (shared, outcome) = self.enter(Call::Read, path)?;
        let content = shared.tree.file(path)?;
        outcome.answer(path, ())?;
        let content = content.lock();
        if content.bytes.len() as u64 > limit {
            return Err(too_large(path, limit));
        }
        Ok(content.bytes.clone())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let (shared, outcome) = self.enter(Call::List, dir)?;
        outcome.answer(dir, ())?;
        shared.tree.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (mut shared, outcome) = self.enter(Call::Rename, from)?;
        shared.demand_synced(from);
        shared.tree.rename(from, to)?;
        outcome.answer(from, ())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (mut shared, outcome) = self.enter(Call::Remove, path)?;
        shared.tree.remove(path)?;
        outcome.answer(path, ())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let (mut shared, outcome) = self.enter(Call::RemoveDirAll, path)?;
        shared.tree.remove_dir_all(path)?;
        outcome.answer(path, ())
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let (mut shared, outcome) = self.enter(Call::CreateDirAll, path)?;
        shared.tree.create_dir_all(path)?;
        outcome.answer(path, ())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (mut shared, outcome) = self.enter(Call::HardLink, from)?;
        shared.demand_synced(from);
        shared.tree.hard_link(from, to)?;
        outcome.answer(from, ())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let (mut shared, outcome) = self.enter(Call::SyncDir, dir)?;
        shared.tree.sync_dir(dir)?;
        outcome.answer(dir, ())
    }

    fn allocate(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let (mut shared, outcome) = self.enter(Call::Allocate, path)?;
        let content = shared.tree.create(path)?;
        let fits = bytes.min(shared.room());
        content.lock().reserved = fits;
        outcome.answer(path, ())?;
        if fits < bytes { Err(Fault::NoSpace.error(path)) } else { Ok(()) }
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let (shared, outcome) = self.enter(Call::Space, path)?;
        outcome.answer(path, ())?;
        shared.tree.find(path)?;
        let total = shared.capacity.unwrap_or(UNLIMITED_SPACE);
        Ok(Space { total, available: total.saturating_sub(shared.tree.used()) })
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let (mut shared, outcome) = self.enter(Call::Lock, path)?;
        match shared.tree.create(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if !shared.locks.insert(path.to_owned()) {
            return Err(lock_held(path));
        }
        let guard = SimLock { shared: Arc::clone(&self.shared), path: path.to_owned() };
        drop(shared);
        outcome.answer(path, ())?;
        Ok(Box::new(guard))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let (shared, outcome) = self.enter(Call::Exists, path)?;
        outcome.answer(path, ())?;
        match shared.tree.find(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

struct SimLock {
    shared: Arc<Mutex<Shared>>,
    path: PathBuf,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.shared.lock().locks.remove(&self.path);
    }
}

struct SimFile {
    files: SimFiles,
    content: Arc<Mutex<Content>>,
    path: PathBuf,
    writable: bool,
    poisoned: AtomicBool,
}

impl SimFile {
    fn check_writable(&self) -> io::Result<()> {
        if !self.writable {
            let text = format!("{}: opened for reading", self.path.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, text));
        }
        if self.poisoned.load(Ordering::Acquire) {
            return Err(poison_error(&self.path));
        }
        Ok(())
    }

    fn append_what_fits(&self, shared: &Shared, bytes: &[u8]) -> io::Result<()> {
        let fits = bytes.len().min(usize::try_from(shared.room()).unwrap_or(usize::MAX));
        self.content.lock().bytes.extend_from_slice(&bytes[..fits]);
        if fits < bytes.len() { Err(Fault::NoSpace.error(&self.path)) } else { Ok(()) }
    }

    /// A failed append leaves any prefix of what it was given.
    fn append_prefix(&self, shared: &mut Shared, bytes: &[u8]) {
        let at_most = shared.random.below(bytes.len() as u64 + 1) as usize;
        // That it may not even fit is one more way of leaving a prefix.
        let _ = self.append_what_fits(shared, &bytes[..at_most]);
    }
}

impl File for SimFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        match self.files.enter(Call::Append, &self.path) {
            Ok((shared, Outcome::Normal)) => self.append_what_fits(&shared, bytes),
            Ok((shared, Outcome::LostAnswer)) => {
                self.append_what_fits(&shared, bytes)?;
                Outcome::LostAnswer.answer(&self.path, ())
            }
            Ok((mut shared, Outcome::PowerOff)) => {
                self.append_prefix(&mut shared, bytes);
                Outcome::PowerOff.answer(&self.path, ())
            }
            Err(error) => {
                let mut shared = self.files.shared.lock();
                if !shared.faults.is_off() {
                    self.append_prefix(&mut shared, bytes);
                }
                Err(error)
            }
        }
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let (_shared, outcome) = self.files.enter(Call::ReadAt, &self.path)?;
        outcome.answer(&self.path, ())?;
        let content = self.content.lock();
        let end = offset.saturating_add(buffer.len() as u64);
        if end > content.bytes.len() as u64 {
            let text = format!("{}: ends before byte {end}", self.path.display());
            return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
        }
        buffer.copy_from_slice(&content.bytes[offset as usize..end as usize]);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let (_shared, outcome) = self.files.enter(Call::Len, &self.path)?;
        outcome.answer(&self.path, ())?;
        Ok(self.content.lock().size())
    }

    fn sync(&self) -> io::Result<()> {
        if self.writable {
            self.check_writable()?;
        }
        let answer = self.files.enter(Call::Sync, &self.path).and_then(|(_shared, outcome)| {
            let mut content = self.content.lock();
            content.synced = content.bytes.len();
            outcome.answer(&self.path, ())
        });
        if answer.is_err() {
            self.poisoned.store(true, Ordering::Release);
        }
        answer
    }
}
