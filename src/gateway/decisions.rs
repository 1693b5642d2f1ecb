//! Records what was decided about a call: in the metrics, and in the audit log where there is one.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::time::Instant;

use super::caller_view::{CallerView, FoundTarget};
use super::group::Group;
use crate::audit::{AuditEvent, AuditKind, AuditLog, AuditOutcome, cut, session_digest};
use crate::call::{Call, Caller};
use crate::metrics::CallOutcome;
use crate::protocol::method::MethodRoute;
use crate::protocol::{Key, Method, Payload, Raw};

/// What was decided about a call, and by what.
#[derive(Debug)]
pub(super) struct CallDecision<'d> {
    pub(super) outcome: AuditOutcome,
    /// The server of the target, where it was found.
    pub(super) server: Option<&'d Arc<str>>,
    /// Whose names the call has.
    pub(super) names: CallNames,
    /// The name of the target on the other side, where it is known.
    pub(super) other_name: Option<&'d str>,
    /// The rule that decided.
    pub(super) rule: Option<Arc<str>>,
    /// The limit that decided.
    pub(super) limit: Option<Arc<str>>,
    /// By what kind of credential the server was called.
    pub(super) upstream_auth: Option<&'static str>,
    /// How a call ended that was sent.
    pub(super) status: Option<&'static str>,
    /// When the call began.
    pub(super) started: Option<Instant>,
}

/// Whose names a call has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallNames {
    /// Those of the server: the call was routed.
    Server,
    /// Those that the client knows.
    Client,
}

impl From<CallOutcome> for AuditOutcome {
    fn from(outcome: CallOutcome) -> Self {
        match outcome {
            CallOutcome::Ok | CallOutcome::ToolError => Self::Allowed,
            CallOutcome::Error | CallOutcome::Unavailable | CallOutcome::Cancelled => Self::Failed,
        }
    }
}

impl CallDecision<'_> {
    /// A decision about a call as the client made it, before it was routed.
    pub(super) fn new(outcome: AuditOutcome) -> Self {
        Self {
            outcome,
            server: None,
            names: CallNames::Client,
            other_name: None,
            rule: None,
            limit: None,
            upstream_auth: None,
            status: None,
            started: None,
        }
    }
}

/// What the audit log needs of a call that is forwarded, beside the call itself: nothing where there is no such log.
#[derive(Debug, Default)]
pub(super) struct AuditedTarget(Option<Box<AuditedNames>>);

#[derive(Debug)]
struct AuditedNames {
    /// The name by which the client calls the target.
    exposed: Option<Box<str>>,
    /// The rule that allows the call; `None` for the default.
    rule: Option<Arc<str>>,
}

impl AuditedTarget {
    pub(super) fn exposed_name(&self) -> Option<&str> {
        self.0.as_ref()?.exposed.as_deref()
    }

    pub(super) fn rule(&self) -> Option<Arc<str>> {
        self.0.as_ref()?.rule.clone()
    }
}

impl Group {
    /// Records a decision about a call. The only place that does: whoever decides calls this once.
    pub(super) fn record_decision(&self, call: &Call, decision: CallDecision<'_>) {
        let is_list = matches!(call.method.route(), MethodRoute::List);
        if !is_list {
            let (index, label) = (decision.outcome as usize, decision.outcome.as_str());
            self.shared.metrics.record_decision(&self.decision_metrics, self.name(), index, label);
        }
        if let Some(log) = self.shared.audit.log().filter(|log| !is_list || log.records_lists()) {
            let kind = if is_list { AuditKind::List } else { AuditKind::of_call(decision.outcome) };
            self.audit_decision(&log, kind, call, decision);
        }
    }

    #[cold]
    fn audit_decision(&self, log: &AuditLog, kind: AuditKind, call: &Call, decision: CallDecision<'_>) {
        let mut event = AuditEvent::new(kind, decision.outcome);
        let (target_kind, name) = target(call);
        let (name, other) = (name.as_deref().map(cut), decision.other_name.map(cut));
        (event.target, event.exposed_name) = match decision.names {
            CallNames::Server => (name, other),
            CallNames::Client => (other, name),
        };
        event.target_kind = Some(target_kind);
        event.request_id.clone_from(&call.caller.request_id);
        event.peer = call.caller.peer;
        event.identity = Some(Arc::clone(&call.caller.identity));
        event.group = Some(Arc::clone(self.name()));
        event.server = decision.server.cloned();
        event.rule = decision.rule.map(|rule| cut(&rule));
        event.limit = decision.limit.map(|limit| cut(&limit));
        event.upstream_auth = decision.upstream_auth;
        event.revision = Some(call.client.revision.to_string());
        event.session = call.sink.as_ref().map(|sink| session_digest(sink.key()));
        event.status = decision.status.map(str::to_owned);
        event.duration = decision.started.map(|started| started.elapsed());
        let arguments = call.params.as_ref().and_then(|params| params.member(Key::Arguments));
        event.arguments = log.arguments(arguments.as_ref());
        log.record(event);
    }

    /// What the audit log needs of a call that is forwarded.
    pub(super) fn audited_target(
        &self,
        call: &Call,
        found: Option<(&CallerView<'_>, &FoundTarget<'_>)>,
    ) -> AuditedTarget {
        AuditedTarget(self.shared.audit.log().map(|_| {
            let rule = found.and_then(|(caller, found)| caller.deciding_rule(call, found));
            Box::new(AuditedNames { exposed: target(call).1.map(Into::into), rule })
        }))
    }

    /// Records a request that a limit rejects before it is routed.
    #[cold]
    pub fn record_limited_request(&self, caller: &Caller, method: &Method, limit: &str) {
        let outcome = AuditOutcome::RateLimited;
        self.shared.metrics.record_decision(&self.decision_metrics, self.name(), outcome as usize, outcome.as_str());
        let Some(log) = self.shared.audit.log() else { return };
        let mut event = AuditEvent::new(AuditKind::RateLimit, outcome);
        event.request_id.clone_from(&caller.request_id);
        event.peer = caller.peer;
        event.identity = Some(Arc::clone(&caller.identity));
        event.group = Some(Arc::clone(self.name()));
        (event.target_kind, event.target) = (Some("method"), Some(cut(method.as_str())));
        event.limit = Some(cut(limit));
        log.record(event);
    }
}

/// The name or URI that a request is about; `None` where it is about none.
pub fn request_target<'r>(method: &Method, params: Option<&'r Payload>) -> Option<Cow<'r, str>> {
    match named_target(method, params) {
        ("method", _) => None,
        (_, name) => name,
    }
}

/// The kind and the name of what a call is about.
fn target(call: &Call) -> (&'static str, Option<Cow<'_, str>>) {
    match named_target(&call.method, call.params.as_ref()) {
        ("method", _) => ("method", Some(Cow::Borrowed(call.method.as_str()))),
        named => named,
    }
}

fn named_target<'r>(method: &Method, params: Option<&'r Payload>) -> (&'static str, Option<Cow<'r, str>>) {
    let text = |key: Key| params.and_then(|params| params.text_of(key));
    match method {
        Method::ToolsCall => ("tool", text(Key::Name)),
        Method::PromptsGet => ("prompt", text(Key::Name)),
        Method::ResourcesRead | Method::Subscribe | Method::Unsubscribe => ("resource", text(Key::Uri)),
        Method::Complete => {
            let reference = params.and_then(|params| params.member(Key::Ref));
            let member = |key: &str| {
                let value = reference.as_ref()?.get(key);
                value.as_ref().and_then(Raw::text).map(|text| Cow::Owned(text.into_owned()))
            };
            match member("name") {
                Some(name) => ("prompt", Some(name)),
                None => ("resource", member("uri")),
            }
        }
        _ => ("method", None),
    }
}
