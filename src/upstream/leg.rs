//! One leg of an upstream: an era of it, with the connections, leases and catalog that serve its clients.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::json;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::{Call, ChangeEvent, ClientSink, Replies};
use crate::dialect::to_upstream::ClientIdentity;
use crate::dialect::{LegFacts, Revision};
use crate::error::{Error, Result};
use crate::failure::{Failure, FailureKind};
use crate::local::LocalServer;
use crate::local::elements::Elements;
use crate::local::rest::{self, Rest, RestLimits};
use crate::mcp_client::{ConnectionSettings, HttpTransport, Target};
use crate::protocol::{ErrorObject, Raw};

use super::catalog::Catalog;
use super::descriptions::FirstDescriptions;
use super::lease_guard::{InFlightGuard, LeaseGuard};
use super::leases::Leases;
use super::revision_counts::RevisionCounts;
use super::spec::{ConnectionMode, SpecKind, UpstreamSpec};
use super::state::{CatalogShared, CatalogState, SubscriptionGuard};
use super::supervisor::{self, Supervisor};

/// One era of a configured server, with its connections, leases and catalog.
#[derive(Debug)]
pub struct Leg {
    pub(super) spec: UpstreamSpec,
    /// The revision to open connections with until one was negotiated.
    pub(super) opening_revision: Option<Revision>,
    pub(super) identity: ClientIdentity,
    kind: LegKind,
    pub(super) shared: Arc<CatalogShared>,
    pub(super) leases: Leases,
    counts: CallCounts,
    retired: CancellationToken,
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
}

/// What is counted for all legs of an upstream together.
#[derive(Debug, Clone, Default)]
pub(super) struct CallCounts {
    /// Calls that use the upstream now.
    pub(super) in_flight: Arc<AtomicUsize>,
    pub(super) revisions: Arc<RevisionCounts>,
}

#[derive(Debug)]
enum LegKind {
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

impl Leg {
    /// Starts the tasks of the leg that probing finds; returns before it is connected.
    pub(super) fn start(spec: UpstreamSpec, counts: CallCounts, descriptions: Arc<FirstDescriptions>) -> Arc<Self> {
        let settings = ConnectionSettings { prefers_handshake: spec.leg_rule.opens_with_handshake(), ..spec.settings };
        Self::start_with(spec, settings, counts, descriptions)
    }

    /// Starts the tasks of the handshake leg.
    pub(super) fn start_handshake(mut spec: UpstreamSpec, counts: CallCounts) -> Arc<Self> {
        // What takes POST in one era is not asked for HTTP+SSE in the other.
        if let SpecKind::Target(Target::Url(address)) = &mut spec.kind {
            address.transport = Some(HttpTransport::Streamable);
        }
        let settings = ConnectionSettings { revision: Some(Revision::NEWEST_HANDSHAKE), ..spec.settings };
        // The lists of this leg may differ from those of the other.
        Self::start_with(spec, settings, counts, Arc::default())
    }

    fn start_with(
        spec: UpstreamSpec,
        settings: ConnectionSettings,
        counts: CallCounts,
        descriptions: Arc<FirstDescriptions>,
    ) -> Arc<Self> {
        let opening_revision = settings.revision;
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
                (LegKind::Local(Arc::new(server.into())), shared)
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
                (LegKind::Local(slot), shared)
            }
            SpecKind::Target(target) => {
                let shared = CatalogShared::new(CatalogState::starting(target.transport()));
                let (unsolicited_sender, unsolicited_receiver) = mpsc::channel(MAX_QUEUED_UNSOLICITED);
                let supervisor = Supervisor::start(target.clone(), settings, identity.clone(), unsolicited_sender);
                let catalog = Catalog {
                    spec: spec.clone(),
                    shared: Arc::clone(&shared),
                    descriptions,
                    connections: supervisor.watch_connection(),
                    health: supervisor.watch_health(),
                    unsolicited: unsolicited_receiver,
                    stop: stop.clone(),
                };
                tasks.spawn(catalog.run());
                (LegKind::Remote(supervisor), shared)
            }
        };
        let leases = Leases::new(spec.max_leases);
        let retired = CancellationToken::new();
        Arc::new(Self { spec, opening_revision, identity, kind, shared, leases, counts, retired, stop, tasks })
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

    /// Counts a forwarded call by the revisions of client and server.
    pub fn count_revision_pair(&self, client: Revision, server: Revision) {
        self.counts.revisions.increment(client, server);
    }

    /// What is compared of the leg; `None` before the first connect.
    pub fn facts(&self) -> Option<LegFacts> {
        let state = self.state();
        let (server, revision) = (state.server.as_ref()?, state.revision?);
        let asks_one_client = state.keeps_session && self.spec.connection_mode == ConnectionMode::PerClient;
        let reaches_client = revision.asks_by_result() || asks_one_client;
        Some(LegFacts { revision, capabilities: server.capabilities.clone(), reaches_client })
    }

    /// Calls a server in this process; `None` for a remote one.
    pub fn call_local(&self, call: &Call) -> Option<Replies> {
        match &self.kind {
            LegKind::Local(slot) => Some(match slot.get() {
                Some(server) => server.call(call),
                None => ErrorObject::from(self.document_missing()).into(),
            }),
            LegKind::Remote(_) => None,
        }
    }

    /// Whether the server is a child process that keeps sessions, as far as its revision is known.
    pub fn is_child_with_sessions(&self) -> bool {
        matches!(self.spec.kind, SpecKind::Target(Target::Command(_)))
            && self.state().revision.is_none_or(|revision| revision.has_sessions())
    }

    /// Whether the caller uses a lease, as far as the server's revision is known.
    pub fn uses_lease(&self, call: &Call) -> bool {
        call.sink.is_some() && self.has_caller_leases()
    }

    /// A connection for a call, only if it can be had without waiting.
    pub fn try_acquire(&self, call: &Call) -> Option<LeaseGuard> {
        let LegKind::Remote(supervisor) = &self.kind else { return None };
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
        let LegKind::Remote(supervisor) = &self.kind else {
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

    pub(super) fn in_flight_guard(&self) -> InFlightGuard {
        InFlightGuard::new(&self.counts.in_flight)
    }

    /// Fails with the supervisor's failure while the upstream is down.
    pub(super) fn check_reachable(&self) -> Result<()> {
        let LegKind::Remote(supervisor) = &self.kind else { return Ok(()) };
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

    pub(super) fn check_not_retired(&self) -> Result<()> {
        match self.retired.is_cancelled() {
            true => Err(Error::failure(FailureKind::Unreachable, "the upstream was removed")),
            false => Ok(()),
        }
    }

    pub(super) fn target(&self) -> Result<&Target> {
        match &self.spec.kind {
            SpecKind::Target(target) => Ok(target),
            SpecKind::Elements(_) | SpecKind::Rest(_) => Err(Error::usage("it needs no connection")),
        }
    }

    /// Refuses new calls.
    pub(super) fn retire(&self) {
        self.retired.cancel();
        self.leases.retire();
    }

    /// Closes every connection and stops child processes. Upstream sessions are ended, except those that another
    /// node may resume.
    pub(super) async fn stop(&self) {
        self.retired.cancel();
        self.stop.cancel();
        if let LegKind::Remote(supervisor) = &self.kind {
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
                    let wait = supervisor::back_off(failures);
                    self.shared.modify(|state| {
                        state.startup_finished = true;
                        state.health.record_failed_connect(error.into_failure(), wait);
                    });
                    tokio::time::sleep(wait).await;
                }
            }
        };
        let server = self.slot.get_or_init(|| Box::new(rest));
        self.shared.modify(|state| {
            state.set_local_server(server.as_ref());
            state.health.record_connect();
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
