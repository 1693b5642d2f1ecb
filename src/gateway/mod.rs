//! The heart: which group serves an address, which upstream answers a call, and what all of them
//! show together.

mod affinity;
mod cursor;
mod forward;
mod group;
mod group_config;
mod name_mapping;
mod names;
mod parked_calls;
mod request_state;
mod route;
mod sealing;
mod subscriptions;
mod view;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::call::ChangeEvent;
use crate::metrics::Metrics;
use crate::upstream::{Upstream, UpstreamSpec};
use foldhash::HashMap;
use parked_calls::ParkedCalls;

pub use group::Group;
pub use group_config::{GroupConfig, Naming, PAGE, ToolFilter};
pub use parked_calls::{ParkingLimits, lost_with_its_node};
pub use sealing::Seal;
pub use view::{GroupMember, View};

/// The name of the group that is served where an address names none.
pub const DEFAULT_GROUP: &str = "default";

/// All groups, and all upstreams.
#[derive(Debug)]
pub struct Gateway {
    groups: ArcSwap<HashMap<Arc<str>, Arc<Group>>>,
    upstreams: Mutex<Vec<Arc<Upstream>>>,
    common: Common,
    drain: Duration,
}

/// What all groups have in common.
#[derive(Debug, Clone)]
struct Common {
    told: broadcast::Sender<GroupEvent>,
    seal: Seal,
    /// The name of this node, which states of held calls carry; empty when it is alone.
    node: Arc<str>,
    metrics: Arc<Metrics>,
    parked_calls: Arc<ParkedCalls>,
    closing: CancellationToken,
    /// Stands for the upstream where we answer ourselves.
    ourselves: Arc<str>,
}

/// What governs a gateway.
#[derive(Debug, Clone)]
pub struct GatewaySettings {
    /// How long calls to what is removed may take to finish.
    pub drain: Duration,
    /// What governs held calls.
    pub holding: ParkingLimits,
    /// The name of this node among others; empty when it is alone.
    pub node: Arc<str>,
}

/// What a gateway is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayConfig {
    /// Every upstream.
    pub upstreams: Vec<UpstreamSpec>,
    /// Every group.
    pub groups: Vec<GroupConfig>,
}

/// A change in some group.
#[derive(Debug, Clone)]
pub struct GroupEvent {
    /// The group's name.
    pub group: Arc<str>,
    /// What changed; nothing when the group is no more.
    pub change: Option<ChangeEvent>,
}

/// What another layout came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Upstreams that are new.
    pub added: Vec<Arc<str>>,
    /// Upstreams that are other than they were.
    pub changed: Vec<Arc<str>>,
    /// Upstreams that are no more.
    pub removed: Vec<Arc<str>>,
    /// Groups that are no more.
    pub closed: Vec<Arc<str>>,
}

/// How many changes may wait for those who pass them on.
const TOLD_WAITING: usize = 1024;

impl Gateway {
    /// A gateway of that layout.
    pub fn new(layout: &GatewayConfig, settings: GatewaySettings, closing: CancellationToken) -> Self {
        let gateway = Self {
            groups: ArcSwap::default(),
            upstreams: Mutex::default(),
            common: Common {
                told: broadcast::Sender::new(TOLD_WAITING),
                seal: Seal::random(),
                node: settings.node,
                metrics: Arc::default(),
                parked_calls: Arc::new(ParkedCalls::new(settings.holding)),
                closing,
                ourselves: "rialto".into(),
            },
            drain: settings.drain,
        };
        gateway.apply(layout);
        gateway
    }

    /// The seal on what clients carry.
    pub fn seal(&self) -> &Seal {
        &self.common.seal
    }

    /// The group of that name; the default one when there is no name.
    pub fn group(&self, name: Option<&str>) -> Option<Arc<Group>> {
        self.groups.load().get(name.unwrap_or(DEFAULT_GROUP)).cloned()
    }

    /// Every group, by name.
    pub fn groups(&self) -> Vec<Arc<Group>> {
        let mut groups: Vec<_> = self.groups.load().values().cloned().collect();
        groups.sort_by(|one, other| one.name().cmp(other.name()));
        groups
    }

    /// Every upstream, in order.
    pub fn upstreams(&self) -> Vec<Arc<Upstream>> {
        self.lock().clone()
    }

    /// What changes in any group, as it changes.
    pub fn changes(&self) -> broadcast::Receiver<GroupEvent> {
        self.common.told.subscribe()
    }

    /// How many calls wait for answers from their clients.
    pub fn parked_calls(&self) -> usize {
        self.common.parked_calls.count()
    }

    /// What is counted.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.common.metrics
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Upstream>>> {
        self.upstreams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Becomes another layout. What is as it was goes on undisturbed; calls to an upstream that is
    /// removed or changed may finish.
    pub fn apply(&self, layout: &GatewayConfig) -> Applied {
        let mut applied = Applied::default();
        let mut upstreams = self.lock();
        let mut before = std::mem::take(&mut *upstreams);
        for spec in &layout.upstreams {
            let known = before.iter().position(|upstream| upstream.name() == &spec.name);
            let kept = known.filter(|known| before[*known].spec() == spec);
            upstreams.push(match kept {
                Some(kept) => before.swap_remove(kept),
                None => {
                    let list = if known.is_some() { &mut applied.changed } else { &mut applied.added };
                    list.push(Arc::clone(&spec.name));
                    Upstream::start(spec.clone())
                }
            });
        }
        let now = upstreams.clone();
        let of_plan = |plan: &GroupConfig| -> Vec<Arc<Upstream>> {
            let find = |name: &Arc<str>| now.iter().find(|upstream| upstream.name() == name).cloned();
            plan.servers.iter().filter_map(find).collect()
        };
        let old = self.groups.load_full();
        let mut groups = HashMap::default();
        for plan in &layout.groups {
            let members = of_plan(plan);
            let group = match old.get(&plan.name) {
                Some(group) => {
                    let view = group.view();
                    let same = view.members.len() == members.len()
                        && view.members.iter().zip(&members).all(|(seen, new)| Arc::ptr_eq(&seen.upstream, new));
                    if *view.plan != *plan || !same {
                        group.become_plan(plan.clone(), &members);
                    }
                    Arc::clone(group)
                }
                None => Group::start(plan.clone(), &members, &self.common),
            };
            groups.insert(Arc::clone(&plan.name), group);
        }
        for (name, group) in old.iter().filter(|(name, _)| !groups.contains_key(*name)) {
            group.end();
            applied.closed.push(Arc::clone(name));
        }
        self.groups.store(Arc::new(groups));
        for group in &applied.closed {
            // Nobody may be listening; that is no fault.
            let _ = self.common.told.send(GroupEvent { group: Arc::clone(group), change: None });
        }
        for upstream in before {
            if !applied.changed.contains(upstream.name()) {
                applied.removed.push(Arc::clone(upstream.name()));
            }
            let drain = self.drain;
            tokio::spawn(async move { upstream.retire(drain).await });
        }
        applied
    }

    /// Ends every connection to every upstream.
    pub async fn stop(&self) {
        let upstreams = std::mem::take(&mut *self.lock());
        futures_util::future::join_all(upstreams.iter().map(|upstream| upstream.stop())).await;
    }
}
