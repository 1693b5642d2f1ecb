//! Asks the rate limits about a call whose target is known, before anything is sent for it.

use std::sync::Arc;

use super::decisions::{AuditedTarget, CallDecision, CallNames};
use super::forward;
use super::group::Group;
use super::route::invalid_params;
use super::view::GroupMember;
use crate::audit::AuditOutcome;
use crate::call::{Answer, Call, Replies};
use crate::failure::{Failure, FailureKind};
use crate::metrics::CallOutcome;
use crate::policy::rules::TargetKind;
use crate::policy::{CalledTarget, LimitExceeded, LimitExcess, LimitedRequest, NotAdmitted};
use crate::protocol::{ErrorObject, Key, Raw};

/// A target as routing found it: its kind, the upstream that has it, and the upstream's own name.
pub(super) type RoutedTarget<'t> = (TargetKind, &'t GroupMember, &'t str);

impl Group {
    /// Has a call with mapped names run by `begin` if the limits admit it; `begin` gets the call with its share.
    pub(super) fn run_limited(
        self: &Arc<Self>,
        call: Call,
        target: RoutedTarget<'_>,
        audited: AuditedTarget,
        begin: impl FnOnce(&Arc<Self>, Call, &GroupMember, AuditedTarget) -> Replies + Send + 'static,
    ) -> Replies {
        let limits = &self.shared.rate_limits;
        let (kind, member, name) = target;
        if !limits.judges_calls() {
            return begin(self, call, member, audited);
        }
        let asked = self.limited_request(&call, target);
        let outer = call.limits.clone();
        match limits.try_admit(&asked, outer) {
            Ok(share) => begin(self, Call { limits: share, ..call }, member, audited),
            Err(NotAdmitted::Exceeded(exceeded)) => self.reject(&call, (kind, member), &audited, exceeded),
            Err(NotAdmitted::StoreNeeded) => {
                let (group, member, name) = (Arc::clone(self), member.clone(), name.to_owned());
                forward::deferred(async move {
                    let asked = group.limited_request(&call, (kind, &member, &name));
                    match group.shared.rate_limits.admit(&asked, call.limits.clone()).await {
                        Ok(share) => begin(&group, Call { limits: share, ..call }, &member, audited),
                        Err(exceeded) => group.reject(&call, (kind, &member), &audited, exceeded),
                    }
                })
            }
        }
    }

    fn limited_request<'c>(&'c self, call: &'c Call, (kind, member, name): RoutedTarget<'c>) -> LimitedRequest<'c> {
        let arguments = call.params.as_ref().and_then(|params| params.member(Key::Arguments));
        let argument_bytes = arguments.map_or(0, |arguments| arguments.as_bytes().len());
        let target = CalledTarget { kind, upstream: member.upstream.name(), name, argument_bytes };
        LimitedRequest { caller: &call.caller, group: self.name(), target: Some(target), resumes: false }
    }

    /// Answers a call that a limit rejects. It takes from no limit, so what it took before it was routed goes back.
    fn reject(
        &self,
        call: &Call,
        (kind, member): (TargetKind, &GroupMember),
        audited: &AuditedTarget,
        exceeded: LimitExceeded,
    ) -> Replies {
        if let Some(limits) = &call.limits {
            limits.give_back();
        }
        let error = match exceeded.excess {
            LimitExcess::Rate(wait) => over_rate_limit(wait),
            LimitExcess::ArgumentBytes(most) => {
                invalid_params(&format!("`arguments` may have {most} bytes here; send less"))
            }
        };
        let is_tool = kind == TargetKind::Tools;
        let outcome = if is_tool { CallOutcome::ToolError } else { CallOutcome::Error };
        self.record_local_call(&call.method, outcome);
        let (status, server) = (Some(outcome.as_str()), Some(member.upstream.name()));
        let decided = CallDecision::new(AuditOutcome::RateLimited);
        let (limit, names, other_name) = (Some(exceeded.limit), CallNames::Server, audited.exposed_name());
        self.record_decision(call, CallDecision { status, server, names, other_name, limit, ..decided });
        match is_tool {
            true => Answer::result(tool_error(&error)).into(),
            false => error.into(),
        }
    }
}

/// The error of a request that a rate limit rejects.
pub fn over_rate_limit(wait: std::time::Duration) -> ErrorObject {
    Failure::new(FailureKind::OverRateLimit, "a rate limit has no room").with_retry_after(Some(wait)).into()
}

/// The error as a tool result, so that a model reads it.
fn tool_error(error: &ErrorObject) -> Raw {
    Raw::of(&serde_json::json!({
        "resultType": "complete",
        "content": [{ "type": "text", "text": error.message() }],
        "isError": true,
    }))
}
