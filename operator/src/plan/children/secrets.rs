//! Secrets: the operations token, made once, and the scrape configuration.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use metricsstore_contract::content_hash;
use serde::Serialize;

use super::RenderError;
use crate::plan::names;
use crate::reconcile::{Seen, Source, Valid};

/// An existing token stays for ever: whoever wants another one deletes the Secret.
pub fn ops(valid: &Valid, seen: &Seen, fresh_token: &str) -> Secret {
    let existing = seen.existing.ops.as_ref().and_then(|secret| secret.data.as_ref()?.get(names::TOKEN_KEY));
    let token = existing.filter(|token| !token.0.is_empty()).cloned();
    let token = token.unwrap_or_else(|| ByteString(fresh_token.as_bytes().to_vec()));
    secret(valid, names::ops_secret(&valid.name), [(names::TOKEN_KEY.to_owned(), token)].into())
}

#[derive(Serialize)]
struct Main {
    global: Global,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scrape_config_files: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scrape_configs: Vec<Job>,
    #[serde(skip_serializing_if = "Option::is_none")]
    storage: Option<Storage>,
}

#[derive(Serialize)]
struct Storage {
    tsdb: Tsdb,
}

#[derive(Serialize)]
struct Tsdb {
    out_of_order_time_window: String,
}

#[derive(Serialize)]
struct Global {
    scrape_interval: String,
    scrape_timeout: String,
}

#[derive(Serialize)]
struct Job {
    job_name: &'static str,
    static_configs: Vec<Targets>,
}

#[derive(Serialize)]
struct Targets {
    targets: Vec<String>,
}

/// One main file with the global settings, which names each of the user's pieces as a file of its own and word for word,
/// so that the engine's messages point at the line the user wrote.
///
/// A piece that cannot be read at the moment keeps the contents that were rendered last.
pub fn scrape(valid: &Valid, seen: &Seen) -> Result<Secret, RenderError> {
    let rendered = seen.existing.scrape.as_ref().and_then(|secret| secret.data.as_ref());
    let mut data = BTreeMap::new();
    for piece in &seen.pieces {
        let file = piece_file(&piece.source);
        let contents = match &piece.content {
            Ok(contents) => Some(ByteString(contents.clone())),
            Err(_) => rendered.and_then(|data| data.get(&file)).cloned(),
        };
        data.extend(contents.map(|contents| (file, contents)));
    }
    let main = Main {
        global: Global {
            scrape_interval: valid.scrape_interval.to_string(),
            scrape_timeout: valid.scrape_timeout.to_string(),
        },
        scrape_config_files: data.keys().cloned().collect(),
        // Without any configuration the store scrapes itself, as the engine does without a file.
        scrape_configs: if seen.pieces.is_empty() { vec![own_job()] } else { vec![] },
        storage: (valid.out_of_order_window.ms() > 0).then(|| Storage {
            tsdb: Tsdb { out_of_order_time_window: valid.out_of_order_window.to_string() },
        }),
    };
    let main =
        serde_yaml_ng::to_string(&main).map_err(|source| RenderError { what: names::SCRAPE_FILE, source })?;
    data.insert(names::SCRAPE_FILE.to_owned(), ByteString(main.into_bytes()));
    Ok(secret(valid, names::scrape_secret(&valid.name), data))
}

fn own_job() -> Job {
    Job {
        job_name: "metricsstore",
        static_configs: vec![Targets { targets: vec![format!("localhost:{}", names::WEB_PORT)] }],
    }
}

/// The file of a piece: `secret.<name>_<key>` (a name holds no `_`, so no two pieces share one), or a hash of that where it
/// would be too long for a key.
pub fn piece_file(source: &Source) -> String {
    let file = format!("{}.{}_{}", source.kind.word().to_lowercase(), source.name, source.key);
    if file.len() <= 253 { file } else { content_hash(file.as_bytes()) }
}

fn secret(valid: &Valid, name: String, data: BTreeMap<String, ByteString>) -> Secret {
    Secret {
        metadata: names::child(valid, name),
        type_: Some("Opaque".into()),
        data: Some(data),
        ..Secret::default()
    }
}
