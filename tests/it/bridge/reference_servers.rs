//! Tasks of the reference server and of the Rust SDK, for clients without tasks and for clients of the other era with them.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rialto::gateway::{GatewayConfig, GroupConfig};
use rialto::mcp_client::Target;
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::{Value, json};
use tokio::process::Command;

use super::client::{Client, Response};
use super::scripted_server::META;
use super::variants::{HTTP_2025_11, HTTP_2026_07, VARIANTS, Variant};
use crate::conformance_server::fixtures::{self, Fixture, Shape};
use crate::harness::Rialto;
use crate::peers::installed;
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

/// The same tool as a task of a per-request client.
async fn check_research_task_across_eras(rialto: &Rialto) {
    let mut client = client(rialto, HTTP_2026_07).await;
    client.capabilities["extensions"] = json!({ format!("{META}tasks"): {} });
    let arguments = json!({ "topic": "python", "ambiguous": true });
    let created = client.call("simulate-research-query", arguments).await.unwrap();
    assert_eq!(created.message["result"]["resultType"], "task", "{}", created.raw);
    let id = created.message["result"]["taskId"].clone();
    let mut keys = Vec::new();
    let task = loop {
        let task = client.request("tasks/get", json!({ "taskId": id })).await.unwrap().message["result"].clone();
        for (key, input) in task["inputRequests"].as_object().into_iter().flatten() {
            assert_eq!(input["method"], "elicitation/create", "{task}");
            let answer = json!({ "action": "accept", "content": { "interpretation": "snake" } });
            let update = json!({ "taskId": id, "inputResponses": { key.clone(): answer } });
            client.request("tasks/update", update).await.unwrap();
            keys.push(key.clone());
        }
        if !["working", "input_required"].contains(&task["status"].as_str().unwrap()) {
            break task;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((&task["status"], keys.len()), (&json!("completed"), 1), "{task}");
    let report = task["result"]["content"][0]["text"].as_str().unwrap();
    assert!(report.starts_with("# Research Report: python (snake)"), "{task}");
}

#[tokio::test]
async fn a_reference_server_task_crosses_the_eras() {
    let served = Served::start(EVERYTHING, &["streamableHttp", "0"]).await;
    check_research_task_across_eras(&gateway(served.target("/mcp")).await).await;
    let spawned = Spawned::new(EVERYTHING, &["stdio"]).await;
    check_research_task_across_eras(&gateway(spawned.target.clone()).await).await;
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

#[tokio::test]
async fn a_rust_sdk_task_crosses_the_eras() {
    let served = fixtures::Served::start(Fixture::Rmcp.command_line("http", Shape::PerRequest).await).await;
    let rialto = gateway(Target::url(&served.url).unwrap()).await;
    let mut client = client(&rialto, HTTP_2025_11).await;
    client.capabilities["extensions"] = json!({ format!("{META}tasks"): {} });
    client.on_server_request = Box::new(|_, params| {
        assert!(params["_meta"][format!("{META}related-task")]["taskId"].is_string(), "{params}");
        Ok(json!({ "action": "accept", "content": { "confirm": true } }))
    });
    for (tool, questions) in [("slow_compute", 0), ("confirm_delete", 1), ("multi_input", 2), ("failing_job", 0)] {
        let params = json!({ "name": tool, "arguments": { "seconds": 0.01 }, "task": { "ttl": 60_000 } });
        let created = client.request("tools/call", params).await.unwrap();
        let id = created.message["result"]["task"]["taskId"].clone();
        assert!(id.is_string(), "{tool}: {}", created.raw);
        let result = client.request("tasks/result", json!({ "taskId": id })).await.unwrap();
        assert_eq!(result.server_requests.len(), questions, "{tool}: {:?}", result.server_requests);
        assert_eq!(text(&result).matches(r#""confirm":true"#).count(), questions, "{tool}: {}", result.raw);
        let is_failure = tool == "failing_job";
        assert_eq!(result.message["result"]["isError"] == true, is_failure, "{tool}: {}", result.raw);
        let task = client.request("tasks/get", json!({ "taskId": id })).await.unwrap();
        let expected = if is_failure { "failed" } else { "completed" };
        assert_eq!(task.message["result"]["status"], expected, "{tool}: {}", task.raw);
    }
}

/// Both sides are official SDKs: a TypeScript client of 2025-11-25 and a Rust server of 2026-07-28.
#[tokio::test]
async fn a_typescript_client_has_a_task_of_a_rust_sdk_server() {
    let served = fixtures::Served::start(Fixture::Rmcp.command_line("http", Shape::PerRequest).await).await;
    let rialto = gateway(Target::url(&served.url).unwrap()).await;
    let folder = tokio::task::spawn_blocking(installed).await.unwrap();
    let mut command = Command::new(folder.join("node/node_modules/.bin/node"));
    command.arg(folder.join("node/tasks1.mjs")).arg(rialto.url(&format!("/mcp/{NAME}")));
    command.args(["slow_compute", "confirm_delete", "multi_input"]).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(90), command.output()).await.expect("it exits in time");
    let output = output.unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}\n{errors}");
    let report: Value = serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(report["tasks"]["requests"]["tools"]["call"].is_object(), "{report}");
    for (seen, questions) in report["seen"].as_array().unwrap().iter().zip([0, 1, 2]) {
        assert_eq!((&seen["support"], &seen["status"]), (&json!("optional"), &json!("completed")), "{seen}");
        let told = seen["told"].as_array().unwrap();
        assert_eq!((&told[0], &told[told.len() - 1]), (&json!("taskCreated"), &json!("result")), "{seen}");
        assert_eq!(seen["asked"], json!(vec![seen["taskId"].clone(); questions]), "{seen}");
        assert_eq!(seen["text"].as_str().unwrap().matches(r#""confirm":true"#).count(), questions, "{seen}");
    }
    assert_eq!(report["seen"].as_array().unwrap().len(), 3, "{report}");
}
