//! Errors of the HTTP client.

use std::fmt;
use std::time::Duration;

/// Class of an [`HttpError`]; tells whether the request can have been processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpErrorKind {
    /// The name of the server has no address; nothing was sent.
    NameNotResolved,
    /// No connection could be opened; nothing was sent.
    Unreachable,
    /// The server was reached, and TLS could not be set up with it; nothing was sent.
    TlsFailed,
    /// The origin has all connections that it may have, and none became free in time; nothing was sent.
    ConnectionLimit,
    /// No connection was accepted in time; nothing was sent.
    ConnectTimeout,
    /// The connection broke before a byte of the request was written.
    NotSent,
    /// The response head or body did not arrive within this time.
    Timeout(Duration),
    /// The connection broke after the request was sent, at least in part.
    Broken,
    /// A body or event exceeds this many bytes.
    TooLarge(usize),
    /// The response violates HTTP.
    Protocol,
    /// The response has this status, and redirects to where the request is not sent.
    Redirect(u16),
}

/// Why no complete response was read.
#[derive(Debug, Clone)]
pub struct HttpError {
    kind: HttpErrorKind,
    message: String,
}

/// A result that may be an [`HttpError`].
pub type HttpResult<T> = std::result::Result<T, HttpError>;

impl HttpErrorKind {
    /// Whether nothing of the request was sent.
    pub fn is_before_sending(self) -> bool {
        match self {
            Self::NameNotResolved
            | Self::Unreachable
            | Self::TlsFailed
            | Self::ConnectionLimit
            | Self::ConnectTimeout
            | Self::NotSent => true,
            Self::Timeout(_) | Self::Broken | Self::TooLarge(_) | Self::Protocol | Self::Redirect(_) => false,
        }
    }
}

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
