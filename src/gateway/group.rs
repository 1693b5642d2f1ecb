//! A named set of upstreams, served at one address, and what all of them show together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group_config::GroupConfig;
use super::parked_calls::ParkedCalls;
use super::request_state::RequestState;
use super::sealing::Seal;
use super::view::{GroupMember, View};
use super::{Common, GroupEvent};
use crate::call::{Call, ChangeEvent, ListFingerprints};
use crate::dialect::to_client::ServerInfo;
use crate::metrics::{CallMetrics, CallOutcome};
use crate::protocol::Method;
use crate::upstream::{CatalogState, List, Upstream};

/// A named set of upstreams, served at one address.
#[derive(Debug)]
pub struct Group {
    name: Arc<str>,
    /// What it shows now.
    view: ArcSwap<View>,
    /// The same, for those who wait for another; changed under its lock.
    views: watch::Sender<Arc<View>>,
    /// The last views, for clients that are in the middle of a list.
    pub(super) before: Mutex<Vec<Arc<View>>>,
    changes: broadcast::Sender<ChangeEvent>,
    pub(super) common: Common,
    dirty: Notify,
    /// Until when clients wait for upstreams that are being connected.
    patience: Mutex<Instant>,
    /// Whether anybody may have seen a list.
    shown: AtomicBool,
    followers: Mutex<Vec<(Arc<Upstream>, AbortHandle)>>,
    ended: CancellationToken,
    /// What is counted of the calls that we answer ourselves.
    tallies: CallMetrics,
}

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
struct SessionView {
    /// The view that it was made from, and what became of the lists since.
    made_from: (u64, Vec<u64>),
    view: Arc<View>,
}

impl Group {
    /// A group of these upstreams, in the order of the plan. Runs until it is ended.
    pub(super) fn start(plan: GroupConfig, upstreams: &[Arc<Upstream>], common: &Common) -> Arc<Self> {
        let name = Arc::clone(&plan.name);
        let plan = Arc::new(plan);
        let members = upstreams.iter().map(|upstream| GroupMember::new(Arc::clone(upstream), &plan)).collect();
        let view = Arc::new(View::new(plan, members));
        let group = Arc::new(Self {
            name,
            view: ArcSwap::new(Arc::clone(&view)),
            views: watch::Sender::new(view),
            before: Mutex::default(),
            changes: broadcast::Sender::new(CHANGES_WAITING),
            common: common.clone(),
            dirty: Notify::new(),
            patience: Mutex::new(Instant::now() + PATIENCE),
            shown: AtomicBool::new(false),
            followers: Mutex::default(),
            ended: common.closing.child_token(),
            tallies: CallMetrics::default(),
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
    pub fn view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// What the group says of itself.
    pub fn server(&self) -> ServerInfo {
        self.view().server.clone()
    }

    pub(super) fn parked(&self) -> &Arc<ParkedCalls> {
        &self.common.parked_calls
    }

    /// The name of this node.
    pub(super) fn node(&self) -> Arc<str> {
        Arc::clone(&self.common.node)
    }

    /// The name of the node that holds what a call goes on with, if one does.
    pub fn parked_on(&self, call: &Call) -> Option<Arc<str>> {
        match RequestState::of(self, call) {
            Ok(Some(RequestState::Parked(_, node))) => Some(node),
            _ => None,
        }
    }

    pub(super) fn seal(&self) -> &Seal {
        &self.common.seal
    }

    /// What changes in the group, as it changes.
    pub fn changes(&self) -> broadcast::Receiver<ChangeEvent> {
        self.changes.subscribe()
    }

    /// Cancelled when the group is no more, or everything ends.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Tells everybody who listens of a change.
    pub fn publish(&self, change: ChangeEvent) {
        // Nobody may be listening; that is no fault.
        let _ = self.common.told.send(GroupEvent { group: Arc::clone(&self.name), change: Some(change.clone()) });
        let _ = self.changes.send(change);
    }

    /// The group becomes another.
    pub(super) fn become_plan(self: &Arc<Self>, plan: GroupConfig, upstreams: &[Arc<Upstream>]) {
        let plan = Arc::new(plan);
        *self.patience.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + PATIENCE;
        let members = upstreams.iter().map(|upstream| GroupMember::new(Arc::clone(upstream), &plan)).collect();
        self.follow(upstreams);
        self.publish_view(View::new(plan, members), |_| true);
    }

    /// The group is no more.
    pub(super) fn end(&self) {
        self.ended.cancel();
        self.unfollow();
    }

    fn unfollow(&self) {
        for (_, follower) in std::mem::take(&mut *self.followers.lock().unwrap_or_else(PoisonError::into_inner)) {
            follower.abort();
        }
    }

    /// Follows what becomes of these upstreams, and of no others. Nothing is missed of those that it
    /// followed before.
    fn follow(self: &Arc<Self>, upstreams: &[Arc<Upstream>]) {
        let mut followers = self.followers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *followers);
        for upstream in upstreams {
            let known = before.iter().position(|(followed, _)| Arc::ptr_eq(followed, upstream));
            followers.push(match known {
                Some(known) => before.swap_remove(known),
                None => {
                    let (group, followed) = (Arc::clone(self), Arc::clone(upstream));
                    let (states, updates) = (upstream.watch(), upstream.updates());
                    let task = tokio::spawn(async move { group.follow_one(&followed, states, updates).await });
                    (Arc::clone(upstream), task.abort_handle())
                }
            });
        }
        for (_, follower) in before {
            follower.abort();
        }
        drop(followers);
        self.dirty.notify_one();
    }

    async fn follow_one(
        &self,
        upstream: &Arc<Upstream>,
        mut states: watch::Receiver<Arc<CatalogState>>,
        mut updates: broadcast::Receiver<Arc<str>>,
    ) {
        loop {
            tokio::select! {
                changed = states.changed() => match changed {
                    Ok(()) => self.dirty.notify_one(),
                    Err(_) => return,
                },
                updated = updates.recv() => match updated {
                    Ok(uri) => self.updated(upstream, uri),
                    // Which of them were missed is not known.
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        upstream.wanted().into_iter().for_each(|uri| self.updated(upstream, uri));
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
        }
    }

    /// A resource changed. Some may know it by the upstream's own URI.
    fn updated(&self, upstream: &Arc<Upstream>, uri: Arc<str>) {
        let Some(member) = self.member(upstream.name()) else { return };
        let renamed = member.rename.uri(&uri);
        if renamed != *uri && self.view().is_own_uri(&uri, upstream) {
            self.publish(ChangeEvent::Updated(uri));
        }
        self.publish(ChangeEvent::Updated(renamed.into()));
    }

    /// The member of that name, as it is seen now.
    pub(super) fn member(&self, upstream: &str) -> Option<GroupMember> {
        self.view().members.iter().find(|member| **member.upstream.name() == *upstream).cloned()
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
            let again = |member: &GroupMember| GroupMember::new(Arc::clone(&member.upstream), &before.plan);
            let members = before.members.iter().map(again).collect();
            // A plan that came meanwhile is newer than what was seen before it.
            let is_current = |current: &View| Arc::ptr_eq(&current.plan, &before.plan);
            self.publish_view(View::new(Arc::clone(&before.plan), members), is_current);
        }
    }

    /// Shows something else from now on, if it may, and tells what of it is new.
    fn publish_view(&self, view: View, may: impl FnOnce(&View) -> bool) {
        let mut previous = None;
        let view = Arc::new(view);
        self.views.send_if_modified(|current| {
            let may = may(current);
            if may {
                self.view.store(Arc::clone(&view));
                previous = Some(std::mem::replace(current, Arc::clone(&view)));
            }
            may
        });
        let Some(previous) = previous else { return };
        for collision in view.collisions.iter().filter(|words| !previous.collisions.contains(words)) {
            tracing::error!(group = %self.name, "{collision}");
        }
        let mut changes: Vec<ChangeEvent> = view.differences(&previous).into_iter().map(List::change).collect();
        changes.dedup();
        if !changes.is_empty() {
            let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
            before.push(previous);
            let surplus = before.len().saturating_sub(VIEWS);
            before.drain(..surplus);
        }
        // What becomes of a list before anybody could see it is no change.
        let is_shown = view.is_settled() || !self.is_settling();
        if !self.shown.fetch_or(is_shown, Ordering::AcqRel) && self.is_patient() {
            return;
        }
        for change in changes {
            self.publish(change);
        }
    }

    /// Waits until every upstream was reached or could not be, but not for long.
    pub async fn wait_ready(&self) {
        let patience = *self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        if self.view().is_settled() || patience <= Instant::now() {
            return;
        }
        let mut views = self.views.subscribe();
        let settled = views.wait_for(|view| view.is_settled());
        // Who takes longer is left out, and comes back with a list change.
        let _ = tokio::time::timeout_at(patience, settled).await;
    }

    /// Whether some upstream is still waited for.
    pub fn is_settling(&self) -> bool {
        !self.view().is_settled() && self.is_patient()
    }

    fn is_patient(&self) -> bool {
        *self.patience.lock().unwrap_or_else(PoisonError::into_inner) > Instant::now()
    }

    /// Counts a call that ended.
    pub(super) fn note(&self, to: (&CallMetrics, &Arc<str>), method: &Method, begun: Instant, ending: CallOutcome) {
        let (tallies, upstream) = to;
        let method = method.known().unwrap_or("other");
        self.common.metrics.ended(tallies, (&self.name, upstream), method, begun.elapsed(), ending);
    }

    /// Counts a call that we have answered ourselves.
    pub(super) fn note_own(&self, method: &Method, begun: Instant, ending: CallOutcome) {
        self.note((&self.tallies, &self.common.ourselves), method, begun, ending);
    }

    /// Tells whether the lists that a session sees are the same on another node; those that it alone sees are not.
    pub fn prints_for(&self, session: u128) -> ListFingerprints {
        let view = self.view();
        let has_own = |member: &GroupMember| {
            member.upstream.own_lists(session).is_some_and(|(_, lists)| lists.iter().any(Option::is_some))
        };
        if view.members.iter().any(has_own) { ListFingerprints::default() } else { view.prints() }
    }

    /// What a caller sees: what everybody does, or what its own connections have shown it.
    pub(super) fn view_for(&self, call: &Call) -> Guard<Arc<View>> {
        let view = self.view();
        let Some(sink) = &call.sink else { return view };
        let has_own = |member: &GroupMember| member.upstream.own_lists(sink.key()).is_some();
        if !view.members.iter().any(has_own) {
            return view;
        }
        let own: Vec<_> = view.members.iter().map(|member| member.upstream.own_lists(sink.key())).collect();
        let epochs = own.iter().map(|own| own.as_ref().map_or(0, |(epoch, _)| *epoch)).collect();
        let made_from = (view.epoch, epochs);
        if let Some(known) = sink.shelf().get::<SessionView>().filter(|known| known.made_from == made_from) {
            return Guard::from_inner(Arc::clone(&known.view));
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
        sink.shelf().put(Arc::new(SessionView { made_from, view: Arc::clone(&own) }));
        Guard::from_inner(own)
    }
}
