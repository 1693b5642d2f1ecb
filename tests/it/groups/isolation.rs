//! Isolation: clients of one group receive nothing of each other, and leave no sessions, leases or children behind.

use futures_util::future::join_all;
use rialto::upstream::ConnectionMode;

use super::*;
use crate::children::{gone, marked};
use crate::harness::{Session, call as calling, modern};

const SERVERS: [&str; 4] = ["web", "old", "new", "child"];

/// Pseudo-random generator; the printed `SEED` reproduces a run.
struct PlanRng(u64);

impl PlanRng {
    fn new() -> Self {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = seed.unwrap_or_else(now) | 1;
        println!("SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Arguments of a call whose log messages, progress and result all carry `mark`.
fn marked_steps(mark: &str, gate: &str) -> Value {
    let log = json!({ "log": { "level": "error", "logger": "l", "data": mark } });
    json!({ "message": mark, "steps": [log, { "progress": 1 }, { "wait": gate }, log, { "progress": 2 }] })
}

/// Asserts that every message on a stream belongs to the call with this mark.
fn check(messages: &[Value], mark: &str) {
    let of = |method: &str| messages.iter().filter(|message| message["method"] == method).collect::<Vec<_>>();
    let progress: Vec<_> = of("notifications/progress").iter().map(|message| message["params"].clone()).collect();
    let expected = [1, 2].map(|n| json!({ "progressToken": "token", "progress": n }));
    assert_eq!(progress, expected, "{mark}: {messages:?}");
    let logs = of("notifications/message");
    assert!(logs.iter().all(|log| log["params"]["data"] == mark), "{mark}: {messages:?}");
    let last = messages.last().unwrap();
    assert_eq!((&last["id"], &report(&last["result"])["message"]), (&json!(7), &json!(mark)), "{messages:?}");
}

async fn run(session: &Session<'_>, server: &str, mark: &str, gate: &str) {
    let received = session.post(&calling(7, &format!("{server}__do"), marked_steps(mark, gate))).go().await;
    check(&received.events().rest().await, mark);
}

#[tokio::test]
async fn isolation_of_two_sessions_with_equal_ids_and_progress_tokens() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    let (ada, bob) = (rialto.open("2025-11-25").await, rialto.open("2025-11-25").await);
    for session in [&ada, &bob] {
        session.ask("logging/setLevel", json!({ "level": "debug" })).await;
    }
    let (ada_events, bob_events) = (ada.get().go().await.events(), bob.get().go().await.events());
    for (n, server) in SERVERS.iter().enumerate() {
        let both = async {
            tokio::join!(run(&ada, server, "of ada", "both"), run(&bob, server, "of bob", "both"));
        };
        let opening = async {
            scripted_servers[n].wait_received("tools/call", 2).await;
            scripted_servers[n].open("both");
        };
        within_timeout("both responses", async { tokio::join!(both, opening) }).await;
        let scripted = &scripted_servers[n];
        let sessions: std::collections::BTreeSet<String> = scripted
            .received()
            .into_iter()
            .filter(|received| received.kind == "tools/call")
            .map(|received| received.session)
            .collect();
        assert_eq!(sessions.len(), if scripted.transport() == ServerTransport::PerRequest { 1 } else { 2 }, "{server}");
    }
    // Deleting one session leaves the upstream sessions of the other.
    assert_eq!(ada.delete().status().await, 200);
    for scripted in scripted_servers.iter().filter(|scripted| scripted.transport() != ServerTransport::PerRequest) {
        until("one session is left beside the catalog's", || scripted.sessions() == 2).await;
    }
    assert_eq!(scripted_servers[0].count("DELETE"), 1);
    until("one child is gone", || marked(&scripted_servers[3].marker()).len() <= 2 * 3).await;
    assert!(ada_events.rest().await.iter().all(|message| message["params"]["data"] != "of bob"));
    for server in SERVERS {
        within_timeout("a response", run(&bob, server, "still bob", "both")).await;
    }
    assert_eq!(bob.delete().status().await, 200);
    assert!(bob_events.rest().await.iter().all(|message| message["params"]["data"] != "of ada"));
    wait_idle(&rialto, &scripted_servers.each_ref()).await;
}

#[tokio::test]
async fn isolation_of_two_per_request_clients() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    for (n, server) in SERVERS.iter().enumerate() {
        let one = async |mark: &str| {
            let mut params = json!({ "name": format!("{server}__do"), "arguments": marked_steps(mark, "both") });
            params["_meta"]["progressToken"] = "token".into();
            params["_meta"]["io.modelcontextprotocol/logLevel"] = "debug".into();
            let post = rialto.post("/mcp", &modern(7.into(), "tools/call", params.clone()));
            let messages = post.modern_headers("tools/call", &params).go().await.events().rest().await;
            check(&messages, mark);
            let logs = messages.iter().filter(|message| message["method"] == "notifications/message").count();
            assert_eq!(logs, 2, "{messages:?}");
        };
        let opening = async {
            scripted_servers[n].wait_received("tools/call", 2).await;
            scripted_servers[n].open("both");
        };
        within_timeout("both responses", async { tokio::join!(one("of ada"), one("of bob"), opening) }).await;
    }
    wait_idle(&rialto, &scripted_servers.each_ref()).await;
}

#[tokio::test]
async fn isolation_of_many_concurrent_clients() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    for scripted in &scripted_servers {
        scripted.open("go");
    }
    let mut rng = PlanRng::new();
    let plans: Vec<(usize, Vec<(u64, u64)>)> =
        (0..12).map(|n| (n, (0..10).map(|_| (rng.below(6), rng.below(20))).collect())).collect();
    let clients = plans.into_iter().map(|(n, group_config)| {
        let rialto = &rialto;
        async move {
            let session = rialto.open(["2025-06-18", "2025-11-25"][n % 2]).await;
            let (asker, host) =
                client(rialto, [ClientTransport::Http, ClientTransport::Sse][n % 2], &format!("asker{n}")).await;
            let mark = format!("client {n}");
            for (what, pause) in group_config {
                tokio::time::sleep(Duration::from_millis(pause)).await;
                match what {
                    0..=3 => run(&session, SERVERS[what as usize], &mark, "go").await,
                    _ => {
                        let ask = json!({ "method": "roots/list" });
                        let server = SERVERS[(what as usize + n) % 4];
                        let reported =
                            call(&asker, &format!("{server}__do"), json!({ "steps": [{ "ask": ask }] })).await;
                        assert_eq!(
                            reported["answers"][0]["roots"][0]["uri"],
                            format!("file:///asker{n}"),
                            "{reported}"
                        );
                    }
                }
            }
            assert!(host.server_requests().iter().all(|asked| asked["method"] == "roots/list"));
            assert_eq!(session.delete().status().await, 200);
            asker.close().await;
        }
    });
    tokio::time::timeout(TEST_TIMEOUT * 3, join_all(clients)).await.expect("all are done in time");
    until("no session is left", || rialto.inbound.sessions.count() == 0).await;
    wait_idle(&rialto, &scripted_servers.each_ref()).await;
}

#[tokio::test]
async fn server_requests_are_refused_on_a_shared_upstream_connection() {
    for transport in [ServerTransport::Http, ServerTransport::Sse, ServerTransport::Stdio] {
        let (a, b) =
            (ScriptedServer::start("a", transport).await, ScriptedServer::start("b", ServerTransport::Http).await);
        let mut specs = vec![spec(&a), spec(&b)];
        specs[0].connection_mode = ConnectionMode::Shared;
        let rialto = gateway(default_group_of(specs)).await;
        let ((ada, host), (bob, _)) =
            (client(&rialto, ClientTransport::Http, "ada").await, client(&rialto, ClientTransport::Http, "bob").await);
        let reported = call(&ada, "a__do", json!({ "steps": [{ "ask": { "method": "roots/list" } }] })).await;
        assert_eq!(reported["answers"][0]["code"], -32601, "{transport:?} {reported}");
        assert!(host.server_requests().is_empty());
        let sessions = [call(&ada, "a__echo", json!({})).await, call(&bob, "a__echo", json!({})).await];
        assert_eq!(sessions[0]["session"], sessions[1]["session"]);
        let introduced = a.received().into_iter().find(|received| received.kind == "initialize").unwrap();
        assert_eq!(introduced.body["params"]["capabilities"], json!({}));
        assert_eq!((a.sessions(), upstreams(&rialto)["a"].lease_count()), (1, 0));
    }
}

#[tokio::test]
async fn isolation_of_subscriptions_between_sessions() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    let (ada, bob) = (rialto.open("2025-11-25").await, rialto.open("2025-11-25").await);
    let (mut ada_events, bob_events) = (ada.get().go().await.events(), bob.get().go().await.events());
    for scripted in &scripted_servers {
        for session in [&ada, &bob] {
            session.post(&calling(1, &format!("{}__echo", scripted.name), json!({}))).go().await.text().await;
        }
        let uri = format!("rialto://{}/res://one", scripted.name);
        assert_eq!(ada.ask("resources/subscribe", json!({ "uri": uri })).await["result"], json!({}));
        if scripted.transport() == ServerTransport::PerRequest {
            let filter = |received: &crate::scripted_server::ReceivedMessage| {
                !received.body["params"]["notifications"]["resourceSubscriptions"].is_null()
            };
            until("the listen stream is open", || scripted.received().iter().any(filter) && scripted.listeners() == 1)
                .await;
        }
        scripted.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
        let notified = within_timeout("an update", ada_events.message()).await.unwrap();
        assert_eq!(notified["params"]["uri"], *uri, "{notified}");
    }
    bob.delete().go().await;
    assert_eq!(bob_events.rest().await, Vec::<Value>::new());
}

/// The session ends while its lease is still connecting to the upstream.
#[tokio::test]
async fn a_session_deleted_while_its_lease_connects_leaves_no_lease() {
    for transport in [ServerTransport::Http, ServerTransport::Sse, ServerTransport::Stdio] {
        let (a, b) =
            (ScriptedServer::start("a", transport).await, ScriptedServer::start("b", ServerTransport::Http).await);
        let rialto = group(&[&a, &b]).await;
        let (ada, _) = client(&rialto, ClientTransport::Http, "ada").await;
        a.hold_responses("initialize");
        let started = a.count("initialize");
        let params = json!({ "name": "a__echo" });
        let mut replies = ada.begin(Method::ToolsCall, Some(Raw::of(&params)));
        tokio::select! {
            reply = replies.next() => panic!("{reply:?}"),
            () = a.wait_received("initialize", started + 1) => {}
        }
        drop(replies);
        ada.close().await;
        until("the session has ended", || rialto.inbound.sessions.count() == 0).await;
        // Bounded wait: nothing reports that the connecting lease has noticed the end of its session, and it must do so
        // while `initialize` is still held.
        tokio::time::sleep(Duration::from_millis(200)).await;
        a.open("initialize");
        wait_idle(&rialto, &[&a, &b]).await;
    }
}

#[tokio::test]
async fn a_thousand_sessions_leave_no_leases_sessions_or_children() {
    let scripted_servers = one_of_each_transport().await;
    let rialto = group(&scripted_servers.each_ref()).await;
    let cycle = async |n: usize| {
        let session = rialto.open("2025-11-25").await;
        // Each stdio session costs a process, so only every 50th goes there.
        let server = if n % 50 == 49 { "child" } else { SERVERS[n % 3] };
        let (_, answer) = session.post(&calling(7, &format!("{server}__echo"), json!({ "message": n }))).answer().await;
        assert_eq!(report(&answer["result"])["message"], n);
        assert_eq!(session.delete().status().await, 200);
    };
    for turn in 0..100 {
        join_all((0..10).map(|n| cycle(turn * 10 + n))).await;
    }
    assert_eq!(rialto.inbound.sessions.count(), 0);
    wait_idle(&rialto, &scripted_servers.each_ref()).await;
    let own = |what: &str| scripted_servers[0].count(what);
    assert_eq!(own("DELETE") + 1, own("initialize"), "every session was ended but the catalog's");
    let marker = scripted_servers[3].marker();
    let mut rialto = rialto;
    rialto.begin_stop();
    rialto.stopped().await;
    gone(&marker).await;
    until("no server has a session", || scripted_servers.iter().all(|scripted| scripted.sessions() == 0)).await;
}
