//! `/metrics`, the alert rules and the dashboard, checked by `promtool` against a running gateway. `setup.sh` installs it
//! on first use.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::{GatewayProcess, modern_request, shell_server};
use crate::harness::{TEST_TIMEOUT, call};
use crate::peers::source;
use crate::ports::ReservedPort;
use crate::redis::{RedisFlavor, RedisServer};
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// What Prometheus itself knows of a target.
const OWN_OF_PROMETHEUS: &str = "up";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs `promtool` with this input and returns what it prints; fails unless it accepts the input.
async fn promtool(arguments: &[&str], input: Vec<u8>) -> String {
    let peers = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let run = move || {
        let setup = Command::new("bash").arg(source().join("setup.sh")).arg(&peers).arg("prometheus").status();
        assert!(setup.expect("bash runs").success(), "promtool could not be installed; the lines above say why");
        let mut command = Command::new(peers.join("promtool"));
        command.args(&arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writing = std::thread::spawn(move || std::io::Write::write_all(&mut stdin, &input));
        let output = child.wait_with_output().unwrap();
        let _ = writing.join();
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "promtool {arguments:?}: {printed}");
        printed
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// The families of a text in the format of Prometheus.
fn families(text: &str) -> BTreeSet<String> {
    let name = |line: &str| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned);
    text.lines().filter_map(name).collect()
}

/// The metrics that a query names, as families.
fn named_metrics(query: &str) -> BTreeSet<String> {
    let words = query.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    let is_metric =
        |word: &&str| word.starts_with("rialto_") || (word.starts_with("mcp_") && word.contains("_duration_"));
    let family = |word: &str| {
        let end = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        end.unwrap_or(word).to_owned()
    };
    words.filter(is_metric).map(family).collect()
}

/// Every value of a member in a JSON document.
fn values_of<'v>(value: &'v Value, key: &str, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| match value {
            Value::String(text) if name == key => found.push(text),
            value => values_of(value, key, found),
        }),
        Value::Array(items) => items.iter().for_each(|item| values_of(item, key, found)),
        _ => {}
    }
}

impl GatewayProcess {
    async fn metrics_text(&self) -> String {
        self.admin_get("/metrics").go().await.text().await
    }

    /// Polls the metrics until a series has a value that fits.
    async fn until_metric(&self, name: &str, labels: &[&str], fits: impl Fn(f64) -> bool) {
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        loop {
            let value = self.metrics().await.sum(name, labels);
            if fits(value) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{name} {labels:?} stays {value}\n{}", self.log());
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn promtool_accepts_metrics_rules_and_dashboard() {
    let store = RedisServer::start(RedisFlavor::Redis).await;
    let limit = "[[policy.limits]]\nname = \"all\"\nper = [\"caller\"]\nrate = \"1000/s\"\n";
    let file = format!("store = \"{}\"\n{limit}{}", store.url(), shell_server("sh", &[]));
    let rialto = GatewayProcess::start("promtool", &file).await;
    rialto.until_ready().await;
    let session = rialto.open("/mcp").await;
    for tool in ["answer", "wrong", "crash"] {
        session.call(tool, json!({})).await;
    }
    session.close().await;
    let text = rialto.metrics_text().await;
    promtool(&["check", "metrics"], text.clone().into_bytes()).await;
    let served = families(&text);

    let rules = root().join("deploy/prometheus-alerts.yaml");
    promtool(&["check", "rules", rules.to_str().unwrap()], Vec::new()).await;
    let rules = std::fs::read_to_string(rules).unwrap();
    let alerts = named_metrics(&rules);
    assert!(alerts.len() > 12 && rules.contains(OWN_OF_PROMETHEUS), "{alerts:?}");

    let dashboard = std::fs::read_to_string(root().join("deploy/grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut queries = Vec::new();
    values_of(&dashboard, "expr", &mut queries);
    assert!(queries.len() > 30, "{}", queries.len());
    let panels: BTreeSet<_> = queries.iter().flat_map(|query| named_metrics(query)).collect();
    let missing: Vec<_> = alerts.union(&panels).filter(|name| !served.contains(*name)).collect();
    assert!(missing.is_empty(), "rules and dashboard name metrics that are not served: {missing:?}\n{text}");
    // Grafana fills in its variables; what is left must be PromQL, which the check of rules parses.
    let as_rule = |(n, query): (usize, &&str)| {
        let query = query.replace("$__rate_interval", "5m").replace("$instance", ".*");
        format!("      - record: \"panel:query{n}\"\n        expr: {}\n", serde_json::to_string(&query).unwrap())
    };
    let body: String = queries.iter().enumerate().map(as_rule).collect();
    let as_rules: PathBuf = rialto.path("dashboard.yaml");
    std::fs::write(&as_rules, format!("groups:\n  - name: dashboard\n    rules:\n{body}")).unwrap();
    promtool(&["check", "rules", as_rules.to_str().unwrap()], Vec::new()).await;

    // Every metric has its row in the documentation, and every row its metric.
    let page = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let section = page.split("\n## Metrics\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let first_cells = section.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let documented: BTreeSet<String> = first_cells.flat_map(named_metrics).collect();
    assert_eq!(documented, served, "docs/operations.md and /metrics differ");
    rialto.stop().await;
}

#[tokio::test]
async fn sessions_event_loops_and_the_store_are_measured() {
    let store = RedisServer::start(RedisFlavor::Redis).await;
    let file = format!("store = \"{}\"\n{}", store.url(), shell_server("sh", &[]));
    let rialto = GatewayProcess::start("measured", &file).await;
    rialto.until_ready().await;
    let session = rialto.open("/mcp").await;
    session.call("answer", json!({})).await;
    let before = rialto.metrics().await;
    assert_eq!(before.sum("mcp_server_session_duration_seconds_count", &[]), 0.0);
    assert!(before.sum("rialto_store_command_duration_seconds_count", &[]) > 0.0);
    assert_eq!(before.sum("rialto_store_errors_total", &[]), 0.0);
    session.close().await;
    let of_group = [r#"group="default""#, r#"mcp_protocol_version="2025-11-25""#, r#"network_transport="tcp""#];
    rialto.until_metric("mcp_server_session_duration_seconds_count", &of_group, |count| count == 1.0).await;
    // The session had a child of its own.
    let of_child = [r#"mcp_protocol_version="2025-06-18""#, r#"network_transport="pipe""#];
    rialto.until_metric("mcp_client_session_duration_seconds_count", &of_child, |count| count >= 1.0).await;
    for worker in [r#"worker="0""#, r#"worker="1""#] {
        rialto.until_metric("rialto_event_loop_lag_seconds_count", &[worker], |count| count >= 1.0).await;
    }
    // While the store does not answer, errors are counted and what has to be written waits.
    let session = rialto.open("/mcp").await;
    store.pause();
    let listening = session.listen().await;
    let long = call("long", "hang", json!({}));
    let waiting = session.post(&long).go().await;
    rialto.until_metric("rialto_store_errors_total", &[], |count| count >= 1.0).await;
    rialto.until_metric("rialto_persistence_lag_seconds", &[], |lag| lag > 0.0).await;
    store.resume();
    rialto.until_metric("rialto_persistence_lag_seconds", &[], |lag| lag == 0.0).await;
    drop((listening, waiting));
    rialto.stop().await;
}

#[tokio::test]
async fn refused_connections_and_failed_connects_are_counted() {
    let away = ReservedPort::new();
    let file = format!(
        "limits = {{ connections_per_address = 1 }}\n[admin]\nlisten = \"127.0.0.1:0\"\n[servers.away]\nurl = \"http://{away}/mcp\"\n"
    );
    let rialto = GatewayProcess::start("refused", &file).await;
    let first = tokio::net::TcpStream::connect(rialto.address).await.unwrap();
    rialto.until_metric("rialto_connections", &[r#"listener="clients""#], |open| open == 1.0).await;
    let _second = tokio::net::TcpStream::connect(rialto.address).await.unwrap();
    let reason = [r#"reason="connections_per_address""#];
    rialto.until_metric("rialto_connections_refused_total", &reason, |count| count == 1.0).await;
    drop(first);
    rialto.until_metric("rialto_connections", &[r#"listener="clients""#], |open| open == 0.0).await;
    assert!(rialto.metrics().await.sum("rialto_connections_accepted_total", &[r#"listener="operators""#]) >= 1.0);
    let upstream = [r#"upstream="away""#];
    rialto.until_metric("rialto_upstream_connect_failures_total", &upstream, |count| count >= 1.0).await;
    rialto.stop().await;
}

/// What a call is measured with leaves out the time in which its client was asked: the client's own time for it, less the
/// time it took to answer, is never less.
#[tokio::test]
async fn durations_leave_out_the_time_of_the_person() {
    let server = ScriptedServer::start("db", ServerTransport::Http).await;
    let rialto::mcp_client::Target::Url(address) = server.target() else { panic!("a URL") };
    let rialto = GatewayProcess::start("person", &format!("[servers.db]\nurl = \"{}\"\n", address.url)).await;
    rialto.until_ready().await;
    let form = json!({ "message": "?", "requestedSchema": { "type": "object", "properties": {} } });
    let steps = json!({ "steps": [{ "ask": { "method": "elicitation/create", "params": form } }] });
    let (started, thinking) = (Instant::now(), std::time::Duration::from_millis(1500));
    let params = json!({ "name": "do", "arguments": steps });
    let first = modern_request(&rialto, "tools/call", params.clone()).await;
    assert_eq!(first["resultType"], "input_required", "{first}");
    let asked = Instant::now();
    tokio::time::sleep(thinking).await;
    let answered = asked.elapsed();
    let key = first["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let mut again = params;
    again["inputResponses"] = json!({ key: { "action": "accept", "content": {} } });
    again["requestState"] = first["requestState"].clone();
    let second = modern_request(&rialto, "tools/call", again).await;
    assert!(second["content"].is_array(), "{second}");
    let working = (started.elapsed() - answered).as_secs_f64();
    let metrics = rialto.metrics().await;
    for side in ["server", "client"] {
        let name = format!("mcp_{side}_operation_duration_seconds");
        let of_call = [r#"mcp_method_name="tools/call""#, r#"gen_ai_tool_name="do""#];
        assert!(metrics.sum(&format!("{name}_count"), &of_call) >= 1.0, "{side}");
        let measured = metrics.sum(&format!("{name}_sum"), &of_call);
        assert!(measured <= working, "{side}: {measured} s of {working} s");
    }
    rialto.stop().await;
}
