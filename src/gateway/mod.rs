//! The gateway: groups and upstreams, routing of calls, and the merged view of each group.

mod affinity;
mod call_limits;
mod caller_view;
mod cursor;
mod decisions;
mod explain;
mod forward;
mod group;
mod group_config;
mod held_tasks;
mod hidden_calls;
mod list_pages;
mod name_mapping;
mod names;
mod operations;
mod owned_tasks;
mod parked_calls;
mod permissions;
mod request_state;
mod route;
mod sealing;
mod server_request_rules;
mod session_sink;
mod subscriptions;
mod task_bridge;
mod task_events;
mod task_id;
mod task_mapping;
mod trace_context;
mod view;

use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::audit::{Audit, AuditSettings};
use crate::call::ChangeEvent;
use crate::dialect::Revision;
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::policy::rules::RuleBook;
use crate::policy::{Quotas, RateLimits};
use crate::trace::Tracer;
use crate::upstream::{Upstream, UpstreamSpec};
use foldhash::HashMap;
use held_tasks::HeldTasks;
use owned_tasks::OwnedTasks;
use parked_calls::ParkedCalls;

pub use call_limits::over_rate_limit;
pub use decisions::request_target;
pub use explain::ViewEntry;
pub use group::Group;
pub use group_config::{DEFAULT_PAGE_SIZE, GroupConfig, NameFilter, Naming};
pub use list_pages::ListPage;
pub use operations::ServerOperation;
pub use parked_calls::{ParkedReport, ParkingTimeouts, parked_call_lost};
pub use permissions::{DescribedTarget, Permissions};
pub use sealing::Seal;
pub use trace_context::TracedRequest;
pub use view::{GroupMember, View};

/// The group that is served where the URL names none.
pub const DEFAULT_GROUP: &str = "default";

/// All groups and all upstreams.
#[derive(Debug)]
pub struct Gateway {
    groups: ArcSwap<HashMap<Arc<str>, Arc<Group>>>,
    upstreams: Mutex<Vec<Arc<Upstream>>>,
    shared: GatewayShared,
    drain_timeout: Mutex<Duration>,
    /// Upstreams that were removed and finish their calls.
    retiring: Arc<Mutex<Vec<Arc<Upstream>>>>,
}

/// State shared by all groups.
#[derive(Debug, Clone)]
struct GatewayShared {
    events: broadcast::Sender<GroupEvent>,
    seal: Seal,
    /// The name of this node, written into request states of parked calls and ids of held tasks; empty without a cluster.
    node: Arc<str>,
    metrics: Arc<Metrics>,
    audit: Audit,
    parked_calls: Arc<ParkedCalls>,
    held_tasks: Arc<HeldTasks>,
    owned_tasks: Arc<OwnedTasks>,
    rate_limits: Arc<RateLimits>,
    tracer: Tracer,
    closing: CancellationToken,
    /// The label `upstream` of calls that the gateway answers itself.
    local_label: Arc<str>,
}

/// Settings of the whole gateway.
#[derive(Debug, Clone)]
pub struct GatewaySettings {
    /// How long calls to a removed upstream may take to finish.
    pub drain: Duration,
    /// How long parked calls wait.
    pub parking: ParkingTimeouts,
    /// The quotas of parked calls.
    pub quotas: Arc<Quotas>,
    /// Rate limits of requests and calls.
    pub rate_limits: Arc<RateLimits>,
    /// The name of this node in the cluster; empty without a cluster.
    pub node: Arc<str>,
}

/// The upstreams and groups of a configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayConfig {
    /// Every upstream.
    pub upstreams: Vec<UpstreamSpec>,
    /// Every group.
    pub groups: Vec<GroupConfig>,
}

/// A change in one group.
#[derive(Debug, Clone)]
pub struct GroupEvent {
    /// The name of the group.
    pub group: Arc<str>,
    /// What changed.
    pub change: GroupChange,
}

/// What changed in a group.
#[derive(Debug, Clone)]
pub enum GroupChange {
    /// A list or a resource.
    Content(AnnouncedChange),
    /// What callers may do. Changes of lists follow.
    Rules,
    /// The settings of this upstream: it has new connections, and what was asked of the old ones must be asked again.
    UpstreamReplaced(Arc<str>),
    /// The group was removed.
    Removed,
}

/// A change of a list or a resource, as it is announced to all clients of one era.
#[derive(Debug, Clone)]
pub struct AnnouncedChange {
    /// What changed.
    pub change: ChangeEvent,
    /// The view before a list changed, where rules may keep the change from some callers.
    before: Option<Weak<View>>,
}

/// The difference that a new configuration made.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct AppliedChanges {
    /// Upstreams that were added.
    pub added: Vec<Arc<str>>,
    /// Upstreams whose configuration changed.
    pub changed: Vec<Arc<str>>,
    /// Upstreams that were removed.
    pub removed: Vec<Arc<str>>,
    /// Groups that were removed.
    pub closed: Vec<Arc<str>>,
}

/// Group events buffered per receiver.
const GROUP_EVENT_CAPACITY: usize = 1024;

impl Gateway {
    /// Starts every upstream and group of the configuration.
    pub fn new(config: &GatewayConfig, settings: GatewaySettings, closing: CancellationToken) -> Self {
        let gateway = Self {
            groups: ArcSwap::default(),
            upstreams: Mutex::default(),
            shared: GatewayShared {
                events: broadcast::Sender::new(GROUP_EVENT_CAPACITY),
                seal: Seal::random(),
                node: settings.node,
                metrics: Arc::default(),
                rate_limits: settings.rate_limits,
                audit: Audit::default(),
                held_tasks: Arc::new(HeldTasks::new(Arc::clone(&settings.quotas))),
                owned_tasks: Arc::default(),
                parked_calls: Arc::new(ParkedCalls::new(settings.parking, settings.quotas)),
                tracer: Tracer::default(),
                closing,
                local_label: "rialto".into(),
            },
            drain_timeout: Mutex::new(settings.drain),
            retiring: Arc::default(),
        };
        gateway.apply(config);
        gateway
    }

    /// The seal for cursors, request states and session ids.
    pub fn seal(&self) -> &Seal {
        &self.shared.seal
    }

    /// The group with that name, or the default group.
    pub fn group(&self, name: Option<&str>) -> Option<Arc<Group>> {
        self.groups.load().get(name.unwrap_or(DEFAULT_GROUP)).cloned()
    }

    /// All groups, sorted by name.
    pub fn groups(&self) -> Vec<Arc<Group>> {
        let mut groups: Vec<_> = self.groups.load().values().cloned().collect();
        groups.sort_by(|one, other| one.name().cmp(other.name()));
        groups
    }

    /// All upstreams, in configured order.
    pub fn upstreams(&self) -> Vec<Arc<Upstream>> {
        self.lock().clone()
    }

    /// Subscribes to the changes of all groups.
    pub fn changes(&self) -> broadcast::Receiver<GroupEvent> {
        self.shared.events.subscribe()
    }

    /// The number of parked calls.
    pub fn parked_calls(&self) -> usize {
        self.shared.parked_calls.count()
    }

    /// The parked calls, for operators.
    pub fn parked_reports(&self) -> Vec<ParkedReport> {
        self.shared.parked_calls.report()
    }

    /// Cancels a parked call by the id of its report; false if it no longer waits.
    pub fn end_parked_call(&self, id: &str) -> bool {
        self.shared.parked_calls.end_reported(id)
    }

    /// Cancels the parked calls and held tasks whose caller and group match; returns how many there were.
    pub fn end_parked_calls(&self, is_ending: impl Fn(&Identity, &str) -> bool) -> usize {
        self.shared.parked_calls.end_owned_by(&is_ending) + self.shared.held_tasks.end_owned_by(&is_ending)
    }

    /// The metrics of this gateway.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.shared.metrics
    }

    /// The rate limits of requests and calls.
    pub fn rate_limits(&self) -> &Arc<RateLimits> {
        &self.shared.rate_limits
    }

    /// Traces calls.
    pub fn tracer(&self) -> &Tracer {
        &self.shared.tracer
    }

    /// The name of this node in the cluster; empty without a cluster.
    pub fn node(&self) -> &Arc<str> {
        &self.shared.node
    }

    /// The audit log.
    pub fn audit(&self) -> &Audit {
        &self.shared.audit
    }

    /// Opens the audit log of these settings in place of the one before.
    ///
    /// # Errors
    /// When it cannot be opened; the log goes on as before.
    pub fn configure_audit(&self, settings: &AuditSettings) -> std::io::Result<()> {
        self.shared.audit.configure(settings, &self.shared.node)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Upstream>>> {
        self.upstreams.lock()
    }

    /// Applies a new configuration. Unchanged upstreams and groups are not disturbed; calls to removed or
    /// changed upstreams may finish within the drain timeout.
    pub fn apply(&self, config: &GatewayConfig) -> AppliedChanges {
        let mut applied = AppliedChanges::default();
        let mut upstreams = self.lock();
        let mut previous = std::mem::take(&mut *upstreams);
        for spec in &config.upstreams {
            let known = previous.iter().position(|upstream| upstream.name() == &spec.name);
            let kept = known.filter(|known| previous[*known].spec() == spec);
            upstreams.push(match kept {
                Some(kept) => previous.swap_remove(kept),
                None => {
                    let list = if known.is_some() { &mut applied.changed } else { &mut applied.added };
                    list.push(Arc::clone(&spec.name));
                    Upstream::start(spec.clone())
                }
            });
        }
        let now = upstreams.clone();
        let members_of = |group_config: &GroupConfig| -> Vec<Arc<Upstream>> {
            let find = |name: &Arc<str>| now.iter().find(|upstream| upstream.name() == name).cloned();
            group_config.servers.iter().filter_map(find).collect()
        };
        let old = self.groups.load_full();
        let mut groups = HashMap::default();
        for group_config in &config.groups {
            let group_config = &with_known_rules(group_config, &old);
            let members = members_of(group_config);
            let group = match old.get(&group_config.name) {
                Some(group) => {
                    let view = group.view(Revision::NEWEST);
                    let same = view.members.len() == members.len()
                        && view.members.iter().zip(&members).all(|(seen, new)| Arc::ptr_eq(&seen.upstream, new));
                    if *view.config != *group_config || !same {
                        group.reconfigure(group_config.clone(), &members);
                    }
                    Arc::clone(group)
                }
                None => Group::start(group_config.clone(), &members, &self.shared),
            };
            groups.insert(Arc::clone(&group_config.name), group);
        }
        for (name, group) in old.iter().filter(|(name, _)| !groups.contains_key(*name)) {
            group.end();
            applied.closed.push(Arc::clone(name));
        }
        self.groups.store(Arc::new(groups));
        for group in &applied.closed {
            // A send error means that there are no receivers.
            let _ = self.shared.events.send(GroupEvent { group: Arc::clone(group), change: GroupChange::Removed });
        }
        for group_config in &config.groups {
            for name in group_config.servers.iter().filter(|name| applied.changed.contains(name)) {
                let (group, change) = (Arc::clone(&group_config.name), GroupChange::UpstreamReplaced(Arc::clone(name)));
                let _ = self.shared.events.send(GroupEvent { group, change });
            }
        }
        for upstream in previous {
            if !applied.changed.contains(upstream.name()) {
                applied.removed.push(Arc::clone(upstream.name()));
            }
            self.retire(upstream);
        }
        applied
    }

    /// Lets the calls of an upstream finish within the drain timeout, then stops it.
    fn retire(&self, upstream: Arc<Upstream>) {
        let (drain, retiring) = (*self.drain_timeout.lock(), Arc::clone(&self.retiring));
        retiring.lock().push(Arc::clone(&upstream));
        tokio::spawn(async move {
            upstream.retire(drain).await;
            retiring.lock().retain(|other| !Arc::ptr_eq(other, &upstream));
        });
    }

    /// Connects to a server anew, as if its configuration had changed; false if there is none of that name. Calls in
    /// flight may finish on the connections of before.
    pub fn reconnect(&self, name: &str) -> bool {
        let mut upstreams = self.lock();
        let Some(place) = upstreams.iter_mut().find(|upstream| **upstream.name() == *name) else { return false };
        let anew = place.restart();
        let name = Arc::clone(anew.name());
        let before = std::mem::replace(place, anew);
        for group in self.groups.load().values() {
            let config = GroupConfig::clone(&group.view(Revision::NEWEST).config);
            if !config.servers.contains(&name) {
                continue;
            }
            let find = |name: &Arc<str>| upstreams.iter().find(|upstream| upstream.name() == name).cloned();
            let members: Vec<Arc<Upstream>> = config.servers.iter().filter_map(find).collect();
            group.reconfigure(config, &members);
            let (group, change) = (Arc::clone(group.name()), GroupChange::UpstreamReplaced(Arc::clone(&name)));
            let _ = self.shared.events.send(GroupEvent { group, change });
        }
        self.retire(before);
        true
    }

    /// Whether a caller may use a group at all: by its credential, and by the rules.
    pub fn may_use(&self, group: &Group, identity: &Identity) -> bool {
        identity.may_use_group(group.name()) && group.may_use(identity)
    }

    /// Applies other timeouts, for removed upstreams and parked calls.
    pub fn set_timeouts(&self, drain: Duration, parking: ParkingTimeouts) {
        *self.drain_timeout.lock() = drain;
        self.shared.parked_calls.set_timeouts(parking);
    }

    /// Closes all connections to all upstreams, those that a reload has just removed included.
    pub async fn stop(&self) {
        let mut upstreams = std::mem::take(&mut *self.lock());
        upstreams.extend(std::mem::take(&mut *self.retiring.lock()));
        futures_util::future::join_all(upstreams.iter().map(|upstream| upstream.stop())).await;
    }
}

/// The configuration with the rules of a group that has the same ones: what was found out with them stays known.
fn with_known_rules(config: &GroupConfig, groups: &HashMap<Arc<str>, Arc<Group>>) -> GroupConfig {
    let is_same = |known: &Arc<RuleBook>| config.rules.as_ref() == Some(known);
    let mut known = groups.values().filter_map(|group| group.view(Revision::NEWEST).config.rules.clone());
    let rules = known.find(is_same).or_else(|| config.rules.clone());
    GroupConfig { rules, ..config.clone() }
}
