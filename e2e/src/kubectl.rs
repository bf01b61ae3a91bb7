//! kubectl with typed edges: JSON out, YAML in, and waiting with a deadline.
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::wait::{self, Look};
use crate::{Error, Result, program};

/// What to do when the API server refuses or does not answer.
const CURE: &str = "look around with `cargo xtask cluster kubectl get events -A`";

/// The kubectl of the cluster's version, from outside of its namespaces or from inside.
pub struct Kubectl<'c> {
    cluster: Option<&'c Cluster>,
}

impl<'c> Kubectl<'c> {
    /// From outside.
    pub fn of(cluster: &'c Cluster) -> Self {
        Self { cluster: Some(cluster) }
    }

    /// From inside, where `cargo xtask cluster exec` has set KUBECONFIG and PATH.
    pub fn inside() -> Kubectl<'static> {
        Kubectl { cluster: None }
    }

    /// The bare command, for arguments of one's own.
    pub fn command(&self) -> Result<Command> {
        match self.cluster {
            Some(cluster) => cluster.command("kubectl"),
            None => Ok(Command::new("kubectl")),
        }
    }

    /// What kubectl prints.
    pub fn text(&self, arguments: &[&str]) -> Result<String> {
        let what = format!("kubectl {}", arguments.join(" "));
        program::quiet(&what, self.command()?.args(arguments), CURE)
    }

    /// `kubectl … --output=json`, parsed.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let mut arguments = arguments.to_vec();
        arguments.push("--output=json");
        parse(&self.text(&arguments)?, &arguments)
    }

    /// An object, or `None` when there is none of that name.
    pub fn find(&self, arguments: &[&str]) -> Result<Option<Value>> {
        let mut arguments = [&["get", "--ignore-not-found"], arguments].concat();
        arguments.push("--output=json");
        let text = self.text(&arguments)?;
        if text.trim().is_empty() { Ok(None) } else { parse(&text, &arguments).map(Some) }
    }

    /// A GET of a path of the API server; its proxy subresources reach pods and services from outside.
    pub fn raw(&self, path: &str) -> Result<String> {
        self.text(&["get", "--raw", path])
    }

    /// Applies YAML documents.
    pub fn apply(&self, yaml: &str) -> Result<String> {
        let mut command = self.command()?;
        command.args(["apply", "--filename=-"]);
        program::quiet_with_input("kubectl apply", &mut command, yaml, CURE)
    }

    /// The text of a refusal; an error when the API server accepts the YAML.
    pub fn apply_refused(&self, yaml: &str) -> Result<String> {
        match self.apply(yaml) {
            Err(Error::Program { output, .. }) => Ok(output),
            Err(other) => Err(other),
            Ok(accepted) => Err(Error::Unreadable {
                what: "the API server's answer".into(),
                detail: format!("a refusal was expected, and it accepted: {accepted}"),
            }),
        }
    }

    /// A merge patch.
    pub fn patch(&self, namespace: &str, object: &str, patch: &Value) -> Result<String> {
        let patch = format!("--patch={patch}");
        self.text(&["--namespace", namespace, "patch", object, "--type=merge", &patch])
    }

    /// Waits for a rollout to finish.
    pub fn wait_for_rollout(&self, namespace: &str, object: &str, deadline: Duration) -> Result<()> {
        let timeout = format!("--timeout={}s", deadline.as_secs());
        self.text(&["--namespace", namespace, "rollout", "status", object, &timeout]).map(drop)
    }

    /// Waits until a cluster-wide object exists and a condition of it is True.
    pub fn wait_for_condition(
        &self,
        kind: &str,
        name: &str,
        condition: &str,
        deadline: Duration,
    ) -> Result<()> {
        self.wait_for(&[kind, name], &format!("{condition} of {kind} {name}"), deadline, |object| {
            condition_status(object, condition) == Some("True")
        })
        .map(drop)
    }

    /// Waits until an object exists and `holds`; returns it. `arguments` are those of `kubectl get`.
    pub fn wait_for(
        &self,
        arguments: &[&str],
        what: &str,
        deadline: Duration,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        wait::until(what, deadline, CURE, || {
            Ok(match self.find(arguments) {
                Ok(Some(object)) if holds(&object) => Look::Done(object),
                Ok(Some(object)) => Look::NotYet(object["status"].to_string()),
                Ok(None) => Look::NotYet("no such object".into()),
                // The API server may be busy or not know the kind yet; the deadline is the judge.
                Err(error) => Look::NotYet(error.to_string()),
            })
        })
    }
}

/// The status of a condition: `True`, `False` or `Unknown`.
pub fn condition_status<'a>(object: &'a Value, condition: &str) -> Option<&'a str> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|entry| entry["type"] == condition)?["status"].as_str()
}

fn parse(text: &str, arguments: &[&str]) -> Result<Value> {
    serde_json::from_str(text).map_err(|error| Error::Unreadable {
        what: format!("kubectl {}", arguments.join(" ")),
        detail: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_found_by_its_type() {
        let object = serde_json::json!({"status": {"conditions": [
            {"type": "Reconciling", "status": "False"}, {"type": "Ready", "status": "True"}]}});
        assert_eq!(condition_status(&object, "Ready"), Some("True"));
        assert_eq!(condition_status(&object, "Stalled"), None);
    }
}
