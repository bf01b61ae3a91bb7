//! Where a control group's files lie, from the process' group path and the mount table.
use std::path::{Path, PathBuf};

/// Which interface a controller is mounted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// The control group of this process for one controller.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) version: Version,
    /// The group's directory, at or below `top`.
    own: PathBuf,
    top: PathBuf,
}

impl Group {
    /// Finds the group in the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`. A controller that is mounted
    /// with v1 is not available with v2, so v1 goes first.
    pub(super) fn find(root: &Path, groups: &str, mounts: &str, controller: &str) -> Option<Group> {
        let one = path_of(groups, |controllers| controllers.split(',').any(|name| name == controller));
        let two = path_of(groups, str::is_empty);
        let mounted_one = |mount: &Mount| {
            mount.kind == "cgroup" && mount.options.split(',').any(|option| option == controller)
        };
        let mounted_two = |mount: &Mount| mount.kind == "cgroup2";
        let place = |version, path: Option<&str>, is_mounted: &dyn Fn(&Mount) -> bool| {
            Group::at(
                root,
                version,
                path?,
                mounts.lines().filter_map(Mount::parse).filter(|mount| is_mounted(mount)),
            )
        };
        place(Version::One, one, &mounted_one).or_else(|| place(Version::Two, two, &mounted_two))
    }

    fn at(root: &Path, version: Version, path: &str, mounts: impl Iterator<Item = Mount>) -> Option<Group> {
        let mut best: Option<(usize, Group)> = None;
        for mount in mounts {
            let top = root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
            // Where the group lies outside of what is mounted (a namespace hides it), the mount is all there is.
            let below = Path::new(path).strip_prefix(&mount.root).ok();
            let fit = below.map_or(0, |_| mount.root.as_os_str().len());
            let own = below.map_or_else(|| top.clone(), |below| top.join(below));
            if best.as_ref().is_none_or(|(other, _)| fit >= *other) {
                best = Some((fit, Group { version, own, top }));
            }
        }
        best.map(|(_, group)| group)
    }

    /// The group's directory and those above it, as far as they are visible.
    pub(super) fn path_to_top(&self) -> impl Iterator<Item = &Path> {
        self.own.ancestors().take_while(|dir| dir.starts_with(&self.top)).filter(|dir| dir.is_dir())
    }
}

/// The path behind the first line of `/proc/self/cgroup` with such controllers: `4:memory:/a/b`, `0::/a/b`.
fn path_of(groups: &str, wanted: impl Fn(&str) -> bool) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        wanted(controllers).then_some(path)
    })
}

/// The parts of a line of `/proc/self/mountinfo` that matter here.
struct Mount {
    /// The path within the file system that is mounted.
    root: PathBuf,
    point: PathBuf,
    kind: String,
    options: String,
}

impl Mount {
    /// `31 23 0:28 / /sys/fs/cgroup rw,relatime shared:1 - cgroup2 cgroup2 rw`; there may be any number of fields
    /// before the dash.
    fn parse(line: &str) -> Option<Mount> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, _source, options) = (after.next()?, after.next()?, after.next()?);
        Some(Mount {
            root: unescape(root).into(),
            point: unescape(point).into(),
            kind: kind.to_owned(),
            options: options.to_owned(),
        })
    }
}

/// The mount table writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}
