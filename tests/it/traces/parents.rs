//! One trace across eras, nodes, transports and the time that a person takes.

use std::sync::Arc;

use rialto::otlp::OtlpProtocol;
use rialto::store::{ClusterStore, MemoryStore};
use serde_json::{Value, json};

use super::collector::Collector;
use super::{PARENT, SPAN, TRACE, stop};
use crate::cluster::node_with;
use crate::config::TempFolder;
use crate::harness::{Rialto, modern, request};
use crate::peers;

/// A gateway in front of a traced Python server of one revision.
pub async fn before_python(collector: &Collector, name: &str, revision: &str) -> (Rialto, TempFolder) {
    let folder = TempFolder::new(&format!("traced-{name}"));
    let python = peers::installed().join("otel/bin/python");
    let script = peers::source().join("python/traced_server.py");
    let (python, script) = (python.display(), script.display());
    let (url, endpoint) = (collector.traces_url(), collector.endpoint(OtlpProtocol::HttpProtobuf));
    let file = format!(
        r#"
        listen = "127.0.0.1:0"
        [telemetry]
        endpoint = "{endpoint}"
        interval = "20ms"
        [servers.py]
        command = "{python}"
        args = ["{script}", "{url}", "stdio"]
        revision = "{revision}"
        "#
    );
    folder.write("rialto.toml", &file);
    let rialto = Rialto::from_file(&folder.0.join("rialto.toml"), |_| {}).await;
    (rialto, folder)
}

fn of_service<'s>(service: &'s str, kind: &'s str) -> impl Fn(&Value) -> bool + 's {
    move |span| {
        let is_call = span["attributes"]["mcp.method.name"] == "tools/call";
        is_call && span["resource"]["service.name"] == service && span["kind"] == kind
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_crosses_eras_both_ways() {
    let collector = Collector::start().await;
    for (server_revision, client) in [("2025-11-25", "2026-07-28"), ("2026-07-28", "2025-11-25")] {
        let (rialto, _folder) = before_python(&collector, server_revision, server_revision).await;
        // Each direction has a trace of its own.
        let trace = TRACE.replace("0af7", &client[..4]);
        let parent = PARENT.replace(TRACE, &trace);
        let params = json!({ "name": "echo", "arguments": { "message": "hi" }, "_meta": { "traceparent": parent, "baggage": "k=v" } });
        let answer = match client {
            "2026-07-28" => rialto.modern("tools/call", params).answer().await.1,
            revision => rialto.open(revision).await.ask("tools/call", params).await,
        };
        assert!(answer["result"]["content"].is_array(), "{answer}");
        let find = async |service: &str, kind: &str| {
            let is_it = of_service(service, kind);
            collector.span_where(&format!("{kind} of {service}"), |span| span["trace"] == trace && is_it(span)).await
        };
        let server = find("rialto", "SERVER").await;
        let client_span = find("rialto", "CLIENT").await;
        let python = find("python-server", "SERVER").await;
        assert_eq!(server["parent"], SPAN);
        assert_eq!(client_span["parent"], server["span"]);
        assert_eq!(python["parent"], client_span["span"], "the server has our CLIENT span as parent");
        assert_eq!(server["attributes"]["mcp.protocol.version"], client);
        assert_eq!(client_span["attributes"]["mcp.protocol.version"], server_revision);
        assert_eq!(client_span["attributes"]["network.transport"], "pipe");
        assert_eq!(client_span["attributes"]["rialto.upstream"], "py");
        assert_eq!(client_span["attributes"]["jsonrpc.request.id"], python["attributes"]["jsonrpc.request.id"]);
        stop(rialto).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wait_for_a_person_is_a_span_of_a_parked_call() {
    let collector = Collector::start().await;
    let (rialto, _folder) = before_python(&collector, "parked", "2025-11-25").await;
    let params = json!({ "name": "confirm", "arguments": {}, "_meta": { "traceparent": PARENT } });
    let send = |params: Value| {
        let mut body = modern(json!(1), "tools/call", params.clone());
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
            json!({ "elicitation": { "form": {} } });
        rialto.post("/mcp", &body).modern_headers("tools/call", &params).answer()
    };
    let (_, first) = send(params.clone()).await;
    assert_eq!(first["result"]["resultType"], "input_required", "{first}");
    let (key, _) = first["result"]["inputRequests"].as_object().unwrap().iter().next().unwrap();
    let mut again = params;
    again["requestState"] = first["result"]["requestState"].clone();
    again["inputResponses"] = json!({ key: { "action": "accept", "content": { "name": "Ann" } } });
    let (_, second) = send(again).await;
    assert_eq!(second["result"]["resultType"], "complete", "{second}");

    let is_server = |span: &&Value| span["resource"]["service.name"] == "rialto" && span["kind"] == "SERVER";
    collector.until("both requests", |_| collector.spans().iter().filter(is_server).count() == 2).await;
    let waiting = collector.span("elicitation/create", "CLIENT").await;
    let call = collector.span_where("our CLIENT span", of_service("rialto", "CLIENT")).await;
    let mut servers: Vec<Value> = collector.spans().iter().filter(is_server).cloned().collect();
    servers.sort_by_key(|span| span["start"].as_u64());
    assert!(servers.iter().all(|span| span["parent"] == SPAN && span["trace"] == TRACE), "{servers:?}");
    assert_eq!(waiting["parent"], servers[0]["span"]);
    assert_eq!(call["parent"], servers[0]["span"], "one call for the server");
    let time = |span: &Value, key: &str| span[key].as_u64().unwrap();
    assert!(time(&waiting, "start") <= time(&servers[0], "end") && time(&waiting, "end") >= time(&servers[1], "start"));
    assert_eq!(servers[1]["links"], json!([{ "trace": TRACE, "span": servers[0]["span"] }]));
    stop(rialto).await;
}

#[tokio::test]
async fn a_relayed_call_is_one_trace_over_two_nodes() {
    let collector = Collector::start().await;
    let store: Arc<dyn ClusterStore> = MemoryStore::new();
    let telemetry = collector.settings(OtlpProtocol::HttpProtobuf);
    let a = node_with(&store, "a", |settings| telemetry.clone().apply(settings)).await;
    let b = node_with(&store, "b", |settings| telemetry.clone().apply(settings)).await;
    let session = a.open("2025-11-25").await;
    let params = json!({ "name": "getElement", "arguments": { "name": "H" }, "_meta": { "traceparent": PARENT } });
    let (status, answer) = session.at_node(&b).post(&request(7, "tools/call", params)).answer().await;
    assert_eq!((status, &answer["error"]), (200, &Value::Null), "{answer}");
    let at = |node: &'static str, kind: &'static str, name: &'static str| {
        move |span: &Value| {
            span["resource"]["service.instance.id"] == node && span["kind"] == kind && span["name"] == name
        }
    };
    let name = "tools/call getElement";
    let entry = collector.span_where("the request at b", at("b", "SERVER", name)).await;
    let relay = collector.span_where("its relay", at("b", "CLIENT", "relay")).await;
    let owner = collector.span_where("the request at a", at("a", "SERVER", name)).await;
    let client = collector.span_where("the call", at("a", "CLIENT", name)).await;
    assert_eq!(entry["parent"], SPAN);
    assert_eq!(relay["parent"], entry["span"]);
    assert_eq!(owner["parent"], relay["span"]);
    assert_eq!(client["parent"], owner["span"]);
    assert_eq!(relay["attributes"]["rialto.node"], "a");
    assert!([&entry, &relay, &owner, &client].iter().all(|span| span["trace"] == TRACE));
    stop(a).await;
    stop(b).await;
}
