//! Messages other than responses: logs, progress, cancellation, server requests, subscriptions, list changes.

use rialto::call::Reply;
use rialto::client::ListenRequest;

use super::*;
use crate::harness::{Events, Session, call as calling, notification, request};

const SERVERS: [&str; 4] = ["web", "old", "new", "child"];

fn log(level: &str, data: &str) -> Value {
    json!({ "log": { "level": level, "logger": "db", "data": data } })
}

#[tokio::test]
async fn log_messages_respect_the_level_and_name_their_upstream() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    for client_transport in [ClientTransport::Http, ClientTransport::Sse] {
        let (client, host) = client(&rialto, client_transport, "ada").await;
        let logs = |host: &RecordingHost| {
            let mut logs: Vec<(String, String)> = host
                .notifications(&NotificationMethod::Message)
                .iter()
                .map(|log| (log["logger"].as_str().unwrap().into(), log["data"].as_str().unwrap().into()))
                .collect();
            logs.sort();
            logs
        };
        // First set before the session has a lease, then again while it has one.
        for (level, passing) in [("warning", vec!["w"]), ("debug", vec!["d", "w"])] {
            ask(&client, "logging/setLevel", json!({ "level": level })).await;
            host.notifications.lock().unwrap().clear();
            for server in SERVERS {
                let steps = json!({ "steps": [log("debug", "d"), log("warning", "w")] });
                call(&client, &format!("{server}__do"), steps).await;
            }
            let mut expected: Vec<(String, String)> = SERVERS
                .iter()
                .flat_map(|server| passing.iter().map(move |data| (format!("{server}/db"), (*data).to_owned())))
                .collect();
            expected.sort();
            until("all log lines", || logs(&host).len() >= expected.len()).await;
            assert_eq!(logs(&host), expected, "{client_transport:?}");
            for scripted in
                scripted_servers.iter().filter(|scripted| scripted.transport() != ServerTransport::PerRequest)
            {
                let received = scripted.received();
                let last = received.iter().rfind(|received| received.kind == "logging/setLevel").unwrap();
                assert_eq!(last.body["params"]["level"], level, "{}", scripted.name);
            }
        }
        client.close().await;
    }
}

#[tokio::test]
async fn set_level_does_not_wait_for_a_hanging_upstream() {
    let (web, bad) = (
        ScriptedServer::start("web", ServerTransport::Http).await,
        ScriptedServer::start("bad", ServerTransport::Http).await,
    );
    let rialto = group(&[&web, &bad]).await;
    let (client, _) = client(&rialto, ClientTransport::Http, "ada").await;
    call(&client, "web__echo", json!({})).await;
    call(&client, "bad__echo", json!({})).await;
    bad.inject_fault("logging/setLevel", crate::scripted_server::InjectedFault::Hang);
    within_timeout("the level is set", ask(&client, "logging/setLevel", json!({ "level": "error" }))).await;
    web.wait_received("logging/setLevel", 1).await;
}

#[tokio::test]
async fn progress_keeps_its_token_and_the_type_of_the_token() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    let session = rialto.open("2025-11-25").await;
    for server in SERVERS {
        for token in [json!("7"), json!(7), json!("a b")] {
            let mut body =
                calling(7, &format!("{server}__do"), json!({ "steps": [{ "progress": 1 }, { "progress": 2 }] }));
            body["params"]["_meta"]["progressToken"] = token.clone();
            let messages = session.post(&body).go().await.events().rest().await;
            let progress: Vec<_> = messages.iter().filter(|message| message["id"].is_null()).collect();
            assert_eq!(progress.len(), 2, "{messages:?}");
            assert!(progress.iter().all(|message| message["params"]["progressToken"] == token), "{messages:?}");
        }
        // A call without a progress token gets no progress.
        let body = request(
            8,
            "tools/call",
            json!({ "name": format!("{server}__do"), "arguments": { "steps": [{ "progress": 1 }] } }),
        );
        let (_, answer) = session.post(&body).answer().await;
        assert_eq!(report(&answer["result"])["server"], server);
    }
}

#[tokio::test]
async fn cancellation_reaches_only_the_upstream_call_it_names() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    let session = rialto.open("2025-11-25").await;
    for (n, server) in SERVERS.iter().enumerate() {
        let wait = json!({ "steps": [{ "progress": 1 }, { "wait": "end" }] });
        let open = async |id: &str, tool: String| {
            let mut events = session.post(&calling(id, &tool, wait.clone())).go().await.events();
            assert_eq!(events.message().await.unwrap()["method"], "notifications/progress");
            events
        };
        let other = SERVERS[(n + 1) % 4];
        let cancelled = open("cancelled", format!("{server}__do")).await;
        let same = open("same", format!("{server}__do")).await;
        let elsewhere = open("elsewhere", format!("{other}__do")).await;
        let cancel = notification("notifications/cancelled", json!({ "requestId": "cancelled" }));
        assert_eq!(session.post(&cancel).status().await, 202);
        assert!(cancelled.rest().await.is_empty(), "a cancelled call gets no response");
        let ended = |scripted: &ScriptedServer| scripted.count("cancelled") + scripted.count("abandoned");
        until("the upstream call is cancelled", || ended(&scripted_servers[n]) == 1).await;
        for scripted in &scripted_servers {
            scripted.open("end");
        }
        for events in [same, elsewhere] {
            let messages = events.rest().await;
            assert_eq!(report(&messages.last().unwrap()["result"])["tool"], "do", "{messages:?}");
        }
        assert_eq!(scripted_servers.iter().map(ended).sum::<usize>(), n + 1, "only the cancelled call");
        for scripted in &scripted_servers {
            scripted.close("end");
        }
    }
}

fn questions() -> Value {
    let elicit = json!({ "message": "Sure?", "requestedSchema": { "type": "object", "properties": {} } });
    let sample =
        json!({ "messages": [{ "role": "user", "content": { "type": "text", "text": "?" } }], "maxTokens": 1 });
    json!([
        { "ask": { "method": "elicitation/create", "params": elicit } },
        { "ask": { "method": "sampling/createMessage", "params": sample } },
        { "ask": { "method": "roots/list" } },
    ])
}

fn check_answers(report: &Value, server: &str, client: &str) {
    let answers = report["answers"].as_array().unwrap();
    let all = answers.iter().map(Value::to_string).collect::<String>();
    assert_eq!(answers.len(), 3, "{report}");
    assert!(all.contains(&format!(r#""name":"{client}""#)), "{all}");
    assert!(all.contains(&format!(r#""to":"[{server}] Sure?""#)), "{all}");
    assert!(all.contains(&format!("thoughts of {client}")), "{all}");
    assert!(all.contains(&format!("file:///{client}")), "{all}");
}

#[tokio::test]
async fn server_requests_reach_the_client_of_their_call_from_every_transport() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    for client_transport in [ClientTransport::Http, ClientTransport::Sse] {
        let ((ada, ada_host), (bob, bob_host)) =
            (client(&rialto, client_transport, "ada").await, client(&rialto, client_transport, "bob").await);
        let steps = json!({ "steps": questions() });
        // First sequentially, then concurrently on all upstreams for two clients.
        for server in SERVERS {
            check_answers(&call(&ada, &format!("{server}__do"), steps.clone()).await, server, "ada");
        }
        assert!(bob_host.server_requests().is_empty());
        let all = SERVERS.iter().flat_map(|server| [(*server, &ada, "ada"), (*server, &bob, "bob")]);
        let all = all.map(|(server, client, name)| {
            let steps = steps.clone();
            async move { check_answers(&call(client, &format!("{server}__do"), steps).await, server, name) }
        });
        within_timeout("all responses", futures_util::future::join_all(all)).await;
        assert_eq!((ada_host.server_requests().len(), bob_host.server_requests().len()), (24, 12));
        let reported = ada_host
            .server_requests()
            .iter()
            .filter(|asked| asked["params"]["_meta"]["rialto/server"] == "web")
            .count();
        assert_eq!(reported, 4, "the server request names its upstream: {:?}", ada_host.server_requests());
        ada.close().await;
        bob.close().await;
    }
    wait_idle(&rialto, &scripted_servers.each_ref()).await;
}

#[tokio::test]
async fn server_requests_are_answered_while_the_catalog_hangs() {
    for transport in [ServerTransport::Stdio, ServerTransport::Sse, ServerTransport::Http] {
        let (a, b) =
            (ScriptedServer::start("a", transport).await, ScriptedServer::start("b", ServerTransport::Http).await);
        let rialto = group(&[&a, &b]).await;
        let (client, _) = client(&rialto, ClientTransport::Http, "ada").await;
        call(&client, "a__echo", json!({})).await;
        // The server announces a list change, hangs on the list, and sends server requests.
        a.inject_fault("tools/list", crate::scripted_server::InjectedFault::Hang);
        let mut steps = questions();
        steps.as_array_mut().unwrap().insert(0, json!({ "grow": "more" }));
        steps.as_array_mut().unwrap().insert(1, json!({ "wait": "listed" }));
        let calling = call(&client, "a__do", json!({ "steps": steps }));
        let listing = async {
            let before = a.count("tools/list");
            a.wait_received("tools/list", before + 1).await;
            a.open("listed");
        };
        let (reported, ()) = within_timeout("a response", async { tokio::join!(calling, listing) }).await;
        check_answers(&reported, "a", "ada");
        // The hanging list does not delay the end of the session either.
        client.close().await;
        wait_idle(&rialto, &[&a, &b]).await;
    }
}

#[tokio::test]
async fn server_requests_are_refused_without_the_client_capability() {
    let scripted_servers = one_of_each_transport().await;
    let mut specs: Vec<UpstreamSpec> = scripted_servers.iter().map(spec).collect();
    specs[0].allow_server_requests = false;
    let rialto = gateway(default_group_of(specs)).await;
    let (ada, host) = client(&rialto, ClientTransport::Http, "ada").await;
    let refused = call(&ada, "web__do", json!({ "steps": questions() })).await;
    assert!(refused["answers"].as_array().unwrap().iter().all(|answer| answer["code"] == -32601), "{refused}");
    assert!(host.server_requests().is_empty());
    // This client declares no capabilities.
    let session = rialto.open("2025-11-25").await;
    for server in ["web", "old", "child"] {
        let (_, answer) =
            session.post(&calling(7, &format!("{server}__do"), json!({ "steps": questions() }))).answer().await;
        let answers = report(&answer["result"])["answers"].clone();
        assert!(answers.as_array().unwrap().iter().all(|answer| answer["code"] == -32601), "{server}: {answer}");
    }
}

#[tokio::test]
async fn resource_uris_in_results_are_prefixed_and_nothing_else_changes() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    for client_transport in CLIENT_TRANSPORTS {
        let (client, _) = client(&rialto, client_transport, "ada").await;
        for server in SERVERS {
            let result = json!({
                "content": [
                    { "type": "resource_link", "uri": "res://one", "name": "one" },
                    { "type": "resource", "resource": { "uri": "res://two", "text": "res://one" } },
                    { "type": "text", "text": "see res://one" },
                    { "type": "resource_link", "uri": "https://h/x", "name": "web" },
                ],
                "structuredContent": { "uri": "res://one" },
            });
            let params = json!({ "name": format!("{server}__do"), "arguments": { "result": result } });
            let got = ask(&client, "tools/call", params).await;
            let content = &got["content"];
            assert_eq!(content[0]["uri"], format!("rialto://{server}/res://one"), "{client_transport:?} {got}");
            assert_eq!(content[1]["resource"]["uri"], format!("rialto://{server}/res://two"));
            assert_eq!(
                (&content[1]["resource"]["text"], &content[2]["text"]),
                (&json!("res://one"), &json!("see res://one"))
            );
            assert_eq!(
                (&content[3]["uri"], &got["structuredContent"]["uri"]),
                (&json!("https://h/x"), &json!("res://one"))
            );
        }
    }
}

/// Parameters of the next notification with this method, skipping others.
async fn next(events: &mut Events, method: &str) -> Value {
    loop {
        let message = events.message().await.expect("the stream goes on");
        if message["method"] == method {
            return message["params"].clone();
        }
    }
}

async fn subscribe(session: &Session<'_>, uri: &str) {
    assert_eq!(session.ask("resources/subscribe", json!({ "uri": uri })).await["result"], json!({}), "{uri}");
}

#[tokio::test]
async fn resource_updates_carry_the_uri_that_was_subscribed_to() {
    let only = |uri: &'static str| {
        move |catalog: &mut crate::scripted_server::ServerCatalog| {
            catalog.resources = vec![json!({ "uri": uri, "name": "x" })];
        }
    };
    let scripted_servers = [
        ScriptedServer::with("web", ServerTransport::Http, only("web://a")).await,
        ScriptedServer::with("old", ServerTransport::Sse, only("old://a")).await,
        ScriptedServer::with("new", ServerTransport::PerRequest, only("new://a")).await,
        ScriptedServer::with("child", ServerTransport::Stdio, only("child://a")).await,
    ];
    let rialto = group(&scripted_servers.each_ref()).await;
    let (ada, bob) = (rialto.open("2025-11-25").await, rialto.open("2025-11-25").await);
    let (mut ada_events, mut bob_events) = (ada.get().go().await.events(), bob.get().go().await.events());
    for scripted in &scripted_servers {
        let own = format!("{}://a", scripted.name);
        let renamed = format!("rialto://{}/{own}", scripted.name);
        subscribe(&ada, &renamed).await;
        subscribe(&bob, &own).await;
        if scripted.transport() == ServerTransport::PerRequest {
            let filter = |received: &crate::scripted_server::ReceivedMessage| {
                received.body["params"]["notifications"]["resourceSubscriptions"][0] == *own
            };
            until("the listen stream is open", || scripted.received().iter().any(filter) && scripted.listeners() == 1)
                .await;
        }
        scripted.notify("notifications/resources/updated", &json!({ "uri": own }));
        assert_eq!(next(&mut ada_events, "notifications/resources/updated").await["uri"], *renamed);
        assert_eq!(next(&mut bob_events, "notifications/resources/updated").await["uri"], *own);
        // After unsubscribing, the next notification for ada is one for another resource.
        assert_eq!(ada.ask("resources/unsubscribe", json!({ "uri": renamed })).await["result"], json!({}));
        scripted.notify("notifications/resources/updated", &json!({ "uri": own }));
        assert_eq!(next(&mut bob_events, "notifications/resources/updated").await["uri"], *own);
        bob.ask("resources/unsubscribe", json!({ "uri": own })).await;
    }
    let (code, _) =
        ada.post(&request(1, "resources/subscribe", json!({ "uri": "rialto://nobody/x:1" }))).refused().await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn per_request_subscriptions_work_for_every_upstream_transport() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    let (client, _) = client(&rialto, ClientTransport::PerRequest, "ada").await;
    for scripted in &scripted_servers {
        let uri = format!("rialto://{}/res://one", scripted.name);
        let filter = ListenRequest { resources: vec![uri.clone()], ..ListenRequest::default() };
        let mut listening = within_timeout("listening", client.listen(filter)).await.unwrap();
        // The acknowledgement of a per-request upstream implies an open listen stream.
        if scripted.transport() != ServerTransport::PerRequest {
            until("the upstream session is subscribed and listens", || scripted.has_subscriber("res://one")).await;
        }
        scripted.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
        let notified = within_timeout("an update", listening.next()).await.unwrap();
        assert_eq!(notified.method, NotificationMethod::ResourceUpdated);
        assert_eq!(value(notified.params.as_ref().unwrap())["uri"], *uri);
    }
}

#[tokio::test]
async fn list_changed_is_notified_once_and_only_when_the_list_differs() {
    for transport in [ServerTransport::Http, ServerTransport::Sse, ServerTransport::Stdio, ServerTransport::PerRequest]
    {
        let (a, b) =
            (ScriptedServer::start("a", transport).await, ScriptedServer::start("b", ServerTransport::Http).await);
        let rialto = group(&[&a, &b]).await;
        let session = rialto.open("2025-11-25").await;
        // One session without a lease, one with a lease.
        let connected = rialto.open("2025-11-25").await;
        connected.post(&calling(1, "a__echo", json!({}))).go().await.text().await;
        let (mut one, mut other) = (session.get().go().await.events(), connected.get().go().await.events());
        let (modern, _) = client(&rialto, ClientTransport::PerRequest, "ada").await;
        let filter = ListenRequest { lists: true, ..ListenRequest::default() };
        let mut listening = within_timeout("listening", modern.listen(filter)).await.unwrap();
        if transport == ServerTransport::PerRequest {
            until("the upstream listen stream is open", || a.listeners() == 1).await;
        }
        // A list-changed notification without a change of the list.
        a.notify("notifications/tools/list_changed", &json!({}));
        // Three changes in a burst.
        for n in 0..3 {
            a.change("notifications/tools/list_changed", |catalog| {
                catalog.tools.push(crate::scripted_server::tool(&format!("t{n}")));
            });
        }
        until("the new tools are listed", || {
            rialto.group().view(Revision::NEWEST).find_by_name(rialto::upstream::List::Tools, "a__t2").is_some()
        })
        .await;
        // Negative check: a duplicate tools notification would arrive within this wait, before the one for prompts.
        tokio::time::sleep(Duration::from_millis(500)).await;
        a.change("notifications/prompts/list_changed", |catalog| catalog.prompts.clear());
        for events in [&mut one, &mut other] {
            for kind in ["tools", "prompts"] {
                let notified = within_timeout("a list-changed notification", events.message()).await.unwrap();
                assert_eq!(notified["method"], format!("notifications/{kind}/list_changed"), "{transport:?}");
            }
        }
        for notice in [NotificationMethod::ToolsChanged, NotificationMethod::PromptsChanged] {
            assert_eq!(within_timeout("a list-changed notification", listening.next()).await.unwrap().method, notice);
        }
        let listed = connected.ask("tools/list", json!({})).await;
        let names = ["a__echo", "a__do", "a__t0", "a__t1", "a__t2", "b__echo", "b__do"];
        assert_eq!(column(&listed["result"], "tools", "name"), names);
    }
}

#[tokio::test]
async fn client_notifications_reach_the_upstreams_with_a_lease() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    let session = rialto.open("2025-11-25").await;
    for server in ["web", "old"] {
        session.post(&calling(1, &format!("{server}__echo"), json!({}))).go().await.text().await;
    }
    session.post(&notification("notifications/roots/list_changed", json!({}))).go().await;
    session.post(&notification("notifications/x/odd", json!({}))).go().await;
    scripted_servers[0].wait_received("notifications/roots/list_changed", 1).await;
    scripted_servers[1].wait_received("notifications/roots/list_changed", 1).await;
    assert_eq!(scripted_servers[3].count("notifications/roots/list_changed"), 0, "the session has no lease there");
    assert!(
        scripted_servers.iter().all(|scripted| scripted.count("notifications/x/odd") == 0),
        "its upstream is unknown"
    );
}

#[tokio::test]
async fn a_server_request_is_withdrawn_when_its_call_is_cancelled() {
    let (a, b) = (
        ScriptedServer::start("a", ServerTransport::Http).await,
        ScriptedServer::start("b", ServerTransport::Stdio).await,
    );
    let rialto = group(&[&a, &b]).await;
    let (client, _) = client(&rialto, ClientTransport::Http, "ada").await;
    for server in ["a", "b"] {
        let params =
            json!({ "name": format!("{server}__do"), "arguments": { "steps": [questions()[0], { "wait": "" }] } });
        let mut replies = client.begin(Method::ToolsCall, Some(Raw::of(&params)));
        loop {
            match within_timeout("a server request", replies.next()).await.unwrap() {
                Reply::ServerRequest(question) => {
                    drop(replies);
                    drop(question);
                    break;
                }
                Reply::Notification(_) | Reply::Piece(_) => {}
                Reply::End(answer) => panic!("{answer:?}"),
            }
        }
    }
    for scripted in [&a, &b] {
        scripted.wait_received("notifications/cancelled", 1).await;
        until("the call has ended", || scripted.count("cancelled") + scripted.count("abandoned") == 1).await;
    }
}
