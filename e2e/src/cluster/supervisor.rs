//! The process that holds the cluster's namespaces: started detached, recorded, and ended with all that runs inside.
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Error, Result, places, wait};

/// A running `unshare`; its only child is the first process inside the namespaces and dies with it.
#[derive(Debug, Clone, Copy)]
pub struct Supervisor {
    pid: i32,
    /// Clock ticks since boot: tells a process from a later one with the same id.
    started: u64,
}

/// Records its own id and start time in the first argument, then becomes the rest; so no crash can leave it unrecorded.
const RECORD_AND_BECOME: &str = r#"cut -d' ' -f1,22 "/proc/$$/stat" >"$1" && shift && exec "$@""#;

impl Supervisor {
    /// Starts this program's `cluster init` in namespaces of its own.
    pub fn start(state: &Path) -> Result<Self> {
        let this = super::own_program(state)?;
        let log_path = state.join("log/init.log");
        let log = std::fs::File::create(&log_path).map_err(Error::file("create", &log_path))?;
        let errors = log.try_clone().map_err(Error::file("share", &log_path))?;
        let mut command = Command::new("sh");
        command.arg("-c").arg(RECORD_AND_BECOME).arg("sh").arg(record(state));
        command.args(["setsid", "unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork"]);
        command.args(["--kill-child=SIGKILL", "--mount-proc", "--propagation", "private", "--"]);
        command.arg(this).args(["cluster", "init"]).arg(state);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        command.env("PATH", super::path_with_tools()?);
        for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"] {
            command.env_remove(proxy);
        }
        command.spawn().map_err(|source| Error::Start {
            program: "sh".into(),
            what: "the cluster's namespaces".into(),
            source,
            cure: "check that sh is on the PATH".into(),
        })?;
        wait::until(
            "the start of the cluster's namespaces",
            Duration::from_secs(20),
            super::READ_LOGS,
            || {
                let started = Self::find(state)?.filter(|supervisor| supervisor.first_process().is_some());
                let log = || std::fs::read_to_string(&log_path).unwrap_or_default();
                Ok(started.map_or_else(
                    || wait::Look::NotYet(format!("no process {}", log().trim())),
                    wait::Look::Done,
                ))
            },
        )
    }

    /// The recorded supervisor, if it still runs.
    pub fn find(state: &Path) -> Result<Option<Self>> {
        let path = record(state);
        if !path.exists() {
            return Ok(None);
        }
        let text = places::read(&path)?;
        let mut fields = text.split_whitespace();
        let recorded = fields
            .next()
            .and_then(|pid| pid.parse().ok())
            .zip(fields.next().and_then(|started| started.parse().ok()))
            .map(|(pid, started)| Self { pid, started });
        Ok(recorded.filter(Self::is_running))
    }

    /// Its child, as seen from outside: the first process in the namespaces.
    pub fn first_process(&self) -> Option<i32> {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid)).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    /// Ends it; the kernel ends everything inside the namespaces with their first process.
    pub fn end(&self) -> Result<()> {
        let first = self.first_process();
        for pid in [first, Some(self.pid)].into_iter().flatten().filter_map(rustix::process::Pid::from_raw) {
            if self.is_running() {
                // It may have ended by itself in between; the wait below is what counts.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        wait::until_true(
            "the end of the cluster's processes",
            Duration::from_secs(30),
            &format!("look at process {}", self.pid),
            || !self.is_running() && first.is_none_or(|pid| !Path::new(&format!("/proc/{pid}")).exists()),
        )
    }

    fn is_running(&self) -> bool {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)) else { return false };
        // The second field is the program's name in parentheses and may hold spaces; a zombie has ended.
        let after_name: Vec<&str> =
            stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect()).unwrap_or_default();
        after_name.first() != Some(&"Z")
            && after_name.get(19).and_then(|s| s.parse().ok()) == Some(self.started)
    }
}

fn record(state: &Path) -> PathBuf {
    state.join("supervisor")
}
