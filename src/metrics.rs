//! Figures for whoever operates a gateway. Calls are counted as they end; everything else is counted
//! when somebody asks.

use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// What is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    calls: Family<CallLabels, Counter>,
    seconds: Family<CallSeries, Histogram, fn() -> Histogram>,
    reloads: Family<Reload, Counter>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    /// With a result.
    Ok,
    /// With a result that says that the tool failed.
    ToolError,
    /// With an error of the protocol.
    Error,
    /// Without an answer from the upstream.
    Unavailable,
    /// Without an answer, because the client wanted none any more.
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
struct Reload {
    outcome: &'static str,
}

/// The figures of the calls that one group makes to one upstream. What is called is found once; counting it again
/// looks nothing up.
#[derive(Debug, Default)]
pub struct CallMetrics([OnceLock<(&'static str, MethodMetrics)>; TALLIES]);

/// The figures of one method.
#[derive(Debug)]
struct MethodMetrics {
    seconds: Histogram,
    endings: [OnceLock<Counter>; CallOutcome::ALL.len()],
}

/// The names of a group and of an upstream.
pub type Ends<'e> = (&'e Arc<str>, &'e Arc<str>);

/// Type of a metric that is sampled at scrape time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that rises and falls.
    Gauge,
    /// A value that only rises while the process runs; its name is rendered with `_total`.
    Counter,
}

/// A figure that is read when somebody asks: its name, what it is, and its values by label.
#[derive(Debug)]
pub struct MetricsReading {
    /// Its name, without the prefix that all have.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Whether it is rendered as a gauge or as a counter.
    pub kind: MetricKind,
    /// Its values.
    pub values: Vec<(Vec<(&'static str, String)>, i64)>,
}

/// How many methods have a place. Others are looked up each time.
const TALLIES: usize = 8;
/// What names begin with.
const PREFIX: &str = "rialto";
/// The bounds of how long calls take, in seconds.
const BOUNDS: [f64; 15] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

impl CallOutcome {
    const ALL: [Self; 5] = [Self::Ok, Self::ToolError, Self::Error, Self::Unavailable, Self::Cancelled];

    /// As it is written.
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
    /// Nothing has happened yet.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let calls = Family::default();
        registry.register("calls", "Calls that ended", calls.clone());
        let seconds = Family::new_with_constructor((|| Histogram::new(BOUNDS)) as fn() -> Histogram);
        registry.register("call_duration_seconds", "How long calls took", seconds.clone());
        let reloads = Family::default();
        registry.register("reloads", "Configurations that were read again", reloads.clone());
        Self { registry, calls, seconds, reloads }
    }

    /// A call ended, of a group to an upstream whose figures these are. `method` must be one of few.
    pub fn ended(
        &self,
        tallies: &CallMetrics,
        ends: Ends<'_>,
        method: &'static str,
        took: Duration,
        outcome: CallOutcome,
    ) {
        let known = tallies.0.iter().map(|place| place.get_or_init(|| (method, self.tally(ends, method))));
        match known.into_iter().find(|(name, _)| *name == method) {
            Some((_, tally)) => tally.note(took, outcome, || self.ending(ends, method, outcome)),
            None => self.tally(ends, method).note(took, outcome, || self.ending(ends, method, outcome)),
        }
    }

    fn tally(&self, (group, upstream): Ends<'_>, method: &'static str) -> MethodMetrics {
        let way = CallSeries { group: Arc::clone(group), upstream: Arc::clone(upstream), method };
        MethodMetrics { seconds: self.seconds.get_or_create(&way).clone(), endings: Default::default() }
    }

    fn ending(&self, (group, upstream): Ends<'_>, method: &'static str, outcome: CallOutcome) -> Counter {
        let (group, upstream) = (Arc::clone(group), Arc::clone(upstream));
        self.calls.get_or_create(&CallLabels { group, upstream, method, outcome: outcome.as_str() }).clone()
    }

    /// A configuration was read again.
    pub fn reloaded(&self, taken: bool) {
        self.reloads.get_or_create(&Reload { outcome: if taken { "ok" } else { "refused" } }).inc();
    }

    /// Everything as text, with what is read just now.
    ///
    /// # Errors
    /// Never, as text takes everything.
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
    fn note(&self, took: Duration, outcome: CallOutcome, counter: impl FnOnce() -> Counter) {
        self.seconds.observe(took.as_secs_f64());
        self.endings[outcome as usize].get_or_init(counter).inc();
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
    fn figures_are_written_as_text() {
        let metrics = Metrics::new();
        let (group, upstream): (Arc<str>, Arc<str>) = ("default".into(), "files".into());
        let tallies = CallMetrics::default();
        metrics.ended(&tallies, (&group, &upstream), "tools/call", Duration::from_millis(3), CallOutcome::ToolError);
        // Whoever counts, and however many methods there are, it is the same figure.
        let methods = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "i", "a"];
        for (n, method) in methods.into_iter().enumerate() {
            let other = CallMetrics::default();
            let tallies = if n % 2 == 0 { &tallies } else { &other };
            metrics.ended(tallies, (&group, &upstream), method, Duration::ZERO, CallOutcome::Ok);
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
