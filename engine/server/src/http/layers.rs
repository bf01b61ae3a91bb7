//! What surrounds every endpoint of the API: compression when asked for, CORS.
use std::io::Write as _;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::reply::Reply;

/// Below this, compressing costs more than it saves.
const MIN_COMPRESSED: usize = 1024;
/// From this on compression runs where it may block.
const BLOCKING_FROM: usize = 256 << 10;

/// Whether a client takes gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
            name.trim() == "gzip" && quality.trim() != "q=0"
        })
}

/// Compresses the body of an answer.
pub async fn compress(reply: Reply) -> Reply {
    let (mut parts, body) = reply.into_parts();
    parts.headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    if parts.headers.contains_key(header::CONTENT_ENCODING) {
        return Reply::from_parts(parts, body);
    }
    // Every body here is one buffer in memory, so this neither waits nor copies.
    let Ok(bytes) = axum::body::to_bytes(body, usize::MAX).await else {
        return Reply::from_parts(parts, Body::empty());
    };
    if bytes.len() < MIN_COMPRESSED {
        return Reply::from_parts(parts, Body::from(bytes));
    }
    let packed = if bytes.len() < BLOCKING_FROM {
        gzip(&bytes)
    } else {
        let input = bytes.clone();
        tokio::task::spawn_blocking(move || gzip(&input)).await.unwrap_or(None)
    };
    match packed {
        Some(packed) => {
            parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            parts.headers.remove(header::CONTENT_LENGTH);
            Reply::from_parts(parts, Body::from(packed))
        }
        None => Reply::from_parts(parts, Body::from(bytes)),
    }
}

fn gzip(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

/// Which origins may read answers in a browser.
#[derive(Debug, Clone)]
pub struct Cors {
    /// `None` stands for every origin.
    origins: Option<regex::Regex>,
}

impl Cors {
    /// From `--web.cors.origin`, anchored at both ends.
    pub fn new(pattern: &str) -> Result<Cors, regex::Error> {
        let origins =
            if pattern == ".*" { None } else { Some(regex::Regex::new(&format!("^(?:{pattern})$"))?) };
        Ok(Cors { origins })
    }

    /// Adds Prometheus' headers to an answer.
    pub fn apply(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
        let Some(origin) = origin else { return };
        let fixed = [
            (header::ACCESS_CONTROL_ALLOW_HEADERS, "Accept, Authorization, Content-Type, Origin"),
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, OPTIONS"),
            (header::ACCESS_CONTROL_EXPOSE_HEADERS, "Date"),
        ];
        for (name, value) in fixed {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let allowed = |regex: &regex::Regex| origin.to_str().is_ok_and(|text| regex.is_match(text));
        if self.origins.as_ref().is_none_or(allowed) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
    }
}
