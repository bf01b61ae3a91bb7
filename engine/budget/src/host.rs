//! What this process may use of the machine it runs on, read live: memory limit and use of its control group, the
//! machine's memory, and CPUs. Works on cgroup v1, v2 and both mounted together.
//!
//! The limit in force is the tightest on the path from the process' own group to the highest one that is visible. What
//! counts as used is what the kernel cannot take back without killing: anonymous and kernel memory, socket buffers, and
//! pages that wait to be written. The total that the kernel charges is never used: page cache always fills the limit.
mod group;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use group::{Group, Version};

/// Largest file of `/proc` or `/sys` that is read, in bytes: a node's mount table may be long.
const READ_LIMIT: u64 = 4 << 20;
/// v1 shows "no limit" as the largest multiple of a page; no machine has as much as this.
const UNLIMITED: u64 = 1 << 60;

/// Bytes that count against the memory budget, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Heap, stacks and other memory without a file behind it.
    pub anonymous: u64,
    /// Kernel memory that it cannot take back by itself.
    pub kernel: u64,
    /// Buffers of sockets.
    pub sockets: u64,
    /// File pages that wait to be written, or are being written.
    pub dirty: u64,
}

impl MemoryUse {
    /// All of it.
    pub fn total(&self) -> u64 {
        [self.anonymous, self.kernel, self.sockets, self.dirty].into_iter().fold(0, u64::saturating_add)
    }
}

/// The machine as this process sees it. Every method reads anew.
#[derive(Debug, Clone)]
pub struct Host {
    root: PathBuf,
    memory: Option<Group>,
    cpu: Option<Group>,
}

impl Host {
    /// Finds the control groups of this process.
    pub fn discover() -> Host {
        Host::discover_under(Path::new("/"))
    }

    /// The same with `proc` and `sys` below another directory, for tests.
    pub fn discover_under(root: &Path) -> Host {
        let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
        let mounts = read(&root.join("proc/self/mountinfo")).unwrap_or_default();
        let find = |controller| Group::find(root, &groups, &mounts, controller);
        Host { root: root.to_owned(), memory: find("memory"), cpu: find("cpu") }
    }

    /// The memory limit in force, in bytes; `None` without one.
    pub fn memory_limit(&self) -> Option<u64> {
        let group = self.memory.as_ref()?;
        let own = |dir: &Path| match group.version {
            Version::One => tightest([
                number(&dir.join("memory.limit_in_bytes")),
                // Knows of limits above what is mounted here.
                read(&dir.join("memory.stat")).and_then(|stat| field(&stat, "hierarchical_memory_limit")),
            ]),
            Version::Two => number(&dir.join("memory.max")),
        };
        tightest(group.path_to_top().map(own)).filter(|&bytes| bytes < UNLIMITED)
    }

    /// What counts against the budget: of the control group when it has a limit (everything in it shares that limit),
    /// else of this process. `None` when the system does not tell.
    pub fn memory_use(&self) -> Option<MemoryUse> {
        match &self.memory {
            Some(group) if self.memory_limit().is_some() => group_use(group),
            _ => None,
        }
        .or_else(|| self.process_use())
    }

    fn process_use(&self) -> Option<MemoryUse> {
        let status = read(&self.root.join("proc/self/status"))?;
        Some(MemoryUse { anonymous: kibibytes(&status, "RssAnon:")?, ..MemoryUse::default() })
    }

    /// Memory of the machine in bytes; 0 when the system does not tell.
    pub fn machine_memory(&self) -> u64 {
        read(&self.root.join("proc/meminfo")).and_then(|text| kibibytes(&text, "MemTotal:")).unwrap_or(0)
    }

    /// CPUs that this process may run on, at least 1.
    pub fn machine_cpus(&self) -> u32 {
        read(&self.root.join("proc/self/status"))
            .and_then(|status| line(&status, "Cpus_allowed_list:").map(count_list))
            .unwrap_or(1)
            .max(1)
    }

    /// The CPU time that the control group may take, in thousandths of a CPU; `None` without a quota.
    pub fn cpu_quota_millis(&self) -> Option<u64> {
        let group = self.cpu.as_ref()?;
        let own = |dir: &Path| {
            let (quota, period) = match group.version {
                Version::One => {
                    (number(&dir.join("cpu.cfs_quota_us"))?, number(&dir.join("cpu.cfs_period_us"))?)
                }
                Version::Two => {
                    let text = read(&dir.join("cpu.max"))?;
                    let (quota, period) = text.trim().split_once(' ')?;
                    (quota.parse().ok()?, period.parse().ok()?)
                }
            };
            quota.checked_mul(1000)?.checked_div(period)
        };
        tightest(group.path_to_top().map(own))
    }
}

fn group_use(group: &Group) -> Option<MemoryUse> {
    let dir = group.path_to_top().next()?;
    let stat = read(&dir.join("memory.stat"))?;
    let of = |name: &str| field(&stat, name).unwrap_or(0);
    match group.version {
        Version::One => {
            let with_children =
                |name: &str| field(&stat, &format!("total_{name}")).unwrap_or_else(|| of(name));
            Some(MemoryUse {
                anonymous: with_children("rss"),
                kernel: number(&dir.join("memory.kmem.usage_in_bytes")).unwrap_or(0),
                sockets: number(&dir.join("memory.kmem.tcp.usage_in_bytes")).unwrap_or(0),
                dirty: with_children("dirty") + with_children("writeback"),
            })
        }
        Version::Two => {
            // Kernels before 5.18 tell the parts only.
            let kernel =
                field(&stat, "kernel").unwrap_or_else(|| of("kernel_stack") + of("pagetables") + of("slab"));
            Some(MemoryUse {
                anonymous: field(&stat, "anon")?,
                // Caches of names and inodes are taken back like page cache.
                kernel: kernel.saturating_sub(of("slab_reclaimable")),
                sockets: of("sock"),
                dirty: of("file_dirty") + of("file_writeback"),
            })
        }
    }
}

/// The whole file, if it can be read and is text.
fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(READ_LIMIT).read_to_string(&mut text).ok()?;
    Some(text)
}

/// A file that holds one number; `None` also for `max` and −1.
fn number(path: &Path) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

fn tightest(limits: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    limits.into_iter().flatten().min()
}

/// What follows `name` on its line.
fn line<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// The number behind a name and a space.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    line(text, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The length of a list such as `0-3,8`.
fn count_list(list: &str) -> u32 {
    let length = |range: &str| -> Option<u32> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.trim().parse::<u32>().ok()?.checked_sub(first.trim().parse().ok()?)?.checked_add(1)
    };
    list.split(',').filter_map(length).fold(0, u32::saturating_add)
}
