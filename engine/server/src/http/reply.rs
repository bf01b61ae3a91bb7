//! Answers: Prometheus' envelope, its error types and their status codes.
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use metricsstore_promql::{ErrorKind, QueryError};

use crate::number::{push_string, push_strings};

/// An answer over HTTP.
pub type Reply = Response<Body>;

/// What Prometheus calls an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorType {
    /// The request makes no sense.
    BadData,
    /// Evaluation failed.
    Execution,
    /// Nobody waits for the answer.
    Canceled,
    /// It took too long.
    Timeout,
    /// Our fault.
    Internal,
    /// Not served as this process was started.
    Disabled,
    /// Busy: the same request may succeed later.
    Overloaded,
}

impl ErrorType {
    const fn name(self) -> &'static str {
        match self {
            ErrorType::BadData => "bad_data",
            ErrorType::Execution => "execution",
            ErrorType::Canceled => "canceled",
            ErrorType::Timeout => "timeout",
            ErrorType::Internal => "internal",
            ErrorType::Disabled | ErrorType::Overloaded => "unavailable",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            ErrorType::BadData => StatusCode::BAD_REQUEST,
            ErrorType::Execution => StatusCode::UNPROCESSABLE_ENTITY,
            // nginx's "client closed request", which Prometheus uses too.
            ErrorType::Canceled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
            ErrorType::Timeout | ErrorType::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            ErrorType::Internal | ErrorType::Disabled => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// An error of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// Its type, which decides the status code.
    pub kind: ErrorType,
    /// The text for `error`.
    pub message: String,
}

impl ApiError {
    /// An error of a type.
    pub fn new(kind: ErrorType, message: impl Into<String>) -> ApiError {
        ApiError { kind, message: message.into() }
    }

    /// `invalid parameter "name": …`.
    pub fn invalid(parameter: &str, message: &str) -> ApiError {
        ApiError::new(ErrorType::BadData, format!("invalid parameter {parameter:?}: {message}"))
    }

    /// The answer.
    pub fn into_reply(self) -> Reply {
        let mut out = Vec::with_capacity(64 + self.message.len());
        out.extend_from_slice(b"{\"status\":\"error\",\"errorType\":");
        push_string(&mut out, self.kind.name());
        out.extend_from_slice(b",\"error\":");
        push_string(&mut out, &self.message);
        out.push(b'}');
        let mut reply = json(self.kind.status(), out);
        if self.kind == ErrorType::Overloaded {
            reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        reply
    }
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> ApiError {
        let kind = match error.kind() {
            ErrorKind::BadData => return ApiError::invalid("query", &error.to_string()),
            ErrorKind::Execution => ErrorType::Execution,
            ErrorKind::Canceled => ErrorType::Canceled,
            ErrorKind::Timeout => ErrorType::Timeout,
            ErrorKind::Internal => ErrorType::Internal,
        };
        ApiError::new(kind, error.to_string())
    }
}

/// A successful answer that is written while it is built: start, append the data's JSON, finish.
pub struct Envelope {
    /// The bytes so far; the caller appends the data.
    pub out: Vec<u8>,
}

impl Envelope {
    /// Opens the envelope.
    pub fn start() -> Envelope {
        let mut out = Vec::with_capacity(512);
        out.extend_from_slice(b"{\"status\":\"success\",\"data\":");
        Envelope { out }
    }

    /// Closes it.
    pub fn finish(mut self, warnings: &[String], infos: &[String]) -> Reply {
        for (name, texts) in [("warnings", warnings), ("infos", infos)] {
            if !texts.is_empty() {
                self.out.extend_from_slice(format!(",\"{name}\":").as_bytes());
                push_strings(&mut self.out, texts.iter().map(String::as_str));
            }
        }
        self.out.push(b'}');
        json(StatusCode::OK, self.out)
    }
}

/// A successful answer around what serde makes of `data`.
pub fn success<T: serde::Serialize>(data: &T) -> Reply {
    let mut envelope = Envelope::start();
    match serde_json::to_writer(&mut envelope.out, data) {
        Ok(()) => envelope.finish(&[], &[]),
        Err(error) => ApiError::new(ErrorType::Internal, error.to_string()).into_reply(),
    }
}

fn json(status: StatusCode, body: Vec<u8>) -> Reply {
    with_type(status, "application/json", body)
}

/// A plain text answer.
pub fn text(status: StatusCode, body: impl Into<Vec<u8>>) -> Reply {
    with_type(status, "text/plain; charset=utf-8", body.into())
}

/// An answer of a media type.
pub fn with_type(status: StatusCode, media_type: &'static str, body: Vec<u8>) -> Reply {
    let mut reply = Response::new(Body::from(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    reply
}

/// An answer without a body.
pub fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Body::empty());
    *reply.status_mut() = status;
    reply
}
