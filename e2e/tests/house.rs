//! The rules of the house that a compiler does not check: which crate may use which, where `unsafe` is forbidden, and
//! that no file knows the machine it was written on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use metricsstore_e2e::places;
use serde_json::Value;

/// Crate, and the crates of ours it rests on. A crate may use what its arrows reach, and nothing else of ours.
const ARROWS: [(&str, &[&str]); 13] = [
    ("contract", &[]),
    ("codec", &[]),
    ("vfs", &[]),
    ("budget", &["contract"]),
    ("model", &["codec", "budget"]),
    ("ingest", &["model"]),
    ("promql", &["model"]),
    ("scrape", &["ingest"]),
    ("storage", &["model", "vfs"]),
    ("server", &["scrape", "ingest", "promql", "storage"]),
    ("crds", &["contract"]),
    ("operator", &["crds", "contract"]),
    // Builds and tests all of them from outside.
    ("e2e", &[]),
];

/// Crates that may allow `unsafe`, module by module.
const UNSAFE_CRATES: [&str; 2] = ["codec", "vfs"];

/// Crates that may know Kubernetes' types.
const KUBERNETES_CRATES: [&str; 3] = ["crds", "operator", "e2e"];

#[test]
fn crates_use_only_what_their_arrows_reach() {
    let mut wrong = Vec::new();
    for package in packages() {
        let allowed = reach(&package.name);
        let others = package.needs.iter().filter(|other| !allowed.contains(other.as_str()));
        wrong.extend(others.map(|other| format!("{} -> {other}", package.name)));
    }
    assert!(wrong.is_empty(), "these crates use others against the arrows: {wrong:?}");
}

#[test]
fn every_crate_has_its_arrows_and_every_arrow_its_crate() {
    let found: BTreeSet<String> = packages().into_iter().map(|package| package.name).collect();
    let named: BTreeSet<String> = ARROWS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, named);
}

#[test]
fn arrows_point_one_way() {
    for (name, _) in ARROWS {
        assert!(!reach(name).contains(name), "{name} reaches itself");
    }
}

#[test]
fn the_engine_never_sees_kubernetes_types() {
    let known = |name: &str| KUBERNETES_CRATES.contains(&name);
    for package in packages().into_iter().filter(|package| !known(&package.name)) {
        let seen: Vec<&String> = package
            .external
            .iter()
            .filter(|name| name.starts_with("kube") || *name == "k8s-openapi")
            .collect();
        assert!(seen.is_empty(), "{} depends on {seen:?}", package.name);
    }
}

#[test]
fn unsafe_code_is_forbidden_but_in_codec_and_vfs() {
    for package in packages() {
        if UNSAFE_CRATES.contains(&package.name.as_str()) {
            continue;
        }
        for root in &package.roots {
            let text = places::read(root).unwrap();
            assert!(
                text.contains("#![forbid(unsafe_code)]"),
                "{} does not forbid unsafe code",
                root.display()
            );
        }
    }
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    // Put together here, so that this file does not contain what it looks for.
    let machine = [
        ["/wor", "k/"].concat(),
        ["/roo", "t/"].concat(),
        ["/hom", "e/"].concat(),
        ["../sha", "red"].concat(),
    ];
    let mut found = Vec::new();
    for file in tracked_files() {
        let Ok(text) = std::fs::read_to_string(places::in_workspace(&file)) else { continue };
        for (number, line) in text.lines().enumerate() {
            if machine.iter().any(|path| names_path(line, path)) {
                found.push(format!("{file}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "machine paths do not belong here:\n{}", found.join("\n"));
}

/// True when the path begins there: the same text in the middle of another path or of an address names no machine.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|before| before.is_alphanumeric() || "._-$}/".contains(before))
    })
}

/// A crate of the workspace, by the name of its folder.
struct Package {
    name: String,
    /// Crates of ours it depends on, for building, as a rule and in tests.
    needs: BTreeSet<String>,
    external: BTreeSet<String>,
    /// The root file of the library and of each binary.
    roots: Vec<PathBuf>,
}

fn packages() -> Vec<Package> {
    let mut cargo = places::cargo();
    let output = cargo.args(["metadata", "--no-deps", "--format-version=1", "--offline"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().iter().map(Package::from_metadata).collect()
}

impl Package {
    fn from_metadata(package: &Value) -> Self {
        let names = package["dependencies"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap());
        let (ours, external): (Vec<&str>, Vec<&str>) =
            names.partition(|name| name.starts_with("metricsstore-"));
        let targets = package["targets"].as_array().unwrap();
        let is_root = |target: &&Value| ["lib", "bin"].iter().any(|kind| target["kind"][0] == **kind);
        Self {
            name: short(package["name"].as_str().unwrap()),
            needs: ours.into_iter().map(short).collect(),
            external: external.into_iter().map(str::to_owned).collect(),
            roots: targets
                .iter()
                .filter(is_root)
                .map(|it| PathBuf::from(it["src_path"].as_str().unwrap()))
                .collect(),
        }
    }
}

fn short(name: &str) -> String {
    name.strip_prefix("metricsstore-").unwrap_or(name).to_owned()
}

/// Everything that a crate's arrows reach.
fn reach(name: &str) -> BTreeSet<&'static str> {
    let arrows: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
    let mut reached = BTreeSet::new();
    let mut open: Vec<&'static str> = arrows.get(name).copied().unwrap_or_default().to_vec();
    while let Some(next) = open.pop() {
        if reached.insert(next) {
            open.extend(arrows.get(next).copied().unwrap_or_default());
        }
    }
    reached
}

/// What git knows; test data that came from elsewhere names whatever it names.
fn tracked_files() -> Vec<String> {
    let listed = Command::new("git").current_dir(places::workspace()).arg("ls-files").output();
    let files: Vec<String> = match listed {
        Ok(output) if output.status.success() => {
            String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
        }
        // An exported source tree has no git: every file counts.
        _ => walk(places::workspace()),
    };
    files
        .into_iter()
        .filter(|file| {
            !file.contains("testdata/") && Path::new(file).extension().is_none_or(|ending| ending != "sum")
        })
        .collect()
}

fn walk(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    let entries = entries.filter(|entry| !matches!(entry.file_name().to_str(), Some("target" | ".git")));
    entries
        .flat_map(|entry| {
            let path = entry.path();
            if path.is_dir() {
                return walk(&path);
            }
            let relative = path.strip_prefix(places::workspace()).unwrap_or(&path);
            vec![relative.to_string_lossy().into_owned()]
        })
        .collect()
}

#[test]
fn a_path_counts_only_where_it_begins() {
    let work = ["/wor", "k/"].concat();
    assert!(names_path(&format!("see {work}main"), &work));
    assert!(!names_path(&format!("https://example.org{work}x"), &work));
    assert!(!names_path(&format!("$HOME{work}x"), &work));
}
