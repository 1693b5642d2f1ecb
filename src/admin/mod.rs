//! What a gateway tells of itself to those who operate it.

mod gauges;
mod status;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::cluster::Cluster;
use crate::gateway::Gateway;
use crate::session::Sessions;
use crate::shutdown::Shutdown;

pub use status::{
    ClusterStatus, Configuration, FacingStatus, GroupStatus, ListCounts, MeetingStatus, SessionStatus, StatusReport,
    UpstreamStatus, seconds,
};

/// What a gateway tells of itself.
#[derive(Debug)]
pub struct Admin {
    gateway: Arc<Gateway>,
    sessions: Arc<Sessions>,
    shutdown: Shutdown,
    cluster: Option<Arc<Cluster>>,
    started: SystemTime,
    configuration: Mutex<Configuration>,
    /// Whether it was ready once. What a reload adds after that is not waited for.
    was_ready: AtomicBool,
}

impl Admin {
    /// Tells of this gateway, from now on.
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
            started: SystemTime::now(),
            configuration: Mutex::default(),
            was_ready: AtomicBool::new(false),
        }
    }

    /// A configuration was read, and taken or not.
    pub fn configured(&self, change: impl FnOnce(&mut Configuration)) {
        change(&mut self.configuration.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether requests can be served as they are meant to be, or why not.
    ///
    /// # Errors
    /// A line that says why not.
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
        if !self.was_ready.load(Ordering::Relaxed) {
            if self.gateway.groups().iter().any(|group| group.is_settling()) {
                return Err("starting\n");
            }
            self.was_ready.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
