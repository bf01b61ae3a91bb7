//! Where things are: the checkout, and the cache outside of it.
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The root of the checkout this was built from.
pub fn workspace() -> &'static Path {
    let e2e = Path::new(env!("CARGO_MANIFEST_DIR"));
    e2e.parent().unwrap_or(e2e)
}

/// A path inside the checkout.
pub fn in_workspace(relative: &str) -> PathBuf {
    workspace().join(relative)
}

/// Everything built or kept outside the checkout: `$METRICSSTORE_CACHE`, else `$XDG_CACHE_HOME/metricsstore`,
/// else `~/.cache/metricsstore`.
pub fn cache() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("METRICSSTORE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("metricsstore")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/metricsstore")))
        .filter(|path| path.is_absolute())
        .ok_or_else(|| {
            Error::missing("there is no cache directory", "set METRICSSTORE_CACHE to an absolute path")
        })
}

/// Where cargo puts what it builds for the checkout.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| in_workspace("target"), PathBuf::from)
}

/// The version that all crates of the workspace share.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `cargo`, as the one that runs this.
pub fn cargo() -> std::process::Command {
    let mut command = std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    command
}

/// Creates a directory and its parents.
pub fn create_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(Error::file("create", path))
}

/// Writes a file that nobody ever sees half written, with its parents.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if let Some(parent) = path.parent() {
        create_dir(parent)?;
    }
    let partial = path.with_extension("partial");
    std::fs::write(&partial, content).map_err(Error::file("write", &partial))?;
    std::fs::rename(&partial, path).map_err(Error::file("rename into", path))
}

/// Reads a whole text file.
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(Error::file("read", path))
}

/// An exclusive lock on a file, held until dropped, so that two runs do not do the same step at once.
pub struct Lock(#[allow(dead_code)] std::fs::File);

/// Waits for the lock of that name in the cache.
pub fn lock(name: &str) -> Result<Lock> {
    let path = cache()?.join(format!("{name}.lock"));
    create_dir(&cache()?)?;
    let file = std::fs::File::create(&path).map_err(Error::file("create", &path))?;
    if file.try_lock().is_err() {
        println!("    waiting for another run that holds {}", path.display());
        file.lock().map_err(Error::file("lock", &path))?;
    }
    Ok(Lock(file))
}
