//! A named set of upstreams, served at one address: which of them answers a call, and what all of
//! them show together.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cursor::Cursor;
use super::forward;
use super::held::{self, Holder};
use super::plan::Plan;
use super::rename::Rename;
use super::seal::Seal;
use super::state::State;
use super::view::{Member, View};
use super::{Common, Told};
use crate::dialect::lift::method_not_found;
use crate::dialect::lower::{self, CacheHint, Server};
use crate::dialect::outgoing;
use crate::exchange::{Answer, Audience, Call, Change, Replies};
use crate::metrics::Ending;
use crate::protocol::method::{Family, Route};
use crate::protocol::{ErrorObject, Level, Method, Notice, Notification, Raw, code};
use crate::upstream::{List, Upstream};

/// A named set of upstreams, served at one address.
#[derive(Debug)]
pub struct Group {
    name: Arc<str>,
    view: watch::Sender<Arc<View>>,
    /// The last views, for clients that are in the middle of a list.
    before: Mutex<Vec<Arc<View>>>,
    changes: broadcast::Sender<Change>,
    common: Common,
    dirty: Notify,
    /// Until when clients wait for upstreams that are being connected.
    patience: Mutex<Instant>,
    followers: Mutex<Vec<AbortHandle>>,
    ended: CancellationToken,
}

/// What a client may keep of what we say of ourselves.
const DISCOVERY_HINT: CacheHint = CacheHint { ttl: 60_000, public: true };
/// The same while some upstream is not known yet.
const EARLY_HINT: CacheHint = CacheHint { ttl: 1_000, public: true };
/// How many changes may wait for those who listen; who falls behind is told that all changed.
const CHANGES_WAITING: usize = 256;
/// How long clients wait for upstreams that are being connected.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait for more changes before the group is seen anew.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// How many views are kept for clients that are in the middle of a list.
const VIEWS: usize = 4;

/// What a session sees that has lists of its own.
#[derive(Debug)]
struct Own {
    /// The view that it was made from, and what became of the lists since.
    made_from: (u64, Vec<u64>),
    view: Arc<View>,
}

impl Group {
    /// A group of these upstreams, in the order of the plan. Runs until it is ended.
    pub(super) fn start(plan: Plan, upstreams: &[Arc<Upstream>], common: &Common) -> Arc<Self> {
        let name = Arc::clone(&plan.name);
        let plan = Arc::new(plan);
        let members = upstreams.iter().map(|upstream| Member::new(Arc::clone(upstream), &plan)).collect();
        let group = Arc::new(Self {
            name,
            view: watch::Sender::new(Arc::new(View::new(plan, members))),
            before: Mutex::default(),
            changes: broadcast::Sender::new(CHANGES_WAITING),
            common: common.clone(),
            dirty: Notify::new(),
            patience: Mutex::new(Instant::now() + PATIENCE),
            followers: Mutex::default(),
            ended: common.closing.child_token(),
        });
        group.follow(upstreams);
        tokio::spawn(Arc::clone(&group).run());
        group
    }

    /// The group's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What it shows now.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// What the group says of itself.
    pub fn server(&self) -> Server {
        self.view.borrow().server.clone()
    }

    pub(super) fn holder(&self) -> &Arc<Holder> {
        &self.common.holder
    }

    pub(super) fn seal(&self) -> &Seal {
        &self.common.seal
    }

    /// What changes in the group, as it changes.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Cancelled when the group is no more, or everything ends.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Tells everybody who listens of a change.
    pub fn publish(&self, change: Change) {
        // Nobody may be listening; that is no fault.
        let _ = self.common.told.send(Told { group: Arc::clone(&self.name), change: change.clone() });
        let _ = self.changes.send(change);
    }

    /// The group becomes another.
    pub(super) fn become_plan(self: &Arc<Self>, plan: Plan, upstreams: &[Arc<Upstream>]) {
        let plan = Arc::new(plan);
        *self.patience.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + PATIENCE;
        let members = upstreams.iter().map(|upstream| Member::new(Arc::clone(upstream), &plan)).collect();
        self.follow(upstreams);
        self.see(View::new(plan, members));
    }

    /// The group is no more.
    pub(super) fn end(&self) {
        self.ended.cancel();
        self.unfollow();
    }

    fn unfollow(&self) {
        for follower in std::mem::take(&mut *self.followers.lock().unwrap_or_else(PoisonError::into_inner)) {
            follower.abort();
        }
    }

    /// Follows what becomes of these upstreams, and of no others.
    fn follow(self: &Arc<Self>, upstreams: &[Arc<Upstream>]) {
        self.unfollow();
        let one = |upstream: &Arc<Upstream>| {
            let (group, upstream) = (Arc::clone(self), Arc::clone(upstream));
            tokio::spawn(async move { group.follow_one(&upstream).await }).abort_handle()
        };
        *self.followers.lock().unwrap_or_else(PoisonError::into_inner) = upstreams.iter().map(one).collect();
        self.dirty.notify_one();
    }

    async fn follow_one(&self, upstream: &Arc<Upstream>) {
        let mut states = upstream.watch();
        let mut updates = upstream.updates();
        loop {
            tokio::select! {
                changed = states.changed() => match changed {
                    Ok(()) => self.dirty.notify_one(),
                    Err(_) => return,
                },
                updated = updates.recv() => match updated {
                    Ok(uri) => {
                        let uri = self.member(upstream.name()).map(|member| member.rename.uri(&uri));
                        if let Some(uri) = uri {
                            self.publish(Change::Updated(uri.into()));
                        }
                    }
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
        }
    }

    /// The member of that name, as it is seen now.
    pub(super) fn member(&self, upstream: &str) -> Option<Member> {
        self.view.borrow().members.iter().find(|member| **member.upstream.name() == *upstream).cloned()
    }

    /// Looks again when something has changed.
    async fn run(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.ended.cancelled() => return self.unfollow(),
                () = self.dirty.notified() => {}
            }
            tokio::time::sleep(DEBOUNCE).await;
            let before = self.view();
            let again = |member: &Member| Member::new(Arc::clone(&member.upstream), &before.plan);
            let members = before.members.iter().map(again).collect();
            self.see(View::new(Arc::clone(&before.plan), members));
        }
    }

    /// Shows something else from now on, and tells what of it is new.
    fn see(&self, view: View) {
        let mut previous = None;
        let view = Arc::new(view);
        let different = self.view.send_if_modified(|current| {
            // A plan that came meanwhile is newer than what was seen before it.
            if !Arc::ptr_eq(&current.plan, &view.plan) && current.epoch > view.epoch {
                return false;
            }
            previous = Some(std::mem::replace(current, Arc::clone(&view)));
            true
        });
        let Some(previous) = previous.filter(|_| different) else { return };
        for collision in view.collisions.iter().filter(|words| !previous.collisions.contains(words)) {
            tracing::error!(group = %self.name, "{collision}");
        }
        let mut changes: Vec<Change> = view.differences(&previous).into_iter().map(List::change).collect();
        changes.dedup();
        {
            let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
            before.push(previous);
            let surplus = before.len().saturating_sub(VIEWS);
            before.drain(..surplus);
        }
        for change in changes {
            self.publish(change);
        }
    }

    /// Waits until every upstream was reached or could not be, but not for long.
    pub async fn settle(&self) {
        let patience = *self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        if self.view.borrow().is_settled() || patience <= Instant::now() {
            return;
        }
        let mut views = self.view.subscribe();
        let settled = views.wait_for(|view| view.is_settled());
        // Who takes longer is left out, and comes back with a list change.
        let _ = tokio::time::timeout_at(patience, settled).await;
    }

    /// Whether some upstream is still waited for.
    pub fn is_settling(&self) -> bool {
        !self.view.borrow().is_settled()
            && *self.patience.lock().unwrap_or_else(PoisonError::into_inner) > Instant::now()
    }

    /// Counts a call that ended.
    pub(super) fn note(&self, upstream: &Arc<str>, method: &Method, begun: Instant, ending: Ending) {
        let method = match method {
            Method::Other(_) => "other",
            known => known.as_str(),
        };
        self.common.metrics.ended(&self.name, upstream, method, begun.elapsed(), ending);
    }

    /// What a caller sees: what everybody does, or what its own connections have shown it.
    fn view_for(&self, call: &Call) -> Arc<View> {
        let view = self.view();
        let Some(audience) = &call.audience else { return view };
        let own: Vec<_> = view.members.iter().map(|member| member.upstream.own_lists(audience.key())).collect();
        if own.iter().all(Option::is_none) {
            return view;
        }
        let epochs = own.iter().map(|own| own.as_ref().map_or(0, |(epoch, _)| *epoch)).collect();
        let made_from = (view.epoch, epochs);
        if let Some(known) = audience.shelf().get::<Own>().filter(|known| known.made_from == made_from) {
            return Arc::clone(&known.view);
        }
        let mut members = view.members.clone();
        for (member, own) in members.iter_mut().zip(own) {
            let Some((_, lists)) = own else { continue };
            let mut state = (*member.state).clone();
            for (mine, own) in state.lists.iter_mut().zip(lists) {
                if own.is_some() {
                    *mine = own;
                }
            }
            member.state = Arc::new(state);
        }
        let own = Arc::new(View::new(Arc::clone(&view.plan), members));
        audience.shelf().put(Arc::new(Own { made_from, view: Arc::clone(&own) }));
        own
    }

    /// Answers a call, or passes it on to the upstream that can.
    pub fn handle(self: &Arc<Self>, call: &Call) -> Replies {
        if self.is_settling() {
            let (group, call) = (Arc::clone(self), call.clone());
            return forward::later(async move {
                group.settle().await;
                group.handle_now(&call)
            });
        }
        self.handle_now(call)
    }

    fn handle_now(self: &Arc<Self>, call: &Call) -> Replies {
        if !may_ask(call) {
            return self.route(call);
        }
        match State::of(self, call) {
            Ok(None) => self.route(call),
            Ok(Some(State::Held(id))) => forward::later(held::resume(Arc::clone(self), call.clone(), id)),
            Ok(Some(State::Again)) => self.route(&carrying(call, None)),
            Ok(Some(State::Upstream(own))) => self.route(&carrying(call, Some(own))),
            Err(error) => error.into(),
        }
    }

    fn route(self: &Arc<Self>, call: &Call) -> Replies {
        let view = self.view_for(call);
        if call.method.family().is_some_and(|family| !view.offers(family)) {
            return method_not_found(&call.method).into();
        }
        match call.method.route() {
            Route::Here => match call.method {
                Method::Ping => Answer::result(Raw::empty()).into(),
                Method::Discover => {
                    let hint = if view.is_settled() { DISCOVERY_HINT } else { EARLY_HINT };
                    // What others say of themselves may depend on who asks.
                    let public = view.members.iter().all(|member| member.upstream.spec().is_built_in());
                    let hint = CacheHint { public, ..hint };
                    Answer::result(lower::discovery(&view.server_for(call.client.revision), hint)).into()
                }
                Method::Listen => self.listen(call, &view),
                Method::SetLevel => self.set_level(call, &view),
                Method::Subscribe | Method::Unsubscribe => self.subscription(call, &view),
                _ => method_not_found(&call.method).into(),
            },
            Route::List => {
                let begun = Instant::now();
                let listed = self.list(call, &view);
                let ending = if listed.is_ok() { Ending::Ok } else { Ending::Error };
                self.note(&self.common.ourselves, &call.method, begun, ending);
                listed.unwrap_or_else(Replies::from)
            }
            Route::ByName => self.by_name(call, &view).unwrap_or_else(Replies::from),
            Route::ByUri => self.by_uri(call, &view).unwrap_or_else(Replies::from),
            Route::ByReference => self.by_reference(call, &view).unwrap_or_else(Replies::from),
            Route::Unknown => match view.only() {
                // Tasks are another thing in each era.
                Some(only) if call.method.is_of_tasks() && only.is_bridged_to(call.client.revision) => {
                    method_not_found(&call.method).into()
                }
                Some(only) => self.pass_on(call, call.clone(), only),
                None if call.method.is_of_tasks() => self.by_task(call, &view).unwrap_or_else(Replies::from),
                None => method_not_found(&call.method).into(),
            },
        }
    }

    /// A task is with the upstream that its id names.
    fn by_task(self: &Arc<Self>, call: &Call, view: &View) -> Result<Replies, ErrorObject> {
        let has_tasks = |member: &&Member| {
            member.state.server.as_ref().is_some_and(|server| outgoing::has_tasks(&server.capabilities))
        };
        let able: Vec<&Member> = view
            .members
            .iter()
            .filter(has_tasks)
            .filter(|member| !member.is_bridged_to(call.client.revision))
            .collect();
        let Some(first) = able.first() else { return Err(method_not_found(&call.method)) };
        let id = text(call, &["taskId"]).unwrap_or_default();
        let named = Rename::task_in(&id).and_then(|(name, own)| {
            let member = able.iter().find(|member| **member.upstream.name() == *name)?;
            Some((*member, own))
        });
        // One that knows no such task says so best.
        let (member, own) = named.unwrap_or((*first, id.as_str()));
        Ok(self.pass_on(call, with(call, &["taskId"], own), member))
    }

    fn list(&self, call: &Call, view: &Arc<View>) -> Result<Replies, ErrorObject> {
        let list = List::asked_by(&call.method).ok_or_else(|| method_not_found(&call.method))?;
        let revision = call.client.revision;
        let cursor = call.params.as_ref().and_then(|params| params.get("cursor")).filter(|cursor| !cursor.is_null());
        let page = match cursor {
            None => view.page(list, 0, revision, &self.common.seal)?,
            Some(cursor) => {
                let cursor = cursor.text().and_then(|text| Cursor::open(&self.common.seal, &self.name, &text));
                let cursor = cursor.filter(|cursor| cursor.list == list);
                let cursor = cursor.ok_or_else(|| invalid("the cursor is none of this list; begin without one"))?;
                let then = self.view_then(view, cursor.epoch);
                let then = then.ok_or_else(|| invalid("the list has changed since; begin again without a cursor"))?;
                then.page(list, cursor.offset as usize, revision, &self.common.seal)?
            }
        };
        Ok(Answer { outcome: Ok(page), revision }.into())
    }

    /// The view of a page before.
    fn view_then(&self, view: &Arc<View>, epoch: u64) -> Option<Arc<View>> {
        if view.epoch == epoch {
            return Some(Arc::clone(view));
        }
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        before.iter().find(|before| before.epoch == epoch).cloned()
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
        Ok(self.pass_on(call, with(call, &["name"], own), member))
    }

    fn by_uri(self: &Arc<Self>, call: &Call, view: &View) -> Result<Replies, ErrorObject> {
        let uri = text(call, &["uri"])?;
        let (member, own) = view.by_uri(&uri).ok_or_else(|| no_resource(&uri))?;
        Ok(self.pass_on(call, with(call, &["uri"], own), member))
    }

    fn by_reference(self: &Arc<Self>, call: &Call, view: &View) -> Result<Replies, ErrorObject> {
        if let Some(only) = view.only() {
            return Ok(self.pass_on(call, call.clone(), only));
        }
        let kind = text(call, &["ref", "type"])?;
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
        if member.state.offers(Family::Completions) == Some(false) {
            let nothing = Raw::constant(r#"{"completion":{"values":[]},"resultType":"complete"}"#);
            return Ok(Answer::result(nothing).into());
        }
        Ok(self.pass_on(call, with(call, &["ref", key], own), member))
    }

    /// A client chooses what is logged to it: every server that it has a connection to is told.
    fn set_level(&self, call: &Call, view: &View) -> Replies {
        let (Some(level), Some(audience)) = (call.level, &call.audience) else {
            return method_not_found(&call.method).into();
        };
        let upstreams: Vec<_> = view.members.iter().map(|member| Arc::clone(&member.upstream)).collect();
        let key = audience.key();
        forward::later(async move {
            set_levels(&upstreams, key, level).await;
            Answer::result(Raw::empty()).into()
        })
    }

    /// A session wants to hear of a resource, or no longer.
    fn subscription(self: &Arc<Self>, call: &Call, view: &View) -> Replies {
        let Some(audience) = &call.audience else { return method_not_found(&call.method).into() };
        let uri = match text(call, &["uri"]) {
            Ok(uri) => uri,
            Err(error) => return error.into(),
        };
        let Some((member, own)) = view.by_uri(&uri) else { return no_resource(&uri).into() };
        if !member.state.offers_updates() {
            return method_not_found(&call.method).into();
        }
        if member.upstream.lends(call) {
            return forward::subscription(self, with(call, &["uri"], own), member, &uri);
        }
        // Its changes come by the connection that everybody shares.
        match call.method {
            Method::Subscribe => audience.subscribed(&uri, Some(Box::new(member.upstream.want(own)))),
            _ => audience.unsubscribed(&uri),
        }
        Answer::result(Raw::empty()).into()
    }

    /// Passes a call on to a member, under the names that it knows.
    fn pass_on(self: &Arc<Self>, call: &Call, renamed: Call, member: &Member) -> Replies {
        let mut replies = forward::call(self, renamed, member);
        if !may_ask(call) || member.upstream.spec().is_local() {
            return replies;
        }
        match replies.take_ready() {
            Some(answer) => answer.into(),
            None => held::hold(self, call.clone(), replies),
        }
    }

    /// A session tells something that its servers may want to know.
    pub fn tell(&self, audience: &dyn Audience, notification: &Notification) {
        let view = self.view();
        let concerns_all = matches!(notification.notice, Notice::RootsChanged);
        let passes = concerns_all || matches!(notification.notice, Notice::Other(_)) && view.only().is_some();
        if passes {
            for member in &view.members {
                member.upstream.tell(audience.key(), notification);
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
fn text(call: &Call, path: &[&str]) -> Result<String, ErrorObject> {
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
