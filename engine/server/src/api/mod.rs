//! The HTTP API.
pub mod admin;
pub mod exemplars;
pub mod metrics_page;
pub mod query;
pub mod result;
pub mod router;
pub mod series;
pub mod status;
pub mod targets;
pub mod write;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequest;
use axum::http::{Method, Request, header};
use metricsstore_storage::Store;

use crate::app::App;
use crate::http::params::{MAX_FORM_BYTES, Params};
use crate::http::reply::{ApiError, ErrorType, Reply};

/// The warning of a list that `limit` cut.
pub const TRUNCATED: &str = "results truncated due to limit";

/// Parameters of a request: query string, and for `POST` the form body.
pub struct Form(pub Params);

impl<S: Sync> FromRequest<S> for Form {
    type Rejection = Reply;

    async fn from_request(request: Request<Body>, _state: &S) -> Result<Form, Reply> {
        let (parts, body) = request.into_parts();
        let query = parts.uri.query().unwrap_or("").to_owned();
        let is_form = parts
            .headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.starts_with("application/x-www-form-urlencoded"));
        if parts.method != Method::POST || !is_form {
            return Ok(Form(Params::new(b"", &query)));
        }
        let form = axum::body::to_bytes(body, MAX_FORM_BYTES).await.map_err(|error| {
            ApiError::new(ErrorType::BadData, format!("error parsing form values: {error}")).into_reply()
        })?;
        Ok(Form(Params::new(&form, &query)))
    }
}

/// The store, or what to answer while replay runs.
pub fn ready_store(app: &App) -> Result<Arc<Store>, ApiError> {
    app.store().cloned().ok_or_else(|| ApiError::new(ErrorType::Overloaded, "replay is not finished yet"))
}
