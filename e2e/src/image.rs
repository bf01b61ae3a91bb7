//! The product's image: both static binaries, CA roots and time zones on an empty base.
use std::path::{Path, PathBuf};

use crate::{Error, Result, buildah, places, program, progress};

/// The packages and binaries that go into the image.
const BINARIES: [(&str, &str); 2] =
    [("metricsstore-server", "metricsstore"), ("metricsstore-operator", "metricsstore-operator")];

/// The image's name, without a registry: it is imported, never pulled.
pub fn name() -> String {
    format!("metricsstore.local/metricsstore:{}", places::VERSION)
}

/// An image on disk.
pub struct Image {
    /// The name pods use.
    pub name: String,
    /// An OCI archive.
    pub archive: PathBuf,
    /// The engine as it is in the image; static, so that it runs anywhere.
    pub engine: PathBuf,
}

/// Builds the binaries and the image.
pub fn build() -> Result<Image> {
    let release = binaries()?;
    progress::step("build the image", || {
        let context = places::target().join("image/context");
        stage(&context, &release)?;
        let archive = places::target().join("image/metricsstore.tar");
        buildah::build(&context, &name(), &archive)?;
        progress::note(format!("{} in {}", name(), archive.display()));
        Ok(Image { name: name(), archive, engine: release.join("metricsstore") })
    })
}

/// The folder of the static binaries, built as they go into the image.
pub fn binaries() -> Result<PathBuf> {
    progress::step("build the static binaries", build_binaries)
}

/// A target folder of its own: other flags would otherwise rebuild the world at every switch.
fn build_binaries() -> Result<PathBuf> {
    // A named target keeps the flag away from build scripts and procedural macros, which cannot be static.
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let target = places::target().join("image");
    let mut cargo = places::cargo();
    cargo.args(["build", "--release", "--locked", "--target", &triple, "--target-dir"]).arg(&target);
    for (package, binary) in BINARIES {
        cargo.args(["--package", package, "--bin", binary]);
    }
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").env_remove("CARGO_ENCODED_RUSTFLAGS");
    program::shown("building the static binaries", &mut cargo, "fix what the compiler says")?;
    Ok(target.join(triple).join("release"))
}

/// A context with exactly what the Dockerfile copies.
fn stage(context: &Path, release: &Path) -> Result<()> {
    if context.exists() {
        std::fs::remove_dir_all(context).map_err(Error::file("remove", context))?;
    }
    copy(&places::in_workspace("Dockerfile"), &context.join("Dockerfile"))?;
    for (_, binary) in BINARIES {
        copy(&release.join(binary), &context.join(binary))?;
    }
    copy(Path::new("/etc/ssl/certs/ca-certificates.crt"), &context.join("ca-certificates.crt"))?;
    let mut zones = std::process::Command::new("cp");
    zones.args(["--archive", "/usr/share/zoneinfo"]).arg(context.join("zoneinfo"));
    program::quiet("copying the time zones", &mut zones, "install Debian's tzdata").map(drop)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        places::create_dir(parent)?;
    }
    std::fs::copy(from, to).map(drop).map_err(Error::file("copy", from))
}
