//! Catalog task of one upstream: reads its lists on a shared connection and re-reads them on list-changed
//! notifications, cache expiry or a poll interval. Clients are served from the cache and never wait for a read.
//!
//! After the first reads the task waits for no single request: reads and subscription changes run beside one another, and
//! the task goes on with notifications and with other URIs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::descriptions::FirstDescriptions;
use super::health::{Health, HealthPhase};
use super::lists::{self, CatalogList, List};
use super::spec::UpstreamSpec;
use super::state::{CatalogShared, ConnectionFacts, Grant};
use crate::call::{Replies, Reply};
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::mcp_client::{Connection, Unsolicited};
use crate::protocol::{ErrorObject, Method, Notification, NotificationMethod, Raw, code};

/// Maintains the catalog of one upstream for as long as the upstream runs.
#[derive(Debug)]
pub(super) struct Catalog {
    pub(super) spec: UpstreamSpec,
    pub(super) shared: Arc<CatalogShared>,
    pub(super) descriptions: Arc<FirstDescriptions>,
    pub(super) connections: watch::Receiver<Option<Arc<Connection>>>,
    pub(super) health: watch::Receiver<Health>,
    pub(super) unsolicited: mpsc::Receiver<Unsolicited>,
    pub(super) stop: CancellationToken,
}

/// State that lives as long as one catalog connection.
struct CatalogTask {
    connection: Arc<Connection>,
    /// When each list is due to be read next; a list has at most one entry.
    scheduled_reads: Vec<(List, Instant)>,
    /// Resource URIs that this connection has asked the upstream to subscribe to, and what it answered.
    subscribed: BTreeMap<Arc<str>, Option<Grant>>,
    /// URIs to subscribe to or to unsubscribe from, as far as that is not done (handshake era).
    unsynced_uris: VecDeque<Arc<str>>,
    /// URIs with a subscribe or unsubscribe request in flight.
    changing_uris: BTreeSet<Arc<str>>,
    /// Incremented when the server has lost the session, so that answers from before are not taken for current.
    session_epoch: u64,
    /// Lists that are being read.
    reading: [bool; List::ALL.len()],
    /// Requests in flight.
    requests: FuturesUnordered<BoxFuture<'static, RequestDone>>,
    /// The open `subscriptions/listen` call (per-request era).
    listen: Option<Replies>,
    /// The previous listen call, kept open until the new one is acknowledged so that no notification is lost.
    previous_listen: Option<Replies>,
    /// Until when the listen call may take to be acknowledged; it is not replaced before.
    listen_ack_deadline: Option<Instant>,
    /// When the listen call is retried.
    relisten_at: Option<Instant>,
    /// From this instant a list-changed notification counts as a change even if the re-read list is identical.
    count_changes_from: Option<Instant>,
    /// List-changed notifications received per list since the list was last read.
    pending_changes: [u64; List::ALL.len()],
    /// Consecutive listen calls that ended without delivering a notification.
    listen_failures: u32,
    /// The upstream refused the listen call, whatever capabilities it declared, so its lists are polled.
    polling_only: bool,
}

/// A request of the catalog task that has ended.
enum RequestDone {
    ListRead(List, Result<CatalogList>, u64),
    /// A subscribe or unsubscribe request for a URI, made in this session epoch.
    SubscriptionChanged(Method, Arc<str>, u64, Grant),
}

/// Subscribe and unsubscribe requests in flight at once.
const MAX_SUBSCRIPTION_CHANGES: usize = 16;
/// Coalesces bursts of list-changed notifications into one read.
const LIST_CHANGE_DEBOUNCE: Duration = Duration::from_millis(100);
/// Ignore list-changed notifications for this long after the first read unless the re-read differs: many
/// servers emit one at start.
const STARTUP_CHANGE_WINDOW: Duration = Duration::from_millis(250);
/// Delay before a list whose read failed is read again.
const LIST_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Lower bound on the upstream's cache TTL, so that a tiny `ttlMs` does not cause a tight read loop.
const MIN_LIST_TTL: Duration = Duration::from_secs(1);
/// How long the first list reads, and a change of the subscribed URIs, wait for the listen acknowledgement.
const LISTEN_ACK_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay before a listen call that ended is repeated; multiplied by the number of consecutive failures.
const LISTEN_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Upper bound on that multiplier.
const MAX_LISTEN_RETRY_FACTOR: u32 = 15;

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
            self.publish_health();
            let connection = self.connections.borrow_and_update().clone();
            match connection {
                Some(connection) => {
                    self.maintain(connection).await;
                    self.shared.forget_grants();
                }
                None => self.wait_for_connection().await,
            }
            if self.connections.has_changed().is_err() {
                return; // the supervisor is gone
            }
        }
    }

    fn publish_health(&mut self) {
        let health = self.health.borrow_and_update().clone();
        let state = self.shared.state();
        if state.health == health && (state.startup_finished || health.phase != HealthPhase::Down) {
            return; // a successful ping, nothing to publish
        }
        self.shared.modify(|state| {
            if health.phase == HealthPhase::Down {
                state.startup_finished = true;
            }
            // A connection alone is not ready: the lists have to be read first.
            if health.phase == HealthPhase::Ready && !state.startup_finished {
                return;
            }
            state.health = health;
        });
    }

    /// Waits for a connection. Drops the stale lists once `serve_stale_for` has passed.
    async fn wait_for_connection(&mut self) {
        let mut drop_lists_at = Some(Instant::now() + self.spec.serve_stale_for);
        loop {
            let patience = async {
                match drop_lists_at {
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
                    self.publish_health();
                }
                // Notifications from the broken connection are obsolete: everything is read again on the next one.
                Some(_) = self.unsolicited.recv() => {}
                () = patience => {
                    drop_lists_at = None;
                    self.shared.modify(|state| state.lists = Default::default());
                }
            }
        }
    }

    /// Keeps lists and subscriptions up to date until the connection ends.
    async fn maintain(&mut self, connection: Arc<Connection>) {
        self.shared.modify(|state| {
            state.server = Some(connection.server().clone());
            state.revision = Some(connection.revision());
            state.keeps_session = connection.keeps_session();
            state.transport = connection.probe_report().transport;
            state.connection = Some(Arc::new(ConnectionFacts::of(&connection, state.connection.as_deref())));
        });
        let mut task = CatalogTask::new(connection);
        let state = self.shared.state();
        if task.connection.revision().listens_by_call() {
            // Listen before the first read, so that no change falls between the two.
            self.start_listen(&mut task);
            if task.listen.is_some()
                && let Ok(reply) = tokio::time::timeout(LISTEN_ACK_TIMEOUT, next_reply(&mut task.listen)).await
            {
                self.on_listen_reply(&mut task, reply);
            }
        }
        let offered = |list: &List| state.has_capability(list.capability()) == Some(true);
        for list in List::ALL.into_iter().filter(|list| !offered(list)) {
            self.shared.modify(|state| state.lists[list as usize] = None);
        }
        // Changes announced before the first read are already part of it.
        while let Ok(message) = self.unsolicited.try_recv() {
            self.on_unsolicited(&mut task, message);
        }
        task.scheduled_reads.retain(|(_, at)| *at > Instant::now() + LIST_CHANGE_DEBOUNCE);
        self.read_lists(&mut task, List::ALL.into_iter().filter(offered));
        while task.reading != [false; List::ALL.len()]
            && let Some(done) = task.requests.next().await
        {
            self.on_request_done(&mut task, done);
        }
        task.count_changes_from = Some(Instant::now() + STARTUP_CHANGE_WINDOW);
        self.shared.modify(|state| state.startup_finished = true);
        self.publish_health();
        self.sync_subscriptions(&mut task);
        loop {
            let next = task.scheduled_reads.iter().map(|(_, at)| *at).chain(task.relisten_at).min();
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
                    self.publish_health();
                }
                message = self.unsolicited.recv() => match message {
                    None => return,
                    Some(message) => self.on_unsolicited(&mut task, message),
                },
                reply = next_reply(&mut task.listen) => self.on_listen_reply(&mut task, reply),
                reply = next_reply(&mut task.previous_listen) => match reply {
                    Some(Reply::Notification(notification)) => self.on_notification(&mut task, &notification),
                    _ => task.previous_listen = None,
                },
                () = self.shared.list_change_reported.notified() => {
                    task.on_list_changes(&self.shared.take_reported_list_changes());
                }
                Some(done) = task.requests.next() => self.on_request_done(&mut task, done),
                () = self.shared.subscriptions_changed.notified() => self.sync_subscriptions(&mut task),
                () = timer => self.run_scheduled(&mut task),
            }
        }
    }

    fn on_unsolicited(&self, task: &mut CatalogTask, message: Unsolicited) {
        match message {
            Unsolicited::Notification(notification) => self.on_notification(task, &notification),
            // The catalog connection has no client behind it; dropping the server request answers it with an error.
            Unsolicited::ServerRequest(question) => drop(question),
            Unsolicited::SessionReopened => {
                task.subscribed.clear();
                task.session_epoch += 1;
                self.shared.forget_grants();
                self.shared.subscriptions_changed.notify_one();
                task.schedule_all_lists();
            }
            Unsolicited::Missed => {
                task.subscribed.keys().for_each(|uri| self.shared.publish_resource_update(Arc::clone(uri)));
                task.schedule_all_lists();
            }
        }
    }

    fn on_notification(&self, task: &mut CatalogTask, notification: &Notification) {
        task.on_list_changes(List::changed_by(&notification.method));
        if notification.method == NotificationMethod::ResourceUpdated {
            let uri = notification.params.as_ref().and_then(|params| params.get("uri"));
            if let Some(uri) = uri.as_ref().and_then(Raw::text) {
                self.shared.publish_resource_update(uri.as_ref().into());
            }
        }
    }

    fn run_scheduled(&self, task: &mut CatalogTask) {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) = task.scheduled_reads.iter().copied().partition(|(_, at)| *at <= now);
        task.scheduled_reads = later;
        let state = self.shared.state();
        let due = due.into_iter().map(|(list, _)| list);
        self.read_lists(task, due.filter(|list| state.has_capability(list.capability()) == Some(true)));
        if task.relisten_at.is_some_and(|at| at <= now) {
            self.start_listen(task);
        }
    }

    /// Starts to read the given lists. One that is being read is read once more afterwards.
    fn read_lists(&self, task: &mut CatalogTask, lists: impl Iterator<Item = List>) {
        let limit = self.spec.settings.idle_timeout;
        for list in lists {
            if std::mem::replace(&mut task.reading[list as usize], true) {
                task.schedule(list, Instant::now() + LIST_CHANGE_DEBOUNCE);
                continue;
            }
            let change_count = std::mem::take(&mut task.pending_changes[list as usize]);
            let connection = Arc::clone(&task.connection);
            task.requests.push(Box::pin(async move {
                let read = match tokio::time::timeout(limit, lists::read_all_pages(&connection, list)).await {
                    Ok(read) => read,
                    Err(_) => {
                        Err(Error::failure(FailureKind::TimedOut(limit), format!("it was not read within {limit:?}")))
                    }
                };
                RequestDone::ListRead(list, read, change_count)
            }));
        }
    }

    fn on_request_done(&self, task: &mut CatalogTask, done: RequestDone) {
        match done {
            RequestDone::ListRead(list, read, change_count) => {
                task.reading[list as usize] = false;
                self.publish_list(list, &read, change_count);
                self.schedule_next_read(task, list, &read);
            }
            RequestDone::SubscriptionChanged(method, uri, epoch, grant) => {
                task.changing_uris.remove(&uri);
                if epoch == task.session_epoch && method == Method::Subscribe {
                    self.shared.set_grants([(&uri, &grant)]);
                    task.subscribed.insert(Arc::clone(&uri), Some(grant));
                } else if epoch == task.session_epoch {
                    task.subscribed.remove(&uri);
                }
                // Its subscribers may have changed meanwhile.
                task.unsynced_uris.push_back(uri);
                self.change_subscriptions(task);
            }
        }
    }

    fn schedule_next_read(&self, task: &mut CatalogTask, list: List, read: &Result<CatalogList>) {
        let now = Instant::now();
        let state = self.shared.state();
        let polled =
            || (task.polling_only || !state.supports_list_changed(list)).then(|| now + self.spec.list_poll_interval);
        let next = match read {
            Ok(listed) => listed.expires_at().map(|at| at.max(now + MIN_LIST_TTL)).or_else(polled),
            Err(_) => Some(now + LIST_RETRY_INTERVAL),
        };
        if let Some(next) = next {
            task.schedule(list, next);
        }
    }

    fn publish_list(&self, list: List, read: &Result<CatalogList>, change_count: u64) {
        if let Err(error) = read {
            tracing::warn!(upstream = %self.spec.name, list = list.result_key(), %error, "list read failed");
        }
        // A poll that brought nothing new changes no state, so that no group builds its view again.
        let state = self.shared.state();
        if let (Ok(listed), Some(known), 0) = (read, state.list(list), change_count)
            && !state.list_errors.contains_key(list.result_key())
            && known.confirm(listed)
        {
            return;
        }
        if let Ok(listed) = read {
            self.descriptions.note(list, listed);
        }
        self.shared.modify(|state| match read {
            Ok(listed) => {
                state.lists[list as usize] = Some(Arc::new(listed.clone()));
                state.list_change_counts[list as usize] += change_count;
                state.list_errors.remove(list.result_key());
            }
            Err(error) => {
                state.list_errors.insert(list.result_key(), error.to_string());
            }
        });
    }

    /// Brings the upstream's resource subscriptions in line with the URIs that clients subscribe to.
    fn sync_subscriptions(&self, task: &mut CatalogTask) {
        if !self.shared.state().supports_resource_subscriptions() {
            return;
        }
        let changed = self.shared.take_changed_uris();
        if !task.connection.revision().listens_by_call() {
            task.unsynced_uris.extend(changed);
            return self.change_subscriptions(task);
        }
        let known = changed.iter().filter_map(|uri| Some((uri, task.subscribed.get(uri)?.as_ref()?)));
        self.shared.set_grants(known);
        if changed.iter().all(|uri| self.shared.is_subscribed(uri) == task.subscribed.contains_key(uri)) {
            return;
        }
        match task.listen_ack_deadline.filter(|deadline| *deadline > Instant::now()) {
            // One listen call for all URIs that come in until the last call is acknowledged.
            Some(deadline) => task.relisten_at = Some(deadline),
            None => self.start_listen(task),
        }
    }

    /// Starts subscribe and unsubscribe requests, as many at once as there may be.
    fn change_subscriptions(&self, task: &mut CatalogTask) {
        while task.changing_uris.len() < MAX_SUBSCRIPTION_CHANGES
            && let Some(uri) = task.unsynced_uris.pop_front()
        {
            if task.changing_uris.contains(&uri) {
                continue; // it is looked at again when its request has ended
            }
            let method = match (self.shared.is_subscribed(&uri), task.subscribed.get(&uri)) {
                (true, None) => Method::Subscribe,
                (true, Some(grant)) => {
                    self.shared.set_grants(grant.as_ref().map(|grant| (&uri, grant)));
                    continue;
                }
                // A subscription that was refused needs no unsubscribe.
                (false, Some(Some(Err(_)))) => {
                    task.subscribed.remove(&uri);
                    continue;
                }
                (false, Some(_)) => Method::Unsubscribe,
                (false, None) => continue,
            };
            task.changing_uris.insert(Arc::clone(&uri));
            let (connection, epoch, upstream) =
                (Arc::clone(&task.connection), task.session_epoch, Arc::clone(&self.spec.name));
            task.requests.push(Box::pin(async move {
                let outcome = connection.request(method.clone(), Some(Raw::of(&json!({ "uri": &*uri })))).await;
                if let Err(error) = &outcome {
                    tracing::debug!(%upstream, %method, %error, "subscription change failed");
                }
                let grant = outcome.map(|_| ()).map_err(Error::into_object);
                RequestDone::SubscriptionChanged(method, uri, epoch, grant)
            }));
        }
    }

    /// Starts a `subscriptions/listen` call for all list changes and subscribed URIs, replacing the current one.
    fn start_listen(&self, task: &mut CatalogTask) {
        task.relisten_at = None;
        let wanted = self.shared.subscribed_uris();
        let mut known = std::mem::take(&mut task.subscribed);
        task.subscribed = wanted.iter().map(|uri| (Arc::clone(uri), known.remove(uri).flatten())).collect();
        let mut filter = serde_json::Map::new();
        let state = self.shared.state();
        for (list, member) in [
            (List::Tools, "toolsListChanged"),
            (List::Prompts, "promptsListChanged"),
            (List::Resources, "resourcesListChanged"),
        ] {
            if state.supports_list_changed(list) {
                filter.insert(member.into(), true.into());
            }
        }
        if !wanted.is_empty() && state.supports_resource_subscriptions() {
            filter
                .insert("resourceSubscriptions".into(), json!(wanted.iter().map(AsRef::as_ref).collect::<Vec<&str>>()));
        }
        if filter.is_empty() {
            (task.listen, task.previous_listen, task.listen_ack_deadline) = (None, None, None);
            return;
        }
        if task.previous_listen.is_none() {
            task.previous_listen = task.listen.take();
        }
        let params = Raw::of(&json!({ "notifications": filter }));
        task.listen_ack_deadline = Some(Instant::now() + LISTEN_ACK_TIMEOUT);
        task.listen = Some(task.connection.call(task.connection.internal_call(Method::Listen, Some(params))));
    }

    fn on_listen_reply(&self, task: &mut CatalogTask, reply: Option<Reply>) {
        match reply {
            Some(Reply::Notification(notification)) => {
                task.listen_failures = 0;
                if notification.method == NotificationMethod::Acknowledged {
                    task.previous_listen = None;
                    task.listen_ack_deadline = None;
                    self.set_granted(task, acknowledged_uris(&notification).as_ref());
                    if task.relisten_at.is_some() {
                        self.start_listen(task); // other URIs came in meanwhile
                    }
                }
                self.on_notification(task, &notification);
            }
            Some(Reply::ServerRequest(question)) => drop(question),
            Some(Reply::Piece(_)) => {} // lists come whole
            Some(Reply::End(answer)) => {
                (task.listen, task.previous_listen, task.listen_ack_deadline) = (None, None, None);
                task.listen_failures += 1;
                match answer.outcome {
                    Err(error) if error.failure().is_none() => {
                        tracing::info!(upstream = %self.spec.name, error = error.message(), "listen refused, polling lists");
                        task.polling_only = true;
                        task.subscribed.values_mut().for_each(|grant| *grant = Some(Err(error.clone())));
                        self.shared.set_grants(known_grants(&task.subscribed));
                    }
                    _ => {
                        task.relisten_at = Some(
                            Instant::now() + LISTEN_RETRY_INTERVAL * task.listen_failures.min(MAX_LISTEN_RETRY_FACTOR),
                        );
                    }
                }
                // Changes in the gap until the next listen call go unannounced: re-read the lists, report every URI as updated.
                for list in List::ALL {
                    task.schedule(
                        list,
                        Instant::now()
                            + LISTEN_RETRY_INTERVAL * task.listen_failures.min(MAX_LISTEN_RETRY_FACTOR)
                            + LIST_CHANGE_DEBOUNCE,
                    );
                }
                for uri in task.subscribed.keys() {
                    self.shared.publish_resource_update(Arc::clone(uri));
                }
            }
            None => task.listen = None,
        }
    }

    /// Marks exactly these URIs as granted; all of them when the acknowledgement does not list any.
    fn set_granted(&self, task: &mut CatalogTask, uris: Option<&BTreeSet<String>>) {
        for (uri, grant) in &mut task.subscribed {
            let is_granted = uris.is_none_or(|uris| uris.contains(uri.as_ref()));
            let refusal = "Invalid params: the server does not tell of changes to this resource";
            *grant = Some(if is_granted { Ok(()) } else { Err(ErrorObject::new(code::INVALID_PARAMS, refusal)) });
        }
        self.shared.set_grants(known_grants(&task.subscribed));
    }
}

/// The URIs that the upstream has answered for.
fn known_grants(subscribed: &BTreeMap<Arc<str>, Option<Grant>>) -> impl Iterator<Item = (&Arc<str>, &Grant)> {
    subscribed.iter().filter_map(|(uri, grant)| Some((uri, grant.as_ref()?)))
}

/// Resource URIs named by a listen acknowledgement; `None` when it names no notifications at all.
fn acknowledged_uris(acknowledged: &Notification) -> Option<BTreeSet<String>> {
    let notifications = acknowledged.params.as_ref()?.get("notifications")?;
    Some(notifications.get("resourceSubscriptions").and_then(|uris| uris.read().ok()).unwrap_or_default())
}

impl CatalogTask {
    fn new(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            scheduled_reads: Vec::new(),
            subscribed: BTreeMap::new(),
            unsynced_uris: VecDeque::new(),
            changing_uris: BTreeSet::new(),
            session_epoch: 0,
            reading: Default::default(),
            requests: FuturesUnordered::new(),
            listen: None,
            previous_listen: None,
            listen_ack_deadline: None,
            relisten_at: None,
            count_changes_from: None,
            pending_changes: Default::default(),
            listen_failures: 0,
            polling_only: false,
        }
    }

    /// Schedules a re-read of lists that the upstream announced as changed.
    fn on_list_changes(&mut self, lists: &[List]) {
        let now = Instant::now();
        for list in lists {
            self.schedule(*list, now + LIST_CHANGE_DEBOUNCE);
            self.pending_changes[*list as usize] += u64::from(self.count_changes_from.is_some_and(|from| from <= now));
        }
    }

    /// Schedules a re-read of every list, for when notifications may have been lost.
    fn schedule_all_lists(&mut self) {
        for list in List::ALL {
            self.schedule(list, Instant::now() + LIST_CHANGE_DEBOUNCE);
        }
    }

    /// Schedules a read; an earlier read that is already scheduled wins.
    fn schedule(&mut self, list: List, at: Instant) {
        match self.scheduled_reads.iter_mut().find(|(due, _)| *due == list) {
            Some((_, due)) => *due = (*due).min(at),
            None => self.scheduled_reads.push((list, at)),
        }
    }
}

/// The next reply of an optional call; pending forever without one.
async fn next_reply(replies: &mut Option<Replies>) -> Option<Reply> {
    match replies {
        Some(replies) => replies.next().await,
        None => std::future::pending().await,
    }
}
