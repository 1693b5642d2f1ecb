//! One upstream in trouble: it is left out and reported, comes back by itself, and nobody else notices.

use std::time::Instant;

use rialto::upstream::HealthPhase;

use super::*;
use crate::harness::{Session, call as calling, initialize};
use crate::puppet::{Mischief, tool};

/// What no client may ever read.
const SECRETS: [&str; 5] = ["127.0.0.1", "s3cret", "last words", "/mcp", "/sse"];

/// An upstream that is not waited for long.
fn hasty(mut spec: UpstreamSpec) -> UpstreamSpec {
    spec.settings.idle_timeout = Duration::from_secs(2);
    spec
}

fn is_clear(words: &str) {
    assert!(words.contains("bad"), "{words}");
    assert!(!SECRETS.iter().any(|secret| words.contains(secret)), "{words}");
}

async fn check_list(session: &Session<'_>, names: &[&str], absent: &Value) {
    let begun = Instant::now();
    let listed = session.ask("tools/list", json!({})).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "a list is there at once: {:?}", begun.elapsed());
    assert_eq!(column(&listed["result"], "tools", "name"), names);
    assert_eq!(listed["result"]["_meta"]["rialto/absent"], *absent, "{listed}");
}

/// That a group is served without `bad`, as soon as it may be.
async fn served_without(bad: UpstreamSpec) -> (Rialto, Puppet) {
    let good = Puppet::start("good", Speaks::Http).await;
    let rialto = gateway(together(vec![bad, spec(&good)])).await;
    let begun = Instant::now();
    let session = rialto.open("2025-11-25").await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    check_list(&session, &["good__echo", "good__do"], &json!(["bad"])).await;
    let begun = Instant::now();
    let other = rialto.open("2025-11-25").await;
    let (_, answer) = other.post(&calling(1, "good__echo", json!({}))).answer().await;
    assert_eq!(report(&answer["result"])["puppet"], "good");
    let (_, refused) = other.post(&calling(1, "bad__echo", json!({}))).answer().await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    let (_, listed) = rialto.modern("tools/list", json!({})).answer().await;
    assert_eq!(listed["result"]["_meta"]["rialto/absent"], json!(["bad"]), "{listed}");
    assert_eq!(listed["result"]["ttlMs"], 0);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    (rialto, good)
}

#[tokio::test]
async fn one_that_is_not_there() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    served_without(upstream("bad", Target::url(&format!("http://127.0.0.1:{port}/mcp")).unwrap())).await;
    served_without(upstream("bad", Target::command("no-such-program-anywhere", [""; 0]))).await;
    served_without(upstream("bad", Target::command("sh", ["-c", "echo 'last words' >&2; exit 3"]))).await;
}

#[tokio::test]
async fn one_that_hangs_in_the_handshake() {
    for speaks in [Speaks::Http, Speaks::Sse, Speaks::Stdio, Speaks::PerRequest] {
        let bad = Puppet::start("bad", speaks).await;
        for method in ["initialize", "server/discover", "GET"] {
            bad.misbehave(method, Mischief::Hang);
        }
        let mut slow = spec(&bad);
        slow.settings.discovery_timeout = Duration::from_secs(20);
        let begun = Instant::now();
        let (rialto, _good) = served_without(slow).await;
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        drop(rialto);
    }
}

#[tokio::test]
async fn calls_to_others_do_not_wait_for_one_that_is_slow_to_start() {
    let (good, bad) = (Puppet::start("good", Speaks::Http).await, Puppet::start("bad", Speaks::Http).await);
    bad.misbehave("server/discover", Mischief::Hang);
    let rialto = gateway(together(vec![spec(&good), spec(&bad)])).await;
    let begun = Instant::now();
    let known = || rialto.group().view().by_name(rialto::upstream::List::Tools, "good__echo").is_some();
    until("the good one is known", known).await;
    let (_, answer) = rialto.modern("tools/call", json!({ "name": "good__echo", "arguments": {} })).answer().await;
    assert_eq!(report(&answer["result"])["puppet"], "good");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

fn many(count: usize) -> Arc<dyn Fn(&Value) -> Value + Send + Sync> {
    let all = json!({ "tools": (0..count).map(|n| tool(&format!("t{n}"))).collect::<Vec<_>>() });
    Arc::new(move |_| all.clone())
}

/// A list that cannot be had is left out, and comes back with a change; the other lists are there.
async fn bad_list(speaks: Speaks, mischief: Mischief) {
    let bad = Puppet::start("bad", speaks).await;
    bad.misbehave("tools/list", mischief);
    let (rialto, _good) = served_without(hasty(spec(&bad))).await;
    let session = rialto.open("2025-11-25").await;
    let prompts = session.ask("prompts/list", json!({})).await;
    assert_eq!(column(&prompts["result"], "prompts", "name"), ["bad__hello", "good__hello"]);
    let bad_state = || upstreams(&rialto)["bad"].state();
    until("it is seen why", || !bad_state().troubles.is_empty()).await;
    let mut hears = session.get().go().await.events();
    bad.behave();
    bad.notify("notifications/tools/list_changed", &json!({}));
    let heard = in_time("a change", hears.message()).await.unwrap();
    assert_eq!(heard["method"], "notifications/tools/list_changed");
    check_list(&session, &["bad__echo", "bad__do", "good__echo", "good__do"], &Value::Null).await;
}

#[tokio::test]
async fn one_that_hangs_in_its_list() {
    bad_list(Speaks::Http, Mischief::Hang).await;
    bad_list(Speaks::Stdio, Mischief::Hang).await;
}

#[tokio::test]
async fn one_that_answers_rubbish() {
    for speaks in [Speaks::Http, Speaks::PerRequest] {
        bad_list(speaks, Mischief::Bytes(200, "<html>s3cret".into())).await;
        bad_list(speaks, Mischief::Bytes(500, "s3cret".into())).await;
    }
    bad_list(Speaks::Sse, Mischief::Result(Arc::new(|_| json!({ "tools": 5 })))).await;
    bad_list(Speaks::Stdio, Mischief::Result(Arc::new(|_| json!([])))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_lists_too_much() {
    bad_list(Speaks::Http, Mischief::Result(many(50_000))).await;
    bad_list(Speaks::Stdio, Mischief::Result(many(50_000))).await;
    let huge = json!({ "name": "huge", "description": "x".repeat(100 << 20), "inputSchema": {} });
    bad_list(Speaks::Http, Mischief::Result(Arc::new(move |_| json!({ "tools": [huge.clone()] })))).await;
    let endless: Arc<dyn Fn(&Value) -> Value + Send + Sync> = Arc::new(|params| {
        let page = params["cursor"].as_str().map_or(0, |page| page.parse::<u32>().unwrap());
        json!({ "tools": [tool(&format!("t{page}"))], "nextCursor": (page + 1).to_string() })
    });
    bad_list(Speaks::Http, Mischief::Result(Arc::clone(&endless))).await;
    bad_list(Speaks::Sse, Mischief::Result(endless)).await;
}

#[tokio::test]
async fn one_that_says_a_name_twice() {
    let twice =
        Puppet::with("twice", Speaks::Http, |offers| offers.tools = vec![tool("x"), tool("x"), json!({ "no": 1 })]);
    let (twice, good) = (twice.await, Puppet::start("good", Speaks::Http).await);
    let rialto = group(&[&twice, &good]).await;
    check_list(&rialto.open("2025-11-25").await, &["twice__x", "good__echo", "good__do"], &Value::Null).await;
}

#[tokio::test]
async fn one_that_dies_in_a_call_and_comes_back() {
    for speaks in [Speaks::Http, Speaks::Sse, Speaks::Stdio, Speaks::PerRequest] {
        let (bad, good) = (Puppet::start("bad", speaks).await, Puppet::start("good", Speaks::Http).await);
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
        let last = in_time("an end", dying.message()).await.unwrap();
        let words = last["error"]["message"].as_str().unwrap_or_else(|| panic!("{last}")).to_owned();
        assert_eq!(last["error"]["code"], -32603);
        is_clear(&last.to_string());
        assert!(words.contains("may or may not have been carried out"), "{words}");
        // While it is away calls to it are refused at once, and its lists are still there.
        let state = || upstreams(&rialto)["bad"].state().health.phase;
        until("it is known to be down", || state() == HealthPhase::Down).await;
        let begun = Instant::now();
        let (_, refused) = session.post(&calling(9, "bad__echo", json!({}))).answer().await;
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        is_clear(&refused["error"].to_string());
        let names = ["bad__echo", "bad__do", "good__echo", "good__do"];
        let absent = || rialto.group().view().members[0].state.health.phase == HealthPhase::Down;
        until("the group knows", absent).await;
        check_list(&session, &names, &json!(["bad"])).await;
        good.open("end");
        let messages = living.rest().await;
        assert_eq!(report(&messages.last().unwrap()["result"])["puppet"], "good");
        // It comes back with one tool more.
        let mut hears = session.get().go().await.events();
        bad.change("", |offers| offers.tools.push(tool("new")));
        bad.restart().await;
        loop {
            let heard = in_time("a change", hears.message()).await.unwrap();
            if heard["method"] == "notifications/tools/list_changed" {
                break;
            }
        }
        check_list(&session, &["bad__echo", "bad__do", "bad__new", "good__echo", "good__do"], &Value::Null).await;
        let (_, answer) = session.post(&calling(10, "bad__new", json!({}))).answer().await;
        assert_eq!(report(&answer["result"])["tool"], "new", "{speaks:?}");
        assert_eq!(good.count("initialize"), 2, "the other one was not disturbed");
    }
}

#[tokio::test]
async fn what_was_served_is_forgotten_after_a_while() {
    let (bad, good) = (Puppet::start("bad", Speaks::Stdio).await, Puppet::start("good", Speaks::Http).await);
    let mut short = spec(&bad);
    short.serve_stale_for = Duration::from_millis(300);
    let rialto = gateway(together(vec![short, spec(&good)])).await;
    let session = rialto.open("2025-11-25").await;
    let mut hears = session.get().go().await.events();
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
            kinds.push(in_time("a change", hears.message()).await.unwrap()["method"].as_str().unwrap().to_owned());
        }
        kinds.sort();
        assert_eq!(kinds, ["prompts", "resources", "tools"].map(|kind| format!("notifications/{kind}/list_changed")));
        let absent = if there { Value::Null } else { json!(["bad"]) };
        check_list(&session, names, &absent).await;
    }
}

#[tokio::test]
async fn one_that_forgets_its_sessions() {
    let (bad, good) = (Puppet::start("bad", Speaks::Http).await, Puppet::start("good", Speaks::Http).await);
    let rialto = group(&[&bad, &good]).await;
    let session = rialto.open("2025-11-25").await;
    session.ask("logging/setLevel", json!({ "level": "error" })).await;
    let before = session.post(&calling(1, "bad__echo", json!({}))).answer().await.1;
    session.ask("resources/subscribe", json!({ "uri": "rialto://bad/res://one" })).await;
    let (levels, subscriptions) = (bad.count("logging/setLevel"), bad.count("resources/subscribe"));
    bad.forget();
    let after = session.post(&calling(1, "bad__echo", json!({}))).answer().await.1;
    assert_ne!(report(&before["result"])["session"], report(&after["result"])["session"]);
    bad.sees("logging/setLevel", levels + 1).await;
    bad.sees("resources/subscribe", subscriptions + 1).await;
    let mut hears = session.get().go().await.events();
    let told = async {
        loop {
            bad.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let heard = async {
        tokio::select! { heard = hears.message() => heard, () = told => None }
    };
    assert_eq!(in_time("an update", heard).await.unwrap()["params"]["uri"], "rialto://bad/res://one");
    assert_eq!(session.delete().status().await, 200);
    quiet(&rialto, &[&bad, &good]).await;
}

#[tokio::test]
async fn what_goes_wrong_is_told_without_what_is_nobodys_business() {
    for speaks in [Speaks::Http, Speaks::PerRequest] {
        let (bad, good) = (Puppet::start("bad", speaks).await, Puppet::start("good", Speaks::Http).await);
        let mut secret = hasty(spec(&bad));
        let target = bad.target().with_header("Authorization", "Bearer s3cret").unwrap();
        secret.kind = SpecKind::Target(target);
        let rialto = gateway(together(vec![secret, spec(&good)])).await;
        let session = rialto.open("2025-11-25").await;
        for mischief in [
            Mischief::Bytes(401, "who is Bearer s3cret?".into()),
            Mischief::Bytes(403, "not you s3cret".into()),
            Mischief::Bytes(500, "at 127.0.0.1 s3cret".into()),
            Mischief::Bytes(502, "<html>s3cret".into()),
            Mischief::Bytes(200, "<html>s3cret".into()),
            Mischief::Bytes(200, r#"{"jsonrpc":"2.0","id":"s3cret","result":{}}"#.into()),
            Mischief::Hang,
        ] {
            bad.misbehave("tools/call", mischief);
            let (_, answer) = session.post(&calling(1, "bad__echo", json!({}))).answer().await;
            assert_eq!(answer["error"]["code"], -32603, "{answer}");
            is_clear(&answer.to_string());
        }
        assert!(bad.seen().iter().any(|seen| seen.headers.contains(&("authorization".into(), "Bearer s3cret".into()))));
    }
}

#[tokio::test]
async fn a_handshake_waits_no_longer_than_it_says() {
    let bad = Puppet::start("bad", Speaks::Http).await;
    bad.misbehave("server/discover", Mischief::Hang);
    let mut slow = spec(&bad);
    slow.settings.discovery_timeout = Duration::from_secs(20);
    let good = Puppet::with("good", Speaks::Http, |offers| offers.capabilities = json!({ "tools": {} })).await;
    let rialto = gateway(together(vec![slow, spec(&good)])).await;
    let begun = Instant::now();
    let (_, opened) = rialto.post("/mcp", &initialize("2025-11-25")).answer().await;
    let waited = begun.elapsed();
    assert!(waited > Duration::from_secs(4) && waited < Duration::from_secs(6), "{waited:?}");
    // What the other one may have is promised, because it cannot be promised later.
    for family in ["tools", "prompts", "resources", "logging", "completions"] {
        assert!(opened["result"]["capabilities"][family].is_object(), "{opened}");
    }
    let session = rialto.open("2025-11-25").await;
    let prompts = session.ask("prompts/list", json!({})).await;
    assert_eq!(prompts["result"]["prompts"], json!([]));
}

#[tokio::test]
async fn what_was_subscribed_to_is_again_when_an_upstream_comes_back() {
    for speaks in [Speaks::Http, Speaks::Sse, Speaks::Stdio] {
        let (bad, good) = (Puppet::start("bad", speaks).await, Puppet::start("good", Speaks::Http).await);
        let rialto = group(&[&bad, &good]).await;
        let session = rialto.open("2025-11-25").await;
        session.ask("resources/subscribe", json!({ "uri": "rialto://bad/res://one" })).await;
        assert_eq!(bad.count("resources/subscribe"), 1);
        let mut hears = session.get().go().await.events();
        bad.stop();
        bad.restart().await;
        // Without any call of the client.
        bad.sees("resources/subscribe", 2).await;
        let heard = in_time("what may have been missed", hears.message()).await.unwrap();
        assert_eq!(heard["params"]["uri"], "rialto://bad/res://one", "{speaks:?}");
        until("it listens again", || bad.hears("res://one")).await;
        bad.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
        let heard = in_time("an update", hears.message()).await.unwrap();
        assert_eq!(heard["params"]["uri"], "rialto://bad/res://one", "{speaks:?}");
        assert_eq!(session.delete().status().await, 200);
        quiet(&rialto, &[&bad, &good]).await;
    }
}
