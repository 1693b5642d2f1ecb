//! Figures that are read when somebody asks for them.

use super::Admin;
use crate::metrics::MetricsReading;
use crate::upstream::{self, HealthPhase};

impl Admin {
    /// All figures, as Prometheus reads them.
    pub fn metrics(&self) -> String {
        let survey = self.sessions.stats();
        let upstreams = self.gateway.upstreams();
        let mut sessions: Vec<(Vec<(&'static str, String)>, i64)> = Vec::new();
        for ((group, transport, revision), count) in &survey.alike {
            let labels = vec![
                ("group", group.to_string()),
                ("transport", (*transport).to_owned()),
                ("revision", revision.map_or_else(|| "unknown".to_owned(), |revision| revision.to_string())),
            ];
            sessions.push((labels, whole(*count)));
        }
        let mut states = Vec::new();
        for upstream in &upstreams {
            let now = upstream.state().health.phase;
            for phase in [HealthPhase::Starting, HealthPhase::Ready, HealthPhase::Degraded, HealthPhase::Down] {
                let labels = vec![("upstream", upstream.name().to_string()), ("state", phase.to_string())];
                states.push((labels, i64::from(phase == now)));
            }
        }
        let each = |count: &dyn Fn(&upstream::Upstream) -> usize| {
            let one = |upstream: &std::sync::Arc<upstream::Upstream>| {
                (vec![("upstream", upstream.name().to_string())], whole(count(upstream)))
            };
            upstreams.iter().map(one).collect::<Vec<_>>()
        };
        let mut met = Vec::new();
        for upstream in &upstreams {
            for meeting in upstream.revision_pairs() {
                let labels = vec![
                    ("upstream", upstream.name().to_string()),
                    ("client", meeting.client.to_string()),
                    ("server", meeting.server.to_string()),
                ];
                met.push((labels, i64::try_from(meeting.calls).unwrap_or(i64::MAX)));
            }
        }
        let reading = |name, help, values| MetricsReading { name, help, values };
        let plain = |count: usize| vec![(Vec::new(), whole(count))];
        let mut readings = vec![
            reading("sessions", "Open sessions", sessions),
            reading("streams", "Open streams of sessions", plain(survey.streams)),
            reading("events", "Events that are kept for clients that resume", plain(survey.events)),
            reading("event_bytes", "Bytes of events that are kept", plain(survey.event_bytes)),
            reading("running_calls", "Calls at work", plain(self.shutdown.running_calls())),
            reading("held_calls", "Calls that wait for answers from their clients", plain(self.gateway.parked_calls())),
            reading("children", "Child processes that run", plain(crate::mcp_client::children())),
            reading("upstream_state", "1 for the state that an upstream is in", states),
            reading("upstream_connections", "Connections lent to clients", each(&|upstream| upstream.lease_count())),
            reading("upstream_calls", "Calls that use an upstream", each(&|upstream| upstream.calls_in_flight())),
            reading(
                "upstream_connects",
                "How often an upstream was connected",
                each(&|upstream| usize::try_from(upstream.state().health.connects).unwrap_or(usize::MAX)),
            ),
            reading("upstream_revisions", "Calls passed on, by the revisions of both sides", met),
        ];
        if let Some(cluster) = &self.cluster {
            let count = |count: u64| plain(usize::try_from(count).unwrap_or(usize::MAX));
            readings.extend([
                reading(
                    "store_up",
                    "1 while this node can say in time that it is there",
                    count(cluster.holds_lease().into()),
                ),
                reading(
                    "store_full",
                    "1 while the store refuses what is new for want of room",
                    count(cluster.store().is_full().into()),
                ),
                reading("store_round_trips", "How often the store was asked", count(cluster.store().round_trips())),
                reading("carried_requests", "Requests carried to other nodes", count(cluster.relayed())),
                reading("taken_over_sessions", "Sessions taken over from others", count(cluster.takeovers())),
            ]);
        }
        self.gateway.metrics().render(readings).unwrap_or_default()
    }
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
