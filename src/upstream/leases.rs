//! Leases: a server that keeps sessions gets one connection per client, so that its notifications and server
//! requests reach the client they are meant for.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::caller_hub::CallerHub;
use super::lease::{Lease, ReplayState, set_log_level};
use super::lease_guard::{LeaseGuard, ReleaseOnDrop};
use super::lease_key::{LeaseKey, LeaseOwner, without_server_requests};
use super::leg::Leg;
use super::lists::{CatalogList, List};
use super::spec::SpecKind;
use super::supervisor;
use crate::call::{Call, ClientSink};
use crate::dialect::Revision;
use crate::dialect::to_upstream::{self, ClientIdentity};
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::mcp_client::{Connection, ConnectionSettings, ResumableSession, Target};
use crate::protocol::method::Capability;
use crate::protocol::{Level, Notification};
use foldhash::HashMap;

/// All leases of one upstream, bounded by `permits`.
#[derive(Debug)]
pub(super) struct Leases {
    leases: Mutex<HashMap<LeaseKey, Vec<Arc<Lease>>>>,
    permits: Arc<Semaphore>,
    /// The main leases that have had lists of their own. Every call that needs a view looks into it, so without a lock.
    with_own_lists: ArcSwap<HashMap<LeaseKey, Arc<Lease>>>,
    /// The listeners of callers without a session.
    hubs: Mutex<HashMap<LeaseKey, Weak<CallerHub>>>,
}

/// That a client's lease announced lists as its own.
#[derive(Debug)]
pub struct OwnLists {
    /// Changes whenever the lists do.
    pub epoch: u64,
    lease: Arc<Lease>,
}

/// Queue bound for notifications and server requests on one lease.
const MAX_QUEUED_LEASE_MESSAGES: usize = 256;
/// How long a newcomer waits for an idle lease to be closed in its favour.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(5);
/// How long `logging/setLevel` waits for one server before the client is answered.
const SET_LEVEL_TIMEOUT: Duration = Duration::from_secs(1);

// === impl Leases ===

impl Leases {
    pub(super) fn new(max_leases: usize) -> Self {
        Self {
            leases: Mutex::default(),
            permits: Arc::new(Semaphore::new(max_leases)),
            with_own_lists: ArcSwap::default(),
            hubs: Mutex::default(),
        }
    }

    /// The listeners of a caller without a session.
    pub(super) fn hub(&self, key: &LeaseKey) -> Arc<CallerHub> {
        let mut hubs = self.hubs.lock();
        if let Some(hub) = hubs.get(key).and_then(Weak::upgrade) {
            return hub;
        }
        hubs.retain(|_, hub| hub.strong_count() > 0);
        let hub = Arc::<CallerHub>::default();
        hubs.insert(key.clone(), Arc::downgrade(&hub));
        hub
    }

    /// Removes the lease that was idle for longest and has it closed; those of callers go before those of sessions.
    /// False when all are in use.
    fn evict_idle(&self, fits: impl Fn(&LeaseKey) -> bool) -> bool {
        let mut all = self.lock();
        let is_idle = |lease: &&Arc<Lease>| {
            fits(&lease.key) && lease.calls_in_flight.load(Ordering::Acquire) == 0 && !lease.has_followers()
        };
        let age = |lease: &&Arc<Lease>| (matches!(lease.key, LeaseKey::Session(_)), lease.lock().last_used);
        let Some(lease) = all.values().flatten().filter(is_idle).min_by_key(age).cloned() else { return false };
        self.remove_from(&mut all, &lease);
        lease.evicted.cancel();
        true
    }

    /// The leases of a caller for its calls without a session.
    fn count_of(&self, caller: &LeaseOwner) -> usize {
        self.lock().iter().filter(|(key, _)| key.is_caller(caller)).map(|(_, leases)| leases.len()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LeaseKey, Vec<Arc<Lease>>>> {
        self.leases.lock()
    }

    pub(super) fn count(&self) -> usize {
        self.lock().values().map(Vec::len).sum()
    }

    /// Marks every saved session as not resumable by another node.
    pub(super) fn retire(&self) {
        let leases: Vec<Arc<Lease>> = self.lock().values().flatten().cloned().collect();
        for resumable in leases.iter().filter_map(|lease| lease.resumable.as_ref()) {
            resumable.retire();
        }
    }

    /// The main lease of a client: that of its session, or the one that its listeners follow.
    pub(super) fn main(&self, key: &LeaseKey) -> Option<Arc<Lease>> {
        self.lock().get(key).and_then(|leases| leases.iter().find(|lease| lease.is_main())).cloned()
    }

    fn session_lease(&self, key: u128) -> Option<Arc<Lease>> {
        self.main(&LeaseKey::Session(key))
    }

    /// Removes a lease. Without `force` it stays, and false is returned, while calls use it.
    pub(super) fn remove(&self, lease: &Arc<Lease>, force: bool) -> bool {
        let mut all = self.lock();
        if !force && lease.calls_in_flight.load(Ordering::Acquire) > 0 {
            return false;
        }
        self.remove_from(&mut all, lease);
        true
    }

    fn remove_from(&self, all: &mut HashMap<LeaseKey, Vec<Arc<Lease>>>, lease: &Arc<Lease>) {
        if let Some(key_leases) = all.get_mut(&lease.key) {
            key_leases.retain(|other| !Arc::ptr_eq(other, lease));
            if key_leases.is_empty() {
                all.remove(&lease.key);
            }
        }
        self.change_own_lists(lease, false);
    }

    /// Notes that a lease has lists of its own, unless it was removed meanwhile.
    pub(super) fn note_own_lists(&self, lease: &Arc<Lease>) {
        let all = self.lock();
        let is_same = |other: &Arc<Lease>| Arc::ptr_eq(other, lease);
        if lease.is_main() && all.get(&lease.key).is_some_and(|leases| leases.iter().any(is_same)) {
            self.change_own_lists(lease, true);
        }
    }

    /// Adds a lease to those with lists of their own, or removes it. The caller holds the lock of all leases.
    fn change_own_lists(&self, lease: &Arc<Lease>, has_own_lists: bool) {
        let known = self.with_own_lists.load();
        if known.get(&lease.key).is_some_and(|other| Arc::ptr_eq(other, lease)) == has_own_lists {
            return;
        }
        let mut changed = HashMap::clone(&known);
        match has_own_lists {
            true => drop(changed.insert(lease.key.clone(), Arc::clone(lease))),
            false => drop(changed.remove(&lease.key)),
        }
        self.with_own_lists.store(Arc::new(changed));
    }
}

// === impl OwnLists ===

impl OwnLists {
    /// The lists that differ from the shared catalog, indexed by [`List`].
    pub fn lists(&self) -> [Option<Arc<CatalogList>>; List::ALL.len()] {
        self.lease.lock().own_lists.clone()
    }

    /// The caller, if it has no session.
    pub fn hub(&self) -> Option<&Arc<CallerHub>> {
        self.lease.hub.as_ref()
    }
}

// === impl Leg ===

impl Leg {
    pub(super) fn lease_key(&self, call: &Call) -> LeaseKey {
        LeaseKey::for_call(call, || self.accepted_requests(call))
    }

    /// Finds a lease that the call can use and counts it in flight.
    fn find_lease(&self, key: &LeaseKey, call: &Call) -> Option<Arc<Lease>> {
        find_reusable(self.leases.lock().get(key)?, call, false)
    }

    /// Room for another lease. An idle one is closed before a client is refused.
    async fn lease_permit(&self, key: &LeaseKey) -> Result<OwnedSemaphorePermit> {
        let refused = |max_leases: usize, whose: &str| {
            let detail = format!("all {max_leases} leases of {whose} are in use");
            Error::failure(FailureKind::LimitReached, detail)
        };
        if let LeaseKey::Caller(owner, _) = key {
            let max_leases = self.spec.max_leases_per_caller;
            let is_own = |key: &LeaseKey| key.is_caller(owner);
            if self.leases.count_of(owner) >= max_leases && !self.leases.evict_idle(is_own) {
                return Err(refused(max_leases, "the caller"));
            }
        }
        if let Ok(permit) = Arc::clone(&self.leases.permits).try_acquire_owned() {
            return Ok(permit);
        }
        let refused = || refused(self.spec.max_leases, "the upstream");
        if !self.leases.evict_idle(|_| true) {
            return Err(refused());
        }
        let permit = Arc::clone(&self.leases.permits).acquire_owned();
        let permit = tokio::time::timeout(EVICTION_TIMEOUT, permit).await.map_err(|_| refused())?;
        permit.map_err(|_| refused())
    }

    /// Finds or creates the caller's lease and counts one call in flight on it.
    fn get_or_create(
        self: &Arc<Self>,
        (key, call): (LeaseKey, &Call),
        sink: impl FnOnce() -> Option<Arc<dyn ClientSink>>,
        permit: OwnedSemaphorePermit,
    ) -> Arc<Lease> {
        let mut all = self.leases.lock();
        let key_leases = all.entry(key.clone()).or_default();
        if let Some(lease) = find_reusable(key_leases, call, false) {
            return lease;
        }
        let (unsolicited, receiver) = mpsc::channel(MAX_QUEUED_LEASE_MESSAGES);
        let session_sink = sink();
        let resumable = self.resumption_for(session_sink.as_ref());
        // Further leases of a caller serve single calls; only one is its main lease.
        let is_main = session_sink.is_none() && !key_leases.iter().any(|lease| lease.is_main());
        let hub = is_main.then(|| self.leases.hub(&key));
        let sink = session_sink.or_else(|| hub.clone().map(|hub| hub as Arc<dyn ClientSink>));
        let lease = Arc::new(Lease {
            key,
            identity: self.identity_for(call),
            connection: watch::Sender::new(None),
            open_lock: Arc::default(),
            is_closed: AtomicBool::new(false),
            maintenance_due: Notify::new(),
            unsolicited,
            resumable,
            hub,
            evicted: CancellationToken::new(),
            calls_in_flight: AtomicUsize::new(1),
            replay_state: Mutex::new(ReplayState {
                last_used: Instant::now(),
                log_level: None,
                subscriptions: BTreeSet::new(),
                own_lists: Default::default(),
                changed_lists: Default::default(),
                session_lost: false,
            }),
            list_epoch: AtomicU64::new(0),
            _permit: permit,
        });
        key_leases.push(Arc::clone(&lease));
        drop(all);
        self.tasks.spawn(Arc::clone(self).run_lease(Arc::clone(&lease), receiver, sink));
        lease
    }

    /// Acquires the caller's lease without waiting: only if it is open and has the call's log level already.
    pub(super) fn try_acquire_lease(&self, call: &Call) -> Option<LeaseGuard> {
        let lease = self.find_lease(&self.lease_key(call), call)?;
        let mut release_on_drop = ReleaseOnDrop(Some(Arc::clone(&lease)));
        let connection = lease.open_connection()?;
        if call.level.is_some_and(|level| self.supports_logging() && lease.lock().log_level != Some(level)) {
            return None;
        }
        release_on_drop.0 = None;
        Some(LeaseGuard::exclusive(connection, lease, self.in_flight_guard()))
    }

    /// Where to save the client's upstream session; only sessions over HTTP can be resumed.
    fn resumption_for(&self, sink: Option<&Arc<dyn ClientSink>>) -> Option<Arc<ResumableSession>> {
        let SpecKind::Target(Target::Url(address)) = &self.spec.kind else { return None };
        ResumableSession::new(&self.spec.name, address, self.spec.settings.revision, sink?)
    }

    /// The identity declared upstream: the client's, with the capabilities that can be bridged.
    fn identity_for(&self, call: &Call) -> ClientIdentity {
        let to = self.state().revision.unwrap_or(Revision::NEWEST_HANDSHAKE);
        let mut capabilities = to_upstream::client_capabilities(&call.client.capabilities, call.client.revision, to);
        if !self.spec.allow_server_requests {
            capabilities = without_server_requests(&capabilities);
        }
        ClientIdentity { capabilities, info: call.client.info.clone().unwrap_or_else(|| self.identity.info.clone()) }
    }

    /// Acquires the caller's lease, opening its connection if necessary.
    pub(super) async fn acquire_lease(
        self: &Arc<Self>,
        call: &Call,
        sink: impl FnOnce() -> Option<Arc<dyn ClientSink>>,
    ) -> Result<LeaseGuard> {
        let key = self.lease_key(call);
        let lease = match self.find_lease(&key, call) {
            Some(lease) => lease,
            None => {
                // Only a server that can be reached is worth the room.
                self.check_reachable()?;
                match self.lease_permit(&key).await {
                    Ok(permit) => self.get_or_create((key, call), sink, permit),
                    // Better a busy lease than none.
                    Err(error) => {
                        let busy = self.leases.lock().get(&key).and_then(|busy| find_reusable(busy, call, true));
                        busy.ok_or(error)?
                    }
                }
            }
        };
        // From here on the lease is released on every path, also when this future is dropped.
        let mut release_on_drop = ReleaseOnDrop(Some(Arc::clone(&lease)));
        let connection = match lease.open_connection() {
            Some(connection) => connection,
            None => match self.open_lease(&lease).await {
                Ok(connection) => connection,
                Err(error) => {
                    self.give_up_unopened(&lease);
                    return Err(error);
                }
            },
        };
        if let Some(level) =
            call.level.filter(|_| self.supports_logging()).filter(|level| lease.lock().log_level != Some(*level))
        {
            lease.lock().log_level = Some(level);
            set_log_level(&connection, level).await;
        }
        release_on_drop.0 = None;
        Ok(LeaseGuard::exclusive(connection, lease, self.in_flight_guard()))
    }

    /// Gives back the room of a lease that could not be opened, unless others wait for it or it has state to replay.
    fn give_up_unopened(&self, lease: &Arc<Lease>) {
        let mut all = self.leases.lock();
        if lease.calls_in_flight.load(Ordering::Acquire) == 1 && !lease.has_followers() {
            self.leases.remove_from(&mut all, lease);
            lease.evicted.cancel();
        }
    }

    fn supports_logging(&self) -> bool {
        self.state().has_capability(Capability::Logging) == Some(true)
    }

    /// Opens the lease's connection, unless another task just did.
    pub(super) async fn open_lease(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<Arc<Connection>> {
        let open_guard = Arc::clone(&lease.open_lock).lock_owned().await;
        if let Some(connection) = lease.open_connection() {
            return Ok(connection);
        }
        if lease.is_closed.load(Ordering::Acquire) {
            return Err(Error::failure(FailureKind::Unreachable, "the client is gone"));
        }
        self.check_not_retired()?;
        self.check_reachable()?;
        // A task of its own holds the lock: a cancelled caller must not leave a half-open connection, and the
        // connection must not be closed before it is open.
        let (leg, opened_lease) = (Arc::clone(self), Arc::clone(lease));
        let revision = self.state().revision;
        let opened = tokio::spawn(async move {
            let _open_guard = open_guard;
            let settings = ConnectionSettings {
                revision: leg.spec.settings.revision.or(revision).or(leg.opening_revision),
                asks_newest_call: opened_lease.hub.is_some(),
                ..leg.spec.settings.clone()
            };
            let (identity, unsolicited, resumable) =
                (opened_lease.identity.clone(), opened_lease.unsolicited.clone(), opened_lease.resumable.clone());
            let opening = Connection::open_with(leg.target()?, settings, identity, unsolicited, resumable);
            let grace = leg.spec.settings.stop_timeout;
            let Some(opened) = supervisor::open_unless_stopped(opening, &leg.stop, grace).await else {
                return Err(Error::failure(FailureKind::Unreachable, "the upstream was removed"));
            };
            let connection = opened?;
            opened_lease.replay_onto(&connection).await;
            opened_lease.connection.send_replace(Some(Arc::clone(&connection)));
            opened_lease.recheck_own_lists();
            if connection.is_resumed() && connection.server().announces_changes() {
                // The lists of a resumed session were only known to the node that had it before.
                opened_lease.mark_lists_changed(&List::ALL);
            }
            Ok(connection)
        });
        opened.await.unwrap_or_else(|_| Err(Error::failure(FailureKind::Broken, "it could not be connected")))
    }

    /// Whether some client's lease has had lists of its own.
    pub fn has_own_lists(&self) -> bool {
        !self.leases.with_own_lists.load().is_empty()
    }

    /// Lists that the client of a call has of its own.
    pub fn own_lists(&self, call: &Call) -> Option<OwnLists> {
        self.has_own_lists().then(|| self.lease_key(call)).and_then(|key| self.own_lists_of(&key))
    }

    /// Whether a session has lists of its own.
    pub fn session_has_own_lists(&self, session: u128) -> bool {
        let own = || self.own_lists_of(&LeaseKey::Session(session));
        self.has_own_lists() && own().is_some_and(|own| own.lists().iter().any(Option::is_some))
    }

    fn own_lists_of(&self, key: &LeaseKey) -> Option<OwnLists> {
        let lease = self.leases.with_own_lists.load().get(key).cloned()?;
        Some(OwnLists { epoch: lease.list_epoch.load(Ordering::Acquire), lease })
    }

    /// Forwards a notification of a client to its upstream session, without waiting for it.
    pub fn forward_notification(&self, session: u128, notification: &Notification) {
        let connection = self.leases.session_lease(session).and_then(|lease| lease.open_connection());
        let Some(connection) = connection else { return };
        // Only method and params are forwarded; other members of the client's message are not.
        let notification = Notification::new(notification.method.clone(), notification.params.clone());
        tokio::spawn(async move {
            if let Err(error) = connection.notify(&notification).await {
                tracing::debug!(%error, "client notification not forwarded");
            }
        });
    }

    /// Sets the log level of one session and replays it on later connections.
    pub async fn set_session_log_level(&self, session: u128, level: Level) {
        let Some(lease) = self.leases.session_lease(session) else { return };
        lease.lock().log_level = Some(level);
        if let Some(connection) = lease.open_connection().filter(|_| self.supports_logging()) {
            // In a task of its own, so that a server that does not answer delays the client by one timeout only.
            let request = tokio::spawn(async move { set_log_level(&connection, level).await });
            let _ = tokio::time::timeout(SET_LEVEL_TIMEOUT, request).await;
        }
    }
}

/// Finds a lease that the call can use and counts it in flight: the client's main lease. Without a session, a call that wants
/// log messages needs a lease to itself unless the connection attributes them to calls, or it `may_share`.
fn find_reusable(leases: &[Arc<Lease>], call: &Call, may_share: bool) -> Option<Arc<Lease>> {
    let needs_idle_lease = call.sink.is_none() && call.level.is_some() && !may_share;
    let is_usable = |lease: &&Arc<Lease>| {
        let is_idle = lease.calls_in_flight.load(Ordering::Acquire) == 0;
        match needs_idle_lease {
            true => is_idle || lease.attributes_server_requests(),
            false => lease.is_main(),
        }
    };
    let lease = leases.iter().find(is_usable)?;
    lease.calls_in_flight.fetch_add(1, Ordering::AcqRel);
    Some(Arc::clone(lease))
}
