//! A store in memory and a server of pages.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use metricsstore_contract::PromDuration;
use metricsstore_model::{
    Acknowledge, Append, AppendError, Batch, LabelBuf, RawKey, Refusal, Refused, Sample, Verdicts, is_stale,
};
use metricsstore_scrape::{ScrapeConfig, ScrapeManager, ScrapeOptions, TargetGroup};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// How long a condition may take to become true.
const DEADLINE: Duration = Duration::from_secs(30);

pub type Series = BTreeMap<String, Vec<Sample>>;

/// Keeps samples by label set and judges them like a store without an out-of-order window.
#[derive(Default)]
pub struct MemoryStore {
    pub series: Mutex<Series>,
    pub keys: Mutex<HashMap<RawKey, String>>,
    /// Decode every row, as a store does that has lost its keys.
    pub is_forgetful: bool,
    /// Refuse series with this name.
    pub refused_name: Option<&'static str>,
    pub changed: Notify,
}

impl MemoryStore {
    fn name(&self, batch: &Batch<'_>, row: usize) -> Result<Option<String>, Refusal> {
        let row = &batch.rows[row];
        if let Some(name) = self.keys.lock().unwrap().get(&row.key)
            && !self.is_forgetful
        {
            return Ok(Some(name.clone()));
        }
        let mut labels = LabelBuf::new();
        if !batch.decoder.decode(row.raw_labels, &mut labels)? {
            return Ok(None);
        }
        labels.sort();
        if self.refused_name.is_some_and(|name| name == labels.metric_name()) {
            return Err(Refusal::SeriesBudget);
        }
        self.keys.lock().unwrap().insert(row.key, labels.to_string());
        Ok(Some(labels.to_string()))
    }

    /// Values of a series, `None` for a stale marker.
    pub fn values(&self, labels: &str) -> Vec<Option<f64>> {
        self.samples(labels).iter().map(|s| (!is_stale(s.value)).then_some(s.value)).collect()
    }

    pub fn samples(&self, labels: &str) -> Vec<Sample> {
        self.series.lock().unwrap().get(labels).cloned().unwrap_or_default()
    }

    /// Every series, with its newest sample.
    pub fn newest(&self) -> BTreeMap<String, Sample> {
        let series = self.series.lock().unwrap();
        series.iter().filter_map(|(labels, samples)| Some((labels.clone(), *samples.last()?))).collect()
    }

    /// Waits until `condition` holds.
    pub async fn wait(&self, what: &str, mut condition: impl FnMut(&MemoryStore) -> bool) {
        let all = async {
            loop {
                let changed = self.changed.notified();
                if condition(self) {
                    return;
                }
                let _ = tokio::time::timeout(Duration::from_millis(20), changed).await;
            }
        };
        let is_true = tokio::time::timeout(DEADLINE, all).await.is_ok();
        assert!(is_true, "{what} did not come true; the store holds {:#?}", self.series.lock().unwrap());
    }

    pub async fn wait_for_scrapes(&self, up: &str, scrapes: usize) {
        self.wait(&format!("{scrapes} scrapes"), |store| store.samples(up).len() >= scrapes).await;
    }
}

impl Append for MemoryStore {
    fn append(&self, batch: &Batch<'_>, acknowledge: Acknowledge) -> Result<Verdicts, AppendError> {
        assert_eq!(acknowledge, Acknowledge::Written);
        let mut verdicts = Verdicts::default();
        for (index, row) in batch.rows.iter().enumerate() {
            let name = match self.name(batch, index) {
                Ok(Some(name)) => name,
                Ok(None) => {
                    verdicts.rows_dropped += 1;
                    continue;
                }
                Err(refusal) => {
                    verdicts.refused.push(Refused { row: index as u32, sample: None, refusal });
                    continue;
                }
            };
            let mut series = self.series.lock().unwrap();
            let samples = series.entry(name).or_default();
            for place in row.samples.clone() {
                let sample = batch.samples[place as usize];
                let last = samples.last().map_or(i64::MIN, |last| last.timestamp_ms);
                let refusal = if sample.timestamp_ms < last {
                    Refusal::OutOfOrder
                } else if sample.timestamp_ms == last && samples.last() != Some(&sample) {
                    Refusal::DuplicateTimestamp
                } else {
                    if sample.timestamp_ms > last {
                        samples.push(sample);
                    }
                    verdicts.written += 1;
                    continue;
                };
                verdicts.refused.push(Refused { row: index as u32, sample: Some(place), refusal });
            }
        }
        self.changed.notify_waiters();
        Ok(verdicts)
    }
}

pub type Reply = Response<Full<Bytes>>;

/// A page in the text format.
pub fn page(text: &str) -> Reply {
    let page = Response::builder().header("content-type", "text/plain; version=0.0.4; charset=utf-8");
    page.body(Full::new(Bytes::copy_from_slice(text.as_bytes()))).unwrap()
}

pub fn status(code: u16) -> Reply {
    Response::builder().status(code).body(Full::default()).unwrap()
}

type Handler = dyn Fn(&Request<Incoming>) -> Reply + Send + Sync;

/// Serves on loopback until the test's runtime ends; returns `host:port`.
pub async fn serve(handler: impl Fn(&Request<Incoming>) -> Reply + Send + Sync + 'static) -> String {
    serve_with(handler, None).await
}

/// Replies with one page after the other, then with the last one again and again.
pub async fn serve_script(pages: Vec<fn() -> Reply>) -> String {
    let hits = std::sync::atomic::AtomicUsize::new(0);
    serve(move |_| {
        let hit = hits.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        pages[hit.min(pages.len() - 1)]()
    })
    .await
}

pub async fn serve_with(
    handler: impl Fn(&Request<Incoming>) -> Reply + Send + Sync + 'static,
    tls: Option<tokio_rustls::TlsAcceptor>,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let handler: Arc<Handler> = Arc::new(handler);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (handler, tls) = (handler.clone(), tls.clone());
            tokio::spawn(async move {
                match tls {
                    None => connection(stream, handler).await,
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            connection(stream, handler).await;
                        }
                    }
                }
            });
        }
    });
    address
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, handler: Arc<Handler>) {
    let service = service_fn(move |request| {
        let reply = handler(&request);
        async move { Ok::<_, Infallible>(reply) }
    });
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Time between scrapes, and with it the longest duration of one: long enough for a busy machine.
pub const INTERVAL: PromDuration = PromDuration::from_ms(300);

/// A job `j` that scrapes `address` as instance `t` every [`INTERVAL`].
pub fn job(address: &str) -> ScrapeConfig {
    let mut config = ScrapeConfig::new("j");
    config.scrape_interval = INTERVAL;
    config.scrape_timeout = INTERVAL;
    config
        .static_configs
        .push(TargetGroup { targets: vec![address.into()], labels: vec![("instance".into(), "t".into())] });
    config
}

/// The stored labels of a series of that job.
pub fn of_job(name: &str) -> String {
    format!(r#"{{__name__="{name}", instance="t", job="j"}}"#)
}

/// A manager that scrapes `config` into a new store.
pub fn scrape(config: ScrapeConfig) -> (Arc<MemoryStore>, ScrapeManager) {
    scrape_into(MemoryStore::default(), config)
}

pub fn scrape_into(store: MemoryStore, config: ScrapeConfig) -> (Arc<MemoryStore>, ScrapeManager) {
    let store = Arc::new(store);
    let manager = ScrapeManager::new(store.clone(), ScrapeOptions::new(7));
    manager.apply(vec![config]);
    (store, manager)
}
