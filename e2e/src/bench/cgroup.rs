//! A control group for one engine: the same memory limit for each, and the kernel's own figures. Version 1 and 2.
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The group; removed when dropped (its processes must have ended).
pub struct Cgroup {
    memory: PathBuf,
    cpu: PathBuf,
    v2: bool,
}

impl Cgroup {
    /// Makes a group with a memory limit in bytes.
    pub fn create(name: &str, memory_limit: u64) -> io::Result<Cgroup> {
        let root = Path::new("/sys/fs/cgroup");
        let v2 = root.join("cgroup.controllers").exists();
        let group = if v2 {
            let dir = root.join(name);
            Cgroup { memory: dir.clone(), cpu: dir, v2 }
        } else {
            Cgroup { memory: root.join("memory").join(name), cpu: root.join("cpuacct").join(name), v2 }
        };
        for dir in [&group.memory, &group.cpu] {
            fs::create_dir_all(dir)?;
        }
        let limit_file = if v2 { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(group.memory.join(limit_file), memory_limit.to_string())?;
        Ok(group)
    }

    /// The `cgroup.procs` files a process writes itself into.
    pub fn procs(&self) -> Vec<PathBuf> {
        let mut files = vec![self.memory.join("cgroup.procs")];
        if self.cpu != self.memory {
            files.push(self.cpu.join("cgroup.procs"));
        }
        files
    }

    fn number(&self, file: &str) -> u64 {
        fs::read_to_string(self.memory.join(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn stat(&self, key: &str) -> u64 {
        let text = fs::read_to_string(self.memory.join("memory.stat")).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or(0)
    }

    /// Usage less the page cache that is not in active use, as Kubernetes counts it, in bytes.
    pub fn working_set(&self) -> u64 {
        let (usage, inactive) = if self.v2 {
            (self.number("memory.current"), self.stat("inactive_file"))
        } else {
            (self.number("memory.usage_in_bytes"), self.stat("total_inactive_file"))
        };
        usage.saturating_sub(inactive)
    }

    /// Highest usage so far, page cache included, in bytes.
    pub fn peak(&self) -> u64 {
        self.number(if self.v2 { "memory.peak" } else { "memory.max_usage_in_bytes" })
    }

    /// Processes that the kernel killed for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.memory.join(file)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
    }

    /// How often usage, page cache included, reached the limit, so that the kernel had to reclaim.
    pub fn limit_hits(&self) -> u64 {
        if !self.v2 {
            return self.number("memory.failcnt");
        }
        let text = fs::read_to_string(self.memory.join("memory.events")).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("max ")?.parse().ok()).unwrap_or(0)
    }

    /// CPU time used so far, user and system.
    pub fn cpu(&self) -> Duration {
        if self.v2 {
            let text = fs::read_to_string(self.cpu.join("cpu.stat")).unwrap_or_default();
            let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
            return Duration::from_micros(micros.unwrap_or(0));
        }
        let nanos =
            fs::read_to_string(self.cpu.join("cpuacct.usage")).ok().and_then(|text| text.trim().parse().ok());
        Duration::from_nanos(nanos.unwrap_or(0))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel needs a moment after the last process of the group was reaped.
        for dir in [&self.memory, &self.cpu] {
            for _ in 0..50 {
                if !dir.exists() || fs::remove_dir(dir).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
