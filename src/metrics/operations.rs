//! Durations of MCP operations and sessions, by the conventions of OpenTelemetry for MCP
//! (open-telemetry/semantic-conventions-genai, docs/gen-ai/mcp.md).

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::family::{MetricFamily, MetricKind, MetricLabels, MetricUnit};
use super::instruments::{Histogram, SeriesLabels, SeriesMap};

/// The four histograms of the conventions.
#[derive(Debug)]
pub struct OperationMetrics {
    /// Groups and upstreams.
    places: LabelNames,
    /// Tools and prompts.
    targets: LabelNames,
    server: SeriesMap<OperationLabels, Histogram>,
    client: SeriesMap<OperationLabels, Histogram>,
    sessions: SeriesMap<SessionLabels, Histogram>,
}

/// Which end of an operation this gateway was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationSide {
    /// A client of ours asked; the place is a group.
    Server,
    /// We asked a server; the place is an upstream.
    Client,
}

/// What an operation is counted under. All of it comes from bounded sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationLabels {
    /// The group or the upstream.
    pub place: LabelName,
    /// `mcp.method.name`; of a method that no revision has, `_OTHER`.
    pub method: &'static str,
    /// `gen_ai.tool.name` or `gen_ai.prompt.name`.
    pub target: Option<OperationTarget>,
    /// How it failed.
    pub error: Option<OperationError>,
    /// `mcp.protocol.version`; not known where no connection was had.
    pub revision: Option<&'static str>,
    /// `network.transport`; none where the server is in this process.
    pub transport: Option<NetworkTransport>,
}

/// What a session is counted under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionLabels {
    /// The group.
    pub place: LabelName,
    /// How it failed: `error.type`.
    pub error: Option<&'static str>,
    /// `mcp.protocol.version`.
    pub revision: Option<&'static str>,
    /// `network.transport`.
    pub transport: NetworkTransport,
}

/// What a session with a server is counted under. Connections know no upstream, so the gateways of a process share these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct UpstreamSessionLabels {
    revision: &'static str,
    transport: NetworkTransport,
}

/// Durations of sessions with servers.
static CLIENT_SESSIONS: LazyLock<SeriesMap<UpstreamSessionLabels, Histogram>> = LazyLock::new(SeriesMap::new);

/// Adds a session with a server that ended.
pub fn record_client_session(revision: &'static str, transport: NetworkTransport, duration: Duration) {
    CLIENT_SESSIONS.observe(&UpstreamSessionLabels { revision, transport }, &DURATION_BOUNDS, duration);
}

/// The tool or the prompt of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationTarget {
    /// Of `tools/call`.
    Tool(LabelName),
    /// Of `prompts/get`.
    Prompt(LabelName),
}

/// How an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OperationError {
    /// `error.type`.
    pub kind: &'static str,
    /// `rpc.response.status_code`, where it is one of those that MCP and JSON-RPC define.
    pub code: Option<&'static str>,
}

/// How messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NetworkTransport {
    /// HTTP over TCP.
    Tcp,
    /// Standard input and output.
    Pipe,
}

/// Calls of the tools of one server since the start.
#[derive(Debug)]
pub struct ToolCalls {
    calls: HashMap<String, u64>,
    /// Whether every tool that was called has a count of its own.
    is_whole: bool,
}

/// A label value by its number in a bounded table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LabelName(u16);

/// Numbers for label values, of which there is a bounded number. Looking one up takes no lock.
#[derive(Debug)]
struct LabelNames {
    known: ArcSwap<KnownNames>,
    limit: usize,
    adding: Mutex<()>,
}

#[derive(Debug, Clone, Default)]
struct KnownNames {
    numbers: HashMap<Arc<str>, LabelName, RandomState>,
    names: Vec<Arc<str>>,
}

/// Buckets that the conventions recommend, in nanoseconds.
const DURATION_BOUNDS: [u64; 14] = [
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    120_000_000_000,
    300_000_000_000,
];
/// Tools and prompts with series of their own; further ones share `_other`.
const MAX_TARGETS: usize = 200;
/// Groups and upstreams with series of their own, counted since the start.
const MAX_PLACES: usize = 1000;
/// The value that OpenTelemetry has for what is not in a bounded set.
const OTHER: &str = "_OTHER";

impl LabelName {
    /// Stands for all values beyond the limit, or that are not known.
    pub const OTHER: Self = Self(u16::MAX);
}

impl OperationError {
    /// An error of this kind that has no code.
    pub const fn of_kind(kind: &'static str) -> Self {
        Self { kind, code: None }
    }

    /// A JSON-RPC error with this code; `kind` where more is known about it.
    pub fn of_code(code: i64, kind: Option<&'static str>) -> Self {
        let code = match code {
            -32700 => Some("-32700"),
            -32600 => Some("-32600"),
            -32601 => Some("-32601"),
            -32602 => Some("-32602"),
            -32603 => Some("-32603"),
            -32000 => Some("-32000"),
            -32001 => Some("-32001"),
            -32002 => Some("-32002"),
            -32003 => Some("-32003"),
            -32004 => Some("-32004"),
            -32042 => Some("-32042"),
            _ => None,
        };
        Self { kind: kind.or(code).unwrap_or(OTHER), code }
    }
}

impl NetworkTransport {
    fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Pipe => "pipe",
        }
    }
}

impl OperationMetrics {
    pub(super) fn new() -> Self {
        Self {
            places: LabelNames::new(MAX_PLACES),
            targets: LabelNames::new(MAX_TARGETS),
            server: SeriesMap::new(),
            client: SeriesMap::new(),
            sessions: SeriesMap::new(),
        }
    }

    /// The number of a group or an upstream.
    pub fn place(&self, name: &str) -> LabelName {
        self.places.number(name, || true)
    }

    /// The number of a tool or a prompt. `exists` is asked about a name that is not known yet: clients must not be able to
    /// create series.
    #[inline]
    pub fn target(&self, name: &str, exists: impl FnOnce() -> bool) -> LabelName {
        self.targets.number(name, exists)
    }

    /// The label for a method of the protocol, or for any other.
    pub fn method(known: Option<&'static str>) -> &'static str {
        known.unwrap_or(OTHER)
    }

    /// Adds an operation that ended.
    #[inline]
    pub fn record(&self, side: OperationSide, labels: &OperationLabels, duration: Duration) {
        let series = match side {
            OperationSide::Server => &self.server,
            OperationSide::Client => &self.client,
        };
        series.observe(labels, &DURATION_BOUNDS, duration);
    }

    /// Calls of the tools of a server, by the server's own names.
    pub fn tool_calls(&self, upstream: &str) -> ToolCalls {
        let (series, has_all_series) = self.client.observations();
        let mut calls = HashMap::new();
        for (labels, count) in series {
            if let Some(OperationTarget::Tool(tool)) = labels.target
                && self.places.name(labels.place) == upstream
            {
                *calls.entry(self.targets.name(tool)).or_default() += count;
            }
        }
        ToolCalls { calls, is_whole: has_all_series && self.targets.has_room() }
    }

    /// Adds a session of a client that ended.
    pub fn record_session(&self, labels: &SessionLabels, duration: Duration) {
        self.sessions.observe(labels, &DURATION_BOUNDS, duration);
    }

    pub(super) fn families(&self) -> [MetricFamily; 4] {
        let family = |name: &str, help, points| MetricFamily {
            name: name.to_owned(),
            help,
            unit: MetricUnit::Seconds,
            kind: MetricKind::Histogram,
            points,
        };
        [
            family(
                "mcp.server.operation.duration",
                "Duration of a request of a client, without the time that it waited for its client's input",
                self.server.histograms(|labels| self.operation_labels("group", labels)),
            ),
            family(
                "mcp.client.operation.duration",
                "Duration of a request to a server, without the time that it waited for a client's input",
                self.client.histograms(|labels| self.operation_labels("upstream", labels)),
            ),
            family(
                "mcp.server.session.duration",
                "Duration of a session of a client",
                self.sessions.histograms(|labels| self.session_labels(labels)),
            ),
            family(
                "mcp.client.session.duration",
                "Duration of a session with a server",
                CLIENT_SESSIONS.histograms(UpstreamSessionLabels::pairs),
            ),
        ]
    }

    fn operation_labels(&self, place: &'static str, labels: &OperationLabels) -> MetricLabels {
        let mut pairs = vec![(place, self.places.name(labels.place)), ("mcp.method.name", labels.method.to_owned())];
        match labels.target {
            Some(OperationTarget::Tool(name)) => {
                pairs.push(("gen_ai.operation.name", "execute_tool".to_owned()));
                pairs.push(("gen_ai.tool.name", self.targets.name(name)));
            }
            Some(OperationTarget::Prompt(name)) => pairs.push(("gen_ai.prompt.name", self.targets.name(name))),
            None => {}
        }
        if let Some(error) = labels.error {
            pairs.push(("error.type", error.kind.to_owned()));
            pairs.extend(error.code.map(|code| ("rpc.response.status_code", code.to_owned())));
        }
        pairs.extend(labels.revision.map(|revision| ("mcp.protocol.version", revision.to_owned())));
        pairs.extend(labels.transport.map(|transport| ("network.transport", transport.as_str().to_owned())));
        pairs
    }

    fn session_labels(&self, labels: &SessionLabels) -> MetricLabels {
        let mut pairs = vec![("group", self.places.name(labels.place))];
        pairs.extend(labels.error.map(|error| ("error.type", error.to_owned())));
        pairs.extend(labels.revision.map(|revision| ("mcp.protocol.version", revision.to_owned())));
        pairs.push(("network.transport", labels.transport.as_str().to_owned()));
        pairs
    }
}

impl Hash for OperationLabels {
    /// Hashes in one step what tells most series apart: this is done for every request.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let target = match self.target {
            None => 0,
            Some(OperationTarget::Tool(name)) => 1 << 16 | u64::from(name.0),
            Some(OperationTarget::Prompt(name)) => 2 << 16 | u64::from(name.0),
        };
        let error = self.error.map_or(0, |error| error.kind.len() as u64);
        let method = self.method.len() as u64;
        state.write_u64(target | u64::from(self.place.0) << 18 | method << 34 | error << 42);
    }
}

impl SeriesLabels for OperationLabels {
    fn overflow() -> Self {
        Self { place: LabelName::OTHER, method: OTHER, target: None, error: None, revision: None, transport: None }
    }
}

impl SeriesLabels for SessionLabels {
    fn overflow() -> Self {
        Self { place: LabelName::OTHER, error: None, revision: None, transport: NetworkTransport::Tcp }
    }
}

impl UpstreamSessionLabels {
    fn pairs(&self) -> MetricLabels {
        let transport = self.transport.as_str().to_owned();
        vec![("mcp.protocol.version", self.revision.to_owned()), ("network.transport", transport)]
    }
}

impl SeriesLabels for UpstreamSessionLabels {
    fn overflow() -> Self {
        Self { revision: OTHER, transport: NetworkTransport::Tcp }
    }
}

impl ToolCalls {
    /// How often a tool was called; `None` where it may have been counted together with others.
    pub fn of(&self, tool: &str) -> Option<u64> {
        self.calls.get(tool).copied().or_else(|| self.is_whole.then_some(0))
    }
}

impl LabelNames {
    fn has_room(&self) -> bool {
        self.known.load().names.len() < self.limit
    }

    fn new(limit: usize) -> Self {
        Self { known: ArcSwap::default(), limit, adding: Mutex::new(()) }
    }

    #[inline]
    fn number(&self, name: &str, exists: impl FnOnce() -> bool) -> LabelName {
        let known = self.known.load();
        match known.numbers.get(name) {
            Some(number) => *number,
            None if known.names.len() < self.limit && exists() => self.add(name),
            None => LabelName::OTHER,
        }
    }

    #[cold]
    fn add(&self, name: &str) -> LabelName {
        let _adding = self.adding.lock();
        let mut known = KnownNames::clone(&self.known.load());
        if let Some(number) = known.numbers.get(name) {
            return *number;
        }
        let Some(number) = u16::try_from(known.names.len()).ok().filter(|number| usize::from(*number) < self.limit)
        else {
            return LabelName::OTHER;
        };
        let (name, number) = (Arc::<str>::from(name), LabelName(number));
        known.names.push(Arc::clone(&name));
        known.numbers.insert(name, number);
        self.known.store(Arc::new(known));
        number
    }

    fn name(&self, number: LabelName) -> String {
        self.known.load().names.get(usize::from(number.0)).map_or_else(|| "_other".to_owned(), |name| name.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_beyond_the_limit_and_unknown_ones_share_a_series() {
        let metrics = OperationMetrics::new();
        let place = metrics.place("default");
        let record = |name: &str, exists: bool| {
            let target = Some(OperationTarget::Tool(metrics.target(name, || exists)));
            let (revision, transport) = (Some("2025-11-25"), Some(NetworkTransport::Tcp));
            let labels = OperationLabels { place, method: "tools/call", target, error: None, revision, transport };
            metrics.record(OperationSide::Server, &labels, Duration::from_millis(1));
        };
        record("invented", false);
        for tool in 0..MAX_TARGETS + 5 {
            record(&format!("tool{tool}"), true);
        }
        let [server, client, ..] = metrics.families();
        assert_eq!((server.points.len(), client.points.len()), (MAX_TARGETS + 1, 0));
        let of = |name: &str| {
            let label = ("gen_ai.tool.name", name.to_owned());
            server.points.iter().find(|point| point.labels.contains(&label)).map(|point| point.value.clone())
        };
        let count = |name: &str| match of(name) {
            Some(super::super::PointValue::Histogram(point)) => point.count(),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!((count("tool7"), count("_other")), (1, 6));
        assert_eq!(of("invented"), None);
    }

    #[test]
    fn codes_that_a_server_invents_make_no_series() {
        assert_eq!(OperationError::of_code(-32602, None), OperationError { kind: "-32602", code: Some("-32602") });
        assert_eq!(OperationError::of_code(42, None), OperationError { kind: "_OTHER", code: None });
        let timed_out = OperationError::of_code(-32001, Some("timed_out"));
        assert_eq!(timed_out, OperationError { kind: "timed_out", code: Some("-32001") });
    }
}
