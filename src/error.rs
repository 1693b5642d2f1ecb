//! What can go wrong with an upstream, in words that say what to do.

use std::fmt;

use http::{StatusCode, Uri};

use crate::http::client::{HttpError, HttpErrorKind, redacted};
use crate::protocol::ErrorObject;

/// How much of a body that explains a failure is shown.
const SNIPPET: usize = 300;

/// What kind of thing went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The command could not be started, or nobody listens there.
    Unreachable,
    /// It took too long.
    Timeout,
    /// The connection broke, or the process ended.
    Broken,
    /// It answered with an HTTP status that is no answer.
    Status(u16),
    /// It wants credentials, or better ones.
    Credentials,
    /// It says what the protocol does not allow.
    Protocol,
    /// It speaks no revision that we speak.
    Revision,
    /// It answered with an error of the protocol.
    Answer(i64),
    /// We were told to do something that makes no sense.
    Usage,
}

/// Something went wrong with an upstream.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    object: Option<ErrorObject>,
}

/// A result that may be an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of a kind, with a sentence.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), object: None }
    }

    /// An error that the upstream answered with, or that stands for an answer that did not come.
    pub fn answered(object: ErrorObject) -> Self {
        if object.is_unavailable() {
            return Self::new(ErrorKind::Broken, object.message());
        }
        let message = format!("the server answered with error {}: {}", object.code(), object.message());
        Self { kind: ErrorKind::Answer(object.code()), message, object: Some(object) }
    }

    /// What a status means that is no answer of the protocol.
    pub fn refused(url: &Uri, status: StatusCode, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(&body[..body.len().min(SNIPPET)]);
        let text = text.trim();
        let said = if text.is_empty() { String::new() } else { format!(": {text}") };
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::new(
                ErrorKind::Credentials,
                format!("{} answered {status}{said}; give credentials as a header", redacted(url)),
            ),
            _ => Self::new(ErrorKind::Status(status.as_u16()), format!("{} answered {status}{said}", redacted(url))),
        }
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The error that the upstream answered with, where it did.
    pub fn object(&self) -> Option<&ErrorObject> {
        self.object.as_ref()
    }

    /// Whether trying again later may help.
    pub fn may_retry(&self) -> bool {
        match self.kind {
            ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::Broken => true,
            ErrorKind::Status(status) => status >= 500 || status == 429,
            ErrorKind::Credentials
            | ErrorKind::Protocol
            | ErrorKind::Revision
            | ErrorKind::Answer(_)
            | ErrorKind::Usage => false,
        }
    }

    /// The error that a client gets for a call that failed by this.
    pub fn into_object(self) -> ErrorObject {
        self.object.unwrap_or_else(|| ErrorObject::unavailable(format!("Upstream unavailable: {}", self.message)))
    }
}

impl From<HttpError> for Error {
    fn from(error: HttpError) -> Self {
        let kind = match error.kind() {
            HttpErrorKind::Unreachable => ErrorKind::Unreachable,
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
