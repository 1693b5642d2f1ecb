//! Catalog state of an upstream (health, server info, lists) and the subscriptions to its resources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::{Notify, broadcast, watch};

use parking_lot::{Mutex, MutexGuard};

use super::health::{Health, HealthPhase};
use super::lists::{CatalogList, List};
use crate::call::Call;
use crate::dialect::to_client::ServerInfo;
use crate::dialect::{Revision, tasks};
use crate::local::LocalServer;
use crate::mcp_client::{Connection, ProbeReport};
use crate::protocol::method::Capability;
use crate::protocol::{ErrorObject, Key, Method, Raw};

/// What is known of a connection beside what the server says of itself: the facts that `rialto probe` prints.
#[derive(Debug, Clone)]
pub struct ConnectionFacts {
    /// How the transport and the revision were found.
    pub report: ProbeReport,
    /// The revisions that the server lists, if it does.
    pub offered: Vec<String>,
    /// Whether the server gave a session id.
    pub has_session_id: bool,
}

/// Snapshot of the catalog of an upstream.
#[derive(Debug, Clone)]
pub struct CatalogState {
    /// Health of the upstream.
    pub health: Health,
    /// Whether the first connect has succeeded with its lists read, or has failed.
    pub startup_finished: bool,
    /// Server info from the last connect.
    pub server: Option<ServerInfo>,
    /// Revision from the last connect.
    pub revision: Option<Revision>,
    /// Whether the server keeps a session for its connection.
    pub keeps_session: bool,
    /// How the last connection was opened; servers in this process need none.
    pub connection: Option<Arc<ConnectionFacts>>,
    /// Transport in use.
    pub transport: &'static str,
    /// Cached lists, indexed by [`List`].
    pub lists: [Option<Arc<CatalogList>>; List::ALL.len()],
    /// List-changed notifications per list, indexed by [`List`]; clients are notified when a count moves.
    pub list_change_counts: [u64; List::ALL.len()],
    /// Error of the last read of each list that failed.
    pub list_errors: BTreeMap<&'static str, String>,
}

/// Catalog state shared between the catalog task, the leases and the gateway.
#[derive(Debug)]
pub(super) struct CatalogShared {
    state: watch::Sender<Arc<CatalogState>>,
    /// URIs of updated resources.
    resource_updates: broadcast::Sender<Arc<str>>,
    /// The resources that somebody is subscribed to.
    subscriptions: Mutex<SubscribedUris>,
    /// Whether subscriptions are granted by an answer of the upstream; servers in this process grant all.
    asks_for_grants: bool,
    /// Wakes the catalog task when the set of subscribed URIs changes.
    pub(super) subscriptions_changed: Notify,
    /// Lists that leases without a session reported as changed.
    reported_list_changes: Mutex<Vec<List>>,
    /// Wakes the catalog task when `reported_list_changes` is not empty.
    pub(super) list_change_reported: Notify,
}

/// The upstream's answer to a subscription.
pub type Grant = Result<(), ErrorObject>;

#[derive(Debug, Default)]
struct SubscribedUris {
    uris: BTreeMap<Arc<str>, SubscribedUri>,
    /// URIs that got their first subscriber or lost their last one, until the catalog task has looked at them.
    changed: BTreeSet<Arc<str>>,
}

#[derive(Debug)]
struct SubscribedUri {
    subscribers: usize,
    /// The upstream's answer, once it has given one on the current connection.
    grant: watch::Sender<Option<Grant>>,
}

/// Subscription to one resource; dropping it unsubscribes.
#[derive(Debug)]
pub struct SubscriptionGuard {
    shared: Arc<CatalogShared>,
    uri: Arc<str>,
    grant: watch::Receiver<Option<Grant>>,
}

/// Queue bound for resource updates; a receiver that lags loses the oldest.
const MAX_QUEUED_RESOURCE_UPDATES: usize = 1024;

// === impl CatalogState ===

impl CatalogState {
    pub(super) fn starting(transport: &'static str) -> Self {
        Self {
            health: Health::starting(),
            startup_finished: false,
            server: None,
            revision: None,
            keeps_session: false,
            connection: None,
            transport,
            lists: Default::default(),
            list_change_counts: Default::default(),
            list_errors: BTreeMap::new(),
        }
    }

    /// Fills in the catalog of a local server, which is ready and has its lists at once.
    pub(super) fn set_local_server(&mut self, server: &dyn LocalServer) {
        self.startup_finished = true;
        self.health.set_phase(HealthPhase::Ready, None);
        self.server = Some(server.server_info().clone());
        self.revision = Some(Revision::NEWEST);
        for list in List::ALL {
            let result = server.list(&list.method());
            let read = |result| Arc::new(CatalogList::from_result(list, result, Revision::NEWEST));
            self.lists[list as usize] = result.map(read);
        }
    }

    /// Cached list, if it was read.
    pub fn list(&self, list: List) -> Option<&Arc<CatalogList>> {
        self.lists[list as usize].as_ref()
    }

    /// Whether the server has a capability; `None` before the first connect.
    pub fn has_capability(&self, family: Capability) -> Option<bool> {
        let server = self.server.as_ref()?;
        // Revisions without a `completions` capability complete arguments without declaring it.
        let unsaid =
            family == Capability::Completions && self.revision.is_some_and(|revision| !revision.declares_completions());
        Some(unsaid || server.capabilities.get(family.as_str()).is_some())
    }

    /// Whether the server supports `resources/subscribe`.
    pub fn supports_resource_subscriptions(&self) -> bool {
        self.capability_flag(&["resources", "subscribe"])
    }

    /// Whether the called tool can be run as a task only.
    pub fn requires_task(&self, call: &Call) -> bool {
        let known = self
            .list(List::Tools)
            .filter(|tools| call.method == Method::ToolsCall && !tools.task_only_tools.is_empty());
        let (Some(tools), Some(server), Some(revision)) = (known, &self.server, self.revision) else { return false };
        let name = call.params.as_ref().and_then(|params| params.text_of(Key::Name));
        let named = name.is_some_and(|name| tools.task_only_tools.contains(name.as_ref()));
        named && tasks::server_accepts_tasks(&server.capabilities, revision)
    }

    /// Whether the server sends list-changed notifications for a list.
    pub(super) fn supports_list_changed(&self, list: List) -> bool {
        self.capability_flag(&[list.capability().as_str(), "listChanged"])
    }

    fn capability_flag(&self, path: &[&str]) -> bool {
        let value = self.server.as_ref().and_then(|server| server.capabilities.at(path));
        value.as_ref().map(Raw::as_bytes) == Some(b"true")
    }
}

// === impl ConnectionFacts ===

impl ConnectionFacts {
    /// The facts of a connection. One that is opened again is given the revision that the `first` one found, so that it
    /// does not know why.
    pub(super) fn of(connection: &Connection, first: Option<&Self>) -> Self {
        let mut report = connection.probe_report().clone();
        if let Some(first) = first.filter(|_| connection.was_revision_given()) {
            report.why.clone_from(&first.report.why);
        }
        let offered = connection.offered_revisions().to_vec();
        Self { report, offered, has_session_id: connection.session_id().is_some() }
    }
}

// === impl CatalogShared ===

impl CatalogShared {
    /// State of a remote upstream, which grants each subscription explicitly.
    pub(super) fn new(state: CatalogState) -> Arc<Self> {
        Self::with_grants(state, true)
    }

    /// State of a server in this process, which grants every subscription.
    pub(super) fn local(state: CatalogState) -> Arc<Self> {
        Self::with_grants(state, false)
    }

    fn with_grants(state: CatalogState, asks_for_grants: bool) -> Arc<Self> {
        Arc::new(Self {
            asks_for_grants,
            state: watch::Sender::new(Arc::new(state)),
            resource_updates: broadcast::Sender::new(MAX_QUEUED_RESOURCE_UPDATES),
            subscriptions: Mutex::default(),
            subscriptions_changed: Notify::new(),
            reported_list_changes: Mutex::default(),
            list_change_reported: Notify::new(),
        })
    }

    pub(super) fn state(&self) -> Arc<CatalogState> {
        Arc::clone(&self.state.borrow())
    }

    /// Revision from the last connect.
    pub(super) fn revision(&self) -> Option<Revision> {
        self.state.borrow().revision
    }

    pub(super) fn watch(&self) -> watch::Receiver<Arc<CatalogState>> {
        self.state.subscribe()
    }

    pub(super) fn modify(&self, change: impl FnOnce(&mut CatalogState)) {
        self.state.send_modify(|state| change(Arc::make_mut(state)));
    }

    pub(super) fn resource_updates(&self) -> broadcast::Receiver<Arc<str>> {
        self.resource_updates.subscribe()
    }

    /// Publishes that a resource was updated.
    pub(super) fn publish_resource_update(&self, uri: Arc<str>) {
        // An error means no receiver, which is fine.
        let _ = self.resource_updates.send(uri);
    }

    /// Reports every subscribed resource as updated, for when updates were lost.
    pub(super) fn publish_all_resource_updates(&self) {
        self.subscribed_uris().into_iter().for_each(|uri| self.publish_resource_update(uri));
    }

    /// Reports lists that changed on a lease without a session.
    pub(super) fn report_list_changes(&self, lists: &[List]) {
        if !lists.is_empty() {
            self.reported_list_changes.lock().extend(lists);
            self.list_change_reported.notify_one();
        }
    }

    /// Takes the lists reported since the last call.
    pub(super) fn take_reported_list_changes(&self) -> Vec<List> {
        std::mem::take(&mut *self.reported_list_changes.lock())
    }

    /// URIs with at least one subscriber.
    pub(super) fn subscribed_uris(&self) -> Vec<Arc<str>> {
        self.lock_subscriptions().uris.keys().cloned().collect()
    }

    /// Whether a URI has a subscriber.
    pub(super) fn is_subscribed(&self, uri: &str) -> bool {
        self.lock_subscriptions().uris.contains_key(uri)
    }

    /// Takes the URIs that got their first subscriber or lost their last one since the last call.
    pub(super) fn take_changed_uris(&self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.lock_subscriptions().changed)
    }

    pub(super) fn subscribe(self: &Arc<Self>, uri: &str) -> SubscriptionGuard {
        let uri: Arc<str> = uri.into();
        let mut subscriptions = self.lock_subscriptions();
        let new = || SubscribedUri { subscribers: 0, grant: watch::Sender::new(None) };
        let subscribed = subscriptions.uris.entry(Arc::clone(&uri)).or_insert_with(new);
        subscribed.subscribers += 1;
        let (is_first, grant) = (subscribed.subscribers == 1, subscribed.grant.subscribe());
        if is_first {
            subscriptions.changed.insert(Arc::clone(&uri));
            self.subscriptions_changed.notify_one();
        }
        drop(subscriptions);
        SubscriptionGuard { shared: Arc::clone(self), uri, grant }
    }

    /// Records the upstream's answers; URIs without a subscriber are ignored.
    pub(super) fn set_grants<'g>(&self, grants: impl IntoIterator<Item = (&'g Arc<str>, &'g Grant)>) {
        let subscriptions = self.lock_subscriptions();
        for (uri, grant) in grants {
            if let Some(subscribed) = subscriptions.uris.get(uri) {
                subscribed.grant.send_replace(Some(grant.clone()));
            }
        }
    }

    /// Forgets every answer, because the session that they were given in has ended: all URIs are asked for again.
    pub(super) fn forget_grants(&self) {
        let mut subscriptions = self.lock_subscriptions();
        let SubscribedUris { uris, changed } = &mut *subscriptions;
        for (uri, subscribed) in uris {
            subscribed.grant.send_replace(None);
            changed.insert(Arc::clone(uri));
        }
    }

    fn lock_subscriptions(&self) -> MutexGuard<'_, SubscribedUris> {
        self.subscriptions.lock()
    }
}

impl SubscriptionGuard {
    /// Waits for the upstream's answer.
    ///
    /// # Errors
    /// What the upstream said when it refused, or why it could not be asked.
    pub async fn answer(&self) -> Grant {
        if !self.shared.asks_for_grants {
            return Ok(());
        }
        let mut grant = self.grant.clone();
        // The guard keeps the sender in its place.
        let answered = grant.wait_for(Option::is_some).await;
        answered.ok().and_then(|answer| answer.clone()).unwrap_or(Ok(()))
    }

    /// Waits for the upstream's answer; true when it granted the subscription.
    pub async fn is_granted(&self) -> bool {
        self.answer().await.is_ok()
    }
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        let mut subscriptions = self.shared.lock_subscriptions();
        let Some(subscribed) = subscriptions.uris.get_mut(&self.uri) else { return };
        subscribed.subscribers -= 1;
        if subscribed.subscribers == 0 {
            subscriptions.uris.remove(&self.uri);
            subscriptions.changed.insert(Arc::clone(&self.uri));
            self.shared.subscriptions_changed.notify_one();
        }
    }
}
