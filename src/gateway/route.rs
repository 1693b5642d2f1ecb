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
use crate::metrics::CallOutcome;
use crate::protocol::method::{Capability, MethodRoute};
use crate::protocol::{ErrorObject, Level, Method, Notification, NotificationMethod, Raw, code};
use crate::upstream::{Leg, List};

/// Cache hint of `server/discover`, in milliseconds.
const DISCOVERY_CACHE_HINT: CacheHint = CacheHint { ttl: 60_000, public: true };
/// Cache hint of `server/discover` while some upstream is still connecting.
const STARTING_CACHE_HINT: CacheHint = CacheHint { ttl: 1_000, public: true };

impl Group {
    /// Whether the call needs only upstreams that already connected or failed to.
    fn targets_settled_upstream(&self, call: &Call, target: &CallTarget) -> bool {
        let view = self.view(call.client.revision);
        let known = |found: Option<(&GroupMember, &str)>| found.is_some_and(|(member, _)| member.is_settled);
        match call.method {
            Method::Ping | Method::SetLevel => true,
            Method::ToolsCall => known(view.find_by_name(List::Tools, &target.name().unwrap_or_default())),
            Method::PromptsGet => known(view.find_by_name(List::Prompts, &target.name().unwrap_or_default())),
            Method::ResourcesRead | Method::Subscribe | Method::Unsubscribe => {
                known(view.find_by_uri(&target.uri().unwrap_or_default()))
            }
            _ => false,
        }
    }

    /// Answers a call, or forwards it to its upstream. A call waits for connecting upstreams only if it may
    /// need one of them.
    pub fn handle(self: &Arc<Self>, call: &Call) -> Replies {
        let target = match CallTarget::parse(call) {
            Ok(target) => target,
            Err(error) => return self.refuse(call, error),
        };
        if self.is_starting(call.client.revision) && !self.targets_settled_upstream(call, &target) {
            let (group, call) = (Arc::clone(self), call.clone());
            return forward::deferred(async move {
                group.wait_ready(call.client.revision).await;
                group.handle_ready(&call, &target)
            });
        }
        self.handle_ready(call, &target)
    }

    fn handle_ready(self: &Arc<Self>, call: &Call, target: &CallTarget) -> Replies {
        if !may_require_input(call) {
            return self.route(call, target);
        }
        match RequestState::from_call(self, call) {
            Ok(None) => self.route(call, target),
            Ok(Some(RequestState::Parked(id, _))) => {
                forward::deferred(parked_calls::resume(Arc::clone(self), call.clone(), id))
            }
            Ok(Some(RequestState::Retry)) => self.route(&with_request_state(call, None), target),
            Ok(Some(RequestState::Upstream(own))) => self.route(&with_request_state(call, Some(own)), target),
            Err(error) => error.into(),
        }
    }

    fn route(self: &Arc<Self>, call: &Call, target: &CallTarget) -> Replies {
        let view = self.view_for(call);
        if call.method.capability().is_some_and(|capability| !view.has_capability(capability)) {
            return self.route_undeclared(call, target, &view).unwrap_or_else(|| method_not_found(&call.method).into());
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
                Method::Subscribe | Method::Unsubscribe => self.change_subscription(call, target, &view),
                _ => method_not_found(&call.method).into(),
            },
            MethodRoute::List => {
                let started = Instant::now();
                let listed = self.list(call, &view);
                let outcome = if listed.is_ok() { CallOutcome::Ok } else { CallOutcome::Error };
                self.record_local_call(&call.method, started, outcome);
                listed.unwrap_or_else(Replies::from)
            }
            MethodRoute::ByName => {
                self.route_by_name(call, target, &view).unwrap_or_else(|error| self.refuse(call, error))
            }
            MethodRoute::ByUri => {
                self.route_by_uri(call, target, &view).unwrap_or_else(|error| self.refuse(call, error))
            }
            MethodRoute::ByReference => {
                self.route_by_reference(call, target, &view).unwrap_or_else(|error| self.refuse(call, error))
            }
            MethodRoute::Unknown => match view.single_member() {
                // The eras define tasks differently; task methods are not bridged.
                Some(only) if call.method.is_task_method() && only.is_bridged_to(call.client.revision) => {
                    method_not_found(&call.method).into()
                }
                Some(only) => self.forward(call, call.clone(), only),
                None if call.method.is_task_method() => {
                    self.route_by_task(call, target, &view).unwrap_or_else(Replies::from)
                }
                None => method_not_found(&call.method).into(),
            },
        }
    }

    /// Routes a call that needs a capability which nobody declares: the server that it can only be meant for answers it.
    fn route_undeclared(self: &Arc<Self>, call: &Call, target: &CallTarget, view: &View) -> Option<Replies> {
        let only = view.single_member().filter(|only| !only.upstream.spec().is_local());
        match call.method.route() {
            MethodRoute::List => {
                let is_whole =
                    List::from_method(&call.method).is_some_and(|list| view.config.filter(list).allows_all());
                Some(self.forward(call, call.clone(), only.filter(|_| is_whole)?))
            }
            MethodRoute::ByName => self.route_by_name(call, target, view).ok(),
            MethodRoute::ByUri => self.route_by_uri(call, target, view).ok(),
            MethodRoute::ByReference => self.route_by_reference(call, target, view).ok(),
            MethodRoute::Gateway if matches!(call.method, Method::Subscribe | Method::Unsubscribe) => {
                Some(self.change_subscription(call, target, view))
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
    fn route_by_task(self: &Arc<Self>, call: &Call, target: &CallTarget, view: &View) -> Result<Replies, ErrorObject> {
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
        let id = target.task_id().unwrap_or_default();
        let named = NameMapping::split_task_id(&id).and_then(|(name, own)| {
            let member = able.iter().find(|member| **member.upstream.name() == *name)?;
            Some((*member, own))
        });
        // For an unknown task id, let an upstream produce the error.
        let (member, own) = named.unwrap_or((*first, id.as_ref()));
        Ok(self.forward(call, with_string_param(call, &["taskId"], own), member))
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
        Ok(Answer { outcome: Ok(page), revision }.into())
    }

    /// The view whose list the cursor was issued for, if it is still kept.
    fn view_for_cursor(&self, view: &Arc<View>, cursor: &Cursor) -> Option<Arc<View>> {
        let is_then = |view: &&Arc<View>| view.list_fingerprint(cursor.list) == cursor.fingerprint;
        let before = self.recent_views.lock();
        std::iter::once(view).chain(before.iter().rev()).find(is_then).cloned()
    }

    fn route_by_name(self: &Arc<Self>, call: &Call, target: &CallTarget, view: &View) -> Result<Replies, ErrorObject> {
        let (list, what) = match call.method {
            Method::ToolsCall => (List::Tools, "tool"),
            _ => (List::Prompts, "prompt"),
        };
        let name = target.name()?;
        let (member, own) = view
            .find_by_name(list, &name)
            .ok_or_else(|| ErrorObject::new(code::INVALID_PARAMS, format!("Unknown {what}: {name}")))?;
        let renamed = if own == name { call.clone() } else { with_string_param(call, &["name"], own) };
        Ok(self.forward(call, renamed, member))
    }

    fn route_by_uri(self: &Arc<Self>, call: &Call, target: &CallTarget, view: &View) -> Result<Replies, ErrorObject> {
        let uri = target.uri()?;
        let (member, own) = view.find_by_uri(&uri).ok_or_else(|| resource_not_found(&uri))?;
        Ok(self.forward(call, with_string_param(call, &["uri"], own), member))
    }

    fn route_by_reference(
        self: &Arc<Self>,
        call: &Call,
        target: &CallTarget,
        view: &View,
    ) -> Result<Replies, ErrorObject> {
        let kind = target.reference("type");
        if let (Some(only), false) =
            (view.single_member(), matches!(kind.as_deref(), Ok("ref/prompt" | "ref/resource")))
        {
            return Ok(self.forward(call, call.clone(), only));
        }
        let kind = kind?;
        let key = match kind.as_ref() {
            "ref/prompt" => "name",
            "ref/resource" => "uri",
            other => {
                return Err(invalid_params(&format!("`ref.type` must be ref/prompt or ref/resource, not {other:?}")));
            }
        };
        let named = target.reference(key)?;
        let (member, own) = match key {
            "name" => view
                .find_by_name(List::Prompts, &named)
                .ok_or_else(|| invalid_params(&format!("there is no prompt {named:?}"))),
            _ => view.find_by_uri(&named).ok_or_else(|| resource_not_found(&named)),
        }?;
        let replies = self.forward(call, with_string_param(call, &["ref", key], own), member);
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
    fn change_subscription(self: &Arc<Self>, call: &Call, target: &CallTarget, view: &View) -> Replies {
        let Some(sink) = &call.sink else { return method_not_found(&call.method).into() };
        let uri = match target.uri() {
            Ok(uri) => uri,
            Err(error) => return error.into(),
        };
        let Some((member, own)) = view.find_by_uri(&uri) else { return resource_not_found(&uri).into() };
        // With its own lease, let the server decide: some support subscriptions without declaring them.
        if member.leg.uses_lease(call) {
            return forward::subscription(self, with_string_param(call, &["uri"], own), member, &uri);
        }
        if !member.state.supports_resource_subscriptions() {
            return method_not_found(&call.method).into();
        }
        // Without a lease, updates arrive over the shared catalog connection.
        match call.method {
            Method::Subscribe => sink.add_subscription(&uri, Some(Box::new(member.leg.subscribe(own)))),
            _ => sink.remove_subscription(&uri),
        }
        Answer::result(Raw::empty()).into()
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
        Some(own) => params.edit().set("requestState", own).finish(),
        None => params.edit().remove("requestState").remove("inputResponses").finish(),
    });
    Call { params, ..call.clone() }
}

async fn set_leg_log_levels(legs: &[Arc<Leg>], session: u128, level: Level) {
    futures_util::future::join_all(legs.iter().map(|leg| leg.set_session_log_level(session, level))).await;
}

/// The members of `params` that decide where a call goes, found in one pass.
///
/// None of them may stand twice: what was judged here and what the server reads must be the same.
#[derive(Default)]
pub(super) struct CallTarget {
    name: Option<Raw>,
    uri: Option<Raw>,
    task_id: Option<Raw>,
    /// `type`, `name` and `uri` of a `ref`.
    reference: [Option<Raw>; REFERENCE_MEMBERS.len()],
}

/// The members of a completion reference.
const REFERENCE_MEMBERS: [&str; 3] = ["type", "name", "uri"];

impl CallTarget {
    pub(super) fn parse(call: &Call) -> Result<Self, ErrorObject> {
        let Some(params) = &call.params else { return Ok(Self::default()) };
        let twice = |key: &str| invalid_params(&format!("`{key}` stands there twice"));
        let [name, uri, task_id, reference, _] =
            params.pick_unique(["name", "uri", "taskId", "ref", "_meta"]).map_err(twice)?;
        let reference = match reference {
            Some(reference) => reference.pick_unique(REFERENCE_MEMBERS).map_err(twice)?,
            None => Default::default(),
        };
        Ok(Self { name, uri, task_id, reference })
    }

    pub(super) fn name(&self) -> Result<Cow<'_, str>, ErrorObject> {
        text_of(self.name.as_ref(), "name")
    }

    pub(super) fn uri(&self) -> Result<Cow<'_, str>, ErrorObject> {
        text_of(self.uri.as_ref(), "uri")
    }

    fn task_id(&self) -> Result<Cow<'_, str>, ErrorObject> {
        text_of(self.task_id.as_ref(), "taskId")
    }

    fn reference(&self, key: &str) -> Result<Cow<'_, str>, ErrorObject> {
        let at = REFERENCE_MEMBERS.iter().position(|member| *member == key);
        text_of(at.and_then(|at| self.reference[at].as_ref()), &format!("ref.{key}"))
    }
}

fn text_of<'r>(value: Option<&'r Raw>, path: &str) -> Result<Cow<'r, str>, ErrorObject> {
    value.and_then(Raw::text).ok_or_else(|| invalid_params(&format!("`{path}` must be a string")))
}

/// Replaces the string parameter at a path; unchanged bytes when it is equal already.
fn with_string_param(call: &Call, path: &[&'static str], own: &str) -> Call {
    let params = call.params.as_ref().map(|params| set_string(params, path, own));
    Call { params, ..call.clone() }
}

fn set_string(object: &Raw, path: &[&'static str], text: &str) -> Raw {
    match path {
        [] => object.clone(),
        [key] => {
            let current = object.get(key);
            if current.as_ref().and_then(Raw::text).as_deref() == Some(text) {
                return object.clone();
            }
            object.edit().set(*key, Raw::of(text)).finish()
        }
        [key, rest @ ..] => match object.get(key) {
            Some(inner) => object.edit().set(*key, set_string(&inner, rest, text)).finish(),
            None => object.clone(),
        },
    }
}

pub(super) fn invalid_params(why: &str) -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, format!("Invalid params: {why}"))
}

fn resource_not_found(uri: &str) -> ErrorObject {
    let data = Raw::of(&serde_json::json!({ "uri": uri }));
    ErrorObject::new(code::INVALID_PARAMS, "Resource not found").with_data(data)
}
