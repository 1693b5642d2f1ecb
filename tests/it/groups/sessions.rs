//! Sessions of groups: how they are named, whose they are, and what of a request goes further.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::harness::{Sending, call as calling, initialize, notification, request};

/// Sends the same to a group.
type Post<'a> = Box<dyn Fn(&str) -> Sending + 'a>;

async fn two_groups(change: impl FnOnce(&mut rialto::app::AppSettings)) -> (Rialto, [Puppet; 2]) {
    let puppets = [Puppet::start("a", Speaks::Http).await, Puppet::start("b", Speaks::Http).await];
    let mut layout = together(puppets.iter().map(spec).collect());
    layout.groups.push(GroupConfig::new("extra", ["a".into(), "b".into()]));
    let rialto = Rialto::with(|settings| {
        settings.gateway = layout;
        change(settings);
    })
    .await;
    (rialto, puppets)
}

#[tokio::test]
async fn a_session_is_found_by_every_name_of_it() {
    let (rialto, [a, _b]) = two_groups(|_| {}).await;
    let opened = rialto.post("/mcp/extra", &initialize("2025-11-25")).go().await;
    let id = opened.header("mcp-session-id").unwrap().to_owned();
    opened.text().await;
    let encoded = id.replace(':', "%3A");
    let echo = calling(1, "a__echo", json!({}));
    let ways: [(&str, Post); 4] = [
        ("path", Box::new(|group| rialto.post(&format!("/mcp/{group}/{encoded}"), &echo))),
        ("header", Box::new(|group| rialto.post(&format!("/mcp/{group}"), &echo).header("mcp-session-id", &id))),
        ("other header", Box::new(|group| rialto.post(&format!("/mcp/{group}"), &echo).header("x-session-id", &id))),
        ("query", Box::new(|group| rialto.post(&format!("/mcp/{group}?sessionId={encoded}"), &echo))),
    ];
    let mut sessions = Vec::new();
    for (name, post) in &ways {
        let (status, answer) = post("extra").answer().await;
        assert_eq!(status, 200, "{name}: {answer}");
        sessions.push(report(&answer["result"])["session"].clone());
        assert_eq!(post("default").status().await, 404, "{name}: it is of another group");
    }
    sessions.dedup();
    assert_eq!(sessions.len(), 1, "one session, one connection");
    assert_eq!((a.count("initialize"), upstreams(&rialto)["a"].lease_count()), (2, 1));
    let unprefixed = id.strip_prefix("http:").unwrap();
    let (status, _) = rialto.post("/mcp/extra", &echo).header("mcp-session-id", unprefixed).answer().await;
    assert_eq!(status, 200);
    let as_sse = rialto.post(&format!("/message/extra?sessionId={encoded}"), &echo).status().await;
    assert_eq!(as_sse, 404, "never by the other transport");
}

#[tokio::test]
async fn the_hook_runs_once_for_each_session() {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    let (rialto, _puppets) = two_groups(|settings| {
        settings.inbound.hooks.on_initialized = Some(Arc::new(move |_| {
            counting.fetch_add(1, Ordering::SeqCst);
        }));
    })
    .await;
    let session = rialto.open("2025-11-25").await;
    let initialized = notification("notifications/initialized", json!({}));
    let again = (0..10).map(|_| session.post(&initialized).status());
    assert!(futures_util::future::join_all(again).await.iter().all(|status| *status == 202));
    session.ask("tools/list", json!({})).await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    // One that says nothing of it, but goes on, is as good.
    let opened = rialto.post("/mcp", &initialize("2025-11-25")).go().await;
    let id = opened.header("mcp-session-id").unwrap().to_owned();
    rialto.post("/mcp", &request(1, "tools/list", json!({}))).header("mcp-session-id", &id).go().await;
    rialto.post("/mcp", &initialized).header("mcp-session-id", &id).go().await;
    let (sse, _) = at(&rialto, Way::Sse, "/extra", "ada").await;
    tools(&sse).await;
    assert_eq!(count.load(Ordering::SeqCst), 3);
    let (modern, _) = client(&rialto, Way::PerRequest, "ada").await;
    tools(&modern).await;
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn what_does_not_belong_to_a_message_goes_no_further() {
    let (rialto, puppets) = two_groups(|_| {}).await;
    let session = rialto.open("2025-11-25").await;
    let mut body = calling(1, "a__echo", json!({ "message": "hi" }));
    body["model"] = "some-model".into();
    body["x-odd"] = json!({ "deep": [1] });
    let sending = session.post(&body).header("authorization", "Bearer of-the-client").header("cookie", "of=the-client");
    let (_, answer) = sending.answer().await;
    assert_eq!(report(&answer["result"])["message"], "hi");
    let mut notice = notification("notifications/roots/list_changed", json!({}));
    notice["model"] = "some-model".into();
    assert_eq!(session.post(&notice).status().await, 202);
    puppets[0].sees("notifications/roots/list_changed", 1).await;
    for seen in puppets.iter().flat_map(Puppet::seen) {
        let all = format!("{} {:?}", seen.body, seen.headers);
        assert!(!["some-model", "x-odd", "of-the-client", "a__echo"].iter().any(|word| all.contains(word)), "{all}");
    }
}
