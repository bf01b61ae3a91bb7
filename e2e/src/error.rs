//! What can go wrong while building, starting or testing, each with the next step to take.
use std::path::{Path, PathBuf};

/// The result of every step of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// One sentence each: what failed, on what, and the cure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program ran and did not succeed.
    #[error("{what} failed ({status}){}\n  next: {cure}", indented(.output))]
    Program {
        /// The step in words.
        what: String,
        /// Exit code or signal.
        status: String,
        /// The last lines it printed; empty when they were shown already.
        output: String,
        /// What the reader should do.
        cure: String,
    },
    /// A program could not be started at all.
    #[error("cannot run `{program}` for {what}: {source}\n  next: {cure}")]
    Start {
        /// The executable.
        program: String,
        /// The step in words.
        what: String,
        /// The system's reason.
        source: std::io::Error,
        /// What the reader should do.
        cure: String,
    },
    /// A file or directory could not be read or written.
    #[error("cannot {action} {}: {source}", .path.display())]
    File {
        /// A verb: "read", "write", "create" …
        action: &'static str,
        /// The path as it was used.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A condition did not come true in time.
    #[error("{what} did not happen within {seconds} s; last seen: {last}\n  next: {cure}")]
    Deadline {
        /// The awaited condition in words.
        what: String,
        /// How long it was waited for.
        seconds: u64,
        /// The last state observed.
        last: String,
        /// What the reader should do.
        cure: String,
    },
    /// Something the step needs is not there.
    #[error("{what}\n  next: {cure}")]
    Missing {
        /// What is not there, in words.
        what: String,
        /// What the reader should do.
        cure: String,
    },
    /// What another program printed was not what its interface promises.
    #[error("{what} is not understood: {detail}")]
    Unreadable {
        /// Whose output.
        what: String,
        /// What was wrong with it.
        detail: String,
    },
}

impl Error {
    /// For `map_err` on file operations.
    pub fn file(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::File { action, path, source }
    }

    /// Something that is not there, with its cure.
    pub fn missing(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::Missing { what: what.into(), cure: cure.into() }
    }
}

fn indented(output: &str) -> String {
    output.lines().fold(String::new(), |text, line| text + "\n  | " + line)
}
