//! Connections that are lent to clients: a server that keeps sessions gets one for each client, so
//! that what it says and asks reaches the right one.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::lists::{self, List, Listed};
use super::managed::back_off;
use super::{Unsolicited, Upstream};
use crate::dialect::Revision;
use crate::dialect::outgoing::{self, Speaker};
use crate::error::{Error, Kind, Result};
use crate::exchange::{Call, Principal, Question};
use crate::protocol::method::Family;
use crate::protocol::{Level, Method, Notice, Notification, Raw};

/// Where things go that a server says to one client outside of its calls.
pub trait Outlet: fmt::Debug + Send + Sync {
    /// Something happened.
    fn notice(&self, notification: Notification);
    /// Something is asked.
    fn ask(&self, question: Question);
    /// Cancelled when the client is gone.
    fn ended(&self) -> &CancellationToken;
}

/// Whom a connection is lent to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Lessee {
    /// A session.
    Session(u128),
    /// Whoever calls without a session, as long as they are the same and can do the same.
    Caller(Principal, Bytes),
}

/// All connections of one upstream that are lent.
#[derive(Debug)]
pub(super) struct Lending {
    lent: Mutex<HashMap<Lessee, Vec<Arc<Lent>>>>,
    permits: Arc<Semaphore>,
}

/// A connection that is lent.
#[derive(Debug)]
struct Lent {
    lessee: Lessee,
    speaker: Speaker,
    connection: watch::Sender<Option<Arc<Connection>>>,
    /// Held while it is opened, so that one does it and the others wait.
    opening: tokio::sync::Mutex<()>,
    said: mpsc::Sender<Unsolicited>,
    /// How many calls use it.
    running: AtomicUsize,
    memory: Mutex<Memory>,
    /// Counts what becomes of the lists of its own.
    epoch: AtomicU64,
    _permit: OwnedSemaphorePermit,
}

/// What a new connection has to be told that the one before knew.
#[derive(Debug)]
struct Memory {
    used: Instant,
    level: Option<Level>,
    subscriptions: BTreeSet<Box<str>>,
    /// The lists that this connection has said to be others.
    own: [Option<Arc<Listed>>; List::ALL.len()],
}

/// A connection in use. Dropping it gives it back.
#[derive(Debug)]
pub struct Borrowed {
    connection: Arc<Connection>,
    lent: Option<Arc<Lent>>,
    _busy: Busy,
}

/// Counts the calls at work.
#[derive(Debug)]
pub(super) struct Busy(Arc<AtomicUsize>);

/// How many things that a server says by itself may wait.
const SAID_WAITING: usize = 256;

// === impl Lending ===

impl Lending {
    pub(super) fn new(most: usize) -> Self {
        Self { lent: Mutex::default(), permits: Arc::new(Semaphore::new(most)) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Lessee, Vec<Arc<Lent>>>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are lent.
    pub(super) fn count(&self) -> usize {
        self.lock().values().map(Vec::len).sum()
    }

    fn of_session(&self, key: u128) -> Option<Arc<Lent>> {
        self.lock().get(&Lessee::Session(key)).and_then(|all| all.first()).cloned()
    }

    /// Takes one out of the books, unless somebody uses it and it is not `over`.
    fn remove(&self, lent: &Arc<Lent>, over: bool) -> bool {
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
    fn lend(self: &Arc<Self>, call: &Call, outlet: impl FnOnce() -> Option<Arc<dyn Outlet>>) -> Result<Arc<Lent>> {
        let lessee = match &call.audience {
            Some(audience) => Lessee::Session(audience.key()),
            None => Lessee::Caller(call.caller.principal.clone(), call.client.capabilities.bytes()),
        };
        // Without a session only one call at a time can be told what the server asks or logs.
        let alone = call.audience.is_none() && (call.level.is_some() || asks(&call.client.capabilities));
        let mut all = self.lending.lock();
        let same = all.entry(lessee.clone()).or_default();
        let fits = |lent: &&Arc<Lent>| !alone || lent.running.load(Ordering::Acquire) == 0 || lent.attributes();
        if let Some(lent) = same.iter().find(fits) {
            lent.running.fetch_add(1, Ordering::AcqRel);
            return Ok(Arc::clone(lent));
        }
        let Ok(permit) = Arc::clone(&self.lending.permits).try_acquire_owned() else {
            if same.is_empty() {
                all.remove(&lessee);
            }
            let most = self.spec.connections;
            return Err(Error::new(Kind::Unreachable, format!("all its {most} connections are in use")));
        };
        let (said, heard) = mpsc::channel(SAID_WAITING);
        let lent = Arc::new(Lent {
            lessee,
            speaker: self.speaker_for(call),
            connection: watch::Sender::new(None),
            opening: tokio::sync::Mutex::default(),
            said,
            running: AtomicUsize::new(1),
            memory: Mutex::new(Memory {
                used: Instant::now(),
                level: None,
                subscriptions: BTreeSet::new(),
                own: Default::default(),
            }),
            epoch: AtomicU64::new(0),
            _permit: permit,
        });
        same.push(Arc::clone(&lent));
        drop(all);
        let outlet = outlet();
        self.tasks.spawn(Arc::clone(self).look_after(Arc::clone(&lent), heard, outlet));
        Ok(lent)
    }

    /// Who a server is to think that it speaks with: the client, with what we can pass on for it.
    fn speaker_for(&self, call: &Call) -> Speaker {
        let to = self.state().revision.unwrap_or(Revision::NEWEST_HANDSHAKE);
        let mut capabilities = outgoing::capabilities(&call.client.capabilities, call.client.revision, to);
        if !self.spec.questions {
            capabilities = QUESTIONS.iter().fold(capabilities, |left, kind| left.edit().remove(*kind).finish());
        }
        Speaker { capabilities, info: call.client.info.clone().unwrap_or_else(|| self.speaker.info.clone()) }
    }

    /// A connection of the caller's own to a server that keeps sessions.
    pub(super) async fn borrow_own(
        self: &Arc<Self>,
        call: &Call,
        outlet: impl FnOnce() -> Option<Arc<dyn Outlet>>,
    ) -> Result<Borrowed> {
        let lent = self.lend(call, outlet)?;
        // From here on it is given back, whatever happens.
        let mut claim = Claim(Some(Arc::clone(&lent)));
        let connection = match lent.open_connection() {
            Some(connection) => connection,
            None => self.open(&lent).await?,
        };
        if let Some(level) = call.level.filter(|_| self.logs()).filter(|level| lent.lock().level != Some(*level)) {
            lent.lock().level = Some(level);
            choose(&connection, level).await;
        }
        claim.0 = None;
        Ok(Borrowed { connection, lent: Some(lent), _busy: self.busy() })
    }

    fn logs(&self) -> bool {
        self.state().offers(Family::Logging) == Some(true)
    }

    /// Opens the connection, unless somebody else just did.
    async fn open(self: &Arc<Self>, lent: &Arc<Lent>) -> Result<Arc<Connection>> {
        let opening = lent.opening.lock().await;
        if let Some(connection) = lent.open_connection() {
            return Ok(connection);
        }
        self.check_wanted()?;
        self.check_reachable()?;
        // In a task of its own: a caller that goes away must not leave it half done.
        let (upstream, lent_too) = (Arc::clone(self), Arc::clone(lent));
        let revision = self.state().revision;
        let opened = tokio::spawn(async move {
            let settings = super::Settings {
                revision: upstream.spec.settings.revision.or(revision),
                ..upstream.spec.settings.clone()
            };
            let target = upstream.target()?;
            let connection =
                Connection::open(target, settings, lent_too.speaker.clone(), lent_too.said.clone()).await?;
            lent_too.renew(&connection).await;
            lent_too.connection.send_replace(Some(Arc::clone(&connection)));
            Ok(connection)
        });
        let opened = opened.await.unwrap_or_else(|_| Err(Error::new(Kind::Broken, "it could not be connected")));
        drop(opening);
        opened
    }

    /// Hears what a server says to one client, and lets the connection go with the client.
    async fn look_after(
        self: Arc<Self>,
        lent: Arc<Lent>,
        mut heard: mpsc::Receiver<Unsolicited>,
        outlet: Option<Arc<dyn Outlet>>,
    ) {
        let mut connections = lent.connection.subscribe();
        let gone = async {
            match &outlet {
                Some(outlet) => outlet.ended().cancelled().await,
                None => self.idle(&lent).await,
            }
        };
        tokio::pin!(gone);
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
                _ = connections.changed() => {}
                why = broke => {
                    tracing::info!(upstream = %self.spec.name, %why, "a connection of a client is lost");
                    lent.connection.send_replace(None);
                    if let Some(connection) = connection {
                        connection.close().await;
                    }
                    self.tasks.spawn(Arc::clone(&self).bring_back(Arc::clone(&lent), outlet.clone()));
                }
                Some(said) = heard.recv() => self.hear(&lent, connection.as_ref(), said, outlet.as_deref()).await,
            }
        }
        self.lending.remove(&lent, true);
        // A connection that is being opened just now has to be closed, too.
        let _opening = lent.opening.lock().await;
        let connection = lent.connection.send_replace(None);
        if let Some(connection) = connection {
            connection.close().await;
        }
    }

    /// Ends when nobody has used the connection for a while.
    async fn idle(&self, lent: &Arc<Lent>) {
        loop {
            let end = lent.lock().used + self.spec.idle;
            tokio::time::sleep_until(end).await;
            let unused = lent.lock().used + self.spec.idle <= Instant::now();
            if unused && self.lending.remove(lent, false) {
                return;
            }
            if unused {
                lent.lock().used = Instant::now();
            }
        }
    }

    /// Opens a connection that broke anew where somebody listens on it.
    async fn bring_back(self: Arc<Self>, lent: Arc<Lent>, outlet: Option<Arc<dyn Outlet>>) {
        let Some(outlet) = outlet else { return };
        let mut failures = 0;
        while !lent.lock().subscriptions.is_empty() {
            failures += 1;
            tokio::select! {
                () = tokio::time::sleep(back_off(failures)) => {}
                () = outlet.ended().cancelled() => return,
                () = self.stop.cancelled() => return,
            }
            if self.open(&lent).await.is_ok() {
                // What happened meanwhile was not told.
                let missed: Vec<Box<str>> = lent.lock().subscriptions.iter().cloned().collect();
                for uri in missed {
                    let params = Raw::of(&json!({ "uri": uri }));
                    outlet.notice(Notification::new(Notice::ResourceUpdated, Some(params)));
                }
                return;
            }
        }
    }

    async fn hear(
        &self,
        lent: &Arc<Lent>,
        connection: Option<&Arc<Connection>>,
        said: Unsolicited,
        outlet: Option<&dyn Outlet>,
    ) {
        match said {
            Unsolicited::Question(question) => match outlet {
                Some(outlet) => outlet.ask(question),
                None => question.abandon(),
            },
            Unsolicited::Notice(notification) => {
                let lists = List::told_by(&notification.notice);
                let Some(outlet) = outlet else {
                    // Nobody has a session here: what one caller has changed, all see.
                    return self.shared.announce(lists);
                };
                let same = match connection.filter(|_| !lists.is_empty()) {
                    Some(connection) => !self.read_own(lent, connection, lists).await,
                    None => false,
                };
                if same {
                    return; // everybody hears of it from the catalog
                }
                outlet.notice(notification);
            }
            Unsolicited::Reopened => {
                if let Some(connection) = connection {
                    lent.renew(connection).await;
                }
            }
        }
    }

    /// Reads the lists that a connection has said to be others now; false when they are what the
    /// catalog has.
    async fn read_own(&self, lent: &Arc<Lent>, connection: &Arc<Connection>, changed: &[List]) -> bool {
        let mut differs = false;
        for list in changed {
            let Ok(listed) = lists::read(connection, *list).await else { continue };
            let shared = self.state().list(*list).cloned();
            let same = shared.is_some_and(|shared| shared.items == listed.items);
            let mut memory = lent.lock();
            let own = &mut memory.own[*list as usize];
            if same && own.is_none() {
                continue;
            }
            differs = true;
            *own = Some(Arc::new(listed));
            drop(memory);
            lent.epoch.fetch_add(1, Ordering::AcqRel);
        }
        differs
    }

    /// The lists that one session has of its own, and a number that changes when they do.
    pub fn own_lists(&self, session: u128) -> Option<(u64, [Option<Arc<Listed>>; List::ALL.len()])> {
        let lent = self.lending.of_session(session)?;
        match lent.epoch.load(Ordering::Acquire) {
            0 => None,
            epoch => Some((epoch, lent.lock().own.clone())),
        }
    }

    /// Passes on to the server what a client tells.
    pub fn tell(&self, session: u128, notification: &Notification) {
        let connection = self.lending.of_session(session).and_then(|lent| lent.open_connection());
        let Some(connection) = connection else { return };
        let notification = notification.clone();
        tokio::spawn(async move {
            if let Err(error) = connection.notify(&notification).await {
                tracing::debug!(%error, "a notice of a client was not taken");
            }
        });
    }

    /// A session chooses what is logged to it.
    pub async fn set_level(&self, session: u128, level: Level) {
        let Some(lent) = self.lending.of_session(session) else { return };
        lent.lock().level = Some(level);
        if let Some(connection) = lent.open_connection().filter(|_| self.logs()) {
            choose(&connection, level).await;
        }
    }
}

async fn choose(connection: &Arc<Connection>, level: Level) {
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

// === impl Lent ===

impl Lent {
    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_connection(&self) -> Option<Arc<Connection>> {
        self.connection.borrow().clone().filter(|connection| !connection.is_closed())
    }

    fn attributes(&self) -> bool {
        self.connection.borrow().as_ref().is_some_and(|connection| connection.attributes_questions())
    }

    /// Tells a new connection what the one before knew.
    async fn renew(&self, connection: &Arc<Connection>) {
        let (level, subscriptions) = {
            let memory = self.lock();
            (memory.level, memory.subscriptions.clone())
        };
        if let Some(level) = level {
            choose(connection, level).await;
        }
        for uri in subscriptions {
            let params = Raw::of(&json!({ "uri": uri }));
            if let Err(error) = connection.request(Method::Subscribe, Some(params)).await {
                tracing::debug!(%error, "a subscription was not renewed");
            }
        }
    }

    fn give_back(&self) {
        self.lock().used = Instant::now();
        self.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Gives a connection back that could not be used.
struct Claim(Option<Arc<Lent>>);

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(lent) = self.0.take() {
            lent.give_back();
        }
    }
}

// === impl Borrowed ===

impl Borrowed {
    /// A connection that everybody uses.
    pub(super) fn shared(connection: Arc<Connection>, busy: Busy) -> Self {
        Self { connection, lent: None, _busy: busy }
    }

    /// The connection.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Whether what the server says by itself reaches this caller alone.
    pub fn is_own(&self) -> bool {
        self.lent.is_some()
    }

    /// The session subscribed to a resource, or no longer does; a new connection is told.
    pub fn remember(&self, uri: &str, subscribed: bool) {
        let Some(lent) = &self.lent else { return };
        let mut memory = lent.lock();
        if subscribed {
            memory.subscriptions.insert(uri.into());
        } else {
            memory.subscriptions.remove(uri);
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(lent) = &self.lent {
            lent.give_back();
        }
    }
}

// === impl Busy ===

impl Busy {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
