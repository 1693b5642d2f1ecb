//! The OpenMetrics text of `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{GatewayProcess, phase, shell_server};
use crate::harness::{TEST_TIMEOUT, call, notification};
use crate::ports::ReservedPort;

/// What Prometheus asks for.
const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";

/// Metric values by name with labels, as written.
pub(super) struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Parses and validates every line of the OpenMetrics text.
    fn parse(text: &str) -> Self {
        let mut metrics = BTreeMap::new();
        let mut families = BTreeSet::new();
        let body = text.strip_suffix("# EOF\n").unwrap_or_else(|| panic!("no # EOF: {text}"));
        for line in body.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let words: Vec<&str> = comment.splitn(3, ' ').collect();
                assert!(
                    words.len() == 3 && ["rialto_", "mcp_"].iter().any(|known| words[1].starts_with(known)),
                    "{line}"
                );
                assert_eq!(words[0] == "TYPE", ["counter", "gauge", "histogram"].contains(&words[2]), "{line}");
                families.insert(words[1].to_owned());
                continue;
            }
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
            let (bare, labels) = match name.split_once('{') {
                Some((bare, labels)) => (bare, labels.strip_suffix('}').unwrap()),
                None => (name, ""),
            };
            assert!(labels.is_empty() || labels.split("\",").all(|label| label.contains("=\"")), "{line}");
            let family = ["_total", "_sum", "_count", "_bucket"].iter().find_map(|end| bare.strip_suffix(end));
            assert!(families.contains(family.unwrap_or(bare)), "{line} has no metric family");
            let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
            assert!(metrics.insert(name.to_owned(), value).is_none(), "duplicate sample: {line}");
        }
        Self(metrics)
    }

    pub(super) fn value(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// The sum of the series of a metric that have all these labels.
    pub(super) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let has = |key: &str| {
            let bare = key.split('{').next() == Some(name);
            bare && labels.iter().all(|label| key.contains(&format!("{{{label}")) || key.contains(&format!(",{label}")))
        };
        self.0.iter().filter(|(key, _)| has(key)).map(|(_, value)| value).sum()
    }

    /// `rialto_calls_total` of a group and upstream, by method and outcome.
    fn calls(&self, group: &str, upstream: &str) -> BTreeMap<&str, f64> {
        let before = format!("rialto_calls_total{{group=\"{group}\",upstream=\"{upstream}\",");
        self.0.iter().filter_map(|(name, value)| Some((name.strip_prefix(&before)?, *value))).collect()
    }
}

impl GatewayProcess {
    pub(super) async fn metrics(&self) -> Metrics {
        let received = self.admin_get("/metrics").header("accept", OPEN_METRICS).go().await;
        assert_eq!(received.status, 200);
        assert!(received.header("content-type").unwrap().starts_with("application/openmetrics-text; version=1.0.0"));
        Metrics::parse(&received.text().await)
    }
}

#[tokio::test]
async fn call_metrics_count_by_outcome() {
    let away = ReservedPort::new();
    let file = format!(
        "[servers.elements]\nbuiltin = \"elements\"\n{}[servers.away]\nurl = \"http://{away}/mcp\"\n[groups.few]\nservers = [\"elements\"]\n",
        shell_server("sh", &[("SAYS", "hi")])
    );
    let rialto = GatewayProcess::start("figures", &file).await;
    let status = rialto
        .until_status("every upstream has a health phase", |status| {
            status["ready"] == true && phase(status, "away") == Some("down")
        })
        .await;
    assert_eq!(phase(&status, "sh"), Some("ready"));
    let session = rialto.open("/mcp").await;
    let few = rialto.open("/mcp/few").await;
    for name in ["Fe", "Au", "Unobtainium"] {
        session.call("elements__getElement", json!({ "name": name })).await;
    }
    few.call("getElement", json!({ "name": "Fe" })).await;
    for tool in ["sh__answer", "sh__answer", "sh__wrong", "sh__crash", "nobody__nothing"] {
        session.call(tool, json!({})).await;
    }
    session.ask("resources/read", json!({ "uri": "rialto://nobody/x://y" })).await;
    session.ask("resources/read", json!({ "uri": "rialto://elements/elements://symbol/Fe" })).await;
    session.ask("prompts/get", json!({ "name": "elements__describeElement", "arguments": { "name": "Fe" } })).await;
    assert_eq!(session.tools().await.len(), 7);
    // A call answered by SSE, whose events are retained for resumption.
    let short = call("short", "elements__surveyElements", json!({ "count": 2, "delayMs": 20 }));
    assert_eq!(session.post(&short).go().await.events().rest().await.len(), 3);
    // A call cancelled after its first progress notification.
    let long = call("long", "elements__surveyElements", json!({ "count": 118, "delayMs": 1000 }));
    let mut long = session.post(&long).go().await.events();
    assert_eq!(long.message().await.unwrap()["method"], "notifications/progress");
    let cancelled = notification("notifications/cancelled", json!({ "requestId": "long" }));
    assert_eq!(session.post(&cancelled).status().await, 202);
    while long.message().await.is_some() {}

    let listening = session.listen().await;
    let metrics = rialto.metrics().await;
    let outcomes = |group, upstream| metrics.calls(group, upstream).into_iter().collect::<Vec<_>>();
    assert_eq!(
        outcomes("default", "elements"),
        [
            (r#"method="prompts/get",outcome="ok"}"#, 1.0),
            (r#"method="resources/read",outcome="ok"}"#, 1.0),
            (r#"method="tools/call",outcome="cancelled"}"#, 1.0),
            (r#"method="tools/call",outcome="ok"}"#, 3.0),
            (r#"method="tools/call",outcome="tool_error"}"#, 1.0),
        ]
    );
    assert_eq!(
        outcomes("default", "sh"),
        [
            (r#"method="tools/call",outcome="error"}"#, 1.0),
            (r#"method="tools/call",outcome="ok"}"#, 2.0),
            (r#"method="tools/call",outcome="unavailable"}"#, 1.0),
        ]
    );
    assert_eq!(
        outcomes("default", "rialto"),
        [
            (r#"method="resources/read",outcome="error"}"#, 1.0),
            (r#"method="tools/call",outcome="error"}"#, 1.0),
            (r#"method="tools/list",outcome="ok"}"#, 1.0),
        ]
    );
    assert_eq!(outcomes("few", "elements"), [(r#"method="tools/call",outcome="ok"}"#, 1.0)]);
    check_operations(&metrics);

    // The gauges equal the status.
    let status = rialto.status().await;
    for (group, count) in [("default", 1.0), ("few", 1.0)] {
        let name = format!(r#"rialto_sessions{{group="{group}",transport="http",revision="2025-11-25"}}"#);
        assert_eq!(metrics.value(&name), Some(count));
    }
    assert_eq!(metrics.value("rialto_streams"), Some(1.0));
    let events = metrics.value("rialto_events").unwrap();
    assert!(events > 0.0 && metrics.value("rialto_event_bytes").unwrap() > events);
    assert_eq!(status["events"].as_f64(), Some(events));
    assert_eq!(metrics.value("rialto_calls_in_flight"), Some(0.0));
    for (upstream, state) in [("elements", "ready"), ("away", "down")] {
        for each in ["starting", "ready", "degraded", "down"] {
            let name = format!(r#"rialto_upstream_state{{upstream="{upstream}",state="{each}"}}"#);
            assert_eq!(metrics.value(&name), Some(f64::from(u8::from(each == state))), "{name}");
        }
    }
    drop(listening);

    // The session has its own child (a lease) beside the catalog connection; it ends with the session.
    session.call("sh__answer", json!({})).await;
    rialto.until_status("the session has its own child", |status| status["children"] == 2).await;
    let metrics = rialto.metrics().await;
    assert_eq!(metrics.value("rialto_children"), Some(2.0));
    assert_eq!(metrics.value(r#"rialto_upstream_leases{upstream="sh"}"#), Some(1.0));
    session.close().await;
    few.close().await;
    rialto
        .until_status("the child has ended", |status| status["children"] == 1 && status["sessions"] == json!([]))
        .await;
    let stopped = tokio::time::timeout(TEST_TIMEOUT, rialto.stop()).await.expect("the gateway stops in time");
    assert!(stopped.contains("upstream call failed"), "{stopped}");
}

/// The durations of the operations of the test above, by the conventions of OpenTelemetry.
fn check_operations(metrics: &Metrics) {
    let (server, client) =
        ("mcp_server_operation_duration_seconds_count", "mcp_client_operation_duration_seconds_count");
    let (tool, call) = (|name: &str| format!("gen_ai_tool_name=\"{name}\""), r#"mcp_method_name="tools/call""#);
    let pipe = [r#"upstream="sh""#, call, r#"network_transport="pipe""#];
    assert_eq!(metrics.sum(client, &pipe), 4.0);
    assert_eq!(metrics.sum(client, &[pipe.as_slice(), &[&tool("answer")]].concat()), 2.0);
    assert_eq!(
        metrics.sum(client, &[pipe.as_slice(), &[&tool("crash"), r#"error_type="child_exited""#]].concat()),
        1.0
    );
    let tcp = [r#"group="default""#, r#"mcp_protocol_version="2025-11-25""#, r#"network_transport="tcp""#];
    let of = |labels: &[&str]| metrics.sum(server, &[tcp.as_slice(), labels].concat());
    assert_eq!(of(&[call, &tool("elements__getElement")]), 3.0);
    assert_eq!(of(&[call, &tool("elements__getElement"), r#"error_type="tool_error""#]), 1.0);
    assert_eq!(of(&[call, &tool("elements__surveyElements"), r#"error_type="cancelled""#]), 1.0);
    // A tool that nobody has makes no series of its own.
    assert_eq!(of(&[call, &tool("_other"), r#"error_type="-32602""#, r#"rpc_response_status_code="-32602""#]), 1.0);
    assert_eq!(of(&[r#"mcp_method_name="prompts/get""#, r#"gen_ai_prompt_name="elements__describeElement""#]), 1.0);
    assert_eq!(of(&[r#"mcp_method_name="initialize""#]), 1.0);
    assert_eq!(of(&[r#"mcp_method_name="tools/list""#]), 1.0);

    assert!(metrics.sum("rialto_http_requests_total", &[r#"status="200""#]) >= 15.0);
    assert_eq!(metrics.sum("rialto_connections", &[r#"listener="operators""#]), 0.0);
    assert!(metrics.sum("rialto_connections", &[r#"listener="clients""#]) >= 1.0);
    assert!(metrics.sum("rialto_connections_accepted_total", &[r#"listener="clients""#]) >= 1.0);
    assert!(metrics.value("rialto_http_received_bytes_total") > Some(1000.0));
    assert!(metrics.value("rialto_http_sent_bytes_total") > Some(1000.0));
}

/// A refused call did not run: an obedient client repeats it.
#[tokio::test]
async fn a_call_over_the_stream_limit_is_refused_before_it_runs() {
    let folder = crate::config::TempFolder::new("gateway-not-run");
    let note = folder.0.join("note");
    let file = format!(
        "limits = {{ streams = 1, sse_after = \"0s\" }}\n{}",
        super::shell_server("sh", &[("NOTE", note.to_str().unwrap())])
    );
    let rialto = GatewayProcess::start("not-run", &file).await;
    rialto.until_ready().await;
    let session = rialto.open("/mcp").await;
    let listening = session.listen().await;
    let refused = session.post(&crate::harness::call(1, "hang", json!({}))).go().await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    let refused = refused.json().await;
    assert_eq!(refused["error"]["data"]["failure"], "quota_reached", "{refused}");
    drop(listening);
    let answered = async { session.call("answer", json!({})).await };
    let mut answer = answered.await;
    while answer["error"]["data"]["failure"] == "quota_reached" {
        answer = session.call("answer", json!({})).await;
    }
    assert!(answer["result"].is_object(), "{answer}");
    // The server reads in order, so a first call would have been noted before this one.
    let noted = std::fs::read_to_string(&note).unwrap();
    assert!(!noted.contains("hang") && noted.contains("answer"), "{noted}");
    rialto.stop().await;
}

/// Connections to one origin are bounded by a setting; further calls wait for one.
#[tokio::test]
async fn connections_per_origin_are_bounded_and_counted() {
    use crate::scripted_server::{ScriptedServer, ServerTransport};
    let server = ScriptedServer::start("far", ServerTransport::Http).await;
    let rialto::mcp_client::Target::Url(address) = server.target() else { panic!("a URL") };
    let url = address.url.to_string();
    let file = format!(
        "limits = {{ connections_per_origin = 1 }}\n[servers.far]\nurl = \"{url}\"\nconnect_timeout = \"2s\"\nlist_poll_interval = \"off\"\n"
    );
    let rialto = GatewayProcess::start("origins", &file).await;
    rialto.until_ready().await;
    let origin = url.split('/').take(3).collect::<Vec<_>>().join("/");
    let session = rialto.open("/mcp").await;
    assert!(session.call("echo", json!({})).await["result"].is_object());
    assert_eq!(rialto.metrics().await.value(&format!("rialto_origin_connections{{origin=\"{origin}\"}}")), Some(1.0));
    // The only connection is taken by a call that the server does not answer.
    server.hold_responses("tools/call");
    let held = session.post(&call("held", "echo", json!({}))).go().await;
    assert!(held.is_events());
    let refused = session.call("echo", json!({})).await;
    assert_eq!(refused["error"]["data"]["failure"], "limit_reached", "{refused}");
    let refusals = rialto.metrics().await.value(&format!("rialto_origin_refusals_total{{origin=\"{origin}\"}}"));
    assert!(refusals >= Some(1.0), "{refusals:?}");
    server.clear_faults();
    drop(held);
    rialto.stop().await;
}
