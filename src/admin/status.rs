//! Everything that a gateway holds, at one moment.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Admin;
use crate::cluster::Cluster;
use crate::dialect::{Revision, translation};
use crate::gateway::GroupMember;
use crate::upstream::{List, RevisionPair, Upstream};

/// Everything that a gateway holds, at one moment. Times are seconds since 1970.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatusReport {
    /// The version of the program.
    pub version: String,
    /// When it was started.
    pub started: u64,
    /// Whether it takes work.
    pub ready: bool,
    /// Where its configuration comes from.
    pub configuration: Configuration,
    /// Its groups, by name.
    pub groups: Vec<GroupStatus>,
    /// Its upstreams, in order.
    pub upstreams: Vec<UpstreamStatus>,
    /// Its sessions, counted by what they are.
    pub sessions: Vec<SessionStatus>,
    /// Streams that are open.
    pub streams: usize,
    /// Events that are kept for clients that resume.
    pub events: usize,
    /// Bytes of these.
    pub event_bytes: usize,
    /// Calls at work.
    pub calls: usize,
    /// Calls that wait for answers from their clients.
    pub held: usize,
    /// Child processes that run.
    pub children: usize,
    /// What it shares with other nodes; nothing when it is alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
}

/// One node among others.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The name of this node, and which of its lives this is.
    pub node: String,
    /// Where the store is.
    pub store: String,
    /// Whether this node could say in time that it is there.
    pub sure: bool,
    /// Whether the store has no room for more.
    #[serde(default)]
    pub full: bool,
    /// Requests that were carried to other nodes.
    pub carried: u64,
    /// Requests of other nodes that are being answered here.
    pub serving: usize,
    /// Sessions that were taken over from other nodes.
    pub taken_over: u64,
    /// How often the store was asked something.
    pub round_trips: u64,
}

/// Where a configuration comes from, and what became of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Configuration {
    /// The file; nothing where there is none.
    pub file: Option<String>,
    /// When it was taken last.
    pub taken: Option<u64>,
    /// When a later one was refused; nothing when the one that is there is the one that is served.
    pub refused: Option<u64>,
    /// What is wrong with that, or worth knowing.
    pub problems: Vec<String>,
}

/// A group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// The names of its upstreams, in order.
    pub servers: Vec<String>,
    /// What is on its lists.
    pub lists: ListCounts,
    /// Names that two of its upstreams have.
    pub collisions: Vec<String>,
}

/// How many things are on lists.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ListCounts {
    /// Tools.
    pub tools: usize,
    /// Prompts.
    pub prompts: usize,
    /// Resources.
    pub resources: usize,
    /// Resource templates.
    pub templates: usize,
}

/// An upstream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UpstreamStatus {
    /// Its name.
    pub name: String,
    /// How it is: starting, ready, degraded or down.
    pub phase: String,
    /// Why, where that needs saying.
    pub reason: Option<String>,
    /// Since when.
    pub since: u64,
    /// How often it was connected.
    pub connects: u64,
    /// The transport that reaches it.
    pub transport: String,
    /// The revision that it speaks, once that is known.
    pub revision: Option<String>,
    /// What it calls itself.
    pub server: Option<String>,
    /// What is on its lists.
    pub lists: ListCounts,
    /// Lists that it could not give, and why.
    pub troubles: Vec<String>,
    /// Connections that are lent to clients.
    pub lent: usize,
    /// Calls that use it.
    pub calls: usize,
    /// Calls that were passed on to it, by the revisions of both sides.
    #[serde(default)]
    pub clients: Vec<MeetingStatus>,
}

/// Calls of clients of one revision to an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeetingStatus {
    /// The clients' revision.
    pub client: String,
    /// The one that the upstream spoke.
    pub server: String,
    /// How many calls were passed on since the start.
    pub calls: u64,
    /// What was translated between them; see the page about bridging.
    pub translated: Vec<String>,
}

/// Sessions that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Their group.
    pub group: String,
    /// Their transport.
    pub transport: String,
    /// Their client's revision; nothing before it has introduced itself.
    pub revision: Option<String>,
    /// How many there are.
    pub count: usize,
    /// The upstreams of their group, and what is translated for each.
    #[serde(default)]
    pub upstreams: Vec<FacingStatus>,
}

/// An upstream as sessions of one revision have to do with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FacingStatus {
    /// The upstream's name.
    pub upstream: String,
    /// The revision that it speaks, once that is known.
    pub revision: Option<String>,
    /// What is translated, once the revisions of both sides are known; see the page about bridging.
    pub translated: Vec<String>,
}

impl Admin {
    /// Everything that the gateway holds now.
    pub fn status(&self) -> StatusReport {
        let survey = self.sessions.stats();
        StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: seconds(self.started),
            ready: self.ready().is_ok(),
            configuration: self.configuration.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone(),
            groups: self.groups(),
            upstreams: self.gateway.upstreams().iter().map(|upstream| of_upstream(upstream)).collect(),
            sessions: survey
                .alike
                .into_iter()
                .map(|((group, transport, revision), count)| SessionStatus {
                    upstreams: self.facing(&group, revision),
                    group: group.to_string(),
                    transport: transport.to_owned(),
                    revision: revision.map(|revision| revision.to_string()),
                    count,
                })
                .collect(),
            streams: survey.streams,
            events: survey.events,
            event_bytes: survey.event_bytes,
            calls: self.shutdown.running_calls(),
            held: self.gateway.parked_calls(),
            children: crate::mcp_client::children(),
            cluster: self.cluster.as_deref().map(of_cluster),
        }
    }

    /// The upstreams of a group, as a client of that revision has to do with them.
    fn facing(&self, group: &str, client: Option<Revision>) -> Vec<FacingStatus> {
        let Some(group) = self.gateway.group(Some(group)) else { return Vec::new() };
        let one = |member: &GroupMember| {
            let server = member.upstream.state().revision;
            FacingStatus {
                upstream: member.upstream.name().to_string(),
                revision: server.map(|server| server.to_string()),
                translated: client.zip(server).map(translated).unwrap_or_default(),
            }
        };
        group.view().members.iter().map(one).collect()
    }

    fn groups(&self) -> Vec<GroupStatus> {
        let one = |group: &std::sync::Arc<crate::gateway::Group>| {
            let view = group.view();
            GroupStatus {
                name: group.name().to_string(),
                servers: view.plan.servers.iter().map(ToString::to_string).collect(),
                lists: counts(|list| view.count(list)),
                collisions: view.collisions.clone(),
            }
        };
        self.gateway.groups().iter().map(one).collect()
    }
}

fn of_cluster(cluster: &Cluster) -> ClusterStatus {
    ClusterStatus {
        node: cluster.node().to_string(),
        store: cluster.store().place_name(),
        sure: cluster.holds_lease(),
        full: cluster.store().is_full(),
        carried: cluster.relayed(),
        serving: cluster.serving_now(),
        taken_over: cluster.takeovers(),
        round_trips: cluster.store().round_trips(),
    }
}

fn of_upstream(upstream: &Upstream) -> UpstreamStatus {
    let state = upstream.state();
    let name = state.server.as_ref().and_then(|server| server.info.get("name"));
    UpstreamStatus {
        name: upstream.name().to_string(),
        phase: state.health.phase.to_string(),
        reason: state.health.reason.clone(),
        since: seconds(state.health.since),
        connects: state.health.connects,
        transport: state.transport.to_owned(),
        revision: state.revision.map(|revision| revision.to_string()),
        server: name.as_ref().and_then(|name| name.text()).map(std::borrow::Cow::into_owned),
        lists: counts(|list| state.list(list).map_or(0, |listed| listed.items.len())),
        troubles: state.troubles.iter().map(|(list, why)| format!("{list}: {why}")).collect(),
        lent: upstream.lease_count(),
        calls: upstream.calls_in_flight(),
        clients: upstream.revision_pairs().into_iter().map(of_meeting).collect(),
    }
}

fn of_meeting(meeting: RevisionPair) -> MeetingStatus {
    let RevisionPair { client, server, calls } = meeting;
    MeetingStatus {
        client: client.to_string(),
        server: server.to_string(),
        calls,
        translated: translated((client, server)),
    }
}

fn translated((client, server): (Revision, Revision)) -> Vec<String> {
    translation(client, server).into_iter().map(str::to_owned).collect()
}

fn counts(count: impl Fn(List) -> usize) -> ListCounts {
    ListCounts {
        tools: count(List::Tools),
        prompts: count(List::Prompts),
        resources: count(List::Resources),
        templates: count(List::Templates),
    }
}

/// A time as seconds since 1970.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
