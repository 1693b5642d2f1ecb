//! Traces: what an OTLP receiver gets, and how calls fare when it does not take it.

mod clients;
pub mod collector;
mod failing_collector;
mod parents;
mod sampling;

use std::time::Duration;

use rialto::otlp::{ExportHeaders, OtlpCompression, OtlpProtocol, ResourceAttributes};
use serde_json::{Value, json};

use crate::harness::{Rialto, until};
use collector::{Collector, Telemetry};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED_PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

async fn traced(telemetry: Telemetry) -> Rialto {
    Rialto::with(|settings| telemetry.apply(settings)).await
}

/// Calls a tool of the built-in server.
pub async fn call_element(rialto: &Rialto, traceparent: Option<&str>) -> Value {
    let mut params = json!({ "name": "getElement", "arguments": { "name": "H" } });
    if let Some(traceparent) = traceparent {
        params["_meta"] = json!({ "traceparent": traceparent, "tracestate": "vendor=1" });
    }
    let (status, answer) = rialto.modern("tools/call", params).answer().await;
    assert_eq!(status, 200, "{answer}");
    assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("Hydrogen"), "{answer}");
    answer
}

/// The value of a metric; 0 where it has no such line.
async fn metric(rialto: &Rialto, line: &str) -> u64 {
    let text = rialto.send("GET", "/metrics").go().await.text().await;
    let found = text.lines().find_map(|found| found.strip_prefix(line)?.trim_start_matches("{}").trim().parse().ok());
    found.unwrap_or_default()
}

async fn dropped(rialto: &Rialto, reason: &str) -> u64 {
    metric(rialto, &format!("rialto_spans_dropped_total{{reason=\"{reason}\"}}")).await
}

pub async fn stop(mut rialto: Rialto) {
    rialto.begin_stop();
    assert!(rialto.stopped().await);
}

#[tokio::test]
async fn spans_reach_an_official_receiver_over_http_and_grpc() {
    let collector = Collector::start().await;
    for (protocol, name) in [(OtlpProtocol::HttpProtobuf, "http"), (OtlpProtocol::Grpc, "grpc")] {
        let mut telemetry = collector.settings(protocol);
        telemetry.otlp.headers = ExportHeaders(vec![("x-key".into(), "of the collector".into())]);
        telemetry.otlp.service_name = Some(format!("over-{name}"));
        telemetry.otlp.resource_attributes = ResourceAttributes(vec![("zone".into(), "z1".into())]);
        let rialto = traced(telemetry).await;
        call_element(&rialto, Some(PARENT)).await;
        let is_ours = |span: &Value| span["protocol"] == name;
        let server = collector.span_where("SERVER", |span| is_ours(span) && span["kind"] == "SERVER").await;
        let client = collector.span_where("CLIENT", |span| is_ours(span) && span["kind"] == "CLIENT").await;
        assert_eq!(server["name"], "tools/call getElement");
        assert_eq!(
            (&server["trace"], &server["parent"], &server["state"]),
            (&json!(TRACE), &json!(SPAN), &json!("vendor=1"))
        );
        assert_eq!((&client["trace"], &client["parent"]), (&json!(TRACE), &server["span"]));
        assert_eq!(server["headers"]["x-key"], "of the collector");
        assert_eq!(server["resource"]["service.name"], format!("over-{name}"));
        assert_eq!(server["resource"]["zone"], "z1");
        assert_eq!((&server["scope"], &server["failed"]), (&json!("rialto"), &json!(false)));
        assert_eq!(server["flags"], 0x301, "sampled, with a parent in another process");
        let attributes = &server["attributes"];
        for (key, value) in [
            ("mcp.method.name", json!("tools/call")),
            ("gen_ai.tool.name", json!("getElement")),
            ("gen_ai.operation.name", json!("execute_tool")),
            ("mcp.protocol.version", json!("2026-07-28")),
            ("jsonrpc.request.id", json!("1")),
            ("network.transport", json!("tcp")),
            ("client.address", json!("127.0.0.1")),
            ("rialto.group", json!("default")),
            ("rialto.upstream", json!("elements")),
        ] {
            assert_eq!(attributes[key], value, "{key} of {attributes}");
        }
        let (start, end) = (server["start"].as_u64().unwrap(), server["end"].as_u64().unwrap());
        assert!(start > 0 && start <= end, "{start} to {end}");
        let tracer = rialto.inbound.gateway.tracer().clone();
        until("both spans are counted", || tracer.counters().exported() == 2).await;
        assert_eq!(metric(&rialto, "rialto_spans_exported_total").await, 2);
        stop(rialto).await;
    }
}

#[tokio::test]
async fn an_official_receiver_takes_compressed_spans_over_http_and_grpc() {
    let collector = Collector::start().await;
    for (protocol, name) in [(OtlpProtocol::HttpProtobuf, "http"), (OtlpProtocol::Grpc, "grpc")] {
        let mut telemetry = collector.settings(protocol);
        telemetry.otlp.compression = OtlpCompression::Gzip;
        let rialto = traced(telemetry).await;
        call_element(&rialto, Some(PARENT)).await;
        let span = collector.span_where("SERVER", |span| span["protocol"] == name && span["kind"] == "SERVER").await;
        assert_eq!((&span["name"], &span["trace"]), (&json!("tools/call getElement"), &json!(TRACE)));
        // gRPC keeps the header of its own to itself.
        let encoding = if protocol == OtlpProtocol::Grpc { Value::Null } else { json!("gzip") };
        assert_eq!(span["headers"]["content-encoding"], encoding, "{name}");
        stop(rialto).await;
    }
}

#[tokio::test]
async fn errors_are_recorded_by_code_and_kind() {
    let collector = Collector::start().await;
    let rialto = traced(collector.settings(OtlpProtocol::HttpProtobuf)).await;
    let session = rialto.open("2025-11-25").await;
    session.ask("tools/call", json!({ "name": "nobody", "arguments": {} })).await;
    session.ask("tools/call", json!({ "name": "getElement", "arguments": { "name": "Unobtainium" } })).await;
    session.ask("resources/read", json!({ "uri": "elements://nowhere" })).await;
    let opened = collector.span("initialize", "SERVER").await;
    assert_eq!(opened["attributes"]["mcp.protocol.version"], "2025-11-25");
    assert_eq!(opened["failed"], false);
    let unknown = collector.span("tools/call nobody", "SERVER").await;
    assert_eq!((&unknown["failed"], &unknown["attributes"]["error.type"]), (&json!(true), &json!("-32602")));
    assert_eq!(unknown["attributes"]["rpc.response.status_code"], "-32602");
    assert!(!unknown["message"].as_str().unwrap().is_empty());
    let tool = collector.span("tools/call getElement", "SERVER").await;
    assert_eq!((&tool["failed"], &tool["attributes"]["error.type"]), (&json!(true), &json!("tool_error")));
    // The URI is no part of the name.
    let resource = collector.span("resources/read", "SERVER").await;
    assert_eq!(resource["attributes"]["mcp.resource.uri"], "elements://nowhere");
    // The session is told apart, and the tag opens none.
    let tag = unknown["attributes"]["mcp.session.id"].as_str().unwrap();
    assert!(tag.starts_with("http#") && !session.id.contains(&tag[5..]), "{tag}");
    assert_eq!(tool["attributes"]["mcp.session.id"], tag);
    stop(rialto).await;
}

#[tokio::test]
async fn an_invalid_traceparent_begins_a_new_trace() {
    let collector = Collector::start().await;
    let rialto = traced(collector.settings(OtlpProtocol::HttpProtobuf)).await;
    call_element(&rialto, Some("00-00000000000000000000000000000000-b7ad6b7169203331-01")).await;
    let server = collector.span("tools/call getElement", "SERVER").await;
    assert_eq!((&server["parent"], &server["state"]), (&json!(""), &json!("")));
    assert_eq!(server["trace"].as_str().unwrap().len(), 32);
    assert_ne!(server["trace"], "0".repeat(32));
    stop(rialto).await;
}

#[tokio::test]
async fn a_stop_sends_the_spans_that_wait() {
    let collector = Collector::start().await;
    let hour = Duration::from_secs(3600);
    for protocol in [OtlpProtocol::HttpProtobuf, OtlpProtocol::Grpc] {
        let mut telemetry = collector.settings(protocol).traces(|trace| trace.interval = hour);
        (telemetry.otlp.timeout, telemetry.otlp.export_timeout) = (hour, hour);
        let rialto = traced(telemetry).await;
        for _ in 0..3 {
            call_element(&rialto, None).await;
        }
        let before = collector.spans().len();
        stop(rialto).await;
        collector.until("all spans", |_| collector.spans().len() == before + 6).await;
    }
}
