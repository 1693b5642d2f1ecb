//! The task of a lease: forwards what its server sends outside of calls, and re-reads lists that changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::lease::Lease;
use super::lease_key::LeaseKey;
use super::leg::Leg;
use super::lists::{self, CatalogList, List};
use super::liveness;
use super::supervisor::back_off;
use crate::call::ClientSink;
use crate::failure::Failure;
use crate::mcp_client::{Connection, Unsolicited};

/// Delay between a list-changed notification on a lease and comparing its list with the catalog, which usually
/// gets the same notification and has re-read its list by then.
const LIST_COMPARE_DELAY: Duration = Duration::from_millis(400);

impl Leg {
    /// Runs a lease until its client is gone, then removes it and closes its connection.
    pub(super) async fn run_lease(
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
        let client_gone = async {
            match (&lease.key, sink) {
                (LeaseKey::Session(_), Some(sink)) => sink.ended().cancelled().await,
                _ => self.wait_idle(lease).await,
            }
        };
        let maintenance = self.run_maintenance(lease, sink);
        let connection_lost = self.lease_connection_lost(lease);
        tokio::pin!(client_gone, maintenance, connection_lost);
        loop {
            tokio::select! {
                () = &mut client_gone => break,
                () = lease.evicted.cancelled() => break,
                () = self.stop.cancelled() => break,
                () = &mut maintenance => {}
                (connection, reason) = &mut connection_lost => {
                    tracing::info!(upstream = %self.spec.name, %reason, "lease connection lost");
                    lease.connection.send_replace(None);
                    connection.close().await;
                    connection_lost.set(self.lease_connection_lost(lease));
                    self.tasks.spawn(Arc::clone(self).reconnect(Arc::clone(lease), sink.cloned()));
                }
                Some(message) = receiver.recv() => lease.on_unsolicited(message, sink),
            }
        }
    }

    /// Waits until the lease's connection ends or is given up, whichever connection it has by then.
    async fn lease_connection_lost(&self, lease: &Lease) -> (Arc<Connection>, Failure) {
        let mut connections = lease.connection.subscribe();
        loop {
            let connection = connections.borrow_and_update().clone();
            let Some(connection) = connection else {
                // The lease holds the sender, so that the channel stays open.
                let _ = connections.changed().await;
                continue;
            };
            let is_busy = || lease.calls_in_flight.load(Ordering::Acquire) > 0;
            let report = |pinged: std::result::Result<(), Failure>| {
                if let Err(failure) = pinged {
                    tracing::debug!(upstream = %self.spec.name, %failure, "lease ping failed");
                }
            };
            tokio::select! {
                why = liveness::wait_lost(&connection, &self.spec.settings, is_busy, report) => return (connection, why),
                _ = connections.changed() => {}
            }
        }
    }

    /// Completes once the lease has been idle for `lease_idle_timeout` and was removed.
    async fn wait_idle(&self, lease: &Arc<Lease>) {
        loop {
            let end = lease.lock().last_used + self.spec.lease_idle_timeout;
            tokio::time::sleep_until(end).await;
            let is_idle = lease.lock().last_used + self.spec.lease_idle_timeout <= Instant::now();
            if is_idle && !lease.has_followers() && self.leases.remove(lease, false) {
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
        while !lease.lock().subscriptions.is_empty() && !lease.is_closed.load(Ordering::Acquire) {
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
    async fn run_maintenance(&self, lease: &Arc<Lease>, sink: Option<&Arc<dyn ClientSink>>) {
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
            let Some(connection) = lease.open_connection().filter(|_| sink.is_some()) else {
                self.report_list_changes(&changed);
                continue;
            };
            let mut changes = Vec::new();
            let mut unheard = changed;
            for list in List::ALL.into_iter().filter(|list| changed[*list as usize]) {
                if self.refresh_own_list(lease, &connection, list).await {
                    changes.push(list.change_event());
                    unheard[list as usize] = lease.hub.as_ref().is_some_and(|hub| !hub.has_listeners());
                }
            }
            if lease.hub.is_some() {
                self.report_list_changes(&unheard);
            }
            changes.dedup();
            for change in changes {
                if let Some(sink) = sink {
                    sink.notify(change.notification());
                }
            }
        }
    }

    /// Reports changes that no listener of this lease hears: everybody else is told by the catalog, also of an announced
    /// change that left the list as it was.
    fn report_list_changes(&self, changed: &[bool; List::ALL.len()]) {
        let lists: Vec<List> = List::ALL.into_iter().filter(|list| changed[*list as usize]).collect();
        self.shared.report_list_changes(&lists);
    }

    /// Re-reads a list that was announced as changed; true when it differs from what its client has seen.
    async fn refresh_own_list(&self, lease: &Arc<Lease>, connection: &Arc<Connection>, list: List) -> bool {
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
        let has_changed = before.is_some() || own.is_some();
        drop(replay_state);
        if has_changed {
            lease.list_epoch.fetch_add(1, Ordering::AcqRel);
            self.leases.note_own_lists(lease);
        }
        differs
    }
}
