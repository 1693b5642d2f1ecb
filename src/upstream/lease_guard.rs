//! A connection in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::leases::Lease;
use crate::mcp_client::Connection;

/// A connection in use. Dropping it gives it back.
#[derive(Debug)]
pub struct LeaseGuard {
    connection: Arc<Connection>,
    lent: Option<Arc<Lease>>,
    _busy: InFlightGuard,
}

/// Counts the calls at work.
#[derive(Debug)]
pub(super) struct InFlightGuard(Arc<AtomicUsize>);

/// Gives a connection back that could not be used.
pub(super) struct ReleaseOnDrop(pub(super) Option<Arc<Lease>>);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        if let Some(lent) = self.0.take() {
            lent.give_back();
        }
    }
}

// === impl Borrowed ===

impl LeaseGuard {
    /// A connection that only this caller uses.
    pub(super) fn own(connection: Arc<Connection>, lent: Arc<Lease>, busy: InFlightGuard) -> Self {
        Self { connection, lent: Some(lent), _busy: busy }
    }

    /// A connection that everybody uses.
    pub(super) fn shared(connection: Arc<Connection>, busy: InFlightGuard) -> Self {
        Self { connection, lent: None, _busy: busy }
    }

    /// The connection.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Whether a question on it is sure to be meant for this caller: it has the connection for itself,
    /// or questions come as answers to its calls.
    pub fn may_ask(&self) -> bool {
        self.lent.is_some() || !self.connection.revision().facts().sessions
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

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if let Some(lent) = &self.lent {
            lent.give_back();
        }
    }
}

// === impl Busy ===

impl InFlightGuard {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
