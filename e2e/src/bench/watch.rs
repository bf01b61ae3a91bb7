//! What processes use, as the kernel counts it.
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::cgroup::Cgroup;

/// Time between two looks at an engine's memory.
const INTERVAL: Duration = Duration::from_millis(50);

/// Memory of an engine over a while.
#[derive(Debug, Default, Clone)]
pub struct MemorySeen {
    /// Resident memory at each look, in bytes.
    rss: Vec<u64>,
    /// Highest working set, in bytes.
    pub working_set_max: u64,
}

impl MemorySeen {
    /// Mean resident memory, in bytes.
    pub fn rss_mean(&self) -> f64 {
        mean(&self.rss)
    }

    /// Highest resident memory, in bytes.
    pub fn rss_max(&self) -> f64 {
        self.rss.iter().copied().max().unwrap_or(0) as f64
    }

    /// Mean resident memory over the last sixth of the time, in bytes.
    pub fn rss_at_end(&self) -> f64 {
        mean(&self.rss[self.rss.len() - self.rss.len().div_ceil(6)..])
    }
}

fn mean(values: &[u64]) -> f64 {
    values.iter().map(|&value| value as f64).sum::<f64>() / values.len().max(1) as f64
}

/// A running watch.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<MemorySeen>,
}

impl Watch {
    /// Watches a process and its control group until stopped.
    pub fn start(pid: u32, cgroup: Arc<Cgroup>) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let thread = thread::spawn(move || {
            let mut seen = MemorySeen::default();
            let mut next = Instant::now();
            while !flag.load(Ordering::Relaxed) {
                seen.rss.push(rss_of(pid));
                seen.working_set_max = seen.working_set_max.max(cgroup.working_set());
                next += INTERVAL;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            seen
        });
        Watch { stop, thread }
    }

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

/// CPU time of this process so far, user and system.
pub fn own_cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold anything; user and system time are the 12th and 13th field after it.
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace().skip(11);
    let ticks: u64 = fields.take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Bytes that all files below a directory take on disk.
pub fn directory_bytes(dir: &Path) -> u64 {
    directory_parts(dir).into_values().sum()
}

/// The same for each entry of the directory by itself; those that are named as Prometheus names blocks are one, `blocks`.
pub fn directory_parts(dir: &Path) -> BTreeMap<String, u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut parts = BTreeMap::new();
    let Ok(entries) = fs::read_dir(dir) else { return parts };
    for entry in entries.flatten() {
        let bytes = match entry.metadata() {
            Ok(meta) if meta.is_dir() => directory_bytes(&entry.path()),
            Ok(meta) => meta.blocks() * 512,
            Err(_) => 0,
        };
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_block = name.len() == 26 && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        *parts.entry(if is_block { "blocks".to_owned() } else { name }).or_default() += bytes;
    }
    parts
}
