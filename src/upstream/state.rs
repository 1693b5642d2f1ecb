//! What is known of an upstream: how it is, what it says of itself, and its lists.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, broadcast, watch};

use super::health::Health;
use super::lists::{List, Listed};
use crate::call::Call;
use crate::dialect::to_client::ServerInfo;
use crate::dialect::{Revision, tasks};
use crate::protocol::method::Family;
use crate::protocol::{Method, Raw};

/// What is known of an upstream.
#[derive(Debug, Clone)]
pub struct CatalogState {
    /// How it is.
    pub health: Health,
    /// Whether it was reached, or could not be, at least once.
    pub settled: bool,
    /// What it says of itself, as last seen.
    pub server: Option<ServerInfo>,
    /// The revision that it speaks, as last seen.
    pub revision: Option<Revision>,
    /// The transport that reaches it.
    pub transport: &'static str,
    /// Its lists, as last seen, by their place in [`List::ALL`].
    pub lists: [Option<Arc<Listed>>; List::ALL.len()],
    /// How often it has said that a list is another now, by their place in [`List::ALL`].
    pub announced: [u64; List::ALL.len()],
    /// The lists that it could not give, and why.
    pub troubles: BTreeMap<&'static str, String>,
}

/// What those who look after an upstream share with those who use it.
#[derive(Debug)]
pub(super) struct CatalogShared {
    state: watch::Sender<Arc<CatalogState>>,
    /// Resources that changed, by their URI.
    updates: broadcast::Sender<Arc<str>>,
    /// Resources that somebody wants to hear of, and how many do.
    wanted: Mutex<BTreeMap<Arc<str>, usize>>,
    /// Which of these the upstream tells of, as far as it has answered; nothing where it need not be asked.
    answers: Option<watch::Sender<BTreeMap<Arc<str>, bool>>>,
    /// Told when what is wanted becomes another.
    pub(super) subscriptions_changed: Notify,
    /// Lists that a connection lent to callers has said to be others.
    announced: Mutex<Vec<List>>,
    /// Told when there are some.
    pub(super) announcing: Notify,
}

/// Somebody wants to hear of a resource, until this is dropped.
#[derive(Debug)]
pub struct SubscriptionGuard {
    shared: Arc<CatalogShared>,
    uri: Arc<str>,
}

/// How many changes of resources may wait for those who listen; who falls behind misses the oldest.
const UPDATES_WAITING: usize = 1024;

// === impl State ===

impl CatalogState {
    /// At the very beginning.
    pub(super) fn starting(transport: &'static str) -> Self {
        Self {
            health: Health::starting(),
            settled: false,
            server: None,
            revision: None,
            transport,
            lists: Default::default(),
            announced: Default::default(),
            troubles: BTreeMap::new(),
        }
    }

    /// One of its lists, as last seen.
    pub fn list(&self, list: List) -> Option<&Arc<Listed>> {
        self.lists[list as usize].as_ref()
    }

    /// Whether it has a capability; nothing when that is not known.
    pub fn offers(&self, family: Family) -> Option<bool> {
        let server = self.server.as_ref()?;
        // The oldest revision completes arguments without saying so.
        let unsaid = family == Family::Completions
            && self.revision.is_some_and(|revision| !revision.facts().completions_capability);
        Some(unsaid || server.capabilities.get(family.as_str()).is_some())
    }

    /// Whether it tells of changes to single resources.
    pub fn offers_updates(&self) -> bool {
        self.flag(&["resources", "subscribe"])
    }

    /// Whether a call can be made as a task only.
    pub fn needs_task(&self, call: &Call) -> bool {
        let known = self.list(List::Tools).filter(|tools| call.method == Method::ToolsCall && !tools.tasks.is_empty());
        let (Some(tools), Some(server), Some(revision)) = (known, &self.server, self.revision) else { return false };
        let name = call.params.as_ref().and_then(|params| params.get("name"));
        let named = name.as_ref().and_then(Raw::text).is_some_and(|name| tools.tasks.contains(name.as_ref()));
        named && tasks::taken_by(&server.capabilities, revision)
    }

    /// Whether it tells when a list changes.
    pub(super) fn tells_of(&self, list: List) -> bool {
        self.flag(&[list.family().as_str(), "listChanged"])
    }

    fn flag(&self, path: &[&str]) -> bool {
        let found = self.server.as_ref().and_then(|server| server.capabilities.at(path));
        found.as_ref().map(Raw::as_bytes) == Some(b"true")
    }
}

// === impl Shared ===

impl CatalogShared {
    /// Shared with an upstream that has to be asked before it tells of resources.
    pub(super) fn new(state: CatalogState) -> Arc<Self> {
        Self::with(state, Some(watch::Sender::default()))
    }

    /// Shared with one in this process, which tells of whatever is wanted.
    pub(super) fn local(state: CatalogState) -> Arc<Self> {
        Self::with(state, None)
    }

    fn with(state: CatalogState, answers: Option<watch::Sender<BTreeMap<Arc<str>, bool>>>) -> Arc<Self> {
        Arc::new(Self {
            answers,
            state: watch::Sender::new(Arc::new(state)),
            updates: broadcast::Sender::new(UPDATES_WAITING),
            wanted: Mutex::default(),
            subscriptions_changed: Notify::new(),
            announced: Mutex::default(),
            announcing: Notify::new(),
        })
    }

    pub(super) fn state(&self) -> Arc<CatalogState> {
        Arc::clone(&self.state.borrow())
    }

    /// The revision that is spoken, once that is known.
    pub(super) fn revision(&self) -> Option<Revision> {
        self.state.borrow().revision
    }

    pub(super) fn watch(&self) -> watch::Receiver<Arc<CatalogState>> {
        self.state.subscribe()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut CatalogState)) {
        self.state.send_modify(|state| change(Arc::make_mut(state)));
    }

    pub(super) fn updates(&self) -> broadcast::Receiver<Arc<str>> {
        self.updates.subscribe()
    }

    /// A resource changed.
    pub(super) fn updated(&self, uri: Arc<str>) {
        // Nobody may be listening; that is no fault.
        let _ = self.updates.send(uri);
    }

    /// Any resource may have changed: what was told of some was missed.
    pub(super) fn update_all(&self) {
        self.wanted().into_iter().for_each(|uri| self.updated(uri));
    }

    /// Lists are others, as a connection lent to callers has said.
    pub(super) fn announce(&self, lists: &[List]) {
        if !lists.is_empty() {
            self.announced.lock().unwrap_or_else(PoisonError::into_inner).extend(lists);
            self.announcing.notify_one();
        }
    }

    /// The lists that were said to be others.
    pub(super) fn take_announced(&self) -> Vec<List> {
        std::mem::take(&mut *self.announced.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The resources that somebody wants to hear of.
    pub(super) fn wanted(&self) -> Vec<Arc<str>> {
        self.lock().keys().cloned().collect()
    }

    pub(super) fn subscribe(self: &Arc<Self>, uri: &str) -> SubscriptionGuard {
        let uri: Arc<str> = uri.into();
        let count = {
            let mut wanted = self.lock();
            let count = wanted.entry(Arc::clone(&uri)).or_default();
            *count += 1;
            *count
        };
        if count == 1 {
            self.subscriptions_changed.notify_one();
        }
        SubscriptionGuard { shared: Arc::clone(self), uri }
    }

    /// The upstream has answered what it tells of.
    pub(super) fn answered(&self, granted: BTreeMap<Arc<str>, bool>) {
        if let Some(answers) = &self.answers {
            answers.send_if_modified(|known| {
                let is_new = *known != granted;
                *known = granted;
                is_new
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, usize>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SubscriptionGuard {
    /// Waits until it is known whether the upstream tells of the resource, and says so.
    pub async fn is_granted(&self) -> bool {
        let Some(answers) = &self.shared.answers else { return true };
        let mut answers = answers.subscribe();
        let answered = answers.wait_for(|known| known.contains_key(&self.uri)).await;
        answered.is_ok_and(|known| known.get(&self.uri) == Some(&true))
    }
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        let mut wanted = self.shared.lock();
        let Some(count) = wanted.get_mut(&self.uri) else { return };
        *count -= 1;
        if *count == 0 {
            wanted.remove(&self.uri);
            drop(wanted);
            self.shared.subscriptions_changed.notify_one();
        }
    }
}
