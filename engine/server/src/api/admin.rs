//! `admin/tsdb/*`: snapshots and deletes. On the web listener only with `--web.enable-admin-api`, on the operations
//! listener always.
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use metricsstore_model::Matcher;
use metricsstore_promql::parse_selector_with;
use metricsstore_storage::{NewSnapshot, Store};
use serde::Serialize;

use super::{Form, ready_store};
use crate::app::App;
use crate::http::params::{MAX_TIME_MS, MIN_TIME_MS, Params};
use crate::http::reply::{ApiError, ErrorType, Reply, empty, success};

/// Who asked for a snapshot, where nobody says.
const OWNER: &str = "api";
/// Longest name of an owner, in bytes.
const MAX_OWNER_BYTES: usize = 253;

/// `POST` and `PUT /api/v1/admin/tsdb/snapshot` on the web listener.
pub async fn snapshot_if_enabled(state: State<Arc<App>>, form: Form) -> Reply {
    if state.options.admin { snapshot(state, form).await } else { disabled() }
}

/// `POST` and `PUT /api/v1/admin/tsdb/delete_series` on the web listener.
pub async fn delete_if_enabled(state: State<Arc<App>>, form: Form) -> Reply {
    if state.options.admin { delete_series(state, form).await } else { disabled() }
}

/// `POST` and `PUT /api/v1/admin/tsdb/clean_tombstones` on the web listener.
pub async fn clean_if_enabled(state: State<Arc<App>>) -> Reply {
    if state.options.admin { clean_tombstones(state).await } else { disabled() }
}

fn disabled() -> Reply {
    ApiError::new(ErrorType::Disabled, "admin APIs disabled").into_reply()
}

/// Makes a snapshot. Beside Prometheus' `skip_head` there are `ttl`, after which it is removed, and `owner`, who is
/// named in the inventory.
pub async fn snapshot(State(app): State<Arc<App>>, Form(params): Form) -> Reply {
    #[derive(Serialize)]
    struct Answer {
        name: String,
    }
    let prepared = wanted_snapshot(&params).and_then(|wanted| Ok((wanted, ready_store(&app)?)));
    let (wanted, store) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return error.into_reply(),
    };
    match tokio::task::spawn_blocking(move || store.snapshot(&wanted)).await {
        Ok(Ok(snapshot)) => success(&Answer { name: snapshot.name }),
        Ok(Err(error)) => failed(format!("create snapshot: {error}")),
        Err(error) => failed(format!("create snapshot: {error}")),
    }
}

fn wanted_snapshot(params: &Params) -> Result<NewSnapshot, ApiError> {
    let skip_head = match params.get("skip_head") {
        "" => false,
        text => parse_bool(text).ok_or_else(|| {
            let message =
                format!("unable to parse boolean: strconv.ParseBool: parsing {text:?}: invalid syntax");
            ApiError::invalid("skip_head", &message)
        })?,
    };
    let ttl = params.duration("ttl").map_err(|error| ApiError::invalid("ttl", &error))?;
    let owner = match params.get("owner") {
        "" => OWNER,
        text if text.len() <= MAX_OWNER_BYTES => text,
        _ => {
            let message = format!("a name has at most {MAX_OWNER_BYTES} bytes");
            return Err(ApiError::invalid("owner", &message));
        }
    };
    let ttl = ttl.filter(|ms| *ms > 0).map(|ms| Duration::from_millis(ms.unsigned_abs()));
    Ok(NewSnapshot { skip_head, owner: owner.to_owned(), ttl })
}

/// What Go takes for a boolean.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Deletes samples of a time range.
pub async fn delete_series(State(app): State<Arc<App>>, Form(params): Form) -> Reply {
    let prepared = Deletion::read(&app, &params).and_then(|deletion| Ok((deletion, ready_store(&app)?)));
    let (deletion, store) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return error.into_reply(),
    };
    let delete = move || store.delete(&deletion.any_of, deletion.start_ms, deletion.end_ms);
    match tokio::task::spawn_blocking(delete).await {
        Ok(Ok(())) => empty(StatusCode::NO_CONTENT),
        Ok(Err(error)) => failed(error.to_string()),
        Err(error) => failed(error.to_string()),
    }
}

/// What is to be deleted.
struct Deletion {
    any_of: Vec<Vec<Matcher>>,
    start_ms: i64,
    end_ms: i64,
}

impl Deletion {
    fn read(app: &App, params: &Params) -> Result<Deletion, ApiError> {
        if params.all("match[]").next().is_none() {
            return Err(ApiError::new(ErrorType::BadData, "no match[] parameter provided"));
        }
        let start_ms = params.time_or("start", MIN_TIME_MS)?;
        let end_ms = params.time_or("end", MAX_TIME_MS)?;
        let features = app.options.promql.features;
        let parse = |text: &str| {
            parse_selector_with(text, features)
                .map_err(|error| ApiError::invalid("match[]", &error.to_string()))
        };
        let mut any_of = params.all("match[]").map(parse).collect::<Result<Vec<Vec<Matcher>>, _>>()?;
        // A selector that asks for nothing selects nothing here, as in Prometheus.
        any_of.retain(|matchers| !matchers.is_empty());
        Ok(Deletion { any_of, start_ms, end_ms })
    }
}

/// Writes the blocks that have deleted samples anew without them.
pub async fn clean_tombstones(State(app): State<Arc<App>>) -> Reply {
    let store = match ready_store(&app) {
        Ok(store) => store,
        Err(error) => return error.into_reply(),
    };
    match tokio::task::spawn_blocking(move || clean(&store)).await {
        Ok(Ok(())) => empty(StatusCode::NO_CONTENT),
        Ok(Err(message)) => failed(message),
        Err(error) => failed(error.to_string()),
    }
}

fn clean(store: &Store) -> Result<(), String> {
    store.clean_tombstones().map(|_| ()).map_err(|error| error.to_string())
}

fn failed(message: String) -> Reply {
    ApiError::new(ErrorType::Internal, message).into_reply()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::wanted_snapshot;
    use crate::http::params::Params;

    #[test]
    fn a_snapshot_says_who_wants_it_and_for_how_long() {
        let wanted = wanted_snapshot(&Params::new(b"skip_head=T", "ttl=1d&owner=backup")).unwrap();
        assert!(wanted.skip_head);
        assert_eq!((wanted.owner.as_str(), wanted.ttl), ("backup", Some(Duration::from_hours(24))));
        let wanted = wanted_snapshot(&Params::default()).unwrap();
        assert_eq!((wanted.skip_head, wanted.owner.as_str(), wanted.ttl), (false, "api", None));
        assert_eq!(
            wanted_snapshot(&Params::new(b"", "skip_head=yes")).unwrap_err().message,
            r#"invalid parameter "skip_head": unable to parse boolean: strconv.ParseBool: parsing "yes": invalid syntax"#
        );
    }
}
