//! One event of the audit log and its line.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::identity::Identity;
use crate::line_log::{is_unprintable, push_rfc3339};

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditKind {
    /// A request was let in or turned away.
    Admission,
    /// A call ended or was refused.
    Call,
    /// A list was served.
    List,
    /// A call needs more scopes than its token has.
    StepUp,
    /// A call was over a limit.
    RateLimit,
    /// A configuration was applied or refused.
    Config,
    /// An operator asked for metrics or status.
    Admin,
    /// Events before this one could not be written.
    Loss,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditOutcome {
    /// It may be done.
    Allowed,
    /// The target does not exist for this caller.
    Hidden,
    /// It may not be done.
    Denied,
    /// It may be done with more scopes.
    StepUp,
    /// It may be done later.
    RateLimited,
    /// Nobody knows who asks.
    Unauthenticated,
    /// It was allowed and did not succeed.
    Failed,
}

/// One event. Text of clients goes in through [`cut`].
#[derive(Debug)]
pub struct AuditEvent {
    /// What the event is about.
    pub kind: AuditKind,
    /// What was decided.
    pub outcome: AuditOutcome,
    /// When it was decided.
    pub time: SystemTime,
    /// The id of the request.
    pub request_id: Option<HeaderValue>,
    /// The name of the node, set by the log.
    pub node: Option<Arc<str>>,
    /// The address of the client.
    pub peer: Option<SocketAddr>,
    /// Who calls, where that is known.
    pub identity: Option<Arc<Identity>>,
    /// The group that the request is for.
    pub group: Option<Arc<str>>,
    /// The server that the call is for.
    pub server: Option<Arc<str>>,
    /// What the target is: `tool`, `prompt`, `resource` or `method`.
    pub target_kind: Option<&'static str>,
    /// The server's own name of the target.
    pub target: Option<String>,
    /// The name by which clients know the target.
    pub exposed_name: Option<String>,
    /// The rule that decided.
    pub rule: Option<String>,
    /// The limit that decided.
    pub limit: Option<String>,
    /// By what kind of credential the server was called. Never the credential.
    pub upstream_auth: Option<&'static str>,
    /// The revision of the client.
    pub revision: Option<String>,
    /// The session, as a digest.
    pub session: Option<String>,
    /// The HTTP status, or how a call ended.
    pub status: Option<String>,
    /// How long a call took.
    pub duration: Option<Duration>,
    /// What is written of the arguments.
    pub arguments: Option<Box<RawValue>>,
    /// A few words more.
    pub detail: Option<String>,
    /// How many events could not be written before this one.
    pub lost: Option<u64>,
}

/// The members of a line, in their order.
#[derive(Serialize)]
struct AuditLine<'e> {
    time: String,
    event: AuditKind,
    outcome: AuditOutcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    credential: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jti: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exposed_name: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_auth: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'e RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
}

/// Longest text of a client in a line, in characters.
const MAX_TEXT: usize = 256;

/// Text of a client, shortened.
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl AuditKind {
    /// The event of a call that ended with this decision.
    pub fn of_call(outcome: AuditOutcome) -> Self {
        match outcome {
            AuditOutcome::StepUp => Self::StepUp,
            AuditOutcome::RateLimited => Self::RateLimit,
            _ => Self::Call,
        }
    }
}

impl AuditOutcome {
    /// All of them, in the order of their values.
    pub const ALL: [Self; 7] = [
        Self::Allowed,
        Self::Hidden,
        Self::Denied,
        Self::StepUp,
        Self::RateLimited,
        Self::Unauthenticated,
        Self::Failed,
    ];

    /// The outcome as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Hidden => "hidden",
            Self::Denied => "denied",
            Self::StepUp => "step_up",
            Self::RateLimited => "rate_limited",
            Self::Unauthenticated => "unauthenticated",
            Self::Failed => "failed",
        }
    }
}

impl AuditEvent {
    /// An event that happens now, of which nothing else is known.
    pub fn new(kind: AuditKind, outcome: AuditOutcome) -> Self {
        Self {
            kind,
            outcome,
            time: SystemTime::now(),
            request_id: None,
            node: None,
            peer: None,
            identity: None,
            group: None,
            server: None,
            target_kind: None,
            target: None,
            exposed_name: None,
            rule: None,
            limit: None,
            upstream_auth: None,
            revision: None,
            session: None,
            status: None,
            duration: None,
            arguments: None,
            detail: None,
            lost: None,
        }
    }

    /// The event as one line of JSON with its line break.
    pub(super) fn line(&self) -> String {
        let identity = self.identity.as_deref();
        let line = AuditLine {
            time: rfc3339(self.time),
            event: self.kind,
            outcome: self.outcome,
            request_id: self.request_id.as_ref().map(|id| cut(&String::from_utf8_lossy(id.as_bytes()))),
            node: self.node.as_deref(),
            peer: self.peer.map(|peer| peer.ip().to_canonical().to_string()),
            principal: identity.map(|identity| cut(&identity.principal)),
            name: identity.and_then(|identity| identity.name.as_deref()).map(cut),
            client_id: identity.and_then(|identity| identity.client_id.as_deref()).map(cut),
            credential: identity.map(|identity| cut(&identity.credential.label())),
            jti: identity.and_then(|identity| identity.token_id.as_deref()).map(cut),
            group: self.group.as_deref(),
            server: self.server.as_deref(),
            kind: self.target_kind,
            target: self.target.as_deref(),
            exposed_name: self.exposed_name.as_deref(),
            rule: self.rule.as_deref(),
            limit: self.limit.as_deref(),
            upstream_auth: self.upstream_auth,
            revision: self.revision.as_deref(),
            session: self.session.as_deref(),
            status: self.status.as_deref(),
            duration_ms: self.duration.map(|duration| (duration.as_secs_f64() * 1e6).round() / 1e3),
            arguments: self.arguments.as_deref(),
            detail: self.detail.as_deref(),
            lost: self.lost,
        };
        let mut line = single_line(serde_json::to_string(&line).unwrap_or_default());
        line.push('\n');
        line
    }
}

fn rfc3339(time: SystemTime) -> String {
    let mut text = String::with_capacity(24);
    push_rfc3339(&mut text, time);
    text
}

/// JSON in which characters that some programs take for a line break, and other control characters, are escaped.
fn single_line(json: String) -> String {
    if !json.contains(is_unprintable) {
        return json;
    }
    let mut line = String::with_capacity(json.len() + 16);
    for letter in json.chars() {
        match is_unprintable(letter) {
            true => {
                let _ = write!(line, "\\u{:04x}", u32::from(letter));
            }
            false => line.push(letter),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_on_one_line() {
        let hostile = format!("a\r\nb\u{85}\u{2028}\u{2029}\u{0}\"\\{}", "x".repeat(1 << 20));
        let mut event = AuditEvent::new(AuditKind::Call, AuditOutcome::Hidden);
        event.target = Some(cut(&hostile));
        event.request_id = HeaderValue::from_bytes(b"\xff\xfe").ok();
        let line = event.line();
        assert_eq!(line.chars().filter(|letter| letter.is_control()).collect::<String>(), "\n");
        assert!(!line.contains(['\u{2028}', '\u{2029}']) && line.len() < 1000, "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["target"].as_str().unwrap().chars().count(), MAX_TEXT + 1);
        assert!(read["target"].as_str().unwrap().starts_with("a\r\nb\u{85}\u{2028}\u{2029}\u{0}\"\\x"));
    }
}
