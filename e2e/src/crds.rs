//! The CRD's YAML: generated from the Rust types, checked in with the chart.
use crate::{Error, Result, places, program};

/// Where the chart reads it.
const FILE: &str = "charts/metricsstore-operator/crd-bases/metricsstore.yaml";

/// Writes the generated YAML into the chart; says whether anything changed.
pub fn generate() -> Result<bool> {
    let path = places::in_workspace(FILE);
    let wanted = generated()?;
    let changed = std::fs::read_to_string(&path).ok().as_deref() != Some(wanted.as_str());
    if changed {
        places::write(&path, wanted)?;
    }
    Ok(changed)
}

/// Fails when the checked-in YAML is not what the types say.
pub fn check() -> Result<()> {
    let found = places::read(&places::in_workspace(FILE))?;
    let wanted = generated()?;
    if found == wanted {
        return Ok(());
    }
    let line = found.lines().zip(wanted.lines()).take_while(|(found, wanted)| found == wanted).count() + 1;
    Err(Error::missing(
        format!("{FILE} is not what the types in crds/ say: the first difference is in line {line}"),
        "run `cargo xtask crds` and commit the result",
    ))
}

fn generated() -> Result<String> {
    let mut cargo = places::cargo();
    cargo.args(["run", "--quiet", "--package", "metricsstore-crds", "--bin", "crdgen"]);
    program::quiet("generating the CRD", &mut cargo, "fix what the compiler says about the crds crate")
}
