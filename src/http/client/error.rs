//! Why no whole response came.

use std::fmt;

/// What kind of thing went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpErrorKind {
    /// No connection could be opened: nothing was sent.
    Unreachable,
    /// The response did not begin, or did not end, in time.
    Timeout,
    /// The connection broke after something was sent.
    Broken,
    /// The server sent what HTTP or our limits do not allow.
    Protocol,
}

/// Why no whole response came.
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

    /// What kind of thing went wrong.
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
