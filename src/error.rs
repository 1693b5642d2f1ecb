//! The error of talking to an upstream.

use std::fmt;
use std::time::{Duration, SystemTime};

use http::header::RETRY_AFTER;
use http::{StatusCode, Uri};

use crate::failure::{ConnectStep, Failure, FailureKind, parse_retry_after};
use crate::http::client::{HttpError, HttpErrorKind, redacted};
use crate::http::codec::ResponseHead;
use crate::protocol::{ErrorObject, code};
use crate::redact::redact;

/// Bytes of an error response's body that are quoted.
const BODY_SNIPPET_MAX: usize = 300;

/// Why a request to an upstream failed. `Display` is a sentence for operators, with secrets masked.
#[derive(Debug, Clone)]
pub enum Error {
    /// The caller's input is invalid.
    Usage(String),
    /// The upstream answered with a JSON-RPC error.
    ErrorResponse(ErrorObject),
    /// The upstream gave no answer.
    Failure(Failure),
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error in the caller's input.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// A failure with a sentence for operators.
    pub fn failure(kind: FailureKind, detail: impl Into<String>) -> Self {
        Self::Failure(Failure::new(kind, detail))
    }

    /// The error for a JSON-RPC error: the server's answer, or the failure that took the place of one.
    pub fn from_error_object(object: ErrorObject) -> Self {
        match object.failure() {
            Some(failure) => Self::Failure(failure.clone()),
            None => Self::ErrorResponse(object),
        }
    }

    /// The error for an HTTP status without a JSON-RPC response, with the beginning of its body.
    pub fn from_status(url: &Uri, status: StatusCode, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(&body[..body.len().min(BODY_SNIPPET_MAX)]);
        let text = text.trim();
        let quoted = if text.is_empty() { String::new() } else { format!(": {text}") };
        let kind = FailureKind::from_status(status.as_u16());
        let hint = match kind {
            FailureKind::Credentials(_) => "; give credentials as a header",
            _ => "",
        };
        let detail = format!("{} answered {status}{quoted}{hint}", redacted(url));
        Self::Failure(Failure::new(kind, detail).with_retry_after(retry_after))
    }

    /// How the request failed; `None` when the upstream answered or was not asked.
    pub fn kind(&self) -> Option<FailureKind> {
        match self {
            Self::Failure(failure) => Some(failure.kind()),
            Self::Usage(_) | Self::ErrorResponse(_) => None,
        }
    }

    /// The JSON-RPC error of the upstream, if it sent one.
    pub fn object(&self) -> Option<&ErrorObject> {
        match self {
            Self::ErrorResponse(object) => Some(object),
            Self::Usage(_) | Self::Failure(_) => None,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Failure(failure) if failure.is_retryable())
    }

    /// The JSON-RPC error for a call that ended with this error.
    pub fn into_object(self) -> ErrorObject {
        match self {
            Self::ErrorResponse(object) => object,
            error => error.into_failure().into(),
        }
    }

    /// The failure of a call whose connection could not be opened for this error.
    pub fn into_failure(self) -> Failure {
        let detail = self.to_string();
        match self {
            Self::Failure(failure) => failure,
            Self::ErrorResponse(object) if object.code() == code::UNSUPPORTED_VERSION => {
                Failure::new(FailureKind::NoCommonRevision, detail)
            }
            Self::ErrorResponse(object) => Failure::new(FailureKind::HandshakeRefused(object.code()), detail),
            Self::Usage(_) => Failure::new(FailureKind::StartFailed, detail),
        }
    }
}

/// The delay that a response names in `Retry-After`.
pub(crate) fn retry_after(head: &ResponseHead) -> Option<Duration> {
    parse_retry_after(head.get(&RETRY_AFTER)?, SystemTime::now())
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<HttpError> for Error {
    fn from(error: HttpError) -> Self {
        let kind = match error.kind() {
            HttpErrorKind::NameNotResolved | HttpErrorKind::Unreachable | HttpErrorKind::TlsFailed => {
                FailureKind::Unreachable
            }
            HttpErrorKind::ConnectionLimit => FailureKind::LimitReached,
            HttpErrorKind::ConnectTimeout => FailureKind::ConnectTimeout,
            HttpErrorKind::NotSent | HttpErrorKind::Broken => FailureKind::Broken,
            HttpErrorKind::Timeout(limit) => FailureKind::Silent(limit),
            HttpErrorKind::TooLarge(limit) => FailureKind::TooLarge(limit),
            HttpErrorKind::Protocol => FailureKind::Protocol,
            HttpErrorKind::Redirect(status) => FailureKind::Status(status),
        };
        let failure = Failure::new(kind, error.to_string());
        Self::Failure(match error.kind() {
            HttpErrorKind::NotSent => failure.before_sending(),
            HttpErrorKind::NameNotResolved => failure.at_step(ConnectStep::Name),
            HttpErrorKind::Unreachable => failure.at_step(ConnectStep::Address),
            HttpErrorKind::TlsFailed => failure.at_step(ConnectStep::Tls),
            _ => failure,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) => f.write_str(&redact(message)),
            Self::ErrorResponse(object) => {
                let message = object.message();
                write!(f, "the server answered with error {}: {}", object.code(), redact(&message))
            }
            Self::Failure(failure) => failure.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
