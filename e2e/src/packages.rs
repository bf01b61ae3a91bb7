//! The Debian packages that the cluster, the image and the tests are made with.
use std::process::Command;

use crate::{Error, Result, program, progress};

/// Everything that is not built from source here.
const PACKAGES: &[&str] = &[
    // The container runtime and its network plugins.
    "containerd",
    "runc",
    "containernetworking-plugins",
    // What kubelet and kube-proxy call.
    "conntrack",
    "iproute2",
    "iptables",
    "mount",
    "nftables",
    "util-linux",
    // The image: its builder, and what it carries besides our binaries.
    "buildah",
    "busybox-static",
    "ca-certificates",
    "tzdata",
    // The engine's tests: a disk to fill, a trace of system calls.
    "e2fsprogs",
    "strace",
    // Certificates of the cluster; static linking of the binaries.
    "gcc",
    "libc6-dev",
    "make",
    "openssl",
];

/// Installs what is missing when run as root, else names the one command that does.
pub fn ensure() -> Result<()> {
    let missing = missing()?;
    if missing.is_empty() {
        progress::note(format!("{} Debian packages are there", PACKAGES.len()));
        return Ok(());
    }
    let install = format!("apt-get install --yes --no-install-recommends {}", missing.join(" "));
    if !rustix::process::geteuid().is_root() {
        return Err(Error::missing(
            format!("these Debian packages are missing: {}", missing.join(" ")),
            format!("sudo sh -c 'apt-get update && {install}'"),
        ));
    }
    progress::note(format!("installing {}", missing.join(" ")));
    let cure = "see what apt-get says above; the machine must be Debian 12 or newer with a reachable mirror";
    apt(&["update", "--quiet=2"], cure)?;
    let mut arguments = vec!["install", "--yes", "--quiet=2", "--no-install-recommends"];
    arguments.extend(missing);
    apt(&arguments, cure)
}

/// The cluster makes namespaces, mounts and cgroups: only root may.
pub fn require_root(what: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::missing(
        format!("{what} needs root: it makes namespaces, mounts and cgroups of its own"),
        "run the same command as root, for example with `sudo --preserve-env=PATH,HOME`",
    ))
}

fn missing() -> Result<Vec<&'static str>> {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${Package} ${db:Status-Status}\n"]).args(PACKAGES);
    // It fails when one of them is unknown, and still lists the others.
    let output = query.output().map_err(|source| Error::Start {
        program: "dpkg-query".into(),
        what: "looking for packages".into(),
        source,
        cure: "use Debian 12 or newer, or install what e2e/src/packages.rs lists by other means".into(),
    })?;
    let listed = String::from_utf8_lossy(&output.stdout);
    let installed: Vec<&str> = listed.lines().filter_map(|line| line.strip_suffix(" installed")).collect();
    Ok(PACKAGES.iter().copied().filter(|name| !installed.contains(name)).collect())
}

fn apt(arguments: &[&str], cure: &str) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(arguments);
    program::shown("installing Debian packages", &mut command, cure)
}
