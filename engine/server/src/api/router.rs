//! Which path leads where, on both listeners.
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::routing::{MethodRouter, get, post};

use super::{admin, exemplars, metrics_page, query, series, status, targets, write};
use crate::app::{App, Phase};
use crate::http::layers::{accepts_gzip, compress};
use crate::http::reply::{Reply, empty, text};
use crate::reload;

/// Longest token file, in bytes.
const MAX_TOKEN_BYTES: u64 = 4096;

/// The `web` listener.
pub fn web(app: &Arc<App>) -> Router {
    let api = Router::new()
        .route("/query", get(query::instant).post(query::instant))
        .route("/query_range", get(query::range).post(query::range))
        .route("/format_query", get(query::format).post(query::format))
        .route("/series", get(series::series).post(series::series))
        .route("/labels", get(series::names).post(series::names))
        .route("/label/{name}/values", get(series::values))
        .route("/targets", get(targets::targets))
        .route("/scrape_pools", get(targets::pools))
        .route("/metadata", get(targets::metadata))
        .route("/status/config", get(status::config))
        .route("/status/flags", get(status::flags))
        .route("/status/runtimeinfo", get(status::runtime_info))
        .route("/status/buildinfo", get(status::build_info))
        .route("/status/tsdb", get(status::tsdb))
        .route("/status/tsdb/blocks", get(status::blocks))
        .route("/status/walreplay", get(status::wal_replay))
        .route("/query_exemplars", get(exemplars::query_exemplars).post(exemplars::query_exemplars))
        .route("/rules", get(targets::no_rules))
        .route("/alerts", get(targets::no_alerts))
        .route("/write", post(write::write))
        .merge(admin_routes(
            post(admin::snapshot_if_enabled).put(admin::snapshot_if_enabled),
            post(admin::delete_if_enabled).put(admin::delete_if_enabled),
            post(admin::clean_if_enabled).put(admin::clean_if_enabled),
        ))
        .layer(middleware::from_fn_with_state(app.clone(), around_api));
    let root = health().merge(Router::new().nest("/api/v1", api).route("/metrics", get(metrics_page::page)));
    let lifecycle = Router::new()
        .route("/-/reload", get(wrong_method).post(web_reload).put(web_reload))
        .route("/-/quit", get(wrong_method).post(web_quit).put(web_quit));
    let root = root.merge(lifecycle).layer(middleware::from_fn_with_state(app.clone(), count));
    let prefix = app.options.route_prefix.clone();
    let router = if prefix.is_empty() { root } else { Router::new().nest(&prefix, root) };
    router.fallback(not_found).with_state(app.clone())
}

/// The `ops` listener.
pub fn ops(app: &Arc<App>) -> Router {
    let guarded = Router::new()
        .route("/-/reload", post(reload_now).put(reload_now))
        .route("/-/quit", post(quit_now).put(quit_now))
        .nest(
            "/api/v1",
            admin_routes(
                post(admin::snapshot).put(admin::snapshot),
                post(admin::delete_series).put(admin::delete_series),
                post(admin::clean_tombstones).put(admin::clean_tombstones),
            ),
        )
        .route_layer(middleware::from_fn_with_state(app.clone(), check_token));
    health().merge(guarded).layer(middleware::from_fn_with_state(app.clone(), count)).with_state(app.clone())
}

fn admin_routes(
    snapshot: MethodRouter<Arc<App>>,
    delete_series: MethodRouter<Arc<App>>,
    clean_tombstones: MethodRouter<Arc<App>>,
) -> Router<Arc<App>> {
    Router::new()
        .route("/admin/tsdb/snapshot", snapshot)
        .route("/admin/tsdb/delete_series", delete_series)
        .route("/admin/tsdb/clean_tombstones", clean_tombstones)
}

fn health() -> Router<Arc<App>> {
    Router::new().route("/-/healthy", get(healthy)).route("/-/ready", get(ready))
}

async fn healthy() -> Reply {
    text(StatusCode::OK, "metricsstore is Healthy.\n")
}

async fn ready(State(app): State<Arc<App>>) -> Reply {
    let stopping = match app.phase() {
        Phase::Ready => return text(StatusCode::OK, "metricsstore is Ready.\n"),
        Phase::Starting => "false",
        Phase::Stopping => "true",
    };
    let mut reply = text(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable");
    reply.headers_mut().insert("x-prometheus-stopping", HeaderValue::from_static(stopping));
    reply
}

async fn not_found() -> Reply {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

async fn wrong_method() -> Reply {
    text(StatusCode::METHOD_NOT_ALLOWED, "Only POST or PUT requests allowed")
}

async fn web_reload(state: State<Arc<App>>) -> Reply {
    if state.options.lifecycle { reload_now(state).await } else { lifecycle_off() }
}

async fn web_quit(state: State<Arc<App>>) -> Reply {
    if state.options.lifecycle { quit_now(state).await } else { lifecycle_off() }
}

fn lifecycle_off() -> Reply {
    text(StatusCode::FORBIDDEN, "Lifecycle API is not enabled.")
}

async fn reload_now(State(app): State<Arc<App>>) -> Reply {
    match tokio::task::spawn_blocking(move || reload::reload(&app)).await {
        Ok(Ok(())) => empty(StatusCode::OK),
        Ok(Err(message)) => {
            text(StatusCode::INTERNAL_SERVER_ERROR, format!("failed to reload config: {message}\n"))
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("failed to reload config: {error}\n")),
    }
}

async fn quit_now(State(app): State<Arc<App>>) -> Reply {
    app.quit.send_replace(true);
    text(StatusCode::OK, "Requesting termination... Goodbye!")
}

/// The token is read for each request, so that a rotated one counts at once.
async fn check_token(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Reply {
    let file = app.options.ops.as_ref().and_then(|ops| ops.token_file.clone());
    let Some(file) = file else {
        return text(StatusCode::FORBIDDEN, "set --ops.token-file to use this\n");
    };
    let token = match tokio::fs::metadata(&file).await {
        Ok(meta) if meta.len() <= MAX_TOKEN_BYTES => {
            tokio::fs::read_to_string(&file).await.unwrap_or_default()
        }
        _ => String::new(),
    };
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or("");
    if token.trim().is_empty() || !equal(token.trim().as_bytes(), given.trim().as_bytes()) {
        let mut reply = text(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong\n");
        reply.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return reply;
    }
    next.run(request).await
}

/// Compares in a time that does not tell where two texts differ.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// CORS, `OPTIONS` and compression around the API.
async fn around_api(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Reply {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let gzip = accepts_gzip(request.headers());
    let mut reply = if request.method() == axum::http::Method::OPTIONS {
        empty(StatusCode::NO_CONTENT)
    } else {
        next.run(request).await
    };
    app.options.cors.apply(origin.as_ref(), reply.headers_mut());
    if gzip { compress(reply).await } else { reply }
}

/// Counts every answered request under the path's pattern.
async fn count(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Reply {
    let started = Instant::now();
    let handler = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("/*", |path| path.as_str().strip_prefix(&*app.options.route_prefix).unwrap_or(path.as_str()))
        .to_owned();
    let reply = next.run(request).await;
    app.metrics.request(&handler, reply.status().as_u16(), started.elapsed());
    reply
}

#[cfg(test)]
mod tests {
    use super::equal;

    #[test]
    fn tokens_are_equal_only_when_every_byte_is() {
        assert!(equal(b"abc", b"abc") && !equal(b"abc", b"abd") && !equal(b"abc", b"ab"));
    }
}
