//! The little that the cluster needs on the host itself, and its removal: mount points and parent cgroups.
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::addresses::CGROUP_PREFIX;
use super::cgroup;
use crate::{Error, Result, places, wait};

/// Standard paths of the daemons, covered inside the namespace by folders of the state.
pub const COVERED: [&str; 7] = [
    "var/lib/kubelet",
    "var/lib/containerd",
    "var/lib/cni",
    "var/log/pods",
    "var/log/containers",
    "opt/local-path-provisioner",
    "etc/cni/net.d",
];

/// Makes the mount points that do not exist and notes them for [`remove_mount_points`], before each is made.
pub fn create_mount_points(state: &Path) -> Result<()> {
    let list = made(state);
    let mut noted = String::new();
    for covered in COVERED {
        let covered = Path::new("/").join(covered);
        let mut ancestors: Vec<&Path> = covered.ancestors().filter(|path| !path.exists()).collect();
        ancestors.reverse();
        for missing in ancestors {
            noted += &missing.to_string_lossy();
            noted.push('\n');
            places::write(&list, &noted)?;
            std::fs::create_dir(missing).map_err(Error::file("create", missing))?;
        }
    }
    Ok(())
}

/// Removes the mount points that [`create_mount_points`] made, as far as nobody else put something there.
///
/// While another cluster runs they stay: removing one would detach what that cluster has mounted on it.
pub fn remove_mount_points(state: &Path) -> Result<()> {
    let others = cgroup_roots()?.iter().any(|root| {
        let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(CGROUP_PREFIX))
    });
    if others {
        return Ok(());
    }
    let noted = std::fs::read_to_string(made(state)).unwrap_or_default();
    for path in noted.lines().rev() {
        let _ = std::fs::remove_dir(path);
    }
    Ok(())
}

fn made(state: &Path) -> PathBuf {
    state.join("made-on-host")
}

/// Makes the parent cgroup in every hierarchy.
pub fn create_cgroups() -> Result<()> {
    let parent = cgroup::parent()?;
    for root in cgroup_roots()? {
        let group = root.join(&parent);
        places::create_dir(&group)?;
        // A new v1 cpuset is empty, and nothing can run in it until it is filled.
        for setting in ["cpuset.cpus", "cpuset.mems"] {
            let (from, to) = (root.join(setting), group.join(setting));
            if from.exists() && to.exists() && root.ends_with("cpuset") {
                std::fs::write(&to, places::read(&from)?).map_err(Error::file("write", &to))?;
            }
        }
        enable_controllers(&root, &group);
    }
    Ok(())
}

/// On v2 a child has the controllers that its parent passes on; what cannot be passed on kubelet will name itself.
fn enable_controllers(root: &Path, group: &Path) {
    let Ok(available) = std::fs::read_to_string(root.join("cgroup.controllers")) else { return };
    for controller in available.split_whitespace() {
        for group in [root, group] {
            let _ = std::fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"));
        }
    }
}

/// Removes the parent cgroup and everything below, in every hierarchy; the processes must have ended.
pub fn remove_cgroups() -> Result<()> {
    let (roots, parent) = (cgroup_roots()?, cgroup::parent()?);
    wait::until(
        "the end of the cluster's cgroups",
        Duration::from_secs(20),
        "find what still runs there: `cat /sys/fs/cgroup/*/metricsstore-e2e-*/**/cgroup.procs`",
        || {
            let groups = roots.iter().map(|root| root.join(&parent));
            let left: Vec<_> = groups.filter(|group| !remove_cgroup(group)).collect();
            Ok(match left.first() {
                None => wait::Look::Done(()),
                Some(group) => wait::Look::NotYet(format!("{} is busy", group.display())),
            })
        },
    )
}

/// Depth first; true when it is gone.
fn remove_cgroup(group: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(group) else { return true };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    std::fs::remove_dir(group).is_ok()
}

/// The mounted cgroup hierarchies: one per controller on v1, one in all on v2.
fn cgroup_roots() -> Result<Vec<PathBuf>> {
    let mounts = places::read(Path::new("/proc/self/mounts"))?;
    let roots: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind) = (fields.next()?, fields.next()?);
            matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(path))
        })
        .collect();
    if roots.is_empty() {
        return Err(Error::missing("no cgroup hierarchy is mounted", "mount one below /sys/fs/cgroup"));
    }
    Ok(roots)
}

/// Fails when something is mounted at or below `path`: removing it would reach into another file system.
pub fn refuse_mounts_below(path: &Path) -> Result<()> {
    let mounts = places::read(Path::new("/proc/self/mounts"))?;
    let mounted =
        mounts.lines().filter_map(|line| line.split(' ').nth(1)).find(|at| Path::new(at).starts_with(path));
    match mounted {
        None => Ok(()),
        Some(at) => {
            Err(Error::missing(format!("{at} is still mounted"), format!("umount {at}, then try again")))
        }
    }
}
