//! Calls that become tasks at the server: clients without task support get plain results, clients with it get the task.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Client, Response};
use super::feature_checks::{expect_text, until};
use super::handlers::{NUMBERS, raw_member};
use super::scripted_server::{META, ScriptedServer};
use super::scripted_tasks::{ScriptedTasks, TASK_TOOL};
use super::variants::{HTTP_2025_11, HTTP_2026_07, Transport, VARIANTS, Variant};
use super::{ALL, Testbed};
use rialto::gateway::ParkingTimeouts;

/// The server variants with tasks, over HTTP and stdio.
pub fn servers() -> [Variant; 4] {
    let stdio = |other: Variant| {
        let same = |variant: &Variant| variant.revision == other.revision && variant.transport == Transport::Stdio;
        VARIANTS.into_iter().find(same).unwrap()
    };
    [HTTP_2025_11, stdio(HTTP_2025_11), HTTP_2026_07, stdio(HTTP_2026_07)]
}

/// The HTTP client variant of the other era.
fn other_era(server: Variant) -> Variant {
    if server.is_per_request() { HTTP_2025_11 } else { HTTP_2026_07 }
}

fn scripted(testbed: &Testbed) -> &ScriptedServer {
    &testbed.endpoints[0].scripted
}

fn scripted_tasks(testbed: &Testbed) -> &ScriptedTasks {
    &scripted(testbed).tasks
}

async fn client(testbed: &Testbed, variant: Variant, server: Variant) -> Client {
    Client::over_http(variant, testbed.rialto.address, server.name, None).await.unwrap()
}

async fn eventually(what: &str, holds: impl FnMut() -> bool) {
    until(what, holds).await.unwrap();
}

async fn run(client: &mut Client, kind: &str) -> Response {
    client.call(TASK_TOOL, json!({ "kind": kind })).await.unwrap()
}

/// Checks that neither response nor notifications mention a task.
fn assert_no_task_visible(client: &Client, answer: &Response) {
    let has_status = client.has_notification("notifications/tasks/status");
    let mentions_task = ["related-task", "taskId", "pollInterval"].iter().any(|word| answer.raw.contains(word));
    assert!(!has_status && !mentions_task, "{}", answer.raw);
    for (method, params) in &answer.server_requests {
        assert!(params["_meta"].get(format!("{META}related-task")).is_none(), "{method} {params}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_tasks_get_a_plain_result_and_server_requests() {
    for server in servers() {
        let testbed = Testbed::open(&[server]).await;
        for variant in VARIANTS.into_iter().filter(|variant| !(variant.is_per_request() && server.is_per_request())) {
            let mut client = testbed.client(variant, server.name).await.unwrap();
            let context = format!("{} → {}", variant.label(), server.label());
            let made = scripted_tasks(&testbed).created();
            let answer = run(&mut client, "done").await;
            expect_text(&answer, "done").unwrap_or_else(|why| panic!("{context}: {why}"));
            assert_no_task_visible(&client, &answer);
            let structured = variant.revision >= VARIANTS[2].revision;
            assert_eq!(answer.raw.contains(NUMBERS), structured, "{context}: byte for byte");
            let answer = run(&mut client, "ask").await;
            expect_text(&answer, "thoughts on bridges").unwrap_or_else(|why| panic!("{context}: {why}"));
            assert_eq!(answer.server_requests.len(), 1, "{context}: {:?}", answer.server_requests);
            assert_no_task_visible(&client, &answer);
            if client.capabilities["elicitation"].is_object() {
                let answer = run(&mut client, "both").await;
                expect_text(&answer, "accept Ada true").unwrap_or_else(|why| panic!("{context}: {why}"));
                assert_eq!(answer.server_requests.len(), 2, "{context}: {:?}", answer.server_requests);
            }
            assert_eq!(scripted_tasks(&testbed).cancel_count(), 0, "{context}");
            assert!(scripted_tasks(&testbed).created() >= made + 2, "{context}");
            client.close().await.unwrap();
        }
        testbed.close().await;
    }
}

#[tokio::test]
async fn task_failures_become_call_errors() {
    for server in servers() {
        let testbed = Testbed::open(&[server]).await;
        let mut client = client(&testbed, other_era(server), server).await;
        let failed = run(&mut client, "fail").await;
        assert_eq!(failed.message["error"]["code"], 1234, "{}", failed.raw);
        assert_eq!(failed.message["error"]["message"], "on purpose");
        assert_eq!(raw_member(raw_member(&failed.raw, "error").unwrap(), "data"), Some(NUMBERS), "byte for byte");
        let wrong = run(&mut client, "wrong").await;
        assert_eq!(wrong.message["result"]["isError"], true, "{}", wrong.raw);
        assert_no_task_visible(&client, &wrong);
        let stopped = run(&mut client, "stopped").await;
        assert_eq!(stopped.message["error"]["code"], -32603, "{}", stopped.raw);
        assert!(stopped.raw.contains("cancelled the task: no time"), "{}", stopped.raw);
        let forgotten = run(&mut client, "forget").await;
        assert_eq!(forgotten.message["error"]["code"], -32603, "{}", forgotten.raw);
        assert!(forgotten.raw.contains("has lost the task: Task not found"), "{}", forgotten.raw);
        assert_eq!(scripted_tasks(&testbed).cancel_count(), 0, "all tasks had ended");
        testbed.close().await;
    }
}

#[tokio::test]
async fn cancellation_of_a_call_cancels_its_task() {
    for server in servers() {
        for variant in [other_era(server), HTTP_2025_11] {
            let testbed = Testbed::open(&[server]).await;
            let mut client = client(&testbed, variant, server).await;
            let id =
                client.send("tools/call", json!({ "name": TASK_TOOL, "arguments": { "kind": "hang" } })).await.unwrap();
            eventually("the task is polled", || scripted_tasks(&testbed).poll_count() > 1).await;
            client.cancel(&id).await.unwrap();
            eventually("the task is cancelled", || scripted_tasks(&testbed).cancel_count() == 1).await;
            let polls = scripted_tasks(&testbed).poll_count();
            client.check_silent(&id).await.unwrap();
            expect_text(&client.call("count", json!({})).await.unwrap(), "counted").unwrap();
            assert!(scripted_tasks(&testbed).poll_count() <= polls + 1, "polling has stopped");
            assert_eq!(scripted_tasks(&testbed).cancel_count(), 1);
            drop(client);
            testbed.close().await;
        }
    }
}

#[tokio::test]
async fn cancellation_before_the_task_exists_cancels_it_later() {
    for server in servers().into_iter().filter(|server| !server.is_per_request()) {
        let testbed = Testbed::open(&[server]).await;
        let mut client = client(&testbed, HTTP_2026_07, server).await;
        let id =
            client.send("tools/call", json!({ "name": TASK_TOOL, "arguments": { "kind": "slow" } })).await.unwrap();
        eventually("the task is created", || scripted_tasks(&testbed).created() == 1).await;
        client.cancel(&id).await.unwrap();
        eventually("no call is in flight", || testbed.rialto.inbound.gateway.upstreams()[0].calls_in_flight() == 0)
            .await;
        assert_eq!(scripted_tasks(&testbed).cancel_count(), 0, "its task id is not known yet");
        scripted(&testbed).release.notify_one();
        eventually("the task is cancelled", || scripted_tasks(&testbed).cancel_count() == 1).await;
        testbed.close().await;
    }
}

#[tokio::test]
async fn closing_a_session_cancels_its_task() {
    for server in servers() {
        let testbed = Testbed::open(&[server]).await;
        let mut client = client(&testbed, HTTP_2025_11, server).await;
        client.send("tools/call", json!({ "name": TASK_TOOL, "arguments": { "kind": "hang" } })).await.unwrap();
        eventually("the task is polled", || scripted_tasks(&testbed).poll_count() > 0).await;
        client.close().await.unwrap();
        eventually("the task is cancelled", || scripted_tasks(&testbed).cancel_count() == 1).await;
        testbed.close().await;
    }
}

#[tokio::test]
async fn an_input_timeout_ends_the_task() {
    let short = Duration::from_secs(3);
    for server in servers().into_iter().filter(|server| !server.is_per_request()) {
        let testbed = Testbed::with(&[server], |settings| {
            settings.parking = ParkingTimeouts { elicitation_timeout: short, sampling_timeout: short };
        })
        .await;
        let mut client = client(&testbed, HTTP_2026_07, server).await;
        let id =
            client.send("tools/call", json!({ "name": TASK_TOOL, "arguments": { "kind": "both" } })).await.unwrap();
        let input_required = client.response(&id).await.unwrap();
        assert_eq!(
            input_required.message["result"]["inputRequests"].as_object().map(|all| all.len()),
            Some(2),
            "{}",
            input_required.raw
        );
        assert_eq!((testbed.rialto.inbound.gateway.parked_calls(), scripted_tasks(&testbed).open_count()), (1, 1));
        // One input request is cancelled and one refused, so the task ends by itself or is cancelled.
        eventually("no call is parked", || testbed.rialto.inbound.gateway.parked_calls() == 0).await;
        eventually("no call is in flight", || testbed.rialto.inbound.gateway.upstreams()[0].calls_in_flight() == 0)
            .await;
        eventually("the task has ended", || scripted_tasks(&testbed).open_count() == 0).await;
        testbed.close().await;
    }
}

#[tokio::test]
async fn a_refused_server_request_ends_the_task() {
    for server in servers() {
        let testbed = Testbed::open(&[server]).await;
        let mut client = client(&testbed, HTTP_2025_11, server).await;
        client.on_server_request = Box::new(|_, _| Err(-1));
        let refused = run(&mut client, "ask").await;
        assert_eq!(refused.message["result"]["isError"], true, "{}", refused.raw);
        let text = refused.message["result"]["content"][0]["text"].as_str().unwrap();
        if server.is_per_request() {
            assert!(text.starts_with("the client did not answer"), "{text}");
            eventually("the task is cancelled", || scripted_tasks(&testbed).cancel_count() == 1).await;
        } else {
            assert_eq!(text, "the client refused: -1");
        }
        testbed.close().await;
    }
}

#[tokio::test]
async fn the_poll_interval_of_a_task_is_clamped() {
    for server in [HTTP_2025_11, HTTP_2026_07] {
        let testbed = Testbed::with(&[server], |settings| {
            settings.gateway.upstreams[0].settings.idle_timeout = Duration::from_millis(500);
        })
        .await;
        let mut client = client(&testbed, other_era(server), server).await;
        for poll_interval in
            [json!(0), json!(-5), json!(1e300), json!("soon"), json!(null), json!(0.5), json!(3_600_000)]
        {
            let (started, polls) = (Instant::now(), scripted_tasks(&testbed).poll_count());
            let answer = client.call(TASK_TOOL, json!({ "kind": "done", "pace": poll_interval })).await.unwrap();
            expect_text(&answer, "done").unwrap_or_else(|why| panic!("{poll_interval}: {why}"));
            assert_eq!(scripted_tasks(&testbed).poll_count() - polls, 2, "{poll_interval}");
            assert!(started.elapsed() >= Duration::from_millis(200), "{poll_interval}: polled too fast");
        }
        testbed.close().await;
    }
}

#[tokio::test]
async fn the_total_timeout_cancels_a_task() {
    for server in servers() {
        let testbed = Testbed::with(&[server], |settings| {
            settings.gateway.upstreams[0].settings.total_timeout = Duration::from_secs(3);
        })
        .await;
        let mut client = client(&testbed, other_era(server), server).await;
        let late = run(&mut client, "hang").await;
        assert!(late.raw.contains("did not finish within"), "{}", late.raw);
        eventually("the task is cancelled", || scripted_tasks(&testbed).cancel_count() == 1).await;
        assert!(scripted_tasks(&testbed).poll_count() > 2);
        testbed.close().await;
    }
}

#[tokio::test]
async fn a_server_lost_during_a_task_fails_the_call() {
    for server in servers() {
        let testbed = Testbed::open(&[server]).await;
        let mut client = client(&testbed, other_era(server), server).await;
        let lost = run(&mut client, "die").await;
        assert_eq!(lost.message["error"]["code"], -32603, "{}", lost.raw);
        assert!(lost.raw.contains("may have been carried out"), "{}", lost.raw);
    }
}

#[tokio::test]
async fn a_server_request_on_the_get_stream_reaches_the_task_it_names() {
    for server in servers().into_iter().filter(|server| !server.is_per_request()) {
        let testbed = Testbed::open(&[server]).await;
        for variant in [HTTP_2026_07, VARIANTS[2]] {
            let mut client = client(&testbed, variant, server).await;
            // A second running call, so that only the related-task id identifies the call.
            let calls_before = scripted(&testbed).call_count("hang");
            client.send("tools/call", json!({ "name": "hang" })).await.unwrap();
            eventually("the second call is running", || scripted(&testbed).call_count("hang") > calls_before).await;
            let answer = run(&mut client, "aside").await;
            expect_text(&answer, "thoughts on bridges").unwrap_or_else(|why| panic!("{variant:?} {server:?} {why}"));
            assert_no_task_visible(&client, &answer);
            drop(client);
        }
        assert_eq!(scripted(&testbed).take_violations(), Vec::<String>::new());
    }
}

/// Both sides speak the per-request era.
#[tokio::test]
async fn per_request_tasks_pass_through_to_clients_with_the_extension() {
    for server in servers().into_iter().filter(|server| server.is_per_request()) {
        let testbed = Testbed::open(&[server]).await;
        let mut client = client(&testbed, HTTP_2026_07, server).await;
        let refused = run(&mut client, "done").await;
        assert_eq!(refused.message["error"]["code"], -32021, "{}", refused.raw);
        let needed = &refused.message["error"]["data"]["requiredCapabilities"]["extensions"];
        assert!(needed[format!("{META}tasks")].is_object(), "{}", refused.raw);
        // A task that the server creates without the extension is driven to its end.
        expect_text(&run(&mut client, "unasked").await, "done").unwrap();
        client.capabilities["extensions"] = json!({ format!("{META}tasks"): {} });
        let task = run(&mut client, "ask").await;
        assert_eq!(task.message["result"]["resultType"], "task", "{}", task.raw);
        let params = json!({ "taskId": task.message["result"]["taskId"] });
        let polls = scripted_tasks(&testbed).poll_count();
        client.request("tasks/get", params.clone()).await.unwrap();
        let polled = client.request("tasks/get", params.clone()).await.unwrap();
        assert_eq!(polled.message["result"]["status"], "input_required", "{}", polled.raw);
        let answers =
            json!({ "think": { "role": "assistant", "model": "none", "content": { "type": "text", "text": "hm" } } });
        let update = json!({ "taskId": task.message["result"]["taskId"], "inputResponses": answers });
        client.request("tasks/update", update).await.unwrap();
        let done = client.request("tasks/get", params).await.unwrap();
        assert_eq!(done.message["result"]["result"]["content"][0]["text"], "hm", "{}", done.raw);
        assert_eq!(scripted_tasks(&testbed).poll_count(), polls + 3, "the gateway does not poll");
        testbed.close().await;
    }
}

#[tokio::test]
async fn notifications_of_per_request_tasks_pass_through_to_listeners() {
    for server in servers().into_iter().filter(|server| server.is_per_request()) {
        let testbed = Testbed::open(&[server, HTTP_2025_11]).await;
        for (group, tool) in [(server.name, TASK_TOOL.to_owned()), (ALL, format!("{}__{TASK_TOOL}", server.name))] {
            let mut client = Client::over_http(HTTP_2026_07, testbed.rialto.address, group, None).await.unwrap();
            client.capabilities["extensions"] = json!({ format!("{META}tasks"): {} });
            let task = client.call(&tool, json!({ "kind": "done" })).await.unwrap();
            let id = task.message["result"]["taskId"].clone();
            let filter = json!({ "notifications": { "taskIds": [id] } });
            let listening = client.send("subscriptions/listen", filter).await.unwrap();
            let acknowledged = client.wait_for_notification("notifications/subscriptions/acknowledged").await.unwrap();
            assert_eq!(acknowledged["params"]["notifications"], json!({ "taskIds": [id] }), "{group}");
            for _ in 0..2 {
                client.request("tasks/get", json!({ "taskId": id })).await.unwrap();
            }
            let told = client.wait_for_notification("notifications/tasks").await.unwrap();
            let params = &told["params"];
            assert_eq!((&params["taskId"], &params["status"]), (&id, &json!("completed")), "{told}");
            assert_eq!(params["result"]["content"][0]["text"], "done", "{told}");
            assert_eq!(params["_meta"][format!("{META}subscriptionId")], listening, "{told}");
            client.cancel(&listening).await.unwrap();
        }
        testbed.close().await;
    }
}

#[tokio::test]
async fn handshake_tasks_pass_through_to_clients_that_request_them() {
    for server in servers().into_iter().filter(|server| !server.is_per_request()) {
        let testbed = Testbed::open(&[server]).await;
        let mut client = client(&testbed, HTTP_2025_11, server).await;
        let params = json!({ "name": TASK_TOOL, "arguments": { "kind": "done" }, "task": { "ttl": 1000 } });
        let task = client.request("tools/call", params).await.unwrap();
        let id = task.message["result"]["task"]["taskId"].clone();
        assert!(id.is_string(), "{}", task.raw);
        let states: Vec<Value> = vec![
            client.request("tasks/get", json!({ "taskId": id })).await.unwrap().message["result"]["status"].clone(),
            client.request("tasks/get", json!({ "taskId": id })).await.unwrap().message["result"]["status"].clone(),
        ];
        assert_eq!(states, ["working", "completed"]);
        client.wait_for_notification("notifications/tasks/status").await.unwrap();
        client.capabilities["extensions"] = json!({ format!("{META}tasks"): {} }); // accepts related-task in results
        let result = client.request("tasks/result", json!({ "taskId": id })).await.unwrap();
        expect_text(&result, "done").unwrap();
        assert_eq!(result.message["result"]["_meta"][format!("{META}related-task")]["taskId"], id);
        assert_eq!(scripted_tasks(&testbed).poll_count(), 2, "the gateway does not poll");
        testbed.close().await;
    }
}

#[tokio::test]
async fn a_task_param_is_dropped_where_tasks_were_not_negotiated() {
    for variant in [HTTP_2026_07, VARIANTS[2]] {
        let testbed = Testbed::open(&[HTTP_2025_11]).await;
        let mut client = client(&testbed, variant, HTTP_2025_11).await;
        // The scripted server reports a violation if it gets `task` for a tool without tasks.
        let params = json!({ "name": "count", "arguments": {}, "task": { "ttl": 7 } });
        expect_text(&client.request("tools/call", params).await.unwrap(), "counted").unwrap();
        let params = json!({ "name": TASK_TOOL, "arguments": { "kind": "done" }, "task": "mine" });
        expect_text(&client.request("tools/call", params).await.unwrap(), "done").unwrap();
        testbed.close().await;
    }
}

#[tokio::test]
async fn tasks_are_driven_under_mapped_names_in_a_group() {
    let testbed = Testbed::open(&[HTTP_2025_11, HTTP_2026_07]).await;
    for variant in [HTTP_2025_11, VARIANTS[2], HTTP_2026_07] {
        let mut client = Client::over_http(variant, testbed.rialto.address, ALL, None).await.unwrap();
        for server in [HTTP_2025_11, HTTP_2026_07] {
            if variant.is_per_request() && server.is_per_request() {
                continue;
            }
            let answer = client.call(&format!("{}__{TASK_TOOL}", server.name), json!({ "kind": "ask" })).await.unwrap();
            expect_text(&answer, "thoughts on bridges").unwrap_or_else(|why| panic!("{variant:?} {server:?} {why}"));
            assert_no_task_visible(&client, &answer);
        }
    }
    testbed.close().await;
}
