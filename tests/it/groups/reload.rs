//! Another layout: what is new comes, what is gone goes, and what is as it was is not disturbed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rialto::client::ListenRequest;
use rialto::gateway::{Applied, Naming, ToolFilter};

use super::*;
use crate::children::gone;
use crate::harness::{Events, call as calling, notification};

fn apply(rialto: &Rialto, layout: &GatewayConfig) -> Applied {
    rialto.inbound.gateway.apply(layout)
}

/// The next change that is heard of a list.
async fn hears(events: &mut Events, kind: &str) {
    loop {
        let heard = in_time("a change", events.message()).await.expect("the stream goes on");
        if heard["method"] == format!("notifications/{kind}/list_changed") {
            return;
        }
    }
}

fn name(text: &str) -> Vec<Arc<str>> {
    vec![text.into()]
}

#[tokio::test]
async fn upstreams_come_and_go_and_change() {
    let a = Puppet::start("a", Speaks::Http).await;
    let b = Puppet::start("b", Speaks::Stdio).await;
    let c = Puppet::start("c", Speaks::PerRequest).await;
    let rialto = group(&[&a, &b]).await;
    let session = rialto.open("2025-11-25").await;
    for server in ["a", "b"] {
        session.post(&calling(1, &format!("{server}__echo"), json!({}))).go().await.text().await;
    }
    let mut events = session.get().go().await.events();
    let (modern, _) = client(&rialto, Way::PerRequest, "ada").await;
    let wishes = ListenRequest { lists: true, ..ListenRequest::default() };
    let mut listening = in_time("listening", modern.listen(wishes)).await.unwrap();
    let listed = async |expected: &[&str]| {
        let listed = session.ask("tools/list", json!({})).await;
        let names: Vec<String> = expected.iter().flat_map(|s| [format!("{s}__echo"), format!("{s}__do")]).collect();
        assert_eq!(column(&listed["result"], "tools", "name"), names);
    };

    assert_eq!(apply(&rialto, &together(vec![spec(&a), spec(&b)])), Applied::default(), "nothing is new");
    let added = apply(&rialto, &together(vec![spec(&a), spec(&c), spec(&b)]));
    assert_eq!(added, Applied { added: name("c"), ..Applied::default() });
    for kind in ["tools", "prompts", "resources"] {
        hears(&mut events, kind).await;
    }
    listed(&["a", "c", "b"]).await;
    let mut told = Vec::new();
    while told.len() < 3 {
        let notice = in_time("a change", listening.next()).await.expect("it goes on").notice;
        if !told.contains(&notice) {
            told.push(notice);
        }
    }
    let (_, answer) = session.post(&calling(2, "c__echo", json!({}))).answer().await;
    assert_eq!(report(&answer["result"])["puppet"], "c");

    let removed = apply(&rialto, &together(vec![spec(&a), spec(&c)]));
    assert_eq!(removed, Applied { removed: name("b"), ..Applied::default() });
    hears(&mut events, "tools").await;
    listed(&["a", "c"]).await;
    gone(&b.marker()).await;
    until("its sessions are gone", || b.sessions() == 0).await;
    let (_, refused) = session.post(&calling(3, "b__echo", json!({}))).answer().await;
    assert_eq!(refused["error"]["code"], -32602);
    assert_eq!(
        (a.count("initialize"), a.count("DELETE"), c.count("server/discover")),
        (2, 0, c.count("server/discover"))
    );

    let mut other = spec(&a);
    other.list_poll_interval = Duration::from_secs(7);
    let changed = apply(&rialto, &together(vec![other, spec(&c)]));
    assert_eq!(changed, Applied { changed: name("a"), ..Applied::default() });
    until("the old sessions are ended", || a.count("DELETE") == 2).await;
    let (_, answer) = session.post(&calling(4, "a__echo", json!({}))).answer().await;
    assert_eq!(report(&answer["result"])["puppet"], "a");
    listed(&["a", "c"]).await;

    // Only one is left, whose names are its own.
    let alone = apply(&rialto, &together(vec![spec(&c)]));
    assert_eq!(alone.removed, name("a"));
    hears(&mut events, "tools").await;
    let names = session.ask("tools/list", json!({})).await;
    assert_eq!(column(&names["result"], "tools", "name"), ["echo", "do"]);
    until("nothing is left of it", || a.sessions() == 0).await;
}

#[tokio::test]
async fn plans_change_what_is_shown() {
    let (a, b) = (Puppet::start("a", Speaks::Http).await, Puppet::start("b", Speaks::PerRequest).await);
    let layout = together(vec![spec(&a), spec(&b)]);
    let rialto = gateway(layout.clone()).await;
    let session = rialto.open("2025-11-25").await;
    let mut events = session.get().go().await.events();
    let tools = async || {
        let listed = session.ask("tools/list", json!({})).await;
        column(&listed["result"], "tools", "name")
    };
    assert_eq!(tools().await, ["a__echo", "a__do", "b__echo", "b__do"]);
    for (change, expected) in [
        (
            Box::new(|plan: &mut GroupConfig| plan.servers.reverse()) as Box<dyn Fn(&mut GroupConfig)>,
            vec!["b__echo", "b__do", "a__echo", "a__do"],
        ),
        (
            Box::new(|plan: &mut GroupConfig| plan.tools = ToolFilter::new(&[], &["*do".to_owned()])),
            vec!["a__echo", "b__echo"],
        ),
        (Box::new(|plan: &mut GroupConfig| plan.naming = Naming::Plain), vec!["echo", "do"]),
        (Box::new(|plan: &mut GroupConfig| plan.servers.truncate(1)), vec!["echo", "do"]),
        (Box::new(|_: &mut GroupConfig| {}), vec!["a__echo", "a__do", "b__echo", "b__do"]),
    ] {
        let before = tools().await;
        let mut other = layout.clone();
        change(&mut other.groups[0]);
        assert_eq!(apply(&rialto, &other), Applied::default());
        if before != expected {
            hears(&mut events, "tools").await;
        }
        assert_eq!(tools().await, expected);
    }
    assert_eq!(a.count("initialize"), 1, "its connection was never touched");
}

#[tokio::test]
async fn a_call_may_finish_on_an_upstream_that_is_removed() {
    for speaks in [Speaks::Http, Speaks::Sse, Speaks::Stdio, Speaks::PerRequest] {
        let (a, b) = (Puppet::start("a", speaks).await, Puppet::start("b", Speaks::Http).await);
        let c = Puppet::start("c", Speaks::PerRequest).await;
        let rialto = group(&[&a, &b, &c]).await;
        let session = rialto.open("2025-11-25").await;
        let steps = json!({ "steps": [{ "progress": 1 }, { "wait": "end" }] });
        let mut events = session.post(&calling(1, "a__do", steps)).go().await.events();
        assert_eq!(events.message().await.unwrap()["method"], "notifications/progress");
        apply(&rialto, &together(vec![spec(&b), spec(&c)]));
        let (_, refused) = session.post(&calling(2, "a__echo", json!({}))).answer().await;
        assert!(refused["error"].is_object(), "{refused}");
        a.open("end");
        let last = in_time("an answer", events.rest()).await.pop().unwrap();
        assert_eq!(report(&last["result"])["puppet"], "a", "{speaks:?}");
        until("nothing is left of it", || a.sessions() == 0 && a.listeners() == 0).await;
        gone(&a.marker()).await;
        assert_eq!(b.count("initialize"), 1);
    }
}

#[tokio::test]
async fn a_removed_group_ends_with_its_listeners_and_sessions() {
    let (a, b) = (Puppet::start("a", Speaks::Http).await, Puppet::start("b", Speaks::Http).await);
    let mut layout = together(vec![spec(&a), spec(&b)]);
    layout.groups.push(GroupConfig::new("extra", ["a".into(), "b".into()]));
    let rialto = gateway(layout.clone()).await;
    let (modern, _) = at(&rialto, Way::PerRequest, "/extra", "ada").await;
    let wishes = ListenRequest { lists: true, ..ListenRequest::default() };
    let mut listening = in_time("listening", modern.listen(wishes.clone())).await.unwrap();
    let (other, _) = client(&rialto, Way::PerRequest, "bob").await;
    let mut going_on = in_time("listening", other.listen(wishes)).await.unwrap();
    let (session, _) = at(&rialto, Way::Http, "/extra", "ada").await;
    call(&session, "a__echo", json!({})).await;
    assert_eq!(upstreams(&rialto)["a"].lease_count(), 1);
    layout.groups.pop();
    assert_eq!(apply(&rialto, &layout).closed, name("extra"));
    assert!(in_time("an end", listening.next()).await.is_none());
    until("its sessions have ended", || rialto.inbound.sessions.count() == 0).await;
    quiet(&rialto, &[&a, &b]).await;
    assert_eq!(rialto.post("/mcp/extra", &notification("x", json!({}))).status().await, 404);
    a.change("notifications/tools/list_changed", |offers| offers.tools.clear());
    assert!(in_time("a change", going_on.next()).await.is_some(), "the others go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_reloads_disturb_nobody() {
    let keep = Puppet::start("keep", Speaks::Http).await;
    let stay = Puppet::start("stay", Speaks::Stdio).await;
    let come = Puppet::start("come", Speaks::Http).await;
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
            let layout = together([vec![spec(&keep)], extra, vec![spec(&stay)]].concat());
            let before = calls.load(Ordering::Relaxed);
            apply(&rialto, &layout);
            until("calls go on", || calls.load(Ordering::Relaxed) > before).await;
        }
        done.store(true, Ordering::Relaxed);
    };
    let all = async { tokio::join!(load(0), load(1), load(2), load(3), reloads) };
    tokio::time::timeout(PATIENCE * 3, all).await.expect("a hundred reloads in time");
    assert_eq!((keep.count("initialize"), stay.count("initialize")), (opened, children), "the same connections");
    assert_eq!(keep.count("DELETE"), 0);
    for puppet in [&keep, &stay] {
        puppet.open("end");
    }
    for events in long {
        let messages = events.rest().await;
        assert_eq!(messages[0]["params"]["progress"], 2, "{messages:?}");
        assert_eq!(report(&messages[1]["result"])["tool"], "do");
    }
    keep.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
    loop {
        let heard = in_time("an update", events.message()).await.unwrap();
        if heard["method"] == "notifications/resources/updated" {
            break;
        }
    }
    until("nothing is left of what went", || come.sessions() == 0).await;
    let now = sessions[0].ask("tools/list", json!({})).await;
    assert_eq!(column(&now["result"], "tools", "name"), ["keep__echo", "keep__do", "stay__echo", "stay__do"]);
}

#[tokio::test]
async fn calls_go_on_while_a_new_upstream_hangs() {
    let (a, bad) = (Puppet::start("a", Speaks::Http).await, Puppet::start("bad", Speaks::Http).await);
    bad.misbehave("server/discover", crate::puppet::Mischief::Hang);
    let b = Puppet::start("b", Speaks::Http).await;
    let rialto = group(&[&a, &b]).await;
    let session = rialto.open("2025-11-25").await;
    apply(&rialto, &together(vec![spec(&a), spec(&b), spec(&bad)]));
    let begun = std::time::Instant::now();
    let (_, answer) = session.post(&calling(1, "a__echo", json!({}))).answer().await;
    assert_eq!(report(&answer["result"])["puppet"], "a");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}
