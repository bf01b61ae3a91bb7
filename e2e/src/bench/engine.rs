//! The engines that are measured: how each is started, in a control group of its own, and what it uses.
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::cgroup::Cgroup;
use super::watch::{Watch, directory_bytes, directory_parts};
use super::wire::Connection;

/// How long an engine may take to become ready or to stop.
const PATIENCE: Duration = Duration::from_mins(2);

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Ours.
    Metricsstore,
    /// Prometheus.
    Prometheus,
    /// VictoriaMetrics, single-node.
    VictoriaMetrics,
}

impl Kind {
    /// Column heading and name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Metricsstore => "metricsstore",
            Kind::Prometheus => "prometheus",
            Kind::VictoriaMetrics => "victoriametrics",
        }
    }
}

/// How to start an engine.
#[derive(Debug, Clone)]
pub struct Engine {
    /// Which one.
    pub kind: Kind,
    /// The binary.
    pub binary: PathBuf,
    /// Its arguments; `{port}`, `{dir}` and `{config}` are replaced.
    pub arguments: Vec<String>,
    /// Extra environment.
    pub environment: Vec<(String, String)>,
}

/// Where an engine runs, for as long as its data are wanted: it may be killed and started again.
pub struct Site {
    cgroup: Arc<Cgroup>,
    work: PathBuf,
    /// The engine's data directory.
    pub dir: PathBuf,
    /// Where its HTTP API listens.
    pub address: SocketAddr,
}

/// A started engine; killed when dropped.
pub struct Running {
    child: Child,
    cgroup: Arc<Cgroup>,
}

impl Engine {
    /// Our engine.
    pub fn metricsstore(binary: PathBuf, cpus: usize) -> Engine {
        let mut arguments = vec!["serve".to_owned()];
        arguments.extend(prometheus_flags());
        arguments.push(format!("--cpu.threads={cpus}"));
        arguments.push("--ops.listen-address=127.0.0.1:0".to_owned());
        Engine { kind: Kind::Metricsstore, binary, arguments, environment: Vec::new() }
    }

    /// Prometheus, with the memory limit that its automatic setting would choose said openly.
    pub fn prometheus(binary: PathBuf, cpus: usize, memory_limit: u64) -> Engine {
        let environment = vec![
            ("GOMAXPROCS".to_owned(), cpus.to_string()),
            ("GOMEMLIMIT".to_owned(), format!("{}MiB", (memory_limit >> 20) * 9 / 10)),
        ];
        Engine { kind: Kind::Prometheus, binary, arguments: prometheus_flags(), environment }
    }

    /// VictoriaMetrics; sizes of caches are its defaults, which follow the control group's limit.
    pub fn victoriametrics(binary: PathBuf, cpus: usize) -> Engine {
        let flags = ["-storageDataPath={dir}", "-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=15d"];
        Engine {
            kind: Kind::VictoriaMetrics,
            binary,
            arguments: flags.map(str::to_owned).to_vec(),
            environment: vec![("GOMAXPROCS".to_owned(), cpus.to_string())],
        }
    }

    /// An empty data directory and a control group.
    pub fn site(&self, work: &Path, memory_limit: u64) -> io::Result<Site> {
        let dir = work.join(self.kind.name());
        fs::create_dir_all(&dir)?;
        fs::write(work.join("empty.yml"), "global: {}\nscrape_configs: []\n")?;
        let cgroup = Cgroup::create(&format!("metricsstore-bench-{}", std::process::id()), memory_limit)?;
        let address = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        Ok(Site { cgroup: Arc::new(cgroup), work: work.to_owned(), dir, address })
    }

    /// Starts the engine without waiting.
    pub fn spawn(&self, site: &Site) -> io::Result<Running> {
        let log = site.work.join(format!("{}.log", self.kind.name()));
        let log = fs::File::options().append(true).create(true).open(log)?;
        let fill = |text: &str| {
            text.replace("{port}", &site.address.port().to_string())
                .replace("{dir}", &site.dir.display().to_string())
                .replace("{config}", &site.work.join("empty.yml").display().to_string())
        };
        // The shell joins the group first and then becomes the engine, so nothing of it escapes the count.
        let mut join = String::new();
        for file in site.cgroup.procs() {
            join.push_str("echo $$ > ");
            join.push_str(&file.display().to_string());
            join.push_str("; ");
        }
        let child = Command::new("/bin/sh")
            .args(["-c", &format!("{join}exec \"$0\" \"$@\"")])
            .arg(&self.binary)
            .args(self.arguments.iter().map(|argument| fill(argument)))
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        Ok(Running { child, cgroup: site.cgroup.clone() })
    }

    /// Starts the engine and waits until it says it is ready.
    pub fn start(&self, site: &Site) -> io::Result<Running> {
        let mut running = self.spawn(site)?;
        let deadline = Instant::now() + PATIENCE;
        while !self.is_ready(site) {
            running.check_alive()?;
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the engine did not become ready"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(running)
    }

    /// Whether the engine says it is ready.
    pub fn is_ready(&self, site: &Site) -> bool {
        let path = if self.kind == Kind::VictoriaMetrics { "/health" } else { "/-/ready" };
        let answer = Connection::open(site.address).and_then(|mut connection| connection.get(path));
        answer.is_ok_and(|answer| answer.status == 200)
    }
}

fn prometheus_flags() -> Vec<String> {
    [
        "--config.file={config}",
        "--storage.tsdb.path={dir}",
        "--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
    ]
    .map(str::to_owned)
    .to_vec()
}

impl Site {
    /// CPU time of the engine so far.
    pub fn cpu(&self) -> Duration {
        self.cgroup.cpu()
    }

    /// Highest usage of the control group so far, page cache included, in bytes.
    pub fn peak(&self) -> u64 {
        self.cgroup.peak()
    }

    /// Bytes that the data directory takes on disk.
    pub fn disk_bytes(&self) -> u64 {
        directory_bytes(&self.dir)
    }

    /// The same for each entry of the data directory.
    pub fn disk_parts(&self) -> BTreeMap<String, u64> {
        directory_parts(&self.dir)
    }
}

impl Running {
    /// An error when the engine has ended.
    pub fn check_alive(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(io::Error::other(format!("the engine ended with {status}; see its log"))),
        }
    }

    /// Watches its memory until stopped.
    pub fn watch(&self) -> Watch {
        Watch::start(self.child.id(), self.cgroup.clone())
    }

    /// Bytes that it had written to disk so far, those that the page cache still holds included.
    pub fn written_bytes(&self) -> io::Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/io", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        line.and_then(|bytes| bytes.parse().ok())
            .ok_or_else(|| io::Error::other("/proc does not tell what was written"))
    }

    /// Ends it without a warning, as `kill -9` does.
    pub fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(mut self) -> io::Result<()> {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the engine did not stop"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
