//! Routes a call to the upstream of the group that answers it.

use std::borrow::Cow;
use std::sync::Arc;

use tokio::time::Instant;

use super::cursor::Cursor;
use super::group::Group;
use super::name_mapping::NameMapping;
use super::request_state::RequestState;
use super::view::{GroupMember, View};
use super::{forward, parked_calls};
use crate::call::{Answer, Call, ClientSink, Replies};
use crate::dialect::classify::method_not_found;
use crate::dialect::to_client::{self, CacheHint};
use crate::dialect::{Revision, to_upstream};
use crate::failure::{Failure, FailureKind};
use crate::metrics::CallOutcome;
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
            Ok(Some(RequestState::Parked(id, _))) => {
                forward::deferred(parked_calls::resume(Arc::clone(self), call.clone(), id))
            }
            Ok(Some(RequestState::Retry)) => self.route(&with_request_state(call, None)),
            Ok(Some(RequestState::Upstream(own))) => self.route(&with_request_state(call, Some(own))),
            Err(error) => error.into(),
        }
    }

    fn route(self: &Arc<Self>, call: &Call) -> Replies {
        let view = self.view_for(call);
        if call.method.capability().is_some_and(|capability| !view.has_capability(capability)) {
            return self.route_undeclared(call, &view).unwrap_or_else(|| method_not_found(&call.method).into());
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
                Method::Listen => self.listen(call, &view),
                Method::SetLevel => self.set_log_level(call, &view),
                Method::Subscribe | Method::Unsubscribe => self.change_subscription(call, &view),
                _ => method_not_found(&call.method).into(),
            },
            MethodRoute::List => {
                let started = Instant::now();
                let listed = self.list(call, &view);
                let outcome = if listed.is_ok() { CallOutcome::Ok } else { CallOutcome::Error };
                self.record_local_call(&call.method, started, outcome);
                listed.unwrap_or_else(Replies::from)
            }
            MethodRoute::ByName => self.route_by_name(call, &view).unwrap_or_else(|error| self.refuse(call, error)),
            MethodRoute::ByUri => self.route_by_uri(call, &view).unwrap_or_else(|error| self.refuse(call, error)),
            MethodRoute::ByReference => {
                self.route_by_reference(call, &view).unwrap_or_else(|error| self.refuse(call, error))
            }
            MethodRoute::Unknown => match view.single_member() {
                // The eras define tasks differently; task methods are not bridged.
                Some(only) if call.method.is_task_method() && only.is_bridged_to(call.client.revision) => {
                    method_not_found(&call.method).into()
                }
                Some(only) => self.forward(call, call.clone(), only),
                None if call.method.is_task_method() => self.route_by_task(call, &view).unwrap_or_else(Replies::from),
                None => method_not_found(&call.method).into(),
            },
        }
    }

    /// Routes a call that needs a capability which nobody declares: the server that it can only be meant for answers it.
    fn route_undeclared(self: &Arc<Self>, call: &Call, view: &View) -> Option<Replies> {
        let only = view.single_member().filter(|only| !only.upstream.spec().is_local());
        match call.method.route() {
            MethodRoute::List => {
                let is_whole =
                    List::from_method(&call.method).is_some_and(|list| view.config.filter(list).allows_all());
                Some(self.forward(call, call.clone(), only.filter(|_| is_whole)?))
            }
            MethodRoute::ByName => self.route_by_name(call, view).ok(),
            MethodRoute::ByUri => self.route_by_uri(call, view).ok(),
            MethodRoute::ByReference => self.route_by_reference(call, view).ok(),
            MethodRoute::Gateway if matches!(call.method, Method::Subscribe | Method::Unsubscribe) => {
                Some(self.change_subscription(call, view))
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
        self.record_local_call(&call.method, Instant::now(), CallOutcome::Error);
        error.into()
    }

    /// Routes by the upstream's name in the task id.
    fn route_by_task(self: &Arc<Self>, call: &Call, view: &View) -> Result<Replies, ErrorObject> {
        let has_tasks = |member: &&GroupMember| {
            member.state.server.as_ref().is_some_and(|server| to_upstream::has_tasks(&server.capabilities))
        };
        let able: Vec<&GroupMember> = view
            .members
            .iter()
            .filter(has_tasks)
            .filter(|member| !member.is_bridged_to(call.client.revision))
            .collect();
        let Some(first) = able.first() else { return Err(method_not_found(&call.method)) };
        let id = string_param(call, Key::TaskId).unwrap_or_default();
        let named = NameMapping::split_task_id(&id).and_then(|(name, own)| {
            let member = able.iter().find(|member| **member.upstream.name() == *name)?;
            Some((*member, own))
        });
        // For an unknown task id, let an upstream produce the error.
        let (member, own) = named.unwrap_or((*first, id.as_ref()));
        Ok(self.forward(call, with_string_param(call, Key::TaskId, own), member))
    }

    fn list(&self, call: &Call, view: &Arc<View>) -> Result<Replies, ErrorObject> {
        let list = List::from_method(&call.method).ok_or_else(|| method_not_found(&call.method))?;
        let revision = call.client.revision;
        let cursor = call.params.as_ref().and_then(|params| params.get("cursor")).filter(|cursor| !cursor.is_null());
        let page = match cursor {
            None => view.page(list, 0, revision, &self.shared.seal)?,
            Some(cursor) => {
                let cursor = cursor.text().and_then(|text| Cursor::open(&self.shared.seal, self.name(), &text));
                let cursor = cursor.filter(|cursor| cursor.list == list);
                let cursor =
                    cursor.ok_or_else(|| invalid_params("the cursor is none of this list; begin without one"))?;
                let page_view = self.view_for_cursor(view, &cursor);
                let page_view = page_view
                    .ok_or_else(|| invalid_params("the list has changed since; begin again without a cursor"))?;
                page_view.page(list, cursor.offset as usize, revision, &self.shared.seal)?
            }
        };
        Ok(Answer { outcome: Ok(page.into()), revision }.into())
    }

    /// The view whose list the cursor was issued for, if it is still kept.
    fn view_for_cursor(&self, view: &Arc<View>, cursor: &Cursor) -> Option<Arc<View>> {
        let is_then = |view: &&Arc<View>| view.list_fingerprint(cursor.list) == cursor.fingerprint;
        let before = self.recent_views.lock();
        std::iter::once(view).chain(before.iter().rev()).find(is_then).cloned()
    }

    fn route_by_name(self: &Arc<Self>, call: &Call, view: &View) -> Result<Replies, ErrorObject> {
        let (list, what) = match call.method {
            Method::ToolsCall => (List::Tools, "tool"),
            _ => (List::Prompts, "prompt"),
        };
        let name = string_param(call, Key::Name)?;
        let (member, own) = view
            .find_by_name(list, &name)
            .ok_or_else(|| ErrorObject::new(code::INVALID_PARAMS, format!("Unknown {what}: {name}")))?;
        let renamed = if own == name { call.clone() } else { with_string_param(call, Key::Name, own) };
        Ok(self.forward(call, renamed, member))
    }

    fn route_by_uri(self: &Arc<Self>, call: &Call, view: &View) -> Result<Replies, ErrorObject> {
        let uri = string_param(call, Key::Uri)?;
        let (member, own) = view.find_by_uri(&uri).ok_or_else(|| resource_not_found(&uri))?;
        Ok(self.forward(call, with_string_param(call, Key::Uri, own), member))
    }

    fn route_by_reference(self: &Arc<Self>, call: &Call, view: &View) -> Result<Replies, ErrorObject> {
        let kind = reference_text(call, "type");
        if let (Some(only), false) =
            (view.single_member(), matches!(kind.as_deref(), Ok("ref/prompt" | "ref/resource")))
        {
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
        let (member, own) = match key {
            "name" => view
                .find_by_name(List::Prompts, &named)
                .ok_or_else(|| invalid_params(&format!("there is no prompt {named:?}"))),
            _ => view.find_by_uri(&named).ok_or_else(|| resource_not_found(&named)),
        }?;
        let replies = self.forward(call, with_reference(call, key, own), member);
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
    fn change_subscription(self: &Arc<Self>, call: &Call, view: &View) -> Replies {
        let Some(sink) = &call.sink else { return method_not_found(&call.method).into() };
        let uri = match string_param(call, Key::Uri) {
            Ok(uri) => uri,
            Err(error) => return error.into(),
        };
        let Some((member, own)) = view.find_by_uri(&uri) else { return resource_not_found(&uri).into() };
        // With its own lease, let the server decide: some support subscriptions without declaring them.
        if member.leg.uses_lease(call) {
            return forward::subscription(self, with_string_param(call, Key::Uri, own), member, &uri);
        }
        if !member.state.supports_resource_subscriptions() {
            return method_not_found(&call.method).into();
        }
        // Without a lease, updates arrive over the shared catalog connection.
        if call.method != Method::Subscribe {
            sink.remove_subscription(&uri);
            return Answer::result(Raw::empty()).into();
        }
        if let Some(failure) = member.state.health.down() {
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
                return Answer::result(Raw::empty()).into();
            };
            match error.failure() {
                Some(failure) => ErrorObject::from(failure.clone().of_upstream(&name)).into(),
                None => name_mapping.map_error(error).into(),
            }
        })
    }

    /// Forwards a call with mapped names; one that may require input is parked when the server asks for it.
    fn forward(self: &Arc<Self>, call: &Call, renamed: Call, member: &GroupMember) -> Replies {
        let may_park = may_require_input(call) && !member.upstream.spec().is_local();
        let client_view =
            may_park.then(|| forward::ClientView { params: call.params.clone(), client: Arc::clone(&call.client) });
        forward::call(self, renamed, member, client_view)
    }

    /// Forwards a notification of a session to the upstreams it concerns.
    pub fn forward_notification(&self, sink: &dyn ClientSink, notification: &Notification) {
        let view = self.view(Revision::NEWEST_HANDSHAKE);
        let concerns_all = matches!(notification.method, NotificationMethod::RootsChanged);
        let passes = concerns_all
            || matches!(notification.method, NotificationMethod::Other(_)) && view.single_member().is_some();
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
    call.client.revision.asks_by_result()
        && matches!(call.method, Method::ToolsCall | Method::PromptsGet | Method::ResourcesRead)
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
fn with_string_param(call: &Call, key: Key, own: &str) -> Call {
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

fn resource_not_found(uri: &str) -> ErrorObject {
    let data = Raw::of(&serde_json::json!({ "uri": uri }));
    ErrorObject::new(code::INVALID_PARAMS, "Resource not found").with_data(data)
}
