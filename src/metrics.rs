//! Prometheus metrics. Calls are counted as they end; gauges are read when the metrics are rendered.

use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The registry and the metrics that are updated as events happen.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    calls: Family<CallLabels, Counter>,
    durations: Family<CallSeries, Histogram, fn() -> Histogram>,
    reloads: Family<ReloadLabels, Counter>,
    tls_handshakes: Family<HandshakeLabels, Counter>,
    admissions: Family<AdmissionLabels, Counter>,
    /// Handles of the first series of `admissions`.
    cached_admissions: [OnceLock<(String, &'static str, Counter)>; CACHED_ADMISSIONS_MAX],
    decisions: Family<DecisionLabels, Counter>,
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    group: Arc<str>,
    upstream: Arc<str>,
    method: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallSeries {
    group: Arc<str>,
    upstream: Arc<str>,
    method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandshakeLabels {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AdmissionLabels {
    issuer: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    group: Arc<str>,
    outcome: &'static str,
}

/// The metric handles of the decisions about calls of one group, by outcome.
#[derive(Debug, Default)]
pub struct DecisionMetrics([OnceLock<Counter>; DECISION_OUTCOMES_MAX]);

/// The metrics of the calls from one group to one upstream. Caches the metric handles of the first methods
/// seen, so that counting a call takes no registry lock.
#[derive(Debug, Default)]
pub struct CallMetrics([OnceLock<(&'static str, MethodMetrics)>; CACHED_METHODS_MAX]);

/// The metric handles of one method.
#[derive(Debug)]
struct MethodMetrics {
    seconds: Histogram,
    outcome_counters: [OnceLock<Counter>; CallOutcome::ALL.len()],
}

/// The labels `group` and `upstream`.
pub type GroupAndUpstream<'e> = (&'e Arc<str>, &'e Arc<str>);

/// Type of a metric that is sampled at scrape time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that rises and falls.
    Gauge,
    /// A value that only rises while the process runs; its name is rendered with `_total`.
    Counter,
}

/// A gauge that is read when the metrics are rendered.
#[derive(Debug)]
pub struct MetricsReading {
    /// The metric name without the common prefix.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    /// Whether it is rendered as a gauge or as a counter.
    pub kind: MetricKind,
    /// Its pairs and value of each series.
    pub values: Vec<(Vec<(&'static str, String)>, i64)>,
}

/// Methods with cached handles; the handles of further methods are looked up for each call.
const CACHED_METHODS_MAX: usize = 8;
/// Series of admissions with cached handles.
const CACHED_ADMISSIONS_MAX: usize = 16;
/// Most outcomes that a decision can have.
const DECISION_OUTCOMES_MAX: usize = 8;
/// The prefix of every metric name.
const PREFIX: &str = "rialto";
/// Upper bounds of the call duration histogram, in seconds.
const DURATION_BUCKETS_SECONDS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

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
    /// Registers the metrics, all at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let calls = Family::default();
        registry.register("calls", "Calls that ended", calls.clone());
        let durations =
            Family::new_with_constructor((|| Histogram::new(DURATION_BUCKETS_SECONDS)) as fn() -> Histogram);
        registry.register("call_duration_seconds", "How long calls took", durations.clone());
        let reloads = Family::default();
        registry.register("reloads", "Configurations that were read again", reloads.clone());
        let tls_handshakes = Family::default();
        registry.register("tls_handshakes", "TLS handshakes of clients", tls_handshakes.clone());
        let admissions = Family::default();
        registry.register("admissions", "Requests that were let in or turned away", admissions.clone());
        let decisions = Family::default();
        registry.register("decisions", "Decisions about calls", decisions.clone());
        let cached_admissions = Default::default();
        Self { registry, calls, durations, reloads, tls_handshakes, admissions, cached_admissions, decisions }
    }

    /// Counts a call that ended and observes its duration. `method` must come from a bounded set: it is a
    /// label.
    pub fn record_call(
        &self,
        cached: &CallMetrics,
        labels: GroupAndUpstream<'_>,
        method: &'static str,
        duration: Duration,
        outcome: CallOutcome,
    ) {
        let known = cached.0.iter().map(|slot| slot.get_or_init(|| (method, self.method_metrics(labels, method))));
        match known.into_iter().find(|(name, _)| *name == method) {
            Some((_, metrics)) => metrics.record(duration, outcome, || self.outcome_counter(labels, method, outcome)),
            None => self
                .method_metrics(labels, method)
                .record(duration, outcome, || self.outcome_counter(labels, method, outcome)),
        }
    }

    fn method_metrics(&self, (group, upstream): GroupAndUpstream<'_>, method: &'static str) -> MethodMetrics {
        let series = CallSeries { group: Arc::clone(group), upstream: Arc::clone(upstream), method };
        MethodMetrics { seconds: self.durations.get_or_create(&series).clone(), outcome_counters: Default::default() }
    }

    fn outcome_counter(
        &self,
        (group, upstream): GroupAndUpstream<'_>,
        method: &'static str,
        outcome: CallOutcome,
    ) -> Counter {
        let (group, upstream) = (Arc::clone(group), Arc::clone(upstream));
        self.calls.get_or_create(&CallLabels { group, upstream, method, outcome: outcome.as_str() }).clone()
    }

    /// Counts a configuration reload, accepted or refused.
    pub fn record_reload(&self, accepted: bool) {
        self.reloads.get_or_create(&ReloadLabels { outcome: if accepted { "ok" } else { "refused" } }).inc();
    }

    /// Counts a request that was let in or turned away. Both must come from bounded sets: they are labels.
    pub fn record_admission(&self, issuer: &str, outcome: &'static str) {
        let counter = || {
            let labels = AdmissionLabels { issuer: issuer.to_owned(), outcome };
            self.admissions.get_or_create(&labels).clone()
        };
        let slots = self.cached_admissions.iter();
        let mut known = slots.map(|slot| slot.get_or_init(|| (issuer.to_owned(), outcome, counter())));
        match known.find(|(name, seen, _)| *seen == outcome && name == issuer) {
            Some((_, _, counter)) => counter.inc(),
            None => counter().inc(),
        };
    }

    /// Counts a decision about a call of a group. `index` is that of the outcome among all.
    pub fn record_decision(&self, cached: &DecisionMetrics, group: &Arc<str>, index: usize, outcome: &'static str) {
        let counter = || self.decisions.get_or_create(&DecisionLabels { group: Arc::clone(group), outcome }).clone();
        match cached.0.get(index) {
            Some(slot) => slot.get_or_init(counter).inc(),
            None => counter().inc(),
        };
    }

    /// Counts a TLS handshake of a client. `outcome` must come from a bounded set: it is a label.
    pub fn record_tls_handshake(&self, outcome: &'static str) {
        self.tls_handshakes.get_or_create(&HandshakeLabels { outcome }).inc();
    }

    /// Renders all metrics in the OpenMetrics text format, with the given gauges.
    ///
    /// # Errors
    /// Never in practice: writing to a string cannot fail.
    pub fn render(&self, readings: Vec<MetricsReading>) -> Result<String, std::fmt::Error> {
        let mut now = Registry::with_prefix(PREFIX);
        for reading in readings {
            let samples = reading.values.into_iter().map(|(labels, value)| {
                let labels: Vec<_> = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
                (labels, value)
            });
            match reading.kind {
                MetricKind::Gauge => {
                    let family = Family::<Vec<(String, String)>, Gauge>::default();
                    for (labels, value) in samples {
                        family.get_or_create(&labels).set(value);
                    }
                    now.register(reading.name, reading.help, family);
                }
                MetricKind::Counter => {
                    let family = Family::<Vec<(String, String)>, Counter>::default();
                    for (labels, value) in samples {
                        family.get_or_create(&labels).inc_by(u64::try_from(value).unwrap_or_default());
                    }
                    now.register(reading.name, reading.help, family);
                }
            }
        }
        let mut out = String::new();
        text::encode_registry(&mut out, &self.registry)?;
        text::encode_registry(&mut out, &now)?;
        out.write_str("# EOF\n")?;
        Ok(out)
    }
}

impl MethodMetrics {
    fn record(&self, duration: Duration, outcome: CallOutcome, counter: impl FnOnce() -> Counter) {
        self.seconds.observe(duration.as_secs_f64());
        self.outcome_counters[outcome as usize].get_or_init(counter).inc();
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
    fn metrics_are_rendered_as_openmetrics_text() {
        let metrics = Metrics::new();
        let (group, upstream): (Arc<str>, Arc<str>) = ("default".into(), "files".into());
        let cached = CallMetrics::default();
        metrics.record_call(
            &cached,
            (&group, &upstream),
            "tools/call",
            Duration::from_millis(3),
            CallOutcome::ToolError,
        );
        // Cached and uncached handles must count into the same series.
        let methods = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "i", "a"];
        for (n, method) in methods.into_iter().enumerate() {
            let other = CallMetrics::default();
            let cached = if n % 2 == 0 { &cached } else { &other };
            metrics.record_call(cached, (&group, &upstream), method, Duration::ZERO, CallOutcome::Ok);
        }
        let sessions = MetricsReading {
            name: "sessions",
            help: "Open sessions",
            kind: MetricKind::Gauge,
            values: vec![(vec![("transport", "http".to_owned())], 2)],
        };
        let connects = MetricsReading {
            name: "upstream_connects",
            help: "Successful connects to an upstream",
            kind: MetricKind::Counter,
            values: vec![(vec![("upstream", "files".to_owned())], 3)],
        };
        let text = metrics.render(vec![sessions, connects]).unwrap();
        for line in [
            r#"rialto_calls_total{group="default",upstream="files",method="tools/call",outcome="tool_error"} 1"#,
            r#"rialto_call_duration_seconds_bucket{le="0.005",group="default",upstream="files",method="tools/call"} 1"#,
            r#"rialto_calls_total{group="default",upstream="files",method="a",outcome="ok"} 2"#,
            r#"rialto_calls_total{group="default",upstream="files",method="i",outcome="ok"} 2"#,
            r#"rialto_call_duration_seconds_count{group="default",upstream="files",method="i"} 2"#,
            r#"rialto_sessions{transport="http"} 2"#,
            "# TYPE rialto_upstream_connects counter",
            r#"rialto_upstream_connects_total{upstream="files"} 3"#,
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
