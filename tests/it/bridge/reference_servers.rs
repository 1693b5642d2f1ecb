//! Tasks of the reference server and of the Rust SDK, for clients without task support.

use std::sync::Arc;

use rialto::gateway::{GatewayConfig, GroupConfig};
use rialto::mcp_client::Target;
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::{Value, json};

use super::client::{Client, Response};
use super::variants::{HTTP_2025_11, HTTP_2026_07, VARIANTS, Variant};
use crate::conformance_server::fixtures::{self, Fixture, Shape};
use crate::harness::Rialto;
use crate::servers::{EVERYTHING, Served, Spawned};

const NAME: &str = "real";

async fn gateway(target: Target) -> Rialto {
    let spec = UpstreamSpec::new(NAME, SpecKind::Target(target));
    let group = GroupConfig::new(NAME, [Arc::from(NAME)]);
    Rialto::with(|settings| settings.gateway = GatewayConfig { upstreams: vec![spec], groups: vec![group] }).await
}

async fn client(rialto: &Rialto, variant: Variant) -> Client {
    // No roots capability: the reference server would request the roots right away.
    let capabilities = json!({ "elicitation": {} });
    Client::with_capabilities(variant, rialto.address, NAME, None, capabilities).await.unwrap()
}

fn text(answer: &Response) -> &str {
    answer.message["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{}", answer.raw))
}

/// This tool of the reference server always runs as a task and elicits input.
async fn check_research_task(rialto: &Rialto, variant: Variant) {
    let mut client = client(rialto, variant).await;
    client.on_server_request =
        Box::new(|_, _| Ok(json!({ "action": "accept", "content": { "interpretation": "snake" } })));
    let arguments = json!({ "topic": "python", "ambiguous": true });
    let answer = client.call("simulate-research-query", arguments).await.unwrap();
    assert_eq!(answer.server_requests.len(), 1, "{variant:?}: {:?}", answer.server_requests);
    let (method, params) = &answer.server_requests[0];
    assert_eq!(method, "elicitation/create", "{variant:?}");
    assert!(params["message"].as_str().unwrap().contains("multiple interpretations"), "{variant:?}: {params}");
    assert!(text(&answer).starts_with("# Research Report: python (snake)"), "{variant:?}: {}", answer.raw);
    assert!(
        !answer.raw.contains("related-task") && !client.has_notification("notifications/tasks/status"),
        "{variant:?}"
    );
}

#[tokio::test]
async fn a_reference_server_task_with_elicitation_over_http() {
    let served = Served::start(EVERYTHING, &["streamableHttp", "0"]).await;
    let rialto = gateway(served.target("/mcp")).await;
    tokio::join!(
        check_research_task(&rialto, HTTP_2026_07),
        check_research_task(&rialto, VARIANTS[2]),
        check_research_task(&rialto, HTTP_2025_11)
    );
}

#[tokio::test]
async fn a_reference_server_task_with_elicitation_over_stdio() {
    let spawned = Spawned::new(EVERYTHING, &["stdio"]).await;
    let rialto = gateway(spawned.target.clone()).await;
    tokio::join!(check_research_task(&rialto, HTTP_2026_07), check_research_task(&rialto, VARIANTS[2]));
}

#[tokio::test]
async fn rust_sdk_tasks_with_elicitation() {
    let served = fixtures::Served::start(Fixture::Rmcp.command_line("http", Shape::PerRequest).await).await;
    let rialto = gateway(Target::url(&served.url).unwrap()).await;
    for variant in [VARIANTS[2], HTTP_2025_11] {
        let mut client = client(&rialto, variant).await;
        client.on_server_request = Box::new(|_, params| {
            let asked = &params["requestedSchema"]["properties"];
            let one = |key: &String| (key.clone(), if key == "confirm" { json!(true) } else { json!("Ada") });
            let content: serde_json::Map<String, Value> = asked.as_object().unwrap().keys().map(one).collect();
            Ok(json!({ "action": "accept", "content": content }))
        });
        // The server answers without a task where it can.
        let plain = client.call("slow_compute", json!({ "seconds": 0.01 })).await.unwrap();
        assert_eq!(text(&plain), "done null");
        let failed = client.call("failing_job", json!({})).await.unwrap();
        assert_eq!((text(&failed), &failed.message["result"]["isError"]), ("on purpose", &json!(true)));
        for (tool, questions) in [("confirm_delete", 1), ("multi_input", 2)] {
            let asked = client.call(tool, json!({})).await.unwrap();
            assert_eq!(asked.server_requests.len(), questions, "{tool}: {:?}", asked.server_requests);
            assert_eq!(text(&asked).matches(r#""confirm":true"#).count(), questions, "{tool}: {}", asked.raw);
        }
        // The call elicits input first and becomes a task afterwards.
        let later = client.call("test_tool_with_task", json!({})).await.unwrap();
        assert_eq!(later.server_requests.len(), 1, "{:?}", later.server_requests);
        assert!(text(&later).starts_with("done {") && text(&later).contains("Ada"), "{}", later.raw);
    }
}
