//! Tasks that client and server share without translation belong to their caller: two callers with API keys at one server.

use std::sync::Arc;

use rialto::gateway::{GatewayConfig, GroupConfig};
use rialto::mcp_client::Target;
use rialto::policy::{ApiKeySpec, ApiKeys, GeneratedKey};
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::{Value, json};

use super::client::Client;
use super::feature_checks::expect_text;
use super::scripted_server::META;
use super::scripted_tasks::TASK_TOOL;
use super::tasks::servers;
use super::variants::{HTTP_2025_11, HTTP_2026_07, Variant};
use super::{ALL, Testbed};
use crate::conformance_server::fixtures::{self, Fixture, Shape};
use crate::harness::{Rialto, modern};
use crate::servers::{EVERYTHING, Served};

/// Two callers and their keys.
struct Callers {
    ann: GeneratedKey,
    bob: GeneratedKey,
}

impl Callers {
    fn new() -> Self {
        Self { ann: GeneratedKey::random().unwrap(), bob: GeneratedKey::random().unwrap() }
    }

    fn keys(&self) -> ApiKeys {
        ApiKeys::new([("ann", &self.ann), ("bob", &self.bob)].map(|(name, key)| ApiKeySpec {
            name: name.into(),
            hashes: vec![key.hash],
            roles: Vec::new(),
            groups: None,
            expires: None,
        }))
    }

    /// Clients of both callers with tasks, in the era of the server.
    async fn connect(&self, rialto: &Rialto, group: &str, server: Variant) -> [Client; 2] {
        let variant = if server.is_per_request() { HTTP_2026_07 } else { HTTP_2025_11 };
        let mut clients = Vec::new();
        for key in [&self.ann, &self.bob] {
            // No roots capability: the reference server would request the roots right away.
            let capabilities = json!({ "sampling": {}, "elicitation": { "form": {} } });
            let client = Client::with_capabilities(variant, rialto.address, group, Some(&key.key), capabilities);
            let mut client = client.await.unwrap();
            // A handshake-era client says by this that results may name their task.
            client.capabilities["extensions"] = json!({ format!("{META}tasks"): {} });
            clients.push(client);
        }
        clients.try_into().unwrap_or_else(|_| unreachable!())
    }
}

/// Calls a tool as a task and returns the id of the task.
async fn start(client: &mut Client, is_per_request: bool, tool: &str, arguments: Value) -> String {
    let mut params = json!({ "name": tool, "arguments": arguments });
    if !is_per_request {
        params["task"] = json!({ "ttl": 60_000 });
    }
    let created = client.request("tools/call", params).await.unwrap();
    let result = &created.message["result"];
    let task = if is_per_request { result } else { &result["task"] };
    task["taskId"].as_str().unwrap_or_else(|| panic!("no task: {}", created.raw)).to_owned()
}

async fn ask(client: &mut Client, method: &str, params: Value) -> Value {
    client.request(method, params).await.unwrap().message
}

/// The methods that name a task, in the era of the server.
fn task_methods(is_per_request: bool) -> [&'static str; 3] {
    if is_per_request {
        ["tasks/get", "tasks/update", "tasks/cancel"]
    } else {
        ["tasks/get", "tasks/result", "tasks/cancel"]
    }
}

/// Checks that each method gets the same error for every one of these ids, and returns the last one.
async fn check_unknown(client: &mut Client, is_per_request: bool, ids: &[&str]) {
    for method in task_methods(is_per_request) {
        let mut errors = Vec::new();
        for id in ids {
            let mut params = json!({ "taskId": id });
            if method == "tasks/update" {
                params["inputResponses"] = json!({});
            }
            errors.push(ask(client, method, params).await["error"].clone());
        }
        assert_eq!(errors[0]["code"], -32602, "{method} {errors:?}");
        assert!(errors.iter().all(|error| *error == errors[0]), "{method} {errors:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_another_caller_is_as_unknown_as_one_that_never_was() {
    let callers = Callers::new();
    for server in servers() {
        let is_per_request = server.is_per_request();
        let other = if is_per_request { HTTP_2025_11 } else { HTTP_2026_07 };
        let testbed = Testbed::with(&[server, other], |settings| settings.policy.keys = callers.keys()).await;
        let tasks = &testbed.endpoints[0].scripted.tasks;
        let in_one = (server.name, TASK_TOOL.to_owned());
        // A group of several servers has tasks of the per-request era only.
        let in_several = is_per_request.then(|| (ALL, format!("{}__{TASK_TOOL}", server.name)));
        for (group, tool) in std::iter::once(in_one).chain(in_several) {
            let [mut ann, mut bob] = callers.connect(&testbed.rialto, group, server).await;
            let id = start(&mut ann, is_per_request, &tool, json!({ "kind": "ask" })).await;
            let own = format!("t é {}", tasks.created());
            assert!(id.starts_with("t.") && !id.contains(&own), "{id}");
            let polls = tasks.poll_count();
            for client in [&mut bob, &mut ann] {
                // What the server calls it is nobody's id.
                check_unknown(client, is_per_request, &["t.never", &own, &format!("{}.{own}", server.name)]).await;
            }
            check_unknown(&mut bob, is_per_request, &["t.never", &id]).await;
            assert_eq!((tasks.poll_count(), tasks.cancel_count()), (polls, 0), "the server was not asked");
            if is_per_request {
                let filter = json!({ "notifications": { "taskIds": [id] } });
                let listening = bob.send("subscriptions/listen", filter).await.unwrap();
                let granted = bob.wait_for_notification("notifications/subscriptions/acknowledged").await.unwrap();
                assert!(granted["params"]["notifications"].get("taskIds").is_none(), "{granted}");
                bob.cancel(&listening).await.unwrap();
            }
            // Its owner has it, in every session, and sees one id only.
            let [mut again, _] = callers.connect(&testbed.rialto, group, server).await;
            for client in [&mut ann, &mut again] {
                let task = ask(client, "tasks/get", json!({ "taskId": id })).await;
                assert_eq!(task["result"]["taskId"], id, "{task}");
            }
            let cancelled = ask(&mut again, "tasks/cancel", json!({ "taskId": id })).await;
            assert!(cancelled["error"].is_null(), "{cancelled}");
            assert_eq!(tasks.cancel_count(), 1);
            testbed.endpoints[0].scripted.tasks.clear();
        }
        testbed.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn input_of_a_task_names_the_task_by_the_id_of_each_side() {
    let callers = Callers::new();
    for server in servers().into_iter().filter(|server| !server.is_per_request()) {
        let testbed = Testbed::with(&[server], |settings| settings.policy.keys = callers.keys()).await;
        let [mut ann, _bob] = callers.connect(&testbed.rialto, server.name, server).await;
        let id = start(&mut ann, false, TASK_TOOL, json!({ "kind": "ask" })).await;
        for expected in ["working", "input_required"] {
            let task = ask(&mut ann, "tasks/get", json!({ "taskId": id })).await;
            assert_eq!(task["result"]["status"], expected, "{task}");
        }
        let waiting = ann.send("tasks/result", json!({ "taskId": id })).await.unwrap();
        let request = ann.wait_for_server_request_message(&waiting).await.unwrap();
        assert_eq!(request["params"]["_meta"][format!("{META}related-task")]["taskId"], id, "{request}");
        let content = json!({ "type": "text", "text": "hm" });
        let meta = json!({ format!("{META}related-task"): { "taskId": id } });
        let response = json!({ "role": "assistant", "model": "none", "content": content, "_meta": meta });
        // The scripted server reports a response that names another task than its own.
        ann.answer(&request["id"], response).await.unwrap();
        let [mut again, _] = callers.connect(&testbed.rialto, server.name, server).await;
        while ask(&mut again, "tasks/get", json!({ "taskId": id })).await["result"]["status"] != "completed" {}
        let result = ann.response(&waiting).await.unwrap();
        expect_text(&result, "hm").unwrap();
        assert_eq!(result.message["result"]["_meta"][format!("{META}related-task")]["taskId"], id, "{}", result.raw);
        testbed.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_notifications_reach_the_owner_of_the_task_only() {
    let callers = Callers::new();
    for server in servers().into_iter().filter(|server| !server.is_per_request()) {
        let testbed = Testbed::with(&[server], |settings| settings.policy.keys = callers.keys()).await;
        let [mut ann, mut bob] = callers.connect(&testbed.rialto, server.name, server).await;
        start(&mut ann, false, TASK_TOOL, json!({ "kind": "hang" })).await;
        let id = start(&mut bob, false, TASK_TOOL, json!({ "kind": "gossip" })).await;
        // With the second poll the server tells this session of every task, ann's first.
        for _ in 0..2 {
            ask(&mut bob, "tasks/get", json!({ "taskId": id })).await;
        }
        let told = bob.wait_for_notification("notifications/tasks/status").await.unwrap();
        assert_eq!(told["params"]["taskId"], id, "{told}");
        assert!(
            !bob.has_notification("notifications/tasks/status") && !ann.has_notification("notifications/tasks/status")
        );
        testbed.close().await;
    }
}

/// All tasks of a list, page by page, and the first cursor.
async fn list(client: &mut Client) -> (Vec<String>, Option<String>) {
    let (mut ids, mut first, mut params) = (Vec::new(), None, json!({}));
    loop {
        let page = ask(client, "tasks/list", params).await;
        let tasks = page["result"]["tasks"].as_array().unwrap_or_else(|| panic!("{page}")).clone();
        ids.extend(tasks.iter().map(|task| task["taskId"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["result"]["nextCursor"].as_str() else { return (ids, first) };
        assert!(!tasks.is_empty(), "a page without tasks is passed over: {page}");
        first.get_or_insert(cursor.to_owned());
        params = json!({ "cursor": cursor });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_shows_the_tasks_of_the_caller_page_by_page() {
    let callers = Callers::new();
    for server in servers().into_iter().filter(|server| !server.is_per_request()) {
        let testbed = Testbed::with(&[server], |settings| settings.policy.keys = callers.keys()).await;
        let [mut ann, mut bob] = callers.connect(&testbed.rialto, server.name, server).await;
        let mut created = [Vec::new(), Vec::new()];
        // The server has two tasks on a page: the second and third are bob's alone.
        for is_bobs in [false, false, true, true, true, true, true, false, false] {
            let client = if is_bobs { &mut bob } else { &mut ann };
            let id = start(client, false, TASK_TOOL, json!({ "kind": "hang" })).await;
            created[usize::from(is_bobs)].push(id);
        }
        let ((anns, cursor), (bobs, _)) = (list(&mut ann).await, list(&mut bob).await);
        assert_eq!([anns, bobs], created);
        for foreign in [cursor.unwrap(), "t é 2".to_owned()] {
            let refused = ask(&mut bob, "tasks/list", json!({ "cursor": foreign })).await;
            assert_eq!(refused["error"]["code"], -32602, "{foreign} {refused}");
        }
        testbed.close().await;
    }
    // There is no such list across servers or eras.
    let testbed = Testbed::open(&[HTTP_2026_07, HTTP_2025_11]).await;
    for group in [HTTP_2026_07.name, ALL] {
        let mut client = Client::over_http(HTTP_2025_11, testbed.rialto.address, group, None).await.unwrap();
        assert_eq!(ask(&mut client, "tasks/list", json!({})).await["error"]["code"], -32601, "{group}");
    }
    testbed.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_with_the_same_key_knows_the_tasks_of_another() {
    let callers = Callers::new();
    for server in [HTTP_2025_11, HTTP_2026_07] {
        let testbed = Testbed::with(&[server], |settings| settings.policy.keys = callers.keys()).await;
        let spec = UpstreamSpec::new(server.name, SpecKind::Target(testbed.endpoints[0].target.clone()));
        let second = gateway(spec, server.name, &callers).await;
        for rialto in [&testbed.rialto, &second] {
            rialto.inbound.gateway.seal().set_key(b"a key that all nodes have");
        }
        let [mut ann, _] = callers.connect(&testbed.rialto, server.name, server).await;
        let id = start(&mut ann, server.is_per_request(), TASK_TOOL, json!({ "kind": "hang" })).await;
        let [mut ann, mut bob] = callers.connect(&second, server.name, server).await;
        check_unknown(&mut bob, server.is_per_request(), &["t.never", &id]).await;
        let task = ask(&mut ann, "tasks/get", json!({ "taskId": id })).await;
        assert_eq!(task["result"]["taskId"], id, "{task}");
        if !server.is_per_request() {
            assert_eq!((list(&mut ann).await.0, list(&mut bob).await.0), (vec![id], vec![]), "known by its use");
        }
        drop((ann, bob, second));
        testbed.close().await;
    }
}

async fn gateway(spec: UpstreamSpec, group: &str, callers: &Callers) -> Rialto {
    let groups = vec![GroupConfig::new(group, [Arc::clone(&spec.name)])];
    Rialto::with(|settings| {
        settings.gateway = GatewayConfig { upstreams: vec![spec], groups };
        settings.policy.keys = callers.keys();
    })
    .await
}

/// Follows a task to its end.
async fn finish(client: &mut Client, id: &str) -> Value {
    loop {
        let task = ask(client, "tasks/get", json!({ "taskId": id })).await["result"].clone();
        assert_eq!(task["taskId"], id, "{task}");
        if !["working", "input_required"].contains(&task["status"].as_str().unwrap()) {
            return task;
        }
    }
}

/// The reference server on the TypeScript SDK, which shows every task to every session.
#[tokio::test]
async fn tasks_of_the_reference_server_belong_to_their_caller() {
    let served = Served::start(EVERYTHING, &["streamableHttp", "0"]).await;
    let callers = Callers::new();
    let rialto = gateway(UpstreamSpec::new("real", SpecKind::Target(served.target("/mcp"))), "real", &callers).await;
    let [mut ann, mut bob] = callers.connect(&rialto, "real", HTTP_2025_11).await;
    let arguments = json!({ "topic": "python" });
    let id = start(&mut ann, false, "simulate-research-query", arguments.clone()).await;
    let other = start(&mut bob, false, "simulate-research-query", arguments).await;
    check_unknown(&mut bob, false, &["t.never", &id]).await;
    assert_eq!(list(&mut ann).await.0, [id.as_str()]);
    assert_eq!(list(&mut bob).await.0, [other.as_str()]);
    assert_eq!(finish(&mut ann, &id).await["status"], "completed");
    let result = ask(&mut ann, "tasks/result", json!({ "taskId": id })).await["result"].clone();
    assert!(result["content"][0]["text"].as_str().unwrap().starts_with("# Research Report: python"), "{result}");
    assert_eq!(result["_meta"][format!("{META}related-task")]["taskId"], id, "{result}");
    let cancelled = ask(&mut bob, "tasks/cancel", json!({ "taskId": other })).await;
    assert!(cancelled["error"].is_null() || cancelled["error"]["code"] == -32602, "{cancelled}");
}

/// A server on the Rust SDK with the tasks extension, asked without the checks of [`Client`]: its results lack `serverInfo`.
#[tokio::test]
async fn tasks_of_a_rust_sdk_server_belong_to_their_caller() {
    let served = fixtures::Served::start(Fixture::Rmcp.command_line("http", Shape::PerRequest).await).await;
    let callers = Callers::new();
    let target = SpecKind::Target(Target::url(&served.url).unwrap());
    let rialto = gateway(UpstreamSpec::new("real", target), "real", &callers).await;
    let ask = async |key: &GeneratedKey, method: &str, params: Value| -> Value {
        let mut message = modern(1.into(), method, params.clone());
        let extensions = json!({ format!("{META}tasks"): {} });
        let capabilities = json!({ "elicitation": { "form": {} }, "extensions": extensions });
        message["params"]["_meta"][format!("{META}clientCapabilities")] = capabilities;
        let sending = rialto.post("/mcp/real", &message).modern_headers(method, &params);
        sending.header("authorization", &format!("Bearer {}", key.key)).go().await.json().await
    };
    let created = ask(&callers.ann, "tools/call", json!({ "name": "confirm_delete", "arguments": {} })).await;
    let id = created["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {created}"));
    loop {
        let mut errors = Vec::new();
        for method in task_methods(true) {
            for id in ["t.never", id] {
                let params = json!({ "taskId": id, "inputResponses": {} });
                errors.push(ask(&callers.bob, method, params).await["error"].clone());
            }
        }
        assert!(errors.iter().all(|error| *error == errors[0] && error["code"] == -32602), "{errors:?}");
        let task = ask(&callers.ann, "tasks/get", json!({ "taskId": id })).await["result"].clone();
        assert_eq!(task["taskId"], id, "{task}");
        for (key, _) in task["inputRequests"].as_object().into_iter().flatten() {
            let answer = json!({ "action": "accept", "content": { "confirm": true } });
            let update = json!({ "taskId": id, "inputResponses": { key.clone(): answer } });
            ask(&callers.ann, "tasks/update", update).await;
        }
        match task["status"].as_str() {
            Some("working" | "input_required") => {}
            status => break assert_eq!(status, Some("completed"), "{task}"),
        }
    }
}
