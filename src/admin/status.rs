//! The status report: a snapshot of everything the gateway holds.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Admin;
use crate::cluster::Cluster;
use crate::dialect::{Revision, describe_translation};
use crate::gateway::GroupMember;
use crate::http::server::{ClientCertificates, TlsServer};
use crate::policy::{LimitMeasure, LimitUsage};
use crate::redact::redact_texts;
use crate::upstream::{LegReport, List, RevisionPair, Upstream};

/// Snapshot of the gateway, served as JSON at `/admin/status` with secrets masked. Times are Unix seconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatusReport {
    /// Version of the program.
    pub version: String,
    /// Start time of the process.
    pub started: u64,
    /// Whether `/readyz` answers 200.
    pub ready: bool,
    /// The configuration file and the outcome of its last reload.
    pub configuration: ConfigStatus,
    /// The groups, by name.
    pub groups: Vec<GroupStatus>,
    /// The upstreams, in configured order.
    pub upstreams: Vec<UpstreamStatus>,
    /// Open sessions, counted by group, transport and revision.
    pub sessions: Vec<SessionStatus>,
    /// Open session streams.
    pub streams: usize,
    /// Events retained for clients that resume.
    pub events: usize,
    /// Total size of the retained events.
    pub event_bytes: usize,
    /// Calls in flight, without `subscriptions/listen`.
    pub calls_in_flight: usize,
    /// Calls that wait for input from a per-request client.
    pub parked_calls: usize,
    /// Running child processes.
    pub children: usize,
    /// Rate limits and quotas, in the order of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitStatus>,
    /// The certificate that clients see; absent where they speak plain HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsStatus>,
    /// This node's place in the cluster; absent without a shared store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
}

/// One rate limit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LimitStatus {
    /// Name of the limit.
    pub name: String,
    /// Requests that it rejected since the start.
    pub rejected: u64,
    /// What it counts, on this node, for the bucket with the most.
    pub counted: Vec<LimitMeasureStatus>,
}

/// One thing that a rate limit counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LimitMeasureStatus {
    /// `rate`, `quota` or `in_flight`.
    pub name: String,
    /// How much is in use.
    pub used: u64,
    /// How much may be.
    pub limit: u64,
}

/// TLS on the listener of clients.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TlsStatus {
    /// Name of the certificate's subject.
    pub certificate: Option<String>,
    /// When the certificate expires.
    pub expires: u64,
    /// Whether clients need a certificate: `none`, `optional` or `required`.
    pub client_certificates: String,
}

/// One node of a cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Name and incarnation of this node.
    pub node: String,
    /// Address of the store, without credentials.
    pub store: String,
    /// Whether this node holds its lease: the store acknowledged its heartbeat in time.
    pub store_connected: bool,
    /// Whether the store refuses writes because it is out of memory.
    #[serde(default)]
    pub store_full: bool,
    /// Requests relayed to other nodes since the start.
    pub relayed_requests: u64,
    /// Requests relayed from other nodes that are being served now.
    pub active_relays: usize,
    /// Sessions adopted from other nodes since the start.
    pub adopted_sessions: u64,
    /// Commands sent to the store since the start.
    pub store_commands: u64,
}

/// The configuration file and the outcome of its last reload.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ConfigStatus {
    /// Path of the file; absent when the gateway runs without one.
    pub file: Option<String>,
    /// When a configuration was last applied.
    pub applied: Option<u64>,
    /// When a newer version of the file was refused; absent while the file on disk is the one in use.
    pub refused: Option<u64>,
    /// Errors of the refused file, or warnings about the applied one.
    pub problems: Vec<String>,
    /// Settings that the refused file changes and that only a restart can change; nothing else is wrong with it.
    #[serde(default)]
    pub restart: Vec<String>,
}

/// One group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Name of the group.
    pub name: String,
    /// Names of its upstreams, in configured order.
    pub servers: Vec<String>,
    /// Sizes of its merged lists.
    pub lists: ListCounts,
    /// Tool or prompt names that two of its upstreams share.
    pub collisions: Vec<String>,
}

/// Number of entries per list.
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

/// One upstream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UpstreamStatus {
    /// Name of the upstream.
    pub name: String,
    /// Health phase: starting, ready, degraded or down.
    pub phase: String,
    /// Reason for the phase, unless it is ready.
    pub reason: Option<String>,
    /// When the phase began.
    pub since: u64,
    /// Successful connects since the start.
    pub connects: u64,
    /// Transport of its catalog connection.
    pub transport: String,
    /// Negotiated revision, once connected.
    pub revision: Option<String>,
    /// The server's own name, from its server info.
    pub server: Option<String>,
    /// Its legs, as far as they are known: one, or two of a server that speaks both eras.
    #[serde(default)]
    pub legs: Vec<LegStatus>,
    /// Sizes of its lists.
    pub lists: ListCounts,
    /// Lists that the server failed to return, each with the error.
    pub list_errors: Vec<String>,
    /// Open leases: connections that one client has for itself.
    pub leases: usize,
    /// Calls in flight to this upstream.
    pub calls_in_flight: usize,
    /// Calls forwarded since the start, by client and server revision.
    #[serde(default)]
    pub calls_by_revision: Vec<CallsByRevision>,
}

/// One leg of an upstream: an era in which the server can be spoken to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegStatus {
    /// Negotiated revision.
    pub revision: String,
    /// Names of the capabilities that the server declares on this leg.
    pub capabilities: Vec<String>,
    /// Whether the server can ask and notify a client on this leg.
    pub reaches_client: bool,
    /// Revisions of the clients that it serves.
    pub clients: Vec<String>,
    /// Why it serves nobody, as a clause.
    pub why: Option<String>,
}

/// Calls from clients of one revision to one upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallsByRevision {
    /// Revision of the clients.
    pub client_revision: String,
    /// Revision of the upstream connection that served them.
    pub server_revision: String,
    /// Calls forwarded since the start.
    pub calls: u64,
    /// What the gateway bridges between the two revisions, in the words of `docs/bridging.md`.
    pub bridged: Vec<String>,
}

/// Sessions with the same group, transport and revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Group of the sessions.
    pub group: String,
    /// Client transport of the sessions.
    pub transport: String,
    /// Revision of their clients; absent before `initialize`.
    pub revision: Option<String>,
    /// Number of sessions.
    pub count: usize,
    /// The upstreams of the group, and what is bridged for each.
    #[serde(default)]
    pub upstreams: Vec<SessionUpstreamStatus>,
}

/// What the gateway bridges between sessions of one revision and one upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionUpstreamStatus {
    /// Name of the upstream.
    pub upstream: String,
    /// Negotiated revision of the upstream, once connected.
    pub revision: Option<String>,
    /// What is bridged, in the words of `docs/bridging.md`; empty until both revisions are known.
    pub bridged: Vec<String>,
}

impl Admin {
    /// Takes a snapshot of the gateway.
    pub fn status(&self) -> StatusReport {
        let stats = self.sessions.stats();
        StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: unix_seconds(self.started_at),
            ready: self.ready().is_ok(),
            configuration: self.configuration.lock().clone(),
            groups: self.group_statuses(),
            upstreams: self.gateway.upstreams().iter().map(|upstream| upstream_status(upstream)).collect(),
            sessions: stats
                .by_kind
                .into_iter()
                .map(|((group, transport, revision), count)| SessionStatus {
                    upstreams: self.session_upstreams(&group, revision),
                    group: group.to_string(),
                    transport: transport.to_owned(),
                    revision: revision.map(|revision| revision.to_string()),
                    count,
                })
                .collect(),
            streams: stats.open_streams,
            events: stats.events,
            event_bytes: stats.event_bytes,
            calls_in_flight: self.shutdown.calls_in_flight(),
            parked_calls: self.gateway.parked_calls(),
            children: crate::mcp_client::running_children(),
            limits: self.gateway.rate_limits().usage().into_iter().map(limit_status).collect(),
            tls: self.tls.load().as_deref().map(tls_status),
            cluster: self.cluster.as_deref().map(cluster_status),
        }
    }

    /// The status report as JSON, with secrets masked.
    pub fn status_document(&self) -> String {
        let masked = serde_json::to_value(self.status()).and_then(|mut report| {
            redact_texts(&mut report);
            // Through the report once more, for the members in their order.
            serde_json::from_value::<StatusReport>(report)
        });
        masked.and_then(|report| serde_json::to_string(&report)).unwrap_or_default()
    }

    /// The upstreams of a group, with what is bridged for clients of `client` revision.
    fn session_upstreams(&self, group: &str, client: Option<Revision>) -> Vec<SessionUpstreamStatus> {
        let Some(group) = self.gateway.group(Some(group)) else { return Vec::new() };
        let bridge = |member: &GroupMember| {
            let server = member.leg.state().revision;
            SessionUpstreamStatus {
                upstream: member.upstream.name().to_string(),
                revision: server.map(|server| server.to_string()),
                bridged: client.zip(server).map(bridged_features).unwrap_or_default(),
            }
        };
        group.view(client.unwrap_or(Revision::NEWEST_HANDSHAKE)).members.iter().map(bridge).collect()
    }

    fn group_statuses(&self) -> Vec<GroupStatus> {
        let status = |group: &std::sync::Arc<crate::gateway::Group>| {
            let view = group.view(Revision::NEWEST);
            GroupStatus {
                name: group.name().to_string(),
                servers: view.config.servers.iter().map(ToString::to_string).collect(),
                lists: list_counts(|list| view.count(list)),
                collisions: view.collisions.clone(),
            }
        };
        self.gateway.groups().iter().map(status).collect()
    }
}

fn tls_status(tls: &TlsServer) -> TlsStatus {
    let client_certificates = match tls.client_certificates {
        None => "none",
        Some(ClientCertificates::Optional) => "optional",
        Some(ClientCertificates::Required) => "required",
    };
    TlsStatus {
        certificate: tls.certificate.name.clone(),
        expires: unix_seconds(tls.certificate.not_after),
        client_certificates: client_certificates.to_owned(),
    }
}

fn cluster_status(cluster: &Cluster) -> ClusterStatus {
    ClusterStatus {
        node: cluster.node().to_string(),
        store: cluster.store().location(),
        store_connected: cluster.holds_lease(),
        store_full: cluster.store().is_full(),
        relayed_requests: cluster.relayed_requests(),
        active_relays: cluster.active_relay_count(),
        adopted_sessions: cluster.takeovers(),
        store_commands: cluster.store().round_trips(),
    }
}

fn upstream_status(upstream: &Upstream) -> UpstreamStatus {
    let state = upstream.state();
    let name = state.server.as_ref().and_then(|server| server.info.get("name"));
    UpstreamStatus {
        name: upstream.name().to_string(),
        phase: state.health.phase.to_string(),
        reason: state.health.failure.as_ref().map(ToString::to_string),
        since: unix_seconds(state.health.since),
        connects: state.health.connects,
        transport: state.transport.to_owned(),
        revision: state.revision.map(|revision| revision.to_string()),
        server: name.as_ref().and_then(|name| name.text()).map(std::borrow::Cow::into_owned),
        legs: upstream.leg_reports().into_iter().map(leg_status).collect(),
        lists: list_counts(|list| state.list(list).map_or(0, |listed| listed.items.len())),
        list_errors: state.list_errors.iter().map(|(list, why)| format!("{list}: {why}")).collect(),
        leases: upstream.lease_count(),
        calls_in_flight: upstream.calls_in_flight(),
        calls_by_revision: upstream.revision_pairs().into_iter().map(calls_by_revision).collect(),
    }
}

fn leg_status(leg: LegReport) -> LegStatus {
    let LegReport { facts, clients, why } = leg;
    LegStatus {
        revision: facts.revision.to_string(),
        capabilities: facts.capabilities.entries().map(|(name, _)| name.into_owned()).collect(),
        reaches_client: facts.reaches_client,
        clients: clients.iter().map(ToString::to_string).collect(),
        why: why.map(|why| why.to_string()),
    }
}

fn calls_by_revision(pair: RevisionPair) -> CallsByRevision {
    let RevisionPair { client, server, calls } = pair;
    CallsByRevision {
        client_revision: client.to_string(),
        server_revision: server.to_string(),
        calls,
        bridged: bridged_features((client, server)),
    }
}

fn bridged_features((client, server): (Revision, Revision)) -> Vec<String> {
    describe_translation(client, server).into_iter().map(str::to_owned).collect()
}

fn list_counts(count: impl Fn(List) -> usize) -> ListCounts {
    ListCounts {
        tools: count(List::Tools),
        prompts: count(List::Prompts),
        resources: count(List::Resources),
        templates: count(List::Templates),
    }
}

fn limit_status(limit: LimitUsage) -> LimitStatus {
    let measure = |measure: LimitMeasure| {
        let LimitMeasure { name, used, limit } = measure;
        LimitMeasureStatus { name: name.to_owned(), used, limit }
    };
    LimitStatus {
        name: limit.name.to_string(),
        rejected: limit.rejections,
        counted: limit.measures.into_iter().map(measure).collect(),
    }
}

/// Converts a time to Unix seconds; times before 1970 become 0.
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
