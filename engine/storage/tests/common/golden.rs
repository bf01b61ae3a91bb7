//! Golden directories: the files of a store as a release wrote them.
use std::path::{Path, PathBuf};

use metricsstore_vfs::Files;

use super::{DIR, Machine};

const PARTS: [&str; 4] = ["", "wal", "segments", "identity"];

/// Files by their paths in the data directory.
pub type GoldenFiles = Vec<(PathBuf, Vec<u8>)>;

fn golden_dir(name: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The fuzz crate lies below the store's.
    let tests = ["tests/golden", "../tests/golden"].map(|tests| package.join(tests));
    tests.into_iter().find(|tests| tests.exists()).unwrap().join(name)
}

/// The files of the golden directory of this name.
pub fn golden_files(name: &str) -> GoldenFiles {
    let mut files = Vec::new();
    for part in PARTS {
        for entry in std::fs::read_dir(golden_dir(name).join(part)).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                let path = Path::new(DIR).join(part).join(entry.file_name());
                files.push((path, std::fs::read(entry.path()).unwrap()));
            }
        }
    }
    files
}

/// Puts files into a machine's data directory, durably.
pub fn lay_out(machine: &Machine, files: &[(PathBuf, Vec<u8>)]) {
    for (path, bytes) in files {
        let dir = path.parent().unwrap();
        machine.files.create_dir_all(dir).unwrap();
        let file = machine.files.create(path).unwrap();
        file.append(bytes).unwrap();
        file.sync().unwrap();
        machine.files.sync_dir(dir).unwrap();
    }
}

/// Writes a machine's data directory as the golden directory of this name, in the place of what was there.
pub fn write_golden(machine: &Machine, name: &str) {
    let golden = golden_dir(name);
    if golden.exists() {
        std::fs::remove_dir_all(&golden).unwrap();
    }
    for part in PARTS {
        let (from, to) = (Path::new(DIR).join(part), golden.join(part));
        std::fs::create_dir_all(&to).unwrap();
        for entry in machine.files.list(&from).unwrap() {
            // Neither the lock nor the space that is set aside says anything of a format.
            if !entry.is_dir && entry.name != "lock" && entry.name != "reserve" {
                let bytes = machine.files.read(&from.join(&entry.name), 1 << 20).unwrap();
                std::fs::write(to.join(&entry.name), bytes).unwrap();
            }
        }
    }
}
