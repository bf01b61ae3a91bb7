//! Images `FROM scratch`, built by buildah without a registry.
use std::path::Path;
use std::process::Command;

use crate::{Error, Result, places, program};

/// Builds the `Dockerfile` in `context` and writes the image to an OCI archive that containerd imports under `name`.
pub fn build(context: &Path, name: &str, archive: &Path) -> Result<()> {
    let _lock = places::lock("buildah")?;
    let store = places::cache()?.join("buildah");
    let cure =
        "see the builder's message above; as root on Debian with buildah 1.28 or newer this works offline";
    let mut bud = buildah(&store);
    bud.args(["bud", "--isolation", "chroot", "--layers=false", "--tag", name]).arg(context);
    program::quiet(&format!("building the image {name}"), &mut bud, cure)?;

    if let Some(parent) = archive.parent() {
        places::create_dir(parent)?;
    }
    let partial = archive.with_extension("partial");
    if partial.exists() {
        // The archive format is never appended to.
        std::fs::remove_file(&partial).map_err(Error::file("remove", &partial))?;
    }
    let mut push = buildah(&store);
    push.args(["push", "--quiet", name]).arg(format!("oci-archive:{}:{name}", partial.display()));
    program::quiet(&format!("writing the image {name}"), &mut push, cure)?;
    // Only the archive is kept.
    program::quiet("removing the builder's copy", buildah(&store).args(["rmi", "--all", "--force"]), cure)?;
    std::fs::rename(&partial, archive).map_err(Error::file("rename into", archive))
}

fn buildah(store: &Path) -> Command {
    let mut command = Command::new("buildah");
    command.arg("--storage-driver").arg("vfs");
    command.arg("--root").arg(store.join("root")).arg("--runroot").arg(store.join("run"));
    command
}
