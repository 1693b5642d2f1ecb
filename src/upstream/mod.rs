//! Servers that we call.
//!
//! A [`Connection`] reaches one over stdio, HTTP+SSE or Streamable HTTP, whatever revision it
//! speaks; [`Target`] says where it is. What it says by itself, outside of any call, is
//! [`Unsolicited`].

mod catalog;
mod health;
mod lease_guard;
mod leases;
pub mod lists;
mod revision_counts;
mod spec;
mod state;
mod supervisor;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use serde_json::json;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::{Call, ChangeEvent, ClientSink, Replies};
use crate::dialect::Revision;
use crate::dialect::to_upstream::ClientIdentity;
use crate::error::{Error, ErrorKind as Wrong, Result};
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
pub use leases::QUESTIONS;
pub use lists::{List, Listed};
pub use revision_counts::RevisionPair;
pub use spec::{ConnectionMode, SpecKind, UpstreamSpec};
pub use state::{CatalogState, SubscriptionGuard};
pub use supervisor::Supervisor;

/// One configured server, whatever way it is reached, with what is known of it.
#[derive(Debug)]
pub struct Upstream {
    spec: UpstreamSpec,
    identity: ClientIdentity,
    kind: UpstreamKind,
    shared: Arc<CatalogShared>,
    leases: Leases,
    /// How many calls use it.
    calls_in_flight: Arc<AtomicUsize>,
    revision_counts: RevisionCounts,
    retired: CancellationToken,
    stop: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Debug)]
enum UpstreamKind {
    Elements(Elements),
    Rest(Arc<ArcSwapOption<Rest>>),
    Remote(Supervisor),
}

/// How many things that an upstream says by itself may wait.
const HEARD_WAITING: usize = 1024;
/// How long a call waits for an upstream that is being connected.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// How often a retired upstream is looked at.
const RETIRING: Duration = Duration::from_millis(50);

impl Upstream {
    /// Begins to look after a server.
    pub fn start(spec: UpstreamSpec) -> Arc<Self> {
        let info = json!({ "name": "rialto", "title": "Rialto", "version": env!("CARGO_PKG_VERSION") });
        let speaker = ClientIdentity { capabilities: Raw::empty(), info: Raw::of(&info) };
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let (kind, shared) = match &spec.kind {
            SpecKind::Elements(spotlight) => {
                let elements = Elements::new(*spotlight);
                let shared = CatalogShared::local(built_in(&elements));
                tasks.spawn(follow(elements.clone(), Arc::clone(&shared), stop.clone()));
                (UpstreamKind::Elements(elements), shared)
            }
            SpecKind::Rest(api) => {
                let shared = CatalogShared::local(CatalogState::starting("rest"));
                let loaded: Arc<ArcSwapOption<Rest>> = Arc::default();
                let loading = Loading {
                    name: Arc::clone(&spec.name),
                    api: api.clone(),
                    limits: rest_limits(&spec.settings),
                    shared: Arc::clone(&shared),
                    loaded: Arc::clone(&loaded),
                };
                let stop = stop.clone();
                tasks.spawn(async move { stop.run_until_cancelled(loading.run()).await });
                (UpstreamKind::Rest(loaded), shared)
            }
            SpecKind::Target(target) => {
                let shared = CatalogShared::new(CatalogState::starting(target.transport()));
                let (said, heard) = mpsc::channel(HEARD_WAITING);
                let managed = Supervisor::start(target.clone(), spec.settings.clone(), speaker.clone(), said);
                let catalog = Catalog {
                    spec: spec.clone(),
                    shared: Arc::clone(&shared),
                    connections: managed.connections(),
                    health: managed.watch(),
                    heard,
                    stop: stop.clone(),
                };
                tasks.spawn(catalog.run());
                (UpstreamKind::Remote(managed), shared)
            }
        };
        let lending = Leases::new(spec.max_leases);
        let retired = CancellationToken::new();
        let (busy, met) = (Arc::default(), RevisionCounts::default());
        Arc::new(Self {
            spec,
            identity: speaker,
            kind,
            shared,
            leases: lending,
            calls_in_flight: busy,
            revision_counts: met,
            retired,
            stop,
            tasks,
        })
    }

    /// What it is called here.
    pub fn name(&self) -> &Arc<str> {
        &self.spec.name
    }

    /// What it is configured to be.
    pub fn spec(&self) -> &UpstreamSpec {
        &self.spec
    }

    /// What is known of it.
    pub fn state(&self) -> Arc<CatalogState> {
        self.shared.state()
    }

    /// What is known of it, as that changes.
    pub fn watch(&self) -> watch::Receiver<Arc<CatalogState>> {
        self.shared.watch()
    }

    /// The resources that change, as far as somebody [wants](Self::want) to hear of them.
    pub fn updates(&self) -> broadcast::Receiver<Arc<str>> {
        self.shared.updates()
    }

    /// Somebody wants to hear of a resource, until what is given back is dropped.
    pub fn subscribe(&self, uri: &str) -> SubscriptionGuard {
        self.shared.subscribe(uri)
    }

    /// The resources that somebody [wants](Self::want) to hear of.
    pub fn wanted(&self) -> Vec<Arc<str>> {
        self.shared.wanted()
    }

    /// How many connections are lent to clients.
    pub fn lease_count(&self) -> usize {
        self.leases.count()
    }

    /// How many calls use it.
    pub fn calls_in_flight(&self) -> usize {
        self.calls_in_flight.load(Ordering::Acquire)
    }

    /// A call of a client is passed on to it, in the revision that it speaks.
    pub fn count_revision_pair(&self, client: Revision, server: Revision) {
        self.revision_counts.note(client, server);
    }

    /// Which clients have met it, and how often.
    pub fn revision_pairs(&self) -> Vec<RevisionPair> {
        self.revision_counts.meetings()
    }

    /// The replies to a call, where the server is in this process.
    pub fn answer(&self, call: &Call) -> Option<Replies> {
        match &self.kind {
            UpstreamKind::Elements(elements) => Some(elements.call(call)),
            UpstreamKind::Rest(loaded) => Some(match loaded.load().as_deref() {
                Some(rest) => rest.call(call),
                None => ErrorObject::unavailable("its document is not loaded").into(),
            }),
            UpstreamKind::Remote(_) => None,
        }
    }

    /// Whether it runs as a child, and keeps something for those who call it.
    pub fn is_child_with_sessions(&self) -> bool {
        matches!(self.spec.kind, SpecKind::Target(Target::Command(_)))
            && self.state().revision.is_none_or(|revision| revision.facts().sessions)
    }

    /// Whether a caller has a connection of its own to this server, as far as is known.
    pub fn lends(&self, call: &Call) -> bool {
        let keeps_sessions = self.state().revision.is_some_and(|revision| revision.facts().sessions);
        matches!(self.kind, UpstreamKind::Remote(_))
            && self.spec.connection_mode == ConnectionMode::PerClient
            && keeps_sessions
            && call.sink.is_some()
    }

    /// A connection for a call, where one is open.
    pub fn try_acquire(&self, call: &Call) -> Option<LeaseGuard> {
        let UpstreamKind::Remote(managed) = &self.kind else { return None };
        let revision = self.shared.revision().filter(|_| !self.retired.is_cancelled())?;
        if self.spec.connection_mode == ConnectionMode::Shared || !revision.facts().sessions {
            return Some(LeaseGuard::shared(managed.open_connection()?, self.in_flight_guard()));
        }
        self.try_acquire_lease(call)
    }

    /// A connection for a call. Waits while it is opened, but not for a server that is down.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn acquire(
        self: &Arc<Self>,
        call: &Call,
        sink: impl FnOnce() -> Option<Arc<dyn ClientSink>>,
    ) -> Result<LeaseGuard> {
        self.check_wanted()?;
        let UpstreamKind::Remote(managed) = &self.kind else {
            return Err(Error::new(Wrong::Usage, "it needs no connection"));
        };
        let state = self.state();
        let revision = match state.revision {
            Some(revision) => revision,
            None => managed.connection(START_PATIENCE).await?.revision(),
        };
        if self.spec.connection_mode == ConnectionMode::Shared || !revision.facts().sessions {
            let connection = managed.connection(START_PATIENCE).await?;
            return Ok(LeaseGuard::shared(connection, self.in_flight_guard()));
        }
        self.acquire_lease(call, sink).await
    }

    fn in_flight_guard(&self) -> InFlightGuard {
        InFlightGuard::new(&self.calls_in_flight)
    }

    /// Why it cannot be connected just now, if that is known.
    fn check_reachable(&self) -> Result<()> {
        let UpstreamKind::Remote(managed) = &self.kind else { return Ok(()) };
        let health = managed.health();
        match health.phase {
            HealthPhase::Down => {
                let reason = health.reason.unwrap_or_default();
                Err(Error::new(Wrong::Unreachable, format!("the upstream is down: {reason}")))
            }
            _ => Ok(()),
        }
    }

    fn check_wanted(&self) -> Result<()> {
        match self.retired.is_cancelled() {
            true => Err(Error::new(Wrong::Unreachable, "the upstream was removed")),
            false => Ok(()),
        }
    }

    fn target(&self) -> Result<&Target> {
        match &self.spec.kind {
            SpecKind::Target(target) => Ok(target),
            SpecKind::Elements(_) | SpecKind::Rest(_) => Err(Error::new(Wrong::Usage, "it needs no connection")),
        }
    }

    /// Takes no more calls, lets those at work finish for a while, then stops.
    pub async fn retire(&self, patience: Duration) {
        self.retired.cancel();
        self.leases.retire();
        let end = Instant::now() + patience;
        while self.calls_in_flight() > 0 && Instant::now() < end {
            tokio::time::sleep(RETIRING).await;
        }
        self.stop().await;
    }

    /// Ends every connection: sessions are ended, but for those of clients that live on elsewhere, and
    /// children stopped.
    pub async fn stop(&self) {
        self.retired.cancel();
        self.stop.cancel();
        if let UpstreamKind::Remote(managed) = &self.kind {
            managed.stop().await;
        }
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Loads what an HTTP API has to offer.
struct Loading {
    name: Arc<str>,
    api: rest::RestSpec,
    limits: RestLimits,
    shared: Arc<CatalogShared>,
    loaded: Arc<ArcSwapOption<Rest>>,
}

impl Loading {
    /// Tries until it is there.
    async fn run(self) {
        let mut failures = 0;
        let rest = loop {
            match Rest::load(&self.api, &self.limits).await {
                Ok(rest) => break rest,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(upstream = %self.name, %error, failures, "its document cannot be loaded");
                    self.shared.change(|state| {
                        state.settled = true;
                        state.health.become_phase(HealthPhase::Down, Some(error.to_string()));
                    });
                    tokio::time::sleep(supervisor::back_off(failures)).await;
                }
            }
        };
        let rest = Arc::new(rest);
        self.loaded.store(Some(Arc::clone(&rest)));
        self.shared.change(|state| {
            state.settled = true;
            state.health.become_phase(HealthPhase::Ready, None);
            state.health.connects += 1;
            state.server = Some(rest.server().clone());
            state.revision = Some(Revision::NEWEST);
            let tools = Listed::whole(List::Tools, rest.tools(), Revision::NEWEST);
            state.lists[List::Tools as usize] = Some(Arc::new(tools));
        });
    }
}

fn rest_limits(settings: &ConnectionSettings) -> RestLimits {
    let ConnectionSettings {
        connect_timeout: connect,
        discovery_timeout: probe,
        idle_timeout: call,
        message_bytes,
        ..
    } = *settings;
    RestLimits { connect_timeout: connect, discovery_timeout: probe, call_timeout: call, message_bytes }
}

/// What is known of the built-in server.
fn built_in(elements: &Elements) -> CatalogState {
    let mut state = CatalogState::starting("in this process");
    state.health.become_phase(HealthPhase::Ready, None);
    state.settled = true;
    state.server = Some(elements.server().clone());
    state.revision = Some(Revision::NEWEST);
    for list in List::ALL {
        let listed = Listed::whole(list, elements.list(&list.method()), Revision::NEWEST);
        state.lists[list as usize] = Some(Arc::new(listed));
    }
    state
}

/// Passes on what changes at the built-in server.
async fn follow(elements: Elements, shared: Arc<CatalogShared>, stop: CancellationToken) {
    let mut changes = elements.changes();
    let pass_on = async {
        loop {
            match changes.recv().await {
                Ok(ChangeEvent::Updated(uri)) => shared.updated(uri),
                Ok(_) => {}
                Err(broadcast::error::RecvError::Lagged(_)) => shared.update_all(),
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = pass_on => {}
        () = elements.clone().run() => {}
    }
}
