//! Counts a forwarded call when it has ended: in metrics, in the access log and in the audit log.

use std::time::Duration;

use super::super::decisions::{CallDecision, CallNames};
use super::super::operations::{CANCELLED, ClientOperation};
use super::{ForwardedCall, Purpose};
use crate::metrics::{CallOutcome, OperationError};

impl ForwardedCall {
    pub(super) fn record_outcome(&mut self, outcome: CallOutcome, error: Option<OperationError>) {
        self.is_recorded = true;
        tracing::debug!(
            request = self.call.caller.request_id(),
            group = %self.group.name(),
            upstream = %self.leg.name(),
            method = %self.call.method,
            outcome = outcome.as_str(),
            took = ?self.started.elapsed(),
            "a call ended"
        );
        if let Some(access) = &self.call.caller.access {
            access.note_upstream(self.leg.name(), self.started.elapsed());
            access.note_outcome(outcome.as_str());
            if outcome == CallOutcome::ToolError {
                access.note_tool_error();
            }
        }
        self.group.record_call((&self.metrics, self.leg.name()), &self.call.method, outcome);
        let waited = self.input.get().map_or(Duration::ZERO, |clock| clock.waited());
        self.group.record_client_operation(&ClientOperation {
            call: &self.call,
            leg: &self.leg,
            metrics: &self.metrics,
            name_mapping: &self.name_mapping,
            revision: self.server_revision,
            error,
            took: self.started.elapsed().saturating_sub(waited),
        });
        let decision = CallDecision {
            server: Some(self.leg.name()),
            names: CallNames::Server,
            other_name: match &self.purpose {
                Purpose::Subscription(uri) => Some(uri),
                _ => self.audited.exposed_name(),
            },
            rule: self.audited.rule(),
            upstream_auth: self.leg.spec().credential_kind(),
            status: Some(outcome.as_str()),
            started: Some(self.started),
            ..CallDecision::new(outcome.into())
        };
        self.group.record_decision(&self.call, decision);
    }
}

impl Drop for ForwardedCall {
    fn drop(&mut self) {
        if !self.is_recorded {
            self.record_outcome(CallOutcome::Cancelled, Some(CANCELLED));
        }
    }
}
