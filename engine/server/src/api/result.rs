//! Query results as JSON, written straight from their columns.
use metricsstore_promql::{LabelTable, Point, Value};

use crate::number::{push_float, push_string, push_timestamp};

/// Most bytes that one point takes in JSON, with its separators.
const POINT_BYTES: usize = 48;

/// What the JSON of a value will need at most, roughly, in bytes.
pub fn estimate_bytes(value: &Value) -> usize {
    match value {
        Value::Scalar(_) => POINT_BYTES,
        Value::String { text, .. } => POINT_BYTES + text.len(),
        Value::Vector(vector) => series_bytes(&vector.labels) + vector.points.len() * POINT_BYTES,
        Value::Matrix(matrix) => series_bytes(&matrix.labels) + matrix.points.len() * POINT_BYTES,
    }
}

fn series_bytes(labels: &LabelTable) -> usize {
    2 * labels.bytes() + 32 * labels.len()
}

/// Number of series of a vector or matrix.
pub fn series_count(value: &Value) -> Option<usize> {
    match value {
        Value::Vector(vector) => Some(vector.points.len()),
        Value::Matrix(matrix) => Some(matrix.len()),
        Value::Scalar(_) | Value::String { .. } => None,
    }
}

/// Appends `"resultType":…,"result":…` with at most `limit` series.
pub fn push_result(out: &mut Vec<u8>, value: &Value, limit: usize) {
    let kind = match value {
        Value::Scalar(_) => "scalar",
        Value::String { .. } => "string",
        Value::Vector(_) => "vector",
        Value::Matrix(_) => "matrix",
    };
    out.extend_from_slice(b"\"resultType\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"result\":");
    match value {
        Value::Scalar(point) => push_point(out, point),
        Value::String { t_ms, text } => {
            out.push(b'[');
            push_timestamp(out, *t_ms);
            out.push(b',');
            push_string(out, text);
            out.push(b']');
        }
        Value::Vector(vector) => {
            out.push(b'[');
            for (index, point) in vector.points.iter().take(limit).enumerate() {
                open_series(out, &vector.labels, index);
                out.extend_from_slice(b",\"value\":");
                push_point(out, point);
                out.push(b'}');
            }
            out.push(b']');
        }
        Value::Matrix(matrix) => {
            out.push(b'[');
            for index in 0..matrix.len().min(limit) {
                open_series(out, &matrix.labels, index);
                out.extend_from_slice(b",\"values\":[");
                for (nth, point) in matrix.series(index).iter().enumerate() {
                    if nth > 0 {
                        out.push(b',');
                    }
                    push_point(out, point);
                }
                out.extend_from_slice(b"]}");
            }
            out.push(b']');
        }
    }
}

fn open_series(out: &mut Vec<u8>, labels: &LabelTable, index: usize) {
    if index > 0 {
        out.push(b',');
    }
    out.extend_from_slice(b"{\"metric\":");
    push_labels(out, labels.pairs(index));
}

/// Appends a label set as a JSON object.
pub fn push_labels<'l>(out: &mut Vec<u8>, pairs: impl Iterator<Item = (&'l str, &'l str)>) {
    out.push(b'{');
    for (index, (name, value)) in pairs.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push_string(out, name);
        out.push(b':');
        push_string(out, value);
    }
    out.push(b'}');
}

fn push_point(out: &mut Vec<u8>, point: &Point) {
    out.push(b'[');
    push_timestamp(out, point.t_ms);
    out.extend_from_slice(b",\"");
    push_float(out, point.value);
    out.extend_from_slice(b"\"]");
}

#[cfg(test)]
mod tests {
    use super::push_result;
    use metricsstore_promql::{Matrix, Point, Value, Vector};

    fn json(value: &Value) -> String {
        let mut out = b"{".to_vec();
        push_result(&mut out, value, usize::MAX);
        out.push(b'}');
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_type_has_prometheus_shape() {
        let point = Point { t_ms: 1_500, value: f64::INFINITY };
        assert_eq!(json(&Value::Scalar(point)), r#"{"resultType":"scalar","result":[1.500,"+Inf"]}"#);
        let text = Value::String { t_ms: 1000, text: "a\"b".into() };
        assert_eq!(json(&text), r#"{"resultType":"string","result":[1,"a\"b"]}"#);
        assert_eq!(json(&Value::Vector(Vector::default())), r#"{"resultType":"vector","result":[]}"#);
        assert_eq!(json(&Value::Matrix(Matrix::default())), r#"{"resultType":"matrix","result":[]}"#);
    }
}
