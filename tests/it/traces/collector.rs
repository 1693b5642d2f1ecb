//! A receiver of OTLP on the official protobuf messages, in a process of its own.

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rialto::app::AppSettings;
use rialto::metrics_export::MetricsExportSettings;
use rialto::otlp::{OtlpProtocol, OtlpSettings};
use rialto::trace::TraceSettings;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};

use crate::harness::{TEST_TIMEOUT, until_with};
use crate::peers;

pub struct Collector {
    http_port: u16,
    grpc_port: u16,
    stdin: ChildStdin,
    lines: Arc<Mutex<Vec<Value>>>,
    _child: Child,
}

/// What is exported, how, and where to.
#[derive(Clone, Default)]
pub struct Telemetry {
    pub otlp: OtlpSettings,
    pub trace: TraceSettings,
    pub metrics: MetricsExportSettings,
}

impl Telemetry {
    pub fn apply(self, settings: &mut AppSettings) {
        (settings.otlp, settings.trace, settings.metrics_export) = (self.otlp, self.trace, self.metrics);
    }

    /// The same with a change to what is traced.
    pub fn traces(mut self, change: impl FnOnce(&mut TraceSettings)) -> Self {
        change(&mut self.trace);
        self
    }
}

impl Collector {
    pub async fn start() -> Self {
        tokio::task::spawn_blocking(peers::installed).await.unwrap();
        let mut command = peers::script("otel/bin/python", "python/otlp_receiver.py");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let first =
            tokio::time::timeout(TEST_TIMEOUT, output.next_line()).await.expect("ports in time").unwrap().unwrap();
        let mut ports = first.strip_prefix("listening on ").unwrap().split(' ').map(|port| port.parse().unwrap());
        let (http_port, grpc_port) = (ports.next().unwrap(), ports.next().unwrap());
        let lines: Arc<Mutex<Vec<Value>>> = Arc::default();
        let seen = Arc::clone(&lines);
        tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                seen.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Self { http_port, grpc_port, stdin: child.stdin.take().unwrap(), lines, _child: child }
    }

    pub fn endpoint(&self, protocol: OtlpProtocol) -> String {
        let port = if protocol == OtlpProtocol::Grpc { self.grpc_port } else { self.http_port };
        format!("http://127.0.0.1:{port}")
    }

    /// The address for exporters that do not add the path.
    pub fn traces_url(&self) -> String {
        format!("{}/v1/traces", self.endpoint(OtlpProtocol::HttpProtobuf))
    }

    /// Settings that export spans to this receiver without delay.
    pub fn settings(&self, protocol: OtlpProtocol) -> Telemetry {
        let endpoint = Some(self.endpoint(protocol).parse().unwrap());
        Telemetry {
            otlp: OtlpSettings { endpoint, protocol: Some(protocol), ..OtlpSettings::default() },
            trace: TraceSettings { interval: std::time::Duration::from_millis(20), ..TraceSettings::default() },
            metrics: MetricsExportSettings::default(),
        }
    }

    /// Changes how requests are answered from now on.
    pub async fn answer(&mut self, manner: Value) {
        self.stdin.write_all(format!("{manner}\n").as_bytes()).await.unwrap();
        self.until("the receiver takes the change", |lines| lines.iter().any(|line| line["set"] == manner)).await;
    }

    pub fn lines(&self) -> Vec<Value> {
        self.lines.lock().unwrap().clone()
    }

    pub async fn until(&self, what: &str, mut holds: impl FnMut(&[Value]) -> bool) {
        let state = || format!("{:#}", json!(self.lines()));
        until_with(what, || holds(&self.lines()), state).await;
    }

    /// Requests with spans that were answered with this status.
    pub fn requests(&self, status: u16) -> usize {
        self.requests_of("traces", status)
    }

    /// Requests of a signal that were answered with this status.
    pub fn requests_of(&self, signal: &str, status: u16) -> usize {
        self.lines().iter().filter(|line| line["signal"] == signal && line["status"] == status).count()
    }

    /// The spans that arrived.
    pub fn spans(&self) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["span"].is_string()).collect()
    }

    /// Waits for a span of this name and kind, and returns it.
    pub async fn span(&self, name: &str, kind: &str) -> Value {
        self.span_where(&format!("{kind} {name}"), |span| span["name"] == name && span["kind"] == kind).await
    }

    pub async fn span_where(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        self.until(what, |_| self.spans().iter().any(&is_it)).await;
        self.spans().into_iter().find(is_it).unwrap()
    }
}
