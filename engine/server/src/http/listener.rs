//! Listening sockets: a bounded number of connections, a deadline for request heads, a graceful end.
use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{Request, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt as _;

use super::unread::Lent;

/// How long a client may take to send the head of its next request, idle time included; Prometheus' read timeout.
const HEAD_TIMEOUT: Duration = Duration::from_mins(5);
/// Pause after a failed accept (no file descriptors left), so that it is no busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Both ends of the connection that a request came by; an extension of every request.
#[derive(Debug, Clone, Copy)]
pub struct Connection {
    /// The client's address.
    pub peer: SocketAddr,
    /// The address it reached.
    pub local: SocketAddr,
}

/// Binds an address; the error is one sentence.
pub async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, String> {
    let bound = match TcpListener::bind(address).await {
        // Machines without IPv6 have no `[::]`, which otherwise takes IPv4 too.
        Err(error) if is_without_ipv6(&error) && address.ip() == Ipv6Addr::UNSPECIFIED => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    };
    bound.map_err(|error| format!("cannot listen on {address}: {error}; choose another --{flag}"))
}

fn is_without_ipv6(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

/// Serves until `stop` says true, then ends idle connections and waits for the busy ones, at most `grace`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    max_connections: usize,
    mut stop: watch::Receiver<bool>,
    grace: Duration,
) {
    let slots = Arc::new(Semaphore::new(max_connections));
    let graceful = GracefulShutdown::new();
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Some(connection) = prepare(stream, peer, &router) {
            let watched = graceful.watch(connection);
            tokio::spawn(async move {
                if let Err(error) = watched.await {
                    tracing::debug!(%error, %peer, "connection ended");
                }
                drop(slot);
            });
        }
    }
    drop(listener);
    if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were still running at the end and are cut off");
    }
}

/// One connection with the router behind it, not yet driven.
fn prepare(
    stream: TcpStream,
    peer: SocketAddr,
    router: &Router,
) -> Option<impl hyper_util::server::graceful::GracefulConnection<Error = hyper::Error> + Send + 'static> {
    // Answers are written at once; waiting to fill a packet only delays them.
    stream.set_nodelay(true).ok()?;
    let connection = Connection { peer, local: stream.local_addr().ok()? };
    let router = router.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let router = router.clone();
        async move {
            let (mut parts, body) = request.into_parts();
            let (lent, body) = Lent::new(body, parts.headers.contains_key(header::EXPECT));
            parts.extensions.insert(connection);
            let reply = match router.oneshot(Request::from_parts(parts, body)).await {
                Ok(reply) => reply,
                Err(never) => match never {},
            };
            lent.drop_unread().await;
            Ok::<_, Infallible>(reply)
        }
    });
    Some(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service),
    )
}
