//! Metrics that are sampled at scrape time: gauges, and counters that other modules keep.

use super::{Admin, unix_seconds};
use crate::http::client::{OriginUsage, SENT_AGAIN, origin_usage};
use crate::metrics::{MetricFamily, MetricKind, MetricPoint, MetricsReading, PointValue, TextFormat};
use crate::policy::{LimitMeasure, LimitUsage, QuotaUsage};
use crate::telemetry::{lost_lines, panics};
use crate::upstream::{HealthPhase, Upstream};

impl Admin {
    /// Renders all metrics in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        self.metrics_as(TextFormat::Prometheus)
    }

    /// Renders all metrics as text.
    pub fn metrics_as(&self, format: TextFormat) -> String {
        format.render(&self.metric_families())
    }

    /// All metrics at this moment, for a scrape or an export, with secrets masked.
    pub fn metric_families(&self) -> Vec<MetricFamily> {
        let stats = self.sessions.stats();
        let upstreams = self.gateway.upstreams();
        let mut sessions: Vec<(Vec<(&'static str, String)>, i64)> = Vec::new();
        for ((group, transport, revision), count) in &stats.by_kind {
            let labels = vec![
                ("group", group.to_string()),
                ("transport", (*transport).to_owned()),
                ("revision", revision.map_or_else(|| "unknown".to_owned(), |revision| revision.to_string())),
            ];
            sessions.push((labels, saturating_i64(*count)));
        }
        let per_upstream = |value: &dyn Fn(&Upstream) -> usize| {
            let sample = |upstream: &std::sync::Arc<Upstream>| {
                (vec![("upstream", upstream.name().to_string())], saturating_i64(value(upstream)))
            };
            upstreams.iter().map(sample).collect::<Vec<_>>()
        };
        let mut calls_by_revision = Vec::new();
        for upstream in &upstreams {
            for pair in upstream.revision_pairs() {
                let labels = vec![
                    ("upstream", upstream.name().to_string()),
                    ("client_revision", pair.client.to_string()),
                    ("server_revision", pair.server.to_string()),
                ];
                calls_by_revision.push((labels, i64::try_from(pair.calls).unwrap_or(i64::MAX)));
            }
        }
        let gauge = |name, help, values| MetricsReading { name, help, kind: MetricKind::Gauge, values };
        let counter = |name, help, values| MetricsReading { name, help, kind: MetricKind::Counter, values };
        let unlabelled = |count: usize| vec![(Vec::new(), saturating_i64(count))];
        let mut readings = vec![
            gauge("sessions", "Open sessions", sessions),
            gauge("streams", "Open session streams", unlabelled(stats.open_streams)),
            gauge("events", "Events retained for clients that resume", unlabelled(stats.events)),
            gauge("event_bytes", "Bytes of retained events", unlabelled(stats.event_bytes)),
            gauge("calls_in_flight", "Calls in flight", unlabelled(self.shutdown.calls_in_flight())),
            gauge(
                "parked_calls",
                "Calls waiting for input from their clients",
                unlabelled(self.gateway.parked_calls()),
            ),
            gauge("children", "Running child processes", unlabelled(crate::mcp_client::running_children())),
            gauge(
                "upstream_state",
                "1 for the current state of an upstream, 0 for the others",
                upstream_states(&upstreams),
            ),
            gauge(
                "upstream_leases",
                "Upstream connections leased to one client",
                per_upstream(&|upstream| upstream.lease_count()),
            ),
            gauge(
                "upstream_calls_in_flight",
                "Calls in flight to an upstream",
                per_upstream(&|upstream| upstream.calls_in_flight()),
            ),
            counter(
                "upstream_connects",
                "Successful connects to an upstream",
                per_upstream(&|upstream| usize::try_from(upstream.state().health.connects).unwrap_or(usize::MAX)),
            ),
            counter(
                "upstream_connect_failures",
                "Failed connects to an upstream",
                per_upstream(&|upstream| {
                    usize::try_from(upstream.state().health.failed_connects).unwrap_or(usize::MAX)
                }),
            ),
            counter(
                "upstream_calls_by_revision",
                "Calls forwarded to an upstream, by client and server revision",
                calls_by_revision,
            ),
        ];
        readings.extend(self.cluster_readings());
        readings
            .extend(self.issuers().readings().into_iter().chain(self.security_readings()).chain(self.quota_readings()));
        readings.extend(self.limit_readings().into_iter().chain(process_readings()));
        let mut families = self.gateway.metrics().families(readings);
        families.extend(self.store_families());
        families.into_iter().map(MetricFamily::redacted).collect()
    }

    /// Figures of this node in its cluster; none without a shared store.
    fn cluster_readings(&self) -> Vec<MetricsReading> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        let value = |count: u64| vec![(Vec::new(), i64::try_from(count).unwrap_or(i64::MAX))];
        let gauge = |name, help, values| MetricsReading { name, help, kind: MetricKind::Gauge, values };
        let counter = |name, help, values| MetricsReading { name, help, kind: MetricKind::Counter, values };
        vec![
            gauge("lease_held", "1 while this node holds its lease in the store", value(cluster.holds_lease().into())),
            gauge(
                "store_full",
                "1 while the store refuses writes because it is out of memory",
                value(cluster.store().is_full().into()),
            ),
            counter("store_commands", "Commands sent to the store", value(cluster.store().round_trips())),
            counter("store_errors", "Commands to the store that failed", value(cluster.store().errors())),
            gauge(
                "relays_pending",
                "Requests that wait for the response of another node",
                value(cluster.pending_relay_count() as u64),
            ),
            gauge(
                "relays_active",
                "Requests of other nodes that are served here",
                value(cluster.active_relay_count() as u64),
            ),
            counter("relayed_requests", "Requests relayed to other nodes", value(cluster.relayed_requests())),
            counter("session_takeovers", "Sessions adopted from other nodes", value(cluster.takeovers())),
        ]
    }

    /// How long the store takes, and how far it is behind.
    fn store_families(&self) -> Vec<MetricFamily> {
        let gauge = |name: &str, help, value| {
            let points = vec![MetricPoint { labels: Vec::new(), value }];
            MetricFamily::new(name, help, MetricKind::Gauge, points)
        };
        let mut families = Vec::new();
        if let Some(durations) = self.cluster.as_ref().and_then(|cluster| cluster.store().command_durations()) {
            let points = vec![MetricPoint { labels: Vec::new(), value: PointValue::Histogram(durations) }];
            let (name, help) = ("store_command_duration_seconds", "Duration of commands to the store");
            families.push(MetricFamily::new(name, help, MetricKind::Histogram, points));
        }
        if let Some(persister) = self.sessions.persister() {
            let (sessions, lag) = persister.backlog();
            let waiting = PointValue::Integer(saturating_i64(sessions));
            families.push(gauge("persistence_queue", "Sessions with changes that wait to be written", waiting));
            let help = "Age of the oldest change of a session that the store does not have";
            families.push(gauge("persistence_lag_seconds", help, PointValue::Float(lag.as_secs_f64())));
        }
        families
    }

    /// Figures of the audit log, and of the certificate where clients speak TLS.
    fn security_readings(&self) -> Vec<MetricsReading> {
        let lost = i64::try_from(self.gateway.audit().lost()).unwrap_or(i64::MAX);
        let mut readings = vec![MetricsReading {
            name: "audit_lost_events",
            help: "Events that the audit log could not take",
            kind: MetricKind::Counter,
            values: vec![(Vec::new(), lost)],
        }];
        let spans = self.gateway.tracer().counters();
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        readings.push(MetricsReading {
            name: "spans_exported",
            help: "Spans that the collector has taken",
            kind: MetricKind::Counter,
            values: vec![(Vec::new(), count(spans.exported()))],
        });
        let dropped = spans.dropped().into_iter();
        readings.push(MetricsReading {
            name: "spans_dropped",
            help: "Spans that were lost, by reason",
            kind: MetricKind::Counter,
            values: dropped.map(|(reason, lost)| (vec![("reason", reason.to_owned())], count(lost))).collect(),
        });
        let exports = self.metrics_exporter().counters().by_outcome().into_iter();
        readings.push(MetricsReading {
            name: "metric_exports",
            help: "Exports of metrics to the collector, by outcome",
            kind: MetricKind::Counter,
            values: exports.map(|(outcome, exports)| (vec![("outcome", outcome.to_owned())], count(exports))).collect(),
        });
        readings.push(MetricsReading {
            name: "log_lost_lines",
            help: "Lines of the log and the access log that standard error could not take",
            kind: MetricKind::Counter,
            values: vec![(Vec::new(), i64::try_from(lost_lines()).unwrap_or(i64::MAX))],
        });
        let expires = self.tls.load().as_deref().map(|tls| {
            let expires = i64::try_from(unix_seconds(tls.certificate.not_after)).unwrap_or(i64::MAX);
            (Vec::new(), expires)
        });
        readings.push(MetricsReading {
            name: "tls_certificate_expiry_timestamp_seconds",
            help: "When the certificate that clients see expires, in Unix seconds",
            kind: MetricKind::Gauge,
            values: expires.into_iter().collect(),
        });
        readings
    }

    fn quota_readings(&self) -> [MetricsReading; 3] {
        let usage = self.sessions.quotas().usage();
        let limits = self.gateway.rate_limits().usage();
        let values = |value: &dyn Fn(&QuotaUsage) -> i64| {
            usage.iter().map(|quota| (vec![("quota", quota.name.to_owned())], value(quota))).collect::<Vec<_>>()
        };
        let with_limits = |mut values: Vec<(Vec<(&'static str, String)>, i64)>, value: fn(&LimitMeasure) -> u64| {
            for (limit, measure) in limits.iter().flat_map(|limit| limit.measures.iter().map(move |one| (limit, one))) {
                let labels = vec![("quota", format!("{}/{}", limit.name, measure.name))];
                values.push((labels, i64::try_from(value(measure)).unwrap_or(i64::MAX)));
            }
            values
        };
        [
            MetricsReading {
                name: "quota_used",
                help: "Use of a quota; of a quota per caller, that of the caller with the most",
                kind: MetricKind::Gauge,
                values: with_limits(values(&|quota| saturating_i64(quota.used)), |measure| measure.used),
            },
            MetricsReading {
                name: "quota_limit",
                help: "Limit of a quota",
                kind: MetricKind::Gauge,
                values: with_limits(values(&|quota| saturating_i64(quota.limit)), |measure| measure.limit),
            },
            MetricsReading {
                name: "quota_refusals",
                help: "How often a quota was used up when more was asked for",
                kind: MetricKind::Counter,
                values: values(&|quota| i64::try_from(quota.refusals).unwrap_or(i64::MAX)),
            },
        ]
    }
}

impl Admin {
    /// What rate limits rejected, and whether nodes share them.
    fn limit_readings(&self) -> Vec<MetricsReading> {
        let limits = self.gateway.rate_limits();
        let rejected = |limit: LimitUsage| {
            (vec![("limit", limit.name.to_string())], i64::try_from(limit.rejections).unwrap_or(i64::MAX))
        };
        let mut readings = vec![MetricsReading {
            name: "rate_limited",
            help: "Requests that a rate limit rejected",
            kind: MetricKind::Counter,
            values: limits.usage().into_iter().map(rejected).collect(),
        }];
        if let Some(shared) = limits.shared_usage() {
            readings.push(MetricsReading {
                name: "rate_limits_unshared",
                help: "1 while the store is away and this node enforces its share of the rate limits",
                kind: MetricKind::Gauge,
                values: vec![(Vec::new(), i64::from(shared.is_away))],
            });
            readings.push(MetricsReading {
                name: "rate_limits_unshared_requests",
                help: "Requests that rate limits admitted while the store was away",
                kind: MetricKind::Counter,
                values: vec![(Vec::new(), i64::try_from(shared.decided_alone).unwrap_or(i64::MAX))],
            });
        }
        readings
    }
}

/// Figures of the process, which gateways in it share.
fn process_readings() -> [MetricsReading; 4] {
    let origins = origin_usage();
    let per_origin = |value: &dyn Fn(&OriginUsage) -> i64| {
        origins.iter().map(|usage| (vec![("origin", usage.origin.clone())], value(usage))).collect()
    };
    [
        MetricsReading {
            name: "origin_connections",
            help: "Open connections to an origin of HTTP servers",
            kind: MetricKind::Gauge,
            values: per_origin(&|usage| saturating_i64(usage.connections)),
        },
        MetricsReading {
            name: "origin_refusals",
            help: "Requests that got no connection to an origin, because all were in use",
            kind: MetricKind::Counter,
            values: per_origin(&|usage| i64::try_from(usage.refusals).unwrap_or(i64::MAX)),
        },
        MetricsReading {
            name: "upstream_requests_sent_again",
            help: "Requests to HTTP servers that were sent again, because an idle connection was closed",
            kind: MetricKind::Counter,
            values: vec![(Vec::new(), i64::try_from(SENT_AGAIN.value()).unwrap_or(i64::MAX))],
        },
        MetricsReading {
            name: "panics",
            help: "Tasks that ended by a panic",
            kind: MetricKind::Counter,
            values: vec![(Vec::new(), i64::try_from(panics()).unwrap_or(i64::MAX))],
        },
    ]
}

fn saturating_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// One sample for each state of each upstream.
fn upstream_states(upstreams: &[std::sync::Arc<Upstream>]) -> Vec<(Vec<(&'static str, String)>, i64)> {
    let mut states = Vec::new();
    for upstream in upstreams {
        let current = upstream.state().health.phase;
        for phase in [HealthPhase::Starting, HealthPhase::Ready, HealthPhase::Degraded, HealthPhase::Down] {
            let labels = vec![("upstream", upstream.name().to_string()), ("state", phase.to_string())];
            states.push((labels, i64::from(phase == current)));
        }
    }
    states
}
