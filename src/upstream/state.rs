//! Catalog state of an upstream (health, server info, lists) and the subscriptions to its resources.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{Notify, broadcast, watch};

use parking_lot::{Mutex, MutexGuard};

use super::health::{Health, HealthPhase};
use super::lists::{CatalogList, List};
use crate::call::Call;
use crate::dialect::to_client::ServerInfo;
use crate::dialect::{Revision, tasks};
use crate::local::LocalServer;
use crate::protocol::method::Capability;
use crate::protocol::{Method, Raw};

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
    /// Subscribers per resource URI.
    subscriber_counts: Mutex<BTreeMap<Arc<str>, usize>>,
    /// Whether the upstream granted each subscription; `None` for servers in this process, which grant all.
    grants: Option<watch::Sender<BTreeMap<Arc<str>, bool>>>,
    /// Wakes the catalog task when the set of subscribed URIs changes.
    pub(super) subscriptions_changed: Notify,
    /// Lists that leases without a session reported as changed.
    reported_list_changes: Mutex<Vec<List>>,
    /// Wakes the catalog task when `reported_list_changes` is not empty.
    pub(super) list_change_reported: Notify,
}

/// Subscription to one resource; dropping it unsubscribes.
#[derive(Debug)]
pub struct SubscriptionGuard {
    shared: Arc<CatalogShared>,
    uri: Arc<str>,
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
        let name = call.params.as_ref().and_then(|params| params.get("name"));
        let named = name.as_ref().and_then(Raw::text).is_some_and(|name| tools.task_only_tools.contains(name.as_ref()));
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

// === impl CatalogShared ===

impl CatalogShared {
    /// State of a remote upstream, which grants each subscription explicitly.
    pub(super) fn new(state: CatalogState) -> Arc<Self> {
        Self::with_grants(state, Some(watch::Sender::default()))
    }

    /// State of a server in this process, which grants every subscription.
    pub(super) fn local(state: CatalogState) -> Arc<Self> {
        Self::with_grants(state, None)
    }

    fn with_grants(state: CatalogState, answers: Option<watch::Sender<BTreeMap<Arc<str>, bool>>>) -> Arc<Self> {
        Arc::new(Self {
            grants: answers,
            state: watch::Sender::new(Arc::new(state)),
            resource_updates: broadcast::Sender::new(MAX_QUEUED_RESOURCE_UPDATES),
            subscriber_counts: Mutex::default(),
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
        self.lock_subscribers().keys().cloned().collect()
    }

    pub(super) fn subscribe(self: &Arc<Self>, uri: &str) -> SubscriptionGuard {
        let uri: Arc<str> = uri.into();
        let count = {
            let mut wanted = self.lock_subscribers();
            let count = wanted.entry(Arc::clone(&uri)).or_default();
            *count += 1;
            *count
        };
        if count == 1 {
            self.subscriptions_changed.notify_one();
        }
        SubscriptionGuard { shared: Arc::clone(self), uri }
    }

    /// Replaces the grants; waiters are woken only on a difference.
    pub(super) fn set_grants(&self, granted: BTreeMap<Arc<str>, bool>) {
        if let Some(answers) = &self.grants {
            answers.send_if_modified(|known| {
                let is_new = *known != granted;
                *known = granted;
                is_new
            });
        }
    }

    fn lock_subscribers(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, usize>> {
        self.subscriber_counts.lock()
    }
}

impl SubscriptionGuard {
    /// Waits for the upstream's answer; true when it granted the subscription.
    pub async fn is_granted(&self) -> bool {
        let Some(answers) = &self.shared.grants else { return true };
        let mut answers = answers.subscribe();
        let answered = answers.wait_for(|known| known.contains_key(&self.uri)).await;
        answered.is_ok_and(|known| known.get(&self.uri) == Some(&true))
    }
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        let mut wanted = self.shared.lock_subscribers();
        let Some(count) = wanted.get_mut(&self.uri) else { return };
        *count -= 1;
        if *count == 0 {
            wanted.remove(&self.uri);
            drop(wanted);
            self.shared.subscriptions_changed.notify_one();
        }
    }
}
