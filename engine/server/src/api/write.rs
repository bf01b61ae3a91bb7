//! `POST /api/v1/write`: remote write 1.0.
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use metricsstore_budget::{Budget, Grant, Level, Part};
use metricsstore_ingest::remote_write::{Decoder, MAX_DECODED_BYTES, decoded_len};
use metricsstore_model::{
    Acknowledge, Append as _, AppendError, Batch, LabelBuf, Origin, Refusal, Refused as RefusedSample, Row,
    Sample, Verdicts,
};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::App;
use crate::http::listener::Connection;
use crate::http::reply::{Reply, empty, text};
use crate::memory::{mebibytes, percent};

/// Bytes reserved for each byte of a body before it is read: the body, what it decompresses to, the batch.
const RESERVED_PER_BYTE: usize = 3;
/// Requests in flight may reserve this part of the budget; one that needs more is too large.
const SHARE: u64 = 6;
/// What a sample of a series of its own takes beside the body when it is refused, with the room of vectors that double:
/// its row and sample as decoded, what its row was found to be, and its refusal.
const SAMPLE_BYTES: usize = 2 * (size_of::<Row<'_>>() + size_of::<Sample>() + 2 * size_of::<RefusedSample>());
/// So many samples fit in a request whatever the budget is: the largest requests that senders make by default.
const MIN_SAMPLES: usize = 10_000;
/// Taken for the length of a body that does not say it.
const UNKNOWN_LENGTH: usize = 4 << 20;
/// How long a request waits for bytes or for a worker.
const WAIT: Duration = Duration::from_secs(10);
/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Writers per thread: most of them wait for one and the same sync of the log.
const WORKERS_PER_THREAD: usize = 4;
/// Share of the budget from which new series are refused.
const REFUSE_SERIES_PERCENT: u64 = 93;
/// Longest label set shown in an answer, in bytes.
const SHOWN_LABELS: usize = 512;

/// The answer when other requests hold what this one needs.
const CROWDED: &str =
    "busy: too many requests are being written, nothing of this request was written, retry after 1s";

/// Admission of remote write: bytes in flight, workers, and decoders that are kept.
pub struct WriteDesk {
    /// KiB that may be reserved.
    room: Arc<Semaphore>,
    /// How many that are in all, reserved ones included.
    room_kib: AtomicU32,
    workers: Arc<Semaphore>,
    decoders: Mutex<Vec<Decoder>>,
    grant: Grant,
    process_key: u64,
}

/// Bytes held until dropped.
struct Reservation {
    _permit: OwnedSemaphorePermit,
    grant: Grant,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.grant.release(self.bytes);
    }
}

impl WriteDesk {
    /// For a budget and a number of threads.
    pub fn new(budget: &Budget, threads: u32, process_key: u64) -> WriteDesk {
        let room_kib = room_for(budget.limit());
        WriteDesk {
            room: Arc::new(Semaphore::new(room_kib as usize)),
            room_kib: AtomicU32::new(room_kib),
            workers: Arc::new(Semaphore::new(threads as usize * WORKERS_PER_THREAD)),
            decoders: Mutex::new(Vec::new()),
            grant: budget.grant(Part::Ingest, u64::MAX),
            process_key,
        }
    }

    /// Follows the budget; what is reserved now is taken back as it is released.
    pub fn resize(&self, budget_bytes: u64) {
        let (wanted, have) = (room_for(budget_bytes), self.room_kib.load(Relaxed));
        if wanted > have {
            self.room.add_permits((wanted - have) as usize);
            self.room_kib.store(wanted, Relaxed);
        } else if wanted < have {
            let taken = self.room.forget_permits((have - wanted) as usize);
            self.room_kib.store(have - taken as u32, Relaxed);
        }
    }

    /// Bytes that requests may reserve in all.
    fn room_bytes(&self) -> usize {
        self.room_kib.load(Relaxed) as usize * 1024
    }

    async fn reserve(&self, bytes: usize) -> Option<Reservation> {
        // What is reserved before the length is known may be more than all the room: then the request waits to be alone.
        let kib = (bytes.div_ceil(1024) as u32).clamp(1, self.room_kib.load(Relaxed));
        let permit = self.room.clone().acquire_many_owned(kib);
        let permit = tokio::time::timeout(WAIT, permit).await.ok()?.ok()?;
        self.grant.reserve(bytes as u64).ok()?;
        Some(Reservation { _permit: permit, grant: self.grant.clone(), bytes: bytes as u64 })
    }

    fn decode<R>(
        &self,
        body: &[u8],
        origin: Origin,
        keep_exemplars: bool,
        consume: impl FnOnce(&Batch<'_>) -> R,
    ) -> Result<R, String> {
        let kept = self.decoders.lock().pop();
        if let Some(decoder) = &kept {
            // From here on the request's own reservation stands for it.
            self.grant.release(decoder.bytes());
        }
        let mut decoder = kept.unwrap_or_else(|| Decoder::new(self.process_key));
        decoder.keep_exemplars(keep_exemplars);
        decoder.limit_samples(max_samples(self.room_kib.load(Relaxed)));
        let result = decoder.decode(body, origin, consume).map_err(|error| error.to_string());
        // The grant has no bound of its own: what is kept is counted.
        let _ = self.grant.reserve(decoder.bytes());
        self.decoders.lock().push(decoder);
        result
    }
}

/// KiB that requests may reserve under a budget.
fn room_for(budget_bytes: u64) -> u32 {
    (budget_bytes / SHARE / 1024).clamp(1024, 1 << 22) as u32
}

/// Most samples of one request: what they take beside the body is no more than all requests may reserve.
fn max_samples(room_kib: u32) -> usize {
    (room_kib as usize * 1024 / SAMPLE_BYTES).max(MIN_SAMPLES)
}

/// The endpoint.
pub async fn write(State(app): State<Arc<App>>, request: Request<Body>) -> Reply {
    match write_inner(&app, request).await {
        Ok(()) => {
            app.metrics.write_requests.inc();
            empty(StatusCode::NO_CONTENT)
        }
        Err(refused) => refused.into_reply(),
    }
}

/// Why a request got no 204, or not for all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refused {
    status: StatusCode,
    message: String,
    retry_after_seconds: Option<u32>,
}

impl Refused {
    fn into_reply(self) -> Reply {
        let mut reply = text(self.status, self.message + "\n");
        if let Some(seconds) = self.retry_after_seconds {
            reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        reply
    }
}

fn refuse(status: StatusCode, message: impl Into<String>) -> Refused {
    Refused { status, message: message.into(), retry_after_seconds: None }
}

fn retry(app: &App, message: impl Into<String>, seconds: u32) -> Refused {
    app.metrics.write_busy.inc();
    retry_after(message, seconds)
}

/// For what the store counts itself.
fn retry_after(message: impl Into<String>, seconds: u32) -> Refused {
    Refused { retry_after_seconds: Some(seconds), ..refuse(StatusCode::SERVICE_UNAVAILABLE, message) }
}

async fn write_inner(app: &Arc<App>, request: Request<Body>) -> Result<(), Refused> {
    if !app.options.remote_write {
        let message = "remote write receiver needs to be enabled with --web.enable-remote-write-receiver";
        return Err(refuse(StatusCode::NOT_FOUND, message));
    }
    let Some(store) = app.store().cloned() else {
        return Err(retry(app, "replay is not finished yet, retry after 5s", 5));
    };
    check_host(app, &request)?;
    check_headers(request.headers())?;
    if app.memory.level() >= Level::RefuseWrites {
        let used = percent(app.memory.used(), app.budget.limit());
        let message =
            format!("busy: memory budget {used}% used, nothing of this request was written, retry after 5s");
        return Err(retry(app, message, 5));
    }
    let origin = origin_of(&request);
    let length = body_length(request.headers())?;
    let room = app.writes.room_bytes();
    if request.headers().contains_key(header::CONTENT_LENGTH) && length > room {
        return Err(beyond_room(&format!("has {length} bytes"), room));
    }
    let length = length.min(room);
    let reservation = app.writes.reserve(length * RESERVED_PER_BYTE).await;
    let Some(reservation) = reservation else {
        return Err(retry(app, CROWDED, 1));
    };
    let body = read_body(request.into_body(), length).await?;
    let more = decoded_len(&body).map_err(|error| undecodable(app, &error.to_string()))?;
    let reservation = reserve_decoded(app, more, length, reservation).await?;
    let worker = app.writes.workers.clone().acquire_owned();
    let Ok(Ok(worker)) = tokio::time::timeout(WAIT, worker).await else {
        return Err(retry(app, CROWDED, 1));
    };
    let task_app = app.clone();
    let task = tokio::task::spawn_blocking(move || {
        let _held = (reservation, worker);
        task_app.writes.decode(&body, origin, store.keeps_exemplars(), |batch| {
            store.append(batch, Acknowledge::Durable).map(|verdicts| judge(batch, &verdicts))
        })
    });
    let decoded = task
        .await
        .map_err(|error| refuse(StatusCode::INTERNAL_SERVER_ERROR, format!("the write failed: {error}")))?;
    match decoded.map_err(|message| undecodable(app, &message))? {
        Ok(None) => Ok(()),
        Ok(Some(judgement)) => Err(refuse(StatusCode::BAD_REQUEST, judgement.text(app))),
        Err(AppendError::Busy { reason, retry_after_seconds }) => {
            let error = AppendError::Busy { reason, retry_after_seconds };
            Err(retry_after(error.to_string(), retry_after_seconds))
        }
        Err(error) => Err(retry_after(format!("{error}; nothing was acknowledged, retry after 5s"), 5)),
    }
}

fn undecodable(app: &App, message: &str) -> Refused {
    app.metrics.write_undecodable.inc();
    refuse(StatusCode::BAD_REQUEST, message)
}

/// With two or more replicas only requests that name this very pod are taken: a write to the Service in front of
/// them would reach one copy and starve the others.
fn check_host(app: &App, request: &Request<Body>) -> Result<(), Refused> {
    let runtime = app.runtime.lock();
    let Some(rule) = &runtime.config.remote_write else { return Ok(()) };
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|value| value.to_str().ok())
        .or_else(|| request.uri().host())
        .unwrap_or("");
    let Some(connection) = request.extensions().get::<Connection>() else { return Ok(()) };
    if rule.own_host.admits(host, &app.memory.hostname, connection.local.ip()) {
        return Ok(());
    }
    app.metrics.write_wrong_host.inc();
    Err(refuse(
        StatusCode::SERVICE_UNAVAILABLE,
        format!(
            "{host:?} does not name one replica, and every replica needs every sample; send to each of {}",
            rule.addresses.join(", ")
        ),
    ))
}

fn check_headers(headers: &HeaderMap) -> Result<(), Refused> {
    let of = |name| headers.get(name).map_or("", |value: &HeaderValue| value.to_str().unwrap_or("?"));
    let unsupported = |message: String| Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    // Both headers may be absent: senders of the first days left them out.
    let encoding = of(header::CONTENT_ENCODING);
    if !matches!(encoding, "" | "snappy") {
        return unsupported(format!("content encoding {encoding:?} is not supported: send snappy"));
    }
    let content_type = of(header::CONTENT_TYPE);
    let mut parts = content_type.split(';').map(str::trim);
    if !matches!(parts.next(), Some("" | "application/x-protobuf")) {
        return unsupported(format!(
            "content type {content_type:?} is not supported: send application/x-protobuf"
        ));
    }
    for parameter in parts {
        if let Some(("proto", message)) = parameter.split_once('=')
            && message != "prometheus.WriteRequest"
        {
            return unsupported(format!(
                "protobuf message {message:?} is not supported in this version: send prometheus.WriteRequest"
            ));
        }
    }
    Ok(())
}

/// Stands for a sender: its address, so that a reconnect is the same sender.
fn origin_of(request: &Request<Body>) -> Origin {
    let Some(connection) = request.extensions().get::<Connection>() else { return Origin::RemoteWrite(0) };
    let mut hasher = DefaultHasher::new();
    connection.peer.ip().hash(&mut hasher);
    Origin::RemoteWrite(hasher.finish())
}

fn body_length(headers: &HeaderMap) -> Result<usize, Refused> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match declared.map(str::parse::<usize>) {
        None => Ok(UNKNOWN_LENGTH),
        Some(Ok(length)) if length <= MAX_DECODED_BYTES => Ok(length),
        Some(_) => Err(too_large()),
    }
}

fn too_large() -> Refused {
    refuse(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large: send smaller requests")
}

async fn read_body(mut body: Body, length: usize) -> Result<Bytes, Refused> {
    let mut read = BytesMut::new();
    let reading = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| refuse(StatusCode::BAD_REQUEST, error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if read.len() + data.len() > length {
                return Err(too_large());
            }
            if read.is_empty() && data.len() == length {
                return Ok(data);
            }
            if read.capacity() == 0 {
                // All of it is reserved in the budget already.
                read.reserve(length);
            }
            read.extend_from_slice(&data);
        }
        Ok(read.freeze())
    };
    tokio::time::timeout(BODY_TIMEOUT, reading)
        .await
        .unwrap_or_else(|_| Err(refuse(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")))
}

fn beyond_room(what: &str, room: usize) -> Refused {
    let message = format!(
        "the request {what}, but requests may hold {room} bytes under this memory budget; send smaller requests"
    );
    refuse(StatusCode::PAYLOAD_TOO_LARGE, message)
}

/// Highly compressed bodies decode to more than was reserved: all of it is reserved anew then, because two requests
/// that keep one part while they wait for another may wait for each other.
async fn reserve_decoded(
    app: &App,
    decoded: usize,
    length: usize,
    reservation: Reservation,
) -> Result<Reservation, Refused> {
    let needed = length + decoded + decoded / 2;
    let room = app.writes.room_bytes();
    if needed > room {
        let what = format!("decompresses to {decoded} bytes and needs {needed}");
        return Err(beyond_room(&what, room));
    }
    if needed <= length * RESERVED_PER_BYTE {
        return Ok(reservation);
    }
    drop(reservation);
    let busy = || retry(app, CROWDED, 1);
    app.writes.reserve(needed).await.ok_or_else(busy)
}

/// What was refused of a request.
#[derive(Debug, PartialEq, Eq)]
struct Judgement {
    series: usize,
    /// Histograms among them.
    samples: u32,
    written: u32,
    written_series: usize,
    /// Refused series for lack of memory.
    by_budget: u32,
    /// Refused samples by reason.
    by_reason: BTreeMap<String, u32>,
    example: Option<String>,
}

/// `None` when everything was written. Exemplars that were refused are no error of the request, as for Prometheus.
fn judge(batch: &Batch<'_>, verdicts: &Verdicts) -> Option<Judgement> {
    let histograms = &verdicts.histograms;
    if verdicts.refused.is_empty() && histograms.refused.is_empty() {
        return None;
    }
    let mut judgement = Judgement {
        series: batch.rows.len(),
        samples: (batch.samples.len() + batch.extras.histograms.len()) as u32,
        written: verdicts.written + histograms.written,
        written_series: batch.rows.len(),
        by_budget: 0,
        by_reason: BTreeMap::new(),
        example: None,
    };
    for refused in verdicts.refused.iter().chain(&histograms.refused) {
        let Some(row) = batch.rows.get(refused.row as usize) else { continue };
        if refused.sample.is_none() {
            judgement.written_series -= 1;
        }
        match &refused.refusal {
            Refusal::SeriesBudget => judgement.by_budget += 1,
            reason => {
                let of_row = || {
                    let histograms = batch.extras.histograms.iter().filter(|h| h.row == refused.row);
                    row.samples.len() + histograms.count()
                };
                let samples = if refused.sample.is_some() { 1 } else { of_row() as u32 };
                *judgement.by_reason.entry(reason.to_string()).or_default() += samples;
                let shown = || show_labels(batch, row.raw_labels);
                judgement.example = judgement.example.take().or_else(shown);
            }
        }
    }
    Some(judgement)
}

fn show_labels(batch: &Batch<'_>, raw_labels: &[u8]) -> Option<String> {
    let mut labels = LabelBuf::new();
    batch.decoder.decode(raw_labels, &mut labels).ok()?;
    let mut text = labels.to_string();
    if let Some((cut, _)) = text.char_indices().find(|(at, _)| *at >= SHOWN_LABELS) {
        text.truncate(cut);
        text.push('…');
    }
    Some(text)
}

impl Judgement {
    fn text(&self, app: &App) -> String {
        self.words(app.budget.limit(), app.memory.used())
    }

    fn words(&self, budget: u64, used: u64) -> String {
        let mut parts = Vec::new();
        if self.by_budget > 0 {
            let percent = percent(used, budget);
            // Below the threshold the store refuses because the next seal needs what is left.
            let why = if percent >= REFUSE_SERIES_PERCENT {
                format!("used and new series are not accepted above {REFUSE_SERIES_PERCENT}%")
            } else {
                "used, sealing needs the rest and new series are not accepted".to_owned()
            };
            parts.push(format!(
                "{} of {} series refused: memory budget {} is {percent}% {why}; {} were written; existing series \
                 continue",
                self.by_budget,
                self.series,
                mebibytes(budget),
                self.written_series,
            ));
        }
        let refused: u32 = self.by_reason.values().sum();
        if refused > 0 {
            let reasons: Vec<String> =
                self.by_reason.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            let example =
                self.example.as_ref().map_or_else(String::new, |labels| format!(" (first: {labels})"));
            parts.push(format!(
                "{refused} of {} samples refused: {}{example}; {} were written",
                self.samples,
                reasons.join(", "),
                self.written
            ));
        }
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::{Judgement, check_headers};
    use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
    use std::collections::BTreeMap;

    #[test]
    fn a_refusal_for_memory_reads_as_the_contract_says() {
        let judgement = Judgement {
            series: 2000,
            samples: 2000,
            written: 1997,
            written_series: 1997,
            by_budget: 3,
            by_reason: BTreeMap::new(),
            example: None,
        };
        assert_eq!(
            judgement.words(1_932_735_283, 1_816_771_167),
            "3 of 2000 series refused: memory budget 1843Mi is 94% used and new series are not accepted above \
             93%; 1997 were written; existing series continue"
        );
        assert_eq!(
            judgement.words(1_932_735_283, 1_565_515_580),
            "3 of 2000 series refused: memory budget 1843Mi is 81% used, sealing needs the rest and new series \
             are not accepted; 1997 were written; existing series continue"
        );
    }

    #[test]
    fn only_snappy_and_the_first_protobuf_message_are_taken() {
        let status = |content_type: &'static str, encoding: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
            check_headers(&headers).map_err(|refused| refused.status)
        };
        let wrong = Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert_eq!(status("application/x-protobuf", "snappy"), Ok(()));
        assert_eq!(status("application/x-protobuf;proto=prometheus.WriteRequest", "snappy"), Ok(()));
        assert_eq!(status("application/x-protobuf;proto=io.prometheus.write.v2.Request", "snappy"), wrong);
        assert_eq!(status("application/json", "snappy"), wrong);
        assert_eq!(status("application/x-protobuf", "zstd"), wrong);
        assert!(check_headers(&HeaderMap::new()).is_ok());
    }
}
