//! How a job talks to its targets: authorization, TLS, headers.
use std::path::Path;

use metricsstore_scrape::{Authorization, HttpConfig, Pem, Secret, TlsConfig};

use super::yaml::{ConfigError, Node, Section};

/// Keys of the HTTP client that stand inside a job.
pub const KEYS: &[&str] = &[
    "basic_auth",
    "authorization",
    "bearer_token",
    "bearer_token_file",
    "tls_config",
    "follow_redirects",
    "enable_http2",
    "http_headers",
];

/// Keys that nothing would come of yet.
pub const LATER: &[&str] =
    &["oauth2", "proxy_url", "no_proxy", "proxy_from_environment", "proxy_connect_header"];

/// Reads them.
pub fn read(section: &Section<'_>, dir: &Path) -> Result<HttpConfig, ConfigError> {
    // Targets are spoken to in HTTP/1.1, which every target speaks; the switch changes no answer.
    section.read("enable_http2", Node::boolean)?;
    Ok(HttpConfig {
        authorization: authorization(section, dir)?,
        tls: section.read("tls_config", |node| tls(node, dir))?.unwrap_or_default(),
        follow_redirects: section.read("follow_redirects", Node::boolean)?.unwrap_or(true),
        headers: section.read("http_headers", |node| headers(node, dir))?.unwrap_or_default(),
    })
}

fn authorization(section: &Section<'_>, dir: &Path) -> Result<Option<Authorization>, ConfigError> {
    let given: Vec<&Node> = ["basic_auth", "authorization", "bearer_token", "bearer_token_file"]
        .iter()
        .filter_map(|key| section.get(key))
        .filter(|node| !node.is_empty())
        .collect();
    if let [_, second, ..] = given.as_slice() {
        return Err(second.error(
            "at most one of basic_auth, authorization, bearer_token and bearer_token_file may be configured",
        ));
    }
    if let Some(node) = section.get("basic_auth").filter(|node| !node.is_empty()) {
        return basic(node, dir).map(Some);
    }
    if let Some(node) = section.get("authorization").filter(|node| !node.is_empty()) {
        return credentials(node, dir).map(Some);
    }
    let token = one_secret(section, "bearer_token", "bearer_token_file", dir)?;
    Ok(token.map(|credentials| Authorization::Credentials { kind: "Bearer".into(), credentials }))
}

fn basic(node: &Node, dir: &Path) -> Result<Authorization, ConfigError> {
    let section = node.section(
        &["username", "username_file", "password", "password_file"],
        &["username_ref", "password_ref"],
    )?;
    let none = || Secret::Text(String::new());
    Ok(Authorization::Basic {
        username: one_secret(&section, "username", "username_file", dir)?.unwrap_or_else(none),
        password: one_secret(&section, "password", "password_file", dir)?.unwrap_or_else(none),
    })
}

fn credentials(node: &Node, dir: &Path) -> Result<Authorization, ConfigError> {
    let section = node.section(&["type", "credentials", "credentials_file"], &["credentials_ref"])?;
    let kind = section.read("type", Node::text)?.map_or("Bearer", str::trim);
    if kind.eq_ignore_ascii_case("basic") {
        return Err(node.error("authorization type cannot be set to \"basic\", use \"basic_auth\" instead"));
    }
    let credentials = one_secret(&section, "credentials", "credentials_file", dir)?
        .ok_or_else(|| node.error("credentials or credentials_file is missing"))?;
    Ok(Authorization::Credentials { kind: kind.to_owned(), credentials })
}

fn one_secret(
    section: &Section<'_>,
    text_key: &str,
    file_key: &str,
    dir: &Path,
) -> Result<Option<Secret>, ConfigError> {
    let text = section.read(text_key, Node::text)?.filter(|text| !text.is_empty());
    let file = section.read(file_key, Node::text)?.filter(|path| !path.is_empty());
    match (text, file) {
        (Some(_), Some(_)) => {
            Err(section.node.error(format!("at most one of {text_key} and {file_key} may be configured")))
        }
        (Some(text), None) => Ok(Some(Secret::Text(text.to_owned()))),
        (None, Some(file)) => Ok(Some(Secret::File(dir.join(file)))),
        (None, None) => Ok(None),
    }
}

fn tls(node: &Node, dir: &Path) -> Result<TlsConfig, ConfigError> {
    let section = node.section(
        &["ca", "ca_file", "cert", "cert_file", "key", "key_file", "server_name", "insecure_skip_verify"],
        &["ca_ref", "cert_ref", "key_ref", "min_version", "max_version"],
    )?;
    let pem = |text_key: &str, file_key: &str| -> Result<Option<Pem>, ConfigError> {
        Ok(one_secret(&section, text_key, file_key, dir)?.map(|secret| match secret {
            Secret::Text(text) => Pem::Text(text),
            Secret::File(path) => Pem::File(path),
        }))
    };
    let (cert, key) = (pem("cert", "cert_file")?, pem("key", "key_file")?);
    if cert.is_some() != key.is_some() {
        return Err(node.error("a client certificate needs both its certificate and its key"));
    }
    Ok(TlsConfig {
        ca: pem("ca", "ca_file")?,
        cert,
        key,
        server_name: section
            .read("server_name", Node::text)?
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
        insecure_skip_verify: section.read("insecure_skip_verify", Node::boolean)?.unwrap_or(false),
    })
}

fn headers(node: &Node, dir: &Path) -> Result<Vec<(String, Vec<Secret>)>, ConfigError> {
    node.pairs()?
        .iter()
        .map(|(name, value)| {
            let section = value.section(&["values", "secrets", "files"], &["secrets_refs"])?;
            let mut all = Vec::new();
            for key in ["values", "secrets"] {
                let texts = section.read(key, Node::texts)?.unwrap_or_default();
                all.extend(texts.into_iter().map(Secret::Text));
            }
            let files = section.read("files", Node::texts)?.unwrap_or_default();
            all.extend(files.into_iter().map(|path| Secret::File(dir.join(path))));
            Ok((name.text()?.to_owned(), all))
        })
        .collect()
}
