//! A group: a named set of upstreams served at one address, and the merged view of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::caller_view::CallerView;
use super::group_config::GroupConfig;
use super::held_tasks::HeldTasks;
use super::name_mapping::NameMapping;
use super::owned_tasks::OwnedTasks;
use super::parked_calls::ParkedCalls;
use super::permissions::DescribedTarget;
use super::request_state::RequestState;
use super::sealing::Seal;
use super::view::{GroupMember, View};
use super::{AnnouncedChange, GatewayShared, GroupChange, GroupEvent};
use crate::call::{Call, ChangeEvent, ClientSink, ListFingerprints};
use crate::dialect::Revision;
use crate::identity::Identity;
use crate::metrics::{CallMetrics, CallOutcome, DecisionMetrics, LabelName};
use crate::protocol::Method;
use crate::trace::Tracer;
use crate::upstream::{CatalogState, Leg, List, Upstream};

/// A named set of upstreams served at one address.
#[derive(Debug)]
pub struct Group {
    name: Arc<str>,
    /// The current views of clients of each era, indexed by [`slot`], for readers on the hot path.
    current: [ArcSwap<View>; 2],
    /// The current views, for tasks that wait for the next ones. Written under its lock, together with `current`.
    views: watch::Sender<[Arc<View>; 2]>,
    /// Previous views, so that clients can finish paging through a list that changed.
    pub(super) recent_views: Mutex<Vec<Arc<View>>>,
    /// Changes for the listeners of per-request clients.
    changes: broadcast::Sender<AnnouncedChange>,
    pub(super) shared: GatewayShared,
    dirty: Notify,
    /// Until when clients wait for upstreams that are still connecting.
    ready_deadline: Mutex<Instant>,
    /// Until when clients wait for the leg of their era; `None` while none waits.
    leg_deadline: Mutex<Option<Instant>>,
    /// Whether a client of each era may have read a list. Before that, changes are not announced.
    lists_served: [AtomicBool; 2],
    watchers: Mutex<Vec<(Arc<Upstream>, AbortHandle)>>,
    ended: CancellationToken,
    /// The name of the group in metrics of operations.
    pub(super) label_name: LabelName,
    /// Metrics of the calls that the gateway answers itself.
    local_metrics: CallMetrics,
    /// Metrics of the decisions about calls.
    pub(super) decision_metrics: DecisionMetrics,
}

/// One revision of each era, in the order of [`slot`].
const CLIENTS: [Revision; 2] = [Revision::NEWEST, Revision::NEWEST_HANDSHAKE];
/// Changes buffered per listener; a listener that lags is sent every change it subscribed to.
const CHANGE_CHANNEL_CAPACITY: usize = 256;
/// How long clients wait for upstreams that are still connecting.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to collect further changes before the view is rebuilt.
const VIEW_DEBOUNCE: Duration = Duration::from_millis(20);
/// Previous views kept for clients that are paging through a list.
const MAX_RECENT_VIEWS: usize = 4;

/// A leg and its changes from a moment on.
struct LegChanges {
    leg: Arc<Leg>,
    states: watch::Receiver<Arc<CatalogState>>,
    updates: broadcast::Receiver<Arc<str>>,
}

impl LegChanges {
    fn of(leg: &Arc<Leg>) -> Self {
        Self { leg: Arc::clone(leg), states: leg.watch(), updates: leg.resource_updates() }
    }
}

/// Where the view of clients of that revision is kept.
pub(super) fn slot(client: Revision) -> usize {
    usize::from(client.has_sessions())
}

/// The views that clients of each era have of the upstreams; one and the same where both use the same legs.
fn build_views(config: &Arc<GroupConfig>, upstreams: &[Arc<Upstream>]) -> [Arc<View>; 2] {
    let members = CLIENTS.map(|client| {
        let member = |upstream: &Arc<Upstream>| GroupMember::new(Arc::clone(upstream), client, config);
        upstreams.iter().map(member).collect::<Vec<_>>()
    });
    let [per_request, handshake] = members;
    let is_same = per_request.iter().zip(&handshake).all(|(one, other)| one.has_same_leg(other));
    let per_request = Arc::new(View::new(Arc::clone(config), per_request));
    let handshake = match is_same {
        true => Arc::clone(&per_request),
        false => Arc::new(View::new(Arc::clone(config), handshake)),
    };
    [per_request, handshake]
}

/// The view of a client whose own leases announced different lists.
#[derive(Debug)]
struct OwnListsView {
    /// Epoch of the group's view and epochs of the client's own lists that this view was built from.
    source_epochs: (u64, Vec<u64>),
    view: Arc<View>,
}

impl Group {
    /// Starts a group with its upstreams in configured order. Its task runs until the group ends.
    pub(super) fn start(config: GroupConfig, upstreams: &[Arc<Upstream>], common: &GatewayShared) -> Arc<Self> {
        let name = Arc::clone(&config.name);
        let label_name = common.metrics.operations().place(&name);
        let config = Arc::new(config);
        let views = build_views(&config, upstreams);
        let group = Arc::new(Self {
            name,
            current: views.each_ref().map(|view| ArcSwap::new(Arc::clone(view))),
            views: watch::Sender::new(views),
            recent_views: Mutex::default(),
            changes: broadcast::Sender::new(CHANGE_CHANNEL_CAPACITY),
            shared: common.clone(),
            dirty: Notify::new(),
            ready_deadline: Mutex::new(Instant::now() + READY_TIMEOUT),
            leg_deadline: Mutex::default(),
            lists_served: Default::default(),
            watchers: Mutex::default(),
            ended: common.closing.child_token(),
            label_name,
            local_metrics: CallMetrics::default(),
            decision_metrics: DecisionMetrics::default(),
        });
        group.watch_upstreams(upstreams);
        tokio::spawn(Arc::clone(&group).run());
        group
    }

    /// The name of the group.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The current view of clients of that revision.
    pub fn view(&self, client: Revision) -> Guard<Arc<View>> {
        self.current[slot(client)].load()
    }

    /// Traces calls.
    pub fn tracer(&self) -> &Tracer {
        &self.shared.tracer
    }

    pub(super) fn parked(&self) -> &Arc<ParkedCalls> {
        &self.shared.parked_calls
    }

    pub(super) fn held_tasks(&self) -> &HeldTasks {
        &self.shared.held_tasks
    }

    pub(super) fn owned_tasks(&self) -> &OwnedTasks {
        &self.shared.owned_tasks
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

    /// Whether the call carries no request state, or one that this node can open.
    pub fn can_open_request_state(&self, call: &Call) -> bool {
        RequestState::from_call(self, call).is_ok()
    }

    pub(super) fn seal(&self) -> &Seal {
        &self.shared.seal
    }

    /// The current views, indexed by [`slot`], for tasks that wait for the next ones.
    pub(super) fn watch_views(&self) -> watch::Receiver<[Arc<View>; 2]> {
        self.views.subscribe()
    }

    /// Subscribes to the changes that per-request clients see.
    pub(super) fn changes(&self) -> broadcast::Receiver<AnnouncedChange> {
        self.changes.subscribe()
    }

    /// Cancelled when the group is removed or the gateway shuts down.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Announces a change to all listeners.
    pub fn publish(&self, change: ChangeEvent) {
        let [per_request, handshake] = CLIENTS;
        self.publish_to(per_request, AnnouncedChange { change: change.clone(), before: None });
        self.publish_to(handshake, AnnouncedChange { change, before: None });
    }

    /// Announces a change to the listeners of one era.
    fn publish_to(&self, client: Revision, change: AnnouncedChange) {
        if client.has_sessions() {
            self.send_event(GroupChange::Content(change));
        } else {
            // A send error means that there are no listeners.
            let _ = self.changes.send(change);
        }
    }

    fn send_event(&self, change: GroupChange) {
        // A send error means that there are no receivers.
        let _ = self.shared.events.send(GroupEvent { group: Arc::clone(&self.name), change });
    }

    /// Applies a new configuration.
    pub(super) fn reconfigure(self: &Arc<Self>, config: GroupConfig, upstreams: &[Arc<Upstream>]) {
        let config = Arc::new(config);
        *self.ready_deadline.lock() = Instant::now() + READY_TIMEOUT;
        self.watch_upstreams(upstreams);
        self.publish_views(&build_views(&config, upstreams), |_| true);
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
                    let probed = LegChanges::of(upstream.probed_leg());
                    let task = tokio::spawn(async move { group.watch_upstream(&followed, probed).await });
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

    async fn watch_upstream(&self, upstream: &Upstream, probed: LegChanges) {
        let mut legs = upstream.watch_legs();
        let watch_probed = self.watch_leg(probed);
        tokio::pin!(watch_probed);
        loop {
            let handshake = legs.handshake_leg();
            self.dirty.notify_one();
            let watch_handshake = async {
                if let Some(leg) = &handshake {
                    self.watch_leg(LegChanges::of(leg)).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = &mut watch_probed => return,
                () = watch_handshake => {}
                changed = legs.changed() => if !changed { return },
            }
        }
    }

    /// Follows the changes of a leg until it is gone.
    async fn watch_leg(&self, changes: LegChanges) {
        let LegChanges { leg, mut states, mut updates } = changes;
        loop {
            tokio::select! {
                changed = states.changed() => match changed {
                    Ok(()) => self.dirty.notify_one(),
                    Err(_) => return,
                },
                updated = updates.recv() => match updated {
                    Ok(uri) => self.publish_resource_update(&leg, &uri),
                    // The missed URIs are unknown, so announce every subscribed one.
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        leg.subscribed_uris().iter().for_each(|uri| self.publish_resource_update(&leg, uri));
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
        }
    }

    /// Announces a changed resource to the clients that the leg serves, also under the upstream's own URI where
    /// clients may use that.
    fn publish_resource_update(&self, leg: &Arc<Leg>, uri: &Arc<str>) {
        for client in CLIENTS {
            let view = self.view(client);
            let Some(member) = view.members.iter().find(|member| Arc::ptr_eq(&member.leg, leg)) else { continue };
            let renamed = member.name_mapping.expose_uri(uri);
            if *renamed != **uri && view.is_own_uri(uri, leg) {
                let change = ChangeEvent::ResourceUpdated(Arc::clone(uri));
                self.publish_to(client, AnnouncedChange { change, before: None });
            }
            let change = ChangeEvent::ResourceUpdated(renamed.into());
            self.publish_to(client, AnnouncedChange { change, before: None });
        }
    }

    /// The name mapping of an upstream, from the current view.
    pub(super) fn name_mapping(&self, upstream: &str) -> Option<NameMapping> {
        let view = self.view(Revision::NEWEST);
        let member = view.members.iter().find(|member| **member.upstream.name() == *upstream);
        member.map(|member| member.name_mapping.clone())
    }

    /// Rebuilds the views after changes, debounced.
    async fn run(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.ended.cancelled() => return self.stop_watchers(),
                () = self.dirty.notified() => {}
            }
            tokio::time::sleep(VIEW_DEBOUNCE).await;
            let before = self.view(Revision::NEWEST);
            let upstreams: Vec<_> = before.members.iter().map(|member| Arc::clone(&member.upstream)).collect();
            // A configuration applied meanwhile is newer than this view; keep it.
            let is_current = |current: &View| Arc::ptr_eq(&current.config, &before.config);
            self.publish_views(&build_views(&before.config, &upstreams), is_current);
        }
    }

    /// Publishes views if `is_allowed`, and announces the lists that changed.
    fn publish_views(&self, views: &[Arc<View>; 2], is_allowed: impl FnOnce(&View) -> bool) {
        let mut previous = None;
        self.views.send_if_modified(|current| {
            let is_allowed = is_allowed(&current[0]);
            if is_allowed {
                for (place, view) in self.current.iter().zip(views) {
                    place.store(Arc::clone(view));
                }
                previous = Some(std::mem::replace(current, views.clone()));
            }
            is_allowed
        });
        let Some(previous) = previous else { return };
        if views.iter().all(|view| view.all_settled()) {
            *self.leg_deadline.lock() = None;
        }
        if !views[0].has_same_rules(&previous[0]) {
            self.send_event(GroupChange::Rules);
        }
        for ((client, view), previous) in CLIENTS.into_iter().zip(views).zip(previous) {
            self.announce_changes(client, view, previous);
        }
    }

    /// Announces the lists in which a new view differs from the previous one.
    fn announce_changes(&self, client: Revision, view: &View, previous: Arc<View>) {
        for collision in view.collisions.iter().filter(|words| !previous.collisions.contains(words)) {
            tracing::error!(group = %self.name, "{collision}");
        }
        let mut changes: Vec<ChangeEvent> = view.changed_lists(&previous).into_iter().map(List::change_event).collect();
        changes.dedup();
        let has_rules = view.config.rules.is_some() || previous.config.rules.is_some();
        let before = has_rules.then(|| Arc::downgrade(&previous));
        if !view.has_same_rules(&previous) {
            changes = ChangeEvent::LISTS.to_vec();
        }
        if !changes.is_empty() {
            let mut before = self.recent_views.lock();
            before.retain(|view| !Arc::ptr_eq(view, &previous));
            before.push(previous);
            let surplus = before.len().saturating_sub(MAX_RECENT_VIEWS);
            before.drain(..surplus);
        }
        // Nobody can have read the lists before the group was ready, so their changes are not announced.
        let is_waited_for = *self.ready_deadline.lock() > Instant::now();
        let is_shown = view.all_settled() || !is_waited_for;
        if !self.lists_served[slot(client)].fetch_or(is_shown, Ordering::AcqRel) && is_waited_for {
            return;
        }
        for change in changes {
            self.publish_to(client, AnnouncedChange { change, before: before.clone() });
        }
    }

    /// Whether rules say what callers may do here.
    pub(super) fn has_rules(&self) -> bool {
        self.view(Revision::NEWEST).config.rules.is_some()
    }

    /// Whether a caller may do anything in this group, as far as the rules say.
    pub fn may_use(&self, identity: &Identity) -> bool {
        self.view(Revision::NEWEST).permissions(identity).is_none_or(|permissions| permissions.may_use_any())
    }

    /// All that is on the group's lists with what a caller may do with it, and the upstreams whose lists are not known.
    pub fn describe_targets(&self, client: Revision, identity: &Identity) -> (Vec<DescribedTarget>, Vec<Arc<str>>) {
        let view = self.view(client);
        let is_unknown = |member: &&GroupMember| List::ALL.into_iter().any(|list| member.is_unavailable_for(list));
        let unknown = view.members.iter().filter(is_unknown).map(|member| Arc::clone(member.upstream.name()));
        (view.describe_targets(identity), unknown.collect())
    }

    /// Whether a change is one for this caller: it sees the resource, or another list than before.
    pub fn concerns(&self, client: Revision, identity: &Identity, change: &AnnouncedChange) -> bool {
        let view = self.view(client);
        if view.config.rules.is_none() && change.before.is_none() {
            return true;
        }
        let sees = CallerView::new(&view, identity);
        let lists: &[List] = match &change.change {
            ChangeEvent::ResourceUpdated(uri) => return sees.find_by_uri(uri).is_some(),
            ChangeEvent::Tools => &[List::Tools],
            ChangeEvent::Prompts => &[List::Prompts],
            ChangeEvent::Resources => &[List::Resources, List::Templates],
        };
        // A view that is no longer kept cannot be compared.
        let Some(before) = change.before.as_ref().and_then(Weak::upgrade) else { return true };
        let saw = CallerView::new(&before, identity);
        lists.iter().any(|list| saw.list_fingerprint(*list) != sees.list_fingerprint(*list))
    }

    /// The lists that one caller sees otherwise than another.
    pub fn lists_that_differ(&self, client: Revision, one: &Identity, other: &Identity) -> Vec<ChangeEvent> {
        let view = self.view(client);
        let [one, other] = [one, other].map(|identity| CallerView::new(&view, identity));
        let differs = |list: &List| one.list_fingerprint(*list) != other.list_fingerprint(*list);
        let mut changes: Vec<_> = List::ALL.into_iter().filter(differs).map(List::change_event).collect();
        changes.dedup();
        changes
    }

    /// Whether a resource exists for a caller; true for one that cannot be resolved at all just now.
    pub fn shows_resource(&self, client: Revision, identity: &Identity, uri: &str) -> bool {
        let view = self.view(client);
        view.config.rules.is_none()
            || view.resolve_uri(uri).is_none()
            || CallerView::new(&view, identity).find_by_uri(uri).is_some()
    }

    /// Whether a tool exists for a caller.
    pub fn shows_tool(&self, client: Revision, identity: &Identity, name: &str) -> bool {
        let view = self.view(client);
        view.config.rules.is_none() || CallerView::new(&view, identity).find_by_name(List::Tools, name).is_some()
    }

    /// Content fingerprints of the lists that a caller sees, comparable between nodes.
    pub fn list_fingerprints_of(&self, identity: &Identity) -> ListFingerprints {
        CallerView::new(&self.view(Revision::NEWEST_HANDSHAKE), identity).list_fingerprints()
    }

    /// Waits until every upstream connected or failed to, at most until a deadline, and has the leg that suits clients
    /// of that revision.
    pub async fn wait_ready(&self, client: Revision) {
        let mut views = self.views.subscribe();
        // The deadline moves once the upstreams are known and their legs are opened. A slower upstream is left out; it is
        // announced later by a list change.
        while self.is_starting(client) {
            if !matches!(tokio::time::timeout_at(self.wait_deadline(client), views.changed()).await, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Whether some upstream is still connecting, and clients of that revision still wait for it. Has the legs opened
    /// that suit such clients.
    pub fn is_starting(&self, client: Revision) -> bool {
        let view = self.view(client);
        if view.all_settled() {
            return false;
        }
        view.members.iter().for_each(|member| member.upstream.want_leg_for(client));
        self.wait_deadline(client) > Instant::now()
    }

    /// Until when clients of that revision wait: for the upstreams, then for the legs that suit them.
    fn wait_deadline(&self, client: Revision) -> Instant {
        let view = self.view(client);
        if !view.members.iter().all(|member| member.upstream.state().startup_finished) {
            return *self.ready_deadline.lock();
        }
        // Behind one server nobody else is kept waiting, and its other leg may behave differently.
        let timeout = match &view.members[..] {
            [only] => READY_TIMEOUT.max(only.upstream.spec().settings.discovery_timeout),
            _ => READY_TIMEOUT,
        };
        *self.leg_deadline.lock().get_or_insert_with(|| Instant::now() + timeout)
    }

    /// Counts a call that ended.
    pub(super) fn record_call(&self, to: (&CallMetrics, &Arc<str>), method: &Method, outcome: CallOutcome) {
        let (metrics, upstream) = to;
        let method = method.known_name().unwrap_or("other");
        self.shared.metrics.record_call(metrics, (&self.name, upstream), method, outcome);
    }

    /// Counts a call that the gateway answered itself.
    pub(super) fn record_local_call(&self, method: &Method, outcome: CallOutcome) {
        self.record_call((&self.local_metrics, &self.shared.local_label), method, outcome);
    }

    /// Content fingerprints of the lists that a session sees, to compare them after a takeover. Zero when the
    /// session has lists of its own: another node cannot have the same.
    pub fn list_fingerprints_for(&self, session: u128, identity: &Identity) -> ListFingerprints {
        let view = self.view(Revision::NEWEST_HANDSHAKE);
        let has_own = |member: &GroupMember| member.leg.session_has_own_lists(session);
        match view.members.iter().any(has_own) {
            true => ListFingerprints::default(),
            false => CallerView::new(&view, identity).list_fingerprints(),
        }
    }

    /// The view for a call: the group's, or one with the lists that the client's own leases announced.
    pub(super) fn view_for(&self, call: &Call) -> Guard<Arc<View>> {
        let view = self.view(call.client.revision);
        if !view.members.iter().any(|member| member.leg.has_own_lists()) {
            return view;
        }
        let own: Vec<_> = view.members.iter().map(|member| member.leg.own_lists(call)).collect();
        let hub = || own.iter().flatten().find_map(|own| own.hub().cloned().map(|hub| hub as Arc<dyn ClientSink>));
        let Some(client) = call.sink.clone().or_else(hub).filter(|_| own.iter().any(Option::is_some)) else {
            return view;
        };
        let epochs = own.iter().map(|own| own.as_ref().map_or(0, |own| own.epoch)).collect();
        let made_from = (view.epoch, epochs);
        let known = client.gateway_slot().get::<OwnListsView>();
        if let Some(known) = known.filter(|known| known.source_epochs == made_from) {
            return Guard::from_inner(Arc::clone(&known.view));
        }
        let mut members = view.members.clone();
        for (member, own) in members.iter_mut().zip(own) {
            let Some(own) = own else { continue };
            let mut state = (*member.state).clone();
            for (mine, own) in state.lists.iter_mut().zip(own.lists()) {
                if own.is_some() {
                    *mine = own;
                }
            }
            member.state = Arc::new(state);
        }
        let own = Arc::new(View::new(Arc::clone(&view.config), members));
        client.gateway_slot().set(Arc::new(OwnListsView { source_epochs: made_from, view: Arc::clone(&own) }));
        Guard::from_inner(own)
    }
}
