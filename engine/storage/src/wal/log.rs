//! The writer: appends frames in the order of its lock, and one sync for everyone who waits (leader and followers).
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_vfs::{File, Files};

use super::record;
use super::{FRAME_BYTES, HEADER_BYTES, MAX_BODY_BYTES, fill_frame, header, segment_path};
use crate::error::is_full_disk;
use crate::identity::Identity;
use crate::sync::{Condvar, Mutex};
use crate::{StorageError, quarantine};

/// Series whose definitions go into one record.
const DEFINITIONS_PER_RECORD: usize = 4096;

/// A place in the log: bytes appended by this process, over all files.
pub(crate) type Position = u64;

/// A place between two files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// The file that begins here.
    pub(crate) number: u64,
    position: Position,
    /// Failures up to here.
    failures: u64,
}

impl Cut {
    /// The beginning of a file of an earlier process, of whose log nothing is waited for.
    pub(crate) fn before_file(number: u64) -> Cut {
        Cut { number, position: 0, failures: u64::MAX }
    }
}

pub(crate) struct Log {
    files: Arc<dyn Files>,
    dir: PathBuf,
    identity: Arc<Identity>,
    state: Mutex<State>,
    changed: Condvar,
}

/// A file that was made ready before anybody waits for it: empty, its name durable.
pub(crate) struct Prepared {
    number: u64,
    file: Arc<dyn File>,
}

struct State {
    /// `None` until the first one could be created.
    file: Option<Arc<dyn File>>,
    number: u64,
    /// Number of the file that is prepared next.
    next_number: u64,
    /// Earlier files that are not synced to their ends yet, with the positions of these, oldest first.
    retired: Vec<(Position, Arc<dyn File>)>,
    /// Lengths of all files that exist.
    lengths: BTreeMap<u64, u64>,
    /// Damaged files of which there is no copy: they are not removed but moved to quarantine.
    aside: BTreeSet<u64>,
    /// Where the file begins.
    file_start: Position,
    written: Position,
    synced: Position,
    /// Everything up to here that was not synced before is lost to waiters.
    failed_through: Position,
    /// Failures so far.
    failures: u64,
    /// Series created before this mark are defined in the log or in an identity file.
    defined: u64,
    syncing: bool,
    /// Why the log takes no more records, until [`Log::cover`].
    broken: Option<String>,
    /// Whether that is for lack of space.
    out_of_space: bool,
    syncs: u64,
}

impl State {
    /// Bytes of the present file that are known to be durable: none before those of all earlier files are.
    fn durable_bytes(&self) -> u64 {
        match self.synced.saturating_sub(self.file_start) {
            0 => 0,
            frames => HEADER_BYTES as u64 + frames,
        }
    }

    fn make_durable(&mut self, position: Position) {
        self.synced = self.synced.max(position);
        let synced = self.synced;
        self.retired.retain(|&(end, _)| end > synced);
    }
}

impl Log {
    /// A log after the last of `existing`; it takes no record before [`Log::begin`].
    pub(crate) fn new(
        files: Arc<dyn Files>,
        dir: PathBuf,
        identity: Arc<Identity>,
        existing: &[(u64, u64)],
        floor: u64,
    ) -> Log {
        let next_number = existing.last().map_or(floor, |&(last, _)| floor.max(last + 1));
        let state = State {
            file: None,
            number: next_number.saturating_sub(1),
            next_number,
            retired: Vec::new(),
            lengths: existing.iter().copied().collect(),
            aside: BTreeSet::new(),
            file_start: 0,
            written: 0,
            synced: 0,
            failed_through: 0,
            failures: 0,
            defined: 0,
            syncing: false,
            out_of_space: false,
            broken: None,
            syncs: 0,
        };
        Log { files, dir, identity, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Begins the first file of this process, after one of which `bytes_before` were read and are durable. Series
    /// created before the mark `defined` are defined in identity files.
    ///
    /// Without space for that file the log is broken from the start and heals like any other: a full disk must not
    /// keep a store from answering.
    pub(crate) fn begin(&self, bytes_before: u64, defined: u64) -> Result<(), StorageError> {
        let begun = self.prepare().and_then(|next| {
            let mut state = self.state.lock();
            state.defined = defined;
            self.switch(&mut state, next, bytes_before, bytes_before)
        });
        match begun {
            Err(error) if error.is_full_disk() => {
                tracing::error!(%error, "the log cannot be written: nothing is taken until there is space");
                let mut state = self.state.lock();
                state.defined = defined;
                state.out_of_space = true;
                self.fail(&mut state, error.to_string());
                Ok(())
            }
            begun => begun,
        }
    }

    /// Makes the next file ready. One caller at a time.
    pub(crate) fn prepare(&self) -> Result<Prepared, StorageError> {
        let number = self.state.lock().next_number;
        let path = segment_path(&self.dir, number);
        let created = self.files.create(&path).map_err(StorageError::io("create", &path)).and_then(|file| {
            file.sync().map_err(StorageError::io("sync", &path))?;
            self.files.sync_dir(&self.dir).map_err(StorageError::io("sync", &self.dir))?;
            Ok(Prepared { number, file })
        });
        if created.is_err() {
            self.give_up(number);
        }
        created
    }

    /// Removes a file that will not be written, or a full disk would collect one with every attempt. If it stays, its
    /// number is spent.
    fn give_up(&self, number: u64) {
        if !removed(&*self.files, &segment_path(&self.dir, number)) {
            self.state.lock().next_number = number + 1;
        }
    }

    /// Writes on in a prepared file: a short write, and no sync.
    fn switch(
        &self,
        state: &mut State,
        next: Prepared,
        bytes_before: u64,
        durable_before: u64,
    ) -> Result<(), StorageError> {
        let Prepared { number, file } = next;
        let written = file.append(&header(number, bytes_before, durable_before));
        if let Err(error) = written {
            state.next_number = number + 1;
            return Err(StorageError::io("write", &segment_path(&self.dir, number))(error));
        }
        // What a broken one holds is lost to those who wait; its sync is not tried again.
        if let Some(old) = state.file.replace(file)
            && state.broken.is_none()
            && state.synced < state.written
        {
            state.retired.push((state.written, old));
        }
        (state.number, state.next_number) = (number, number + 1);
        state.file_start = state.written;
        state.lengths.insert(number, HEADER_BYTES as u64);
        Ok(())
    }

    /// Appends a frame, of which the first [`FRAME_BYTES`] are filled in here, after the definitions of series that the
    /// log does not know yet, and returns the position after it.
    pub(crate) fn append(&self, kind: u8, frame: &mut [u8]) -> Result<Position, String> {
        let mut state = self.state.lock();
        if let Some(reason) = &state.broken {
            return Err(reason.clone());
        }
        self.define_series(&mut state)?;
        self.write(&mut state, kind, frame)?;
        Ok(state.written)
    }

    fn define_series(&self, state: &mut State) -> Result<(), String> {
        let mut frame = vec![0; FRAME_BYTES];
        loop {
            frame.truncate(FRAME_BYTES);
            let mark = self.identity.encode_definitions(state.defined, DEFINITIONS_PER_RECORD, &mut frame);
            if mark == state.defined {
                return Ok(());
            }
            if frame.len() > FRAME_BYTES {
                self.write(state, record::DEFINITIONS, &mut frame)?;
            }
            state.defined = mark;
        }
    }

    fn write(&self, state: &mut State, kind: u8, frame: &mut [u8]) -> Result<(), String> {
        let body_bytes = frame.len() - FRAME_BYTES;
        if body_bytes > MAX_BODY_BYTES {
            let reason = format!("a record of {body_bytes} bytes is over the limit of {MAX_BODY_BYTES}");
            return Err(self.fail(state, reason));
        }
        fill_frame(state.number, state.durable_bytes(), kind, frame);
        let appended = match &state.file {
            Some(file) => file.append(frame),
            None => Err(std::io::ErrorKind::NotFound.into()),
        };
        if let Err(error) = appended {
            state.out_of_space = is_full_disk(&error);
            return Err(self.fail(state, format!("cannot write: {error}")));
        }
        state.written += frame.len() as u64;
        let number = state.number;
        *state.lengths.entry(number).or_default() += frame.len() as u64;
        Ok(())
    }

    fn fail(&self, state: &mut State, reason: String) -> String {
        state.failed_through = state.written;
        state.failures += 1;
        state.broken = Some(reason.clone());
        self.changed.notify_all();
        reason
    }

    /// The position after everything appended so far.
    pub(crate) fn position(&self) -> Position {
        self.state.lock().written
    }

    /// Returns when everything up to `position` is durable. Whoever comes first syncs for all.
    pub(crate) fn wait_durable(&self, position: Position) -> Result<(), String> {
        let mut state = self.state.lock();
        loop {
            if state.synced >= position {
                return Ok(());
            }
            if state.failed_through >= position {
                return Err(state.broken.clone().unwrap_or_else(|| "a sync of the log failed".into()));
            }
            if state.syncing {
                self.changed.wait(&mut state);
                continue;
            }
            state.syncing = true;
            let mut files = state.retired.clone();
            if let Some(file) = state.file.clone().filter(|_| state.written > state.file_start) {
                files.push((state.written, file));
            }
            drop(state);
            let result = self.sync_files(&files);
            state = self.state.lock();
            state.syncing = false;
            // The file is poisoned: what it held beyond the last good sync may be gone.
            if let Err(error) = result {
                state.out_of_space = is_full_disk(&error);
                self.fail(&mut state, format!("cannot sync: {error}"));
            }
            self.changed.notify_all();
        }
    }

    /// Syncs files in the order in which they were written: what is said to be durable has no gap.
    fn sync_files(&self, files: &[(Position, Arc<dyn File>)]) -> std::io::Result<()> {
        for (end, file) in files {
            let result = file.sync();
            let mut state = self.state.lock();
            state.syncs += 1;
            result?;
            state.make_durable(*end);
        }
        Ok(())
    }

    /// Syncs what was written so far.
    pub(crate) fn sync(&self) -> Result<(), String> {
        let position = self.position();
        self.wait_durable(position)
    }

    /// Goes on in a prepared file. The caller keeps appenders out and syncs afterwards. The new file defines the series
    /// again that were created since the mark `defined`, which an identity file reaches to.
    pub(crate) fn rotate(&self, next: Prepared, defined: u64) -> Result<Cut, StorageError> {
        let mut state = self.state.lock();
        let (bytes, durable) = match state.file {
            // What a broken one holds beyond is durable elsewhere before anything is written here: where it is torn
            // must not keep this file from being read.
            Some(_) if next.number == state.number + 1 && state.broken.is_some() => {
                (state.durable_bytes(), state.durable_bytes())
            }
            Some(_) if next.number == state.number + 1 => {
                (state.lengths.get(&state.number).copied().unwrap_or(0), state.durable_bytes())
            }
            // Nothing is said of a file that was spent.
            _ => (0, 0),
        };
        self.switch(&mut state, next, bytes, durable)?;
        state.defined = state.defined.min(defined);
        Ok(Cut { number: state.number, position: state.written, failures: state.failures })
    }

    /// Says that everything before a cut is durable elsewhere, and with it the series created before a mark. A log
    /// that failed before the cut takes records again: nothing that it may have lost matters any more, and its present
    /// file is a fresh one.
    pub(crate) fn cover(&self, cut: Cut, defined: u64) {
        let mut state = self.state.lock();
        state.make_durable(cut.position);
        if state.broken.is_some() && state.failures == cut.failures {
            state.broken = None;
        }
        state.defined = state.defined.max(defined);
        self.changed.notify_all();
    }

    /// Why the log takes no records at present.
    pub(crate) fn broken(&self) -> Option<String> {
        self.state.lock().broken.clone()
    }

    /// Whether the log takes no records for lack of space.
    pub(crate) fn is_out_of_space(&self) -> bool {
        let state = self.state.lock();
        state.broken.is_some() && state.out_of_space
    }

    /// Says that a file is damaged and that there is no copy of it.
    pub(crate) fn set_aside(&self, number: u64) {
        self.state.lock().aside.insert(number);
    }

    /// Removes the files below `floor`, or moves them to quarantine; returns how many went.
    pub(crate) fn remove_below(&self, floor: u64) -> Result<u32, StorageError> {
        let below: Vec<u64> = self.state.lock().lengths.range(..floor).map(|(&number, _)| number).collect();
        let mut removed = 0;
        for number in below {
            let path = segment_path(&self.dir, number);
            let is_aside = self.state.lock().aside.contains(&number);
            let gone = match self.dir.parent().filter(|_| is_aside) {
                Some(data_dir) => quarantine::rename(&*self.files, data_dir, &path),
                None => self.files.remove(&path).map_err(StorageError::io("remove", &path)),
            };
            match gone {
                Err(StorageError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {}
                gone => gone?,
            }
            let mut state = self.state.lock();
            state.lengths.remove(&number);
            state.aside.remove(&number);
            removed += 1;
        }
        Ok(removed)
    }

    /// Bytes of the file that is written at present.
    pub(crate) fn open_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.lengths.get(&state.number).copied().unwrap_or(0)
    }

    /// Number of files, their bytes, syncs since the start.
    pub(crate) fn figures(&self) -> (u64, u64, u64) {
        let state = self.state.lock();
        (state.lengths.len() as u64, state.lengths.values().sum(), state.syncs)
    }
}

/// Removes a file and says whether it is gone.
fn removed(files: &dyn Files, path: &Path) -> bool {
    match files.remove(path) {
        Ok(()) => true,
        // What was never created is not to be removed either; a number that were spent on it would be missing later.
        Err(error) => error.kind() == std::io::ErrorKind::NotFound || matches!(files.exists(path), Ok(false)),
    }
}
