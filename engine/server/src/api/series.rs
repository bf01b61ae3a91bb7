//! `series`, `labels` and `label/<name>/values`.
use std::sync::Arc;

use axum::extract::{Path, State};
use metricsstore_model::Matcher;
use metricsstore_model::read::{Limited, ReadError, Source as _};
use metricsstore_promql::parse_selector_with;
use metricsstore_storage::Store;

use super::result::push_labels;
use super::{Form, TRUNCATED, ready_store};
use crate::app::App;
use crate::http::params::{MAX_TIME_MS, MIN_TIME_MS, Params};
use crate::http::reply::{ApiError, Envelope, ErrorType, Reply};
use crate::number::push_strings;

/// Most items of a list, whatever was asked for.
const MAX_ITEMS: usize = 1_000_000;

/// What to list.
struct Listing {
    any_of: Vec<Vec<Matcher>>,
    start_ms: i64,
    end_ms: i64,
    limit: usize,
}

impl Listing {
    fn read(app: &App, params: &Params, matchers_error: fn(&str) -> ApiError) -> Result<Listing, ApiError> {
        let limit = params.limit()?.unwrap_or(MAX_ITEMS).min(MAX_ITEMS);
        let start_ms = params.time_or("start", MIN_TIME_MS)?;
        let end_ms = params.time_or("end", MAX_TIME_MS)?;
        let features = app.options.promql.features;
        let any_of = params
            .all("match[]")
            .map(|text| {
                parse_selector_with(text, features).map_err(|error| matchers_error(&error.to_string()))
            })
            .collect::<Result<Vec<Vec<Matcher>>, ApiError>>()?;
        if any_of.iter().any(|matchers| matchers.iter().all(Matcher::matches_empty)) {
            return Err(matchers_error("match[] must contain at least one non-empty matcher"));
        }
        Ok(Listing { any_of, start_ms, end_ms, limit })
    }
}

fn plain(message: &str) -> ApiError {
    ApiError::new(ErrorType::BadData, message)
}

/// `GET` and `POST /api/v1/series`.
pub async fn series(State(app): State<Arc<App>>, Form(params): Form) -> Reply {
    if params.all("match[]").next().is_none() {
        return plain("no match[] parameter provided").into_reply();
    }
    let listing = Listing::read(&app, &params, |message| ApiError::invalid("match[]", message));
    let write = |out: &mut Vec<u8>, items: &[metricsstore_model::LabelBuf]| {
        out.push(b'[');
        for (index, labels) in items.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            push_labels(out, labels.iter());
        }
        out.push(b']');
    };
    list(
        &app,
        listing,
        |store, what| store.series(&what.any_of, what.start_ms, what.end_ms, what.limit),
        write,
    )
    .await
}

/// `GET` and `POST /api/v1/labels`.
pub async fn names(State(app): State<Arc<App>>, Form(params): Form) -> Reply {
    let listing = Listing::read(&app, &params, plain);
    list(
        &app,
        listing,
        |store, what| store.label_names(&what.any_of, what.start_ms, what.end_ms, what.limit),
        write_texts,
    )
    .await
}

/// `GET /api/v1/label/<name>/values`.
pub async fn values(State(app): State<Arc<App>>, Path(name): Path<String>, Form(params): Form) -> Reply {
    let name = unescape_name(&name);
    if name.is_empty() {
        return plain("invalid label name: \"\"").into_reply();
    }
    let listing = Listing::read(&app, &params, plain);
    let read = move |store: &Store, what: &Listing| {
        store.label_values(&name, &what.any_of, what.start_ms, what.end_ms, what.limit)
    };
    list(&app, listing, read, write_texts).await
}

fn write_texts(out: &mut Vec<u8>, items: &[String]) {
    push_strings(out, items.iter().map(String::as_str));
}

async fn list<T: Send + 'static>(
    app: &Arc<App>,
    listing: Result<Listing, ApiError>,
    read: impl FnOnce(&Store, &Listing) -> Result<Limited<T>, ReadError> + Send + 'static,
    write: impl FnOnce(&mut Vec<u8>, &[T]) + Send + 'static,
) -> Reply {
    let prepared = listing.and_then(|listing| Ok((listing, ready_store(app)?)));
    let (listing, store) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return error.into_reply(),
    };
    let slot = app.query_slots.clone().acquire_owned();
    let Ok(Ok(slot)) = tokio::time::timeout(app.options.query_timeout, slot).await else {
        return ApiError::new(ErrorType::Timeout, "query timed out in query queue").into_reply();
    };
    let task = tokio::task::spawn_blocking(move || {
        let _slot = slot;
        let found = read(&store, &listing)?;
        let mut envelope = Envelope::start();
        write(&mut envelope.out, &found.items);
        let warnings = if found.truncated { vec![TRUNCATED.to_owned()] } else { Vec::new() };
        Ok::<Reply, ReadError>(envelope.finish(&warnings, &[]))
    });
    match task.await {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => ApiError::new(ErrorType::Execution, error.to_string()).into_reply(),
        Err(error) => ApiError::new(ErrorType::Internal, error.to_string()).into_reply(),
    }
}

/// `U__…`: `__` stands for `_`, `_hex_` for a character; what does not follow that stays as it is.
fn unescape_name(name: &str) -> String {
    name.strip_prefix("U__").and_then(unescape).unwrap_or_else(|| name.to_owned())
}

fn unescape(escaped: &str) -> Option<String> {
    let mut out = String::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some(at) = rest.find('_') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('_') {
            out.push('_');
            rest = after;
            continue;
        }
        let (hex, after) = rest.split_once('_')?;
        if hex.is_empty() || hex.len() > 6 {
            return None;
        }
        out.push(u32::from_str_radix(hex, 16).ok().and_then(char::from_u32)?);
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::unescape_name;

    #[test]
    fn escaped_names_are_those_of_prometheus_naming_rules() {
        assert_eq!(unescape_name("U__my_2e_metric"), "my.metric");
        assert_eq!(unescape_name("U__a__b_1f600_"), "a_b😀");
        assert_eq!(unescape_name("U__bad_zz_"), "U__bad_zz_");
        assert_eq!(unescape_name("plain"), "plain");
    }
}
