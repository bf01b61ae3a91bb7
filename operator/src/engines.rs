//! Talking to the engines in the pods, over plain HTTP inside the cluster.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use metricsstore_contract::RuntimeInfo;
use serde::Deserialize;

use crate::plan::names::{OPS_PORT, WEB_PORT};

/// An engine that does not answer in time is taken for silent.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Longest answer that is read.
const MAX_ANSWER: usize = 1 << 20;

/// A client for all engines; cheap to clone.
#[derive(Clone)]
pub struct Engines {
    http: Client<HttpConnector, Full<Bytes>>,
}

/// Prometheus' envelope.
#[derive(Deserialize)]
struct Envelope {
    data: RuntimeInfo,
}

impl Engines {
    /// A client without connections.
    pub fn new() -> Engines {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(TIMEOUT));
        Engines { http: Client::builder(TokioExecutor::new()).build(connector) }
    }

    /// What the engine at this pod address says about itself; an error in words.
    pub async fn runtime_info(&self, address: &str) -> Result<RuntimeInfo, String> {
        let request = http::Request::get(url(address, WEB_PORT, "/api/v1/status/runtimeinfo"));
        let body = self.call(request, Bytes::new()).await?;
        serde_json::from_slice::<Envelope>(&body)
            .map(|envelope| envelope.data)
            .map_err(|error| format!("its runtime info is not understood: {error}"))
    }

    /// Has the engine at this pod address read its configuration again.
    pub async fn reload(&self, address: &str, token: &str) -> Result<(), String> {
        let request = http::Request::post(url(address, OPS_PORT, "/-/reload"))
            .header(http::header::AUTHORIZATION, format!("Bearer {}", token.trim()));
        self.call(request, Bytes::new()).await.map(drop)
    }

    async fn call(&self, request: http::request::Builder, body: Bytes) -> Result<Bytes, String> {
        let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
        let answer = async {
            let response = self.http.request(request).await.map_err(|error| chain(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER);
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            if status.is_success() {
                return Ok(body);
            }
            let text: String = String::from_utf8_lossy(&body).trim().chars().take(200).collect();
            Err(format!("it answers {status}: {text}"))
        };
        tokio::time::timeout(TIMEOUT, answer)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")))
    }
}

impl Default for Engines {
    fn default() -> Self {
        Engines::new()
    }
}

/// The client's own message is only "client error"; its source says what happened.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = error.to_string();
        source = error.source();
    }
    text
}

fn url(address: &str, port: u16, path: &str) -> String {
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("http://[{address}]:{port}{path}"),
        _ => format!("http://{address}:{port}{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_become_urls() {
        assert_eq!(url("10.0.0.1", 9090, "/x"), "http://10.0.0.1:9090/x");
        assert_eq!(url("fd00::1", 9091, "/x"), "http://[fd00::1]:9091/x");
    }
}
