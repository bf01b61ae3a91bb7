//! Limits and usage of the control group that the process lives in, versions 1 and 2. Read anew each time: limits
//! change while a process runs.
use std::fs;
use std::path::{Path, PathBuf};

use metricsstore_contract::Quantity;

/// Limits from here on mean "none" (version 1 reports a number beyond any machine).
const UNLIMITED: u64 = 1 << 60;

/// Where the control groups of this process are found.
#[derive(Debug, Clone)]
pub struct Cgroup {
    /// Directories to look for memory files in, innermost first.
    memory: Vec<PathBuf>,
    /// Likewise for CPU files.
    cpu: Vec<PathBuf>,
    is_v2: bool,
}

impl Cgroup {
    /// The groups of this process.
    pub fn of_self() -> Cgroup {
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Cgroup::locate(Path::new("/sys/fs/cgroup"), &membership)
    }

    fn locate(root: &Path, membership: &str) -> Cgroup {
        let is_v2 = root.join("cgroup.controllers").exists();
        let path_of = |controller: &str| {
            membership.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':');
                let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
                let mine = if is_v2 {
                    controllers.is_empty()
                } else {
                    controllers.split(',').any(|name| name == controller)
                };
                mine.then(|| path.trim_start_matches('/').to_owned())
            })
        };
        let dirs = |controller: &str| {
            let base = if is_v2 { root.to_owned() } else { root.join(controller) };
            let inside = path_of(controller).unwrap_or_default();
            // In a container the path may be the host's, and only the mount's root exists.
            let own = base.join(inside);
            own.ancestors().take_while(|dir| dir.starts_with(&base)).map(Path::to_owned).collect()
        };
        Cgroup { memory: dirs("memory"), cpu: dirs("cpu"), is_v2 }
    }

    /// The tightest memory limit of the group and those around it.
    pub fn memory_limit(&self) -> Option<u64> {
        let name = if self.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        self.memory.iter().filter_map(|dir| number(&dir.join(name))).filter(|limit| *limit < UNLIMITED).min()
    }

    /// Memory that cannot be reclaimed at will: anonymous, kernel, sockets, shared, and pages waiting for the disk.
    /// Never total usage, as the page cache always fills the limit.
    pub fn memory_used(&self) -> Option<u64> {
        let stat = self.memory.iter().find_map(|dir| fs::read_to_string(dir.join("memory.stat")).ok())?;
        let of = |key: &str| {
            stat.lines()
                .filter_map(|line| line.split_once(' '))
                .find(|(name, _)| *name == key)
                .and_then(|(_, value)| value.trim().parse::<u64>().ok())
        };
        let sum = |keys: &[&str]| keys.iter().filter_map(|key| of(key)).sum::<u64>();
        if self.is_v2 {
            let pages = sum(&["anon", "shmem", "sock", "file_dirty", "file_writeback"]);
            let kernel =
                of("kernel").unwrap_or_else(|| sum(&["kernel_stack", "pagetables", "slab", "percpu"]));
            return Some(pages + kernel.saturating_sub(of("slab_reclaimable").unwrap_or(0)));
        }
        let pages = sum(&["total_rss", "total_shmem", "total_dirty", "total_writeback"]);
        let kernel = self.memory.iter().find_map(|dir| number(&dir.join("memory.kmem.usage_in_bytes")));
        Some(pages + kernel.unwrap_or(0))
    }

    /// The tightest CPU limit.
    pub fn cpu_limit(&self) -> Option<Quantity> {
        let limits = self.cpu.iter().filter_map(|dir| {
            let (quota, period) = if self.is_v2 {
                let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?)
            } else {
                (number(&dir.join("cpu.cfs_quota_us"))?, number(&dir.join("cpu.cfs_period_us"))?)
            };
            quota.saturating_mul(1000).checked_div(period)
        });
        let millis = limits.filter(|millis| *millis > 0).min()?;
        Quantity::parse(&format!("{millis}m")).ok()
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Memory of the machine in bytes.
pub fn machine_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kibibytes(&text, "MemTotal:").unwrap_or(1 << 30)
}

/// Anonymous memory of this process in bytes: what counts where no group limits it.
pub fn own_anonymous_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    kibibytes(&text, "RssAnon:").unwrap_or(0)
}

fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let number: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(number * 1024)
}

#[cfg(test)]
mod tests {
    use super::Cgroup;
    use std::fs;

    #[test]
    fn the_tightest_limit_on_the_way_up_holds_and_reclaimable_memory_does_not_count() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("pods/main");
        fs::create_dir_all(&inner).unwrap();
        fs::write(root.path().join("cgroup.controllers"), "memory cpu").unwrap();
        fs::write(root.path().join("pods/memory.max"), "1000\n").unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        fs::write(inner.join("cpu.max"), "150000 100000\n").unwrap();
        let stat = "anon 100\nfile 5000\nkernel 30\nslab_reclaimable 10\nsock 1\nshmem 2\nfile_dirty 3\nfile_writeback 4\n";
        fs::write(inner.join("memory.stat"), stat).unwrap();
        let group = Cgroup::locate(root.path(), "0::/pods/main\n");
        assert_eq!(group.memory_limit(), Some(1000));
        assert_eq!(group.memory_used(), Some(130));
        assert_eq!(group.cpu_limit().unwrap().ceil_units(), 2);
    }

    #[test]
    fn version_one_without_a_limit_has_none_and_a_host_path_falls_back_to_the_mount() {
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("memory");
        fs::create_dir_all(&memory).unwrap();
        fs::write(memory.join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        fs::write(memory.join("memory.stat"), "cache 9\ntotal_rss 7\ntotal_dirty 1\n").unwrap();
        fs::write(memory.join("memory.kmem.usage_in_bytes"), "2\n").unwrap();
        let group = Cgroup::locate(root.path(), "4:memory:/kubepods/x\n3:cpu,cpuacct:/kubepods/x\n");
        assert_eq!((group.memory_limit(), group.memory_used()), (None, Some(10)));
        assert!(group.cpu_limit().is_none());
    }
}
