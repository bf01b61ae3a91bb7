//! Bodies that an answer left unread. A connection that is closed while the client still sends is reset, and the reset
//! overtakes the answer: the client sees a broken pipe and never the status with its `Retry-After`. So what is left is
//! read and dropped, within bounds, before the answer goes out; the connection then serves the next request too.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::{Buf as _, Bytes};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use parking_lot::Mutex;

/// Most bytes read and dropped for one request; twice the longest body that remote write takes.
const MAX_DROPPED_BYTES: usize = 64 << 20;
/// Longest time that is spent on it.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The body of a request, lent to its handler.
#[derive(Clone)]
pub struct Lent(Arc<Mutex<State>>);

struct State {
    body: Incoming,
    /// The client sends nothing before `100 Continue`, which it gets when somebody asks for the body.
    waits: bool,
    ended: bool,
}

impl Lent {
    /// Splits a body into what stays here and what the handler reads. `waits`: the client expects `100 Continue`.
    pub fn new(body: Incoming, waits: bool) -> (Lent, Body) {
        let ended = body.is_end_stream();
        let lent = Lent(Arc::new(Mutex::new(State { body, waits, ended })));
        let body = if ended { Body::empty() } else { Body::new(lent.clone()) };
        (lent, body)
    }

    /// Reads and drops what the handler left.
    pub async fn drop_unread(mut self) {
        let nothing_comes = {
            let state = self.0.lock();
            state.ended || state.waits
        };
        if nothing_comes {
            return;
        }
        let reading = async {
            let mut left = MAX_DROPPED_BYTES;
            while let Some(Ok(frame)) = self.frame().await {
                let dropped = frame.data_ref().map_or(0, Bytes::remaining);
                let Some(rest) = left.checked_sub(dropped) else { return };
                left = rest;
            }
        };
        // Whoever sends more, or slower, loses the connection after the answer.
        let _ = tokio::time::timeout(MAX_TIME, reading).await;
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut state = self.0.lock();
        state.waits = false;
        let frame = ready!(Pin::new(&mut state.body).poll_frame(context));
        state.ended = !matches!(frame, Some(Ok(_))) || state.body.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().ended
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().body.size_hint()
    }
}
