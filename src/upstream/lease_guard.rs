//! Guards for a connection while a call uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::lease::Lease;
use crate::mcp_client::Connection;

/// An upstream connection held for one call; dropping it releases the lease.
#[derive(Debug)]
pub struct LeaseGuard {
    connection: Arc<Connection>,
    lease: Option<Arc<Lease>>,
    _in_flight: InFlightGuard,
}

/// Counts one call in flight until dropped.
#[derive(Debug)]
pub(super) struct InFlightGuard(Arc<AtomicUsize>);

/// Releases a lease unless it was handed on to a [`LeaseGuard`].
pub(super) struct ReleaseOnDrop(pub(super) Option<Arc<Lease>>);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        if let Some(lease) = self.0.take() {
            lease.release();
        }
    }
}

// === impl LeaseGuard ===

impl LeaseGuard {
    /// Guard for a connection leased to this caller alone.
    pub(super) fn exclusive(connection: Arc<Connection>, lease: Arc<Lease>, in_flight: InFlightGuard) -> Self {
        Self { connection, lease: Some(lease), _in_flight: in_flight }
    }

    /// Guard for the connection that all clients share.
    pub(super) fn shared(connection: Arc<Connection>, in_flight: InFlightGuard) -> Self {
        Self { connection, lease: None, _in_flight: in_flight }
    }

    /// The connection to send the call on.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Whether this caller has the connection for itself.
    pub fn is_exclusive(&self) -> bool {
        self.lease.is_some()
    }

    /// Whether a server request on this connection can be attributed to this caller: the connection is leased,
    /// or the revision carries server requests in the response to a call.
    pub fn allows_server_requests(&self) -> bool {
        self.lease.is_some() || self.connection.revision().asks_by_result()
    }

    /// Records a subscription, or its end, for replay after a reconnect.
    pub fn record_subscription(&self, uri: &str, subscribed: bool) {
        let Some(lease) = &self.lease else { return };
        let mut replay_state = lease.lock();
        if subscribed {
            replay_state.subscriptions.insert(uri.into());
        } else {
            replay_state.subscriptions.remove(uri);
        }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if let Some(lease) = &self.lease {
            lease.release();
        }
    }
}

// === impl InFlightGuard ===

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
