//! Health, metrics and status for operators.

mod gauges;
mod status;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::cluster::Cluster;
use crate::dialect::Revision;
use crate::gateway::Gateway;
use crate::session::Sessions;
use crate::shutdown::Shutdown;

pub use status::{
    CallsByRevision, ClusterStatus, ConfigStatus, GroupStatus, LegStatus, ListCounts, SessionStatus,
    SessionUpstreamStatus, StatusReport, UpstreamStatus, unix_seconds,
};

/// Reads readiness, metrics and status from the running gateway.
#[derive(Debug)]
pub struct Admin {
    gateway: Arc<Gateway>,
    sessions: Arc<Sessions>,
    shutdown: Shutdown,
    cluster: Option<Arc<Cluster>>,
    started_at: SystemTime,
    configuration: Mutex<ConfigStatus>,
    /// Whether the gateway has been ready once. Upstreams that a reload adds later do not make it unready.
    has_been_ready: AtomicBool,
}

impl Admin {
    /// Starts reporting for this gateway; its uptime counts from now.
    pub fn new(
        gateway: Arc<Gateway>,
        sessions: Arc<Sessions>,
        shutdown: Shutdown,
        cluster: Option<Arc<Cluster>>,
    ) -> Self {
        Self {
            gateway,
            sessions,
            shutdown,
            cluster,
            started_at: SystemTime::now(),
            configuration: Mutex::default(),
            has_been_ready: AtomicBool::new(false),
        }
    }

    /// Updates the configuration part of the status, after a reload was applied or refused.
    pub fn update_config_status(&self, update: impl FnOnce(&mut ConfigStatus)) {
        update(&mut self.configuration.lock());
    }

    /// Readiness of this node, as `/readyz` reports it.
    ///
    /// # Errors
    /// The response body that says why requests cannot be served.
    pub fn ready(&self) -> Result<(), &'static str> {
        if self.shutdown.is_draining() {
            return Err("shutting down\n");
        }
        if self.cluster.as_ref().is_some_and(|cluster| !cluster.holds_lease()) {
            return Err("the store is away\n");
        }
        if self.cluster.as_ref().is_some_and(|cluster| cluster.store().is_full()) {
            return Err("the store has no room\n");
        }
        if !self.has_been_ready.load(Ordering::Relaxed) {
            if self.gateway.groups().iter().any(|group| group.is_starting(Revision::NEWEST)) {
                return Err("starting\n");
            }
            self.has_been_ready.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
