//! Both file systems keep the contract of `Files`: every test runs on the real one and on the simulated one.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{ErrorKind, Result};
use std::path::Path;

use metricsstore_vfs::real::RealFiles;
use metricsstore_vfs::sim::SimFiles;
use metricsstore_vfs::{DirEntry, Files};

fn on_both(test: impl Fn(&dyn Files, &Path)) {
    // The interpreter knows none of the system calls that real files make.
    if !cfg!(miri) {
        let real = tempfile::tempdir().unwrap();
        test(&RealFiles, real.path());
    }
    let simulated = SimFiles::new(7);
    simulated.create_dir_all(Path::new("/data")).unwrap();
    test(&simulated, Path::new("/data"));
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().expect("the call must fail").kind()
}

#[test]
fn bytes_are_appended_and_read_by_position() {
    on_both(|files, dir| {
        let file = files.create(&dir.join("a")).unwrap();
        file.append(b"hello ").unwrap();
        file.append(b"world").unwrap();
        file.sync().unwrap();
        assert_eq!(file.len().unwrap(), 11);
        let reader = files.open(&dir.join("a")).unwrap();
        let mut buffer = [0; 5];
        reader.read_exact_at(&mut buffer, 6).unwrap();
        assert_eq!(&buffer, b"world");
        assert_eq!(kind(reader.read_exact_at(&mut buffer, 7)), ErrorKind::UnexpectedEof);
        assert!(reader.append(b"x").is_err());
    });
}

#[test]
fn a_taken_name_is_not_created_again_and_a_missing_one_is_not_found() {
    on_both(|files, dir| {
        files.create(&dir.join("a")).unwrap();
        assert_eq!(kind(files.create(&dir.join("a"))), ErrorKind::AlreadyExists);
        assert_eq!(kind(files.open(&dir.join("b"))), ErrorKind::NotFound);
        assert_eq!(kind(files.remove(&dir.join("b"))), ErrorKind::NotFound);
        assert_eq!(kind(files.list(&dir.join("b"))), ErrorKind::NotFound);
        assert_eq!(kind(files.create(&dir.join("b").join("c"))), ErrorKind::NotFound);
        assert_eq!(kind(files.rename(&dir.join("b"), &dir.join("c"))), ErrorKind::NotFound);
        assert!(!files.exists(&dir.join("b")).unwrap());
    });
}

#[test]
fn a_whole_file_is_read_up_to_the_limit() {
    on_both(|files, dir| {
        files.create(&dir.join("a")).unwrap().append(b"12345").unwrap();
        assert_eq!(files.read(&dir.join("a"), 5).unwrap(), b"12345");
        assert_eq!(kind(files.read(&dir.join("a"), 4)), ErrorKind::FileTooLarge);
    });
}

#[test]
fn names_are_listed_in_order_renamed_linked_and_removed() {
    on_both(|files, dir| {
        for name in ["b", "a"] {
            let file = files.create(&dir.join(name)).unwrap();
            file.append(name.as_bytes()).unwrap();
            file.sync().unwrap();
        }
        files.create_dir_all(&dir.join("d/e")).unwrap();
        files.create_dir_all(&dir.join("d/e")).unwrap();
        files.rename(&dir.join("b"), &dir.join("a")).unwrap();
        files.hard_link(&dir.join("a"), &dir.join("d/link")).unwrap();
        assert_eq!(kind(files.hard_link(&dir.join("a"), &dir.join("d/link"))), ErrorKind::AlreadyExists);
        files.remove(&dir.join("a")).unwrap();
        assert_eq!(files.read(&dir.join("d/link"), 9).unwrap(), b"b");
        files.create(&dir.join("c")).unwrap();
        files.sync_dir(dir).unwrap();
        files.hard_link(&dir.join("d/link"), &dir.join("e")).unwrap();
        let describe = |entry: DirEntry| (entry.name, entry.is_dir, entry.len, entry.links);
        let listed = || files.list(dir).unwrap().into_iter().map(describe).collect::<Vec<_>>();
        let entry = |name: &str, is_dir, len, links| (name.to_owned(), is_dir, len, links);
        let (c, e) = (entry("c", false, 0, 1), entry("e", false, 1, 2));
        assert_eq!(listed(), [c.clone(), entry("d", true, 0, 1), e]);
        let id = |place: &Path, name: &str| {
            files.list(place).unwrap().into_iter().find(|entry| entry.name == name).map(|entry| entry.id)
        };
        assert_eq!(id(dir, "e"), id(&dir.join("d"), "link"));
        assert_ne!(id(dir, "e"), id(dir, "c"));
        files.remove_dir_all(&dir.join("d")).unwrap();
        assert_eq!(listed(), [c, entry("e", false, 1, 1)]);
    });
}

#[test]
fn a_lock_is_held_by_one_and_free_after_its_guard() {
    on_both(|files, dir| {
        let guard = files.lock(&dir.join("lock")).unwrap();
        assert_eq!(kind(files.lock(&dir.join("lock"))), ErrorKind::WouldBlock);
        drop(guard);
        files.lock(&dir.join("lock")).unwrap();
    });
}

#[test]
fn space_is_known_and_errors_name_the_path() {
    on_both(|files, dir| {
        let space = files.space(dir).unwrap();
        assert!(space.total >= space.available && space.total > 0);
        let text = files.open(&dir.join("missing")).err().unwrap().to_string();
        assert!(text.contains("missing"), "{text}");
    });
}

#[test]
fn allocated_space_is_taken_until_the_file_goes() {
    on_both(|files, dir| {
        let before = files.space(dir).unwrap();
        files.allocate(&dir.join("reserve"), 1 << 20).unwrap();
        assert_eq!(files.list(dir).unwrap()[0].len, 1 << 20);
        assert_eq!(kind(files.allocate(&dir.join("reserve"), 1)), ErrorKind::AlreadyExists);
        assert_eq!(files.space(dir).unwrap().total, before.total);
        files.remove(&dir.join("reserve")).unwrap();
        files.allocate(&dir.join("reserve"), 1).unwrap();
    });
}
