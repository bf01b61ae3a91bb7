//! One image for everything the cluster itself runs in pods: pause, cluster DNS, volumes, and busybox for helpers and tests.
use std::path::{Path, PathBuf};

use super::addresses::NODE_IMAGE;
use crate::{Error, Result, buildah, places, progress, tools};

/// `/pause` is what containerd starts for every pod; the others are named by their pods.
const DOCKERFILE: &str = "\
FROM scratch
COPY bin /bin
COPY tmp /tmp
ENV PATH=/bin
ENTRYPOINT [\"/bin/pause\"]
";

/// Busybox' programs that pods may call by name.
const APPLETS: [&str; 18] = [
    "cat", "chmod", "cp", "dd", "df", "echo", "env", "httpd", "ls", "mkdir", "nslookup", "rm", "sh", "sleep",
    "stat", "sync", "touch", "wget",
];

/// The image's archive, and what names exactly this one.
pub struct NodeImage {
    /// An OCI archive.
    pub archive: PathBuf,
}

/// The archive from the cache, built if need be.
pub fn node_image() -> Result<NodeImage> {
    let parts = [&tools::PAUSE, &tools::COREDNS, &tools::LOCAL_PATH];
    let identities: Result<Vec<String>> = parts.iter().map(|tool| tool.identity()).collect();
    let recipe = format!("{DOCKERFILE}{APPLETS:?}{}", identities?.join(" "));
    let hash = xxhash_rust::xxh3::xxh3_64(recipe.as_bytes());
    let archive = places::cache()?.join("images").join(format!("cluster-node-{hash:016x}.tar"));
    if !archive.exists() {
        progress::step("build the cluster's node image", || build(&archive))?;
    }
    Ok(NodeImage { archive })
}

fn build(archive: &Path) -> Result<()> {
    let context = archive.with_extension("context");
    if context.exists() {
        std::fs::remove_dir_all(&context).map_err(Error::file("remove", &context))?;
    }
    let bin = context.join("bin");
    places::create_dir(&bin)?;
    places::write(&context.join("Dockerfile"), DOCKERFILE)?;
    // An empty folder of the image; buildah copies folders that hold a file.
    places::write(&context.join("tmp/.keep"), "")?;
    for (tool, name) in [
        (&tools::PAUSE, "pause"),
        (&tools::COREDNS, "coredns"),
        (&tools::LOCAL_PATH, "local-path-provisioner"),
    ] {
        copy(&tool.program(name)?, &bin.join(name))?;
    }
    copy(Path::new("/bin/busybox"), &bin.join("busybox"))?;
    for applet in APPLETS {
        let link = bin.join(applet);
        std::os::unix::fs::symlink("busybox", &link).map_err(Error::file("link", &link))?;
    }
    buildah::build(&context, NODE_IMAGE, archive)?;
    std::fs::remove_dir_all(&context).map_err(Error::file("remove", &context))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).map(drop).map_err(Error::file("copy", from))
}
