//! `targets`, `scrape_pools` and `metadata`, and the empty lists of what does not exist yet but is always asked for.
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use super::Form;
use crate::app::App;
use crate::http::reply::{Reply, with_type};

/// `GET /api/v1/targets`.
pub async fn targets(State(app): State<Arc<App>>, Form(params): Form) -> Reply {
    app.scraping.targets_reply(&app.options.external_url, params.get("state"), params.get("scrapePool"))
}

/// `GET /api/v1/scrape_pools`.
pub async fn pools(State(app): State<Arc<App>>) -> Reply {
    app.scraping.pools_reply()
}

/// `GET /api/v1/metadata`.
pub async fn metadata(State(app): State<Arc<App>>, Form(params): Form) -> Reply {
    let written = app.store().map(|store| store.metadata()).unwrap_or_default();
    app.scraping.metadata_reply(&params, &written)
}

/// `GET /api/v1/rules`: there are none, which is what Grafana wants to hear.
pub async fn no_rules() -> Reply {
    raw(r#"{"status":"success","data":{"groups":[]}}"#)
}

/// `GET /api/v1/alerts`.
pub async fn no_alerts() -> Reply {
    raw(r#"{"status":"success","data":{"alerts":[]}}"#)
}

fn raw(json: &str) -> Reply {
    with_type(StatusCode::OK, "application/json", json.into())
}
