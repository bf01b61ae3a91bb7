//! A real single-node Kubernetes in namespaces of its own: nothing of it is visible or left on the host.
pub mod addresses;
pub mod cgroup;
mod config;
mod host;
mod init;
mod interrupt;
mod node_image;
mod pki;
mod supervisor;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use self::addresses::{NODE, NODE_IMAGE};
pub use self::init::run as init;
pub use self::interrupt::{DownAtEnd, until_interrupted};
use self::node_image::node_image;
use self::supervisor::Supervisor;
use crate::kubectl::Kubectl;
use crate::{Error, Result, places, program, progress, tools, wait};

/// Where a reader finds out more about a daemon that fails.
const READ_LOGS: &str =
    "read the logs in ~/.cache/metricsstore/cluster/log, then `cargo xtask cluster up` again";

/// The API server's audit log, below the state folder.
pub(crate) const AUDIT_LOG: &str = "log/audit.log";

/// What the cluster runs as pods from the start.
const COREDNS: &str = include_str!("../../manifests/coredns.yaml");
const LOCAL_PATH: &str = include_str!("../../manifests/local-path.yaml");

/// Set for programs that run inside: the state folder.
pub const STATE_VARIABLE: &str = "METRICSSTORE_CLUSTER";

/// A cluster that is up.
pub struct Cluster {
    state: PathBuf,
    first_process: i32,
}

impl Cluster {
    /// The cluster, if it is completely up.
    pub fn running() -> Result<Option<Self>> {
        let state = state()?;
        let supervisor = Supervisor::find(&state)?;
        let first_process = supervisor.and_then(|supervisor| supervisor.first_process());
        let ready = Phase::read(&state) == Some(Phase::Ready);
        Ok(first_process.filter(|_| ready).map(|first_process| Self { state, first_process }))
    }

    /// The cluster, which must be up.
    pub fn attach() -> Result<Self> {
        Self::running()?.ok_or_else(|| Error::missing("the cluster is not up", "cargo xtask cluster up"))
    }

    /// A command that runs inside the namespaces with the administrator's kubeconfig and ends with its caller.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        inside(&self.state, self.first_process, program.as_ref())
    }

    /// kubectl against this cluster.
    pub fn kubectl(&self) -> Kubectl<'_> {
        Kubectl::of(self)
    }

    /// Runs a program inside with the caller's terminal; its exit code is passed on.
    pub fn run(&self, command: &[OsString]) -> Result<ExitCode> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Error::missing("there is no program to run", "name one, for example `kubectl`"));
        };
        let mut command = self.command(program)?;
        let status = command.args(arguments).status().map_err(|source| Error::Start {
            program: program.to_string_lossy().into_owned(),
            what: "the cluster".into(),
            source,
            cure: "run it as root on a machine with util-linux".into(),
        })?;
        Ok(status.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8)))
    }

    /// Makes an image available to pods under the name in the archive.
    pub fn import(&self, archive: &Path) -> Result<()> {
        progress::step("import the image into the cluster", || {
            let mut command = self.command("ctr")?;
            command.args(IMPORT).arg(archive);
            program::quiet("importing the image", &mut command, READ_LOGS).map(drop)
        })
    }

    /// This program, for others to run as `… cluster exec --`.
    pub fn own_program(&self) -> Result<PathBuf> {
        own_program(&self.state)
    }

    /// The API server's audit log: one JSON object for each answered request.
    pub fn audit_log(&self) -> PathBuf {
        self.state.join(AUDIT_LOG)
    }

    /// The administrator's kubeconfig; it works inside the namespaces.
    pub fn kubeconfig(&self) -> PathBuf {
        pki::admin_kubeconfig(&self.state.join("pki"))
    }
}

/// The arguments of `ctr` before the archive.
const IMPORT: [&str; 4] = ["--namespace", "k8s.io", "images", "import"];

/// Builds what is missing and brings the cluster up; a cluster of other versions, or one that died, is replaced.
pub fn up() -> Result<Cluster> {
    crate::packages::require_root("the cluster")?;
    let _lock = places::lock("cluster")?;
    for tool in tools::CLUSTER {
        tool.ensure()?;
    }
    node_image()?;
    let state = state()?;
    let wanted = identity()?;
    if let Some(cluster) = Cluster::running()? {
        if std::fs::read_to_string(state.join("identity")).is_ok_and(|running| running == wanted) {
            progress::note("the cluster is up");
            return Ok(cluster);
        }
        progress::note("the cluster that is up was made by another version: it is replaced");
    }
    remove(&state)?;
    progress::step("bring the cluster up", || {
        let started = bring_up(&state).and_then(|()| places::write(&state.join("identity"), wanted));
        if started.is_err() {
            // Processes, mounts and cgroups go; the logs stay for the reader, whatever removes the state later.
            progress::note("stopping what was started; the logs stay");
            stop(&state)?;
            keep_logs(&state)?;
        }
        started
    })?;
    Cluster::attach()
}

/// Takes the cluster down, or what is left of one that died.
pub fn down() -> Result<()> {
    let _lock = places::lock("cluster")?;
    let state = state()?;
    if !state.exists() {
        progress::note("the cluster is down");
        return Ok(());
    }
    progress::step("take the cluster down", || remove(&state))
}

fn bring_up(state: &Path) -> Result<()> {
    places::create_dir(&state.join("log"))?;
    pki::create(&state.join("pki"))?;
    config::write(state)?;
    host::create_mount_points(state)?;
    host::create_cgroups()?;
    let supervisor = Supervisor::start(state)?;
    await_started(state, supervisor)?;
    let first_process = supervisor
        .first_process()
        .ok_or_else(|| Error::missing("the cluster's first process has ended", READ_LOGS))?;
    let cluster = Cluster { state: state.to_owned(), first_process };
    progress::note("waiting for the node");
    let kubectl = cluster.kubectl();
    kubectl.wait_for_condition("node", NODE, "Ready", Duration::from_mins(2))?;
    progress::note("starting DNS and dynamic volumes");
    kubectl.apply(&with_image(COREDNS))?;
    kubectl.apply(&with_image(LOCAL_PATH))?;
    kubectl.wait_for_rollout("kube-system", "deployment/coredns", Duration::from_mins(2))?;
    kubectl.wait_for_rollout(
        "local-path-storage",
        "deployment/local-path-provisioner",
        Duration::from_mins(2),
    )?;
    Phase::Ready.write(state)
}

/// Follows what the first process reports until it is done.
fn await_started(state: &Path, supervisor: Supervisor) -> Result<()> {
    let mut last = String::new();
    wait::until("the start of the cluster", Duration::from_mins(5), READ_LOGS, || match Phase::read(state) {
        Some(Phase::Started | Phase::Ready) => Ok(wait::Look::Done(())),
        Some(Phase::Failed(why)) => Err(Error::missing(why, READ_LOGS)),
        _ if supervisor.first_process().is_none() => {
            let log = places::read(&state.join("log/init.log")).unwrap_or_default();
            Err(Error::missing(format!("the cluster's first process ended: {}", log.trim()), READ_LOGS))
        }
        phase => {
            if let Some(Phase::Starting(what)) = phase
                && what != last
            {
                progress::note(&what);
                last = what;
            }
            Ok(wait::Look::NotYet(last.clone()))
        }
    })
}

/// Ends every process and removes what the host had to have.
fn stop(state: &Path) -> Result<()> {
    if let Some(supervisor) = Supervisor::find(state)? {
        supervisor.end()?;
    }
    host::remove_cgroups()?;
    host::remove_mount_points(state)
}

/// Moves the logs out of the state, in place of those of an earlier failure.
fn keep_logs(state: &Path) -> Result<()> {
    let kept = places::cache()?.join("failed-cluster-log");
    if kept.exists() {
        std::fs::remove_dir_all(&kept).map_err(Error::file("remove", &kept))?;
    }
    std::fs::rename(state.join("log"), &kept).map_err(Error::file("rename into", &kept))
}

/// A copy of the running program that stays: cargo may replace the original while this runs.
fn own_program(state: &Path) -> Result<PathBuf> {
    let copy = state.join("xtask");
    let partial = state.join("xtask.partial");
    std::fs::copy("/proc/self/exe", &partial).map_err(Error::file("copy", "/proc/self/exe"))?;
    std::fs::rename(&partial, &copy).map_err(Error::file("rename into", &copy))?;
    Ok(copy)
}

/// [`stop`], and the state too.
fn remove(state: &Path) -> Result<()> {
    if !state.exists() {
        return Ok(());
    }
    stop(state)?;
    host::refuse_mounts_below(state)?;
    std::fs::remove_dir_all(state).map_err(Error::file("remove", state))
}

/// Everything of the running cluster; gone after [`down`].
fn state() -> Result<PathBuf> {
    Ok(places::cache()?.join("cluster"))
}

/// Names what a cluster is made of: programs, manifests, this program's version and the place it runs in.
fn identity() -> Result<String> {
    let tools: Result<Vec<String>> = tools::CLUSTER.iter().map(|tool| tool.identity()).collect();
    let manifests = xxhash_rust::xxh3::xxh3_64((COREDNS.to_owned() + LOCAL_PATH).as_bytes());
    Ok(format!("{} {} {manifests:016x} {}", places::VERSION, cgroup::parent()?, tools?.join(" ")))
}

fn with_image(manifest: &str) -> String {
    manifest.replace("@IMAGE@", NODE_IMAGE).replace("@DNS_IP@", addresses::DNS_IP)
}

/// `nsenter` forks into the process namespace: without `--pdeathsig` the program would outlive its caller, and without
/// `--wdns` relative paths would break.
fn inside(state: &Path, first_process: i32, program: &OsStr) -> Result<Command> {
    let here = std::env::current_dir().map_err(Error::file("find", "the current folder"))?;
    let mut command = Command::new("nsenter");
    command.arg("--target").arg(first_process.to_string());
    command.args(["--net", "--mount", "--pid", "--uts", "--ipc"]);
    command.arg(format!("--wdns={}", here.display())).args(["--", "setpriv", "--pdeathsig", "TERM"]);
    command.arg(program);
    command.env("PATH", path_with_tools()?);
    command.env("KUBECONFIG", pki::admin_kubeconfig(&state.join("pki")));
    command.env(STATE_VARIABLE, state);
    Ok(command)
}

/// The programs of the cluster, before the machine's.
fn path_with_tools() -> Result<OsString> {
    let mut path: Vec<PathBuf> = Vec::new();
    for tool in tools::CLUSTER {
        path.push(tool.dir()?);
    }
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    path.extend(["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from));
    std::env::join_paths(path)
        .map_err(|error| Error::missing(error.to_string(), "use a cache path without colons"))
}

/// How far the cluster has come, kept in a file: the first process and `up` do not share more than the state folder.
#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// The first process is at it; the text says at what.
    Starting(String),
    /// All daemons run; `up` goes on.
    Started,
    /// The first process could not start a daemon.
    Failed(String),
    /// Pods run, names resolve, claims are bound.
    Ready,
}

impl Phase {
    fn write(&self, state: &Path) -> Result<()> {
        let text = match self {
            Self::Starting(what) => format!("starting\n{what}"),
            Self::Started => "started\n".to_owned(),
            Self::Failed(why) => format!("failed\n{why}"),
            Self::Ready => "ready\n".to_owned(),
        };
        places::write(&state.join("phase"), text)
    }

    fn read(state: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(state.join("phase")).ok()?;
        let (word, detail) = text.split_once('\n')?;
        match word {
            "starting" => Some(Self::Starting(detail.to_owned())),
            "started" => Some(Self::Started),
            "failed" => Some(Self::Failed(detail.to_owned())),
            "ready" => Some(Self::Ready),
            _ => None,
        }
    }
}
