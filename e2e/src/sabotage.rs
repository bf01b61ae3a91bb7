//! `cargo xtask sabotage`: the tests of the storage core are proved by breaking it. One change at a time is made in a
//! copy of the crates, and a named test must fail by its own assertions.
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use crate::{Error, Result, places, progress};

/// What the storage core consists of.
const CRATES: [&str; 6] = ["storage", "codec", "vfs", "model", "budget", "contract"];
/// Seeds of the model test for each change.
const MODEL_RUNS: &str = "8";

const MODEL: Proof =
    Proof { target: "model", test: "nothing_acknowledged_is_lost_and_nothing_is_read_or_answered_wrong" };
const FAULTS: Proof =
    Proof { target: "faults", test: "a_failure_at_any_call_loses_nothing_and_the_store_goes_on" };

/// A test that must turn red.
#[derive(Clone, Copy)]
struct Proof {
    /// The name of an integration test; `lib`: a test of the crate itself.
    target: &'static str,
    test: &'static str,
}

/// One way to break the store.
struct Change {
    name: &'static str,
    /// Below `engine/`.
    file: &'static str,
    /// Stands exactly once in it.
    find: &'static str,
    replace: &'static str,
    proof: Proof,
}

const CHANGES: [Change; 14] = [
    Change {
        name: "acknowledge before the sync",
        file: "storage/src/wal/log.rs",
        find: "            if state.synced >= position {",
        replace: "            if state.written >= position {",
        proof: MODEL,
    },
    Change {
        name: "skip the checksum of a log frame",
        file: "storage/src/wal/reader.rs",
        find: "Ok(frame_crc(number, head.durable, head.kind, body) == head.crc)",
        replace: "Ok(frame_crc(number, head.durable, head.kind, body) == head.crc || head.body_bytes > 0)",
        proof: Proof {
            target: "damage",
            test: "a_flipped_byte_in_definitions_that_only_the_log_has_changes_no_label",
        },
    },
    Change {
        name: "skip the checksum of a segment's page",
        file: "storage/src/segment/reader.rs",
        find: "if block_crc(self.number, block.offset, content) == u32::from_le_bytes(crc) {",
        replace: "if block_crc(self.number, block.offset, content) == u32::from_le_bytes(crc) || block.bytes > 4 {",
        proof: Proof {
            target: "damage",
            test: "a_flipped_byte_in_a_segment_is_an_error_or_sets_the_segment_aside",
        },
    },
    Change {
        name: "begin a sealed column one row late",
        file: "storage/src/seal.rs",
        find: "first_row: piece.first_row,",
        replace: "first_row: piece.first_row + 1,",
        proof: Proof { target: "upkeep", test: "what_is_sealed_leaves_the_log_and_is_read_as_before" },
    },
    Change {
        name: "expire a segment by its oldest sample",
        file: "storage/src/retention.rs",
        find: "Candidate::Segment(segment) => segment.max_ms,",
        replace: "Candidate::Segment(segment) => segment.min_ms,",
        proof: MODEL,
    },
    Change {
        name: "drop stale markers from the log",
        file: "storage/src/append.rs",
        find: "                            record.push(sample);",
        replace: "                            if !metricsstore_model::is_stale(f64::from_bits(bits)) {\n\
                  \x20                               record.push(sample);\n                            }",
        proof: MODEL,
    },
    Change {
        name: "forget the directory's sync after the manifest's rename",
        file: "storage/src/manifest.rs",
        find: "    files.sync_dir(dir).map_err(StorageError::io(\"sync\", dir))\n",
        replace: "    Ok(())\n",
        proof: MODEL,
    },
    Change {
        name: "remove the log before the manifest is written",
        file: "storage/src/seal.rs",
        find: "        // Where the log fails, its files stay until it does not.\n",
        replace: "        let _ = self.log.remove_below(cut.number);\n",
        proof: FAULTS,
    },
    Change {
        name: "forget late rows at replay",
        file: "storage/src/replay.rs",
        find: "            self.batch.push(place, kind, body);",
        replace: "            if kind == record::ROWS {\n                self.batch.push(place, kind, body);\n            }",
        proof: Proof { target: "late", test: "replay_puts_late_samples_where_they_were" },
    },
    Change {
        name: "forget what a segment has after a cut",
        file: "storage/src/cut.rs",
        find: "Some(left) if left.next_ms == i64::MAX => gone.push(Arc::clone(segment)),",
        replace: "Some(left) if left.next_ms >= end_ms => gone.push(Arc::clone(segment)),",
        proof: MODEL,
    },
    Change {
        name: "remove the segments of a cut before the manifest names the block",
        file: "storage/src/cut.rs",
        find: "        sort_blocks(&mut blocks);\n        self.commit_view(",
        replace: "        sort_blocks(&mut blocks);\n        self.remove_segments(upkeep, &gone);\n        self.commit_view(",
        proof: Proof {
            target: "blocks",
            test: "a_crash_at_any_call_of_a_cut_loses_nothing_and_the_cut_is_made_up_for",
        },
    },
    Change {
        name: "judge by the first sealed sample instead of the last",
        file: "storage/src/segment/cursor.rs",
        find: "let last_row = (piece.first_row + piece.rows - 1) as usize;",
        replace: "let last_row = piece.first_row as usize;",
        proof: MODEL,
    },
    Change {
        name: "forget a tombstone in a compaction",
        file: "storage/src/compaction/source.rs",
        find: "        floats.retain(|sample| !is_deleted(sample.0));",
        replace: "        let _ = &floats;",
        proof: Proof {
            target: "lib",
            test: "compaction::tests::deleted_samples_stay_away_across_restarts_and_compactions_and_nothing_else_goes",
        },
    },
    Change {
        name: "forget a source block in a compaction",
        file: "storage/src/compaction/run.rs",
        find: "    for live in inputs {",
        replace: "    for live in inputs.iter().skip(1) {",
        proof: Proof {
            target: "lib",
            test: "compaction::tests::a_complete_range_becomes_one_block_and_no_answer_changes",
        },
    },
];

/// Makes every change in turn and prints what became of it. Fails when a change goes unnoticed.
pub fn run() -> Result<()> {
    let copy = Copy::begin()?;
    progress::step("the tests without any change", || copy.demand_green())?;
    let mut unnoticed = Vec::new();
    let mut table = Vec::new();
    for change in &CHANGES {
        let start = Instant::now();
        let red = progress::step(change.name, || copy.is_noticed(change))?;
        let verdict = if red { "red" } else { "NOT NOTICED" };
        let took = progress::seconds(start.elapsed());
        table.push(format!("{:<56} {:<8} {verdict:<12} {took}", change.name, change.proof.target));
        if !red {
            unnoticed.push(change.name);
        }
    }
    println!("{:<56} {:<8} {:<12} took", "change", "test", "verdict");
    for line in table {
        println!("{line}");
    }
    if unnoticed.is_empty() {
        return Ok(());
    }
    let what = format!("no test noticed: {}", unnoticed.join(", "));
    Err(Error::missing(what, "make the named tests see it, or name a test that does"))
}

/// The crates in a workspace of their own, with a target folder that is kept from run to run.
struct Copy {
    root: PathBuf,
    target: PathBuf,
    _lock: places::Lock,
}

impl Copy {
    fn begin() -> Result<Copy> {
        let lock = places::lock("sabotage")?;
        let home = places::cache()?.join("sabotage");
        let copy = Copy { root: home.join("workspace"), target: home.join("target"), _lock: lock };
        for name in CRATES {
            let below = format!("engine/{name}");
            copy_changed(&places::in_workspace(&below), &copy.root.join(&below))?;
        }
        for name in ["Cargo.lock", "rust-toolchain.toml"] {
            write_if_changed(&copy.root.join(name), places::read(&places::in_workspace(name))?.as_bytes())?;
        }
        let manifest = places::read(&places::in_workspace("Cargo.toml"))?;
        write_if_changed(&copy.root.join("Cargo.toml"), only_these_crates(&manifest).as_bytes())?;
        Ok(copy)
    }

    fn cargo(&self, proof: Proof) -> Command {
        let mut cargo = places::cargo();
        cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target).env("MODEL_RUNS", MODEL_RUNS);
        cargo.args(["test", "--offline", "--quiet", "--package", "metricsstore-storage"]);
        match proof.target {
            "lib" => cargo.arg("--lib"),
            target => cargo.args(["--test", target]),
        };
        cargo
    }

    /// Builds a test; the changed code must compile, or its failure would prove nothing.
    fn build(&self, proof: Proof, what: &str) -> Result<()> {
        let mut cargo = self.cargo(proof);
        cargo.arg("--no-run");
        let cure = "adapt the table in e2e/src/sabotage.rs to the code";
        crate::program::quiet(&format!("building with the change: {what}"), &mut cargo, cure).map(|_| ())
    }

    fn test(&self, proof: Proof) -> Result<Output> {
        let mut cargo = self.cargo(proof);
        cargo.args(["--", "--exact", proof.test]);
        cargo.output().map_err(Error::file("run cargo in", &self.root))
    }

    /// The named tests pass as long as nothing is broken.
    fn demand_green(&self) -> Result<()> {
        let mut seen = Vec::new();
        for proof in CHANGES.iter().map(|change| change.proof) {
            if seen.contains(&proof.test) {
                continue;
            }
            seen.push(proof.test);
            self.build(proof, "none")?;
            let output = self.test(proof)?;
            let text = String::from_utf8_lossy(&output.stdout);
            if !output.status.success() || !text.contains("1 passed") {
                let what = format!("{} does not pass on unchanged code", proof.test);
                return Err(Error::missing(what, "run it with `cargo test -p metricsstore-storage`"));
            }
        }
        Ok(())
    }

    /// Whether the test fails by assertion once the change is made. The file is put back in any case.
    fn is_noticed(&self, change: &Change) -> Result<bool> {
        let path = self.root.join("engine").join(change.file);
        let whole = places::read(&path)?;
        let found = whole.matches(change.find).count();
        if found != 1 {
            let what =
                format!("{}: the place to change stands {found} times in {}", change.name, change.file);
            return Err(Error::missing(what, "adapt the table in e2e/src/sabotage.rs to the code"));
        }
        places::write(&path, whole.replacen(change.find, change.replace, 1))?;
        let output = self.build(change.proof, change.name).and_then(|()| self.test(change.proof));
        places::write(&path, whole)?;
        let output = output?;
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        Ok(!output.status.success() && text.contains("panicked at") && text.contains("1 failed"))
    }
}

/// The workspace's manifest with the copied crates as its only members.
fn only_these_crates(manifest: &str) -> String {
    let is_foreign = |line: &str| {
        let member = line.trim().trim_matches([',', '"']);
        let engine = member.strip_prefix("engine/");
        line.starts_with("    \"") && !engine.is_some_and(|name| CRATES.contains(&name))
    };
    manifest.lines().filter(|line| !is_foreign(line)).fold(String::new(), |text, line| text + line + "\n")
}

/// Makes `to` the same as `from`; files that are the same already keep their times, so that cargo builds little.
fn copy_changed(from: &Path, to: &Path) -> Result<()> {
    places::create_dir(to)?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(from).map_err(Error::file("list", from))? {
        let entry = entry.map_err(Error::file("list", from))?;
        let (name, path) = (entry.file_name(), entry.path());
        // The fuzz targets are a workspace of their own.
        if name == "target" || name == "fuzz" {
            continue;
        }
        if path.is_dir() {
            copy_changed(&path, &to.join(&name))?;
        } else {
            let content = std::fs::read(&path).map_err(Error::file("read", &path))?;
            write_if_changed(&to.join(&name), &content)?;
        }
        names.push(name);
    }
    for entry in std::fs::read_dir(to).map_err(Error::file("list", to))? {
        let entry = entry.map_err(Error::file("list", to))?;
        if !names.contains(&entry.file_name()) {
            let path = entry.path();
            let gone =
                if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            gone.map_err(Error::file("remove", &path))?;
        }
    }
    Ok(())
}

fn write_if_changed(path: &Path, content: &[u8]) -> Result<()> {
    if std::fs::read(path).is_ok_and(|present| present == content) {
        return Ok(());
    }
    places::write(path, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_has_exactly_one_place_in_the_code() {
        for change in &CHANGES {
            let text = places::read(&places::in_workspace("engine").join(change.file)).unwrap();
            assert_eq!(text.matches(change.find).count(), 1, "{} in {}", change.name, change.file);
        }
    }

    #[test]
    fn only_the_storage_core_stays_in_the_workspace() {
        let manifest =
            only_these_crates("members = [\n    \"crds\",\n    \"engine/vfs\",\n    \"engine/server\",\n]\n");
        assert_eq!(manifest, "members = [\n    \"engine/vfs\",\n]\n");
    }
}
