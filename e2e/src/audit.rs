//! Reading the API server's audit log: who sent which requests since a moment.
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Error, Result, cluster};

/// Verbs that change something.
const WRITES: [&str; 6] = ["create", "update", "patch", "apply", "delete", "deletecollection"];

/// A place in the audit log: what was answered after it was taken.
pub struct Mark {
    log: PathBuf,
    offset: u64,
}

/// One answered request.
#[derive(Debug)]
pub struct Request {
    /// `create`, `patch`, `get`, …
    pub verb: String,
    /// Path and query.
    pub uri: String,
    /// HTTP status.
    pub code: u64,
}

impl Mark {
    /// Now, from inside the cluster (`cargo xtask cluster exec`).
    pub fn now() -> Result<Self> {
        let state = std::env::var_os(cluster::STATE_VARIABLE).ok_or_else(|| {
            Error::missing("this does not run inside the cluster", "start it with `cargo xtask cluster exec`")
        })?;
        Self::at_end_of(&Path::new(&state).join(cluster::AUDIT_LOG))
    }

    /// The end of a log as it is now.
    pub fn at_end_of(log: &Path) -> Result<Self> {
        let offset = std::fs::metadata(log).map_err(Error::file("read", log))?.len();
        Ok(Self { log: log.to_owned(), offset })
    }

    /// Requests that change something, answered since, by a user such as
    /// `system:serviceaccount:metricsstore-system:metricsstore-operator`.
    pub fn writes_by(&self, user: &str) -> Result<Vec<Request>> {
        Ok(self
            .requests_by(user)?
            .into_iter()
            .filter(|request| WRITES.contains(&request.verb.as_str()))
            .collect())
    }

    /// All requests of a user answered since.
    pub fn requests_by(&self, user: &str) -> Result<Vec<Request>> {
        let mut file = std::fs::File::open(&self.log).map_err(Error::file("open", &self.log))?;
        file.seek(SeekFrom::Start(self.offset)).map_err(Error::file("read", &self.log))?;
        let mut requests = Vec::new();
        for line in BufReader::new(file).lines() {
            let line = line.map_err(Error::file("read", &self.log))?;
            // The last line may be half written; what it says was not answered before this call.
            let Ok(entry) = serde_json::from_str::<Value>(&line) else { continue };
            if entry["user"]["username"] == user && entry["stage"] == "ResponseComplete" {
                requests.push(Request::from_entry(&entry));
            }
        }
        Ok(requests)
    }
}

impl Request {
    fn from_entry(entry: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            verb: text(&entry["verb"]),
            uri: text(&entry["requestURI"]),
            code: entry["responseStatus"]["code"].as_u64().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn only_writes_of_the_user_after_the_mark_count() {
        let path = std::env::temp_dir().join(format!("metricsstore-audit-{}", std::process::id()));
        let entry = |user: &str, verb: &str, stage: &str| {
            let entry = serde_json::json!({"user": {"username": user}, "verb": verb, "stage": stage,
                "requestURI": "/api", "responseStatus": {"code": 200}});
            format!("{entry}\n")
        };
        std::fs::write(&path, entry("me", "create", "ResponseComplete")).unwrap();
        let mark = Mark::at_end_of(&path).unwrap();
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        for (user, verb, stage) in [
            ("me", "get", "ResponseComplete"),
            ("me", "patch", "ResponseComplete"),
            ("me", "patch", "ResponseStarted"),
            ("you", "delete", "ResponseComplete"),
        ] {
            file.write_all(entry(user, verb, stage).as_bytes()).unwrap();
        }
        file.write_all(b"{\"half").unwrap();
        let writes = mark.writes_by("me").unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(writes.iter().map(|request| request.verb.as_str()).collect::<Vec<_>>(), ["patch"]);
    }
}
