//! The error of talking to an upstream, with a sentence for the operator.

use std::fmt;

use http::{StatusCode, Uri};

use crate::http::client::{HttpError, HttpErrorKind, redacted};
use crate::protocol::ErrorObject;

/// Bytes of an error response's body that are quoted.
const BODY_SNIPPET_MAX: usize = 300;

/// Class of an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The command could not be started, or no connection could be opened; nothing was sent.
    Unreachable,
    /// The upstream did not respond in time.
    Timeout,
    /// The connection broke, or the child process exited.
    Broken,
    /// The upstream responded with this HTTP status and no JSON-RPC response.
    Status(u16),
    /// The upstream refused our credentials (401 or 403).
    Credentials,
    /// The upstream violated the protocol or a limit.
    Protocol,
    /// The upstream and we support no common revision.
    Revision,
    /// The upstream responded with a JSON-RPC error of this code.
    ErrorResponse(i64),
    /// The caller's input is invalid.
    Usage,
}

/// Why a request to an upstream failed.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    object: Option<ErrorObject>,
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with a message for the operator.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), object: None }
    }

    /// The error for a JSON-RPC error response, or for an error object that stands for a response that never came.
    pub fn from_error_response(object: ErrorObject) -> Self {
        if object.is_unavailable() {
            return Self::new(ErrorKind::Broken, object.message());
        }
        let message = format!("the server answered with error {}: {}", object.code(), object.message());
        Self { kind: ErrorKind::ErrorResponse(object.code()), message, object: Some(object) }
    }

    /// The error for an HTTP status without a JSON-RPC response, with the beginning of its body.
    pub fn from_status(url: &Uri, status: StatusCode, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(&body[..body.len().min(BODY_SNIPPET_MAX)]);
        let text = text.trim();
        let quoted = if text.is_empty() { String::new() } else { format!(": {text}") };
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::new(
                ErrorKind::Credentials,
                format!("{} answered {status}{quoted}; give credentials as a header", redacted(url)),
            ),
            _ => Self::new(ErrorKind::Status(status.as_u16()), format!("{} answered {status}{quoted}", redacted(url))),
        }
    }

    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The JSON-RPC error of the upstream, if it sent one.
    pub fn object(&self) -> Option<&ErrorObject> {
        self.object.as_ref()
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self.kind {
            ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::Broken => true,
            ErrorKind::Status(status) => status >= 500 || status == 429,
            ErrorKind::Credentials
            | ErrorKind::Protocol
            | ErrorKind::Revision
            | ErrorKind::ErrorResponse(_)
            | ErrorKind::Usage => false,
        }
    }

    /// The JSON-RPC error for a call that failed with this error.
    pub fn into_object(self) -> ErrorObject {
        self.object.unwrap_or_else(|| ErrorObject::unavailable(format!("Upstream unavailable: {}", self.message)))
    }
}

impl From<HttpError> for Error {
    fn from(error: HttpError) -> Self {
        let kind = match error.kind() {
            HttpErrorKind::Unreachable | HttpErrorKind::ConnectionLimit => ErrorKind::Unreachable,
            HttpErrorKind::Timeout => ErrorKind::Timeout,
            HttpErrorKind::Broken => ErrorKind::Broken,
            HttpErrorKind::Protocol => ErrorKind::Protocol,
        };
        Self::new(kind, error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
