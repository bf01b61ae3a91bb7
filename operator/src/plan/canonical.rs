//! One spelling for a value, whatever order its keys came in.

use std::fmt::Write;

use serde_json::Value;

/// JSON with sorted keys and without blanks: the input of every hash that lives in the cluster.
pub fn canonical_json(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value);
    text
}

fn write_value(text: &mut String, value: &Value) {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort();
            text.push('{');
            for (place, name) in names.into_iter().enumerate() {
                if place > 0 {
                    text.push(',');
                }
                // Writing to a String cannot fail.
                let _ = write!(text, "{}:", Value::String(name.clone()));
                write_value(text, &fields[name]);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    text.push(',');
                }
                write_value(text, item);
            }
            text.push(']');
        }
        plain => {
            let _ = write!(text, "{plain}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_at_every_depth() {
        let value = serde_json::json!({ "b": [{ "y": 1, "x": "\"" }], "a": null });
        assert_eq!(canonical_json(&value), r#"{"a":null,"b":[{"x":"\"","y":1}]}"#);
    }
}
