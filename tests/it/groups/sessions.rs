//! Sessions of groups: where the session id is read from, which group it belongs to, and what is forwarded upstream.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::harness::{HttpRequest, call as calling, initialize, notification, request};

/// Builds the same request for a group.
type Post<'a> = Box<dyn Fn(&str) -> HttpRequest + 'a>;

async fn two_groups(change: impl FnOnce(&mut rialto::app::AppSettings)) -> (Rialto, [ScriptedServer; 2]) {
    let scripted_servers = [
        ScriptedServer::start("a", ServerTransport::Http).await,
        ScriptedServer::start("b", ServerTransport::Http).await,
    ];
    let mut config = default_group_of(scripted_servers.iter().map(spec).collect());
    config.groups.push(GroupConfig::new("extra", ["a".into(), "b".into()]));
    let rialto = Rialto::with(|settings| {
        settings.gateway = config;
        change(settings);
    })
    .await;
    (rialto, scripted_servers)
}

#[tokio::test]
async fn session_id_is_accepted_in_path_header_and_query() {
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
        assert_eq!(post("default").status().await, 404, "{name}: the session belongs to another group");
    }
    sessions.dedup();
    assert_eq!(sessions.len(), 1, "one session has one lease");
    assert_eq!((a.count("initialize"), upstreams(&rialto)["a"].lease_count()), (2, 1));
    let unprefixed = id.strip_prefix("http:").unwrap();
    let (status, _) = rialto.post("/mcp/extra", &echo).header("mcp-session-id", unprefixed).answer().await;
    assert_eq!(status, 200);
    let as_sse = rialto.post(&format!("/message/extra?sessionId={encoded}"), &echo).status().await;
    assert_eq!(as_sse, 404, "not reachable by the other transport");
}

#[tokio::test]
async fn initialized_hook_runs_once_per_session() {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    let (rialto, _scripted_servers) = two_groups(|settings| {
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
    // A session that sends a request without the `initialized` notification counts as initialized.
    let opened = rialto.post("/mcp", &initialize("2025-11-25")).go().await;
    let id = opened.header("mcp-session-id").unwrap().to_owned();
    rialto.post("/mcp", &request(1, "tools/list", json!({}))).header("mcp-session-id", &id).go().await;
    rialto.post("/mcp", &initialized).header("mcp-session-id", &id).go().await;
    let (sse, _) = at(&rialto, ClientTransport::Sse, "/extra", "ada").await;
    tools(&sse).await;
    assert_eq!(count.load(Ordering::SeqCst), 3);
    let (modern, _) = client(&rialto, ClientTransport::PerRequest, "ada").await;
    tools(&modern).await;
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn unknown_members_and_credentials_are_not_forwarded_upstream() {
    let (rialto, scripted_servers) = two_groups(|_| {}).await;
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
    scripted_servers[0].wait_received("notifications/roots/list_changed", 1).await;
    for received in scripted_servers.iter().flat_map(ScriptedServer::received) {
        let all = format!("{} {:?}", received.body, received.headers);
        assert!(!["some-model", "x-odd", "of-the-client", "a__echo"].iter().any(|word| all.contains(word)), "{all}");
    }
}
