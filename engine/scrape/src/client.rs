//! HTTP requests to the targets of a job.
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName,
    HeaderValue, LOCATION, USER_AGENT,
};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use url::Url;

use crate::body::{Body, accept, effective_limit};
use crate::room::{Hold, Room};
use crate::tls::client_config;
use crate::{Authorization, HttpConfig, Pem, ScrapeConfig, ScrapeError, Secret};

const MAX_REDIRECTS: u32 = 10;
const AGENT: &str = concat!("metricsstore/", env!("CARGO_PKG_VERSION"));
const TIMEOUT_HEADER: HeaderName = HeaderName::from_static("x-prometheus-scrape-timeout-seconds");

/// Unused connections are closed after this time: a little more than the longest usual interval.
const IDLE: Duration = Duration::from_secs(150);

/// Read buffer of a connection, which it keeps while it is unused.
const READ_BUFFER_BYTES: usize = 16 << 10;

/// Longest secret that is read from a file, in bytes.
const MAX_SECRET_BYTES: u64 = 1 << 20;

type HttpClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// Size and time of change of a file; `None` when it cannot be read.
type Version = Option<(u64, SystemTime)>;

/// What the files of the TLS configuration looked like when the client was built.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Built {
    has_tls: bool,
    files: [Version; 3],
}

/// The client of a job; its TLS files are read again when they change.
pub(crate) struct JobClient {
    http: HttpConfig,
    accept: String,
    accept_encoding: &'static str,
    body_size_limit: u64,
    room: Room,
    current: Mutex<Option<(Built, HttpClient)>>,
}

impl JobClient {
    pub(crate) fn new(config: &ScrapeConfig, room: Room) -> JobClient {
        JobClient {
            http: config.http.clone(),
            accept: accept(&config.scrape_protocols),
            accept_encoding: if config.enable_compression { "gzip" } else { "identity" },
            body_size_limit: config.body_size_limit,
            room,
            current: Mutex::new(None),
        }
    }

    /// Gets a page within `timeout`, and what counts its bytes.
    pub(crate) async fn get(&self, url: &str, timeout: Duration) -> Result<(Body, Hold), ScrapeError> {
        match tokio::time::timeout(timeout, self.follow(url, timeout)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ScrapeError::Timeout { url: url.to_owned(), timeout: format!("{timeout:?}") }),
        }
    }

    async fn follow(&self, url: &str, timeout: Duration) -> Result<(Body, Hold), ScrapeError> {
        let bad = |reason: String| ScrapeError::Request { url: url.to_owned(), reason };
        let first = Url::parse(url).map_err(|error| bad(error.to_string()))?;
        let mut at = first.clone();
        for hop in 0..=MAX_REDIRECTS {
            // The first request keeps the URL as it was made; a parsed one loses a default port.
            let address = if hop == 0 { url } else { at.as_str() };
            let is_home = (at.scheme(), at.host_str(), at.port_or_known_default())
                == (first.scheme(), first.host_str(), first.port_or_known_default());
            let request = self.request(address, timeout, is_home)?;
            let response = self.client(at.scheme() == "https")?.request(request).await;
            let response = response.map_err(|error| bad(chain(&error)))?;
            let Some(location) = self.redirect(&response) else { return self.read(response).await };
            at = at.join(location).map_err(|error| bad(format!("redirect to {location:?}: {error}")))?;
            if !matches!(at.scheme(), "http" | "https") {
                return Err(bad(format!("redirect to {at}")));
            }
        }
        Err(ScrapeError::Redirects(MAX_REDIRECTS))
    }

    fn redirect<'r>(&self, response: &'r Response<Incoming>) -> Option<&'r str> {
        let is_redirect = matches!(
            response.status(),
            StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT
        );
        response.headers().get(LOCATION)?.to_str().ok().filter(|_| is_redirect && self.http.follow_redirects)
    }

    /// Credentials are only sent to the host that the target names.
    fn request(
        &self,
        url: &str,
        timeout: Duration,
        is_home: bool,
    ) -> Result<Request<Empty<Bytes>>, ScrapeError> {
        let mut request = Request::get(url)
            .body(Empty::new())
            .map_err(|error| ScrapeError::Request { url: url.to_owned(), reason: error.to_string() })?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, header("scrape_protocols", &self.accept)?);
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(self.accept_encoding));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert(TIMEOUT_HEADER, header("scrape_timeout", &timeout.as_secs_f64().to_string())?);
        if is_home {
            if let Some(authorization) = &self.http.authorization {
                headers.insert(AUTHORIZATION, credentials(authorization)?);
            }
            self.add_configured_headers(headers)?;
        }
        Ok(request)
    }

    fn add_configured_headers(&self, headers: &mut HeaderMap) -> Result<(), ScrapeError> {
        for (name, values) in &self.http.headers {
            let what = format!("http_headers {name:?}");
            let parsed = HeaderName::try_from(name).map_err(|error| ScrapeError::Credentials {
                what: what.clone(),
                reason: error.to_string(),
            })?;
            headers.remove(&parsed);
            for value in values {
                headers.append(parsed.clone(), header(&what, &secret(&what, value)?)?);
            }
        }
        Ok(())
    }

    async fn read(&self, mut response: Response<Incoming>) -> Result<(Body, Hold), ScrapeError> {
        let status = response.status();
        if status != StatusCode::OK {
            let reason = status.canonical_reason().unwrap_or("");
            return Err(ScrapeError::Status(format!("{} {reason}", status.as_u16())));
        }
        let text = |name: HeaderName| -> String {
            response.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or("").to_owned()
        };
        let (content_type, encoding) = (text(CONTENT_TYPE), text(CONTENT_ENCODING));
        // A compressed page is smaller than its limit; whether the page itself is shows when it is decompressed.
        let limit = effective_limit(self.body_size_limit);
        let (mut bytes, mut hold) = (Vec::new(), self.room.hold());
        while let Some(frame) = response.body_mut().frame().await {
            let frame = frame.map_err(|error| ScrapeError::Request {
                url: "the rest of the page".into(),
                reason: chain(&error),
            })?;
            if let Some(data) = frame.data_ref() {
                if (bytes.len() + data.len()) as u64 > limit {
                    return Err(ScrapeError::BodySizeLimit);
                }
                hold.make_room(&mut bytes, data.len())?;
                bytes.extend_from_slice(data);
            }
        }
        bytes.shrink_to_fit();
        Ok((Body { bytes: bytes.into(), is_gzip: encoding == "gzip", content_type }, hold))
    }

    fn client(&self, has_tls: bool) -> Result<HttpClient, ScrapeError> {
        let tls = &self.http.tls;
        let files = [&tls.ca, &tls.cert, &tls.key].map(|pem| pem.as_ref().and_then(version));
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((built, client)) = &*current
            && built.files == files
            && (built.has_tls || !has_tls)
        {
            return Ok(client.clone());
        }
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(client_config(tls, has_tls)?).https_or_http();
        let connector = match &tls.server_name {
            Some(name) => {
                let name = rustls_pki_types::ServerName::try_from(name.clone()).map_err(|error| {
                    ScrapeError::Credentials {
                        what: format!("server_name {name:?}"),
                        reason: error.to_string(),
                    }
                })?;
                connector.with_server_name_resolver(FixedServerNameResolver::new(name))
            }
            None => connector,
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(1)
            .http1_max_buf_size(READ_BUFFER_BYTES)
            .build(connector.enable_http1().build());
        *current = Some((Built { has_tls, files }, client.clone()));
        Ok(client)
    }
}

fn version(pem: &Pem) -> Version {
    let Pem::File(path) = pem else { return None };
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}

fn credentials(authorization: &Authorization) -> Result<HeaderValue, ScrapeError> {
    let mut value = match authorization {
        Authorization::Basic { username, password } => {
            let pair = format!("{}:{}", secret("username", username)?, secret("password", password)?);
            header("basic_auth", &format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair)))
        }
        Authorization::Credentials { kind, credentials } => {
            header("credentials", &format!("{kind} {}", secret("credentials", credentials)?))
        }
    }?;
    value.set_sensitive(true);
    Ok(value)
}

fn secret(what: &str, secret: &Secret) -> Result<String, ScrapeError> {
    match secret {
        Secret::Text(text) => Ok(text.clone()),
        Secret::File(path) => Ok(String::from_utf8_lossy(&read_file(what, path)?).trim().to_owned()),
    }
}

/// Reads a small file; the message names it.
pub(crate) fn read_file(what: &str, path: &Path) -> Result<Vec<u8>, ScrapeError> {
    use std::io::Read as _;
    let failed = |error: std::io::Error| ScrapeError::Credentials {
        what: format!("{what} file {}", path.display()),
        reason: error.to_string(),
    };
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_SECRET_BYTES).read_to_end(&mut bytes))
        .map_err(failed)?;
    Ok(bytes)
}

fn header(what: &str, value: &str) -> Result<HeaderValue, ScrapeError> {
    HeaderValue::from_str(value)
        .map_err(|error| ScrapeError::Credentials { what: what.to_owned(), reason: error.to_string() })
}

/// An error and its causes: the outer ones alone say only "client error (Connect)".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// A client that many loops share.
pub(crate) type SharedClient = Arc<JobClient>;
