//! Errors of the HTTP client.

use std::fmt;

/// Class of an [`HttpError`]; tells whether the request can have been processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpErrorKind {
    /// No connection could be opened; nothing was sent.
    Unreachable,
    /// The origin has all connections that it may have, and none became free in time; nothing was sent.
    ConnectionLimit,
    /// The response head or body did not arrive in time.
    Timeout,
    /// The connection broke after the request was sent, at least in part.
    Broken,
    /// The response violates HTTP or exceeds a limit.
    Protocol,
}

/// Why no complete response was read.
#[derive(Debug, Clone)]
pub struct HttpError {
    kind: HttpErrorKind,
    message: String,
}

/// A result that may be an [`HttpError`].
pub type HttpResult<T> = std::result::Result<T, HttpError>;

impl HttpError {
    pub(crate) fn new(kind: HttpErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The class of the error.
    pub fn kind(&self) -> HttpErrorKind {
        self.kind
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HttpError {}
