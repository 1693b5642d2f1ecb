//! Catalog task of one upstream: reads its lists on a shared connection and re-reads them on list-changed
//! notifications, cache expiry or a poll interval. Clients are served from the cache and never wait for a read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::health::{Health, HealthPhase};
use super::lists::{self, CatalogList, List};
use super::spec::UpstreamSpec;
use super::state::CatalogShared;
use crate::call::{Replies, Reply};
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::mcp_client::{Connection, Unsolicited};
use crate::protocol::{Method, Notification, NotificationMethod, Raw};

/// Maintains the catalog of one upstream for as long as the upstream runs.
#[derive(Debug)]
pub(super) struct Catalog {
    pub(super) spec: UpstreamSpec,
    pub(super) shared: Arc<CatalogShared>,
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
    /// Resource URIs that this connection has asked the upstream to subscribe to.
    subscribed: BTreeSet<Arc<str>>,
    /// The upstream's answer per subscribed URI: true when the subscription was accepted.
    granted: BTreeMap<Arc<str>, bool>,
    /// The open `subscriptions/listen` call (per-request era).
    listen: Option<Replies>,
    /// The previous listen call, kept open until the new one is acknowledged so that no notification is lost.
    previous_listen: Option<Replies>,
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

/// Coalesces bursts of list-changed notifications into one read.
const LIST_CHANGE_DEBOUNCE: Duration = Duration::from_millis(100);
/// Ignore list-changed notifications for this long after the first read unless the re-read differs: many
/// servers emit one at start.
const STARTUP_CHANGE_WINDOW: Duration = Duration::from_millis(250);
/// Delay before a list whose read failed is read again.
const LIST_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Lower bound on the upstream's cache TTL, so that a tiny `ttlMs` does not cause a tight read loop.
const MIN_LIST_TTL: Duration = Duration::from_secs(1);
/// How long the first list reads wait for the listen acknowledgement.
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
                    self.shared.set_grants(BTreeMap::new());
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
        });
        let mut task = CatalogTask {
            connection,
            scheduled_reads: Vec::new(),
            subscribed: BTreeSet::new(),
            granted: BTreeMap::new(),
            listen: None,
            previous_listen: None,
            relisten_at: None,
            count_changes_from: None,
            pending_changes: Default::default(),
            listen_failures: 0,
            polling_only: false,
        };
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
        self.read_lists(&mut task, List::ALL.into_iter().filter(offered)).await;
        task.count_changes_from = Some(Instant::now() + STARTUP_CHANGE_WINDOW);
        self.shared.modify(|state| state.startup_finished = true);
        self.publish_health();
        self.sync_subscriptions(&mut task).await;
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
                () = self.shared.subscriptions_changed.notified() => self.sync_subscriptions(&mut task).await,
                () = timer => self.run_scheduled(&mut task).await,
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
                self.shared.subscriptions_changed.notify_one();
                task.schedule_all_lists();
            }
            Unsolicited::Missed => {
                task.subscribed.iter().for_each(|uri| self.shared.publish_resource_update(Arc::clone(uri)));
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

    async fn run_scheduled(&self, task: &mut CatalogTask) {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) = task.scheduled_reads.iter().copied().partition(|(_, at)| *at <= now);
        task.scheduled_reads = later;
        let state = self.shared.state();
        let due = due.into_iter().map(|(list, _)| list);
        self.read_lists(task, due.filter(|list| state.has_capability(list.capability()) == Some(true))).await;
        if task.relisten_at.is_some_and(|at| at <= now) {
            task.relisten_at = None;
            self.start_listen(task);
        }
    }

    /// Reads the given lists concurrently and schedules the next read of each.
    async fn read_lists(&self, task: &mut CatalogTask, lists: impl Iterator<Item = List>) {
        let connection = &task.connection;
        let change_count = &mut task.pending_changes;
        let lists: Vec<_> = lists.map(|list| (list, std::mem::take(&mut change_count[list as usize]))).collect();
        let limit = self.spec.settings.idle_timeout;
        let reads = lists.into_iter().map(|(list, change_count)| async move {
            let read = match tokio::time::timeout(limit, lists::read_all_pages(connection, list)).await {
                Ok(read) => read,
                Err(_) => {
                    Err(Error::failure(FailureKind::TimedOut(limit), format!("it was not read within {limit:?}")))
                }
            };
            self.publish_list(list, &read, change_count);
            (list, read.map(|listed| listed.expires_at()))
        });
        let read = futures_util::future::join_all(reads).await;
        let now = Instant::now();
        let state = self.shared.state();
        for (list, expires) in read {
            let polled = || {
                (task.polling_only || !state.supports_list_changed(list)).then(|| now + self.spec.list_poll_interval)
            };
            let next = match expires {
                Ok(expires) => expires.map(|at| at.max(now + MIN_LIST_TTL)).or_else(polled),
                Err(_) => Some(now + LIST_RETRY_INTERVAL),
            };
            if let Some(next) = next {
                task.schedule(list, next);
            }
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
    async fn sync_subscriptions(&self, task: &mut CatalogTask) {
        if !self.shared.state().supports_resource_subscriptions() {
            return;
        }
        let wanted: BTreeSet<Arc<str>> = self.shared.subscribed_uris().into_iter().collect();
        if wanted == task.subscribed {
            return;
        }
        if task.connection.revision().listens_by_call() {
            self.start_listen(task);
            return;
        }
        let connection = Arc::clone(&task.connection);
        for uri in task.subscribed.difference(&wanted) {
            // A subscription that was refused needs no unsubscribe.
            if task.granted.remove(uri) != Some(false) {
                self.change_subscription(&connection, Method::Unsubscribe, uri).await;
            }
        }
        self.shared.set_grants(task.granted.clone());
        for uri in wanted.difference(&task.subscribed) {
            let granted = self.change_subscription(&connection, Method::Subscribe, uri).await;
            task.granted.insert(Arc::clone(uri), granted);
            self.shared.set_grants(task.granted.clone());
        }
        task.subscribed = wanted;
    }

    /// Sends a subscribe or unsubscribe request; true when the upstream accepted it.
    async fn change_subscription(&self, connection: &Arc<Connection>, method: Method, uri: &str) -> bool {
        let outcome = connection.request(method.clone(), Some(Raw::of(&json!({ "uri": uri })))).await;
        if let Err(error) = &outcome {
            tracing::debug!(upstream = %self.spec.name, %method, %error, "subscription change failed");
        }
        outcome.is_ok()
    }

    /// Starts a `subscriptions/listen` call for all list changes and subscribed URIs, replacing the current one.
    fn start_listen(&self, task: &mut CatalogTask) {
        let wanted = self.shared.subscribed_uris();
        task.subscribed = wanted.iter().cloned().collect();
        task.granted.retain(|uri, _| task.subscribed.contains(uri));
        self.shared.set_grants(task.granted.clone());
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
            (task.listen, task.previous_listen) = (None, None);
            return;
        }
        if task.previous_listen.is_none() {
            task.previous_listen = task.listen.take();
        }
        let params = Raw::of(&json!({ "notifications": filter }));
        task.listen = Some(task.connection.call(task.connection.internal_call(Method::Listen, Some(params))));
    }

    fn on_listen_reply(&self, task: &mut CatalogTask, reply: Option<Reply>) {
        match reply {
            Some(Reply::Notification(notification)) => {
                task.listen_failures = 0;
                if notification.method == NotificationMethod::Acknowledged {
                    task.previous_listen = None;
                    task.set_granted(acknowledged_uris(&notification).as_deref());
                    self.shared.set_grants(task.granted.clone());
                }
                self.on_notification(task, &notification);
            }
            Some(Reply::ServerRequest(question)) => drop(question),
            Some(Reply::End(answer)) => {
                (task.listen, task.previous_listen) = (None, None);
                task.listen_failures += 1;
                match answer.outcome {
                    Err(error) if error.failure().is_none() => {
                        tracing::info!(upstream = %self.spec.name, error = error.message(), "listen refused, polling lists");
                        task.polling_only = true;
                        task.set_granted(Some(&[]));
                        self.shared.set_grants(task.granted.clone());
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
                for uri in &task.subscribed {
                    self.shared.publish_resource_update(Arc::clone(uri));
                }
            }
            None => task.listen = None,
        }
    }
}

/// Resource URIs named by a listen acknowledgement; `None` when it names no notifications at all.
fn acknowledged_uris(acknowledged: &Notification) -> Option<Vec<String>> {
    let notifications = acknowledged.params.as_ref()?.get("notifications")?;
    Some(notifications.get("resourceSubscriptions").and_then(|uris| uris.read().ok()).unwrap_or_default())
}

impl CatalogTask {
    /// Marks exactly these URIs as granted; all of them when the acknowledgement does not list any.
    fn set_granted(&mut self, uris: Option<&[String]>) {
        let is_granted = |uri: &Arc<str>| uris.is_none_or(|uris| uris.iter().any(|granted| **granted == **uri));
        self.granted = self.subscribed.iter().map(|uri| (Arc::clone(uri), is_granted(uri))).collect();
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
