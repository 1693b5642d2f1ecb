//! Calls that become tasks: clients that know nothing of tasks get plain results, and those that
//! share them with the server have them as they are.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::acts::{NUMBERS, member};
use super::client::{Answer, Client};
use super::features::{says, until};
use super::forms::{FORMS, Form, HTTP_2025_11, HTTP_2026_07, Transport};
use super::jobs::{JOB, Jobs};
use super::puppet::{META, Puppet};
use super::{ALL, Scene};
use rialto::gateway::ParkingLimits;

/// The servers that have tasks, over each transport.
fn servers() -> [Form; 4] {
    let stdio = |other: Form| {
        let same = |form: &Form| form.revision == other.revision && form.transport == Transport::Stdio;
        FORMS.into_iter().find(same).unwrap()
    };
    [HTTP_2025_11, stdio(HTTP_2025_11), HTTP_2026_07, stdio(HTTP_2026_07)]
}

/// A client of the other era than the server's, over HTTP.
fn other(server: Form) -> Form {
    if server.is_per_request() { HTTP_2025_11 } else { HTTP_2026_07 }
}

fn puppet(scene: &Scene) -> &Puppet {
    &scene.stages[0].puppet
}

fn jobs(scene: &Scene) -> &Jobs {
    &puppet(scene).jobs
}

async fn client(scene: &Scene, form: Form, server: Form) -> Client {
    Client::over_http(form, scene.rialto.address, server.name, None).await.unwrap()
}

async fn eventually(what: &str, holds: impl FnMut() -> bool) {
    until(what, holds).await.unwrap();
}

async fn run(client: &mut Client, kind: &str) -> Answer {
    client.call(JOB, json!({ "kind": kind })).await.unwrap()
}

/// That nothing of the task is to be seen.
fn is_plain(client: &Client, answer: &Answer) {
    let told = client.has_heard("notifications/tasks/status");
    let seen = ["related-task", "taskId", "pollInterval"].iter().any(|word| answer.raw.contains(word));
    assert!(!told && !seen, "{}", answer.raw);
    for (method, params) in &answer.asked {
        assert!(params["_meta"].get(format!("{META}related-task")).is_none(), "{method} {params}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_tasks_get_a_plain_result_and_server_requests() {
    for server in servers() {
        let scene = Scene::open(&[server]).await;
        for form in FORMS.into_iter().filter(|form| !(form.is_per_request() && server.is_per_request())) {
            let mut client = scene.client(form, server.name).await.unwrap();
            let context = format!("{} → {}", form.words(), server.words());
            let made = jobs(&scene).made();
            let answer = run(&mut client, "done").await;
            says(&answer, "done").unwrap_or_else(|why| panic!("{context}: {why}"));
            is_plain(&client, &answer);
            let structured = form.revision >= FORMS[2].revision;
            assert_eq!(answer.raw.contains(NUMBERS), structured, "{context}: to the letter");
            let answer = run(&mut client, "ask").await;
            says(&answer, "thoughts on bridges").unwrap_or_else(|why| panic!("{context}: {why}"));
            assert_eq!(answer.asked.len(), 1, "{context}: {:?}", answer.asked);
            is_plain(&client, &answer);
            if client.capabilities["elicitation"].is_object() {
                let answer = run(&mut client, "both").await;
                says(&answer, "accept Ada true").unwrap_or_else(|why| panic!("{context}: {why}"));
                assert_eq!(answer.asked.len(), 2, "{context}: {:?}", answer.asked);
            }
            assert_eq!(jobs(&scene).cancels(), 0, "{context}");
            assert!(jobs(&scene).made() >= made + 2, "{context}");
            client.close().await.unwrap();
        }
        scene.close().await;
    }
}

#[tokio::test]
async fn task_failures_become_call_errors() {
    for server in servers() {
        let scene = Scene::open(&[server]).await;
        let mut client = client(&scene, other(server), server).await;
        let failed = run(&mut client, "fail").await;
        assert_eq!(failed.message["error"]["code"], 1234, "{}", failed.raw);
        assert_eq!(failed.message["error"]["message"], "on purpose");
        assert_eq!(member(member(&failed.raw, "error").unwrap(), "data"), Some(NUMBERS), "to the letter");
        let wrong = run(&mut client, "wrong").await;
        assert_eq!(wrong.message["result"]["isError"], true, "{}", wrong.raw);
        is_plain(&client, &wrong);
        let stopped = run(&mut client, "stopped").await;
        assert_eq!(stopped.message["error"]["code"], -32603, "{}", stopped.raw);
        assert!(stopped.raw.contains("cancelled the task: no time"), "{}", stopped.raw);
        let forgotten = run(&mut client, "forget").await;
        assert_eq!(forgotten.message["error"]["code"], -32603, "{}", forgotten.raw);
        assert!(forgotten.raw.contains("has lost the task: Task not found"), "{}", forgotten.raw);
        assert_eq!(jobs(&scene).cancels(), 0, "all of them were over");
        scene.close().await;
    }
}

#[tokio::test]
async fn cancellation_of_a_call_cancels_its_task() {
    for server in servers() {
        for form in [other(server), HTTP_2025_11] {
            let scene = Scene::open(&[server]).await;
            let mut client = client(&scene, form, server).await;
            let id = client.send("tools/call", json!({ "name": JOB, "arguments": { "kind": "hang" } })).await.unwrap();
            eventually("it is asked for", || jobs(&scene).polls() > 1).await;
            client.cancel(&id).await.unwrap();
            eventually("it is cancelled", || jobs(&scene).cancels() == 1).await;
            let polls = jobs(&scene).polls();
            client.is_quiet_about(&id).await.unwrap();
            says(&client.call("count", json!({})).await.unwrap(), "counted").unwrap();
            assert!(jobs(&scene).polls() <= polls + 1, "nobody asks any more");
            assert_eq!(jobs(&scene).cancels(), 1);
            drop(client);
            scene.close().await;
        }
    }
}

#[tokio::test]
async fn cancellation_before_the_task_exists_cancels_it_later() {
    for server in servers().into_iter().filter(|server| !server.is_per_request()) {
        let scene = Scene::open(&[server]).await;
        let mut client = client(&scene, HTTP_2026_07, server).await;
        let id = client.send("tools/call", json!({ "name": JOB, "arguments": { "kind": "slow" } })).await.unwrap();
        eventually("it is made", || jobs(&scene).made() == 1).await;
        client.cancel(&id).await.unwrap();
        eventually("nobody works on it", || scene.rialto.inbound.gateway.upstreams()[0].calls_in_flight() == 0).await;
        assert_eq!(jobs(&scene).cancels(), 0, "nobody knows its name yet");
        puppet(&scene).release.notify_one();
        eventually("it is cancelled", || jobs(&scene).cancels() == 1).await;
        scene.close().await;
    }
}

#[tokio::test]
async fn closing_a_session_cancels_its_task() {
    for server in servers() {
        let scene = Scene::open(&[server]).await;
        let mut client = client(&scene, HTTP_2025_11, server).await;
        client.send("tools/call", json!({ "name": JOB, "arguments": { "kind": "hang" } })).await.unwrap();
        eventually("it is asked for", || jobs(&scene).polls() > 0).await;
        client.close().await.unwrap();
        eventually("it is cancelled", || jobs(&scene).cancels() == 1).await;
        scene.close().await;
    }
}

#[tokio::test]
async fn an_input_timeout_ends_the_task() {
    let short = Duration::from_millis(300);
    for server in servers().into_iter().filter(|server| !server.is_per_request()) {
        let scene = Scene::with(&[server], |settings| {
            settings.holding =
                ParkingLimits { elicitation_timeout: short, sampling_timeout: short, ..ParkingLimits::default() };
        })
        .await;
        let mut client = client(&scene, HTTP_2026_07, server).await;
        let id = client.send("tools/call", json!({ "name": JOB, "arguments": { "kind": "both" } })).await.unwrap();
        let asked = client.response(&id).await.unwrap();
        assert_eq!(asked.message["result"]["inputRequests"].as_object().map(|all| all.len()), Some(2), "{}", asked.raw);
        assert_eq!((scene.rialto.inbound.gateway.parked_calls(), jobs(&scene).open()), (1, 1));
        // One is cancelled and the other refused, so that the task ends by itself or is ended.
        eventually("nothing is held", || scene.rialto.inbound.gateway.parked_calls() == 0).await;
        eventually("nobody works on it", || scene.rialto.inbound.gateway.upstreams()[0].calls_in_flight() == 0).await;
        eventually("it is over", || jobs(&scene).open() == 0).await;
        scene.close().await;
    }
}

#[tokio::test]
async fn a_refused_server_request_ends_the_task() {
    for server in servers() {
        let scene = Scene::open(&[server]).await;
        let mut client = client(&scene, HTTP_2025_11, server).await;
        client.answering = Box::new(|_, _| Err(-1));
        let refused = run(&mut client, "ask").await;
        assert_eq!(refused.message["result"]["isError"], true, "{}", refused.raw);
        let text = refused.message["result"]["content"][0]["text"].as_str().unwrap();
        if server.is_per_request() {
            assert!(text.starts_with("the client did not answer"), "{text}");
            eventually("its task is cancelled", || jobs(&scene).cancels() == 1).await;
        } else {
            assert_eq!(text, "the client refused: -1");
        }
        scene.close().await;
    }
}

#[tokio::test]
async fn the_poll_interval_of_a_task_is_clamped() {
    for server in [HTTP_2025_11, HTTP_2026_07] {
        let scene = Scene::with(&[server], |settings| {
            settings.layout.upstreams[0].settings.idle_timeout = Duration::from_millis(500);
        })
        .await;
        let mut client = client(&scene, other(server), server).await;
        for pace in [json!(0), json!(-5), json!(1e300), json!("soon"), json!(null), json!(0.5), json!(3_600_000)] {
            let (begun, polls) = (Instant::now(), jobs(&scene).polls());
            let answer = client.call(JOB, json!({ "kind": "done", "pace": pace })).await.unwrap();
            says(&answer, "done").unwrap_or_else(|why| panic!("{pace}: {why}"));
            assert_eq!(jobs(&scene).polls() - polls, 2, "{pace}");
            assert!(begun.elapsed() >= Duration::from_millis(200), "{pace}: that was too fast");
        }
        scene.close().await;
    }
}

#[tokio::test]
async fn the_total_timeout_cancels_a_task() {
    for server in servers() {
        let scene = Scene::with(&[server], |settings| {
            settings.layout.upstreams[0].settings.total_timeout = Duration::from_millis(700);
        })
        .await;
        let mut client = client(&scene, other(server), server).await;
        let late = run(&mut client, "hang").await;
        assert!(late.raw.contains("did not answer in time"), "{}", late.raw);
        eventually("it is cancelled", || jobs(&scene).cancels() == 1).await;
        assert!(jobs(&scene).polls() > 2);
        scene.close().await;
    }
}

#[tokio::test]
async fn a_server_lost_during_a_task_fails_the_call() {
    for server in servers() {
        let scene = Scene::open(&[server]).await;
        let mut client = client(&scene, other(server), server).await;
        let lost = run(&mut client, "die").await;
        assert_eq!(lost.message["error"]["code"], -32603, "{}", lost.raw);
        assert!(lost.raw.contains("may or may not have been carried out"), "{}", lost.raw);
    }
}

#[tokio::test]
async fn a_server_request_on_the_get_stream_reaches_the_task_it_names() {
    for server in servers().into_iter().filter(|server| !server.is_per_request()) {
        let scene = Scene::open(&[server]).await;
        for form in [HTTP_2026_07, FORMS[2]] {
            let mut client = client(&scene, form, server).await;
            // Another call at the same time, so that it has to be told which one is meant.
            let begun = puppet(&scene).begun("hang");
            client.send("tools/call", json!({ "name": "hang" })).await.unwrap();
            eventually("it has begun", || puppet(&scene).begun("hang") > begun).await;
            let answer = run(&mut client, "aside").await;
            says(&answer, "thoughts on bridges").unwrap_or_else(|why| panic!("{form:?} {server:?} {why}"));
            is_plain(&client, &answer);
            drop(client);
        }
        assert_eq!(puppet(&scene).complaints(), Vec::<String>::new());
    }
}

/// That a client of the newest era has what a server of the same era would give it.
#[tokio::test]
async fn per_request_tasks_pass_through_to_clients_with_the_extension() {
    for server in servers().into_iter().filter(|server| server.is_per_request()) {
        let scene = Scene::open(&[server]).await;
        let mut client = client(&scene, HTTP_2026_07, server).await;
        let refused = run(&mut client, "done").await;
        assert_eq!(refused.message["error"]["code"], -32021, "{}", refused.raw);
        let needed = &refused.message["error"]["data"]["requiredCapabilities"]["extensions"];
        assert!(needed[format!("{META}tasks")].is_object(), "{}", refused.raw);
        // One that the server should not have made is driven to its end all the same.
        says(&run(&mut client, "unasked").await, "done").unwrap();
        client.capabilities["extensions"] = json!({ format!("{META}tasks"): {} });
        let task = run(&mut client, "ask").await;
        assert_eq!(task.message["result"]["resultType"], "task", "{}", task.raw);
        let params = json!({ "taskId": task.message["result"]["taskId"] });
        let polls = jobs(&scene).polls();
        client.ask("tasks/get", params.clone()).await.unwrap();
        let asked = client.ask("tasks/get", params.clone()).await.unwrap();
        assert_eq!(asked.message["result"]["status"], "input_required", "{}", asked.raw);
        let answers =
            json!({ "think": { "role": "assistant", "model": "none", "content": { "type": "text", "text": "hm" } } });
        let update = json!({ "taskId": task.message["result"]["taskId"], "inputResponses": answers });
        client.ask("tasks/update", update).await.unwrap();
        let done = client.ask("tasks/get", params).await.unwrap();
        assert_eq!(done.message["result"]["result"]["content"][0]["text"], "hm", "{}", done.raw);
        assert_eq!(jobs(&scene).polls(), polls + 3, "nobody else asks");
        scene.close().await;
    }
}

#[tokio::test]
async fn handshake_tasks_pass_through_to_clients_that_request_them() {
    for server in servers().into_iter().filter(|server| !server.is_per_request()) {
        let scene = Scene::open(&[server]).await;
        let mut client = client(&scene, HTTP_2025_11, server).await;
        let params = json!({ "name": JOB, "arguments": { "kind": "done" }, "task": { "ttl": 1000 } });
        let task = client.ask("tools/call", params).await.unwrap();
        let id = task.message["result"]["task"]["taskId"].clone();
        assert!(id.is_string(), "{}", task.raw);
        let states: Vec<Value> = vec![
            client.ask("tasks/get", json!({ "taskId": id })).await.unwrap().message["result"]["status"].clone(),
            client.ask("tasks/get", json!({ "taskId": id })).await.unwrap().message["result"]["status"].clone(),
        ];
        assert_eq!(states, ["working", "completed"]);
        client.hear("notifications/tasks/status").await.unwrap();
        client.capabilities["extensions"] = json!({ format!("{META}tasks"): {} }); // it expects what follows
        let result = client.ask("tasks/result", json!({ "taskId": id })).await.unwrap();
        says(&result, "done").unwrap();
        assert_eq!(result.message["result"]["_meta"][format!("{META}related-task")]["taskId"], id);
        assert_eq!(jobs(&scene).polls(), 2, "nobody else asks");
        scene.close().await;
    }
}

#[tokio::test]
async fn a_task_param_is_dropped_where_tasks_were_not_negotiated() {
    for form in [HTTP_2026_07, FORMS[2]] {
        let scene = Scene::open(&[HTTP_2025_11]).await;
        let mut client = client(&scene, form, HTTP_2025_11).await;
        // The server would complain of a task that is asked for where it has none.
        let params = json!({ "name": "count", "arguments": {}, "task": { "ttl": 7 } });
        says(&client.ask("tools/call", params).await.unwrap(), "counted").unwrap();
        let params = json!({ "name": JOB, "arguments": { "kind": "done" }, "task": "mine" });
        says(&client.ask("tools/call", params).await.unwrap(), "done").unwrap();
        scene.close().await;
    }
}

#[tokio::test]
async fn tasks_are_driven_under_mapped_names_in_a_group() {
    let scene = Scene::open(&[HTTP_2025_11, HTTP_2026_07]).await;
    for form in [HTTP_2025_11, FORMS[2], HTTP_2026_07] {
        let mut client = Client::over_http(form, scene.rialto.address, ALL, None).await.unwrap();
        for server in [HTTP_2025_11, HTTP_2026_07] {
            if form.is_per_request() && server.is_per_request() {
                continue;
            }
            let answer = client.call(&format!("{}__{JOB}", server.name), json!({ "kind": "ask" })).await.unwrap();
            says(&answer, "thoughts on bridges").unwrap_or_else(|why| panic!("{form:?} {server:?} {why}"));
            is_plain(&client, &answer);
        }
    }
    scene.close().await;
}
