//! The first difference between what is wanted and what is there, in words.
//!
//! Only what is wanted is looked at: fields that others set, and defaults that the API server filled in, are no
//! difference. Quantities are compared by value. The text becomes the event that says why a pod is replaced.

use metricsstore_contract::Quantity;
use serde_json::Value;

/// Lists whose items are found by a key and may have foreign neighbours; all other lists are compared as a whole.
const KEYED: [&str; 12] = [
    "containers",
    "initContainers",
    "volumes",
    "env",
    "ports",
    "volumeMounts",
    "imagePullSecrets",
    "ownerReferences",
    "topologySpreadConstraints",
    "volumeClaimTemplates",
    "resizePolicy",
    "finalizers",
];
/// Keys that name an item, in the order in which they are tried.
const NAMES: [&str; 6] = ["name", "containerPort", "mountPath", "topologyKey", "resourceName", "uid"];
/// Longest value that is shown.
const SHOWN: usize = 120;

/// `None` when everything wanted is there. Otherwise such as `spec.replicas: 1, wanted 2`.
pub fn first_difference(wanted: &Value, found: &Value) -> Option<String> {
    differ("", "", wanted, found)
}

fn differ(path: &str, field: &str, wanted: &Value, found: &Value) -> Option<String> {
    match (wanted, found) {
        (Value::Object(fields), Value::Object(others)) => fields.iter().find_map(|(name, value)| {
            let at = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            differ(&at, name, value, others.get(name).unwrap_or(&Value::Null))
        }),
        (Value::Array(items), Value::Array(others)) if KEYED.contains(&field) => {
            items.iter().find_map(|item| differ_from_any(path, item, others))
        }
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => items
            .iter()
            .zip(others)
            .enumerate()
            .find_map(|(place, (item, other))| differ(&format!("{path}[{place}]"), "", item, other)),
        // A list that is longer or shorter: of a command line, the one argument that came or went.
        (Value::Array(items), Value::Array(others)) if !items.is_empty() && !others.is_empty() => {
            let only = |these: &[Value], those: &[Value]| {
                let item = these.iter().find(|item| !those.contains(item));
                item.map_or_else(|| "absent".to_owned(), shown)
            };
            Some(format!("{path}: {}, wanted {}", only(others, items), only(items, others)))
        }
        (Value::String(text), Value::String(other)) if text.contains('\n') && other.contains('\n') => {
            let lines = text.lines().map(Some).chain([None]).zip(other.lines().map(Some).chain([None]));
            let (wanted, found) = lines.into_iter().find(|(wanted, found)| wanted != found)?;
            let line = |line: Option<&str>| {
                line.map_or("absent".to_owned(), |line| shown(&Value::String(line.trim().into())))
            };
            Some(format!("{path}: {}, wanted {}", line(found), line(wanted)))
        }
        _ if wanted == found || (is_nothing(wanted) && found.is_null()) || same_quantity(wanted, found) => {
            None
        }
        _ => Some(format!("{path}: {}, wanted {}", shown(found), shown(wanted))),
    }
}

/// An item of a keyed list against the one of the same name, else against all.
fn differ_from_any(path: &str, item: &Value, others: &[Value]) -> Option<String> {
    if others.iter().any(|other| differ(path, "", item, other).is_none()) {
        return None;
    }
    let name = NAMES.iter().find_map(|key| item.get(key).map(|name| (*key, name)));
    let namesake = name.and_then(|(key, name)| others.iter().find(|other| other.get(key) == Some(name)));
    let at = name.map_or_else(|| path.to_owned(), |(_, name)| format!("{path}[{}]", shown(name)));
    match namesake {
        Some(other) => differ(&at, "", item, other),
        None => Some(format!("{at}: missing")),
    }
}

/// The API server drops what is empty.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn same_quantity(wanted: &Value, found: &Value) -> bool {
    match (wanted.as_str().map(Quantity::parse), found.as_str().map(Quantity::parse)) {
        (Some(Ok(wanted)), Some(Ok(found))) => wanted == found,
        _ => false,
    }
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => "absent".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.chars().count() <= SHOWN { text } else { text.chars().take(SHOWN).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn foreign_fields_and_server_defaults_are_no_difference() {
        let wanted = json!({ "spec": { "containers": [{ "name": "a", "image": "x" }] } });
        let found = json!({ "spec": { "containers": [{ "name": "sidecar" }, { "name": "a", "image": "x", "tty": false }],
            "dnsPolicy": "ClusterFirst" }, "status": {} });
        assert_eq!(first_difference(&wanted, &found), None);
    }

    #[test]
    fn quantities_are_compared_by_value() {
        let wanted = json!({ "limits": { "memory": "1Gi", "cpu": "500m" } });
        let found = json!({ "limits": { "memory": "1024Mi", "cpu": "0.5" } });
        assert_eq!(first_difference(&wanted, &found), None);
    }

    #[test]
    fn the_first_difference_is_said_in_words() {
        let wanted = json!({ "containers": [{ "name": "a", "image": "new" }] });
        let found = json!({ "containers": [{ "name": "a", "image": "old" }] });
        assert_eq!(first_difference(&wanted, &found).unwrap(), "containers[a].image: old, wanted new");
        assert_eq!(
            first_difference(&json!({ "replicas": 2 }), &json!({})).unwrap(),
            "replicas: absent, wanted 2"
        );
    }

    #[test]
    fn plain_lists_are_compared_as_a_whole() {
        let wanted = json!({ "args": ["a"] });
        assert!(first_difference(&wanted, &json!({ "args": ["a", "b"] })).is_some());
        assert!(first_difference(&wanted, &json!({ "args": ["a"] })).is_none());
    }

    #[test]
    fn of_a_command_line_the_argument_that_came_or_went_is_said() {
        let args = |args: &[&str]| json!({ "args": args });
        let difference = |wanted, found| first_difference(&args(wanted), &args(found)).unwrap();
        assert_eq!(difference(&["serve", "--a", "--b"], &["serve", "--a"]), "args: absent, wanted --b");
        assert_eq!(difference(&["serve"], &["serve", "--b"]), "args: --b, wanted absent");
    }

    #[test]
    fn of_a_text_the_first_line_that_differs_is_said() {
        let text = |bytes: u32| json!({ "engine.yaml": format!("schema: 1\n  bytes: {bytes}\n") });
        assert_eq!(first_difference(&text(2), &text(1)).unwrap(), "engine.yaml: bytes: 1, wanted bytes: 2");
        assert_eq!(first_difference(&text(2), &text(2)), None);
    }

    #[test]
    fn what_is_empty_may_be_absent() {
        assert_eq!(first_difference(&json!({ "labels": {}, "args": [] }), &json!({})), None);
    }
}
