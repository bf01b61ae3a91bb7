//! From the derived schema to the one that is published: short, bounded and without nullable fields.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::MetricsStore;

/// Bounds for what the types themselves leave open. CEL's cost estimate counts on them.
const MAX_STRING: u64 = 4096;
const MAX_ITEMS: u64 = 64;
const MAX_ENTRIES: u64 = 64;

/// Types of Kubernetes embedded in ours. Their descriptions are long and known, so they are left out.
const EMBEDDED: [&str; 4] = ["affinity", "tolerations", "topologySpreadConstraints", "conditions"];

/// The definition as it is published.
pub fn crd() -> Result<CustomResourceDefinition, serde_json::Error> {
    let mut crd = serde_json::to_value(MetricsStore::crd())?;
    if let Some(schema) = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema") {
        finish(schema, false);
        if let Some(status) = schema.pointer_mut("/properties/status").and_then(Value::as_object_mut) {
            status.insert("default".into(), json!({ "observedGeneration": -1 }));
        }
    }
    serde_json::from_value(crd)
}

/// The same as YAML, with a line that says where it comes from.
pub fn crd_yaml() -> Result<String, serde_yaml_ng::Error> {
    let crd = crd().map_err(<serde_yaml_ng::Error as serde::ser::Error>::custom)?;
    // Through a JSON value, so that keys are sorted and the text is stable.
    let value = serde_json::to_value(crd).map_err(<serde_yaml_ng::Error as serde::ser::Error>::custom)?;
    Ok(format!(
        "# Generated from the types in crds/ by `cargo xtask crds`.\n{}",
        serde_yaml_ng::to_string(&value)?
    ))
}

/// Works through one schema node and everything below it.
fn finish(node: &mut Value, embedded: bool) {
    let Some(node) = node.as_object_mut() else { return };
    // `Option` means absent, never null.
    node.remove("nullable");
    if let Some(Value::Array(values)) = node.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if embedded {
        node.remove("description");
    }
    unwrap_lines(node);
    bound(node);
    if let Some(Value::Object(properties)) = node.get_mut("properties") {
        for (name, property) in properties {
            let root_metadata = name == "metadata";
            if !root_metadata {
                finish(property, embedded || EMBEDDED.contains(&name.as_str()));
            }
        }
    }
    for below in ["items", "additionalProperties"] {
        if let Some(below) = node.get_mut(below) {
            finish(below, embedded);
        }
    }
}

/// Doc comments are wrapped for the source; a description is one paragraph.
fn unwrap_lines(node: &mut Map<String, Value>) {
    if let Some(Value::String(text)) = node.get_mut("description") {
        *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
}

fn bound(node: &mut Map<String, Value>) {
    let bounds: &[(&str, u64)] = match node.get("type").and_then(Value::as_str) {
        Some("string") if !node.contains_key("enum") && !node.contains_key("format") => {
            &[("maxLength", MAX_STRING)]
        }
        Some("array") => &[("maxItems", MAX_ITEMS)],
        Some("object") if node.contains_key("additionalProperties") => &[("maxProperties", MAX_ENTRIES)],
        _ => &[],
    };
    for (key, most) in bounds {
        node.entry(*key).or_insert_with(|| json!(most));
    }
}
