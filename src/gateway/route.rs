//! Which upstream of a group answers a call.

use std::sync::{Arc, PoisonError};

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
use crate::dialect::to_upstream;
use crate::metrics::CallOutcome;
use crate::protocol::method::{Family, MethodRoute};
use crate::protocol::{ErrorObject, Level, Method, Notice, Notification, Raw, code};
use crate::upstream::{List, Upstream};

/// What a client may keep of what we say of ourselves.
const DISCOVERY_HINT: CacheHint = CacheHint { ttl: 60_000, public: true };
/// The same while some upstream is not known yet.
const EARLY_HINT: CacheHint = CacheHint { ttl: 1_000, public: true };

impl Group {
    /// Whether a call concerns only what is known already.
    fn knows(&self, call: &Call) -> bool {
        let view = self.view();
        let known = |found: Option<(&GroupMember, &str)>| found.is_some_and(|(member, _)| member.state.settled);
        let named = |path: &[&str]| text(call, path).unwrap_or_default();
        match call.method {
            Method::Ping | Method::SetLevel => true,
            Method::ToolsCall => known(view.by_name(List::Tools, &named(&["name"]))),
            Method::PromptsGet => known(view.by_name(List::Prompts, &named(&["name"]))),
            Method::ResourcesRead | Method::Subscribe | Method::Unsubscribe => known(view.by_uri(&named(&["uri"]))),
            _ => false,
        }
    }

    /// Answers a call, or passes it on to the upstream that can. What concerns upstreams that are
    /// known does not wait for others.
    pub fn handle(self: &Arc<Self>, call: &Call) -> Replies {
        if self.is_settling() && !self.knows(call) {
            let (group, call) = (Arc::clone(self), call.clone());
            return forward::later(async move {
                group.wait_ready().await;
                group.handle_now(&call)
            });
        }
        self.handle_now(call)
    }

    fn handle_now(self: &Arc<Self>, call: &Call) -> Replies {
        if !may_ask(call) {
            return self.route(call);
        }
        match RequestState::of(self, call) {
            Ok(None) => self.route(call),
            Ok(Some(RequestState::Parked(id, _))) => {
                forward::later(parked_calls::resume(Arc::clone(self), call.clone(), id))
            }
            Ok(Some(RequestState::Retry)) => self.route(&carrying(call, None)),
            Ok(Some(RequestState::Upstream(own))) => self.route(&carrying(call, Some(own))),
            Err(error) => error.into(),
        }
    }

    fn route(self: &Arc<Self>, call: &Call) -> Replies {
        let view = self.view_for(call);
        if call.method.family().is_some_and(|family| !view.offers(family)) {
            return method_not_found(&call.method).into();
        }
        match call.method.route() {
            MethodRoute::Here => match call.method {
                Method::Ping => Answer::result(Raw::empty()).into(),
                Method::Discover => {
                    let hint = if view.is_settled() { DISCOVERY_HINT } else { EARLY_HINT };
                    // What others say of themselves may depend on who asks.
                    let public = view.members.iter().all(|member| member.upstream.spec().is_built_in());
                    let hint = CacheHint { public, ..hint };
                    Answer::result(to_client::discovery(&view.server_for(call.client.revision), hint)).into()
                }
                Method::Listen => self.listen(call, &view),
                Method::SetLevel => self.set_level(call, &view),
                Method::Subscribe | Method::Unsubscribe => self.subscription(call, &view),
                _ => method_not_found(&call.method).into(),
            },
            MethodRoute::List => {
                let begun = Instant::now();
                let listed = self.list(call, &view);
                let ending = if listed.is_ok() { CallOutcome::Ok } else { CallOutcome::Error };
                self.note_own(&call.method, begun, ending);
                listed.unwrap_or_else(Replies::from)
            }
            MethodRoute::ByName => self.by_name(call, &view).unwrap_or_else(|error| self.refuse(call, error)),
            MethodRoute::ByUri => self.by_uri(call, &view).unwrap_or_else(|error| self.refuse(call, error)),
            MethodRoute::ByReference => self.by_reference(call, &view).unwrap_or_else(|error| self.refuse(call, error)),
            MethodRoute::Unknown => match view.only() {
                // Tasks are another thing in each era.
                Some(only) if call.method.is_of_tasks() && only.is_bridged_to(call.client.revision) => {
                    method_not_found(&call.method).into()
                }
                Some(only) => self.forward(call, call.clone(), only),
                None if call.method.is_of_tasks() => self.by_task(call, &view).unwrap_or_else(Replies::from),
                None => method_not_found(&call.method).into(),
            },
        }
    }

    /// Answers that a call goes nowhere.
    fn refuse(&self, call: &Call, error: ErrorObject) -> Replies {
        self.note_own(&call.method, Instant::now(), CallOutcome::Error);
        error.into()
    }

    /// A task is with the upstream that its id names.
    fn by_task(self: &Arc<Self>, call: &Call, view: &View) -> Result<Replies, ErrorObject> {
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
        let id = text(call, &["taskId"]).unwrap_or_default();
        let named = NameMapping::task_in(&id).and_then(|(name, own)| {
            let member = able.iter().find(|member| **member.upstream.name() == *name)?;
            Some((*member, own))
        });
        // One that knows no such task says so best.
        let (member, own) = named.unwrap_or((*first, id.as_str()));
        Ok(self.forward(call, with(call, &["taskId"], own), member))
    }

    fn list(&self, call: &Call, view: &Arc<View>) -> Result<Replies, ErrorObject> {
        let list = List::asked_by(&call.method).ok_or_else(|| method_not_found(&call.method))?;
        let revision = call.client.revision;
        let cursor = call.params.as_ref().and_then(|params| params.get("cursor")).filter(|cursor| !cursor.is_null());
        let page = match cursor {
            None => view.page(list, 0, revision, &self.common.seal)?,
            Some(cursor) => {
                let cursor = cursor.text().and_then(|text| Cursor::open(&self.common.seal, self.name(), &text));
                let cursor = cursor.filter(|cursor| cursor.list == list);
                let cursor = cursor.ok_or_else(|| invalid("the cursor is none of this list; begin without one"))?;
                let then = self.view_then(view, &cursor);
                let then = then.ok_or_else(|| invalid("the list has changed since; begin again without a cursor"))?;
                then.page(list, cursor.offset as usize, revision, &self.common.seal)?
            }
        };
        Ok(Answer { outcome: Ok(page), revision }.into())
    }

    /// The view of a page before.
    fn view_then(&self, view: &Arc<View>, cursor: &Cursor) -> Option<Arc<View>> {
        let is_then = |view: &&Arc<View>| view.print(cursor.list) == cursor.print;
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::once(view).chain(before.iter().rev()).find(is_then).cloned()
    }

    fn by_name(self: &Arc<Self>, call: &Call, view: &View) -> Result<Replies, ErrorObject> {
        let (list, what) = match call.method {
            Method::ToolsCall => (List::Tools, "tool"),
            _ => (List::Prompts, "prompt"),
        };
        let name = text(call, &["name"])?;
        let (member, own) = view
            .by_name(list, &name)
            .ok_or_else(|| ErrorObject::new(code::INVALID_PARAMS, format!("Unknown {what}: {name}")))?;
        let renamed = if own == name { call.clone() } else { with(call, &["name"], own) };
        Ok(self.forward(call, renamed, member))
    }

    fn by_uri(self: &Arc<Self>, call: &Call, view: &View) -> Result<Replies, ErrorObject> {
        let uri = text(call, &["uri"])?;
        let (member, own) = view.by_uri(&uri).ok_or_else(|| no_resource(&uri))?;
        Ok(self.forward(call, with(call, &["uri"], own), member))
    }

    fn by_reference(self: &Arc<Self>, call: &Call, view: &View) -> Result<Replies, ErrorObject> {
        let kind = text(call, &["ref", "type"]);
        if let (Some(only), false) = (view.only(), matches!(kind.as_deref(), Ok("ref/prompt" | "ref/resource"))) {
            return Ok(self.forward(call, call.clone(), only));
        }
        let kind = kind?;
        let key = match kind.as_str() {
            "ref/prompt" => "name",
            "ref/resource" => "uri",
            other => return Err(invalid(&format!("`ref.type` must be ref/prompt or ref/resource, not {other:?}"))),
        };
        let named = text(call, &["ref", key])?;
        let (member, own) = match key {
            "name" => {
                view.by_name(List::Prompts, &named).ok_or_else(|| invalid(&format!("there is no prompt {named:?}")))
            }
            _ => view.by_uri(&named).ok_or_else(|| no_resource(&named)),
        }?;
        if view.only().is_none() && member.state.offers(Family::Completions) == Some(false) {
            let nothing = Raw::constant(r#"{"completion":{"values":[]},"resultType":"complete"}"#);
            return Ok(Answer::result(nothing).into());
        }
        Ok(self.forward(call, with(call, &["ref", key], own), member))
    }

    /// A client chooses what is logged to it: every server that it has a connection to is told.
    fn set_level(&self, call: &Call, view: &View) -> Replies {
        let (Some(level), Some(sink)) = (call.level, &call.sink) else {
            return method_not_found(&call.method).into();
        };
        let upstreams: Vec<_> = view.members.iter().map(|member| Arc::clone(&member.upstream)).collect();
        let key = sink.key();
        forward::later(async move {
            set_levels(&upstreams, key, level).await;
            Answer::result(Raw::empty()).into()
        })
    }

    /// A session wants to hear of a resource, or no longer.
    fn subscription(self: &Arc<Self>, call: &Call, view: &View) -> Replies {
        let Some(sink) = &call.sink else { return method_not_found(&call.method).into() };
        let uri = match text(call, &["uri"]) {
            Ok(uri) => uri,
            Err(error) => return error.into(),
        };
        let Some((member, own)) = view.by_uri(&uri) else { return no_resource(&uri).into() };
        // A server that is asked by itself knows best; some tell of resources and do not say so.
        if member.upstream.lends(call) {
            return forward::subscription(self, with(call, &["uri"], own), member, &uri);
        }
        if !member.state.offers_updates() {
            return method_not_found(&call.method).into();
        }
        // Its changes come by the connection that everybody shares.
        match call.method {
            Method::Subscribe => sink.subscribed(&uri, Some(Box::new(member.upstream.subscribe(own)))),
            _ => sink.unsubscribed(&uri),
        }
        Answer::result(Raw::empty()).into()
    }

    /// Passes a call on to a member, under the names that it knows.
    fn forward(self: &Arc<Self>, call: &Call, renamed: Call, member: &GroupMember) -> Replies {
        let mut replies = forward::call(self, renamed, member);
        if !may_ask(call) || member.upstream.spec().is_local() {
            return replies;
        }
        match replies.take_ready() {
            Some(answer) => answer.into(),
            None => parked_calls::park(self, call.clone(), replies),
        }
    }

    /// A session tells something that its servers may want to know.
    pub fn forward_notification(&self, sink: &dyn ClientSink, notification: &Notification) {
        let view = self.view();
        let concerns_all = matches!(notification.notice, Notice::RootsChanged);
        let passes = concerns_all || matches!(notification.notice, Notice::Other(_)) && view.only().is_some();
        if passes {
            for member in &view.members {
                member.upstream.forward_notification(sink.key(), notification);
            }
        }
    }
}

/// Whether a call is of the per-request era and may end by asking for input.
fn may_ask(call: &Call) -> bool {
    !call.client.revision.facts().sessions
        && matches!(call.method, Method::ToolsCall | Method::PromptsGet | Method::ResourcesRead)
}

/// A call with the upstream's own state, or with none and no answers.
fn carrying(call: &Call, own: Option<Raw>) -> Call {
    let params = call.params.as_ref().map(|params| match own {
        Some(own) => params.edit().set("requestState", own).finish(),
        None => params.edit().remove("requestState").remove("inputResponses").finish(),
    });
    Call { params, ..call.clone() }
}

async fn set_levels(upstreams: &[Arc<Upstream>], session: u128, level: Level) {
    futures_util::future::join_all(upstreams.iter().map(|upstream| upstream.set_level(session, level))).await;
}

/// A member of a call's parameters that has to be text.
pub(super) fn text(call: &Call, path: &[&str]) -> Result<String, ErrorObject> {
    let value = call.params.as_ref().and_then(|params| params.at(path));
    let text = value.as_ref().and_then(Raw::text).map(std::borrow::Cow::into_owned);
    text.ok_or_else(|| invalid(&format!("`{}` must be a string", path.join("."))))
}

/// A call with another text at a place; the very same when it is the text that was there.
fn with(call: &Call, path: &[&'static str], own: &str) -> Call {
    let params = call.params.as_ref().map(|params| set(params, path, own));
    Call { params, ..call.clone() }
}

fn set(object: &Raw, path: &[&'static str], text: &str) -> Raw {
    match path {
        [] => object.clone(),
        [key] => {
            let there = object.get(key);
            if there.as_ref().and_then(Raw::text).as_deref() == Some(text) {
                return object.clone();
            }
            object.edit().set(*key, Raw::of(text)).finish()
        }
        [key, rest @ ..] => match object.get(key) {
            Some(inner) => object.edit().set(*key, set(&inner, rest, text)).finish(),
            None => object.clone(),
        },
    }
}

pub(super) fn invalid(why: &str) -> ErrorObject {
    ErrorObject::new(code::INVALID_PARAMS, format!("Invalid params: {why}"))
}

fn no_resource(uri: &str) -> ErrorObject {
    let data = Raw::of(&serde_json::json!({ "uri": uri }));
    ErrorObject::new(code::INVALID_PARAMS, "Resource not found").with_data(data)
}
