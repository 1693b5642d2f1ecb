//! Configured servers and what the gateway needs of them.
//!
//! A [`Supervisor`] keeps the shared connection of a remote server open, the catalog task keeps its lists current,
//! and leases give each client a connection of its own where the server keeps sessions. Servers inside this
//! process ([`LocalServer`]) need none of these.

mod catalog;
mod health;
mod lease_guard;
mod lease_key;
mod leases;
pub mod lists;
mod liveness;
mod revision_counts;
mod spec;
mod state;
mod supervisor;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::json;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::{Call, ChangeEvent, ClientSink, Replies};
use crate::dialect::Revision;
use crate::dialect::to_upstream::ClientIdentity;
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureKind};
use crate::local::LocalServer;
use crate::local::elements::Elements;
use crate::local::rest::{self, Rest, RestLimits};
use crate::mcp_client::{ConnectionSettings, Target};
use crate::protocol::{ErrorObject, Raw};
use catalog::Catalog;
use lease_guard::InFlightGuard;
use leases::Leases;
use revision_counts::RevisionCounts;
use state::CatalogShared;

pub use health::{Health, HealthPhase};
pub use lease_guard::LeaseGuard;
pub use lease_key::SERVER_REQUEST_CAPABILITIES;
pub use lists::{CatalogList, List};
pub use revision_counts::RevisionPair;
pub use spec::{ConnectionMode, SpecKind, UpstreamSpec};
pub use state::{CatalogState, Grant, SubscriptionGuard};
pub use supervisor::Supervisor;

/// One configured server with its connections, leases and catalog.
#[derive(Debug)]
pub struct Upstream {
    spec: UpstreamSpec,
    identity: ClientIdentity,
    kind: UpstreamKind,
    shared: Arc<CatalogShared>,
    leases: Leases,
    /// Calls that use the upstream now.
    calls_in_flight: Arc<AtomicUsize>,
    revision_counts: RevisionCounts,
    retired: CancellationToken,
    stop: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Debug)]
enum UpstreamKind {
    /// In this process; empty until an API document is loaded.
    Local(LocalSlot),
    Remote(Supervisor),
}

/// Where a local server is put once it is ready.
type LocalSlot = Arc<OnceLock<Box<dyn LocalServer>>>;

/// Queue bound for notifications and server requests on the catalog connection.
const MAX_QUEUED_UNSOLICITED: usize = 1024;
/// How long a call waits for an upstream that is still connecting.
const CONNECTION_WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often [`Upstream::retire`] checks whether the calls in flight have finished.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Upstream {
    /// Starts the upstream's tasks; returns before it is connected.
    pub fn start(spec: UpstreamSpec) -> Arc<Self> {
        let info = json!({ "name": "rialto", "title": "Rialto", "version": env!("CARGO_PKG_VERSION") });
        let identity = ClientIdentity { capabilities: Raw::empty(), info: Raw::of(&info) };
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let (kind, shared) = match &spec.kind {
            SpecKind::Elements(spotlight) => {
                let elements = Elements::new(*spotlight);
                let mut state = CatalogState::starting("in this process");
                state.set_local_server(&elements);
                let shared = CatalogShared::local(state);
                tasks.spawn(follow_elements(elements.clone(), Arc::clone(&shared), stop.clone()));
                let server: Box<dyn LocalServer> = Box::new(elements);
                (UpstreamKind::Local(Arc::new(server.into())), shared)
            }
            SpecKind::Rest(api) => {
                let shared = CatalogShared::local(CatalogState::starting("rest"));
                let slot = LocalSlot::default();
                let loader = RestLoader {
                    name: Arc::clone(&spec.name),
                    api: api.clone(),
                    limits: rest_limits(&spec.settings),
                    shared: Arc::clone(&shared),
                    slot: Arc::clone(&slot),
                };
                let stop = stop.clone();
                tasks.spawn(async move { stop.run_until_cancelled(loader.run()).await });
                (UpstreamKind::Local(slot), shared)
            }
            SpecKind::Target(target) => {
                let shared = CatalogShared::new(CatalogState::starting(target.transport()));
                let (unsolicited_sender, unsolicited_receiver) = mpsc::channel(MAX_QUEUED_UNSOLICITED);
                let supervisor =
                    Supervisor::start(target.clone(), spec.settings.clone(), identity.clone(), unsolicited_sender);
                let catalog = Catalog {
                    spec: spec.clone(),
                    shared: Arc::clone(&shared),
                    connections: supervisor.watch_connection(),
                    health: supervisor.watch_health(),
                    unsolicited: unsolicited_receiver,
                    stop: stop.clone(),
                };
                tasks.spawn(catalog.run());
                (UpstreamKind::Remote(supervisor), shared)
            }
        };
        let leases = Leases::new(spec.max_leases);
        let retired = CancellationToken::new();
        let (calls_in_flight, revision_counts) = (Arc::default(), RevisionCounts::default());
        Arc::new(Self { spec, identity, kind, shared, leases, calls_in_flight, revision_counts, retired, stop, tasks })
    }

    /// Configured name.
    pub fn name(&self) -> &Arc<str> {
        &self.spec.name
    }

    /// Configuration of the upstream.
    pub fn spec(&self) -> &UpstreamSpec {
        &self.spec
    }

    /// Current catalog: health, server info and lists.
    pub fn state(&self) -> Arc<CatalogState> {
        self.shared.state()
    }

    /// Catalog that notifies of each change.
    pub fn watch(&self) -> watch::Receiver<Arc<CatalogState>> {
        self.shared.watch()
    }

    /// URIs of [subscribed](Self::subscribe) resources as they are updated.
    pub fn resource_updates(&self) -> broadcast::Receiver<Arc<str>> {
        self.shared.resource_updates()
    }

    /// Subscribes to updates of a resource until the guard is dropped.
    pub fn subscribe(&self, uri: &str) -> SubscriptionGuard {
        self.shared.subscribe(uri)
    }

    /// URIs with at least one [subscription](Self::subscribe).
    pub fn subscribed_uris(&self) -> Vec<Arc<str>> {
        self.shared.subscribed_uris()
    }

    /// Connections leased to clients now.
    pub fn lease_count(&self) -> usize {
        self.leases.count()
    }

    /// Calls that use the upstream now.
    pub fn calls_in_flight(&self) -> usize {
        self.calls_in_flight.load(Ordering::Acquire)
    }

    /// Counts a forwarded call by the revisions of client and server.
    pub fn count_revision_pair(&self, client: Revision, server: Revision) {
        self.revision_counts.increment(client, server);
    }

    /// Forwarded calls by revision pair.
    pub fn revision_pairs(&self) -> Vec<RevisionPair> {
        self.revision_counts.pairs()
    }

    /// Calls a server in this process; `None` for a remote one.
    pub fn call_local(&self, call: &Call) -> Option<Replies> {
        match &self.kind {
            UpstreamKind::Local(slot) => Some(match slot.get() {
                Some(server) => server.call(call),
                None => ErrorObject::from(self.document_missing()).into(),
            }),
            UpstreamKind::Remote(_) => None,
        }
    }

    /// Whether the server is a child process that keeps sessions, as far as its revision is known.
    pub fn is_child_with_sessions(&self) -> bool {
        matches!(self.spec.kind, SpecKind::Target(Target::Command(_)))
            && self.state().revision.is_none_or(|revision| revision.has_sessions())
    }

    /// Whether the caller uses a lease, as far as the server's revision is known.
    pub fn uses_lease(&self, call: &Call) -> bool {
        let keeps_sessions = self.state().revision.is_some_and(|revision| revision.has_sessions());
        matches!(self.kind, UpstreamKind::Remote(_))
            && self.spec.connection_mode == ConnectionMode::PerClient
            && keeps_sessions
            && call.sink.is_some()
    }

    /// A connection for a call, only if it can be had without waiting.
    pub fn try_acquire(&self, call: &Call) -> Option<LeaseGuard> {
        let UpstreamKind::Remote(supervisor) = &self.kind else { return None };
        let revision = self.shared.revision().filter(|_| !self.retired.is_cancelled())?;
        if self.spec.connection_mode == ConnectionMode::Shared || !revision.has_sessions() {
            return Some(LeaseGuard::shared(supervisor.open_connection()?, self.in_flight_guard()));
        }
        self.try_acquire_lease(call)
    }

    /// A connection for a call. Waits while one is opened, but fails at once when the server is down.
    ///
    /// # Errors
    /// The upstream is down, was removed, has no lease left, or does not connect in time.
    pub async fn acquire(
        self: &Arc<Self>,
        call: &Call,
        sink: impl FnOnce() -> Option<Arc<dyn ClientSink>>,
    ) -> Result<LeaseGuard> {
        self.check_not_retired()?;
        let UpstreamKind::Remote(supervisor) = &self.kind else {
            return Err(Error::usage("it needs no connection"));
        };
        let state = self.state();
        let revision = match state.revision {
            Some(revision) => revision,
            None => supervisor.connection(CONNECTION_WAIT_TIMEOUT).await?.revision(),
        };
        if self.spec.connection_mode == ConnectionMode::Shared || !revision.has_sessions() {
            let connection = supervisor.connection(CONNECTION_WAIT_TIMEOUT).await?;
            return Ok(LeaseGuard::shared(connection, self.in_flight_guard()));
        }
        self.acquire_lease(call, sink).await
    }

    fn in_flight_guard(&self) -> InFlightGuard {
        InFlightGuard::new(&self.calls_in_flight)
    }

    /// Fails with the supervisor's failure while the upstream is down.
    fn check_reachable(&self) -> Result<()> {
        let UpstreamKind::Remote(supervisor) = &self.kind else { return Ok(()) };
        match supervisor.health().down() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    /// The failure of a call while the API document is not loaded.
    fn document_missing(&self) -> Failure {
        let starting = || Failure::new(FailureKind::Starting, "the API document is not loaded yet");
        self.state().health.down().unwrap_or_else(starting)
    }

    fn check_not_retired(&self) -> Result<()> {
        match self.retired.is_cancelled() {
            true => Err(Error::failure(FailureKind::Unreachable, "the upstream was removed")),
            false => Ok(()),
        }
    }

    fn target(&self) -> Result<&Target> {
        match &self.spec.kind {
            SpecKind::Target(target) => Ok(target),
            SpecKind::Elements(_) | SpecKind::Rest(_) => Err(Error::usage("it needs no connection")),
        }
    }

    /// Refuses new calls, waits up to `drain_timeout` for those in flight, then stops.
    pub async fn retire(&self, drain_timeout: Duration) {
        self.retired.cancel();
        self.leases.retire();
        let end = Instant::now() + drain_timeout;
        while self.calls_in_flight() > 0 && Instant::now() < end {
            tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
        }
        self.stop().await;
    }

    /// Closes every connection and stops child processes. Upstream sessions are ended, except those that another
    /// node may resume.
    pub async fn stop(&self) {
        self.retired.cancel();
        self.stop.cancel();
        if let UpstreamKind::Remote(supervisor) = &self.kind {
            supervisor.stop().await;
        }
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Loads the tools of an HTTP API in the background.
struct RestLoader {
    name: Arc<str>,
    api: rest::RestSpec,
    limits: RestLimits,
    shared: Arc<CatalogShared>,
    slot: LocalSlot,
}

impl RestLoader {
    /// Retries with back-off until the API description is loaded.
    async fn run(self) {
        let mut failures = 0;
        let rest = loop {
            match Rest::load(&self.api, &self.limits).await {
                Ok(rest) => break rest,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(upstream = %self.name, %error, failures, "API document load failed");
                    self.shared.modify(|state| {
                        state.startup_finished = true;
                        state.health.set_phase(HealthPhase::Down, Some(error.into_failure()));
                    });
                    tokio::time::sleep(supervisor::back_off(failures)).await;
                }
            }
        };
        let server = self.slot.get_or_init(|| Box::new(rest));
        self.shared.modify(|state| {
            state.set_local_server(server.as_ref());
            state.health.connects += 1;
        });
    }
}

fn rest_limits(settings: &ConnectionSettings) -> RestLimits {
    let ConnectionSettings { connect_timeout, discovery_timeout, idle_timeout, message_bytes, json_depth, .. } =
        *settings;
    RestLimits { connect_timeout, discovery_timeout, call_timeout: idle_timeout, message_bytes, json_depth }
}

/// Publishes the resource updates of the built-in server.
async fn follow_elements(elements: Elements, shared: Arc<CatalogShared>, stop: CancellationToken) {
    let mut changes = elements.changes();
    let forward_changes = async {
        loop {
            match changes.recv().await {
                Ok(ChangeEvent::ResourceUpdated(uri)) => shared.publish_resource_update(uri),
                Ok(_) => {}
                Err(broadcast::error::RecvError::Lagged(_)) => shared.publish_all_resource_updates(),
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = forward_changes => {}
        () = elements.clone().run_spotlight() => {}
    }
}
