//! Why a call got no answer, as a value that travels from the transport to the client.
//!
//! A [`Failure`] says which side failed and how, whether the call can have run, and whether to try again. Decisions
//! are made on it; the client's sentence is made from it in [`client_text`] and nowhere else.

mod retry_after;
mod text;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::redact::redact;

pub use retry_after::parse_retry_after;
pub use text::{client_text, whole_seconds};

/// How a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// No connection could be opened.
    Unreachable,
    /// The server did not accept a connection in time.
    ConnectTimeout,
    /// The command could not be started, or the API document could not be loaded.
    StartFailed,
    /// The upstream is connecting for the first time, or again.
    Starting,
    /// A limit of ours was reached before anything was sent.
    LimitReached,
    /// The upstream refused our credentials, with this HTTP status (401 or 403).
    Credentials(u16),
    /// The upstream answered 429.
    RateLimited,
    /// The upstream answered 503.
    Unavailable,
    /// The upstream answered with this HTTP status and no JSON-RPC response.
    Status(u16),
    /// The upstream answered the handshake with a JSON-RPC error of this code.
    HandshakeRefused(i64),
    /// The upstream and we support no common revision.
    NoCommonRevision,
    /// The connection broke.
    Broken,
    /// The child process exited.
    ChildExited,
    /// Nothing arrived for this long.
    Silent(Duration),
    /// The whole call took longer than this.
    TimedOut(Duration),
    /// A message exceeds the limit of this many bytes.
    TooLarge(usize),
    /// A message nests deeper than the limit of this many levels.
    TooDeep(usize),
    /// The upstream violated the protocol.
    Protocol,
    /// The client did not answer a server request of the call.
    ClientUnanswered,
    /// The session store is unreachable, or this node does not hold its lease.
    StoreUnavailable,
    /// The session store is out of memory.
    StoreFull,
    /// The node that must serve the call has too many messages waiting.
    NodeBusy,
    /// The node that served the call is gone.
    NodeLost,
    /// The node is gone on which the call waited for input.
    ParkedCallLost,
    /// A quota of the gateway, the caller or the session is used up.
    QuotaReached(QuotaReached),
    /// A rate limit of ours has no room.
    OverRateLimit,
    /// The caller's credential lacks scopes that the call needs.
    InsufficientScope,
}

/// A quota that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaReached {
    /// Whose quota it is.
    pub scope: QuotaScope,
    /// What it counts, in the plural.
    pub resource: &'static str,
}

/// Whose quota is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaScope {
    /// That of the whole gateway.
    Gateway,
    /// That of the caller, or of its address.
    Caller,
    /// That of the session.
    Session,
}

/// The side that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureSide {
    /// The server that was called.
    Upstream,
    /// The client that called.
    Client,
    /// Rialto itself, or the store behind it.
    Gateway,
}

/// Whether a call that failed can have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// Nothing was sent, or it was refused before anything was done.
    NotRun,
    /// It was sent, and whether it ran is not known.
    MayHaveRun,
}

/// Whether the same request may succeed later. A call that may have run is repeated only by whoever knows that it may
/// run twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Not before somebody changes something.
    Never,
    /// Later; nobody said when.
    Later,
    /// After this time.
    After(Duration),
}

/// The step of opening a connection at which it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectStep {
    /// Looking up the name of the server.
    Name,
    /// Connecting to its address.
    Address,
    /// Setting up TLS.
    Tls,
}

/// Why a call got no answer. `Display` is the sentence for operators, with secrets masked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    kind: FailureKind,
    execution: Execution,
    retry: Retry,
    upstream: Option<Arc<str>>,
    /// All scopes that the call needs.
    scopes: Option<Arc<[Arc<str>]>>,
    /// The step that failed, where no connection could be opened.
    step: Option<ConnectStep>,
    detail: String,
}

impl FailureKind {
    /// One of each kind, in the order of docs/errors.md.
    pub const ALL: [Self; 27] = [
        Self::Unreachable,
        Self::ConnectTimeout,
        Self::StartFailed,
        Self::Starting,
        Self::LimitReached,
        Self::Credentials(401),
        Self::RateLimited,
        Self::Unavailable,
        Self::Status(500),
        Self::HandshakeRefused(-32000),
        Self::NoCommonRevision,
        Self::Broken,
        Self::ChildExited,
        Self::Silent(Duration::from_secs(60)),
        Self::TimedOut(Duration::from_secs(600)),
        Self::TooLarge(16 << 20),
        Self::TooDeep(128),
        Self::Protocol,
        Self::ClientUnanswered,
        Self::StoreUnavailable,
        Self::StoreFull,
        Self::NodeBusy,
        Self::NodeLost,
        Self::ParkedCallLost,
        Self::QuotaReached(QuotaReached { scope: QuotaScope::Gateway, resource: "calls in flight" }),
        Self::OverRateLimit,
        Self::InsufficientScope,
    ];

    /// The kind of an HTTP status without a JSON-RPC response.
    pub fn from_status(status: u16) -> Self {
        match status {
            401 | 403 => Self::Credentials(status),
            429 => Self::RateLimited,
            503 => Self::Unavailable,
            status => Self::Status(status),
        }
    }

    /// The name in `data.failure` of the client's error.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::ConnectTimeout => "connect_timeout",
            Self::StartFailed => "start_failed",
            Self::Starting => "starting",
            Self::LimitReached => "limit_reached",
            Self::Credentials(_) => "credentials",
            Self::RateLimited => "rate_limited",
            Self::Unavailable => "unavailable",
            Self::Status(_) => "http_status",
            Self::HandshakeRefused(_) => "handshake_refused",
            Self::NoCommonRevision => "no_common_revision",
            Self::Broken => "broken",
            Self::ChildExited => "child_exited",
            Self::Silent(_) => "silent",
            Self::TimedOut(_) => "timed_out",
            Self::TooLarge(_) => "too_large",
            Self::TooDeep(_) => "too_deep",
            Self::Protocol => "protocol",
            Self::ClientUnanswered => "client_unanswered",
            Self::StoreUnavailable => "store_unavailable",
            Self::StoreFull => "store_full",
            Self::NodeBusy => "node_busy",
            Self::NodeLost => "node_lost",
            Self::ParkedCallLost => "parked_call_lost",
            Self::QuotaReached(_) => "quota_reached",
            Self::OverRateLimit => "over_rate_limit",
            Self::InsufficientScope => "insufficient_scope",
        }
    }

    /// The side that failed.
    pub fn side(self) -> FailureSide {
        match self {
            Self::ClientUnanswered | Self::InsufficientScope => FailureSide::Client,
            Self::StoreUnavailable
            | Self::StoreFull
            | Self::NodeBusy
            | Self::NodeLost
            | Self::ParkedCallLost
            | Self::QuotaReached(_)
            | Self::OverRateLimit => FailureSide::Gateway,
            _ => FailureSide::Upstream,
        }
    }

    fn execution(self) -> Execution {
        match self {
            Self::Unreachable
            | Self::ConnectTimeout
            | Self::StartFailed
            | Self::Starting
            | Self::LimitReached
            | Self::Credentials(_)
            | Self::RateLimited
            | Self::Unavailable
            | Self::HandshakeRefused(_)
            | Self::NoCommonRevision
            | Self::StoreUnavailable
            | Self::NodeBusy
            | Self::QuotaReached(_)
            | Self::OverRateLimit
            | Self::InsufficientScope => Execution::NotRun,
            // These say that the request was refused as it stands, or is to be sent elsewhere; every other status leaves
            // it open.
            Self::Status(301 | 302 | 307 | 308 | 400 | 404..=406 | 411 | 413..=415 | 421 | 426 | 431 | 501 | 505) => {
                Execution::NotRun
            }
            Self::Status(_)
            | Self::Broken
            | Self::ChildExited
            | Self::Silent(_)
            | Self::TimedOut(_)
            | Self::TooLarge(_)
            | Self::TooDeep(_)
            | Self::Protocol
            | Self::ClientUnanswered
            | Self::StoreFull
            | Self::NodeLost
            | Self::ParkedCallLost => Execution::MayHaveRun,
        }
    }

    fn retry(self) -> Retry {
        match self {
            Self::Credentials(_)
            | Self::HandshakeRefused(_)
            | Self::NoCommonRevision
            | Self::TooLarge(_)
            | Self::TooDeep(_)
            | Self::Protocol
            | Self::InsufficientScope
            | Self::ClientUnanswered => Retry::Never,
            Self::Status(status) if status < 500 => Retry::Never,
            _ => Retry::Later,
        }
    }
}

impl Failure {
    /// A failure with a sentence for operators, which may name addresses and quote the server.
    pub fn new(kind: FailureKind, detail: impl Into<String>) -> Self {
        let (execution, retry) = (kind.execution(), kind.retry());
        Self { kind, execution, retry, upstream: None, scopes: None, step: None, detail: detail.into() }
    }

    /// The failure of a call that needs all of these scopes.
    pub fn insufficient_scope(scopes: Arc<[Arc<str>]>) -> Self {
        let detail = format!("the call needs the scopes {}", scopes.join(" "));
        Self { scopes: Some(scopes), ..Self::new(FailureKind::InsufficientScope, detail) }
    }

    /// All scopes that the call needs, where the caller lacks some.
    pub fn scopes(&self) -> &[Arc<str>] {
        self.scopes.as_deref().unwrap_or_default()
    }

    /// The failure of a call to the upstream of this name.
    #[must_use]
    pub fn of_upstream(self, name: &Arc<str>) -> Self {
        Self { upstream: Some(Arc::clone(name)), ..self }
    }

    /// The same failure before the call was sent: of its connection, for example.
    #[must_use]
    pub fn before_sending(self) -> Self {
        Self { execution: Execution::NotRun, ..self }
    }

    /// The same failure after the call was sent: while its stream was resumed, for example.
    #[must_use]
    pub fn after_sending(self) -> Self {
        Self { execution: Execution::MayHaveRun, ..self }
    }

    /// Sets the time after which the server wants to be asked again, if it named one.
    #[must_use]
    pub fn with_retry_after(self, delay: Option<Duration>) -> Self {
        Self { retry: delay.map_or(self.retry, Retry::After), ..self }
    }

    /// The failure of a connection at this step.
    #[must_use]
    pub fn at_step(self, step: ConnectStep) -> Self {
        Self { step: Some(step), ..self }
    }

    /// The step at which the connection failed, where one is known.
    pub fn step(&self) -> Option<ConnectStep> {
        self.step
    }

    /// How the call failed.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The name of the upstream, where one is known.
    pub fn upstream(&self) -> Option<&Arc<str>> {
        self.upstream.as_ref()
    }

    /// Whether the call can have run.
    pub fn execution(&self) -> Execution {
        self.execution
    }

    /// Whether nothing of the call reached a server: not even one that refused it.
    pub fn is_unsent(&self) -> bool {
        let was_refused = matches!(
            self.kind,
            FailureKind::Credentials(_) | FailureKind::RateLimited | FailureKind::Unavailable | FailureKind::Status(_)
        );
        self.execution == Execution::NotRun && !was_refused
    }

    /// Whether to try again, and when.
    pub fn retry(&self) -> Retry {
        self.retry
    }

    /// The time after which to try again, where one is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.retry {
            Retry::After(delay) => Some(delay),
            Retry::Never | Retry::Later => None,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.retry != Retry::Never
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact(&self.detail))
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        let mut names: Vec<&str> = FailureKind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FailureKind::ALL.len());
    }

    #[test]
    fn a_status_decides_the_kind_and_whether_the_call_can_have_run() {
        for (status, kind, execution, retryable) in [
            (303, FailureKind::Status(303), Execution::MayHaveRun, false),
            (307, FailureKind::Status(307), Execution::NotRun, false),
            (400, FailureKind::Status(400), Execution::NotRun, false),
            (401, FailureKind::Credentials(401), Execution::NotRun, false),
            (403, FailureKind::Credentials(403), Execution::NotRun, false),
            (404, FailureKind::Status(404), Execution::NotRun, false),
            (408, FailureKind::Status(408), Execution::MayHaveRun, false),
            (409, FailureKind::Status(409), Execution::MayHaveRun, false),
            (429, FailureKind::RateLimited, Execution::NotRun, true),
            (500, FailureKind::Status(500), Execution::MayHaveRun, true),
            (502, FailureKind::Status(502), Execution::MayHaveRun, true),
            (503, FailureKind::Unavailable, Execution::NotRun, true),
            (504, FailureKind::Status(504), Execution::MayHaveRun, true),
        ] {
            let failure = Failure::new(FailureKind::from_status(status), "");
            assert_eq!((failure.kind(), failure.execution(), failure.is_retryable()), (kind, execution, retryable));
        }
    }

    #[test]
    fn an_unnamed_delay_keeps_the_advice_of_the_kind() {
        let delay = Duration::from_secs(3);
        let failure = |kind| Failure::new(kind, "");
        assert_eq!(failure(FailureKind::RateLimited).with_retry_after(Some(delay)).retry(), Retry::After(delay));
        assert_eq!(failure(FailureKind::RateLimited).with_retry_after(None).retry(), Retry::Later);
        assert_eq!(failure(FailureKind::Protocol).with_retry_after(None).retry(), Retry::Never);
    }
}
