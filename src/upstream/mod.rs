//! Configured servers and what the gateway needs of them.
//!
//! An [`Upstream`] has one [`Leg`] for each era in which its clients use it. A [`Supervisor`] keeps the shared connection
//! of a leg open, the catalog task keeps its lists current, and leases give each client a connection of its own where
//! the server keeps sessions. Servers inside this process ([`LocalServer`](crate::local::LocalServer)) need none of
//! these.

mod caller_hub;
mod caller_lease;
mod catalog;
mod descriptions;
mod health;
mod lease;
mod lease_guard;
mod lease_key;
mod lease_task;
mod leases;
mod leg;
mod legs;
pub mod lists;
mod liveness;
mod revision_counts;
mod spec;
mod state;
mod supervisor;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::dialect::Revision;
use leg::CallCounts;
use legs::{HandshakeLeg, HandshakeLegTask};

pub use caller_hub::{CallerHub, HubListener};
pub use caller_lease::{CallerSubscription, SUBSCRIBE_TIMEOUT};
pub use descriptions::FirstDescriptions;
pub use health::{ConnectAttempt, Health, HealthPhase};
pub use lease_guard::LeaseGuard;
pub use lease_key::{AcceptedRequests, SERVER_REQUEST_CAPABILITIES, without_server_requests};
pub use leases::OwnLists;
pub use leg::Leg;
pub use legs::{LegChoice, LegReport, LegWatcher};
pub use lists::{CatalogList, List};
pub use revision_counts::RevisionPair;
pub use spec::{ConnectionMode, SpecKind, UpstreamSpec};
pub use state::{CatalogState, ConnectionFacts, Grant, SubscriptionGuard};
pub use supervisor::Supervisor;

/// One configured server with the legs that its clients use.
#[derive(Debug)]
pub struct Upstream {
    spec: UpstreamSpec,
    /// The leg that probing found: per-request where the server speaks both eras.
    probed: Arc<Leg>,
    /// The handshake leg of a server whose probed leg is per-request.
    handshake: watch::Sender<HandshakeLeg>,
    /// Whether a client has asked for the handshake leg.
    handshake_wanted: watch::Sender<bool>,
    counts: CallCounts,
    descriptions: Arc<FirstDescriptions>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// How often [`Upstream::retire`] checks whether the calls in flight have finished.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Upstream {
    /// Starts the upstream's tasks; returns before it is connected.
    pub fn start(spec: UpstreamSpec) -> Arc<Self> {
        Self::start_knowing(spec, Arc::default())
    }

    /// Starts the same server anew, which keeps what was seen of it first.
    pub fn restart(&self) -> Arc<Self> {
        Self::start_knowing(self.spec.clone(), Arc::clone(&self.descriptions))
    }

    fn start_knowing(spec: UpstreamSpec, descriptions: Arc<FirstDescriptions>) -> Arc<Self> {
        let counts = CallCounts::default();
        let upstream = Arc::new(Self {
            probed: Leg::start(spec.clone(), counts.clone(), Arc::clone(&descriptions)),
            descriptions,
            handshake: watch::Sender::new(HandshakeLeg::Unasked),
            handshake_wanted: watch::Sender::new(false),
            counts,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            spec,
        });
        if upstream.may_have_two_legs() {
            upstream.tasks.spawn(HandshakeLegTask::new(&upstream).run());
        }
        upstream
    }

    /// Configured name.
    pub fn name(&self) -> &Arc<str> {
        &self.spec.name
    }

    /// Configuration of the upstream.
    pub fn spec(&self) -> &UpstreamSpec {
        &self.spec
    }

    /// Catalog of the leg that probing found: health, server info and lists.
    pub fn state(&self) -> Arc<CatalogState> {
        self.probed.state()
    }

    /// The descriptions that its lists had first.
    pub fn first_descriptions(&self) -> &FirstDescriptions {
        &self.descriptions
    }

    /// The legs that are open now, that found by probing first.
    pub fn open_legs(&self) -> Vec<Arc<Leg>> {
        let handshake = self.handshake.borrow().leg().cloned();
        std::iter::once(Arc::clone(&self.probed)).chain(handshake).collect()
    }

    /// The leg that probing found.
    pub fn probed_leg(&self) -> &Arc<Leg> {
        &self.probed
    }

    /// Connections leased to clients now.
    pub fn lease_count(&self) -> usize {
        self.open_legs().iter().map(|leg| leg.lease_count()).sum()
    }

    /// Calls that use the upstream now.
    pub fn calls_in_flight(&self) -> usize {
        self.counts.in_flight.load(Ordering::Acquire)
    }

    /// Forwarded calls by revision pair.
    pub fn revision_pairs(&self) -> Vec<RevisionPair> {
        self.counts.revisions.pairs()
    }

    fn may_have_two_legs(&self) -> bool {
        let (client, server) = (Revision::NEWEST_HANDSHAKE, Revision::NEWEST);
        let is_pinned = self.spec.settings.revision.is_some();
        !self.spec.is_local() && !is_pinned && self.spec.leg_rule.wants_handshake_leg(client, server)
    }

    /// Refuses new calls, waits up to `drain_timeout` for those in flight, then stops.
    pub async fn retire(&self, drain_timeout: Duration) {
        self.open_legs().iter().for_each(|leg| leg.retire());
        let end = Instant::now() + drain_timeout;
        while self.calls_in_flight() > 0 && Instant::now() < end {
            tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
        }
        self.stop().await;
    }

    /// Closes every connection and stops child processes. Upstream sessions are ended, except those that another
    /// node may resume.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        // The handshake leg is stopped by its task.
        futures_util::future::join(self.probed.stop(), self.tasks.wait()).await;
    }
}
