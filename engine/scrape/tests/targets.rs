//! How targets are asked, and what happens when the configuration changes.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use http_body_util::Full;
use hyper::Response;
use metricsstore_contract::PromDuration;
use metricsstore_scrape::{
    Action, Authorization, Health, Pem, RelabelConfig, RelabelRegex, ScrapeConfig, ScrapeManager, Secret,
    TargetGroup,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use support::{INTERVAL, MemoryStore, job, of_job, page, scrape, serve, serve_with};
use tokio_rustls::TlsAcceptor;

fn error_of(manager: &ScrapeManager) -> String {
    manager.targets().active.remove(0).last_error
}

/// Scrapes until the target's health is known; returns it with the last error.
async fn outcome(config: ScrapeConfig) -> (Health, String) {
    let (store, manager) = scrape(config);
    store.wait("a scrape", |_| manager.targets().active[0].health != Health::Unknown).await;
    manager.stop().await;
    (manager.targets().active[0].health, error_of(&manager))
}

type Headers = Arc<Mutex<Vec<hyper::HeaderMap>>>;

/// A server that keeps the headers of its requests.
async fn recording_server() -> (String, Headers) {
    let seen = Headers::default();
    let kept = seen.clone();
    let address = serve(move |request| {
        kept.lock().unwrap().push(request.headers().clone());
        page("a 1\n")
    })
    .await;
    (address, seen)
}

#[tokio::test]
async fn a_request_says_what_is_wanted_and_who_asks() {
    let (address, seen) = recording_server().await;
    let mut config = job(&address);
    config.http.headers =
        vec![("X-Scope".into(), vec![Secret::Text("one".into()), Secret::Text("two".into())])];
    config.http.authorization = Some(Authorization::Basic {
        username: Secret::Text("user".into()),
        password: Secret::Text("pass".into()),
    });
    assert_eq!(outcome(config).await.0, Health::Up);
    let headers = seen.lock().unwrap().remove(0);
    assert_eq!(headers["host"], address);
    assert_eq!(headers["x-prometheus-scrape-timeout-seconds"], "0.3");
    assert!(headers["user-agent"].to_str().unwrap().starts_with("metricsstore/"));
    assert!(headers["accept"].to_str().unwrap().contains("text/plain;version=0.0.4;q=0."));
    assert_eq!(headers["authorization"], "Basic dXNlcjpwYXNz");
    assert_eq!(headers.get_all("x-scope").iter().collect::<Vec<_>>(), ["one", "two"]);

    let (address, seen) = recording_server().await;
    let mut config = job(&address);
    config.enable_compression = false;
    outcome(config).await;
    assert_eq!(seen.lock().unwrap()[0]["accept-encoding"], "identity");
}

#[tokio::test]
async fn a_token_file_is_read_again_for_every_scrape() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, " first\n").unwrap();
    let (address, seen) = recording_server().await;
    let mut config = job(&address);
    config.http.authorization =
        Some(Authorization::Credentials { kind: "Bearer".into(), credentials: Secret::File(token.clone()) });
    let (store, manager) = scrape(config);
    store.wait("the first token", |_| seen.lock().unwrap().len() == 1).await;
    std::fs::write(&token, "second").unwrap();
    store
        .wait("the second token", |_| {
            seen.lock().unwrap().last().unwrap()["authorization"] == "Bearer second"
        })
        .await;
    assert_eq!(seen.lock().unwrap()[0]["authorization"], "Bearer first");
    std::fs::remove_file(&token).unwrap();
    store.wait("an error", |_| error_of(&manager).contains("credentials file")).await;
    manager.stop().await;
}

#[tokio::test]
async fn redirects_are_followed_without_credentials_for_others() {
    let (other, seen) = recording_server().await;
    let location = format!("http://{other}/elsewhere");
    let address = serve(move |_| {
        Response::builder().status(302).header("location", &location).body(Full::default()).unwrap()
    })
    .await;
    let mut config = job(&address);
    config.http.authorization =
        Some(Authorization::Credentials { kind: "Bearer".into(), credentials: Secret::Text("t".into()) });
    assert_eq!(outcome(config.clone()).await.0, Health::Up);
    assert!(!seen.lock().unwrap()[0].contains_key("authorization"));
    config.http.follow_redirects = false;
    assert_eq!(outcome(config).await, (Health::Down, "server returned HTTP status 302 Found".into()));

    let circle = serve(|_| {
        Response::builder().status(302).header("location", "/again").body(Full::default()).unwrap()
    })
    .await;
    assert_eq!(outcome(job(&circle)).await.1, "stopped after 10 redirects");
}

#[tokio::test]
async fn a_target_that_does_not_answer_is_down() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let (health, error) = outcome(job(&address)).await;
    assert_eq!(health, Health::Down);
    assert!(error.ends_with("no whole answer within the scrape timeout of 300ms"), "{error}");
    drop(silent);
    let (_, error) = outcome(job(&address)).await;
    assert!(error.contains("onnection refused"), "{error}");
}

/// An authority and what it issues, as PEM files.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Authority { issuer: CertifiedIssuer::self_signed(params, key).unwrap() }
    }

    fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Certificate and key for a name, as PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// A server with a certificate for `name`; with `clients`, only for clients whose certificate it issued.
    async fn serve(&self, name: &str, clients: Option<&Authority>) -> String {
        let (certificate, key) = self.issue(name);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = rustls::RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(clients.pem().as_bytes()).unwrap()).unwrap();
                let roots = Arc::new(roots);
                let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config = builder.with_single_cert(chain, key).unwrap();
        serve_with(|_| page("a 1\n"), Some(TlsAcceptor::from(Arc::new(config)))).await
    }
}

fn https_job(address: &str) -> ScrapeConfig {
    ScrapeConfig { scheme: "https".into(), ..job(address) }
}

#[tokio::test]
async fn certificates_are_verified() {
    let (good, other) = (Authority::new(), Authority::new());
    let address = good.serve("127.0.0.1", None).await;
    let with_ca = |authority: &Authority| {
        let mut config = https_job(&address);
        config.http.tls.ca = Some(Pem::Text(authority.pem()));
        config
    };
    assert_eq!(outcome(with_ca(&good)).await, (Health::Up, String::new()));
    let (health, error) = outcome(with_ca(&other)).await;
    assert_eq!(health, Health::Down);
    assert!(error.contains("certificate"), "{error}");
    // The system does not know the authority.
    assert_eq!(outcome(https_job(&address)).await.0, Health::Down);
    let mut careless = https_job(&address);
    careless.http.tls.insecure_skip_verify = true;
    assert_eq!(outcome(careless).await, (Health::Up, String::new()));
}

#[tokio::test]
async fn the_server_name_replaces_the_host() {
    let authority = Authority::new();
    let address = authority.serve("metrics.example", None).await;
    let mut config = https_job(&address);
    config.http.tls.ca = Some(Pem::Text(authority.pem()));
    let (health, error) = outcome(config.clone()).await;
    assert_eq!(health, Health::Down);
    assert!(error.contains("certificate"), "{error}");
    config.http.tls.server_name = Some("metrics.example".into());
    assert_eq!(outcome(config).await, (Health::Up, String::new()));
}

fn write(path: &Path, text: &str) -> Pem {
    std::fs::write(path, text).unwrap();
    Pem::File(path.to_owned())
}

#[tokio::test]
async fn the_client_shows_its_certificate() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let address = servers.serve("127.0.0.1", Some(&clients)).await;
    let directory = tempfile::tempdir().unwrap();
    let mut config = https_job(&address);
    config.http.tls.ca = Some(write(&directory.path().join("ca"), &servers.pem()));
    assert_eq!(outcome(config.clone()).await.0, Health::Down);
    let (certificate, key) = clients.issue("client");
    config.http.tls.cert = Some(write(&directory.path().join("cert"), &certificate));
    config.http.tls.key = Some(write(&directory.path().join("key"), &key));
    assert_eq!(outcome(config).await, (Health::Up, String::new()));
}

#[tokio::test]
async fn a_changed_ca_file_is_read_again() {
    let (good, other) = (Authority::new(), Authority::new());
    let address = good.serve("127.0.0.1", None).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca");
    let mut config = https_job(&address);
    config.http.tls.ca = Some(write(&path, &other.pem()));
    let (store, manager) = scrape(config);
    store.wait("a failed scrape", |_| manager.targets().active[0].health == Health::Down).await;
    write(&path, &good.pem());
    store.wait("a good scrape", |_| manager.targets().active[0].health == Health::Up).await;
    std::fs::remove_file(&path).unwrap();
    store.wait("an error", |_| error_of(&manager).contains("ca file")).await;
    manager.stop().await;
}

#[tokio::test]
async fn a_removed_target_is_ended_once_it_cannot_come_back() {
    let address = serve(|_| page("a 1\n")).await;
    let (store, manager) = scrape(job(&address));
    store.wait_for_scrapes(&of_job("up"), 2).await;
    manager.apply(Vec::new());
    assert!(manager.targets().active.is_empty());
    store.wait("the end", |store| store.values(&of_job("up")).last() == Some(&None)).await;
    for labels in store.newest().keys() {
        let values = store.values(labels);
        assert_eq!(values.last(), Some(&None), "{labels}");
        assert_eq!(values.iter().filter(|value| value.is_none()).count(), 1, "{labels}");
    }
    manager.stop().await;
}

#[tokio::test]
async fn nothing_is_ended_at_shutdown() {
    let address = serve(|_| page("a 1\n")).await;
    let (store, manager) = scrape(job(&address));
    store.wait_for_scrapes(&of_job("up"), 2).await;
    manager.apply(Vec::new());
    manager.stop().await;
    for labels in store.newest().keys() {
        assert!(store.values(labels).iter().all(Option::is_some), "{labels}");
    }
}

#[tokio::test]
async fn an_unchanged_job_goes_on_and_a_changed_one_keeps_what_it_knows() {
    let hits = Arc::new(AtomicUsize::new(0));
    let counted = hits.clone();
    let address = serve(move |_| {
        counted.fetch_add(1, SeqCst);
        page("a 1\n")
    })
    .await;
    let config = job(&address);
    let (store, manager) = scrape(config.clone());
    store.wait_for_scrapes(&of_job("up"), 2).await;
    manager.apply(vec![config.clone()]);
    store.wait_for_scrapes(&of_job("up"), 4).await;

    let mut slower = config.clone();
    slower.scrape_interval = PromDuration::from_ms(INTERVAL.ms() + 10);
    manager.apply(vec![slower]);
    let before = store.samples(&of_job("up")).len();
    // Long enough for end-of-run markers of the loop that was replaced.
    store.wait_for_scrapes(&of_job("up"), before + 4).await;
    manager.stop().await;
    assert!(store.values(&of_job("a")).iter().all(Option::is_some));
    let added = store.values(&of_job("scrape_series_added"));
    assert_eq!(added[0], Some(1.0));
    assert!(added[1..].iter().all(|&count| count == Some(0.0)), "{added:?}");
    assert!(
        hits.load(SeqCst) <= store.samples(&of_job("up")).len() + 1,
        "no target is scraped twice at once"
    );
}

#[tokio::test]
async fn a_target_that_decodes_otherwise_leaves_no_live_series_behind() {
    let address = serve(|_| page("a 1\n")).await;
    let config = job(&address);
    let (store, manager) = scrape(config.clone());
    store.wait_for_scrapes(&of_job("up"), 2).await;
    let mut renamed = config;
    let mut rule = RelabelConfig::new(Action::Replace).unwrap();
    rule.regex = RelabelRegex::new(".*").unwrap();
    rule.target_label = "__name__".into();
    rule.replacement = "b".into();
    renamed.metric_relabel_configs = vec![rule];
    manager.apply(vec![renamed]);
    store.wait("the end of the old series", |store| store.values(&of_job("a")).last() == Some(&None)).await;
    manager.stop().await;
    assert!(store.values(&of_job("b")).iter().all(Option::is_some));
    assert!(store.values(&of_job("up")).iter().all(Option::is_some), "markers of reports come too late");
}

#[tokio::test]
async fn only_targets_that_change_are_touched() {
    let address = serve(|_| page("a 1\n")).await;
    let mut config = job(&address);
    let (store, manager) = scrape(config.clone());
    store.wait_for_scrapes(&of_job("up"), 1).await;
    config
        .static_configs
        .push(TargetGroup { targets: vec![address.clone()], labels: vec![("instance".into(), "u".into())] });
    let mut drop = RelabelConfig::new(Action::Drop).unwrap();
    drop.source_labels = vec!["instance".into()];
    drop.regex = RelabelRegex::new("v").unwrap();
    config.relabel_configs = vec![drop];
    config
        .static_configs
        .push(TargetGroup { targets: vec![address], labels: vec![("instance".into(), "v".into())] });
    manager.apply(vec![config]);
    let second = r#"{__name__="up", instance="u", job="j"}"#;
    store.wait_for_scrapes(second, 2).await;
    let targets = manager.targets();
    assert_eq!(targets.active.len(), 2);
    assert_eq!(targets.dropped[0].discovered_labels.get("instance"), Some("v"));
    assert_eq!(targets.dropped_counts["j"], 1);
    manager.stop().await;
    let added = store.values(&of_job("scrape_series_added"));
    assert!(added[1..].iter().all(|&count| count == Some(0.0)), "{added:?}");
    let _: Arc<MemoryStore> = store;
}
