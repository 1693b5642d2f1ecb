//! Configuration reload: added upstreams connect, removed ones are closed, unchanged ones are not disturbed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rialto::client::ListenRequest;
use rialto::gateway::{AppliedChanges, NameFilter, Naming};

use super::*;
use crate::children::gone;
use crate::harness::{Events, call as calling, notification};

fn apply(rialto: &Rialto, config: &GatewayConfig) -> AppliedChanges {
    rialto.inbound.gateway.apply(config)
}

/// Waits for the next list-changed notification of this kind.
async fn wait_list_changed(events: &mut Events, kind: &str) {
    loop {
        let notified =
            within_timeout("a list-changed notification", events.message()).await.expect("the stream goes on");
        if notified["method"] == format!("notifications/{kind}/list_changed") {
            return;
        }
    }
}

fn name(text: &str) -> Vec<Arc<str>> {
    vec![text.into()]
}

#[tokio::test]
async fn reload_adds_removes_and_replaces_upstreams() {
    let a = ScriptedServer::start("a", ServerTransport::Http).await;
    let b = ScriptedServer::start("b", ServerTransport::Stdio).await;
    let c = ScriptedServer::start("c", ServerTransport::PerRequest).await;
    let rialto = group(&[&a, &b]).await;
    let session = rialto.open("2025-11-25").await;
    for server in ["a", "b"] {
        session.post(&calling(1, &format!("{server}__echo"), json!({}))).go().await.text().await;
    }
    let mut events = session.get().go().await.events();
    let (modern, _) = client(&rialto, ClientTransport::PerRequest, "ada").await;
    let filter = ListenRequest { lists: true, ..ListenRequest::default() };
    let mut listening = within_timeout("listening", modern.listen(filter)).await.unwrap();
    let listed = async |expected: &[&str]| {
        let listed = session.ask("tools/list", json!({})).await;
        let names: Vec<String> = expected.iter().flat_map(|s| [format!("{s}__echo"), format!("{s}__do")]).collect();
        assert_eq!(column(&listed["result"], "tools", "name"), names);
    };

    assert_eq!(
        apply(&rialto, &default_group_of(vec![spec(&a), spec(&b)])),
        AppliedChanges::default(),
        "nothing changed"
    );
    let added = apply(&rialto, &default_group_of(vec![spec(&a), spec(&c), spec(&b)]));
    assert_eq!(added, AppliedChanges { added: name("c"), ..AppliedChanges::default() });
    for kind in ["tools", "prompts", "resources"] {
        wait_list_changed(&mut events, kind).await;
    }
    listed(&["a", "c", "b"]).await;
    let mut told = Vec::new();
    while told.len() < 3 {
        let notice = within_timeout("a list-changed notification", listening.next()).await.expect("it goes on").method;
        if !told.contains(&notice) {
            told.push(notice);
        }
    }
    let (_, answer) = session.post(&calling(2, "c__echo", json!({}))).answer().await;
    assert_eq!(report(&answer["result"])["server"], "c");
    c.wait_received("subscriptions/listen", 1).await;

    let removed = apply(&rialto, &default_group_of(vec![spec(&a), spec(&c)]));
    assert_eq!(removed, AppliedChanges { removed: name("b"), ..AppliedChanges::default() });
    wait_list_changed(&mut events, "tools").await;
    listed(&["a", "c"]).await;
    gone(&b.marker()).await;
    until("its upstream sessions are gone", || b.sessions() == 0).await;
    let (_, refused) = session.post(&calling(3, "b__echo", json!({}))).answer().await;
    assert_eq!(refused["error"]["code"], -32602);
    assert_eq!((a.count("initialize"), a.count("DELETE")), (2, 0), "a keeps its connections");
    assert_eq!((c.count("subscriptions/listen"), c.listeners()), (1, 1), "c keeps its listen stream");

    let mut other = spec(&a);
    other.list_poll_interval = Duration::from_secs(7);
    let changed = apply(&rialto, &default_group_of(vec![other, spec(&c)]));
    assert_eq!(changed, AppliedChanges { changed: name("a"), ..AppliedChanges::default() });
    until("the old upstream sessions are deleted", || a.count("DELETE") == 2).await;
    let (_, answer) = session.post(&calling(4, "a__echo", json!({}))).answer().await;
    assert_eq!(report(&answer["result"])["server"], "a");
    listed(&["a", "c"]).await;

    // A group with one upstream left is transparent: names lose their prefix.
    let alone = apply(&rialto, &default_group_of(vec![spec(&c)]));
    assert_eq!(alone.removed, name("a"));
    wait_list_changed(&mut events, "tools").await;
    let names = session.ask("tools/list", json!({})).await;
    assert_eq!(column(&names["result"], "tools", "name"), ["echo", "do"]);
    until("the upstream has no session left", || a.sessions() == 0).await;
}

#[tokio::test]
async fn reload_of_a_group_changes_its_lists_without_reconnecting() {
    let (a, b) = (
        ScriptedServer::start("a", ServerTransport::Http).await,
        ScriptedServer::start("b", ServerTransport::PerRequest).await,
    );
    let config = default_group_of(vec![spec(&a), spec(&b)]);
    let rialto = gateway(config.clone()).await;
    let session = rialto.open("2025-11-25").await;
    let mut events = session.get().go().await.events();
    let tools = async || {
        let listed = session.ask("tools/list", json!({})).await;
        column(&listed["result"], "tools", "name")
    };
    assert_eq!(tools().await, ["a__echo", "a__do", "b__echo", "b__do"]);
    for (change, expected) in [
        (
            Box::new(|group_config: &mut GroupConfig| group_config.servers.reverse()) as Box<dyn Fn(&mut GroupConfig)>,
            vec!["b__echo", "b__do", "a__echo", "a__do"],
        ),
        (
            Box::new(|group_config: &mut GroupConfig| group_config.tools = NameFilter::new(&[], &["*do".to_owned()])),
            vec!["a__echo", "b__echo"],
        ),
        (Box::new(|group_config: &mut GroupConfig| group_config.naming = Naming::Plain), vec!["echo", "do"]),
        (Box::new(|group_config: &mut GroupConfig| group_config.servers.truncate(1)), vec!["echo", "do"]),
        (Box::new(|_: &mut GroupConfig| {}), vec!["a__echo", "a__do", "b__echo", "b__do"]),
    ] {
        let before = tools().await;
        let mut other = config.clone();
        change(&mut other.groups[0]);
        assert_eq!(apply(&rialto, &other), AppliedChanges::default());
        if before != expected {
            wait_list_changed(&mut events, "tools").await;
        }
        assert_eq!(tools().await, expected);
    }
    assert_eq!(a.count("initialize"), 1, "the upstream is not reconnected");
}

#[tokio::test]
async fn a_call_in_flight_finishes_on_a_removed_upstream() {
    for transport in [ServerTransport::Http, ServerTransport::Sse, ServerTransport::Stdio, ServerTransport::PerRequest]
    {
        let (a, b) =
            (ScriptedServer::start("a", transport).await, ScriptedServer::start("b", ServerTransport::Http).await);
        let c = ScriptedServer::start("c", ServerTransport::PerRequest).await;
        let rialto = group(&[&a, &b, &c]).await;
        let session = rialto.open("2025-11-25").await;
        let steps = json!({ "steps": [{ "progress": 1 }, { "wait": "end" }] });
        let mut events = session.post(&calling(1, "a__do", steps)).go().await.events();
        assert_eq!(events.message().await.unwrap()["method"], "notifications/progress");
        apply(&rialto, &default_group_of(vec![spec(&b), spec(&c)]));
        let (_, refused) = session.post(&calling(2, "a__echo", json!({}))).answer().await;
        assert!(refused["error"].is_object(), "{refused}");
        a.open("end");
        let last = within_timeout("a response", events.rest()).await.pop().unwrap();
        assert_eq!(report(&last["result"])["server"], "a", "{transport:?}");
        until("the upstream has no session left", || a.sessions() == 0 && a.listeners() == 0).await;
        gone(&a.marker()).await;
        assert_eq!(b.count("initialize"), 1);
    }
}

#[tokio::test]
async fn a_removed_group_closes_its_listen_streams_and_sessions() {
    let (a, b) = (
        ScriptedServer::start("a", ServerTransport::Http).await,
        ScriptedServer::start("b", ServerTransport::Http).await,
    );
    let mut config = default_group_of(vec![spec(&a), spec(&b)]);
    config.groups.push(GroupConfig::new("extra", ["a".into(), "b".into()]));
    let rialto = gateway(config.clone()).await;
    let (modern, _) = at(&rialto, ClientTransport::PerRequest, "/extra", "ada").await;
    let filter = ListenRequest { lists: true, ..ListenRequest::default() };
    let mut listening = within_timeout("listening", modern.listen(filter.clone())).await.unwrap();
    let (other, _) = client(&rialto, ClientTransport::PerRequest, "bob").await;
    let mut going_on = within_timeout("listening", other.listen(filter)).await.unwrap();
    let (session, _) = at(&rialto, ClientTransport::Http, "/extra", "ada").await;
    call(&session, "a__echo", json!({})).await;
    assert_eq!(upstreams(&rialto)["a"].lease_count(), 1);
    config.groups.pop();
    assert_eq!(apply(&rialto, &config).closed, name("extra"));
    assert!(within_timeout("the end of the stream", listening.next()).await.is_none());
    until("its sessions have ended", || rialto.inbound.sessions.count() == 0).await;
    wait_idle(&rialto, &[&a, &b]).await;
    assert_eq!(rialto.post("/mcp/extra", &notification("x", json!({}))).status().await, 404);
    a.change("notifications/tools/list_changed", |catalog| catalog.tools.clear());
    assert!(within_timeout("a list-changed notification", going_on.next()).await.is_some(), "the other group goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_reloads_do_not_disturb_unchanged_upstreams() {
    let keep = ScriptedServer::start("keep", ServerTransport::Http).await;
    let stay = ScriptedServer::start("stay", ServerTransport::Stdio).await;
    let come = ScriptedServer::start("come", ServerTransport::Http).await;
    let rialto = group(&[&keep, &stay]).await;
    let sessions = [rialto.open("2025-11-25").await, rialto.open("2025-11-25").await];
    let steps = json!({ "steps": [{ "progress": 1 }, { "wait": "end" }, { "progress": 2 }] });
    let mut long = Vec::new();
    for (session, server) in sessions.iter().zip(["keep", "stay"]) {
        let mut events = session.post(&calling("long", &format!("{server}__do"), steps.clone())).go().await.events();
        assert_eq!(events.message().await.unwrap()["method"], "notifications/progress");
        long.push(events);
    }
    let mut events = sessions[0].get().go().await.events();
    sessions[0].ask("resources/subscribe", json!({ "uri": "rialto://keep/res://one" })).await;
    for (session, server) in sessions.iter().zip(["stay", "keep"]) {
        session.post(&calling(1, &format!("{server}__echo"), json!({}))).go().await.text().await;
    }
    let (opened, children) = (keep.count("initialize"), stay.count("initialize"));
    let (done, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let load = async |n: usize| {
        while !done.load(Ordering::Relaxed) {
            let server = ["keep", "stay"][n % 2];
            let body = calling(n as i64 + 100, &format!("{server}__echo"), json!({ "message": n }));
            let (_, answer) = sessions[n % 2].post(&body).answer().await;
            assert_eq!(report(&answer["result"])["message"], n, "{answer}");
            calls.fetch_add(1, Ordering::Relaxed);
        }
    };
    let reloads = async {
        for turn in 0..100 {
            let extra = if turn % 2 == 0 { vec![spec(&come)] } else { Vec::new() };
            let config = default_group_of([vec![spec(&keep)], extra, vec![spec(&stay)]].concat());
            let before = calls.load(Ordering::Relaxed);
            apply(&rialto, &config);
            until("calls are served", || calls.load(Ordering::Relaxed) > before).await;
        }
        done.store(true, Ordering::Relaxed);
    };
    let all = async { tokio::join!(load(0), load(1), load(2), load(3), reloads) };
    tokio::time::timeout(TEST_TIMEOUT * 3, all).await.expect("a hundred reloads in time");
    assert_eq!((keep.count("initialize"), stay.count("initialize")), (opened, children), "the same connections");
    assert_eq!(keep.count("DELETE"), 0);
    for scripted in [&keep, &stay] {
        scripted.open("end");
    }
    for events in long {
        let messages = events.rest().await;
        assert_eq!(messages[0]["params"]["progress"], 2, "{messages:?}");
        assert_eq!(report(&messages[1]["result"])["tool"], "do");
    }
    keep.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
    loop {
        let notified = within_timeout("an update", events.message()).await.unwrap();
        if notified["method"] == "notifications/resources/updated" {
            break;
        }
    }
    until("the removed upstream has no session left", || come.sessions() == 0).await;
    let now = sessions[0].ask("tools/list", json!({})).await;
    assert_eq!(column(&now["result"], "tools", "name"), ["keep__echo", "keep__do", "stay__echo", "stay__do"]);
}

#[tokio::test]
async fn calls_are_served_while_an_added_upstream_hangs() {
    let (a, bad) = (
        ScriptedServer::start("a", ServerTransport::Http).await,
        ScriptedServer::start("bad", ServerTransport::Http).await,
    );
    bad.inject_fault("server/discover", crate::scripted_server::InjectedFault::Hang);
    let b = ScriptedServer::start("b", ServerTransport::Http).await;
    let rialto = group(&[&a, &b]).await;
    let session = rialto.open("2025-11-25").await;
    apply(&rialto, &default_group_of(vec![spec(&a), spec(&b), spec(&bad)]));
    let started = std::time::Instant::now();
    let (_, answer) = session.post(&calling(1, "a__echo", json!({}))).answer().await;
    assert_eq!(report(&answer["result"])["server"], "a");
    assert!(started.elapsed() < upstream_failure::WAIT_FOR_SERVERS, "{:?}", started.elapsed());
}

#[tokio::test]
async fn stopping_right_after_a_reload_ends_the_removed_upstreams_first() {
    let a = ScriptedServer::start("a", ServerTransport::Http).await;
    let b = ScriptedServer::start("b", ServerTransport::Stdio).await;
    let mut rialto = Rialto::with(|settings| {
        settings.gateway = default_group_of(vec![spec(&a), spec(&b)]);
        settings.inbound.sse_after = Duration::ZERO;
    })
    .await;
    let running = {
        let session = rialto.open("2025-11-25").await;
        session.post(&calling(1, "b__echo", json!({}))).go().await.text().await;
        session.post(&calling(2, "a__do", json!({ "steps": [{ "wait": "end" }] }))).go().await
    };
    a.wait_received("tools/call", 1).await;
    // The removed upstreams wait for the call, and so does the stop.
    apply(&rialto, &default_group_of(Vec::new()));
    rialto.begin_stop();
    until("it is draining", || rialto.inbound.shutdown.is_draining()).await;
    a.open("end");
    let answer = running.text().await;
    assert!(answer.contains("result"), "{answer}");
    assert!(rialto.stopped().await);
    // The catalog and the client had a session each.
    assert_eq!((a.count("DELETE"), a.sessions()), (2, 0));
    // A child that was still being connected is killed, and may take a moment.
    crate::children::gone(&b.marker()).await;
}

/// Waits until a resource is reported as updated.
async fn wait_updated(events: &mut Events, uri: &str) {
    loop {
        let message = within_timeout("an update", events.message()).await.expect("the stream goes on");
        if message["method"] == "notifications/resources/updated" && message["params"]["uri"] == uri {
            return;
        }
    }
}

#[tokio::test]
async fn subscriptions_log_levels_and_listens_move_to_a_changed_server() {
    for transport in [ServerTransport::Http, ServerTransport::Stdio, ServerTransport::PerRequest] {
        let a = ScriptedServer::start("a", transport).await;
        let b = ScriptedServer::start("b", ServerTransport::Http).await;
        let rialto = group(&[&a, &b]).await;
        let session = rialto.open("2025-11-25").await;
        let uri = "rialto://a/res://one";
        let subscribed = session.ask("resources/subscribe", json!({ "uri": uri })).await;
        assert!(subscribed["result"].is_object(), "{transport:?}: {subscribed}");
        let leveled = session.ask("logging/setLevel", json!({ "level": "warning" })).await;
        assert!(leveled["result"].is_object(), "{transport:?}: {leveled}");
        let mut events = session.get().go().await.events();
        let wanted = json!({ "notifications": { "resourceSubscriptions": [uri] } });
        let mut listening = rialto.modern("subscriptions/listen", wanted).go().await.events();
        let acknowledged = listening.message().await.unwrap();
        assert_eq!(acknowledged["params"]["notifications"]["resourceSubscriptions"], json!([uri]), "{acknowledged}");

        // What a new connection is asked: a session subscribes and sets its level, a per-request server is listened to.
        let asked = match transport {
            ServerTransport::PerRequest => &["subscriptions/listen"][..],
            _ => &["resources/subscribe", "logging/setLevel"],
        };
        let before: Vec<usize> = asked.iter().map(|method| a.count(method)).collect();
        let mut changed = spec(&a);
        changed.settings.idle_timeout += std::time::Duration::from_secs(1);
        let applied = apply(&rialto, &default_group_of(vec![changed, spec(&b)]));
        assert_eq!(applied, AppliedChanges { changed: name("a"), ..AppliedChanges::default() });

        // Both clients are told what they may have missed, and what changes from now on.
        wait_updated(&mut events, uri).await;
        wait_updated(&mut listening, uri).await;
        for (method, before) in asked.iter().zip(before) {
            a.wait_received(method, before + 1).await;
        }
        until("the new connection is subscribed", || match transport {
            ServerTransport::PerRequest => {
                let last = a.received().into_iter().rfind(|received| received.kind == "subscriptions/listen");
                last.is_some_and(|listen| listen.body.to_string().contains("res://one"))
            }
            _ => a.has_subscriber("res://one"),
        })
        .await;
        a.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
        wait_updated(&mut events, uri).await;
        wait_updated(&mut listening, uri).await;
    }
}
