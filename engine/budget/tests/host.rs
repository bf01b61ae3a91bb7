//! Control groups as kernels and container runtimes show them.
#![allow(clippy::unwrap_used)]

use std::fs;

use metricsstore_budget::{Host, MemoryUse};
use metricsstore_contract::{BudgetPolicy, budget_bytes};

const MI: u64 = 1 << 20;
const UNLIMITED_V1: &str = "9223372036854771712";
const MOUNT_V2: &str =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate";

/// What the default policy gives on this host.
fn budget(host: &Host) -> u64 {
    budget_bytes(BudgetPolicy::default(), host.memory_limit(), host.machine_memory())
}

/// Files below a directory of their own.
struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new(files: &[(&str, &str)]) -> Fixture {
        let fixture = Fixture(tempfile::tempdir().unwrap());
        for (path, text) in files {
            fixture.write(path, text);
        }
        fixture
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn host(&self) -> Host {
        Host::discover_under(self.0.path())
    }
}

#[test]
fn a_v2_container_sees_its_limit_use_and_quota() {
    let fixture = Fixture::new(&[
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/mountinfo", MOUNT_V2),
        ("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,6-7\n"),
        ("sys/fs/cgroup/memory.max", "1073741824\n"),
        ("sys/fs/cgroup/memory.current", "1073700000\n"),
        (
            "sys/fs/cgroup/memory.stat",
            "anon 1000\nfile 999999\nkernel 500\nkernel_stack 10\nsock 30\nshmem 0\nfile_mapped 7\nfile_dirty 40\n\
             file_writeback 2\nslab_reclaimable 300\nslab_unreclaimable 50\nslab 350\n",
        ),
        ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
    ]);
    let host = fixture.host();
    assert_eq!(host.memory_limit(), Some(1 << 30));
    let used = host.memory_use().unwrap();
    assert_eq!(used, MemoryUse { anonymous: 1000, kernel: 200, sockets: 30, dirty: 42 });
    assert_eq!(used.total(), 1272);
    assert_eq!((host.cpu_quota_millis(), host.machine_cpus()), (Some(1500), 6));
    assert_eq!(budget(&host), 966_367_641);
}

#[test]
fn the_limit_is_read_anew_each_time() {
    let fixture = Fixture::new(&[
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/mountinfo", MOUNT_V2),
        ("sys/fs/cgroup/memory.max", "max\n"),
    ]);
    let host = fixture.host();
    assert_eq!(host.memory_limit(), None);
    fixture.write("sys/fs/cgroup/memory.max", "536870912\n");
    assert_eq!(host.memory_limit(), Some(512 * MI));
}

#[test]
fn the_tightest_limit_on_the_way_up_is_in_force() {
    let fixture = Fixture::new(&[
        ("proc/self/cgroup", "0::/kubepods.slice/pod1/engine\n"),
        ("proc/self/mountinfo", MOUNT_V2),
        ("sys/fs/cgroup/kubepods.slice/memory.max", "8589934592\n"),
        ("sys/fs/cgroup/kubepods.slice/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/kubepods.slice/pod1/memory.max", "268435456\n"),
        ("sys/fs/cgroup/kubepods.slice/pod1/cpu.max", "50000 100000\n"),
        ("sys/fs/cgroup/kubepods.slice/pod1/engine/memory.max", "max\n"),
        ("sys/fs/cgroup/kubepods.slice/pod1/engine/memory.stat", "anon 5\n"),
        ("sys/fs/cgroup/kubepods.slice/pod1/engine/cpu.max", "200000 100000\n"),
    ]);
    let host = fixture.host();
    assert_eq!(host.memory_limit(), Some(256 * MI));
    assert_eq!(host.memory_use().map(|used| used.total()), Some(5));
    assert_eq!(host.cpu_quota_millis(), Some(500));
}

#[test]
fn an_old_v2_kernel_tells_its_memory_in_parts() {
    let fixture = Fixture::new(&[
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/mountinfo", MOUNT_V2),
        ("sys/fs/cgroup/memory.max", "1048576\n"),
        (
            "sys/fs/cgroup/memory.stat",
            "anon 100\nkernel_stack 10\npagetables 3\nslab 20\nslab_reclaimable 15\nsock 1\n",
        ),
    ]);
    assert_eq!(fixture.host().memory_use().map(|used| used.kernel), Some(18));
}

fn v1(limit: &str, hierarchical: &str) -> Fixture {
    let group = "sys/fs/cgroup/memory";
    let stat = format!(
        "cache 900000\nrss 11\ndirty 1\nwriteback 0\nhierarchical_memory_limit {hierarchical}\ntotal_cache 900000\n\
         total_rss 1000\ntotal_dirty 40\ntotal_writeback 2\n"
    );
    let path = "/kubepods/burstable/pod1/abc";
    let mount = format!("35 31 0:32 {path} /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n");
    let cpu =
        format!("36 31 0:33 {path} /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct\n");
    Fixture::new(&[
        (
            "proc/self/cgroup",
            &format!("11:cpuset:/\n4:memory:{path}\n3:cpu,cpuacct:{path}\n1:name=systemd:{path}\n"),
        ),
        ("proc/self/mountinfo", &format!("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mount}{cpu}")),
        ("proc/self/status", "RssAnon:\t    77 kB\nCpus_allowed_list:\t0-1\n"),
        ("proc/meminfo", "MemTotal:       1048576 kB\nMemFree: 1 kB\n"),
        (&format!("{group}/memory.limit_in_bytes"), limit),
        (&format!("{group}/memory.stat"), &stat),
        (&format!("{group}/memory.kmem.usage_in_bytes"), "200\n"),
        (&format!("{group}/memory.kmem.tcp.usage_in_bytes"), "30\n"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
    ])
}

#[test]
fn a_v1_container_sees_its_limit_and_what_its_children_use() {
    let fixture = v1("134217728\n", "134217728");
    let host = fixture.host();
    assert_eq!(host.memory_limit(), Some(128 * MI));
    let used = host.memory_use();
    assert_eq!(used, Some(MemoryUse { anonymous: 1000, kernel: 200, sockets: 30, dirty: 42 }));
    assert_eq!(budget(&host), 96 * MI);
    assert_eq!(host.cpu_quota_millis(), None);
}

#[test]
fn a_v1_limit_above_what_is_mounted_counts_too() {
    assert_eq!(v1(UNLIMITED_V1, "67108864").host().memory_limit(), Some(64 * MI));
}

#[test]
fn without_a_limit_the_process_itself_and_the_machine_count() {
    let fixture = v1(UNLIMITED_V1, UNLIMITED_V1);
    let host = fixture.host();
    assert_eq!(host.memory_limit(), None);
    assert_eq!(host.memory_use().map(|used| used.total()), Some(77 * 1024));
    assert_eq!(host.machine_memory(), 1 << 30);
    assert_eq!(budget(&host), (1_u64 << 30) * 60 / 100);
}

#[test]
fn with_both_versions_mounted_each_controller_is_read_where_it_is() {
    let fixture = Fixture::new(&[
        ("proc/self/cgroup", "4:memory:/outer/inner\n1:cpu:/\n0::/outer\n"),
        (
            "proc/self/mountinfo",
            "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
             35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
        ),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", UNLIMITED_V1),
        ("sys/fs/cgroup/memory/outer/memory.limit_in_bytes", "33554432"),
        ("sys/fs/cgroup/memory/outer/inner/memory.limit_in_bytes", UNLIMITED_V1),
        ("sys/fs/cgroup/unified/outer/memory.max", "1"),
        ("sys/fs/cgroup/unified/outer/cpu.max", "300000 100000"),
    ]);
    let host = fixture.host();
    assert_eq!(host.memory_limit(), Some(32 * MI));
    assert_eq!(host.cpu_quota_millis(), Some(3000));
}

#[test]
fn a_group_that_a_namespace_hides_is_read_at_the_mount() {
    let fixture = Fixture::new(&[
        ("proc/self/cgroup", "0::/../../other\n"),
        ("proc/self/mountinfo", "30 23 0:26 /pod/engine /sys/fs/my\\040cgroup rw - cgroup2 cgroup2 rw\n"),
        ("sys/fs/my cgroup/memory.max", "65536\n"),
    ]);
    assert_eq!(fixture.host().memory_limit(), Some(65_536));
}

#[test]
fn a_machine_that_tells_nothing_gives_no_limit_and_one_cpu() {
    let fixture = Fixture::new(&[]);
    let host = fixture.host();
    assert_eq!((host.memory_limit(), host.memory_use(), host.cpu_quota_millis()), (None, None, None));
    assert_eq!((host.machine_memory(), host.machine_cpus()), (0, 1));
}

#[test]
fn this_machine_tells_its_memory_cpus_and_use() {
    let host = Host::discover();
    assert!(host.machine_memory() > 64 * MI);
    assert!(host.machine_cpus() >= 1);
    assert!(host.memory_use().is_some_and(|used| used.anonymous > 0));
}
