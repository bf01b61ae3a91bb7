//! What can go wrong in a reconcile. Everything here is tried again; what a user must cure is a `Refusal`.

use crate::plan::RenderError;

/// A reconcile that could not be finished.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something could not be read. It is never taken for absent.
    #[error("{what} could not be read: {source}")]
    Read {
        /// Kind and name.
        what: String,
        /// The client's error.
        #[source]
        source: Box<kube::Error>,
    },
    /// Something could not be written.
    #[error("{what} could not be written: {source}")]
    Write {
        /// Kind and name.
        what: String,
        /// The client's error.
        #[source]
        source: Box<kube::Error>,
    },
    /// A child could not be rendered.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// An object could not be turned into JSON.
    #[error("an object could not be encoded: {0}")]
    Encode(#[source] serde_json::Error),
    /// The operating system gave no random bytes for a token.
    #[error("no random bytes for a token: {0}")]
    Random(#[source] std::io::Error),
}

impl Error {
    /// For `map_err` after a read.
    pub fn read(kind: &str, name: &str) -> impl Fn(kube::Error) -> Error + use<> {
        let what = format!("{kind} {name}");
        move |source| Error::Read { what: what.clone(), source: Box::new(source) }
    }

    /// For `map_err` after a write.
    pub fn write(kind: &str, name: &str) -> impl Fn(kube::Error) -> Error + use<> {
        let what = format!("{kind} {name}");
        move |source| Error::Write { what: what.clone(), source: Box::new(source) }
    }

    /// For the store's status: what, and where a right is missing, the cure.
    pub fn told(&self) -> String {
        match self {
            Error::Read { what, source } => told(what, "read", source),
            Error::Write { what, source } => told(what, "written", source),
            other => other.to_string(),
        }
    }

    /// The value of the metric's `error` label.
    pub fn label(&self) -> &'static str {
        match self {
            Error::Read { .. } => "read",
            Error::Write { .. } => "write",
            Error::Render(_) => "render",
            Error::Encode(_) => "encode",
            Error::Random(_) => "random",
        }
    }
}

fn told(what: &str, done: &str, source: &kube::Error) -> String {
    match source {
        kube::Error::Api(status) if status.code == 403 => format!(
            "{what} could not be {done}: {}; grant it in the operator's ClusterRole (helm upgrade restores the chart's)",
            status.message
        ),
        kube::Error::Api(status) => format!("{what} could not be {done}: {}", status.message),
        other => format!("{what} could not be {done}: {other}"),
    }
}
