//! The writer: appends frames in the order of its lock, and one sync for everyone who waits (leader and followers).
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_vfs::{File, Files};

use super::record;
use super::{FRAME_BYTES, HEADER_BYTES, MAX_BODY_BYTES, fill_frame, header, segment_path};
use crate::StorageError;
use crate::error::is_full_disk;
use crate::identity::Identity;
use crate::sync::{Condvar, Mutex};

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

struct State {
    /// `None` until the first one could be created.
    file: Option<Arc<dyn File>>,
    number: u64,
    /// Lengths of all files that exist.
    lengths: BTreeMap<u64, u64>,
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
    /// Why the log takes no more records, until [`Log::heal`].
    broken: Option<String>,
    /// Whether that is for lack of space.
    out_of_space: bool,
    syncs: u64,
}

impl State {
    /// Bytes of the present file that are known to be durable.
    fn durable_bytes(&self) -> u64 {
        let header = if self.file.is_some() { HEADER_BYTES as u64 } else { 0 };
        header + self.synced.saturating_sub(self.file_start)
    }
}

impl Log {
    /// A log that writes on in a new file after the last of `existing`.
    ///
    /// Series that `identity` has now are taken as defined. Without space for that file the log is broken from the
    /// start and heals like any other: a full disk must not keep a store from answering.
    pub(crate) fn open(
        files: Arc<dyn Files>,
        dir: PathBuf,
        identity: Arc<Identity>,
        existing: &[(u64, u64)],
        floor: u64,
    ) -> Result<Log, StorageError> {
        let number = existing.last().map_or(floor, |&(last, _)| floor.max(last + 1));
        let mut lengths: BTreeMap<u64, u64> = existing.iter().copied().collect();
        let (file, broken) = match create(&*files, &dir, number, 0) {
            Ok(file) => {
                lengths.insert(number, HEADER_BYTES as u64);
                (Some(file), None)
            }
            Err(error) if error.is_full_disk() => {
                tracing::error!(%error, "the log cannot be written: nothing is taken until there is space");
                (None, Some(error.to_string()))
            }
            Err(error) => return Err(error),
        };
        // Half a file would be in the way of the next attempt.
        let is_spent = file.is_some() || !removed(&*files, &segment_path(&dir, number));
        let state = State {
            number: if is_spent { number } else { number.saturating_sub(1) },
            file,
            lengths,
            file_start: 0,
            written: 0,
            synced: 0,
            failed_through: 0,
            failures: u64::from(broken.is_some()),
            defined: identity.next_order(),
            syncing: false,
            out_of_space: broken.is_some(),
            broken,
            syncs: 0,
        };
        Ok(Log { files, dir, identity, state: Mutex::new(state), changed: Condvar::new() })
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
            None => Err(std::io::ErrorKind::StorageFull.into()),
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
            let (file, covers) = (state.file.clone(), state.written);
            drop(state);
            let result = file.map_or(Ok(()), |file| file.sync());
            state = self.state.lock();
            self.after_sync(&mut state, covers, result);
        }
    }

    fn after_sync(&self, state: &mut State, covers: Position, result: std::io::Result<()>) {
        state.syncing = false;
        state.syncs += 1;
        match result {
            Ok(()) => state.synced = state.synced.max(covers),
            // The file is poisoned: what it held beyond the last good sync may be gone.
            Err(error) => {
                state.out_of_space = is_full_disk(&error);
                self.fail(state, format!("cannot sync: {error}"));
            }
        }
        self.changed.notify_all();
    }

    /// Syncs what was written so far.
    pub(crate) fn sync(&self) -> Result<(), String> {
        let position = self.position();
        self.wait_durable(position)
    }

    /// Goes on in a new file. The caller keeps appenders out.
    pub(crate) fn rotate(&self) -> Result<Cut, StorageError> {
        // A failure here shows in `broken` and does not keep us from a new file.
        let _ = self.sync();
        let mut state = self.state.lock();
        while state.syncing {
            self.changed.wait(&mut state);
        }
        // Where the creation of the file before failed half-way, nothing of it is durable.
        let durable_before =
            if state.lengths.contains_key(&state.number) { state.durable_bytes() } else { 0 };
        let number = state.number + 1;
        let created = create(&*self.files, &self.dir, number, durable_before);
        match created {
            Ok(file) => {
                state.number = number;
                state.file = Some(file);
                state.file_start = state.written;
                state.lengths.insert(number, HEADER_BYTES as u64);
                Ok(Cut { number, position: state.written, failures: state.failures })
            }
            Err(error) => {
                // What was created half-way goes, or a full disk would collect a file with every attempt. If it stays,
                // its number is spent.
                if !removed(&*self.files, &segment_path(&self.dir, number)) {
                    state.number = number;
                }
                state.out_of_space = error.is_full_disk();
                self.fail(&mut state, error.to_string());
                Err(error)
            }
        }
    }

    /// Says that everything before a cut is durable elsewhere, and with it the series created before a mark. A log
    /// that failed before the cut takes records again: nothing that it may have lost matters any more, and its present
    /// file is a fresh one.
    pub(crate) fn cover(&self, cut: Cut, defined: u64) {
        let mut state = self.state.lock();
        state.synced = state.synced.max(cut.position);
        if state.broken.is_some() && state.failures == cut.failures {
            state.broken = None;
            state.defined = defined;
        }
        self.changed.notify_all();
    }

    /// Says that series created before the mark are defined already.
    pub(crate) fn define_through(&self, mark: u64) {
        self.state.lock().defined = mark;
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

    /// Removes the files below `floor`; returns how many went.
    pub(crate) fn remove_below(&self, floor: u64) -> Result<u32, StorageError> {
        let below: Vec<u64> = self.state.lock().lengths.range(..floor).map(|(&number, _)| number).collect();
        let mut removed = 0;
        for number in below {
            let path = segment_path(&self.dir, number);
            match self.files.remove(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(StorageError::io("remove", &path)(error)),
            }
            self.state.lock().lengths.remove(&number);
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
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

fn create(
    files: &dyn Files,
    dir: &Path,
    number: u64,
    durable_before: u64,
) -> Result<Arc<dyn File>, StorageError> {
    let path = segment_path(dir, number);
    let file = files.create(&path).map_err(StorageError::io("create", &path))?;
    file.append(&header(number, durable_before)).map_err(StorageError::io("write", &path))?;
    file.sync().map_err(StorageError::io("sync", &path))?;
    files.sync_dir(dir).map_err(StorageError::io("sync", dir))?;
    Ok(file)
}
