//! Directories and files, each with what the process sees and what is known to be on the medium.
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::DirEntry;

type DirId = usize;

/// Bytes of a file; those before `synced` are durable. Files are only appended to.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) synced: usize,
    /// Space set aside beyond the bytes.
    pub(super) reserved: u64,
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        self.bytes.len() as u64 + self.reserved
    }
}

/// What a name stands for. Two names of one file share its content.
#[derive(Debug, Clone)]
pub(super) enum Node {
    File(Arc<Mutex<Content>>),
    Dir(DirId),
}

#[derive(Debug, Clone, Default)]
struct Dir {
    names: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
}

/// One change of names that reaches the medium whole or not at all.
#[derive(Debug, Clone)]
pub(super) struct Change {
    names: Vec<(DirId, String, Option<Node>)>,
    /// The directory whose sync makes it durable.
    home: DirId,
}

impl Change {
    pub(super) fn keys(&self) -> impl Iterator<Item = (DirId, String)> + '_ {
        self.names.iter().map(|(dir, name, _)| (*dir, name.clone()))
    }
}

const ROOT: DirId = 0;

#[derive(Debug)]
pub(super) struct Tree {
    dirs: Vec<Dir>,
    /// Changes of names since they were last synced, oldest first.
    pending: Vec<Change>,
}

impl Tree {
    pub(super) fn new() -> Tree {
        Tree { dirs: vec![Dir::default()], pending: Vec::new() }
    }

    // --- Look-up -------------------------------------------------------------------------------------------------

    pub(super) fn find(&self, path: &Path) -> io::Result<Node> {
        let mut node = Node::Dir(ROOT);
        for name in names_of(path)? {
            let Node::Dir(dir) = node else { return Err(error(ErrorKind::NotADirectory, path)) };
            node = self.dirs[dir].names.get(name).cloned().ok_or_else(|| error(ErrorKind::NotFound, path))?;
        }
        Ok(node)
    }

    pub(super) fn file(&self, path: &Path) -> io::Result<Arc<Mutex<Content>>> {
        match self.find(path)? {
            Node::File(content) => Ok(content),
            Node::Dir(_) => Err(error(ErrorKind::IsADirectory, path)),
        }
    }

    fn dir(&self, path: &Path) -> io::Result<DirId> {
        match self.find(path)? {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(error(ErrorKind::NotADirectory, path)),
        }
    }

    /// The directory that holds a path's last name, and that name.
    fn place(&self, path: &Path) -> io::Result<(DirId, String)> {
        let names = names_of(path)?;
        let last = names.last().ok_or_else(|| error(ErrorKind::InvalidInput, path))?;
        let parent: PathBuf = Path::new("/").join(names[..names.len() - 1].iter().collect::<PathBuf>());
        Ok((self.dir(&parent)?, (*last).to_owned()))
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut links: BTreeMap<*const Mutex<Content>, u64> = BTreeMap::new();
        for node in self.dirs.iter().flat_map(|dir| dir.names.values()) {
            if let Node::File(content) = node {
                *links.entry(Arc::as_ptr(content)).or_default() += 1;
            }
        }
        let entry = |(name, node): (&String, &Node)| {
            let (is_dir, len, links, id) = match node {
                Node::File(content) => {
                    let file = Arc::as_ptr(content);
                    let links = links.get(&file).copied().unwrap_or(1);
                    (false, content.lock().size(), links, file.addr() as u64)
                }
                Node::Dir(dir) => (true, 0, 1, *dir as u64),
            };
            DirEntry { name: name.clone(), is_dir, len, links, id }
        };
        Ok(self.dirs[self.dir(path)?].names.iter().map(entry).collect())
    }

    /// Bytes of all files that have a name.
    pub(super) fn used(&self) -> u64 {
        let mut seen = BTreeSet::new();
        let files = self.dirs.iter().flat_map(|dir| dir.names.values());
        files
            .filter_map(|node| match node {
                Node::File(content) if seen.insert(Arc::as_ptr(content)) => Some(content.lock().size()),
                _ => None,
            })
            .sum()
    }

    // --- Changes of names ----------------------------------------------------------------------------------------

    pub(super) fn create(&mut self, path: &Path) -> io::Result<Arc<Mutex<Content>>> {
        let (dir, name) = self.place(path)?;
        if self.dirs[dir].names.contains_key(&name) {
            return Err(error(ErrorKind::AlreadyExists, path));
        }
        let content = Arc::new(Mutex::new(Content::default()));
        self.change(dir, vec![(dir, name, Some(Node::File(Arc::clone(&content))))]);
        Ok(content)
    }

    /// Directories are durable when the call returns, as the contract of `create_dir_all` says.
    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut at = ROOT;
        for name in names_of(path)? {
            at = match self.dirs[at].names.get(name) {
                Some(Node::Dir(dir)) => *dir,
                Some(Node::File(_)) => return Err(error(ErrorKind::AlreadyExists, path)),
                None => {
                    let new = self.dirs.len();
                    self.dirs.push(Dir::default());
                    self.change(at, vec![(at, name.to_owned(), Some(Node::Dir(new)))]);
                    self.sync_changes_of(at);
                    new
                }
            };
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.find(from)?;
        let (from_dir, from_name) = self.place(from)?;
        let (to_dir, to_name) = self.place(to)?;
        match (&node, self.dirs[to_dir].names.get(&to_name)) {
            (Node::File(_), Some(Node::Dir(_))) => return Err(error(ErrorKind::IsADirectory, to)),
            (Node::Dir(_), Some(Node::File(_))) => return Err(error(ErrorKind::NotADirectory, to)),
            (Node::Dir(_), Some(Node::Dir(target))) if !self.dirs[*target].names.is_empty() => {
                return Err(error(ErrorKind::DirectoryNotEmpty, to));
            }
            _ => {}
        }
        if (from_dir, &from_name) != (to_dir, &to_name) {
            self.change(to_dir, vec![(from_dir, from_name, None), (to_dir, to_name, Some(node))]);
        }
        Ok(())
    }

    pub(super) fn hard_link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let content = self.file(from)?;
        let (dir, name) = self.place(to)?;
        if self.dirs[dir].names.contains_key(&name) {
            return Err(error(ErrorKind::AlreadyExists, to));
        }
        self.change(dir, vec![(dir, name, Some(Node::File(content)))]);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.file(path)?;
        let (dir, name) = self.place(path)?;
        self.change(dir, vec![(dir, name, None)]);
        Ok(())
    }

    pub(super) fn remove_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let dir = self.dir(path)?;
        let (parent, name) = self.place(path)?;
        self.empty(dir);
        self.change(parent, vec![(parent, name, None)]);
        Ok(())
    }

    fn empty(&mut self, dir: DirId) {
        let names: Vec<(String, Node)> = self.dirs[dir].names.clone().into_iter().collect();
        for (name, node) in names {
            if let Node::Dir(below) = node {
                self.empty(below);
            }
            self.change(dir, vec![(dir, name, None)]);
        }
    }

    fn change(&mut self, home: DirId, names: Vec<(DirId, String, Option<Node>)>) {
        let change = Change { names, home };
        apply(&change, |dir, name, node| set(&mut self.dirs[dir].names, name, node));
        self.pending.push(change);
    }

    // --- Durability ----------------------------------------------------------------------------------------------

    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let dir = self.dir(path)?;
        self.sync_changes_of(dir);
        Ok(())
    }

    /// Makes a directory's changes durable, together with the earlier changes elsewhere that they build upon.
    fn sync_changes_of(&mut self, dir: DirId) {
        let pending = std::mem::take(&mut self.pending);
        let mut needed = BTreeSet::new();
        let mut durable = vec![false; pending.len()];
        for (position, change) in pending.iter().enumerate().rev() {
            if change.home == dir || change.keys().any(|key| needed.contains(&key)) {
                durable[position] = true;
                needed.extend(change.keys());
            }
        }
        for (change, durable) in pending.into_iter().zip(durable) {
            if durable {
                self.make_durable(&change);
            } else {
                self.pending.push(change);
            }
        }
    }

    pub(super) fn make_durable(&mut self, change: &Change) {
        apply(change, |dir, name, node| set(&mut self.dirs[dir].durable, name, node));
    }

    pub(super) fn take_pending(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.pending)
    }

    pub(super) fn fall_back_to_durable_names(&mut self) {
        for dir in &mut self.dirs {
            dir.names = dir.durable.clone();
        }
    }

    pub(super) fn is_durable(&self, path: &Path) -> bool {
        let Ok(names) = names_of(path) else { return false };
        let mut node = Node::Dir(ROOT);
        for name in names {
            let Node::Dir(dir) = node else { return false };
            // A name with a pending change (its removal, its replacement) is not settled either way.
            if self.pending.iter().any(|change| change.keys().any(|key| key.0 == dir && key.1 == name)) {
                return false;
            }
            match self.dirs[dir].durable.get(name) {
                Some(found) => node = found.clone(),
                None => return false,
            }
        }
        match node {
            Node::File(content) => is_synced(&content),
            Node::Dir(_) => true,
        }
    }

    /// The first path at or below `path` that a crash could take or damage; the name `path` itself may be unsynced.
    pub(super) fn unsynced_below(&self, path: &Path) -> Option<PathBuf> {
        match self.find(path).ok()? {
            Node::File(content) => (!is_synced(&content)).then(|| path.to_owned()),
            Node::Dir(dir) => {
                let unsettled = self.pending.iter().flat_map(Change::keys).find(|key| key.0 == dir);
                let below =
                    || self.dirs[dir].names.keys().find_map(|name| self.unsynced_below(&path.join(name)));
                unsettled.map(|(_, name)| path.join(name)).or_else(below)
            }
        }
    }

    pub(super) fn for_each_file(&self, mut visit: impl FnMut(&mut Content)) {
        let mut seen = BTreeSet::new();
        for node in self.dirs.iter().flat_map(|dir| dir.names.values()) {
            if let Node::File(content) = node
                && seen.insert(Arc::as_ptr(content))
            {
                visit(&mut content.lock());
            }
        }
    }

    /// A copy that shares no content with `self`; names that share a file still do.
    pub(super) fn deep_copy(&self) -> Tree {
        let mut copies = BTreeMap::new();
        let mut copy_node = |node: &mut Node| {
            if let Node::File(content) = node {
                let copy = copies
                    .entry(Arc::as_ptr(content))
                    .or_insert_with(|| Arc::new(Mutex::new(content.lock().clone())));
                *node = Node::File(Arc::clone(copy));
            }
        };
        let mut tree = Tree { dirs: self.dirs.clone(), pending: self.pending.clone() };
        for dir in &mut tree.dirs {
            dir.names.values_mut().chain(dir.durable.values_mut()).for_each(&mut copy_node);
        }
        for change in &mut tree.pending {
            change.names.iter_mut().filter_map(|(_, _, node)| node.as_mut()).for_each(&mut copy_node);
        }
        tree
    }
}

fn is_synced(content: &Mutex<Content>) -> bool {
    let content = content.lock();
    content.synced == content.bytes.len()
}

fn apply(change: &Change, mut assign: impl FnMut(DirId, &str, Option<Node>)) {
    for (dir, name, node) in &change.names {
        assign(*dir, name, node.clone());
    }
}

fn set(names: &mut BTreeMap<String, Node>, name: &str, node: Option<Node>) {
    match node {
        Some(node) => names.insert(name.to_owned(), node),
        None => names.remove(name),
    };
}

/// Names from the root; relative paths start there too.
fn names_of(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => {
                names.push(name.to_str().ok_or_else(|| error(ErrorKind::InvalidFilename, path))?);
            }
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(error(ErrorKind::InvalidInput, path)),
        }
    }
    Ok(names)
}

fn error(kind: ErrorKind, path: &Path) -> io::Error {
    io::Error::new(kind, format!("{}: {kind}", path.display()))
}
