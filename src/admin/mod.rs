//! Health, metrics and status for operators.

mod gauges;
mod status;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;

use crate::cluster::Cluster;
use crate::dialect::Revision;
use crate::gateway::{AppliedChanges, Gateway};
use crate::http::server::TlsServer;
use crate::issuers::{IssuerSettings, Issuers};
use crate::metrics_export::MetricsExporter;
use crate::session::Sessions;
use crate::shutdown::Shutdown;

pub use status::{
    CallsByRevision, ClusterStatus, ConfigStatus, GroupStatus, LegStatus, LimitMeasureStatus, LimitStatus, ListCounts,
    SessionStatus, SessionUpstreamStatus, StatusReport, TlsStatus, UpstreamStatus, unix_seconds,
};

/// What a reload did.
#[derive(Debug, Clone)]
pub struct ReloadReport {
    /// When it was done.
    pub at: SystemTime,
    /// Whether the file was applied.
    pub is_applied: bool,
    /// What changed among servers and groups.
    pub changes: AppliedChanges,
    /// Names of the settings, tables and groups that changed, never their values.
    pub settings: Vec<String>,
    /// Errors of the refused file, or warnings about the applied one.
    pub problems: Vec<String>,
}

/// Reloads that are remembered.
const MAX_RELOADS: usize = 10;

/// Reads readiness, metrics and status from the running gateway.
#[derive(Debug)]
pub struct Admin {
    gateway: Arc<Gateway>,
    sessions: Arc<Sessions>,
    shutdown: Shutdown,
    cluster: Option<Arc<Cluster>>,
    /// The issuers whose tokens are accepted, for their figures and for a reload.
    issuers: ArcSwap<Issuers>,
    /// The certificate in use, if clients speak TLS.
    tls: Arc<ArcSwapOption<TlsServer>>,
    metrics_exporter: MetricsExporter,
    started_at: SystemTime,
    configuration: Mutex<ConfigStatus>,
    /// The last reloads, oldest first.
    reloads: Mutex<VecDeque<ReloadReport>>,
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
        tls: Arc<ArcSwapOption<TlsServer>>,
    ) -> Self {
        Self {
            gateway,
            sessions,
            shutdown,
            cluster,
            issuers: ArcSwap::from_pointee(Issuers::new(Vec::new())),
            tls,
            metrics_exporter: MetricsExporter::default(),
            started_at: SystemTime::now(),
            configuration: Mutex::default(),
            reloads: Mutex::default(),
            has_been_ready: AtomicBool::new(false),
        }
    }

    /// Replaces the issuers; those that did not change keep their keys and what they verified.
    pub fn replace_issuers(&self, settings: Vec<IssuerSettings>) -> Arc<Issuers> {
        let mut issuers = Issuers::new(settings);
        issuers.succeed(&self.issuers.load());
        let issuers = Arc::new(issuers);
        self.issuers.store(Arc::clone(&issuers));
        issuers
    }

    /// The issuers whose tokens are accepted.
    pub fn issuers(&self) -> Arc<Issuers> {
        self.issuers.load_full()
    }

    /// Has metrics exported by OTLP.
    pub fn metrics_exporter(&self) -> &MetricsExporter {
        &self.metrics_exporter
    }

    /// Updates the configuration part of the status, after a reload was applied or refused.
    pub fn update_config_status(&self, update: impl FnOnce(&mut ConfigStatus)) {
        update(&mut self.configuration.lock());
    }

    /// Remembers what a reload did.
    pub fn record_reload(&self, reload: ReloadReport) {
        let mut reloads = self.reloads.lock();
        if reloads.len() == MAX_RELOADS {
            reloads.pop_front();
        }
        reloads.push_back(reload);
    }

    /// The last reloads, newest first.
    pub fn reloads(&self) -> Vec<ReloadReport> {
        self.reloads.lock().iter().rev().cloned().collect()
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
