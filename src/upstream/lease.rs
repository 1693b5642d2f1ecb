//! One lease: its connection, and what is replayed on the next one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::caller_hub::CallerHub;
use super::lease_key::LeaseKey;
use super::lists::{CatalogList, List};
use crate::call::{ChangeEvent, ClientSink};
use crate::dialect::to_upstream::ClientIdentity;
use crate::mcp_client::{Connection, ResumableSession, Unsolicited};
use crate::protocol::{Level, Method, Raw};

/// A connection to the upstream that one client has for itself, reopened when it breaks.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) key: LeaseKey,
    pub(super) identity: ClientIdentity,
    pub(super) connection: watch::Sender<Option<Arc<Connection>>>,
    /// Serializes opening: one task connects, the others wait for it.
    pub(super) open_lock: Arc<tokio::sync::Mutex<()>>,
    /// The client is gone; the lease must not be opened again.
    pub(super) is_closed: AtomicBool,
    /// Wakes the maintenance loop.
    pub(super) maintenance_due: Notify,
    pub(super) unsolicited: mpsc::Sender<Unsolicited>,
    /// Where the upstream session is saved so that another node can resume it.
    pub(super) resumable: Option<Arc<ResumableSession>>,
    /// The listeners of a caller without a session, where this is its main lease.
    pub(super) hub: Option<Arc<CallerHub>>,
    /// Another client needs the room more.
    pub(super) evicted: CancellationToken,
    /// Calls that use the lease now.
    pub(super) calls_in_flight: AtomicUsize,
    pub(super) replay_state: Mutex<ReplayState>,
    /// Incremented whenever `own_lists` changes; 0 while the client sees only the shared catalog.
    pub(super) list_epoch: AtomicU64,
    pub(super) _permit: OwnedSemaphorePermit,
}

/// State that is replayed on a new connection, and the lists that only this lease has.
#[derive(Debug)]
pub(super) struct ReplayState {
    pub(super) last_used: Instant,
    pub(super) log_level: Option<Level>,
    pub(super) subscriptions: BTreeSet<Box<str>>,
    /// Lists that differ from the shared catalog on this connection.
    pub(super) own_lists: [Option<Arc<CatalogList>>; List::ALL.len()],
    /// Lists announced as changed and not read again yet.
    pub(super) changed_lists: [bool; List::ALL.len()],
    /// The server started a new session, so log level and subscriptions have to be replayed.
    pub(super) session_lost: bool,
}

// === impl Lease ===

impl Lease {
    pub(super) fn lock(&self) -> MutexGuard<'_, ReplayState> {
        self.replay_state.lock()
    }

    pub(super) fn open_connection(&self) -> Option<Arc<Connection>> {
        self.connection.borrow().clone().filter(|connection| !connection.is_closed())
    }

    /// Whether this is where its client has its state, not a lease beside that for a single call.
    pub(super) fn is_main(&self) -> bool {
        self.hub.is_some() || matches!(self.key, LeaseKey::Session(_))
    }

    /// Whether somebody waits for what the server says outside of calls.
    pub(super) fn has_followers(&self) -> bool {
        self.hub.as_ref().is_some_and(|hub| hub.has_listeners()) || !self.lock().subscriptions.is_empty()
    }

    pub(super) fn attributes_server_requests(&self) -> bool {
        self.connection.borrow().as_ref().is_some_and(|connection| connection.attributes_server_requests())
    }

    /// Forwards a notification or server request to the client. Never blocks.
    pub(super) fn on_unsolicited(&self, message: Unsolicited, sink: Option<&Arc<dyn ClientSink>>) {
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

    pub(super) fn mark_lists_changed(&self, lists: &[List]) {
        let mut replay_state = self.lock();
        for list in lists {
            replay_state.changed_lists[*list as usize] = true;
        }
        drop(replay_state);
        self.maintenance_due.notify_one();
    }

    /// Reports every subscribed resource as updated: updates during the gap were lost.
    pub(super) fn notify_missed_updates(&self, sink: Option<&Arc<dyn ClientSink>>) {
        let missed: Vec<Box<str>> = self.lock().subscriptions.iter().cloned().collect();
        for (uri, sink) in missed.iter().zip(std::iter::repeat(sink).flatten()) {
            sink.notify(ChangeEvent::ResourceUpdated(uri.as_ref().into()).notification());
        }
    }

    /// Marks own lists for a re-read: a new connection may not have them any more.
    pub(super) fn recheck_own_lists(&self) {
        let has_own = |list: &List| self.lock().own_lists[*list as usize].is_some();
        let own: Vec<List> = List::ALL.into_iter().filter(has_own).collect();
        self.mark_lists_changed(&own);
    }

    /// Replays log level and subscriptions on a new connection.
    pub(super) async fn replay_onto(&self, connection: &Arc<Connection>) {
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

pub(super) async fn set_log_level(connection: &Arc<Connection>, level: Level) {
    let params = Raw::of(&json!({ "level": level.as_str() }));
    if let Err(error) = connection.request(Method::SetLevel, Some(params)).await {
        tracing::debug!(%error, "logging/setLevel failed");
    }
}
