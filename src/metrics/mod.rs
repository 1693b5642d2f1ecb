//! Metrics: counted as events happen, or read when somebody asks. [`MetricFamily`] is what Prometheus scrapes and what is
//! exported by OTLP.

mod family;
mod instruments;
mod loop_lag;
mod operations;
mod text;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

pub use family::{
    HistogramPoint, MetricFamily, MetricKind, MetricLabels, MetricPoint, MetricUnit, MetricsReading, PointValue,
};
use instruments::SeriesLabels;
use instruments::SeriesMap;
pub use instruments::{Counter, Histogram, SharedCounter};
use loop_lag::WorkerLabel;
pub use loop_lag::measure_loop_lag;
pub use operations::{
    LabelName, NetworkTransport, OperationError, OperationLabels, OperationMetrics, OperationSide, OperationTarget,
    SessionLabels, ToolCalls, record_client_session,
};
pub use text::TextFormat;

/// The metrics that are updated as events happen.
#[derive(Debug)]
pub struct Metrics {
    calls: SeriesMap<CallLabels, Counter>,
    reloads: SeriesMap<OutcomeLabel, Counter>,
    tls_handshakes: SeriesMap<OutcomeLabel, Counter>,
    admissions: SeriesMap<AdmissionLabels, Counter>,
    /// Handles of the first series of `admissions`.
    cached_admissions: [OnceLock<(String, &'static str, Counter)>; CACHED_ADMISSIONS_MAX],
    decisions: SeriesMap<DecisionLabels, Counter>,
    operations: OperationMetrics,
    connections: [ListenerConnections; 2],
    connections_refused: SeriesMap<OutcomeLabel, Counter>,
    http_requests: SeriesMap<StatusLabel, Counter>,
    loop_lag: SeriesMap<WorkerLabel, Histogram>,
}

/// Body bytes of HTTP requests and responses of clients, of all gateways in this process.
#[derive(Debug)]
pub struct HttpTraffic {
    /// Bytes of request bodies.
    pub received: SharedCounter,
    /// Bytes of response bodies.
    pub sent: SharedCounter,
}

/// The bytes that clients and this process have exchanged.
pub static HTTP_TRAFFIC: HttpTraffic = HttpTraffic { received: SharedCounter::new(), sent: SharedCounter::new() };

/// The connections of one kind of listener.
#[derive(Debug, Default)]
struct ListenerConnections {
    accepted: Counter,
    open: Arc<AtomicI64>,
}

/// A connection that counts as open until this is dropped.
#[derive(Debug)]
pub struct OpenConnection(Arc<AtomicI64>);

/// Who connects to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionOrigin {
    /// Clients, and operators where they have no listener of their own.
    Clients,
    /// Operators.
    Operators,
}

/// How a call ended; the label `outcome`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    /// The upstream returned a result.
    Ok,
    /// The upstream returned a tool result with `isError`.
    ToolError,
    /// The call ended with a JSON-RPC error.
    Error,
    /// The upstream could not be reached or did not answer.
    Unavailable,
    /// The client cancelled the call.
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CallLabels {
    group: Arc<str>,
    upstream: Arc<str>,
    method: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OutcomeLabel(&'static str);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct StatusLabel(u16);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AdmissionLabels {
    issuer: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DecisionLabels {
    group: Arc<str>,
    outcome: &'static str,
}

/// The metric handles of the decisions about calls of one group, by outcome.
#[derive(Debug, Default)]
pub struct DecisionMetrics([OnceLock<Counter>; DECISION_OUTCOMES_MAX]);

/// The metrics of the calls from one group to one upstream. Caches the metric handles of the first methods
/// seen, so that counting a call clones no name.
#[derive(Debug, Default)]
pub struct CallMetrics {
    methods: [OnceLock<(&'static str, MethodMetrics)>; CACHED_METHODS_MAX],
    /// The upstream in metrics of operations.
    place: OnceLock<LabelName>,
}

/// The metric handles of one method.
#[derive(Debug, Default)]
struct MethodMetrics {
    outcome_counters: [OnceLock<Counter>; CallOutcome::ALL.len()],
}

/// The labels `group` and `upstream`.
pub type GroupAndUpstream<'e> = (&'e Arc<str>, &'e Arc<str>);

/// Methods with cached handles; the handles of further methods are looked up for each call.
const CACHED_METHODS_MAX: usize = 8;
/// Series of admissions with cached handles.
const CACHED_ADMISSIONS_MAX: usize = 16;
/// Most outcomes that a decision can have.
const DECISION_OUTCOMES_MAX: usize = 8;
/// The value of labels whose series are too many.
const OVERFLOW: &str = "_other";

impl CallMetrics {
    /// The number of the upstream, looked up once.
    pub fn place(&self, look_up: impl FnOnce() -> LabelName) -> LabelName {
        *self.place.get_or_init(look_up)
    }
}

impl CallOutcome {
    const ALL: [Self; 5] = [Self::Ok, Self::ToolError, Self::Error, Self::Unavailable, Self::Cancelled];

    /// The value of the label `outcome`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ToolError => "tool_error",
            Self::Error => "error",
            Self::Unavailable => "unavailable",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Metrics {
    /// All metrics, without any series.
    pub fn new() -> Self {
        Self {
            calls: SeriesMap::new(),
            reloads: SeriesMap::new(),
            tls_handshakes: SeriesMap::new(),
            admissions: SeriesMap::new(),
            cached_admissions: Default::default(),
            decisions: SeriesMap::new(),
            operations: OperationMetrics::new(),
            connections: Default::default(),
            connections_refused: SeriesMap::new(),
            http_requests: SeriesMap::new(),
            loop_lag: SeriesMap::new(),
        }
    }

    /// The durations of MCP operations and sessions.
    pub fn operations(&self) -> &OperationMetrics {
        &self.operations
    }

    /// Counts a call that ended. `method` must come from a bounded set: it is a label.
    pub fn record_call(
        &self,
        cached: &CallMetrics,
        labels: GroupAndUpstream<'_>,
        method: &'static str,
        outcome: CallOutcome,
    ) {
        let counter = || self.outcome_counter(labels, method, outcome);
        let known = cached.methods.iter().map(|slot| slot.get_or_init(|| (method, MethodMetrics::default())));
        match known.into_iter().find(|(name, _)| *name == method) {
            Some((_, metrics)) => metrics.outcome_counters[outcome as usize].get_or_init(counter).increment(),
            None => counter().increment(),
        }
    }

    fn outcome_counter(
        &self,
        (group, upstream): GroupAndUpstream<'_>,
        method: &'static str,
        outcome: CallOutcome,
    ) -> Counter {
        let (group, upstream) = (Arc::clone(group), Arc::clone(upstream));
        self.calls.counter(&CallLabels { group, upstream, method, outcome: outcome.as_str() })
    }

    /// Counts a configuration reload, accepted or refused.
    pub fn record_reload(&self, accepted: bool) {
        self.reloads.increment(&OutcomeLabel(if accepted { "ok" } else { "refused" }));
    }

    /// Counts a request that was let in or turned away. Both must come from bounded sets: they are labels.
    pub fn record_admission(&self, issuer: &str, outcome: &'static str) {
        let counter = || self.admissions.counter(&AdmissionLabels { issuer: issuer.to_owned(), outcome });
        let slots = self.cached_admissions.iter();
        let mut known = slots.map(|slot| slot.get_or_init(|| (issuer.to_owned(), outcome, counter())));
        match known.find(|(name, seen, _)| *seen == outcome && name == issuer) {
            Some((_, _, counter)) => counter.increment(),
            None => counter().increment(),
        }
    }

    /// Counts a decision about a call of a group. `index` is that of the outcome among all.
    pub fn record_decision(&self, cached: &DecisionMetrics, group: &Arc<str>, index: usize, outcome: &'static str) {
        let counter = || self.decisions.counter(&DecisionLabels { group: Arc::clone(group), outcome });
        match cached.0.get(index) {
            Some(slot) => slot.get_or_init(counter).increment(),
            None => counter().increment(),
        }
    }

    /// Counts a TLS handshake of a client. `outcome` must come from a bounded set: it is a label.
    pub fn record_tls_handshake(&self, outcome: &'static str) {
        self.tls_handshakes.increment(&OutcomeLabel(outcome));
    }

    /// Counts a connection that was accepted, and as open until the guard is dropped.
    pub fn record_connection(&self, from: ConnectionOrigin) -> OpenConnection {
        let connections = &self.connections[from as usize];
        connections.accepted.increment();
        connections.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(&connections.open))
    }

    /// Counts a connection that was closed at once. `reason` must come from a bounded set: it is a label.
    pub fn record_refused_connection(&self, reason: &'static str) {
        self.connections_refused.increment(&OutcomeLabel(reason));
    }

    /// Counts an HTTP request by the status of its response.
    #[inline]
    pub fn record_http_request(&self, status: u16) {
        self.http_requests.increment(&StatusLabel(status));
    }

    /// All metrics, with those that were read elsewhere.
    pub fn families(&self, readings: Vec<MetricsReading>) -> Vec<MetricFamily> {
        let counter = |name: &str, help, points| MetricFamily::new(name, help, MetricKind::Counter, points);
        let outcome = |label: &OutcomeLabel| vec![("outcome", label.0.to_owned())];
        let mut families = Vec::from(self.operations.families());
        families.extend([
            counter("calls", "Calls that ended", self.calls.counts(CallLabels::pairs)),
            counter("reloads", "Configurations that were read again", self.reloads.counts(outcome)),
            counter("tls_handshakes", "TLS handshakes of clients", self.tls_handshakes.counts(outcome)),
            counter(
                "admissions",
                "Requests that were let in or turned away",
                self.admissions
                    .counts(|labels| vec![("issuer", labels.issuer.clone()), ("outcome", labels.outcome.to_owned())]),
            ),
            counter(
                "decisions",
                "Decisions about calls",
                self.decisions
                    .counts(|labels| vec![("group", labels.group.to_string()), ("outcome", labels.outcome.to_owned())]),
            ),
            counter(
                "http_requests",
                "HTTP requests that were answered, by status",
                self.http_requests.counts(|label| vec![("status", label.0.to_string())]),
            ),
            counter(
                "connections_refused",
                "Client connections that were closed at once",
                self.connections_refused.counts(|label| vec![("reason", label.0.to_owned())]),
            ),
        ]);
        families.push(self.loop_lag_family());
        families.extend(self.connection_families());
        families.extend(HTTP_TRAFFIC.families());
        families.extend(readings.into_iter().map(MetricFamily::from));
        families
    }

    fn connection_families(&self) -> [MetricFamily; 2] {
        let by_listener = |value: &dyn Fn(&ListenerConnections) -> i64| {
            let listeners = ["clients", "operators"].into_iter().zip(&self.connections);
            listeners
                .map(|(listener, connections)| MetricPoint {
                    labels: vec![("listener", listener.to_owned())],
                    value: PointValue::Integer(value(connections)),
                })
                .collect()
        };
        [
            MetricFamily::new(
                "connections_accepted",
                "Connections that were accepted",
                MetricKind::Counter,
                by_listener(&|connections| i64::try_from(connections.accepted.value()).unwrap_or(i64::MAX)),
            ),
            MetricFamily::new(
                "connections",
                "Open connections",
                MetricKind::Gauge,
                by_listener(&|connections| connections.open.load(Ordering::Relaxed)),
            ),
        ]
    }
}

impl HttpTraffic {
    fn families(&self) -> [MetricFamily; 2] {
        let family = |name: &str, help, counter: &SharedCounter| {
            let value = PointValue::Integer(i64::try_from(counter.value()).unwrap_or(i64::MAX));
            MetricFamily::new(name, help, MetricKind::Counter, vec![MetricPoint { labels: Vec::new(), value }])
        };
        [
            family("http_received_bytes", "Bytes of the bodies of HTTP requests", &self.received),
            family("http_sent_bytes", "Bytes of the bodies of HTTP responses", &self.sent),
        ]
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CallLabels {
    fn pairs(&self) -> MetricLabels {
        vec![
            ("group", self.group.to_string()),
            ("upstream", self.upstream.to_string()),
            ("method", self.method.to_owned()),
            ("outcome", self.outcome.to_owned()),
        ]
    }
}

impl SeriesLabels for CallLabels {
    fn overflow() -> Self {
        Self { group: OVERFLOW.into(), upstream: OVERFLOW.into(), method: OVERFLOW, outcome: OVERFLOW }
    }
}

impl SeriesLabels for OutcomeLabel {
    fn overflow() -> Self {
        Self(OVERFLOW)
    }
}

impl SeriesLabels for StatusLabel {
    fn overflow() -> Self {
        Self(0)
    }
}

impl SeriesLabels for AdmissionLabels {
    fn overflow() -> Self {
        Self { issuer: OVERFLOW.to_owned(), outcome: OVERFLOW }
    }
}

impl SeriesLabels for DecisionLabels {
    fn overflow() -> Self {
        Self { group: OVERFLOW.into(), outcome: OVERFLOW }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_and_uncached_handles_count_into_the_same_series() {
        let metrics = Metrics::new();
        let (group, upstream): (Arc<str>, Arc<str>) = ("default".into(), "files".into());
        let cached = CallMetrics::default();
        metrics.record_call(&cached, (&group, &upstream), "tools/call", CallOutcome::ToolError);
        let methods = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "i", "a"];
        for (n, method) in methods.into_iter().enumerate() {
            let other = CallMetrics::default();
            let cached = if n % 2 == 0 { &cached } else { &other };
            metrics.record_call(cached, (&group, &upstream), method, CallOutcome::Ok);
        }
        let connects = MetricsReading {
            name: "upstream_connects",
            help: "Successful connects to an upstream",
            kind: MetricKind::Counter,
            values: vec![(vec![("upstream", "files".to_owned())], 3)],
        };
        let open = metrics.record_connection(ConnectionOrigin::Clients);
        drop(metrics.record_connection(ConnectionOrigin::Clients));
        let text = TextFormat::Prometheus.render(&metrics.families(vec![connects]));
        for line in [
            r#"rialto_calls_total{group="default",upstream="files",method="tools/call",outcome="tool_error"} 1"#,
            r#"rialto_calls_total{group="default",upstream="files",method="a",outcome="ok"} 2"#,
            r#"rialto_calls_total{group="default",upstream="files",method="i",outcome="ok"} 2"#,
            r#"rialto_upstream_connects_total{upstream="files"} 3"#,
            r#"rialto_connections{listener="clients"} 1"#,
            r#"rialto_connections_accepted_total{listener="clients"} 2"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        drop(open);
    }
}
