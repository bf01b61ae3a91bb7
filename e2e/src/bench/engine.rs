//! The engines that are measured: how each is started, in a control group of its own, and what it uses.
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::cgroup::Cgroup;
use super::wire::Connection;

/// How to start an engine. `{port}` and `{dir}` in the arguments are replaced.
#[derive(Debug, Clone)]
pub struct Engine {
    /// Column heading.
    pub name: &'static str,
    /// The binary.
    pub binary: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Extra environment.
    pub environment: Vec<(String, String)>,
}

/// A started engine; killed when dropped.
pub struct Running {
    child: Child,
    cgroup: Arc<Cgroup>,
    /// Where its HTTP API listens.
    pub address: SocketAddr,
    /// Its data directory.
    pub dir: PathBuf,
}

impl Engine {
    /// Starts the engine on an empty data directory and waits until it says it is ready.
    pub fn start(&self, work: &Path, port: u16, memory_limit: u64) -> io::Result<Running> {
        let dir = work.join(self.name);
        fs::create_dir_all(&dir)?;
        let config = work.join("empty.yml");
        fs::write(&config, "global: {}\nscrape_configs: []\n")?;
        let cgroup = Cgroup::create(&format!("metricsstore-bench-{}", std::process::id()), memory_limit)?;
        let log = fs::File::create(work.join(format!("{}.log", self.name)))?;
        let fill = |text: &str| {
            text.replace("{port}", &port.to_string())
                .replace("{dir}", &dir.display().to_string())
                .replace("{config}", &config.display().to_string())
        };
        // The shell joins the group first and then becomes the engine, so nothing of it escapes the count.
        let mut join = String::new();
        for file in cgroup.procs() {
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
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut running = Running { child, cgroup: Arc::new(cgroup), address, dir };
        running.wait_ready()?;
        Ok(running)
    }
}

impl Running {
    fn wait_ready(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!(
                    "the engine ended at its start with {status}; see its log"
                )));
            }
            let ready = Connection::open(self.address).and_then(|mut connection| connection.get("/-/ready"));
            if ready.is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the engine was not ready within 60 s"));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Resident memory now, in bytes.
    pub fn rss(&self) -> u64 {
        rss_of(self.child.id())
    }

    /// CPU time so far.
    pub fn cpu(&self) -> Duration {
        self.cgroup.cpu()
    }

    /// Highest usage of the control group so far, page cache included, in bytes.
    pub fn peak(&self) -> u64 {
        self.cgroup.peak()
    }

    /// Bytes of all files below the data directory.
    pub fn disk_bytes(&self) -> u64 {
        directory_bytes(&self.dir)
    }

    /// Samples memory until stopped.
    pub fn watch(&self) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, cgroup, pid) = (stop.clone(), self.cgroup.clone(), self.child.id());
        let thread = thread::spawn(move || {
            let mut seen = MemorySeen::default();
            while !flag.load(Ordering::Relaxed) {
                let rss = rss_of(pid);
                seen.rss_max = seen.rss_max.max(rss);
                seen.rss_sum += u128::from(rss);
                seen.working_set_max = seen.working_set_max.max(cgroup.working_set());
                seen.samples += 1;
                thread::sleep(Duration::from_millis(100));
            }
            seen
        });
        Watch { stop, thread }
    }

    /// Asks the engine to stop (SIGTERM) and waits up to half a minute; returns the control group's peak.
    pub fn stop(mut self) -> io::Result<()> {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.child.try_wait()?.is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
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

/// What [`Running::watch`] saw.
#[derive(Debug, Default, Clone, Copy)]
pub struct MemorySeen {
    /// Highest resident memory, in bytes.
    pub rss_max: u64,
    rss_sum: u128,
    /// Highest working set, in bytes.
    pub working_set_max: u64,
    samples: u64,
}

impl MemorySeen {
    /// Mean resident memory, in bytes.
    pub fn rss_mean(&self) -> u64 {
        (self.rss_sum / u128::from(self.samples.max(1))) as u64
    }
}

/// A running watch.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<MemorySeen>,
}

impl Watch {
    /// Ends the watch.
    pub fn stop(self) -> MemorySeen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn rss_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
    kib.unwrap_or(0u64) * 1024
}

fn directory_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => directory_bytes(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}
