//! A group: a named set of upstreams served at one address, and the merged view of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::group_config::GroupConfig;
use super::parked_calls::ParkedCalls;
use super::request_state::RequestState;
use super::sealing::Seal;
use super::view::{GroupMember, View};
use super::{GatewayShared, GroupChange, GroupEvent};
use crate::call::{Call, ChangeEvent, ListFingerprints};
use crate::dialect::to_client::ServerInfo;
use crate::metrics::{CallMetrics, CallOutcome};
use crate::protocol::Method;
use crate::upstream::{CatalogState, List, Upstream};

/// A named set of upstreams served at one address.
#[derive(Debug)]
pub struct Group {
    name: Arc<str>,
    /// The current view, for readers on the hot path.
    view: ArcSwap<View>,
    /// The current view, for tasks that wait for the next one. Written under its lock, together with `view`.
    views: watch::Sender<Arc<View>>,
    /// Previous views, so that clients can finish paging through a list that changed.
    pub(super) recent_views: Mutex<Vec<Arc<View>>>,
    changes: broadcast::Sender<ChangeEvent>,
    pub(super) shared: GatewayShared,
    dirty: Notify,
    /// Until when clients wait for upstreams that are still connecting.
    ready_deadline: Mutex<Instant>,
    /// Whether a client may have read a list. Before that, changes are not announced.
    lists_served: AtomicBool,
    watchers: Mutex<Vec<(Arc<Upstream>, AbortHandle)>>,
    ended: CancellationToken,
    /// Metrics of the calls that the gateway answers itself.
    local_metrics: CallMetrics,
}

/// Changes buffered per listener; a listener that lags is sent every change it subscribed to.
const CHANGE_CHANNEL_CAPACITY: usize = 256;
/// How long clients wait for upstreams that are still connecting.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to collect further changes before the view is rebuilt.
const VIEW_DEBOUNCE: Duration = Duration::from_millis(20);
/// Previous views kept for clients that are paging through a list.
const MAX_RECENT_VIEWS: usize = 4;

/// The view of a session whose own leases announced different lists.
#[derive(Debug)]
struct SessionView {
    /// Epoch of the group's view and epochs of the session's own lists that this view was built from.
    source_epochs: (u64, Vec<u64>),
    view: Arc<View>,
}

impl Group {
    /// Starts a group with its upstreams in configured order. Its task runs until the group ends.
    pub(super) fn start(config: GroupConfig, upstreams: &[Arc<Upstream>], common: &GatewayShared) -> Arc<Self> {
        let name = Arc::clone(&config.name);
        let config = Arc::new(config);
        let members = upstreams.iter().map(|upstream| GroupMember::new(Arc::clone(upstream), &config)).collect();
        let view = Arc::new(View::new(config, members));
        let group = Arc::new(Self {
            name,
            view: ArcSwap::new(Arc::clone(&view)),
            views: watch::Sender::new(view),
            recent_views: Mutex::default(),
            changes: broadcast::Sender::new(CHANGE_CHANNEL_CAPACITY),
            shared: common.clone(),
            dirty: Notify::new(),
            ready_deadline: Mutex::new(Instant::now() + READY_TIMEOUT),
            lists_served: AtomicBool::new(false),
            watchers: Mutex::default(),
            ended: common.closing.child_token(),
            local_metrics: CallMetrics::default(),
        });
        group.watch_upstreams(upstreams);
        tokio::spawn(Arc::clone(&group).run());
        group
    }

    /// The name of the group.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The current view.
    pub fn view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// The group's identity, capabilities and instructions.
    pub fn server(&self) -> ServerInfo {
        self.view().server.clone()
    }

    pub(super) fn parked(&self) -> &Arc<ParkedCalls> {
        &self.shared.parked_calls
    }

    /// The name of this node.
    pub(super) fn node(&self) -> Arc<str> {
        Arc::clone(&self.shared.node)
    }

    /// The node that holds the parked call which this call resumes, if any.
    pub fn parked_on(&self, call: &Call) -> Option<Arc<str>> {
        match RequestState::from_call(self, call) {
            Ok(Some(RequestState::Parked(_, node))) => Some(node),
            _ => None,
        }
    }

    pub(super) fn seal(&self) -> &Seal {
        &self.shared.seal
    }

    /// The current view, for tasks that wait for the next one.
    pub(super) fn watch_views(&self) -> watch::Receiver<Arc<View>> {
        self.views.subscribe()
    }

    /// Subscribes to the changes of this group.
    pub fn changes(&self) -> broadcast::Receiver<ChangeEvent> {
        self.changes.subscribe()
    }

    /// Cancelled when the group is removed or the gateway shuts down.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Announces a change to all listeners.
    pub fn publish(&self, change: ChangeEvent) {
        // A send error means that there are no listeners.
        let _ = self
            .shared
            .events
            .send(GroupEvent { group: Arc::clone(&self.name), change: GroupChange::Content(change.clone()) });
        let _ = self.changes.send(change);
    }

    /// Applies a new configuration.
    pub(super) fn reconfigure(self: &Arc<Self>, config: GroupConfig, upstreams: &[Arc<Upstream>]) {
        let config = Arc::new(config);
        *self.ready_deadline.lock() = Instant::now() + READY_TIMEOUT;
        let members = upstreams.iter().map(|upstream| GroupMember::new(Arc::clone(upstream), &config)).collect();
        self.watch_upstreams(upstreams);
        self.publish_view(View::new(config, members), |_| true);
    }

    /// Ends the group and its watchers.
    pub(super) fn end(&self) {
        self.ended.cancel();
        self.stop_watchers();
    }

    fn stop_watchers(&self) {
        for (_, follower) in std::mem::take(&mut *self.watchers.lock()) {
            follower.abort();
        }
    }

    /// Watches exactly these upstreams. Watchers of upstreams that stay keep running, so none of their
    /// changes is lost.
    fn watch_upstreams(self: &Arc<Self>, upstreams: &[Arc<Upstream>]) {
        let mut followers = self.watchers.lock();
        let mut before = std::mem::take(&mut *followers);
        for upstream in upstreams {
            let known = before.iter().position(|(followed, _)| Arc::ptr_eq(followed, upstream));
            followers.push(match known {
                Some(known) => before.swap_remove(known),
                None => {
                    let (group, followed) = (Arc::clone(self), Arc::clone(upstream));
                    let (states, updates) = (upstream.watch(), upstream.resource_updates());
                    let task = tokio::spawn(async move { group.watch_upstream(&followed, states, updates).await });
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

    async fn watch_upstream(
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
                    Ok(uri) => self.publish_resource_update(upstream, uri),
                    // The missed URIs are unknown, so announce every subscribed one.
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        upstream.subscribed_uris().into_iter().for_each(|uri| self.publish_resource_update(upstream, uri));
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
        }
    }

    /// Announces a changed resource, also under the upstream's own URI where clients may use that.
    fn publish_resource_update(&self, upstream: &Arc<Upstream>, uri: Arc<str>) {
        let Some(member) = self.member(upstream.name()) else { return };
        let renamed = member.name_mapping.expose_uri(&uri);
        if renamed != *uri && self.view().is_own_uri(&uri, upstream) {
            self.publish(ChangeEvent::ResourceUpdated(uri));
        }
        self.publish(ChangeEvent::ResourceUpdated(renamed.into()));
    }

    /// The member for an upstream, from the current view.
    pub(super) fn member(&self, upstream: &str) -> Option<GroupMember> {
        self.view().members.iter().find(|member| **member.upstream.name() == *upstream).cloned()
    }

    /// Rebuilds the view after changes, debounced.
    async fn run(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.ended.cancelled() => return self.stop_watchers(),
                () = self.dirty.notified() => {}
            }
            tokio::time::sleep(VIEW_DEBOUNCE).await;
            let before = self.view();
            let again = |member: &GroupMember| GroupMember::new(Arc::clone(&member.upstream), &before.config);
            let members = before.members.iter().map(again).collect();
            // A configuration applied meanwhile is newer than this view; keep it.
            let is_current = |current: &View| Arc::ptr_eq(&current.config, &before.config);
            self.publish_view(View::new(Arc::clone(&before.config), members), is_current);
        }
    }

    /// Publishes a view if `may` allows it, and announces the lists that changed.
    fn publish_view(&self, view: View, is_allowed: impl FnOnce(&View) -> bool) {
        let mut previous = None;
        let view = Arc::new(view);
        self.views.send_if_modified(|current| {
            let is_allowed = is_allowed(current);
            if is_allowed {
                self.view.store(Arc::clone(&view));
                previous = Some(std::mem::replace(current, Arc::clone(&view)));
            }
            is_allowed
        });
        let Some(previous) = previous else { return };
        for collision in view.collisions.iter().filter(|words| !previous.collisions.contains(words)) {
            tracing::error!(group = %self.name, "{collision}");
        }
        let mut changes: Vec<ChangeEvent> = view.changed_lists(&previous).into_iter().map(List::change_event).collect();
        changes.dedup();
        if !changes.is_empty() {
            let mut before = self.recent_views.lock();
            before.push(previous);
            let surplus = before.len().saturating_sub(MAX_RECENT_VIEWS);
            before.drain(..surplus);
        }
        // Nobody can have read the lists before the group was ready, so their changes are not announced.
        let is_shown = view.all_settled() || !self.is_starting();
        if !self.lists_served.fetch_or(is_shown, Ordering::AcqRel) && self.before_ready_deadline() {
            return;
        }
        for change in changes {
            self.publish(change);
        }
    }

    /// Waits until every upstream connected or failed to, at most until the ready deadline.
    pub async fn wait_ready(&self) {
        let deadline = *self.ready_deadline.lock();
        if self.view().all_settled() || deadline <= Instant::now() {
            return;
        }
        let mut views = self.views.subscribe();
        let settled = views.wait_for(|view| view.all_settled());
        // A slower upstream is left out; it is announced later by a list change.
        let _ = tokio::time::timeout_at(deadline, settled).await;
    }

    /// Whether some upstream is still connecting and clients still wait for it.
    pub fn is_starting(&self) -> bool {
        !self.view().all_settled() && self.before_ready_deadline()
    }

    fn before_ready_deadline(&self) -> bool {
        *self.ready_deadline.lock() > Instant::now()
    }

    /// Counts a call that ended.
    pub(super) fn record_call(
        &self,
        to: (&CallMetrics, &Arc<str>),
        method: &Method,
        started: Instant,
        outcome: CallOutcome,
    ) {
        let (metrics, upstream) = to;
        let method = method.known_name().unwrap_or("other");
        self.shared.metrics.record_call(metrics, (&self.name, upstream), method, started.elapsed(), outcome);
    }

    /// Counts a call that the gateway answered itself.
    pub(super) fn record_local_call(&self, method: &Method, started: Instant, outcome: CallOutcome) {
        self.record_call((&self.local_metrics, &self.shared.local_label), method, started, outcome);
    }

    /// Content fingerprints of the lists that a session sees, to compare them after a takeover. Zero when the
    /// session has lists of its own: another node cannot have the same.
    pub fn list_fingerprints_for(&self, session: u128) -> ListFingerprints {
        let view = self.view();
        let has_own = |member: &GroupMember| {
            member.upstream.session_lists(session).is_some_and(|(_, lists)| lists.iter().any(Option::is_some))
        };
        if view.members.iter().any(has_own) { ListFingerprints::default() } else { view.list_fingerprints() }
    }

    /// The view for a call: the group's, or one with the lists that the session's own leases announced.
    pub(super) fn view_for(&self, call: &Call) -> Guard<Arc<View>> {
        let view = self.view();
        let Some(sink) = &call.sink else { return view };
        let has_own = |member: &GroupMember| member.upstream.session_lists(sink.key()).is_some();
        if !view.members.iter().any(has_own) {
            return view;
        }
        let own: Vec<_> = view.members.iter().map(|member| member.upstream.session_lists(sink.key())).collect();
        let epochs = own.iter().map(|own| own.as_ref().map_or(0, |(epoch, _)| *epoch)).collect();
        let made_from = (view.epoch, epochs);
        if let Some(known) = sink.gateway_slot().get::<SessionView>().filter(|known| known.source_epochs == made_from) {
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
        let own = Arc::new(View::new(Arc::clone(&view.config), members));
        sink.gateway_slot().set(Arc::new(SessionView { source_epochs: made_from, view: Arc::clone(&own) }));
        Guard::from_inner(own)
    }
}
