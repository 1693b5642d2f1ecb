//! Records who was let in and who was not, in the metrics and in the audit log.

use std::sync::Arc;

use super::Inbound;
use super::admission::{Admission, ArrivedRequest};
use super::respond::Rejection;
use super::route::Route;
use crate::audit::{AuditEvent, AuditKind, AuditOutcome, cut, session_digest};
use crate::call::{Caller, ClientSink};
use crate::identity::Credential;
use crate::session::Session;

/// Label of requests without a valid credential.
const NO_ISSUER: &str = "none";

impl Inbound {
    /// Records the outcome of admission: every one in the metrics, rejections and operators' requests in the audit log.
    /// Clients that are let in are recorded there with their session or their first call. Refuses what the audit log
    /// could not record where it must record everything.
    pub(super) fn record_admission(
        &self,
        request: &ArrivedRequest<'_>,
        admission: &mut Result<Admission<'_>, Rejection>,
    ) {
        match admission {
            Ok(Admission::Call(_, caller, _)) => {
                let issuer = issuer_label(&caller.identity.credential);
                self.gateway.metrics().record_admission(issuer, AuditOutcome::Allowed.as_str());
                if self.gateway.audit().must_refuse() {
                    *admission = Err(Rejection::AuditUnavailable);
                }
            }
            // The console records what operators do itself.
            Ok(Admission::Answered(_) | Admission::Undecided(..) | Admission::Console(..)) => {}
            Ok(Admission::Complete(response)) => {
                let status = response.status().as_u16();
                if self.asks_operations(request) {
                    self.record_head(AuditKind::Admin, AuditOutcome::Allowed, status, request);
                }
            }
            Err(rejection) => self.record_rejection(rejection, request),
        }
    }

    #[cold]
    fn record_rejection(&self, rejection: &Rejection, request: &ArrivedRequest<'_>) {
        let status = rejection.status().as_u16();
        let is_admission =
            matches!(rejection, Rejection::Denied(_) | Rejection::Credential(_) | Rejection::TooManyFailures(_));
        let (kind, outcome) = match (rejection, status) {
            _ if is_admission && matches!(status, 400 | 401) => (AuditKind::Admission, AuditOutcome::Unauthenticated),
            _ if is_admission && status == 429 => (AuditKind::Admission, AuditOutcome::RateLimited),
            _ if is_admission && status >= 500 => (AuditKind::Admission, AuditOutcome::Failed),
            _ if is_admission => (AuditKind::Admission, AuditOutcome::Denied),
            (Rejection::NotFound, _) if self.asks_operations(request) => (AuditKind::Admin, AuditOutcome::Denied),
            _ => return,
        };
        if kind == AuditKind::Admission {
            self.gateway.metrics().record_admission(NO_ISSUER, outcome.as_str());
        }
        self.record_head(kind, outcome, status, request);
    }

    /// Whether a request is for metrics or status.
    fn asks_operations(&self, request: &ArrivedRequest<'_>) -> bool {
        let route = Route::parse(request.head.uri.path(), self.policy().public_path());
        matches!(route, Some(Route::Metrics | Route::Status))
    }

    /// Records a request of which only the head was looked at.
    fn record_head(&self, kind: AuditKind, outcome: AuditOutcome, status: u16, request: &ArrivedRequest<'_>) {
        let Some(log) = self.gateway.audit().log() else { return };
        let mut event = AuditEvent::new(kind, outcome);
        let (policy, head) = (self.policy(), request.head);
        event.request_id = Some(request.request_id.clone());
        event.peer = Some(policy.trusted_proxies.client_address(request.connection.peer, &head.headers));
        if let Some(route) = Route::parse(head.uri.path(), policy.public_path()) {
            // Not the path itself, which may hold a session id.
            event.detail = Some(cut(&format!("{} {}", head.verb, route.label())));
            let group = self.gateway.group(route.group()).filter(|_| kind == AuditKind::Admission);
            event.group = group.map(|group| Arc::clone(group.name()));
        }
        event.status = Some(status.to_string());
        log.record(event);
    }

    /// Records the caller that opened a session.
    pub(super) fn record_session(&self, caller: &Caller, session: &Session) {
        let Some(log) = self.gateway.audit().log() else { return };
        let mut event = admitted(caller, session.group());
        event.session = Some(session_digest(session.key()));
        event.revision = session.client().map(|client| client.revision.to_string());
        log.record(event);
    }

    /// Records a caller without a session, once in five minutes.
    pub(super) fn record_sessionless(&self, caller: &Caller, group: &Arc<str>) {
        let Some(log) = self.gateway.audit().log() else { return };
        if log.is_new_admission(caller.id(), group) {
            log.record(admitted(caller, group));
        }
    }
}

fn admitted(caller: &Caller, group: &Arc<str>) -> AuditEvent {
    let mut event = AuditEvent::new(AuditKind::Admission, AuditOutcome::Allowed);
    event.request_id.clone_from(&caller.request_id);
    event.peer = caller.peer;
    event.identity = Some(Arc::clone(&caller.identity));
    event.group = Some(Arc::clone(group));
    event
}

/// The label `issuer`: the issuer of a token, else the kind of credential.
fn issuer_label(credential: &Credential) -> &str {
    match credential {
        Credential::Anonymous => "anonymous",
        Credential::Local => "local",
        Credential::Token(_) => "token",
        Credential::Key(_) => "key",
        Credential::Certificate(_) => "certificate",
        Credential::Jwt(issuer) | Credential::Opaque(issuer) => issuer,
    }
}
