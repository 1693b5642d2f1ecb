//! Failing upstreams: reported as unavailable, left out of the lists, reconnected, and invisible to other upstreams.

use std::time::Instant;

use rialto::upstream::HealthPhase;

use super::*;
use crate::harness::{Session, call as calling, initialize};
use crate::ports::ReservedPort;
use crate::scripted_server::{InjectedFault, tool};

/// Texts that must not reach a client.
const SECRETS: [&str; 5] = ["127.0.0.1", "s3cret", "last words", "/mcp", "/sse"];

/// As long as a request waits for servers that start or reconnect. What takes less did not wait.
pub const WAIT_FOR_SERVERS: Duration = Duration::from_secs(5);

/// Upstream with an idle timeout of two seconds.
fn with_short_timeout(mut spec: UpstreamSpec) -> UpstreamSpec {
    spec.settings.idle_timeout = Duration::from_secs(2);
    spec
}

fn assert_redacted(words: &str) {
    assert!(words.contains("bad"), "{words}");
    assert!(!SECRETS.iter().any(|secret| words.contains(secret)), "{words}");
}

async fn check_list(session: &Session<'_>, names: &[&str], absent: &Value) {
    let started = Instant::now();
    let listed = session.ask("tools/list", json!({})).await;
    assert!(started.elapsed() < WAIT_FOR_SERVERS, "a list waits for no server: {:?}", started.elapsed());
    assert_eq!(column(&listed["result"], "tools", "name"), names);
    assert_eq!(listed["result"]["_meta"]["rialto/unavailableServers"], *absent, "{listed}");
}

/// Asserts that the group is served promptly without the upstream `bad`.
async fn served_without(bad: UpstreamSpec) -> (Rialto, ScriptedServer) {
    let good = ScriptedServer::start("good", ServerTransport::Http).await;
    let rialto = gateway(default_group_of(vec![bad, spec(&good)])).await;
    let session = rialto.open("2025-11-25").await;
    check_list(&session, &["good__echo", "good__do"], &json!(["bad"])).await;
    let started = Instant::now();
    let other = rialto.open("2025-11-25").await;
    let (_, answer) = other.post(&calling(1, "good__echo", json!({}))).answer().await;
    assert_eq!(report(&answer["result"])["server"], "good");
    let (_, refused) = other.post(&calling(1, "bad__echo", json!({}))).answer().await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    let (_, listed) = rialto.modern("tools/list", json!({})).answer().await;
    assert_eq!(listed["result"]["_meta"]["rialto/unavailableServers"], json!(["bad"]), "{listed}");
    assert_eq!(listed["result"]["ttlMs"], 0);
    assert!(started.elapsed() < WAIT_FOR_SERVERS, "{:?}", started.elapsed());
    (rialto, good)
}

#[tokio::test]
async fn an_unreachable_upstream_is_left_out_of_the_lists() {
    let away = ReservedPort::new();
    served_without(upstream("bad", Target::url(&format!("http://{away}/mcp")).unwrap())).await;
    served_without(upstream("bad", Target::command("no-such-program-anywhere", [""; 0]))).await;
    served_without(upstream("bad", Target::command("sh", ["-c", "echo 'last words' >&2; exit 3"]))).await;
}

#[tokio::test]
async fn an_upstream_that_hangs_in_the_handshake_is_left_out() {
    for transport in [ServerTransport::Http, ServerTransport::Sse, ServerTransport::Stdio, ServerTransport::PerRequest]
    {
        let bad = ScriptedServer::start("bad", transport).await;
        for method in ["initialize", "server/discover", "GET"] {
            bad.inject_fault(method, InjectedFault::Hang);
        }
        let mut slow = spec(&bad);
        // Whoever waits for the handshake is not answered within the time of a test.
        slow.settings.discovery_timeout = TEST_TIMEOUT * 2;
        served_without(slow).await;
    }
}

#[tokio::test]
async fn calls_do_not_wait_for_another_upstream_that_is_starting() {
    let (good, bad) = (
        ScriptedServer::start("good", ServerTransport::Http).await,
        ScriptedServer::start("bad", ServerTransport::Http).await,
    );
    bad.inject_fault("server/discover", InjectedFault::Hang);
    let mut slow = spec(&bad);
    slow.settings.discovery_timeout = TEST_TIMEOUT * 2;
    let rialto = gateway(default_group_of(vec![spec(&good), slow])).await;
    let known =
        || rialto.group().view(Revision::NEWEST).find_by_name(rialto::upstream::List::Tools, "good__echo").is_some();
    until("the catalog of the good upstream is loaded", known).await;
    let started = Instant::now();
    let (_, answer) = rialto.modern("tools/call", json!({ "name": "good__echo", "arguments": {} })).answer().await;
    assert_eq!(report(&answer["result"])["server"], "good");
    assert!(started.elapsed() < WAIT_FOR_SERVERS, "{:?}", started.elapsed());
}

fn many(count: usize) -> Arc<dyn Fn(&Value) -> Value + Send + Sync> {
    let all = json!({ "tools": (0..count).map(|n| tool(&format!("t{n}"))).collect::<Vec<_>>() });
    Arc::new(move |_| all.clone())
}

/// A list that fails to load is left out and returns with a list-changed notification; the other lists are served.
async fn bad_list(transport: ServerTransport, fault: InjectedFault) {
    let bad = ScriptedServer::start("bad", transport).await;
    bad.inject_fault("tools/list", fault);
    let (rialto, _good) = served_without(with_short_timeout(spec(&bad))).await;
    let session = rialto.open("2025-11-25").await;
    let prompts = session.ask("prompts/list", json!({})).await;
    assert_eq!(column(&prompts["result"], "prompts", "name"), ["bad__hello", "good__hello"]);
    let bad_state = || upstreams(&rialto)["bad"].state();
    until("the catalog reports the failure", || !bad_state().list_errors.is_empty()).await;
    let mut events = session.get().go().await.events();
    bad.clear_faults();
    bad.notify("notifications/tools/list_changed", &json!({}));
    let notified = within_timeout("a list-changed notification", events.message()).await.unwrap();
    assert_eq!(notified["method"], "notifications/tools/list_changed");
    check_list(&session, &["bad__echo", "bad__do", "good__echo", "good__do"], &Value::Null).await;
}

#[tokio::test]
async fn an_upstream_that_hangs_in_a_list_is_left_out() {
    bad_list(ServerTransport::Http, InjectedFault::Hang).await;
    bad_list(ServerTransport::Stdio, InjectedFault::Hang).await;
}

#[tokio::test]
async fn an_upstream_with_malformed_responses_is_left_out() {
    for transport in [ServerTransport::Http, ServerTransport::PerRequest] {
        bad_list(transport, InjectedFault::RawResponse(200, "<html>s3cret".into())).await;
        bad_list(transport, InjectedFault::RawResponse(500, "s3cret".into())).await;
    }
    bad_list(ServerTransport::Sse, InjectedFault::Result(Arc::new(|_| json!({ "tools": 5 })))).await;
    bad_list(ServerTransport::Stdio, InjectedFault::Result(Arc::new(|_| json!([])))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_with_an_oversized_list_is_left_out() {
    bad_list(ServerTransport::Http, InjectedFault::Result(many(50_000))).await;
    bad_list(ServerTransport::Stdio, InjectedFault::Result(many(50_000))).await;
    let huge = json!({ "name": "huge", "description": "x".repeat(100 << 20), "inputSchema": {} });
    bad_list(ServerTransport::Http, InjectedFault::Result(Arc::new(move |_| json!({ "tools": [huge.clone()] })))).await;
    let endless: Arc<dyn Fn(&Value) -> Value + Send + Sync> = Arc::new(|params| {
        let page = params["cursor"].as_str().map_or(0, |page| page.parse::<u32>().unwrap());
        json!({ "tools": [tool(&format!("t{page}"))], "nextCursor": (page + 1).to_string() })
    });
    bad_list(ServerTransport::Http, InjectedFault::Result(Arc::clone(&endless))).await;
    bad_list(ServerTransport::Sse, InjectedFault::Result(endless)).await;
}

#[tokio::test]
async fn duplicate_and_invalid_tools_of_an_upstream_are_dropped() {
    let twice = ScriptedServer::with("twice", ServerTransport::Http, |catalog| {
        catalog.tools = vec![tool("x"), tool("x"), json!({ "no": 1 })];
    });
    let (twice, good) = (twice.await, ScriptedServer::start("good", ServerTransport::Http).await);
    let rialto = group(&[&twice, &good]).await;
    check_list(&rialto.open("2025-11-25").await, &["twice__x", "good__echo", "good__do"], &Value::Null).await;
}

#[tokio::test]
async fn an_upstream_that_dies_in_a_call_fails_it_and_is_reconnected() {
    for transport in [ServerTransport::Http, ServerTransport::Sse, ServerTransport::Stdio, ServerTransport::PerRequest]
    {
        let (bad, good) =
            (ScriptedServer::start("bad", transport).await, ScriptedServer::start("good", ServerTransport::Http).await);
        let rialto = group(&[&bad, &good]).await;
        let session = rialto.open("2025-11-25").await;
        let wait = |name: &str| {
            calling(name, &format!("{name}__do"), json!({ "steps": [{ "progress": 1 }, { "wait": "end" }] }))
        };
        let (mut dying, mut living) =
            (session.post(&wait("bad")).go().await.events(), session.post(&wait("good")).go().await.events());
        for events in [&mut dying, &mut living] {
            assert_eq!(events.message().await.unwrap()["method"], "notifications/progress");
        }
        bad.stop();
        let last = within_timeout("the end of the stream", dying.message()).await.unwrap();
        let words = last["error"]["message"].as_str().unwrap_or_else(|| panic!("{last}")).to_owned();
        assert_eq!(last["error"]["code"], -32603);
        assert_redacted(&last.to_string());
        assert!(words.contains("may have been carried out"), "{words}");
        // While the upstream is down, calls to it fail immediately and its stale lists are served.
        let state = || upstreams(&rialto)["bad"].state().health.phase;
        until("the upstream is down", || state() == HealthPhase::Down).await;
        let started = Instant::now();
        let (_, refused) = session.post(&calling(9, "bad__echo", json!({}))).answer().await;
        assert!(started.elapsed() < WAIT_FOR_SERVERS, "{:?}", started.elapsed());
        assert_redacted(&refused["error"].to_string());
        let names = ["bad__echo", "bad__do", "good__echo", "good__do"];
        let absent = || rialto.group().view(Revision::NEWEST).members[0].state.health.phase == HealthPhase::Down;
        until("the group view shows the failure", absent).await;
        check_list(&session, &names, &json!(["bad"])).await;
        good.open("end");
        let messages = living.rest().await;
        assert_eq!(report(&messages.last().unwrap()["result"])["server"], "good");
        // The upstream returns with one more tool.
        let mut events = session.get().go().await.events();
        bad.change("", |catalog| catalog.tools.push(tool("new")));
        bad.restart().await;
        loop {
            let notified = within_timeout("a list-changed notification", events.message()).await.unwrap();
            if notified["method"] == "notifications/tools/list_changed" {
                break;
            }
        }
        check_list(&session, &["bad__echo", "bad__do", "bad__new", "good__echo", "good__do"], &Value::Null).await;
        let (_, answer) = session.post(&calling(10, "bad__new", json!({}))).answer().await;
        assert_eq!(report(&answer["result"])["tool"], "new", "{transport:?}");
        assert_eq!(good.count("initialize"), 2, "the other upstream is not reconnected");
    }
}

#[tokio::test]
async fn stale_lists_expire_after_serve_stale_for() {
    let (bad, good) = (
        ScriptedServer::start("bad", ServerTransport::Stdio).await,
        ScriptedServer::start("good", ServerTransport::Http).await,
    );
    let mut short = spec(&bad);
    short.serve_stale_for = Duration::from_millis(300);
    let rialto = gateway(default_group_of(vec![short, spec(&good)])).await;
    let session = rialto.open("2025-11-25").await;
    let mut events = session.get().go().await.events();
    for (there, names) in
        [(false, &["good__echo", "good__do"][..]), (true, &["bad__echo", "bad__do", "good__echo", "good__do"])]
    {
        if there {
            bad.restart().await;
        } else {
            bad.stop();
        }
        let mut kinds = Vec::new();
        for _ in 0..3 {
            kinds.push(
                within_timeout("a list-changed notification", events.message()).await.unwrap()["method"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
            );
        }
        kinds.sort();
        assert_eq!(kinds, ["prompts", "resources", "tools"].map(|kind| format!("notifications/{kind}/list_changed")));
        let absent = if there { Value::Null } else { json!(["bad"]) };
        check_list(&session, names, &absent).await;
    }
}

#[tokio::test]
async fn an_expired_upstream_session_is_reopened_with_level_and_subscriptions() {
    let (bad, good) = (
        ScriptedServer::start("bad", ServerTransport::Http).await,
        ScriptedServer::start("good", ServerTransport::Http).await,
    );
    let rialto = group(&[&bad, &good]).await;
    let session = rialto.open("2025-11-25").await;
    session.ask("logging/setLevel", json!({ "level": "error" })).await;
    let before = session.post(&calling(1, "bad__echo", json!({}))).answer().await.1;
    session.ask("resources/subscribe", json!({ "uri": "rialto://bad/res://one" })).await;
    let (levels, subscriptions) = (bad.count("logging/setLevel"), bad.count("resources/subscribe"));
    bad.forget_sessions();
    let after = session.post(&calling(1, "bad__echo", json!({}))).answer().await.1;
    assert_ne!(report(&before["result"])["session"], report(&after["result"])["session"]);
    bad.wait_received("logging/setLevel", levels + 1).await;
    bad.wait_received("resources/subscribe", subscriptions + 1).await;
    let mut events = session.get().go().await.events();
    until("the new session is subscribed and listens", || bad.has_subscriber("res://one")).await;
    bad.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
    let notified = within_timeout("an update", events.message()).await.unwrap();
    assert_eq!(notified["method"], "notifications/resources/updated");
    assert_eq!(notified["params"]["uri"], "rialto://bad/res://one");
    assert_eq!(session.delete().status().await, 200);
    wait_idle(&rialto, &[&bad, &good]).await;
}

#[tokio::test]
async fn upstream_errors_are_redacted_for_clients() {
    for transport in [ServerTransport::Http, ServerTransport::PerRequest] {
        let (bad, good) =
            (ScriptedServer::start("bad", transport).await, ScriptedServer::start("good", ServerTransport::Http).await);
        let mut secret = with_short_timeout(spec(&bad));
        let target = bad.target().with_header("Authorization", "Bearer s3cret").unwrap();
        secret.kind = SpecKind::Target(target);
        let rialto = gateway(default_group_of(vec![secret, spec(&good)])).await;
        let session = rialto.open("2025-11-25").await;
        for fault in [
            InjectedFault::RawResponse(401, "who is Bearer s3cret?".into()),
            InjectedFault::RawResponse(403, "not you s3cret".into()),
            InjectedFault::RawResponse(500, "at 127.0.0.1 s3cret".into()),
            InjectedFault::RawResponse(502, "<html>s3cret".into()),
            InjectedFault::RawResponse(200, "<html>s3cret".into()),
            InjectedFault::RawResponse(200, r#"{"jsonrpc":"2.0","id":"s3cret","result":{}}"#.into()),
            InjectedFault::Hang,
        ] {
            bad.inject_fault("tools/call", fault);
            let (_, answer) = session.post(&calling(1, "bad__echo", json!({}))).answer().await;
            assert_eq!(answer["error"]["code"], -32603, "{answer}");
            assert_redacted(&answer.to_string());
        }
        assert!(
            bad.received()
                .iter()
                .any(|received| received.headers.contains(&("authorization".into(), "Bearer s3cret".into())))
        );
    }
}

#[tokio::test]
async fn a_handshake_does_not_wait_for_an_upstream_in_discovery() {
    let bad = ScriptedServer::start("bad", ServerTransport::Http).await;
    bad.inject_fault("server/discover", InjectedFault::Hang);
    let mut slow = spec(&bad);
    slow.settings.discovery_timeout = TEST_TIMEOUT * 3;
    let good =
        ScriptedServer::with("good", ServerTransport::Http, |catalog| catalog.capabilities = json!({ "tools": {} }))
            .await;
    let rialto = gateway(default_group_of(vec![slow, spec(&good)])).await;
    let started = Instant::now();
    let (_, opened) = rialto.post("/mcp", &initialize("2025-11-25")).answer().await;
    // Discovery is still pending, so the handshake has ended by its own wait of five seconds.
    assert!(started.elapsed() > Duration::from_secs(4), "{:?}", started.elapsed());
    assert_eq!((bad.count("server/discover"), bad.count("initialize")), (1, 0));
    let phase = upstreams(&rialto)["bad"].state().health.phase;
    assert!(!matches!(phase, HealthPhase::Down | HealthPhase::Ready), "{phase:?}");
    // Capabilities of the pending upstream are declared in advance: they cannot be declared after the handshake.
    for family in ["tools", "prompts", "resources", "logging", "completions"] {
        assert!(opened["result"]["capabilities"][family].is_object(), "{opened}");
    }
    let session = rialto.open("2025-11-25").await;
    let prompts = session.ask("prompts/list", json!({})).await;
    assert_eq!(prompts["result"]["prompts"], json!([]));
}

#[tokio::test]
async fn subscriptions_are_restored_after_an_upstream_reconnects() {
    for transport in [ServerTransport::Http, ServerTransport::Sse, ServerTransport::Stdio] {
        let (bad, good) =
            (ScriptedServer::start("bad", transport).await, ScriptedServer::start("good", ServerTransport::Http).await);
        let rialto = group(&[&bad, &good]).await;
        let session = rialto.open("2025-11-25").await;
        session.ask("resources/subscribe", json!({ "uri": "rialto://bad/res://one" })).await;
        assert_eq!(bad.count("resources/subscribe"), 1);
        let mut events = session.get().go().await.events();
        bad.stop();
        bad.restart().await;
        // The gateway resubscribes without a request from the client.
        bad.wait_received("resources/subscribe", 2).await;
        let notified = within_timeout("the synthetic update", events.message()).await.unwrap();
        assert_eq!(notified["params"]["uri"], "rialto://bad/res://one", "{transport:?}");
        until("the listening stream is open again", || bad.has_subscriber("res://one")).await;
        bad.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
        let notified = within_timeout("an update", events.message()).await.unwrap();
        assert_eq!(notified["params"]["uri"], "rialto://bad/res://one", "{transport:?}");
        assert_eq!(session.delete().status().await, 200);
        wait_idle(&rialto, &[&bad, &good]).await;
    }
}
