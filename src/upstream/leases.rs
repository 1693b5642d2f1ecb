//! Connections that are lent to clients: a server that keeps sessions gets one for each client, so
//! that what it says and asks reaches the right one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::Upstream;
use super::lease_guard::{LeaseGuard, ReleaseOnDrop};
use super::lists::{self, List, Listed};
use super::spec::SpecKind;
use super::supervisor::{self, back_off};
use crate::call::{Call, ChangeEvent, ClientSink, Principal};
use crate::dialect::Revision;
use crate::dialect::to_upstream::{self, ClientIdentity};
use crate::error::{Error, ErrorKind, Result};
use crate::mcp_client::{Connection, ConnectionSettings, ResumableSession, Target, Unsolicited};
use crate::protocol::method::Family;
use crate::protocol::{Level, Method, Notification, Raw};
use foldhash::HashMap;

/// Whom a connection is lent to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum LeaseKey {
    /// A session.
    Session(u128),
    /// Whoever calls without a session, as long as they are the same and can do the same.
    Caller(Principal, Bytes),
}

/// All connections of one upstream that are lent.
#[derive(Debug)]
pub(super) struct Leases {
    lent: Mutex<HashMap<LeaseKey, Vec<Arc<Lease>>>>,
    permits: Arc<Semaphore>,
}

/// A connection that is lent.
#[derive(Debug)]
pub(super) struct Lease {
    lessee: LeaseKey,
    speaker: ClientIdentity,
    connection: watch::Sender<Option<Arc<Connection>>>,
    /// Held while it is opened, so that one does it and the others wait.
    opening: Arc<tokio::sync::Mutex<()>>,
    /// Its client is gone, and nothing may be opened for it any more.
    over: AtomicBool,
    /// Told when something is to be done that takes time.
    chores: Notify,
    said: mpsc::Sender<Unsolicited>,
    /// Where its session is written down, if another node could go on with it.
    resumable: Option<Arc<ResumableSession>>,
    /// How many calls use it.
    running: AtomicUsize,
    memory: Mutex<ReplayState>,
    /// Counts what becomes of the lists of its own.
    epoch: AtomicU64,
    _permit: OwnedSemaphorePermit,
}

/// What a new connection has to be told that the one before knew.
#[derive(Debug)]
pub(super) struct ReplayState {
    used: Instant,
    level: Option<Level>,
    pub(super) subscriptions: BTreeSet<Box<str>>,
    /// The lists that are others on this connection than elsewhere.
    own: [Option<Arc<Listed>>; List::ALL.len()],
    /// The lists that have to be looked at.
    changed: [bool; List::ALL.len()],
    /// The server has forgotten what it knew.
    forgotten: bool,
}

/// How many things that a server says by itself may wait.
const SAID_WAITING: usize = 256;
/// How long after a change the lists of one client are compared with those of the catalog, which
/// hears of most changes, too, and has read its lists again by then.
const SETTLE: Duration = Duration::from_millis(400);
/// How long one who chooses what is logged waits for each server to know.
const LEVEL_PATIENCE: Duration = Duration::from_secs(1);

// === impl Lending ===

impl Leases {
    pub(super) fn new(most: usize) -> Self {
        Self { lent: Mutex::default(), permits: Arc::new(Semaphore::new(most)) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LeaseKey, Vec<Arc<Lease>>>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are lent.
    pub(super) fn count(&self) -> usize {
        self.lock().values().map(Vec::len).sum()
    }

    /// Nobody shall go on with what is lent here.
    pub(super) fn retire(&self) {
        let lent: Vec<Arc<Lease>> = self.lock().values().flatten().cloned().collect();
        for notebook in lent.iter().filter_map(|lent| lent.resumable.as_ref()) {
            notebook.retire();
        }
    }

    fn of_session(&self, key: u128) -> Option<Arc<Lease>> {
        self.lock().get(&LeaseKey::Session(key)).and_then(|all| all.first()).cloned()
    }

    /// Takes one out of the books, unless somebody uses it and it is not `over`.
    fn remove(&self, lent: &Arc<Lease>, over: bool) -> bool {
        let mut all = self.lock();
        if !over && lent.running.load(Ordering::Acquire) > 0 {
            return false;
        }
        if let Some(same) = all.get_mut(&lent.lessee) {
            same.retain(|other| !Arc::ptr_eq(other, lent));
            if same.is_empty() {
                all.remove(&lent.lessee);
            }
        }
        true
    }
}

// === impl Upstream ===

impl Upstream {
    /// The connection that was lent to the caller, counted as in use; a new one where there is none.
    fn get_or_create(
        self: &Arc<Self>,
        call: &Call,
        sink: impl FnOnce() -> Option<Arc<dyn ClientSink>>,
    ) -> Result<Arc<Lease>> {
        let lessee = LeaseKey::of(call);
        let mut all = self.leases.lock();
        let same = all.entry(lessee.clone()).or_default();
        if let Some(lent) = find_reusable(same, call) {
            return Ok(lent);
        }
        let Ok(permit) = Arc::clone(&self.leases.permits).try_acquire_owned() else {
            if same.is_empty() {
                all.remove(&lessee);
            }
            let most = self.spec.max_leases;
            return Err(Error::new(ErrorKind::Unreachable, format!("all its {most} connections are in use")));
        };
        let (said, heard) = mpsc::channel(SAID_WAITING);
        let sink = sink();
        let lent = Arc::new(Lease {
            lessee,
            speaker: self.identity_for(call),
            connection: watch::Sender::new(None),
            opening: Arc::default(),
            over: AtomicBool::new(false),
            chores: Notify::new(),
            said,
            resumable: self.resumption_for(sink.as_ref()),
            running: AtomicUsize::new(1),
            memory: Mutex::new(ReplayState {
                used: Instant::now(),
                level: None,
                subscriptions: BTreeSet::new(),
                own: Default::default(),
                changed: Default::default(),
                forgotten: false,
            }),
            epoch: AtomicU64::new(0),
            _permit: permit,
        });
        same.push(Arc::clone(&lent));
        drop(all);
        self.tasks.spawn(Arc::clone(self).run_lease(Arc::clone(&lent), heard, sink));
        Ok(lent)
    }

    /// A connection of the caller's own, where one is open and the server has to be told nothing first.
    pub(super) fn try_acquire_lease(&self, call: &Call) -> Option<LeaseGuard> {
        let lent = find_reusable(self.leases.lock().get(&LeaseKey::of(call))?, call)?;
        let mut claim = ReleaseOnDrop(Some(Arc::clone(&lent)));
        let connection = lent.open_connection()?;
        if call.level.is_some_and(|level| self.logs() && lent.lock().level != Some(level)) {
            return None;
        }
        claim.0 = None;
        Some(LeaseGuard::own(connection, lent, self.in_flight_guard()))
    }

    /// Where the session of a client is saved, where the server is of a kind whose sessions can be resumed.
    fn resumption_for(&self, sink: Option<&Arc<dyn ClientSink>>) -> Option<Arc<ResumableSession>> {
        let SpecKind::Target(Target::Url(address)) = &self.spec.kind else { return None };
        ResumableSession::new(&self.spec.name, address, self.spec.settings.revision, sink?)
    }

    /// Who a server is to think that it speaks with: the client, with what we can pass on for it.
    fn identity_for(&self, call: &Call) -> ClientIdentity {
        let to = self.state().revision.unwrap_or(Revision::NEWEST_HANDSHAKE);
        let mut capabilities = to_upstream::capabilities(&call.client.capabilities, call.client.revision, to);
        if !self.spec.allow_server_requests {
            capabilities = QUESTIONS.iter().fold(capabilities, |left, kind| left.edit().remove(*kind).finish());
        }
        ClientIdentity { capabilities, info: call.client.info.clone().unwrap_or_else(|| self.identity.info.clone()) }
    }

    /// A connection of the caller's own to a server that keeps sessions.
    pub(super) async fn acquire_lease(
        self: &Arc<Self>,
        call: &Call,
        sink: impl FnOnce() -> Option<Arc<dyn ClientSink>>,
    ) -> Result<LeaseGuard> {
        let lent = self.get_or_create(call, sink)?;
        // From here on it is given back, whatever happens.
        let mut claim = ReleaseOnDrop(Some(Arc::clone(&lent)));
        let connection = match lent.open_connection() {
            Some(connection) => connection,
            None => self.open(&lent).await?,
        };
        if let Some(level) = call.level.filter(|_| self.logs()).filter(|level| lent.lock().level != Some(*level)) {
            lent.lock().level = Some(level);
            set_log_level(&connection, level).await;
        }
        claim.0 = None;
        Ok(LeaseGuard::own(connection, lent, self.in_flight_guard()))
    }

    fn logs(&self) -> bool {
        self.state().offers(Family::Logging) == Some(true)
    }

    /// Opens the connection, unless somebody else just did.
    async fn open(self: &Arc<Self>, lent: &Arc<Lease>) -> Result<Arc<Connection>> {
        let opening = Arc::clone(&lent.opening).lock_owned().await;
        if let Some(connection) = lent.open_connection() {
            return Ok(connection);
        }
        if lent.over.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Unreachable, "the client is gone"));
        }
        self.check_wanted()?;
        self.check_reachable()?;
        // In a task of its own, which holds the lock: a caller that goes away must not leave it half
        // done, nor may it be closed before it is open.
        let (upstream, lent_too) = (Arc::clone(self), Arc::clone(lent));
        let revision = self.state().revision;
        let opened = tokio::spawn(async move {
            let _opening = opening;
            let settings = ConnectionSettings {
                revision: upstream.spec.settings.revision.or(revision),
                ..upstream.spec.settings.clone()
            };
            let (speaker, said, notebook) =
                (lent_too.speaker.clone(), lent_too.said.clone(), lent_too.resumable.clone());
            let opening = Connection::open_with(upstream.target()?, settings, speaker, said, notebook);
            let grace = upstream.spec.settings.stop_timeout;
            let Some(opened) = supervisor::opened(opening, &upstream.stop, grace).await else {
                return Err(Error::new(ErrorKind::Unreachable, "the upstream was removed"));
            };
            let connection = opened?;
            lent_too.renew(&connection).await;
            lent_too.connection.send_replace(Some(Arc::clone(&connection)));
            lent_too.look_again();
            if connection.is_resumed() && connection.server().tells_of_changes() {
                // What the session has of its own was seen only where it was before.
                lent_too.note_changed(&List::ALL);
            }
            Ok(connection)
        });
        opened.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Broken, "it could not be connected")))
    }

    /// Hears what a server says to one client, and lets the connection go with the client.
    async fn run_lease(
        self: Arc<Self>,
        lent: Arc<Lease>,
        mut heard: mpsc::Receiver<Unsolicited>,
        sink: Option<Arc<dyn ClientSink>>,
    ) {
        self.attend(&lent, &mut heard, sink.as_ref()).await;
        self.leases.remove(&lent, true);
        lent.over.store(true, Ordering::Release);
        // A connection that is being opened just now has to be closed, too.
        let _opening = lent.opening.lock().await;
        let connection = lent.connection.send_replace(None);
        if let Some(connection) = connection {
            connection.close().await;
        }
    }

    /// Hears what a server says to one client, until the client is gone or the upstream is. What it was doing is
    /// dropped at its end, so that nothing is sent from here once the connection is being closed.
    async fn attend(
        self: &Arc<Self>,
        lent: &Arc<Lease>,
        heard: &mut mpsc::Receiver<Unsolicited>,
        sink: Option<&Arc<dyn ClientSink>>,
    ) {
        let mut connections = lent.connection.subscribe();
        let gone = async {
            match sink {
                Some(sink) => sink.ended().cancelled().await,
                None => self.idle(lent).await,
            }
        };
        let chores = self.run_chores(lent, sink);
        tokio::pin!(gone, chores);
        loop {
            let connection = connections.borrow_and_update().clone();
            let broke = async {
                match &connection {
                    Some(connection) => connection.closed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut gone => break,
                () = self.stop.cancelled() => break,
                () = &mut chores => {}
                _ = connections.changed() => {}
                why = broke => {
                    tracing::info!(upstream = %self.spec.name, %why, "a connection of a client is lost");
                    lent.connection.send_replace(None);
                    if let Some(connection) = connection {
                        connection.close().await;
                    }
                    self.tasks.spawn(Arc::clone(self).reconnect(Arc::clone(lent), sink.cloned()));
                }
                Some(said) = heard.recv() => lent.on_unsolicited(said, sink),
            }
        }
    }

    /// Ends when nobody has used the connection for a while.
    async fn idle(&self, lent: &Arc<Lease>) {
        loop {
            let end = lent.lock().used + self.spec.lease_idle_timeout;
            tokio::time::sleep_until(end).await;
            let unused = lent.lock().used + self.spec.lease_idle_timeout <= Instant::now();
            if unused && self.leases.remove(lent, false) {
                return;
            }
            if unused {
                lent.lock().used = Instant::now();
            }
        }
    }

    /// Opens a connection that broke anew where somebody listens on it.
    async fn reconnect(self: Arc<Self>, lent: Arc<Lease>, sink: Option<Arc<dyn ClientSink>>) {
        let Some(sink) = sink else { return };
        let mut failures = 0;
        while !lent.lock().subscriptions.is_empty() {
            failures += 1;
            tokio::select! {
                () = tokio::time::sleep(back_off(failures)) => {}
                () = sink.ended().cancelled() => return,
                () = self.stop.cancelled() => return,
            }
            if self.open(&lent).await.is_ok() {
                return lent.tell_missed(Some(&sink));
            }
        }
    }

    /// Does what takes time, so that it holds up nothing that the server says. Never ends.
    async fn run_chores(&self, lent: &Lease, sink: Option<&Arc<dyn ClientSink>>) {
        loop {
            lent.chores.notified().await;
            let forgotten = std::mem::take(&mut lent.lock().forgotten);
            if let Some(connection) = lent.open_connection().filter(|_| forgotten) {
                lent.renew(&connection).await;
                lent.tell_missed(sink);
            }
            if lent.lock().changed == [false; List::ALL.len()] {
                continue;
            }
            tokio::time::sleep(SETTLE).await;
            let changed = std::mem::take(&mut lent.lock().changed);
            if sink.is_none() {
                // Nobody has a session here: what one caller has changed, all see.
                let lists: Vec<List> = List::ALL.into_iter().filter(|list| changed[*list as usize]).collect();
                self.shared.announce(&lists);
                continue;
            }
            let Some(connection) = lent.open_connection() else { continue };
            let mut changes = Vec::new();
            for list in List::ALL.into_iter().filter(|list| changed[*list as usize]) {
                if self.read_own(lent, &connection, list).await {
                    changes.push(list.change());
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

    /// Reads a list that a connection has said to be another now; true when it is another than its
    /// client has seen.
    async fn read_own(&self, lent: &Lease, connection: &Arc<Connection>, list: List) -> bool {
        let Ok(listed) = lists::read(connection, list).await else { return false };
        let shared = self.state().list(list).cloned();
        let same = |other: &Option<Arc<Listed>>| other.as_ref().is_some_and(|other| other.items == listed.items);
        let is_shared = same(&shared);
        let mut memory = lent.lock();
        let own = &mut memory.own[list as usize];
        // Everybody hears from the catalog what everybody sees.
        let differs = if own.is_some() { !same(own) } else { !is_shared };
        let before = std::mem::replace(own, (!is_shared).then(|| Arc::new(listed)));
        if before.is_some() || own.is_some() {
            lent.epoch.fetch_add(1, Ordering::AcqRel);
        }
        differs
    }

    /// The lists that one session has of its own, and a number that changes when they do.
    pub fn own_lists(&self, session: u128) -> Option<(u64, [Option<Arc<Listed>>; List::ALL.len()])> {
        let lent = self.leases.of_session(session)?;
        match lent.epoch.load(Ordering::Acquire) {
            0 => None,
            epoch => Some((epoch, lent.lock().own.clone())),
        }
    }

    /// Passes on to the server what a client tells.
    pub fn forward_notification(&self, session: u128, notification: &Notification) {
        let connection = self.leases.of_session(session).and_then(|lent| lent.open_connection());
        let Some(connection) = connection else { return };
        // What else a client writes beside the method and its parameters is not for the server.
        let notification = Notification::new(notification.notice.clone(), notification.params.clone());
        tokio::spawn(async move {
            if let Err(error) = connection.notify(&notification).await {
                tracing::debug!(%error, "a notice of a client was not taken");
            }
        });
    }

    /// A session chooses what is logged to it.
    pub async fn set_level(&self, session: u128, level: Level) {
        let Some(lent) = self.leases.of_session(session) else { return };
        lent.lock().level = Some(level);
        if let Some(connection) = lent.open_connection().filter(|_| self.logs()) {
            // In a task of its own: one that does not answer holds up nobody for long.
            let chosen = tokio::spawn(async move { set_log_level(&connection, level).await });
            let _ = tokio::time::timeout(LEVEL_PATIENCE, chosen).await;
        }
    }
}

async fn set_log_level(connection: &Arc<Connection>, level: Level) {
    let params = Raw::of(&json!({ "level": level.as_str() }));
    if let Err(error) = connection.request(Method::SetLevel, Some(params)).await {
        tracing::debug!(%error, "the level of log messages was not chosen");
    }
}

/// What a server may ask a client, by the capability that says so.
pub const QUESTIONS: [&str; 3] = ["sampling", "elicitation", "roots"];

/// Whether a client can be asked anything.
fn asks(capabilities: &Raw) -> bool {
    QUESTIONS.iter().any(|kind| capabilities.get(kind).is_some())
}

// === impl Lessee ===

impl LeaseKey {
    fn of(call: &Call) -> Self {
        match &call.sink {
            Some(sink) => Self::Session(sink.key()),
            None => Self::Caller(call.caller.principal.clone(), call.client.capabilities.bytes()),
        }
    }
}

/// One of the connections of a caller that a call can use, counted as in use. Without a session only one
/// call at a time can be told what the server asks or logs.
fn find_reusable(all: &[Arc<Lease>], call: &Call) -> Option<Arc<Lease>> {
    let alone = call.sink.is_none() && (call.level.is_some() || asks(&call.client.capabilities));
    let fits = |lent: &&Arc<Lease>| !alone || lent.running.load(Ordering::Acquire) == 0 || lent.attributes();
    let lent = all.iter().find(fits)?;
    lent.running.fetch_add(1, Ordering::AcqRel);
    Some(Arc::clone(lent))
}

// === impl Lent ===

impl Lease {
    pub(super) fn lock(&self) -> MutexGuard<'_, ReplayState> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_connection(&self) -> Option<Arc<Connection>> {
        self.connection.borrow().clone().filter(|connection| !connection.is_closed())
    }

    fn attributes(&self) -> bool {
        self.connection.borrow().as_ref().is_some_and(|connection| connection.attributes_questions())
    }

    /// Takes what a server says by itself. Never waits.
    fn on_unsolicited(&self, said: Unsolicited, sink: Option<&Arc<dyn ClientSink>>) {
        match said {
            Unsolicited::Question(question) => match sink {
                Some(sink) => Arc::clone(sink).ask(question),
                None => question.abandon(),
            },
            Unsolicited::Notice(notification) => {
                let lists = List::told_by(&notification.notice);
                if !lists.is_empty() {
                    return self.note_changed(lists);
                }
                if let Some(sink) = sink {
                    sink.notify(notification);
                }
            }
            Unsolicited::Reopened => {
                self.lock().forgotten = true;
                self.look_again();
            }
            Unsolicited::Missed => {
                self.tell_missed(sink);
                self.look_again();
            }
        }
    }

    fn note_changed(&self, lists: &[List]) {
        let mut memory = self.lock();
        for list in lists {
            memory.changed[*list as usize] = true;
        }
        drop(memory);
        self.chores.notify_one();
    }

    /// Tells of every resource that was subscribed to: what happened meanwhile was not told.
    fn tell_missed(&self, sink: Option<&Arc<dyn ClientSink>>) {
        let missed: Vec<Box<str>> = self.lock().subscriptions.iter().cloned().collect();
        for (uri, sink) in missed.iter().zip(std::iter::repeat(sink).flatten()) {
            sink.notify(ChangeEvent::Updated(uri.as_ref().into()).notification());
        }
    }

    /// A new connection need not have the lists of its own that the one before had.
    fn look_again(&self) {
        let has_own = |list: &List| self.lock().own[*list as usize].is_some();
        let own: Vec<List> = List::ALL.into_iter().filter(has_own).collect();
        self.note_changed(&own);
    }

    /// Tells a new connection what the one before knew.
    async fn renew(&self, connection: &Arc<Connection>) {
        let (level, subscriptions) = {
            let memory = self.lock();
            (memory.level, memory.subscriptions.clone())
        };
        if let Some(level) = level {
            set_log_level(connection, level).await;
        }
        for uri in subscriptions {
            let params = Raw::of(&json!({ "uri": uri }));
            if let Err(error) = connection.request(Method::Subscribe, Some(params)).await {
                tracing::debug!(%error, "a subscription was not renewed");
            }
        }
    }

    pub(super) fn give_back(&self) {
        self.lock().used = Instant::now();
        self.running.fetch_sub(1, Ordering::AcqRel);
    }
}
