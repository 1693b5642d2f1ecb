//! Everything that a gateway holds, at one moment.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Admin;
use crate::upstream::{self, List, Upstream};

/// Everything that a gateway holds, at one moment. Times are seconds since 1970.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
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
}

impl Admin {
    /// Everything that the gateway holds now.
    pub fn status(&self) -> Status {
        let survey = self.sessions.survey();
        Status {
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
            held: self.gateway.held(),
            children: upstream::children(),
        }
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
        lent: upstream.lent(),
        calls: upstream.running(),
    }
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
