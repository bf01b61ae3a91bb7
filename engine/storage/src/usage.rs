//! What everything in the data directory takes on disk: each file once, however many names it has.
use std::path::{Path, PathBuf};

use hashbrown::{HashMap, HashSet};
use metricsstore_vfs::Files;

use crate::store::Places;

/// Directories below one another that are looked into; snapshots have blocks with directories of their own.
const MAX_DEPTH: usize = 8;

/// What is in the data directory.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Bytes of all files.
    pub(crate) bytes: u64,
    /// Of them, those of files that are only in quarantine.
    pub(crate) aside_bytes: u64,
    /// Files with other names, in the directory or elsewhere: to remove one of the names frees nothing.
    linked: HashMap<PathBuf, u64>,
    seen: HashSet<u64>,
}

impl Usage {
    /// Looks at everything; what cannot be listed counts nothing.
    pub(crate) fn of(files: &dyn Files, dir: &Path) -> Usage {
        let mut usage = Usage::default();
        let quarantine = Places::quarantine(dir);
        // What also has a name in quarantine counts where it is in use.
        usage.add(files, dir, &quarantine, 0);
        let used_bytes = usage.bytes;
        usage.add(files, &quarantine, Path::new(""), 1);
        usage.aside_bytes = usage.bytes - used_bytes;
        usage.seen = HashSet::new();
        usage
    }

    fn add(&mut self, files: &dyn Files, place: &Path, except: &Path, depth: usize) {
        for entry in files.list(place).unwrap_or_default() {
            let path = place.join(&entry.name);
            if entry.is_dir {
                if depth < MAX_DEPTH && path != except {
                    self.add(files, &path, except, depth + 1);
                }
                continue;
            }
            if entry.links > 1 {
                self.linked.insert(path, entry.len);
                if !self.seen.insert(entry.id) {
                    continue;
                }
            }
            self.bytes += entry.len;
        }
    }

    /// What removing a file of so many bytes would free.
    pub(crate) fn gain_of_file(&self, path: &Path, bytes: u64) -> u64 {
        if self.linked.contains_key(path) { 0 } else { bytes }
    }

    /// What removing files of so many bytes together would free.
    pub(crate) fn gain_of(&self, paths: &[PathBuf], bytes: u64) -> u64 {
        let linked: u64 = paths.iter().filter_map(|path| self.linked.get(path)).sum();
        bytes.saturating_sub(linked)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use metricsstore_vfs::Files;
    use metricsstore_vfs::sim::SimFiles;

    use super::Usage;

    fn write(files: &SimFiles, path: &str, bytes: usize) {
        files.create_dir_all(Path::new(path).parent().unwrap()).unwrap();
        let file = files.create(Path::new(path)).unwrap();
        file.append(&vec![1; bytes]).unwrap();
        file.sync().unwrap();
    }

    #[test]
    fn a_file_with_several_names_counts_once_and_frees_nothing() {
        let files = SimFiles::new(1);
        for (path, bytes) in [
            ("/data/manifest", 1),
            ("/data/wal/00000001", 10),
            ("/data/blocks/A", 100),
            ("/data/B/chunks/000001", 1000),
            ("/data/quarantine/segments-00000001", 10_000),
            ("/data/segments/00000002", 100_000),
        ] {
            write(&files, path, bytes);
        }
        files.create_dir_all(Path::new("/data/snapshots/1/blocks")).unwrap();
        for (from, to) in [
            ("/data/blocks/A", "/data/snapshots/1/blocks/A"),
            ("/data/segments/00000002", "/data/quarantine/segments-00000002"),
        ] {
            files.hard_link(Path::new(from), Path::new(to)).unwrap();
        }
        let usage = Usage::of(&files, Path::new("/data"));
        assert_eq!((usage.bytes, usage.aside_bytes), (111_111, 10_000));
        let gain = |path: &str, bytes| usage.gain_of(&[path.into()], bytes);
        assert_eq!((gain("/data/blocks/A", 100), gain("/data/B/chunks/000001", 1000)), (0, 1000));
        files.remove(Path::new("/data/snapshots/1/blocks/A")).unwrap();
        let usage = Usage::of(&files, Path::new("/data"));
        assert_eq!(usage.gain_of_file(Path::new("/data/blocks/A"), 100), 100);
        assert_eq!(usage.bytes, 111_111);
    }
}
