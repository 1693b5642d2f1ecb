//! Routes a call to the upstream of the group that answers it.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::time::Instant;

use super::call_limits::RoutedTarget;
use super::caller_view::{CallerView, RefusedCall};
use super::cursor::{Cursor, bind_to_caller};
use super::decisions::{AuditedTarget, CallDecision};
use super::group::Group;
use super::permissions::target_kind;
use super::request_state::RequestState;
use super::view::{GroupMember, View};
use super::{forward, parked_calls, trace_context};
use crate::audit::AuditOutcome;
use crate::call::{Answer, Call, ClientSink, Replies};
use crate::dialect::Revision;
use crate::dialect::classify::method_not_found;
use crate::dialect::to_client::{self, CacheHint};
use crate::failure::{Failure, FailureKind};
use crate::identity::Identity;
use crate::metrics::CallOutcome;
use crate::policy::rules::TargetKind;
use crate::protocol::method::{Capability, MethodRoute};
use crate::protocol::{ErrorObject, Key, Level, Method, Notification, NotificationMethod, Payload, Raw, code};
use crate::upstream::{Leg, List};

/// Cache hint of `server/discover`, in milliseconds.
const DISCOVERY_CACHE_HINT: CacheHint = CacheHint { ttl: 60_000, public: true };
/// Cache hint of `server/discover` while some upstream is still connecting.
const STARTING_CACHE_HINT: CacheHint = CacheHint { ttl: 1_000, public: true };

impl Group {
    /// Whether the call needs only upstreams that already connected or failed to.
    fn targets_settled_upstream(&self, call: &Call) -> bool {
        let view = self.view(call.client.revision);
        let known = |found: Option<(&GroupMember, &str)>| found.is_some_and(|(member, _)| member.is_settled);
        match call.method {
            Method::Ping | Method::SetLevel => true,
            Method::ToolsCall => {
                known(view.find_by_name(List::Tools, &string_param(call, Key::Name).unwrap_or_default()))
            }
            Method::PromptsGet => {
                known(view.find_by_name(List::Prompts, &string_param(call, Key::Name).unwrap_or_default()))
            }
            Method::ResourcesRead | Method::Subscribe | Method::Unsubscribe => {
                known(view.find_by_uri(&string_param(call, Key::Uri).unwrap_or_default()))
            }
            _ => false,
        }
    }

    /// Answers a call, or forwards it to its upstream. A call waits for connecting upstreams only if it may
    /// need one of them.
    pub fn handle(self: &Arc<Self>, call: &Call) -> Replies {
        match call.trace.span() {
            None => self.handle_call(call),
            Some(span) => trace_context::end_with_answer(span, &call.method, self.handle_call(call)),
        }
    }

    fn handle_call(self: &Arc<Self>, call: &Call) -> Replies {
        if let Err(error) = check_duplicates(call) {
            return self.refuse(call, error);
        }
        if self.is_starting(call.client.revision) && !self.targets_settled_upstream(call) {
            let (group, call) = (Arc::clone(self), call.clone());
            return forward::deferred(async move {
                group.wait_ready(call.client.revision).await;
                group.handle_ready(&call)
            });
        }
        self.handle_ready(call)
    }

    fn handle_ready(self: &Arc<Self>, call: &Call) -> Replies {
        if !may_require_input(call) {
            return self.route(call);
        }
        match RequestState::from_call(self, call) {
            Ok(None) => self.route(call),
            Ok(Some(RequestState::Parked(id, _))) => match self.refuse_resumption(call) {
                Some(refused) => refused,
                None => forward::deferred(parked_calls::resume(Arc::clone(self), call.clone(), id)),
            },
            Ok(Some(RequestState::Retry)) => self.route(&with_request_state(call, None)),
            Ok(Some(RequestState::Upstream(own))) => self.route(&with_request_state(call, Some(own))),
            Err(error) => error.into(),
        }
    }

    /// The answer to a call that waits here and may no longer be made.
    fn refuse_resumption(&self, call: &Call) -> Option<Replies> {
        let view = self.view_for(call);
        let caller = CallerView::new(&view, &call.caller.identity);
        if !caller.has_rules() {
            return None;
        }
        let found = match call.method {
            Method::ResourcesRead => string_param(call, Key::Uri).map(|uri| {
                let found = caller.find_by_uri(&uri);
                found.map(|found| caller.refusal(call, &found)).ok_or_else(|| resource_not_found(&uri))
            }),
            _ => string_param(call, Key::Name).map(|name| {
                let found = caller.find_by_name(named_list(call).0, &name);
                found.map(|found| caller.refusal(call, &found)).ok_or_else(|| unknown_name(call, &name))
            }),
        };
        match found.and_then(|found| found) {
            Ok(refusal) => refusal.map(|refused| self.refuse_with(call, refused)),
            Err(error) => Some(self.refuse(call, error)),
        }
    }

    /// The answer to a running call whose target rules hide now; `None` where it is shown.
    pub(super) fn hidden_answer(&self, call: &Call) -> Option<Answer> {
        let view = self.view_for(call);
        let caller = CallerView::new(&view, &call.caller.identity);
        caller.hidden_target(call)?;
        let error = if call.method == Method::ResourcesRead {
            let uri = string_param(call, Key::Uri).ok()?;
            caller.find_by_uri(&uri).is_none().then(|| resource_not_found(&uri))
        } else {
            let name = string_param(call, Key::Name).ok()?;
            caller.find_by_name(named_list(call).0, &name).is_none().then(|| unknown_name(call, &name))
        };
        error.map(Answer::error)
    }

    fn route(self: &Arc<Self>, call: &Call) -> Replies {
        let view = self.view_for(call);
        let caller = CallerView::new(&view, &call.caller.identity);
        if call.method.capability().is_some_and(|capability| !view.has_capability(capability)) {
            return self.route_undeclared(call, &caller).unwrap_or_else(|| method_not_found(&call.method).into());
        }
        match call.method.route() {
            MethodRoute::Gateway => match call.method {
                Method::Ping => Answer::result(Raw::empty()).into(),
                Method::Discover => {
                    let hint = if view.all_settled() { DISCOVERY_CACHE_HINT } else { STARTING_CACHE_HINT };
                    // A remote server's self-description may depend on the caller, so it is not public.
                    let public = view.members.iter().all(|member| member.upstream.spec().is_built_in());
                    let hint = CacheHint { public, ..hint };
                    Answer::result(to_client::discover_result(&view.server_for(call.client.revision), hint)).into()
                }
                Method::Listen => self.listen(call, &caller),
                Method::SetLevel => self.set_log_level(call, &view),
                Method::Subscribe | Method::Unsubscribe => self.change_subscription(call, &caller),
                _ => method_not_found(&call.method).into(),
            },
            MethodRoute::List => {
                let started = Instant::now();
                let listed = self.list(call, &caller);
                let outcome = if listed.is_ok() { CallOutcome::Ok } else { CallOutcome::Error };
                self.record_local_call(&call.method, outcome);
                let (status, started) = (Some(outcome.as_str()), Some(started));
                self.record_decision(call, CallDecision { status, started, ..CallDecision::new(outcome.into()) });
                listed.unwrap_or_else(Replies::from)
            }
            MethodRoute::ByName => {
                self.route_by_name(call, &caller).unwrap_or_else(|error| self.refuse_unrouted(call, &caller, error))
            }
            MethodRoute::ByUri => {
                self.route_by_uri(call, &caller).unwrap_or_else(|error| self.refuse_unrouted(call, &caller, error))
            }
            MethodRoute::ByReference => self
                .route_by_reference(call, &caller)
                .unwrap_or_else(|error| self.refuse_unrouted(call, &caller, error)),
            MethodRoute::Unknown if call.method.is_task_method() => self.route_task(call, &caller),
            MethodRoute::Unknown => match caller.find_method(call.method.as_str()) {
                Some(found) => match caller.refusal(call, &found) {
                    Some(refused) => self.refuse_with(call, refused),
                    None => {
                        let audited = self.audited_target(call, Some((&caller, &found)));
                        self.forward_audited(call, call.clone(), found.member, audited)
                    }
                },
                None => method_not_found(&call.method).into(),
            },
        }
    }

    /// Routes a call that needs a capability which nobody declares: the server that it can only be meant for answers it.
    fn route_undeclared(self: &Arc<Self>, call: &Call, caller: &CallerView<'_>) -> Option<Replies> {
        let view = caller.view();
        let only = view.single_member().filter(|only| !only.upstream.spec().is_local());
        match call.method.route() {
            MethodRoute::List => {
                // The server's own answer would show what rules hide.
                let is_whole = !caller.has_rules()
                    && List::from_method(&call.method).is_some_and(|list| view.config.filter(list).allows_all());
                Some(self.forward(call, call.clone(), only.filter(|_| is_whole)?))
            }
            MethodRoute::ByName => self.route_by_name(call, caller).ok(),
            MethodRoute::ByUri => self.route_by_uri(call, caller).ok(),
            MethodRoute::ByReference => self.route_by_reference(call, caller).ok(),
            MethodRoute::Gateway if matches!(call.method, Method::Subscribe | Method::Unsubscribe) => {
                Some(self.change_subscription(call, caller))
            }
            // A log level belongs to a session of the server.
            MethodRoute::Gateway => {
                Some(self.forward(call, call.clone(), only.filter(|only| only.leg.uses_lease(call))?))
            }
            MethodRoute::Unknown => None,
        }
    }

    /// Counts and returns an error for a call that has no upstream.
    fn refuse(&self, call: &Call, error: ErrorObject) -> Replies {
        self.refuse_as(CallDecision::new(AuditOutcome::Failed), call, error)
    }

    /// The same for a call whose target was not found: what is hidden is recorded as such, whatever the client is told.
    fn refuse_unrouted(&self, call: &Call, caller: &CallerView<'_>, error: ErrorObject) -> Replies {
        let Some(hidden) = caller.hidden_target(call) else { return self.refuse(call, error) };
        let decided = CallDecision {
            server: Some(hidden.server),
            other_name: Some(&hidden.own),
            rule: hidden.rule,
            ..CallDecision::new(AuditOutcome::Hidden)
        };
        self.refuse_as(decided, call, error)
    }

    fn refuse_as(&self, decided: CallDecision<'_>, call: &Call, error: ErrorObject) -> Replies {
        self.record_local_call(&call.method, CallOutcome::Error);
        self.record_decision(call, CallDecision { status: Some(CallOutcome::Error.as_str()), ..decided });
        error.into()
    }

    /// Counts and returns the answer to a call that may not be made.
    fn refuse_with(&self, call: &Call, refused: RefusedCall) -> Replies {
        let RefusedCall { answer, rule, target: (server, own) } = refused;
        let outcome = if answer.outcome.is_ok() { CallOutcome::ToolError } else { CallOutcome::Error };
        self.record_local_call(&call.method, outcome);
        let failure = answer.outcome.as_ref().err().and_then(ErrorObject::failure);
        let decided = match failure.map(Failure::kind) {
            Some(FailureKind::InsufficientScope) => AuditOutcome::StepUp,
            _ => AuditOutcome::Denied,
        };
        let (server, other_name, status) = (Some(&server), Some(&*own), Some(outcome.as_str()));
        self.record_decision(call, CallDecision { server, other_name, rule, status, ..CallDecision::new(decided) });
        answer.into()
    }

    fn list(&self, call: &Call, caller: &CallerView<'_>) -> Result<Replies, ErrorObject> {
        let list = List::from_method(&call.method).ok_or_else(|| method_not_found(&call.method))?;
        let revision = call.client.revision;
        let cursor = call.params.as_ref().and_then(|params| params.get("cursor")).filter(|cursor| !cursor.is_null());
        let page = match cursor {
            None => caller.page(list, 0, revision, &self.shared.seal)?,
            Some(cursor) => {
                let cursor =
                    cursor.text().and_then(|text| Cursor::open(&self.shared.seal, self.name(), &call.caller, &text));
                let cursor = cursor.filter(|cursor| cursor.list == list);
                let cursor =
                    cursor.ok_or_else(|| invalid_params("the cursor is none of this list; begin without one"))?;
                let identity = &call.caller.identity;
                let page_view = self.view_for_cursor(caller.view(), &cursor, identity);
                let page_view = page_view
                    .ok_or_else(|| invalid_params("the list has changed since; begin again without a cursor"))?;
                CallerView::new(&page_view, identity).page(list, cursor.offset as usize, revision, &self.shared.seal)?
            }
        };
        let page = bind_to_caller(page, &self.shared.seal, self.name(), &call.caller);
        Ok(Answer { outcome: Ok(page.into()), revision }.into())
    }

    /// The view whose list the cursor was issued for, if it is still kept. One with other rules is not used: it would
    /// show what is hidden now.
    fn view_for_cursor(&self, view: &Arc<View>, cursor: &Cursor, identity: &Identity) -> Option<Arc<View>> {
        let is_then = |then: &&Arc<View>| {
            then.has_same_rules(view)
                && CallerView::new(then, identity).list_fingerprint(cursor.list) == cursor.fingerprint
        };
        let before = self.recent_views.lock();
        std::iter::once(view).chain(before.iter().rev()).find(is_then).cloned()
    }

    fn route_by_name(self: &Arc<Self>, call: &Call, caller: &CallerView<'_>) -> Result<Replies, ErrorObject> {
        let name = string_param(call, Key::Name)?;
        let list = named_list(call).0;
        let found = caller.find_by_name(list, &name).ok_or_else(|| unknown_name(call, &name))?;
        if let Some(refused) = caller.refusal(call, &found) {
            return Ok(self.refuse_with(call, refused));
        }
        let renamed = if found.own == name { call.clone() } else { with_string_param(call, Key::Name, found.own) };
        let audited = self.audited_target(call, Some((caller, &found)));
        Ok(self.forward_limited(call, renamed, (target_kind(list), found.member, found.own), audited))
    }

    fn route_by_uri(self: &Arc<Self>, call: &Call, caller: &CallerView<'_>) -> Result<Replies, ErrorObject> {
        let uri = string_param(call, Key::Uri)?;
        let found = caller.find_by_uri(&uri).ok_or_else(|| resource_not_found(&uri))?;
        if let Some(refused) = caller.refusal(call, &found) {
            return Ok(self.refuse_with(call, refused));
        }
        let renamed = with_string_param(call, Key::Uri, found.own);
        let audited = self.audited_target(call, Some((caller, &found)));
        Ok(self.forward_limited(call, renamed, (TargetKind::Resources, found.member, found.own), audited))
    }

    fn route_by_reference(self: &Arc<Self>, call: &Call, caller: &CallerView<'_>) -> Result<Replies, ErrorObject> {
        let (view, kind) = (caller.view(), reference_text(call, "type"));
        // Rules know nothing of other references.
        if let (Some(only), false) = (
            view.single_member().filter(|_| !caller.has_rules()),
            matches!(kind.as_deref(), Ok("ref/prompt" | "ref/resource")),
        ) {
            return Ok(self.forward(call, call.clone(), only));
        }
        let kind = kind?;
        let key = match kind.as_str() {
            "ref/prompt" => "name",
            "ref/resource" => "uri",
            other => {
                return Err(invalid_params(&format!("`ref.type` must be ref/prompt or ref/resource, not {other:?}")));
            }
        };
        let named = reference_text(call, key)?;
        let found = match key {
            "name" => caller
                .find_by_name(List::Prompts, &named)
                .ok_or_else(|| invalid_params(&format!("there is no prompt {named:?}"))),
            _ => caller.find_by_uri(&named).ok_or_else(|| resource_not_found(&named)),
        }?;
        if let Some(refused) = caller.refusal(call, &found) {
            return Ok(self.refuse_with(call, refused));
        }
        let (member, own) = (found.member, found.own);
        let kind = if key == "name" { TargetKind::Prompts } else { TargetKind::Resources };
        let audited = self.audited_target(call, Some((caller, &found)));
        let replies = self.forward_limited(call, with_reference(call, key, own), (kind, member, own), audited);
        let is_declared_by_others = view.single_member().is_none()
            && view.has_capability(Capability::Completions)
            && member.state.has_capability(Capability::Completions) == Some(false);
        Ok(if is_declared_by_others { without_missing_completions(replies) } else { replies })
    }

    /// Sets the log level on every lease of the session.
    fn set_log_level(&self, call: &Call, view: &View) -> Replies {
        let (Some(level), Some(sink)) = (call.level, &call.sink) else {
            return method_not_found(&call.method).into();
        };
        let legs: Vec<_> = view.members.iter().map(|member| Arc::clone(&member.leg)).collect();
        let key = sink.key();
        forward::deferred(async move {
            set_leg_log_levels(&legs, key, level).await;
            Answer::result(Raw::empty()).into()
        })
    }

    /// Adds or removes a resource subscription of a session.
    fn change_subscription(self: &Arc<Self>, call: &Call, caller: &CallerView<'_>) -> Replies {
        if call.sink.is_none() {
            return method_not_found(&call.method).into();
        }
        let uri = match string_param(call, Key::Uri) {
            Ok(uri) => uri,
            Err(error) => return error.into(),
        };
        let Some(found) = caller.find_by_uri(&uri) else {
            return self.refuse_unrouted(call, caller, resource_not_found(&uri));
        };
        if let Some(refused) = caller.refusal(call, &found) {
            return self.refuse_with(call, refused);
        }
        let (member, own, audited) = (found.member, found.own, self.audited_target(call, Some((caller, &found))));
        if call.method != Method::Subscribe || !self.shared.rate_limits.judges_calls() {
            return self.change_subscription_of(call, (member, own), (&uri, audited));
        }
        let (client_call, own_uri, uri) = (call.clone(), own.to_owned(), uri.to_string());
        let renamed = with_string_param(call, Key::Uri, own);
        let target = (TargetKind::Resources, member, own);
        self.run_limited(renamed, target, audited, move |group, renamed, member, audited| {
            let call = Call { limits: renamed.limits, ..client_call };
            group.change_subscription_of(&call, (member, &own_uri), (&uri, audited))
        })
    }

    /// Adds or removes the subscription to a resource of a member; `uri` is what the client calls it.
    fn change_subscription_of(
        self: &Arc<Self>,
        call: &Call,
        resource: (&GroupMember, &str),
        (uri, audited): (&str, AuditedTarget),
    ) -> Replies {
        let (Some(sink), (member, own)) = (&call.sink, resource) else { return method_not_found(&call.method).into() };
        // With its own lease, let the server decide: some support subscriptions without declaring them.
        if member.leg.uses_lease(call) {
            return forward::subscription(self, with_string_param(call, Key::Uri, own), member, (uri, audited));
        }
        if !member.state.supports_resource_subscriptions() {
            return method_not_found(&call.method).into();
        }
        // Without a lease, updates arrive over the shared catalog connection.
        let record = {
            let (group, call, own, server) =
                (Arc::clone(self), call.clone(), own.to_owned(), Arc::clone(member.upstream.name()));
            move |outcome: CallOutcome| {
                let decided = CallDecision {
                    server: Some(&server),
                    other_name: Some(&own),
                    rule: audited.rule(),
                    status: Some(outcome.as_str()),
                    ..CallDecision::new(outcome.into())
                };
                group.record_decision(&call, decided);
            }
        };
        if call.method != Method::Subscribe {
            sink.remove_subscription(uri);
            record(CallOutcome::Ok);
            return Answer::result(Raw::empty()).into();
        }
        if let Some(failure) = member.state.health.down() {
            record(CallOutcome::Unavailable);
            return ErrorObject::from(failure.of_upstream(member.upstream.name())).into();
        }
        let (guard, sink, uri) = (member.leg.subscribe(own), Arc::clone(sink), uri.to_string());
        let (name, name_mapping) = (Arc::clone(member.upstream.name()), member.name_mapping.clone());
        let limit = member.leg.spec().settings.idle_timeout;
        forward::deferred(async move {
            let granted = tokio::time::timeout(limit, guard.answer()).await;
            let silent = || Failure::new(FailureKind::Silent(limit), format!("no answer within {limit:?}")).into();
            let Err(error) = granted.unwrap_or_else(|_| Err(silent())) else {
                sink.add_subscription(&uri, Some(Box::new(guard)));
                record(CallOutcome::Ok);
                return Answer::result(Raw::empty()).into();
            };
            record(if error.failure().is_some() { CallOutcome::Unavailable } else { CallOutcome::Error });
            match error.failure() {
                Some(failure) => ErrorObject::from(failure.clone().of_upstream(&name)).into(),
                None => name_mapping.map_error(error).into(),
            }
        })
    }

    /// Forwards a call with mapped names to a target that limits may be for.
    fn forward_limited(
        self: &Arc<Self>,
        call: &Call,
        renamed: Call,
        target: RoutedTarget<'_>,
        audited: AuditedTarget,
    ) -> Replies {
        if !self.shared.rate_limits.judges_calls() {
            return self.forward_audited(call, renamed, target.1, audited);
        }
        let call = call.clone();
        self.run_limited(renamed, target, audited, move |group, renamed, member, audited| {
            group.forward_audited(&call, renamed, member, audited)
        })
    }

    /// Forwards a call with mapped names that no rule is about.
    pub(super) fn forward(self: &Arc<Self>, call: &Call, renamed: Call, member: &GroupMember) -> Replies {
        self.forward_audited(call, renamed, member, self.audited_target(call, None))
    }

    /// Forwards a call with mapped names; one that may require input is parked when the server asks for it.
    fn forward_audited(
        self: &Arc<Self>,
        call: &Call,
        renamed: Call,
        member: &GroupMember,
        audited: AuditedTarget,
    ) -> Replies {
        let may_park = may_require_input(call) && !member.upstream.spec().is_local();
        let client_view =
            may_park.then(|| forward::ClientView { params: call.params.clone(), client: Arc::clone(&call.client) });
        forward::call(self, renamed, member, client_view, audited)
    }

    /// Forwards a notification of a session to the upstreams it concerns. One that no specification defines is an
    /// extension method to the rules.
    pub fn forward_notification(&self, sink: &dyn ClientSink, identity: &Identity, notification: &Notification) {
        let view = self.view(Revision::NEWEST_HANDSHAKE);
        let passes = match &notification.method {
            NotificationMethod::RootsChanged => true,
            NotificationMethod::Other(name) => CallerView::new(&view, identity).may_use_method(name),
            _ => false,
        };
        if passes {
            for member in &view.members {
                member.leg.forward_notification(sink.key(), notification);
            }
        }
    }
}

/// Completes nothing where a server does not know the method: the group declares it for its other servers.
fn without_missing_completions(replies: Replies) -> Replies {
    Replies::run(|mut out| async move {
        let answer = replies.forward_to(&mut out).await;
        match answer.outcome {
            Err(error) if error.code() == code::METHOD_NOT_FOUND => {
                Answer::result(Raw::constant(r#"{"completion":{"values":[]},"resultType":"complete"}"#))
            }
            outcome => Answer { outcome, ..answer },
        }
    })
}

/// Whether a call may end with an `input_required` result.
fn may_require_input(call: &Call) -> bool {
    call.client.revision.asks_by_result() && call.method.may_require_input()
}

/// Replaces the request state by the upstream's own, or removes it with the input responses.
fn with_request_state(call: &Call, own: Option<Raw>) -> Call {
    let params = call.params.as_ref().map(|params| match own {
        Some(own) => params.with(Key::RequestState, &own),
        None => {
            let [state, responses] = [Key::RequestState, Key::InputResponses].map(Key::as_str);
            params.edit().remove(state).remove(responses).finish().into()
        }
    });
    Call { params, ..call.clone() }
}

async fn set_leg_log_levels(legs: &[Arc<Leg>], session: u128, level: Level) {
    futures_util::future::join_all(legs.iter().map(|leg| leg.set_session_log_level(session, level))).await;
}

/// The members of `params` that decide where a call goes. None of them may stand twice: what was judged here and what the
/// server reads must be the same.
const DECIDING_PARAMS: [Key; 5] = [Key::Name, Key::Uri, Key::TaskId, Key::Ref, Key::Meta];
/// The members of a completion reference.
const REFERENCE_MEMBERS: [&str; 3] = ["type", "name", "uri"];

/// Refuses a call in which a member that decides stands twice.
fn check_duplicates(call: &Call) -> Result<(), ErrorObject> {
    let Some(params) = &call.params else { return Ok(()) };
    let twice = |key: &str| invalid_params(&format!("`{key}` stands there twice"));
    if let Some(key) = params.find_duplicate(&DECIDING_PARAMS) {
        return Err(twice(key.as_str()));
    }
    match params.member(Key::Ref) {
        Some(reference) => reference.pick_unique(REFERENCE_MEMBERS).map(drop).map_err(twice),
        None => Ok(()),
    }
}

/// A member of `params` that must be a string.
pub(super) fn string_param(call: &Call, key: Key) -> Result<Cow<'_, str>, ErrorObject> {
    let text = call.params.as_ref().and_then(|params| params.text_of(key));
    text.ok_or_else(|| invalid_params(&format!("`{}` must be a string", key.as_str())))
}

/// A member of a completion reference.
fn reference_text(call: &Call, key: &str) -> Result<String, ErrorObject> {
    let value = call.params.as_ref().and_then(|params| params.member(Key::Ref)?.get(key));
    let text = value.as_ref().and_then(Raw::text).map(Cow::into_owned);
    text.ok_or_else(|| invalid_params(&format!("`ref.{key}` must be a string")))
}

/// The call with another string in that place; unchanged bytes when it is the same.
pub(super) fn with_string_param(call: &Call, key: Key, own: &str) -> Call {
    let set = |params: &Payload| match params.text_of(key).is_some_and(|current| current == own) {
        true => params.clone(),
        false => params.with(key, &Raw::of(own)),
    };
    Call { params: call.params.as_ref().map(set), ..call.clone() }
}

/// The call with another string in its completion reference.
fn with_reference(call: &Call, key: &'static str, own: &str) -> Call {
    let set = |params: &Payload| match params.member(Key::Ref) {
        Some(reference) if reference.get(key).as_ref().and_then(Raw::text).as_deref() != Some(own) => {
            params.with(Key::Ref, &reference.edit().set(key, Raw::of(own)).finish())
        }
        _ => params.clone(),
    };
    Call { params: call.params.as_ref().map(set), ..call.clone() }
}

pub(super) fn invalid_params(why: &str) -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, format!("Invalid params: {why}"))
}

/// The list that the name of a call is on, and what one of its items is called.
pub(super) fn named_list(call: &Call) -> (List, &'static str) {
    match call.method {
        Method::ToolsCall => (List::Tools, "tool"),
        _ => (List::Prompts, "prompt"),
    }
}

fn unknown_name(call: &Call, name: &str) -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, format!("Unknown {}: {name}", named_list(call).1))
}

fn resource_not_found(uri: &str) -> ErrorObject {
    let data = Raw::of(&serde_json::json!({ "uri": uri }));
    ErrorObject::new(code::INVALID_PARAMS, "Resource not found").with_data(data)
}
