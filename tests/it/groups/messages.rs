//! What goes to and fro beside answers: logs, progress, questions, subscriptions, changes.

use rialto::call::Reply;
use rialto::client::ListenRequest;

use super::*;
use crate::harness::{Events, Session, call as calling, notification, request};

const SERVERS: [&str; 4] = ["web", "old", "new", "child"];

fn log(level: &str, data: &str) -> Value {
    json!({ "log": { "level": level, "logger": "db", "data": data } })
}

#[tokio::test]
async fn logs_come_from_the_level_on_that_was_chosen_and_say_whose_they_are() {
    let puppets = every_kind().await;
    let rialto = group(&puppets.each_ref()).await;
    for way in [Way::Http, Way::Sse] {
        let (client, ear) = client(&rialto, way, "ada").await;
        let logs = |ear: &Ear| {
            let mut logs: Vec<(String, String)> = ear
                .heard(&Notice::Message)
                .iter()
                .map(|log| (log["logger"].as_str().unwrap().into(), log["data"].as_str().unwrap().into()))
                .collect();
            logs.sort();
            logs
        };
        // Chosen before there is any connection, and again when there is.
        for (level, passing) in [("warning", vec!["w"]), ("debug", vec!["d", "w"])] {
            ask(&client, "logging/setLevel", json!({ "level": level })).await;
            ear.heard.lock().unwrap().clear();
            for server in SERVERS {
                let steps = json!({ "steps": [log("debug", "d"), log("warning", "w")] });
                call(&client, &format!("{server}__do"), steps).await;
            }
            let mut expected: Vec<(String, String)> = SERVERS
                .iter()
                .flat_map(|server| passing.iter().map(move |data| (format!("{server}/db"), (*data).to_owned())))
                .collect();
            expected.sort();
            until("all log lines", || logs(&ear).len() >= expected.len()).await;
            assert_eq!(logs(&ear), expected, "{way:?}");
            for puppet in puppets.iter().filter(|puppet| puppet.speaks() != Speaks::PerRequest) {
                let seen = puppet.seen();
                let last = seen.iter().rfind(|seen| seen.what == "logging/setLevel").unwrap();
                assert_eq!(last.body["params"]["level"], level, "{}", puppet.name);
            }
        }
        client.close().await;
    }
}

#[tokio::test]
async fn a_level_is_chosen_at_once_though_one_upstream_hangs() {
    let (web, bad) = (Puppet::start("web", Speaks::Http).await, Puppet::start("bad", Speaks::Http).await);
    let rialto = group(&[&web, &bad]).await;
    let (client, _) = client(&rialto, Way::Http, "ada").await;
    call(&client, "web__echo", json!({})).await;
    call(&client, "bad__echo", json!({})).await;
    bad.misbehave("logging/setLevel", crate::puppet::Mischief::Hang);
    let begun = std::time::Instant::now();
    ask(&client, "logging/setLevel", json!({ "level": "error" })).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    web.sees("logging/setLevel", 1).await;
}

#[tokio::test]
async fn progress_keeps_its_token_and_the_type_of_it() {
    let puppets = every_kind().await;
    let rialto = group(&puppets.each_ref()).await;
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
        // Who wants none gets none.
        let body = request(
            8,
            "tools/call",
            json!({ "name": format!("{server}__do"), "arguments": { "steps": [{ "progress": 1 }] } }),
        );
        let (_, answer) = session.post(&body).answer().await;
        assert_eq!(report(&answer["result"])["puppet"], server);
    }
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_where_it_runs_and_nowhere_else() {
    let puppets = every_kind().await;
    let rialto = group(&puppets.each_ref()).await;
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
        assert!(cancelled.rest().await.is_empty(), "no answer is wanted");
        let ended = |puppet: &Puppet| puppet.count("cancelled") + puppet.count("abandoned");
        until("it is cancelled", || ended(&puppets[n]) == 1).await;
        for puppet in &puppets {
            puppet.open("end");
        }
        for events in [same, elsewhere] {
            let messages = events.rest().await;
            assert_eq!(report(&messages.last().unwrap()["result"])["tool"], "do", "{messages:?}");
        }
        assert_eq!(puppets.iter().map(ended).sum::<usize>(), n + 1, "only what was cancelled");
        for puppet in &puppets {
            puppet.close("end");
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
async fn questions_reach_the_client_whose_call_it_is_from_every_kind_of_upstream() {
    let puppets = every_kind().await;
    let rialto = group(&puppets.each_ref()).await;
    for way in [Way::Http, Way::Sse] {
        let ((ada, ada_ear), (bob, bob_ear)) = (client(&rialto, way, "ada").await, client(&rialto, way, "bob").await);
        let steps = json!({ "steps": questions() });
        // One after the other, then all upstreams at once, for two clients.
        for server in SERVERS {
            check_answers(&call(&ada, &format!("{server}__do"), steps.clone()).await, server, "ada");
        }
        assert!(bob_ear.asked().is_empty());
        let all = SERVERS.iter().flat_map(|server| [(*server, &ada, "ada"), (*server, &bob, "bob")]);
        let all = all.map(|(server, client, name)| {
            let steps = steps.clone();
            async move { check_answers(&call(client, &format!("{server}__do"), steps).await, server, name) }
        });
        in_time("all answers", futures_util::future::join_all(all)).await;
        assert_eq!((ada_ear.asked().len(), bob_ear.asked().len()), (24, 12));
        let said = ada_ear.asked().iter().filter(|asked| asked["params"]["_meta"]["rialto/server"] == "web").count();
        assert_eq!(said, 4, "who asks is named: {:?}", ada_ear.asked());
        ada.close().await;
        bob.close().await;
    }
    quiet(&rialto, &puppets.each_ref()).await;
}

#[tokio::test]
async fn a_question_is_answered_though_the_lists_are_read_at_that_time() {
    for speaks in [Speaks::Stdio, Speaks::Sse, Speaks::Http] {
        let (a, b) = (Puppet::start("a", speaks).await, Puppet::start("b", Speaks::Http).await);
        let rialto = group(&[&a, &b]).await;
        let (client, _) = client(&rialto, Way::Http, "ada").await;
        call(&client, "a__echo", json!({})).await;
        // It says that its list is another, does not give it, and asks.
        a.misbehave("tools/list", crate::puppet::Mischief::Hang);
        let mut steps = questions();
        steps.as_array_mut().unwrap().insert(0, json!({ "grow": "more" }));
        steps.as_array_mut().unwrap().insert(1, json!({ "wait": "listed" }));
        let calling = call(&client, "a__do", json!({ "steps": steps }));
        let listing = async {
            let before = a.count("tools/list");
            a.sees("tools/list", before + 1).await;
            a.open("listed");
        };
        let (said, ()) = in_time("an answer", async { tokio::join!(calling, listing) }).await;
        check_answers(&said, "a", "ada");
        // Nor does it hold up the end of the session.
        client.close().await;
        quiet(&rialto, &[&a, &b]).await;
    }
}

#[tokio::test]
async fn who_cannot_be_asked_is_not() {
    let puppets = every_kind().await;
    let mut specs: Vec<UpstreamSpec> = puppets.iter().map(spec).collect();
    specs[0].allow_server_requests = false;
    let rialto = gateway(together(specs)).await;
    let (ada, ear) = client(&rialto, Way::Http, "ada").await;
    let refused = call(&ada, "web__do", json!({ "steps": questions() })).await;
    assert!(refused["answers"].as_array().unwrap().iter().all(|answer| answer["code"] == -32601), "{refused}");
    assert!(ear.asked().is_empty());
    // This one says that it can do nothing.
    let session = rialto.open("2025-11-25").await;
    for server in ["web", "old", "child"] {
        let (_, answer) =
            session.post(&calling(7, &format!("{server}__do"), json!({ "steps": questions() }))).answer().await;
        let answers = report(&answer["result"])["answers"].clone();
        assert!(answers.as_array().unwrap().iter().all(|answer| answer["code"] == -32601), "{server}: {answer}");
    }
}

#[tokio::test]
async fn every_uri_in_a_result_is_renamed_and_nothing_else() {
    let puppets = every_kind().await;
    let rialto = group(&puppets.each_ref()).await;
    for way in WAYS {
        let (client, _) = client(&rialto, way, "ada").await;
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
            assert_eq!(content[0]["uri"], format!("rialto://{server}/res://one"), "{way:?} {got}");
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

/// The next notice of a stream, past others.
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
async fn updates_come_under_the_uri_that_was_subscribed_to() {
    let only = |uri: &'static str| {
        move |offers: &mut crate::puppet::Offers| {
            offers.resources = vec![json!({ "uri": uri, "name": "x" })];
        }
    };
    let puppets = [
        Puppet::with("web", Speaks::Http, only("web://a")).await,
        Puppet::with("old", Speaks::Sse, only("old://a")).await,
        Puppet::with("new", Speaks::PerRequest, only("new://a")).await,
        Puppet::with("child", Speaks::Stdio, only("child://a")).await,
    ];
    let rialto = group(&puppets.each_ref()).await;
    let (ada, bob) = (rialto.open("2025-11-25").await, rialto.open("2025-11-25").await);
    let (mut ada_hears, mut bob_hears) = (ada.get().go().await.events(), bob.get().go().await.events());
    for puppet in &puppets {
        let own = format!("{}://a", puppet.name);
        let renamed = format!("rialto://{}/{own}", puppet.name);
        subscribe(&ada, &renamed).await;
        subscribe(&bob, &own).await;
        if puppet.speaks() == Speaks::PerRequest {
            let wishes =
                |seen: &crate::puppet::Seen| seen.body["params"]["notifications"]["resourceSubscriptions"][0] == *own;
            until("it listens", || puppet.seen().iter().any(wishes) && puppet.listeners() == 1).await;
        }
        puppet.notify("notifications/resources/updated", &json!({ "uri": own }));
        assert_eq!(next(&mut ada_hears, "notifications/resources/updated").await["uri"], *renamed);
        assert_eq!(next(&mut bob_hears, "notifications/resources/updated").await["uri"], *own);
        // Ada no longer wants it; what comes next to her is something else.
        assert_eq!(ada.ask("resources/unsubscribe", json!({ "uri": renamed })).await["result"], json!({}));
        puppet.notify("notifications/resources/updated", &json!({ "uri": own }));
        assert_eq!(next(&mut bob_hears, "notifications/resources/updated").await["uri"], *own);
        bob.ask("resources/unsubscribe", json!({ "uri": own })).await;
    }
    let (code, _) =
        ada.post(&request(1, "resources/subscribe", json!({ "uri": "rialto://nobody/x:1" }))).refused().await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn listeners_of_the_per_request_era_hear_of_resources_of_every_upstream() {
    let puppets = every_kind().await;
    let rialto = group(&puppets.each_ref()).await;
    let (client, _) = client(&rialto, Way::PerRequest, "ada").await;
    for puppet in &puppets {
        let uri = format!("rialto://{}/res://one", puppet.name);
        let wishes = ListenRequest { resources: vec![uri.clone()], ..ListenRequest::default() };
        let mut listening = in_time("listening", client.listen(wishes)).await.unwrap();
        let told = async {
            loop {
                puppet.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let heard = async {
            tokio::select! { heard = listening.next() => heard, () = told => None }
        };
        let heard = in_time("an update", heard).await.unwrap();
        assert_eq!(value(heard.params.as_ref().unwrap())["uri"], *uri);
    }
}

#[tokio::test]
async fn a_change_is_told_once_and_only_when_there_is_one() {
    for speaks in [Speaks::Http, Speaks::Sse, Speaks::Stdio, Speaks::PerRequest] {
        let (a, b) = (Puppet::start("a", speaks).await, Puppet::start("b", Speaks::Http).await);
        let rialto = group(&[&a, &b]).await;
        let session = rialto.open("2025-11-25").await;
        // With and without a connection of its own.
        let connected = rialto.open("2025-11-25").await;
        connected.post(&calling(1, "a__echo", json!({}))).go().await.text().await;
        let (mut one, mut other) = (session.get().go().await.events(), connected.get().go().await.events());
        let (modern, _) = client(&rialto, Way::PerRequest, "ada").await;
        let wishes = ListenRequest { lists: true, ..ListenRequest::default() };
        let mut listening = in_time("listening", modern.listen(wishes)).await.unwrap();
        if speaks == Speaks::PerRequest {
            until("it is listened to", || a.listeners() == 1).await;
        }
        // Nothing is another, whatever it says.
        a.notify("notifications/tools/list_changed", &json!({}));
        // Three changes at once are one, and the last one heard is of the prompts.
        for n in 0..3 {
            a.change("notifications/tools/list_changed", |offers| {
                offers.tools.push(crate::puppet::tool(&format!("t{n}")));
            });
        }
        until("they are listed", || rialto.group().view().by_name(rialto::upstream::List::Tools, "a__t2").is_some())
            .await;
        tokio::time::sleep(Duration::from_millis(500)).await; // what comes late would be heard now
        a.change("notifications/prompts/list_changed", |offers| offers.prompts.clear());
        for events in [&mut one, &mut other] {
            for kind in ["tools", "prompts"] {
                let heard = in_time("a change", events.message()).await.unwrap();
                assert_eq!(heard["method"], format!("notifications/{kind}/list_changed"), "{speaks:?}");
            }
        }
        for notice in [Notice::ToolsChanged, Notice::PromptsChanged] {
            assert_eq!(in_time("a change", listening.next()).await.unwrap().notice, notice);
        }
        let listed = connected.ask("tools/list", json!({})).await;
        let names = ["a__echo", "a__do", "a__t0", "a__t1", "a__t2", "b__echo", "b__do"];
        assert_eq!(column(&listed["result"], "tools", "name"), names);
    }
}

#[tokio::test]
async fn what_clients_tell_reaches_the_servers_that_they_speak_with() {
    let puppets = every_kind().await;
    let rialto = group(&puppets.each_ref()).await;
    let session = rialto.open("2025-11-25").await;
    for server in ["web", "old"] {
        session.post(&calling(1, &format!("{server}__echo"), json!({}))).go().await.text().await;
    }
    session.post(&notification("notifications/roots/list_changed", json!({}))).go().await;
    session.post(&notification("notifications/x/odd", json!({}))).go().await;
    puppets[0].sees("notifications/roots/list_changed", 1).await;
    puppets[1].sees("notifications/roots/list_changed", 1).await;
    assert_eq!(puppets[3].count("notifications/roots/list_changed"), 0, "it has no connection for that session");
    assert!(puppets.iter().all(|puppet| puppet.count("notifications/x/odd") == 0), "nobody knows whom it is for");
}

#[tokio::test]
async fn a_question_is_taken_back_with_its_call() {
    let (a, b) = (Puppet::start("a", Speaks::Http).await, Puppet::start("b", Speaks::Stdio).await);
    let rialto = group(&[&a, &b]).await;
    let (client, _) = client(&rialto, Way::Http, "ada").await;
    for server in ["a", "b"] {
        let params =
            json!({ "name": format!("{server}__do"), "arguments": { "steps": [questions()[0], { "wait": "" }] } });
        let mut replies = client.begin(Method::ToolsCall, Some(Raw::of(&params)));
        loop {
            match in_time("a question", replies.next()).await.unwrap() {
                Reply::Question(question) => {
                    drop(replies);
                    drop(question);
                    break;
                }
                Reply::Notice(_) => {}
                Reply::End(answer) => panic!("{answer:?}"),
            }
        }
    }
    for puppet in [&a, &b] {
        puppet.sees("notifications/cancelled", 1).await;
        until("the call is over", || puppet.count("cancelled") + puppet.count("abandoned") == 1).await;
    }
}
