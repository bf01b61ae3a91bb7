//! The files of blocks, whatever their format: where they are, how they are found, opened, begun and removed.
//!
//! ```text
//! blocks/<ULID>                  a native block
//! blocks/<ULID>.tombstones       what was deleted of it
//! blocks/<ULID>.tmp, blocks/<ULID>.tombstones.tmp
//!                                what is being written
//! blocks/<ULID>.prometheus       an empty file: the Prometheus block of this name is this store's
//! <ULID>/                        a Prometheus block
//! <ULID>.tmp-for-creation/       one that is being written
//! <ULID>.tmp-for-deletion/       one that is being removed
//! ```
//! Directories of Prometheus blocks for which no file says that they are this store's are somebody else's: they are left
//! alone.
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::DefaultHashBuilder;
use metricsstore_budget::Budget;
use metricsstore_vfs::Files;
use std::hash::BuildHasher;

use super::native::{NativeBlock, NativeWriter};
use super::page_cache::PageCache;
use super::prometheus::{PrometheusBlock, PrometheusWriter};
use super::{Block, BlockSink, Format, NewBlock, Ulid};
use crate::StorageError;
use crate::compaction::tombstones::BlockTombstones;
use crate::counters::Counters;
use crate::manifest::NamedBlock;
use crate::quarantine;
use crate::store::Places;
use crate::view::LiveBlock;

/// What a name in `blocks` ends with, after the ULID.
const UNFINISHED: &str = ".tmp";
const TOMBSTONES: &str = ".tombstones";
const UNFINISHED_TOMBSTONES: &str = ".tombstones.tmp";
const CLAIM: &str = ".prometheus";
/// What a Prometheus block is called before it is one and after.
const FOR_CREATION: &str = ".tmp-for-creation";
const FOR_DELETION: &str = ".tmp-for-deletion";

/// The blocks of one data directory.
pub(crate) struct BlockFiles {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) dir: PathBuf,
    pub(crate) budget: Budget,
    /// What the readers of all blocks keep of them.
    pub(crate) pages: Arc<PageCache>,
    /// Keeps names of blocks apart from those of other processes.
    seed: DefaultHashBuilder,
}

/// What a name in `blocks` stands for.
enum Entry {
    Native(Ulid),
    /// A Prometheus block of ours.
    Claim(Ulid),
    /// What was deleted of a native block.
    Tombstones(Ulid),
    Unfinished,
    Foreign,
}

impl Entry {
    fn of(name: &str) -> Entry {
        let (ulid, rest) = name.split_at_checked(26).unwrap_or((name, ""));
        match (ulid.parse(), rest) {
            (Ok(ulid), "") => Entry::Native(ulid),
            (Ok(ulid), CLAIM) => Entry::Claim(ulid),
            (Ok(ulid), TOMBSTONES) => Entry::Tombstones(ulid),
            (Ok(_), UNFINISHED | UNFINISHED_TOMBSTONES) => Entry::Unfinished,
            _ => Entry::Foreign,
        }
    }
}

impl BlockFiles {
    pub(crate) fn new(files: &Arc<dyn Files>, dir: &Path, budget: &Budget) -> BlockFiles {
        BlockFiles {
            files: Arc::clone(files),
            dir: dir.to_owned(),
            budget: budget.clone(),
            pages: Arc::new(PageCache::new(budget)),
            seed: DefaultHashBuilder::default(),
        }
    }

    /// A name for a block that is made now; `number` counts them: those of one moment are told apart by it, and the later
    /// one is the greater.
    pub(crate) fn new_ulid(&self, now_ms: i64, number: u64) -> Ulid {
        let random = u128::from(self.seed.hash_one(number));
        Ulid::new(now_ms, u128::from(number & 0xffff) << 64 | random)
    }

    /// The file or the directory of a block.
    pub(crate) fn path(&self, name: NamedBlock) -> PathBuf {
        match name.format {
            Format::Native => self.beside(name.ulid, ""),
            Format::Prometheus => self.dir.join(name.ulid.to_string()),
        }
    }

    /// Where tombstones of a block stand.
    pub(crate) fn tombstones_path(&self, name: NamedBlock) -> PathBuf {
        match name.format {
            Format::Native => self.beside(name.ulid, TOMBSTONES),
            Format::Prometheus => self.path(name).join("tombstones"),
        }
    }

    /// Files that may be there beside the file or the directory of a block.
    pub(crate) fn files_beside(&self, name: NamedBlock) -> impl Iterator<Item = PathBuf> {
        let ending = match name.format {
            Format::Native => TOMBSTONES,
            Format::Prometheus => CLAIM,
        };
        std::iter::once(self.beside(name.ulid, ending))
    }

    fn beside(&self, ulid: Ulid, ending: &str) -> PathBuf {
        Places::blocks(&self.dir).join(format!("{ulid}{ending}"))
    }

    fn prometheus(&self, ulid: Ulid, ending: &str) -> PathBuf {
        self.dir.join(format!("{ulid}{ending}"))
    }

    /// Opens a block and reads what was deleted of it.
    pub(crate) fn open(&self, name: NamedBlock, counters: &Counters) -> Result<LiveBlock, StorageError> {
        let block = self.open_block(name)?;
        let tombstones = BlockTombstones::load(self, name, counters)?;
        Ok(LiveBlock { block, tombstones: Arc::new(tombstones) })
    }

    fn open_block(&self, name: NamedBlock) -> Result<Arc<dyn Block>, StorageError> {
        Ok(match name.format {
            Format::Native => {
                let place = Places::blocks(&self.dir);
                Arc::new(NativeBlock::open(&self.files, &place, name.ulid, &self.pages)?)
            }
            Format::Prometheus => {
                Arc::new(PrometheusBlock::open(&self.files, &self.path(name), &self.budget)?)
            }
        })
    }

    /// Begins a block.
    pub(crate) fn create(&self, format: Format, new: NewBlock) -> Result<Box<dyn BlockSink>, StorageError> {
        Ok(match format {
            Format::Native => Box::new(NativeWriter::create(&self.files, &Places::blocks(&self.dir), new)?),
            Format::Prometheus => {
                self.claim(new.ulid)?;
                Box::new(PrometheusWriter::create(&self.files, &self.dir, new)?)
            }
        })
    }

    /// Notes durably that a Prometheus block is ours, before there is anything of it.
    pub(crate) fn claim(&self, ulid: Ulid) -> Result<(), StorageError> {
        let (claim, place) = (self.beside(ulid, CLAIM), Places::blocks(&self.dir));
        let file = self.files.create(&claim).map_err(StorageError::io("create", &claim))?;
        file.sync().map_err(StorageError::io("sync", &claim))?;
        self.files.sync_dir(&place).map_err(StorageError::io("sync", &place))
    }

    /// The blocks of ours that have files under their final names.
    pub(crate) fn names(&self) -> Result<Vec<NamedBlock>, StorageError> {
        let place = Places::blocks(&self.dir);
        let entries = self.files.list(&place).map_err(StorageError::io("list", &place))?;
        let mut names = Vec::new();
        for entry in entries {
            match Entry::of(&entry.name) {
                Entry::Native(ulid) => names.push(NamedBlock { ulid, format: Format::Native }),
                Entry::Claim(ulid) => {
                    let name = NamedBlock { ulid, format: Format::Prometheus };
                    let path = self.path(name);
                    if self.files.exists(&path).map_err(StorageError::io("read", &path))? {
                        names.push(name);
                    }
                }
                Entry::Tombstones(_) | Entry::Unfinished | Entry::Foreign => {}
            }
        }
        Ok(names)
    }

    /// Removes the files of a block that the manifest does not name, whatever there is of it, and those beside it.
    pub(crate) fn remove(&self, name: NamedBlock) -> Result<(), StorageError> {
        match name.format {
            Format::Native => {
                // While there is a block, there is what was deleted of it.
                for ending in [UNFINISHED, "", UNFINISHED_TOMBSTONES, TOMBSTONES] {
                    self.remove_file(&self.beside(name.ulid, ending))?;
                }
                Ok(())
            }
            Format::Prometheus => {
                let (path, going) = (self.path(name), self.prometheus(name.ulid, FOR_DELETION));
                // In one step, so that nobody takes what is left of it for a block.
                match self.files.rename(&path, &going) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(StorageError::io("rename", &path)(error));
                    }
                    _ => {}
                }
                self.remove_dir(&going)?;
                self.remove_dir(&self.prometheus(name.ulid, FOR_CREATION))?;
                self.files.sync_dir(&self.dir).map_err(StorageError::io("sync", &self.dir))?;
                self.remove_file(&self.beside(name.ulid, CLAIM))
            }
        }
    }

    fn remove_file(&self, path: &Path) -> Result<(), StorageError> {
        match self.files.remove(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(StorageError::io("remove", path)(error)),
            _ => Ok(()),
        }
    }

    fn remove_dir(&self, path: &Path) -> Result<(), StorageError> {
        match self.files.remove_dir_all(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(StorageError::io("remove", path)(error)),
            _ => Ok(()),
        }
    }

    /// Moves a damaged block aside.
    pub(crate) fn move_aside(&self, name: NamedBlock, counters: &Counters) -> Result<(), StorageError> {
        quarantine::move_aside(&*self.files, &self.dir, &self.path(name), counters)
    }

    /// Removes what unfinished work left behind. Both slots of the manifest name exactly the `live` blocks.
    pub(crate) fn remove_remains(&self, live: &[NamedBlock]) -> Result<(), StorageError> {
        let place = Places::blocks(&self.dir);
        let is_live = |ulid, format| live.contains(&NamedBlock { ulid, format });
        let mut ours = BTreeSet::new();
        for entry in self.files.list(&place).map_err(StorageError::io("list", &place))? {
            let path = place.join(&entry.name);
            match Entry::of(&entry.name) {
                _ if entry.is_dir => leave_alone(&path),
                Entry::Native(ulid) | Entry::Tombstones(ulid) if is_live(ulid, Format::Native) => {}
                Entry::Claim(ulid) if is_live(ulid, Format::Prometheus) => _ = ours.insert(ulid),
                Entry::Native(_) | Entry::Tombstones(_) | Entry::Unfinished => self.remove_file(&path)?,
                Entry::Claim(ulid) => self.remove(NamedBlock { ulid, format: Format::Prometheus })?,
                Entry::Foreign => leave_alone(&path),
            }
        }
        for entry in self.files.list(&self.dir).map_err(StorageError::io("list", &self.dir))? {
            if entry.is_dir && entry.name.parse::<Ulid>().is_ok_and(|ulid| !ours.contains(&ulid)) {
                tracing::warn!(
                    dir = %self.dir.join(&entry.name).display(),
                    "this block is not one of the store's; it is left alone, `metricsstore tsdb import` takes it over"
                );
            }
        }
        Ok(())
    }
}

fn leave_alone(path: &Path) {
    tracing::warn!(file = %path.display(), "this is not one of the store's files; it is left alone");
}
