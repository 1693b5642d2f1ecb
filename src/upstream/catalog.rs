//! Looks after what is known of an upstream: its lists are read once and again when they change, on
//! one connection that is kept for it. Nobody who asks for a list waits for this.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::health::{Health, HealthPhase};
use super::lists::{self, List, Listed};
use super::spec::UpstreamSpec;
use super::state::CatalogShared;
use crate::call::{Replies, Reply};
use crate::error::{Error, ErrorKind, Result};
use crate::mcp_client::{Connection, Unsolicited};
use crate::protocol::{Method, Notice, Notification, Raw};

/// Looks after one upstream.
#[derive(Debug)]
pub(super) struct Catalog {
    pub(super) spec: UpstreamSpec,
    pub(super) shared: Arc<CatalogShared>,
    pub(super) connections: watch::Receiver<Option<Arc<Connection>>>,
    pub(super) health: watch::Receiver<Health>,
    pub(super) heard: mpsc::Receiver<Unsolicited>,
    pub(super) stop: CancellationToken,
}

/// What is to be done on one connection, and when.
struct CatalogTask {
    connection: Arc<Connection>,
    /// The lists that have to be read, and when.
    due: Vec<(List, Instant)>,
    /// The resources that this connection has asked to hear of.
    subscribed: BTreeSet<Arc<str>>,
    /// Which of them the upstream tells of, as far as it has answered.
    granted: BTreeMap<Arc<str>, bool>,
    /// The call that tells of changes, in the per-request era.
    listening: Option<Replies>,
    /// The one before, until the new one is acknowledged: nothing is missed in between.
    former: Option<Replies>,
    /// When that has to be made again.
    listen_at: Option<Instant>,
    /// From when on it is news that a list is another, even if it looks the same.
    news_from: Option<Instant>,
    /// How often changes of lists were told and not passed on yet.
    announced: [u64; List::ALL.len()],
    /// How often in a row it ended without having told anything.
    ends: u32,
    /// It does not tell of changes, whatever it said of itself.
    polling_only: bool,
}

/// How long to wait for more changes before a list is read again.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// How long after the first reading it is no news that a list is another, unless it turns out to be: many servers say
/// so as they begin, and nobody can tell whether that is in what was read.
const BEGINNING: Duration = Duration::from_millis(250);
/// How long after a failure a list is read again.
const AGAIN: Duration = Duration::from_secs(10);
/// The least time between two readings that nobody asked for.
const LEAST_TTL: Duration = Duration::from_secs(1);
/// How long the lists wait for an upstream to say what it will tell of.
const ACKNOWLEDGED: Duration = Duration::from_secs(1);
/// How long after its end the call that tells of changes is made again.
const LISTEN_AGAIN: Duration = Duration::from_secs(2);
/// How many times that the wait may become when it ends again and again.
const LONGEST_LISTEN: u32 = 15;

impl Catalog {
    pub(super) async fn run(mut self) {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.run_loop() => {}
        }
    }

    async fn run_loop(&mut self) {
        loop {
            self.note_health();
            let connection = self.connections.borrow_and_update().clone();
            match connection {
                Some(connection) => {
                    self.attend(connection).await;
                    self.shared.answered(BTreeMap::new());
                }
                None => self.wait_for_connection().await,
            }
            if self.connections.has_changed().is_err() {
                return; // the upstream is gone
            }
        }
    }

    fn note_health(&mut self) {
        let health = self.health.borrow_and_update().clone();
        let state = self.shared.state();
        if state.health == health && (state.settled || health.phase != HealthPhase::Down) {
            return; // it was only asked whether it is still there
        }
        self.shared.change(|state| {
            if health.phase == HealthPhase::Down {
                state.settled = true;
            }
            // Connected is not yet ready: the lists have to be read first.
            if health.phase == HealthPhase::Ready && !state.settled {
                return;
            }
            state.health = health;
        });
    }

    /// Waits for a connection. After a while its lists are not served any more.
    async fn wait_for_connection(&mut self) {
        let mut forget = Some(Instant::now() + self.spec.serve_stale_for);
        loop {
            let patience = async {
                match forget {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.connections.changed() => {
                    if changed.is_err() || self.connections.borrow().is_some() {
                        return;
                    }
                }
                changed = self.health.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.note_health();
                }
                // Nothing that was said before the connection broke matters now.
                Some(_) = self.heard.recv() => {}
                () = patience => {
                    forget = None;
                    self.shared.change(|state| state.lists = Default::default());
                }
            }
        }
    }

    /// Keeps everything up to date while there is a connection.
    async fn attend(&mut self, connection: Arc<Connection>) {
        self.shared.change(|state| {
            state.server = Some(connection.server().clone());
            state.revision = Some(connection.revision());
            state.transport = connection.found().transport;
        });
        let mut duty = CatalogTask {
            connection,
            due: Vec::new(),
            subscribed: BTreeSet::new(),
            granted: BTreeMap::new(),
            listening: None,
            former: None,
            listen_at: None,
            news_from: None,
            announced: Default::default(),
            ends: 0,
            polling_only: false,
        };
        let state = self.shared.state();
        if !duty.connection.revision().facts().sessions {
            // Before any list is read, so that no change is missed between.
            self.listen(&mut duty);
            if duty.listening.is_some()
                && let Ok(reply) = tokio::time::timeout(ACKNOWLEDGED, next_of(&mut duty.listening)).await
            {
                self.listened(&mut duty, reply);
            }
        }
        let offered = |list: &List| state.offers(list.family()) == Some(true);
        for list in List::ALL.into_iter().filter(|list| !offered(list)) {
            self.shared.change(|state| state.lists[list as usize] = None);
        }
        // What was said to change before the lists are read is in them.
        while let Ok(heard) = self.heard.try_recv() {
            self.on_unsolicited(&mut duty, heard);
        }
        duty.due.retain(|(_, at)| *at > Instant::now() + DEBOUNCE);
        self.read(&mut duty, List::ALL.into_iter().filter(offered)).await;
        duty.news_from = Some(Instant::now() + BEGINNING);
        self.shared.change(|state| state.settled = true);
        self.note_health();
        self.subscribe(&mut duty).await;
        loop {
            let next = duty.due.iter().map(|(_, at)| *at).chain(duty.listen_at).min();
            let timer = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = self.connections.changed() => return,
                changed = self.health.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.note_health();
                }
                heard = self.heard.recv() => match heard {
                    None => return,
                    Some(heard) => self.on_unsolicited(&mut duty, heard),
                },
                reply = next_of(&mut duty.listening) => self.listened(&mut duty, reply),
                reply = next_of(&mut duty.former) => match reply {
                    Some(Reply::Notice(notification)) => self.on_notification(&mut duty, &notification),
                    _ => duty.former = None,
                },
                () = self.shared.announcing.notified() => duty.announce(&self.shared.take_announced()),
                () = self.shared.subscriptions_changed.notified() => self.subscribe(&mut duty).await,
                () = timer => self.do_what_is_due(&mut duty).await,
            }
        }
    }

    fn on_unsolicited(&self, duty: &mut CatalogTask, heard: Unsolicited) {
        match heard {
            Unsolicited::Notice(notification) => self.on_notification(duty, &notification),
            // Nobody stands behind this connection who could answer; dropping it says so.
            Unsolicited::Question(question) => drop(question),
            Unsolicited::Reopened => {
                duty.subscribed.clear();
                self.shared.subscriptions_changed.notify_one();
                duty.read_all_again();
            }
            Unsolicited::Missed => {
                duty.subscribed.iter().for_each(|uri| self.shared.updated(Arc::clone(uri)));
                duty.read_all_again();
            }
        }
    }

    fn on_notification(&self, duty: &mut CatalogTask, notification: &Notification) {
        duty.announce(List::told_by(&notification.notice));
        if notification.notice == Notice::ResourceUpdated {
            let uri = notification.params.as_ref().and_then(|params| params.get("uri"));
            if let Some(uri) = uri.as_ref().and_then(Raw::text) {
                self.shared.updated(uri.as_ref().into());
            }
        }
    }

    async fn do_what_is_due(&self, duty: &mut CatalogTask) {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) = duty.due.iter().copied().partition(|(_, at)| *at <= now);
        duty.due = later;
        let state = self.shared.state();
        let due = due.into_iter().map(|(list, _)| list);
        self.read(duty, due.filter(|list| state.offers(list.family()) == Some(true))).await;
        if duty.listen_at.is_some_and(|at| at <= now) {
            duty.listen_at = None;
            self.listen(duty);
        }
    }

    /// Reads some lists at once, and says when they have to be read again.
    async fn read(&self, duty: &mut CatalogTask, lists: impl Iterator<Item = List>) {
        let connection = &duty.connection;
        let announced = &mut duty.announced;
        let lists: Vec<_> = lists.map(|list| (list, std::mem::take(&mut announced[list as usize]))).collect();
        let limit = self.spec.settings.idle_timeout;
        let readings = lists.into_iter().map(|(list, announced)| async move {
            let read = match tokio::time::timeout(limit, lists::read(connection, list)).await {
                Ok(read) => read,
                Err(_) => Err(Error::new(ErrorKind::Timeout, format!("it was not read within {limit:?}"))),
            };
            self.note_list(list, &read, announced);
            (list, read.map(|listed| listed.expires()))
        });
        let read = futures_util::future::join_all(readings).await;
        let now = Instant::now();
        let state = self.shared.state();
        for (list, expires) in read {
            let polled = || (duty.polling_only || !state.tells_of(list)).then(|| now + self.spec.list_poll_interval);
            let next = match expires {
                Ok(expires) => expires.map(|at| at.max(now + LEAST_TTL)).or_else(polled),
                Err(_) => Some(now + AGAIN),
            };
            if let Some(next) = next {
                duty.schedule(list, next);
            }
        }
    }

    fn note_list(&self, list: List, read: &Result<Listed>, announced: u64) {
        if let Err(error) = read {
            tracing::warn!(upstream = %self.spec.name, list = list.member(), %error, "a list cannot be read");
        }
        self.shared.change(|state| match read {
            Ok(listed) => {
                state.lists[list as usize] = Some(Arc::new(listed.clone()));
                state.announced[list as usize] += announced;
                state.troubles.remove(list.member());
            }
            Err(error) => {
                state.troubles.insert(list.member(), error.to_string());
            }
        });
    }

    /// Subscribes to what somebody wants to hear of, and to nothing else.
    async fn subscribe(&self, duty: &mut CatalogTask) {
        if !self.shared.state().offers_updates() {
            return;
        }
        let wanted: BTreeSet<Arc<str>> = self.shared.wanted().into_iter().collect();
        if wanted == duty.subscribed {
            return;
        }
        if !duty.connection.revision().facts().sessions {
            self.listen(duty);
            return;
        }
        let connection = Arc::clone(&duty.connection);
        for uri in duty.subscribed.difference(&wanted) {
            // What was refused need not be ended.
            if duty.granted.remove(uri) != Some(false) {
                self.ask(&connection, Method::Unsubscribe, uri).await;
            }
        }
        self.shared.answered(duty.granted.clone());
        for uri in wanted.difference(&duty.subscribed) {
            let granted = self.ask(&connection, Method::Subscribe, uri).await;
            duty.granted.insert(Arc::clone(uri), granted);
            self.shared.answered(duty.granted.clone());
        }
        duty.subscribed = wanted;
    }

    /// Asks for a change of a subscription; true when it was made.
    async fn ask(&self, connection: &Arc<Connection>, method: Method, uri: &str) -> bool {
        let asked = connection.request(method.clone(), Some(Raw::of(&json!({ "uri": uri })))).await;
        if let Err(error) = &asked {
            tracing::debug!(upstream = %self.spec.name, %method, %error, "a subscription was not changed");
        }
        asked.is_ok()
    }

    /// Makes the call that tells of changes, with everything that is wanted now.
    fn listen(&self, duty: &mut CatalogTask) {
        let wanted = self.shared.wanted();
        duty.subscribed = wanted.iter().cloned().collect();
        duty.granted.retain(|uri, _| duty.subscribed.contains(uri));
        self.shared.answered(duty.granted.clone());
        let mut asked = serde_json::Map::new();
        let state = self.shared.state();
        for (list, member) in [
            (List::Tools, "toolsListChanged"),
            (List::Prompts, "promptsListChanged"),
            (List::Resources, "resourcesListChanged"),
        ] {
            if state.tells_of(list) {
                asked.insert(member.into(), true.into());
            }
        }
        if !wanted.is_empty() && state.offers_updates() {
            asked
                .insert("resourceSubscriptions".into(), json!(wanted.iter().map(AsRef::as_ref).collect::<Vec<&str>>()));
        }
        if asked.is_empty() {
            (duty.listening, duty.former) = (None, None);
            return;
        }
        if duty.former.is_none() {
            duty.former = duty.listening.take();
        }
        let params = Raw::of(&json!({ "notifications": asked }));
        duty.listening = Some(duty.connection.call(duty.connection.own_call(Method::Listen, Some(params))));
    }

    fn listened(&self, duty: &mut CatalogTask, reply: Option<Reply>) {
        match reply {
            Some(Reply::Notice(notification)) => {
                duty.ends = 0;
                if notification.notice == Notice::Acknowledged {
                    duty.former = None;
                    duty.grant(granted_by(&notification).as_deref());
                    self.shared.answered(duty.granted.clone());
                }
                self.on_notification(duty, &notification);
            }
            Some(Reply::Question(question)) => drop(question),
            Some(Reply::End(answer)) => {
                (duty.listening, duty.former) = (None, None);
                duty.ends += 1;
                match answer.outcome {
                    Err(error) if !error.is_unavailable() => {
                        tracing::info!(upstream = %self.spec.name, error = error.message(), "it does not tell of changes");
                        duty.polling_only = true;
                        duty.grant(Some(&[]));
                        self.shared.answered(duty.granted.clone());
                    }
                    _ => duty.listen_at = Some(Instant::now() + LISTEN_AGAIN * duty.ends.min(LONGEST_LISTEN)),
                }
                // What changes meanwhile is not told.
                for list in List::ALL {
                    duty.schedule(list, Instant::now() + LISTEN_AGAIN * duty.ends.min(LONGEST_LISTEN) + DEBOUNCE);
                }
                for uri in &duty.subscribed {
                    self.shared.updated(Arc::clone(uri));
                }
            }
            None => duty.listening = None,
        }
    }
}

/// The resources that an acknowledgement names; nothing when it does not say what it acknowledges.
fn granted_by(acknowledged: &Notification) -> Option<Vec<String>> {
    let told = acknowledged.params.as_ref()?.get("notifications")?;
    Some(told.get("resourceSubscriptions").and_then(|uris| uris.read().ok()).unwrap_or_default())
}

impl CatalogTask {
    /// The upstream tells of these resources and of no others; of all where it does not say.
    fn grant(&mut self, told: Option<&[String]>) {
        let is_told = |uri: &Arc<str>| told.is_none_or(|told| told.iter().any(|told| **told == **uri));
        self.granted = self.subscribed.iter().map(|uri| (Arc::clone(uri), is_told(uri))).collect();
    }

    /// Lists are others now, as the upstream says.
    fn announce(&mut self, lists: &[List]) {
        let now = Instant::now();
        for list in lists {
            self.schedule(*list, now + DEBOUNCE);
            self.announced[*list as usize] += u64::from(self.news_from.is_some_and(|from| from <= now));
        }
    }

    /// Any list may be another.
    fn read_all_again(&mut self) {
        for list in List::ALL {
            self.schedule(list, Instant::now() + DEBOUNCE);
        }
    }

    /// A list has to be read at some time, or sooner if that was said before.
    fn schedule(&mut self, list: List, at: Instant) {
        match self.due.iter_mut().find(|(due, _)| *due == list) {
            Some((_, due)) => *due = (*due).min(at),
            None => self.due.push((list, at)),
        }
    }
}

/// The next reply of a call that may not be there.
async fn next_of(replies: &mut Option<Replies>) -> Option<Reply> {
    match replies {
        Some(replies) => replies.next().await,
        None => std::future::pending().await,
    }
}
