//! Tasks between a client of one era and a server of the other, both of which know tasks.

use std::sync::Arc;

use serde_json::{Value, json};

use super::client::{Client, Response};
use super::feature_checks::{expect_text, until};
use super::handlers::NUMBERS;
use super::scripted_server::META;
use super::scripted_tasks::TASK_TOOL;
use super::server_endpoint::ServerEndpoint;
use super::variants::{HTTP_2025_11, HTTP_2026_07, VARIANTS, Variant};
use super::{ALL, Testbed, groups};
use crate::cluster::node_with;
use crate::harness::Rialto;
use rialto::gateway::GatewayConfig;
use rialto::policy::{Policy, Tokens};
use rialto::store::{ClusterStore, MemoryStore};

/// The variants of 2025-11-25 over HTTP and stdio.
const HANDSHAKE: [Variant; 2] = [HTTP_2025_11, VARIANTS[4]];
/// The variants of 2026-07-28 over HTTP and stdio.
const PER_REQUEST: [Variant; 2] = [HTTP_2026_07, VARIANTS[6]];

/// A client that knows tasks.
async fn client(testbed: &Testbed, variant: Variant, group: &str) -> Client {
    with_tasks(testbed.client(variant, group).await.unwrap())
}

/// For a client of the handshake era this only means that it expects related tasks in results.
fn with_tasks(mut client: Client) -> Client {
    client.capabilities["extensions"] = json!({ format!("{META}tasks"): {} });
    client
}

async fn request(client: &mut Client, method: &str, params: Value) -> Response {
    client.request(method, params).await.unwrap()
}

/// Asks for a task in the handshake era; returns its id.
async fn create(client: &mut Client, tool: &str, kind: &str) -> Value {
    let params = json!({ "name": tool, "arguments": { "kind": kind }, "task": { "ttl": 7000 } });
    let created = request(client, "tools/call", params).await;
    let task = &created.message["result"]["task"];
    assert_eq!(task["status"], "working", "{}", created.raw);
    assert!(task["createdAt"].is_string() && task["lastUpdatedAt"].is_string(), "{}", created.raw);
    assert!(task["ttl"].is_u64() && task["taskId"].is_string(), "{}", created.raw);
    task["taskId"].clone()
}

async fn about(client: &mut Client, method: &str, id: &Value) -> Response {
    request(client, method, json!({ "taskId": id })).await
}

async fn status(client: &mut Client, id: &Value) -> Value {
    about(client, "tasks/get", id).await.message["result"]["status"].clone()
}

fn error_code(answer: &Response) -> &Value {
    &answer.message["error"]["code"]
}

/// Calls a tool that becomes a task in the per-request era; returns the task.
async fn call(client: &mut Client, tool: &str, kind: &str) -> Value {
    let created = client.call(tool, json!({ "kind": kind })).await.unwrap();
    let task = &created.message["result"];
    assert_eq!((&task["resultType"], &task["status"]), (&json!("task"), &json!("working")), "{}", created.raw);
    assert!(task["createdAt"].is_string() && task["lastUpdatedAt"].is_string(), "{}", created.raw);
    assert_eq!((&task["ttlMs"], &task["pollIntervalMs"]), (&json!(60_000), &json!(1)), "{}", created.raw);
    task["taskId"].clone()
}

/// Polls a task in the per-request era until it has this status.
async fn wait_for(client: &mut Client, id: &Value, wanted: &str) -> Response {
    for _ in 0..1000 {
        let polled = about(client, "tasks/get", id).await;
        assert_eq!(polled.message["result"]["resultType"], "complete", "{}", polled.raw);
        let is_final =
            ["completed", "failed", "cancelled"].contains(&polled.message["result"]["status"].as_str().unwrap());
        if polled.message["result"]["status"] == wanted {
            return polled;
        }
        assert!(!is_final, "not {wanted}: {}", polled.raw);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("never {wanted}");
}

/// The testbed and a client for each pair of a server of one era and a client of the other.
async fn pairs(servers: [Variant; 2], clients: [Variant; 2], mut check: impl AsyncFnMut(&Testbed, Client)) {
    for server in servers {
        let testbed = Testbed::open(&[server]).await;
        for variant in clients {
            check(&testbed, client(&testbed, variant, server.name).await).await;
        }
        testbed.close().await;
    }
}

#[tokio::test]
async fn a_session_has_a_task_of_a_per_request_server() {
    pairs(PER_REQUEST, HANDSHAKE, async |testbed, mut client| {
        let declared = json!({ "cancel": {}, "requests": { "tools": { "call": {} } } });
        assert_eq!(client.server_capabilities["tasks"], declared);
        let tools = request(&mut client, "tools/list", json!({})).await;
        let support = &tools.message["result"]["tools"][0]["execution"];
        assert_eq!(*support, json!({ "taskSupport": "optional" }), "{}", tools.raw);
        let scripted = &testbed.endpoints[0].scripted;
        let listeners = scripted.task_listener_count();
        let id = create(&mut client, TASK_TOOL, "done").await;
        until("the server is listened to", || scripted.task_listener_count() > listeners).await.unwrap();
        let polls = scripted.tasks.poll_count();
        let first = about(&mut client, "tasks/get", &id).await;
        let members: Vec<&String> = first.message["result"].as_object().unwrap().keys().collect();
        assert_eq!(members, ["createdAt", "lastUpdatedAt", "pollInterval", "status", "taskId", "ttl"], "{}", first.raw);
        assert_eq!((&first.message["result"]["status"], &first.message["result"]["taskId"]), (&json!("working"), &id));
        assert_eq!(status(&mut client, &id).await, "completed");
        assert_eq!(scripted.tasks.poll_count(), polls + 2, "a request for a request");
        let notification = client.wait_for_notification("notifications/tasks/status").await.unwrap();
        let told = (&notification["params"]["taskId"], &notification["params"]["status"]);
        assert_eq!(told, (&id, &json!("completed")));
        assert!(notification["params"].get("result").is_none(), "{notification}");
        let result = about(&mut client, "tasks/result", &id).await;
        expect_text(&result, "done").unwrap();
        assert!(result.raw.contains(NUMBERS), "byte for byte: {}", result.raw);
        assert_eq!(result.message["result"]["_meta"][format!("{META}related-task")]["taskId"], id, "{}", result.raw);
        assert_eq!(*error_code(&about(&mut client, "tasks/cancel", &id).await), -32602, "it has ended");
        for method in ["tasks/list", "tasks/update"] {
            assert_eq!(*error_code(&about(&mut client, method, &id).await), -32601, "{method}");
        }
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            for unknown in [json!("t é 1"), json!("t.nothing"), json!(7)] {
                assert_eq!(*error_code(&about(&mut client, method, &unknown).await), -32602, "{method} {unknown}");
            }
        }
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_session_is_asked_for_the_input_of_its_task() {
    pairs(PER_REQUEST, HANDSHAKE, async |_, mut client| {
        let id = create(&mut client, TASK_TOOL, "both").await;
        assert_eq!(status(&mut client, &id).await, "working");
        assert_eq!(status(&mut client, &id).await, "input_required");
        let result = about(&mut client, "tasks/result", &id).await;
        expect_text(&result, "accept Ada true").unwrap();
        assert_eq!(result.server_requests.len(), 2, "{:?}", result.server_requests);
        for (method, params) in &result.server_requests {
            assert_eq!(params["_meta"][format!("{META}related-task")]["taskId"], id, "{method} {params}");
        }
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn two_requests_for_one_result_ask_once() {
    let testbed = Testbed::open(&[HTTP_2026_07]).await;
    let mut client = client(&testbed, VARIANTS[4], HTTP_2026_07.name).await;
    let id = create(&mut client, TASK_TOOL, "ask").await;
    let first = client.send("tasks/result", json!({ "taskId": id })).await.unwrap();
    let asked = client.wait_for_server_request(&first).await.unwrap();
    let polls = testbed.endpoints[0].scripted.tasks.poll_count();
    let second = client.send("tasks/result", json!({ "taskId": id })).await.unwrap();
    let tasks = &testbed.endpoints[0].scripted.tasks;
    until("both requests poll", || tasks.poll_count() > polls + 3).await.unwrap();
    let answer = super::client::accept_server_request("sampling/createMessage", &json!({})).unwrap();
    client.answer(&asked, answer).await.unwrap();
    let mut ended = vec![first, second];
    while !ended.is_empty() {
        let result = client.any_response(&mut ended).await.unwrap();
        expect_text(&result, "thoughts on nothing").unwrap();
    }
    client.close().await.unwrap();
    testbed.close().await;
}

#[tokio::test]
async fn a_session_cancels_its_task() {
    pairs(PER_REQUEST, HANDSHAKE, async |testbed, mut client| {
        let tasks = &testbed.endpoints[0].scripted.tasks;
        let cancels = tasks.cancel_count();
        let id = create(&mut client, TASK_TOOL, "hang").await;
        let waiting = client.send("tasks/result", json!({ "taskId": id })).await.unwrap();
        let cancelling = client.send("tasks/cancel", json!({ "taskId": id })).await.unwrap();
        let mut open = vec![waiting, cancelling.clone()];
        let answers = [client.any_response(&mut open).await.unwrap(), client.any_response(&mut open).await.unwrap()];
        let (cancelled, result) = match answers {
            [first, second] if first.message["id"] == cancelling => (first, second),
            [first, second] => (second, first),
        };
        let task = &cancelled.message["result"];
        assert_eq!((&task["status"], &task["taskId"]), (&json!("cancelled"), &id), "{}", cancelled.raw);
        assert_eq!(tasks.cancel_count(), cancels + 1);
        assert_eq!(*error_code(&result), -32603, "{}", result.raw);
        assert_eq!(status(&mut client, &id).await, "cancelled");
        assert_eq!(*error_code(&about(&mut client, "tasks/cancel", &id).await), -32602);
        assert_eq!(tasks.cancel_count(), cancels + 1);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn failed_tasks_fail_in_the_words_of_the_session() {
    pairs(PER_REQUEST, HANDSHAKE, async |_, mut client| {
        for (kind, message) in [("fail", "on purpose"), ("wrong", "on purpose")] {
            let id = create(&mut client, TASK_TOOL, kind).await;
            assert_eq!(status(&mut client, &id).await, "working");
            let failed = about(&mut client, "tasks/get", &id).await;
            let task = &failed.message["result"];
            assert_eq!(
                (&task["status"], &task["statusMessage"]),
                (&json!("failed"), &json!(message)),
                "{}",
                failed.raw
            );
            let result = about(&mut client, "tasks/result", &id).await;
            match kind {
                "fail" => assert_eq!(*error_code(&result), 1234, "{}", result.raw),
                _ => assert_eq!(result.message["result"]["isError"], true, "{}", result.raw),
            }
        }
        let id = create(&mut client, TASK_TOOL, "forget").await;
        assert_eq!(status(&mut client, &id).await, "working");
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            assert_eq!(*error_code(&about(&mut client, method, &id).await), -32602, "{method}");
        }
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_plain_answer_is_kept_as_a_task_of_the_session() {
    pairs(PER_REQUEST, HANDSHAKE, async |_, mut client| {
        let params = json!({ "name": "count", "arguments": {}, "task": { "ttl": 7000 } });
        let created = request(&mut client, "tools/call", params).await;
        let task = &created.message["result"]["task"];
        assert_eq!((&task["status"], &task["ttl"]), (&json!("working"), &json!(7000)), "{}", created.raw);
        let id = task["taskId"].clone();
        assert_eq!(status(&mut client, &id).await, "completed");
        for _ in 0..2 {
            let result = about(&mut client, "tasks/result", &id).await;
            expect_text(&result, "counted").unwrap();
            assert_eq!(
                result.message["result"]["_meta"][format!("{META}related-task")]["taskId"],
                id,
                "{}",
                result.raw
            );
        }
        assert_eq!(*error_code(&about(&mut client, "tasks/cancel", &id).await), -32602);
        // An error is no task.
        let params = json!({ "name": "fail", "arguments": {}, "task": {} });
        let failed = request(&mut client, "tools/call", params).await;
        assert!(error_code(&failed).is_i64(), "{}", failed.raw);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_per_request_client_has_a_task_of_a_server_with_sessions() {
    pairs(HANDSHAKE, PER_REQUEST, async |testbed, mut client| {
        let declared = request(&mut client, "server/discover", json!({})).await;
        let capabilities = &declared.message["result"]["capabilities"];
        assert!(capabilities["extensions"][format!("{META}tasks")].is_object(), "{}", declared.raw);
        assert!(capabilities.get("tasks").is_none(), "{}", declared.raw);
        let tools = request(&mut client, "tools/list", json!({})).await;
        assert!(!tools.raw.contains("execution"), "{}", tools.raw);
        let created = testbed.endpoints[0].scripted.tasks.created();
        expect_text(&client.call("count", json!({})).await.unwrap(), "counted").unwrap();
        assert_eq!(testbed.endpoints[0].scripted.tasks.created(), created, "an optional task is a plain call");
        let id = call(&mut client, TASK_TOOL, "done").await;
        let done = wait_for(&mut client, &id, "completed").await;
        assert_eq!(done.message["result"]["result"]["content"][0]["text"], "done", "{}", done.raw);
        assert_eq!(done.message["result"]["taskId"], id);
        assert!(done.raw.contains(NUMBERS) && !done.raw.contains("related-task"), "{}", done.raw);
        let acknowledged = about(&mut client, "tasks/cancel", &id).await;
        assert_eq!(acknowledged.message["result"]["resultType"], "complete", "{}", acknowledged.raw);
        assert_eq!(status(&mut client, &id).await, "completed", "it had ended");
        let update = json!({ "taskId": id, "inputResponses": { "u1": {} } });
        assert!(request(&mut client, "tasks/update", update).await.message["result"].is_object());
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            for unknown in ["t é 1", "t.nothing"] {
                assert_eq!(*error_code(&about(&mut client, method, &json!(unknown)).await), -32602, "{method}");
            }
        }
        for method in ["tasks/list", "tasks/result"] {
            assert_eq!(*error_code(&about(&mut client, method, &id).await), -32601, "{method}");
        }
        client.capabilities["extensions"] = json!({});
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            assert_eq!(*error_code(&about(&mut client, method, &id).await), -32021, "{method}");
        }
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_per_request_client_gives_the_input_of_its_task() {
    pairs(HANDSHAKE, PER_REQUEST, async |_, mut client| {
        for kind in ["ask", "both", "aside"] {
            let id = call(&mut client, TASK_TOOL, kind).await;
            let mut asked = Vec::new();
            let expected = if kind == "both" { 2 } else { 1 };
            while asked.len() < expected {
                let polled = wait_for(&mut client, &id, "input_required").await;
                let open = polled.message["result"]["inputRequests"].as_object().unwrap().clone();
                let (key, input) = open.iter().find(|(key, _)| !asked.contains(*key)).unwrap();
                assert!(input["params"].get("_meta").is_none() && !open.is_empty(), "{}", polled.raw);
                let method = input["method"].as_str().unwrap();
                let answer = super::client::accept_server_request(method, &input["params"]).unwrap();
                // One answer for each update; an answer to nothing is ignored.
                let responses = json!({ key.clone(): answer, "unknown": {} });
                let update = json!({ "taskId": id, "inputResponses": responses });
                request(&mut client, "tasks/update", update).await;
                asked.push(key.clone());
            }
            let done = wait_for(&mut client, &id, "completed").await;
            let text = if kind == "both" { "accept Ada true" } else { "thoughts on bridges" };
            assert_eq!(done.message["result"]["result"]["content"][0]["text"], text, "{}", done.raw);
        }
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_per_request_client_cancels_its_task() {
    pairs(HANDSHAKE, PER_REQUEST, async |testbed, mut client| {
        let tasks = &testbed.endpoints[0].scripted.tasks;
        let cancels = tasks.cancel_count();
        let id = call(&mut client, TASK_TOOL, "hang").await;
        let acknowledged = about(&mut client, "tasks/cancel", &id).await;
        assert_eq!(acknowledged.message["result"]["resultType"], "complete", "{}", acknowledged.raw);
        assert_eq!(status(&mut client, &id).await, "cancelled");
        until("the server is told", || tasks.cancel_count() == cancels + 1).await.unwrap();
        about(&mut client, "tasks/cancel", &id).await;
        assert_eq!(status(&mut client, &id).await, "cancelled");
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn failed_tasks_fail_in_the_words_of_the_per_request_era() {
    pairs(HANDSHAKE, PER_REQUEST, async |_, mut client| {
        let id = call(&mut client, TASK_TOOL, "fail").await;
        let failed = wait_for(&mut client, &id, "failed").await;
        assert_eq!(failed.message["result"]["error"]["code"], 1234, "{}", failed.raw);
        assert!(failed.raw.contains(NUMBERS), "byte for byte: {}", failed.raw);
        let id = call(&mut client, TASK_TOOL, "wrong").await;
        let wrong = wait_for(&mut client, &id, "completed").await;
        assert_eq!(wrong.message["result"]["result"]["isError"], true, "{}", wrong.raw);
        let id = call(&mut client, TASK_TOOL, "forget").await;
        let forgotten = wait_for(&mut client, &id, "failed").await;
        assert!(forgotten.raw.contains("has lost the task"), "{}", forgotten.raw);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_listening_client_is_told_of_its_task() {
    pairs(HANDSHAKE, PER_REQUEST, async |_, mut client| {
        let id = call(&mut client, TASK_TOOL, "ask").await;
        let filter = json!({ "notifications": { "taskIds": [id, "t.nothing"] } });
        let listening = client.send("subscriptions/listen", filter).await.unwrap();
        let acknowledged = client.wait_for_notification("notifications/subscriptions/acknowledged").await.unwrap();
        assert_eq!(acknowledged["params"]["notifications"], json!({ "taskIds": [id] }));
        let mut answered = false;
        let done = loop {
            let told = client.wait_for_notification("notifications/tasks").await.unwrap()["params"].clone();
            assert_eq!((&told["taskId"], &told["_meta"][format!("{META}subscriptionId")]), (&id, &listening), "{told}");
            match told["status"].as_str().unwrap() {
                "working" => {}
                "input_required" if answered => {}
                "input_required" => {
                    let input = &told["inputRequests"]["u1"];
                    let method = input["method"].as_str().unwrap();
                    let answer = super::client::accept_server_request(method, &input["params"]).unwrap();
                    let update = json!({ "taskId": id, "inputResponses": { "u1": answer } });
                    request(&mut client, "tasks/update", update).await;
                    answered = true;
                }
                _ => break told,
            }
        };
        assert_eq!(done["result"]["content"][0]["text"], "thoughts on bridges", "{done}");
        client.cancel(&listening).await.unwrap();
        client.capabilities["extensions"] = json!({});
        let filter = json!({ "notifications": { "taskIds": [id] } });
        let refused = request(&mut client, "subscriptions/listen", filter).await;
        assert_eq!(*error_code(&refused), -32021, "{}", refused.raw);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_task_is_unknown_to_every_other_caller() {
    let tokens = ["ann=a".to_owned(), "bob=b".to_owned()];
    for server in [HTTP_2026_07, HTTP_2025_11, VARIANTS[4]] {
        let testbed =
            Testbed::with(&[server], |settings| settings.policy.tokens = Tokens::parse(&tokens).unwrap()).await;
        let variant = if server.is_per_request() { HTTP_2025_11 } else { HTTP_2026_07 };
        let connect = async |token| {
            with_tasks(Client::over_http(variant, testbed.rialto.address, server.name, Some(token)).await.unwrap())
        };
        let (mut ann, mut bob) = (connect("a").await, connect("b").await);
        let id = match server.is_per_request() {
            true => create(&mut ann, TASK_TOOL, "hang").await,
            false => call(&mut ann, TASK_TOOL, "hang").await,
        };
        let third = if server.is_per_request() { "tasks/result" } else { "tasks/update" };
        for method in ["tasks/get", "tasks/cancel", third] {
            let refused = about(&mut bob, method, &id).await;
            let unknown = about(&mut bob, method, &json!("t.nothing")).await;
            assert_eq!(refused.message["error"], unknown.message["error"], "{method}");
            assert_eq!(*error_code(&refused), -32602, "{method}");
        }
        // Another session of the same caller has the task.
        assert_eq!(status(&mut connect("a").await, &id).await, "working");
        about(&mut ann, "tasks/cancel", &id).await;
        testbed.close().await;
    }
}

#[tokio::test]
async fn a_held_task_ends_with_the_token_of_its_caller() {
    let tokens = ["ann=a".to_owned(), "bob=b".to_owned()];
    let server = HTTP_2025_11;
    let testbed = Testbed::with(&[server], |settings| settings.policy.tokens = Tokens::parse(&tokens).unwrap()).await;
    let client = Client::over_http(HTTP_2026_07, testbed.rialto.address, server.name, Some("a")).await.unwrap();
    call(&mut with_tasks(client), TASK_TOOL, "hang").await;
    let held = || testbed.rialto.inbound.sessions.quotas().parked_calls.used();
    assert_eq!(held(), 1);
    let policy = Policy { tokens: Tokens::parse(&tokens[1..]).unwrap(), ..Policy::default() };
    testbed.rialto.inbound.set_policy(policy);
    crate::harness::until("the task is forgotten", || held() == 0).await;
    testbed.close().await;
}

#[tokio::test]
async fn a_server_that_dies_fails_its_tasks() {
    for server in [HTTP_2026_07, VARIANTS[6], HTTP_2025_11, VARIANTS[4]] {
        let testbed = Testbed::open(&[server]).await;
        let variant = if server.is_per_request() { HTTP_2025_11 } else { HTTP_2026_07 };
        let mut client = client(&testbed, variant, server.name).await;
        if server.is_per_request() {
            let id = create(&mut client, TASK_TOOL, "die").await;
            let lost = about(&mut client, "tasks/result", &id).await;
            assert_eq!(*error_code(&lost), -32603, "{}", lost.raw);
            let lost = about(&mut client, "tasks/get", &id).await;
            assert_eq!(*error_code(&lost), -32603, "{}", lost.raw);
        } else {
            let id = call(&mut client, TASK_TOOL, "die").await;
            let failed = wait_for(&mut client, &id, "failed").await;
            assert_eq!(failed.message["result"]["error"]["code"], -32603, "{}", failed.raw);
        }
    }
}

#[tokio::test]
async fn tasks_cross_the_eras_in_a_group_of_several_servers() {
    let testbed = Testbed::open(&[HTTP_2025_11, HTTP_2026_07]).await;
    let name = |server: Variant| format!("{}__{TASK_TOOL}", server.name);
    let mut session = client(&testbed, HTTP_2025_11, ALL).await;
    assert!(session.server_capabilities["tasks"]["requests"]["tools"]["call"].is_object());
    let id = create(&mut session, &name(HTTP_2026_07), "both").await;
    let result = about(&mut session, "tasks/result", &id).await;
    expect_text(&result, "accept Ada true").unwrap();
    assert_eq!(status(&mut session, &id).await, "completed");
    // The task of the server with sessions is driven: the tool is not listed as one with tasks.
    let tools = request(&mut session, "tools/list", json!({})).await;
    for tool in tools.message["result"]["tools"].as_array().unwrap() {
        let is_bridged = tool["name"].as_str().unwrap().starts_with(HTTP_2026_07.name);
        assert_eq!(tool.get("execution").is_some(), is_bridged, "{tool}");
    }
    let mut per_request = client(&testbed, HTTP_2026_07, ALL).await;
    let bridged = call(&mut per_request, &name(HTTP_2025_11), "done").await;
    wait_for(&mut per_request, &bridged, "completed").await;
    let own = call(&mut per_request, &name(HTTP_2026_07), "done").await;
    wait_for(&mut per_request, &own, "completed").await;
    testbed.close().await;
}

#[tokio::test]
async fn without_room_no_task_is_held() {
    for server in [HTTP_2026_07, HTTP_2025_11] {
        let testbed = Testbed::with(&[server], |settings| settings.quotas.parked_calls_per_caller = 0).await;
        let variant = if server.is_per_request() { HTTP_2025_11 } else { HTTP_2026_07 };
        let mut client = client(&testbed, variant, server.name).await;
        if server.is_per_request() {
            let params = json!({ "name": "count", "arguments": {}, "task": {} });
            let refused = request(&mut client, "tools/call", params).await;
            assert_eq!(refused.message["error"]["data"]["mayHaveRun"], false, "{}", refused.raw);
            assert_eq!(testbed.endpoints[0].scripted.call_count("count"), 0);
        } else {
            expect_text(&client.call(TASK_TOOL, json!({ "kind": "done" })).await.unwrap(), "done").unwrap();
        }
        testbed.close().await;
    }
}

/// A node of a cluster in front of one server.
async fn node(store: &Arc<dyn ClusterStore>, name: &str, endpoint: &ServerEndpoint) -> Rialto {
    let groups = groups(&[endpoint.scripted.variant]);
    let config = GatewayConfig { upstreams: vec![endpoint.spec()], groups };
    node_with(store, name, |settings| settings.gateway = config).await
}

#[tokio::test]
async fn every_node_answers_for_a_task() {
    for server in [HTTP_2026_07, HTTP_2025_11, VARIANTS[4]] {
        let endpoint = ServerEndpoint::open(server).await;
        let store: Arc<dyn ClusterStore> = MemoryStore::new();
        let (mut a, b) = (node(&store, "a", &endpoint).await, node(&store, "b", &endpoint).await);
        let variant = if server.is_per_request() { HTTP_2025_11 } else { HTTP_2026_07 };
        let connect = async |node: &Rialto| {
            with_tasks(Client::over_http(variant, node.address, server.name, None).await.unwrap())
        };
        let (mut at_a, mut at_b) = (connect(&a).await, connect(&b).await);
        let id = match server.is_per_request() {
            true => create(&mut at_a, TASK_TOOL, "hang").await,
            false => call(&mut at_a, TASK_TOOL, "hang").await,
        };
        for client in [&mut at_a, &mut at_b] {
            assert_eq!(status(client, &id).await, "working", "{server:?}");
        }
        if server.is_per_request() {
            a.begin_stop();
            assert!(a.stopped().await);
            assert_eq!(status(&mut at_b, &id).await, "working", "the server has the task");
            assert_eq!(about(&mut at_b, "tasks/cancel", &id).await.message["result"]["status"], "cancelled");
            continue;
        }
        let filter = json!({ "notifications": { "taskIds": [id] } });
        let mut listener = connect(&b).await;
        listener.send("subscriptions/listen", filter).await.unwrap();
        let acknowledged = listener.wait_for_notification("notifications/subscriptions/acknowledged").await.unwrap();
        assert_eq!(acknowledged["params"]["notifications"], json!({ "taskIds": [id] }));
        about(&mut at_b, "tasks/cancel", &id).await;
        assert_eq!(status(&mut at_a, &id).await, "cancelled");
        let mut told = Value::Null;
        while told != "cancelled" {
            told = listener.wait_for_notification("notifications/tasks").await.unwrap()["params"]["status"].clone();
        }
        // What a node held is lost with it.
        let id = call(&mut at_a, TASK_TOOL, "hang").await;
        a.begin_stop();
        assert!(a.stopped().await);
        assert_eq!(*error_code(&about(&mut at_b, "tasks/get", &id).await), -32602);
        let cancels = || endpoint.scripted.tasks.cancel_count() == 2;
        until("the server is told", cancels).await.unwrap();
    }
}
