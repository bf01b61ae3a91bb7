//! What can go wrong below the store's face.
use std::io;
use std::path::Path;

use metricsstore_model::read::ReadError;

/// Why the store could not be opened or maintained.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// Another process has the directory.
    #[error(
        "the data directory {dir} is in use by another process; stop it or choose another --storage.tsdb.path"
    )]
    Locked {
        /// The data directory.
        dir: String,
    },
    /// The file system failed.
    #[error("cannot {what} {file}: {error}")]
    Io {
        /// What was tried: "read", "create", "sync" …
        what: &'static str,
        /// The file.
        file: String,
        /// The system's words.
        #[source]
        error: io::Error,
    },
    /// Stored bytes are not what was written.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Corrupt {
        /// The file.
        file: String,
        /// Byte offset.
        offset: u64,
        /// What was found.
        what: String,
    },
    /// More is asked for at once than is kept in mind.
    #[error("busy: {what}; try again later")]
    Busy {
        /// What there is too much of.
        what: &'static str,
    },
    /// A tool was pointed at something else than a data directory.
    #[error("{dir} is no data directory: {what}")]
    NoDataDirectory {
        /// What was named.
        dir: String,
        /// What is wrong, and the cure.
        what: &'static str,
    },
    /// Background work was broken off by [`crate::Store::close`].
    #[error("the store is shutting down")]
    ShuttingDown,
    /// Background work was broken off for a request that could not wait; it is begun again.
    #[error("the work was broken off for a request; it is begun again by itself")]
    Interrupted,
    /// There is too little space to begin with.
    #[error(
        "there is no room for {what}: it may take {needed} bytes, {available} are free and some of them are kept back; free space on the data volume or enlarge it"
    )]
    NoRoom {
        /// What was to be written.
        what: String,
        /// Bytes that it may take.
        needed: u64,
        /// Bytes that are free.
        available: u64,
    },
    /// The file was written by a newer release.
    #[error(
        "{file} has format version {found}, this release reads up to {supported}; run the release that wrote it"
    )]
    Version {
        /// The file.
        file: String,
        /// The version in the file.
        found: u32,
        /// The newest version that is understood.
        supported: u32,
    },
}

impl StorageError {
    /// An I/O error with its circumstances.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StorageError {
        let file = path.display().to_string();
        move |error| StorageError::Io { what, file, error }
    }

    /// Whether there is no space for what was to be written.
    pub(crate) fn is_full_disk(&self) -> bool {
        match self {
            StorageError::Io { error, .. } => is_full_disk(error),
            StorageError::NoRoom { .. } => true,
            _ => false,
        }
    }

    /// Damage found in `path`.
    pub(crate) fn corrupt(path: &Path, offset: u64, what: impl Into<String>) -> StorageError {
        StorageError::Corrupt { file: path.display().to_string(), offset, what: what.into() }
    }
}

/// Whether the system says that there is no space.
pub(crate) fn is_full_disk(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl From<StorageError> for ReadError {
    fn from(error: StorageError) -> ReadError {
        match error {
            StorageError::Corrupt { file, offset, what } => ReadError::Corrupt { file, offset, what },
            StorageError::Io { file, error, .. } => ReadError::Io { file, reason: error.to_string() },
            other => ReadError::Io { file: "the data directory".into(), reason: other.to_string() },
        }
    }
}
