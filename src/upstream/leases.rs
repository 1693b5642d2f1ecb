//! Leases: a server that keeps sessions gets one connection per client, so that its notifications and server
//! requests reach the client they are meant for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::lease_guard::{LeaseGuard, ReleaseOnDrop};
use super::lease_key::{LeaseKey, SERVER_REQUEST_CAPABILITIES, accepts_server_requests};
use super::leg::Leg;
use super::lists::{self, CatalogList, List};
use super::spec::SpecKind;
use super::supervisor::{self, back_off};
use crate::call::{Call, ChangeEvent, ClientSink};
use crate::dialect::Revision;
use crate::dialect::to_upstream::{self, ClientIdentity};
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::mcp_client::{Connection, ConnectionSettings, ResumableSession, Target, Unsolicited};
use crate::protocol::method::Capability;
use crate::protocol::{Level, Method, Notification, Raw};
use foldhash::HashMap;

/// All leases of one upstream, bounded by `permits`.
#[derive(Debug)]
pub(super) struct Leases {
    leases: Mutex<HashMap<LeaseKey, Vec<Arc<Lease>>>>,
    permits: Arc<Semaphore>,
    /// Some lease has had lists of its own. Until then no session's lease is looked for when a call needs a view.
    has_own_lists: AtomicBool,
}

/// A connection to the upstream that one client has for itself, reopened when it breaks.
#[derive(Debug)]
pub(super) struct Lease {
    key: LeaseKey,
    identity: ClientIdentity,
    connection: watch::Sender<Option<Arc<Connection>>>,
    /// Serializes opening: one task connects, the others wait for it.
    open_lock: Arc<tokio::sync::Mutex<()>>,
    /// The client is gone; the lease must not be opened again.
    is_closed: AtomicBool,
    /// Wakes the maintenance loop.
    maintenance_due: Notify,
    unsolicited: mpsc::Sender<Unsolicited>,
    /// Where the upstream session is saved so that another node can resume it.
    resumable: Option<Arc<ResumableSession>>,
    /// Calls that use the lease now.
    calls_in_flight: AtomicUsize,
    replay_state: Mutex<ReplayState>,
    /// Incremented whenever `own_lists` changes; 0 while the client sees only the shared catalog.
    list_epoch: AtomicU64,
    _permit: OwnedSemaphorePermit,
}

/// State that is replayed on a new connection, and the lists that only this lease has.
#[derive(Debug)]
pub(super) struct ReplayState {
    last_used: Instant,
    log_level: Option<Level>,
    pub(super) subscriptions: BTreeSet<Box<str>>,
    /// Lists that differ from the shared catalog on this connection.
    own_lists: [Option<Arc<CatalogList>>; List::ALL.len()],
    /// Lists announced as changed and not read again yet.
    changed_lists: [bool; List::ALL.len()],
    /// The server started a new session, so log level and subscriptions have to be replayed.
    session_lost: bool,
}

/// Queue bound for notifications and server requests on one lease.
const MAX_QUEUED_LEASE_MESSAGES: usize = 256;
/// Delay between a list-changed notification on a lease and comparing its list with the catalog, which usually
/// gets the same notification and has re-read its list by then.
const LIST_COMPARE_DELAY: Duration = Duration::from_millis(400);
/// How long `logging/setLevel` waits for one server before the client is answered.
const SET_LEVEL_TIMEOUT: Duration = Duration::from_secs(1);

// === impl Leases ===

impl Leases {
    pub(super) fn new(max_leases: usize) -> Self {
        Self {
            leases: Mutex::default(),
            permits: Arc::new(Semaphore::new(max_leases)),
            has_own_lists: AtomicBool::new(false),
        }
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

    fn session_lease(&self, key: u128) -> Option<Arc<Lease>> {
        self.lock().get(&LeaseKey::Session(key)).and_then(|leases| leases.first()).cloned()
    }

    /// Removes a lease. Without `force` it stays, and false is returned, while calls use it.
    fn remove(&self, lease: &Arc<Lease>, force: bool) -> bool {
        let mut all = self.lock();
        if !force && lease.calls_in_flight.load(Ordering::Acquire) > 0 {
            return false;
        }
        if let Some(key_leases) = all.get_mut(&lease.key) {
            key_leases.retain(|other| !Arc::ptr_eq(other, lease));
            if key_leases.is_empty() {
                all.remove(&lease.key);
            }
        }
        true
    }
}

// === impl Leg ===

impl Leg {
    /// Finds or creates the caller's lease and counts one call in flight on it.
    fn get_or_create(
        self: &Arc<Self>,
        call: &Call,
        sink: impl FnOnce() -> Option<Arc<dyn ClientSink>>,
    ) -> Result<Arc<Lease>> {
        let key = LeaseKey::for_call(call);
        let mut all = self.leases.lock();
        let key_leases = all.entry(key.clone()).or_default();
        if let Some(lease) = find_reusable(key_leases, call) {
            return Ok(lease);
        }
        let Ok(permit) = Arc::clone(&self.leases.permits).try_acquire_owned() else {
            if key_leases.is_empty() {
                all.remove(&key);
            }
            let max_leases = self.spec.max_leases;
            return Err(Error::failure(
                FailureKind::LimitReached,
                format!("all {max_leases} leases of the upstream are in use"),
            ));
        };
        let (unsolicited, receiver) = mpsc::channel(MAX_QUEUED_LEASE_MESSAGES);
        let sink = sink();
        let lease = Arc::new(Lease {
            key,
            identity: self.identity_for(call),
            connection: watch::Sender::new(None),
            open_lock: Arc::default(),
            is_closed: AtomicBool::new(false),
            maintenance_due: Notify::new(),
            unsolicited,
            resumable: self.resumption_for(sink.as_ref()),
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
        Ok(lease)
    }

    /// Acquires the caller's lease without waiting: only if it is open and has the call's log level already.
    pub(super) fn try_acquire_lease(&self, call: &Call) -> Option<LeaseGuard> {
        let lease = find_reusable(self.leases.lock().get(&LeaseKey::for_call(call))?, call)?;
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
            capabilities =
                SERVER_REQUEST_CAPABILITIES.iter().fold(capabilities, |left, kind| left.edit().remove(*kind).finish());
        }
        ClientIdentity { capabilities, info: call.client.info.clone().unwrap_or_else(|| self.identity.info.clone()) }
    }

    /// Acquires the caller's lease, opening its connection if necessary.
    pub(super) async fn acquire_lease(
        self: &Arc<Self>,
        call: &Call,
        sink: impl FnOnce() -> Option<Arc<dyn ClientSink>>,
    ) -> Result<LeaseGuard> {
        let lease = self.get_or_create(call, sink)?;
        // From here on the lease is released on every path, also when this future is dropped.
        let mut release_on_drop = ReleaseOnDrop(Some(Arc::clone(&lease)));
        let connection = match lease.open_connection() {
            Some(connection) => connection,
            None => self.open_lease(&lease).await?,
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

    fn supports_logging(&self) -> bool {
        self.state().has_capability(Capability::Logging) == Some(true)
    }

    /// Opens the lease's connection, unless another task just did.
    async fn open_lease(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<Arc<Connection>> {
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

    /// Runs a lease until its client is gone, then removes it and closes its connection.
    async fn run_lease(
        self: Arc<Self>,
        lease: Arc<Lease>,
        mut receiver: mpsc::Receiver<Unsolicited>,
        sink: Option<Arc<dyn ClientSink>>,
    ) {
        self.serve_lease(&lease, &mut receiver, sink.as_ref()).await;
        self.leases.remove(&lease, true);
        lease.is_closed.store(true, Ordering::Release);
        // Wait for a connection that is being opened, so that it is closed as well.
        let _open_guard = lease.open_lock.lock().await;
        let connection = lease.connection.send_replace(None);
        if let Some(connection) = connection {
            connection.close().await;
        }
    }

    /// Forwards unsolicited messages to the client until the client or the upstream is gone. Maintenance is dropped
    /// on return, so nothing is sent while the connection is being closed.
    async fn serve_lease(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        receiver: &mut mpsc::Receiver<Unsolicited>,
        sink: Option<&Arc<dyn ClientSink>>,
    ) {
        let mut connections = lease.connection.subscribe();
        let client_gone = async {
            match sink {
                Some(sink) => sink.ended().cancelled().await,
                None => self.wait_idle(lease).await,
            }
        };
        let maintenance = self.run_maintenance(lease, sink);
        tokio::pin!(client_gone, maintenance);
        loop {
            let connection = connections.borrow_and_update().clone();
            let connection_lost = async {
                match &connection {
                    Some(connection) => connection.closed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut client_gone => break,
                () = self.stop.cancelled() => break,
                () = &mut maintenance => {}
                _ = connections.changed() => {}
                reason = connection_lost => {
                    tracing::info!(upstream = %self.spec.name, %reason, "lease connection lost");
                    lease.connection.send_replace(None);
                    if let Some(connection) = connection {
                        connection.close().await;
                    }
                    self.tasks.spawn(Arc::clone(self).reconnect(Arc::clone(lease), sink.cloned()));
                }
                Some(message) = receiver.recv() => lease.on_unsolicited(message, sink),
            }
        }
    }

    /// Completes once the lease has been idle for `lease_idle_timeout` and was removed.
    async fn wait_idle(&self, lease: &Arc<Lease>) {
        loop {
            let end = lease.lock().last_used + self.spec.lease_idle_timeout;
            tokio::time::sleep_until(end).await;
            let is_idle = lease.lock().last_used + self.spec.lease_idle_timeout <= Instant::now();
            if is_idle && self.leases.remove(lease, false) {
                return;
            }
            if is_idle {
                lease.lock().last_used = Instant::now();
            }
        }
    }

    /// Reopens a broken connection with back-off for as long as its client has subscriptions.
    async fn reconnect(self: Arc<Self>, lease: Arc<Lease>, sink: Option<Arc<dyn ClientSink>>) {
        let Some(sink) = sink else { return };
        let mut failures = 0;
        while !lease.lock().subscriptions.is_empty() {
            failures += 1;
            tokio::select! {
                () = tokio::time::sleep(back_off(failures)) => {}
                () = sink.ended().cancelled() => return,
                () = self.stop.cancelled() => return,
            }
            if self.open_lease(&lease).await.is_ok() {
                return lease.notify_missed_updates(Some(&sink));
            }
        }
    }

    /// Replays state and re-reads lists, outside the loop that forwards messages. Never returns.
    async fn run_maintenance(&self, lease: &Lease, sink: Option<&Arc<dyn ClientSink>>) {
        loop {
            lease.maintenance_due.notified().await;
            let session_lost = std::mem::take(&mut lease.lock().session_lost);
            if let Some(connection) = lease.open_connection().filter(|_| session_lost) {
                lease.replay_onto(&connection).await;
                lease.notify_missed_updates(sink);
            }
            if lease.lock().changed_lists == [false; List::ALL.len()] {
                continue;
            }
            tokio::time::sleep(LIST_COMPARE_DELAY).await;
            let changed = std::mem::take(&mut lease.lock().changed_lists);
            if sink.is_none() {
                // Callers without a session see the shared catalog, so it has to re-read the list.
                let lists: Vec<List> = List::ALL.into_iter().filter(|list| changed[*list as usize]).collect();
                self.shared.report_list_changes(&lists);
                continue;
            }
            let Some(connection) = lease.open_connection() else { continue };
            let mut changes = Vec::new();
            for list in List::ALL.into_iter().filter(|list| changed[*list as usize]) {
                if self.refresh_own_list(lease, &connection, list).await {
                    changes.push(list.change_event());
                }
            }
            changes.dedup();
            for change in changes {
                if let Some(sink) = sink {
                    sink.notify(change.notification());
                }
            }
        }
    }

    /// Re-reads a list that was announced as changed; true when it differs from what its client has seen.
    async fn refresh_own_list(&self, lease: &Lease, connection: &Arc<Connection>, list: List) -> bool {
        let Ok(listed) = lists::read_all_pages(connection, list).await else { return false };
        let shared = self.state().list(list).cloned();
        let is_same =
            |other: &Option<Arc<CatalogList>>| other.as_ref().is_some_and(|other| other.items == listed.items);
        let is_shared = is_same(&shared);
        let mut replay_state = lease.lock();
        let own = &mut replay_state.own_lists[list as usize];
        // A list equal to the shared one is announced by the catalog.
        let differs = if own.is_some() { !is_same(own) } else { !is_shared };
        let before = std::mem::replace(own, (!is_shared).then(|| Arc::new(listed)));
        if before.is_some() || own.is_some() {
            lease.list_epoch.fetch_add(1, Ordering::AcqRel);
            self.leases.has_own_lists.store(true, Ordering::Release);
        }
        differs
    }

    /// Lists that one session has of its own, with an epoch that changes whenever they do.
    pub fn session_lists(&self, session: u128) -> Option<(u64, [Option<Arc<CatalogList>>; List::ALL.len()])> {
        if !self.leases.has_own_lists.load(Ordering::Acquire) {
            return None;
        }
        let lease = self.leases.session_lease(session)?;
        match lease.list_epoch.load(Ordering::Acquire) {
            0 => None,
            list_epoch => Some((list_epoch, lease.lock().own_lists.clone())),
        }
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

async fn set_log_level(connection: &Arc<Connection>, level: Level) {
    let params = Raw::of(&json!({ "level": level.as_str() }));
    if let Err(error) = connection.request(Method::SetLevel, Some(params)).await {
        tracing::debug!(%error, "logging/setLevel failed");
    }
}

/// Finds a lease that the call can use and counts it in flight. Without a session, a call that can get server
/// requests or log messages needs a lease to itself unless the connection attributes them to calls.
fn find_reusable(leases: &[Arc<Lease>], call: &Call) -> Option<Arc<Lease>> {
    let needs_idle_lease =
        call.sink.is_none() && (call.level.is_some() || accepts_server_requests(&call.client.capabilities));
    let is_usable = |lease: &&Arc<Lease>| {
        !needs_idle_lease || lease.calls_in_flight.load(Ordering::Acquire) == 0 || lease.attributes_server_requests()
    };
    let lease = leases.iter().find(is_usable)?;
    lease.calls_in_flight.fetch_add(1, Ordering::AcqRel);
    Some(Arc::clone(lease))
}

// === impl Lease ===

impl Lease {
    pub(super) fn lock(&self) -> MutexGuard<'_, ReplayState> {
        self.replay_state.lock()
    }

    fn open_connection(&self) -> Option<Arc<Connection>> {
        self.connection.borrow().clone().filter(|connection| !connection.is_closed())
    }

    fn attributes_server_requests(&self) -> bool {
        self.connection.borrow().as_ref().is_some_and(|connection| connection.attributes_server_requests())
    }

    /// Forwards a notification or server request to the client. Never blocks.
    fn on_unsolicited(&self, message: Unsolicited, sink: Option<&Arc<dyn ClientSink>>) {
        match message {
            Unsolicited::ServerRequest(question) => match sink {
                Some(sink) => Arc::clone(sink).send_request(question),
                None => question.abandon(),
            },
            Unsolicited::Notification(notification) => {
                let lists = List::changed_by(&notification.method);
                if !lists.is_empty() {
                    return self.mark_lists_changed(lists);
                }
                if let Some(sink) = sink {
                    sink.notify(notification);
                }
            }
            Unsolicited::SessionReopened => {
                self.lock().session_lost = true;
                self.recheck_own_lists();
            }
            Unsolicited::Missed => {
                self.notify_missed_updates(sink);
                self.recheck_own_lists();
            }
        }
    }

    fn mark_lists_changed(&self, lists: &[List]) {
        let mut replay_state = self.lock();
        for list in lists {
            replay_state.changed_lists[*list as usize] = true;
        }
        drop(replay_state);
        self.maintenance_due.notify_one();
    }

    /// Reports every subscribed resource as updated: updates during the gap were lost.
    fn notify_missed_updates(&self, sink: Option<&Arc<dyn ClientSink>>) {
        let missed: Vec<Box<str>> = self.lock().subscriptions.iter().cloned().collect();
        for (uri, sink) in missed.iter().zip(std::iter::repeat(sink).flatten()) {
            sink.notify(ChangeEvent::ResourceUpdated(uri.as_ref().into()).notification());
        }
    }

    /// Marks own lists for a re-read: a new connection may not have them any more.
    fn recheck_own_lists(&self) {
        let has_own = |list: &List| self.lock().own_lists[*list as usize].is_some();
        let own: Vec<List> = List::ALL.into_iter().filter(has_own).collect();
        self.mark_lists_changed(&own);
    }

    /// Replays log level and subscriptions on a new connection.
    async fn replay_onto(&self, connection: &Arc<Connection>) {
        let (level, subscriptions) = {
            let replay_state = self.lock();
            (replay_state.log_level, replay_state.subscriptions.clone())
        };
        if let Some(level) = level {
            set_log_level(connection, level).await;
        }
        for uri in subscriptions {
            let params = Raw::of(&json!({ "uri": uri }));
            if let Err(error) = connection.request(Method::Subscribe, Some(params)).await {
                tracing::debug!(%error, "subscription replay failed");
            }
        }
    }

    pub(super) fn release(&self) {
        self.lock().last_used = Instant::now();
        self.calls_in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}
