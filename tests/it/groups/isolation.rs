//! Clients of one group never see anything of each other, and leave nothing behind.

use futures_util::future::join_all;
use rialto::upstream::ConnectionMode;

use super::*;
use crate::children::{gone, marked};
use crate::harness::{Session, call as calling, modern};

const SERVERS: [&str; 4] = ["web", "old", "new", "child"];

/// A generator whose numbers can be had again from the seed that is printed.
struct Dice(u64);

impl Dice {
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

/// Logs, progress and an answer that all carry a mark.
fn marked_steps(mark: &str, gate: &str) -> Value {
    let log = json!({ "log": { "level": "error", "logger": "l", "data": mark } });
    json!({ "message": mark, "steps": [log, { "progress": 1 }, { "wait": gate }, log, { "progress": 2 }] })
}

/// That everything on a stream is of one call.
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
async fn two_clients_with_the_same_ids_and_tokens_never_meet() {
    let puppets = every_kind().await;
    let rialto = group(&puppets.each_ref()).await;
    let (ada, bob) = (rialto.open("2025-11-25").await, rialto.open("2025-11-25").await);
    for session in [&ada, &bob] {
        session.ask("logging/setLevel", json!({ "level": "debug" })).await;
    }
    let (ada_hears, bob_hears) = (ada.get().go().await.events(), bob.get().go().await.events());
    for (n, server) in SERVERS.iter().enumerate() {
        let both = async {
            tokio::join!(run(&ada, server, "of ada", "both"), run(&bob, server, "of bob", "both"));
        };
        let opening = async {
            puppets[n].sees("tools/call", 2).await;
            puppets[n].open("both");
        };
        in_time("both answers", async { tokio::join!(both, opening) }).await;
        let puppet = &puppets[n];
        let sessions: std::collections::BTreeSet<String> =
            puppet.seen().into_iter().filter(|seen| seen.what == "tools/call").map(|seen| seen.session).collect();
        assert_eq!(sessions.len(), if puppet.speaks() == Speaks::PerRequest { 1 } else { 2 }, "{server}");
    }
    // One ends; the other one's sessions stay.
    assert_eq!(ada.delete().status().await, 200);
    for puppet in puppets.iter().filter(|puppet| puppet.speaks() != Speaks::PerRequest) {
        until("one session is left beside the catalog's", || puppet.sessions() == 2).await;
    }
    assert_eq!(puppets[0].count("DELETE"), 1);
    until("one child is gone", || marked(&puppets[3].marker()).len() <= 2 * 3).await;
    assert!(ada_hears.rest().await.iter().all(|message| message["params"]["data"] != "of bob"));
    for server in SERVERS {
        in_time("an answer", run(&bob, server, "still bob", "both")).await;
    }
    assert_eq!(bob.delete().status().await, 200);
    assert!(bob_hears.rest().await.iter().all(|message| message["params"]["data"] != "of ada"));
    quiet(&rialto, &puppets.each_ref()).await;
}

#[tokio::test]
async fn two_clients_without_sessions_never_meet() {
    let puppets = every_kind().await;
    let rialto = group(&puppets.each_ref()).await;
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
            puppets[n].sees("tools/call", 2).await;
            puppets[n].open("both");
        };
        in_time("both answers", async { tokio::join!(one("of ada"), one("of bob"), opening) }).await;
    }
    quiet(&rialto, &puppets.each_ref()).await;
}

#[tokio::test]
async fn many_clients_at_once_never_meet() {
    let puppets = every_kind().await;
    let rialto = group(&puppets.each_ref()).await;
    for puppet in &puppets {
        puppet.open("go");
    }
    let mut dice = Dice::new();
    let plans: Vec<(usize, Vec<(u64, u64)>)> =
        (0..12).map(|n| (n, (0..10).map(|_| (dice.below(6), dice.below(20))).collect())).collect();
    let clients = plans.into_iter().map(|(n, plan)| {
        let rialto = &rialto;
        async move {
            let session = rialto.open(["2025-06-18", "2025-11-25"][n % 2]).await;
            let (asker, ear) = client(rialto, [Way::Http, Way::Sse][n % 2], &format!("asker{n}")).await;
            let mark = format!("client {n}");
            for (what, pause) in plan {
                tokio::time::sleep(Duration::from_millis(pause)).await;
                match what {
                    0..=3 => run(&session, SERVERS[what as usize], &mark, "go").await,
                    _ => {
                        let ask = json!({ "method": "roots/list" });
                        let server = SERVERS[(what as usize + n) % 4];
                        let said = call(&asker, &format!("{server}__do"), json!({ "steps": [{ "ask": ask }] })).await;
                        assert_eq!(said["answers"][0]["roots"][0]["uri"], format!("file:///asker{n}"), "{said}");
                    }
                }
            }
            assert!(ear.asked().iter().all(|asked| asked["method"] == "roots/list"));
            assert_eq!(session.delete().status().await, 200);
            asker.close().await;
        }
    });
    tokio::time::timeout(PATIENCE * 3, join_all(clients)).await.expect("all are done in time");
    until("no session is left", || rialto.inbound.sessions.count() == 0).await;
    quiet(&rialto, &puppets.each_ref()).await;
}

#[tokio::test]
async fn a_shared_upstream_is_never_asked_in_anybodys_name() {
    for speaks in [Speaks::Http, Speaks::Sse, Speaks::Stdio] {
        let (a, b) = (Puppet::start("a", speaks).await, Puppet::start("b", Speaks::Http).await);
        let mut specs = vec![spec(&a), spec(&b)];
        specs[0].connection_mode = ConnectionMode::Shared;
        let rialto = gateway(together(specs)).await;
        let ((ada, ear), (bob, _)) = (client(&rialto, Way::Http, "ada").await, client(&rialto, Way::Http, "bob").await);
        let said = call(&ada, "a__do", json!({ "steps": [{ "ask": { "method": "roots/list" } }] })).await;
        assert_eq!(said["answers"][0]["code"], -32601, "{speaks:?} {said}");
        assert!(ear.asked().is_empty());
        let sessions = [call(&ada, "a__echo", json!({})).await, call(&bob, "a__echo", json!({})).await];
        assert_eq!(sessions[0]["session"], sessions[1]["session"]);
        let introduced = a.seen().into_iter().find(|seen| seen.what == "initialize").unwrap();
        assert_eq!(introduced.body["params"]["capabilities"], json!({}));
        assert_eq!((a.sessions(), upstreams(&rialto)["a"].lease_count()), (1, 0));
    }
}

#[tokio::test]
async fn subscriptions_of_one_are_not_heard_by_another() {
    let puppets = every_kind().await;
    let rialto = group(&puppets.each_ref()).await;
    let (ada, bob) = (rialto.open("2025-11-25").await, rialto.open("2025-11-25").await);
    let (mut ada_hears, bob_hears) = (ada.get().go().await.events(), bob.get().go().await.events());
    for puppet in &puppets {
        for session in [&ada, &bob] {
            session.post(&calling(1, &format!("{}__echo", puppet.name), json!({}))).go().await.text().await;
        }
        let uri = format!("rialto://{}/res://one", puppet.name);
        assert_eq!(ada.ask("resources/subscribe", json!({ "uri": uri })).await["result"], json!({}));
        if puppet.speaks() == Speaks::PerRequest {
            let wishes =
                |seen: &crate::puppet::Seen| !seen.body["params"]["notifications"]["resourceSubscriptions"].is_null();
            until("it listens", || puppet.seen().iter().any(wishes) && puppet.listeners() == 1).await;
        }
        puppet.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
        let heard = in_time("an update", ada_hears.message()).await.unwrap();
        assert_eq!(heard["params"]["uri"], *uri, "{heard}");
    }
    bob.delete().go().await;
    assert_eq!(bob_hears.rest().await, Vec::<Value>::new());
}

/// Waits for a session to end while its connection to the upstream is only being opened.
#[tokio::test]
async fn a_client_that_goes_while_its_connection_is_opened_leaves_nothing() {
    for speaks in [Speaks::Http, Speaks::Sse, Speaks::Stdio] {
        let (a, b) = (Puppet::start("a", speaks).await, Puppet::start("b", Speaks::Http).await);
        let rialto = group(&[&a, &b]).await;
        let (ada, _) = client(&rialto, Way::Http, "ada").await;
        a.hold("initialize");
        let begun = a.count("initialize");
        let params = json!({ "name": "a__echo" });
        let mut replies = ada.begin(Method::ToolsCall, Some(Raw::of(&params)));
        tokio::select! {
            reply = replies.next() => panic!("{reply:?}"),
            () = a.sees("initialize", begun + 1) => {}
        }
        drop(replies);
        ada.close().await;
        until("the session is gone", || rialto.inbound.sessions.count() == 0).await;
        // Whoever looks now sees an end of it; the connection comes only after that.
        tokio::time::sleep(Duration::from_millis(200)).await;
        a.open("initialize");
        quiet(&rialto, &[&a, &b]).await;
    }
}

#[tokio::test]
async fn a_thousand_sessions_leave_nothing() {
    let puppets = every_kind().await;
    let rialto = group(&puppets.each_ref()).await;
    let cycle = async |n: usize| {
        let session = rialto.open("2025-11-25").await;
        // A child costs a process, so few go there.
        let server = if n % 50 == 49 { "child" } else { SERVERS[n % 3] };
        let (_, answer) = session.post(&calling(7, &format!("{server}__echo"), json!({ "message": n }))).answer().await;
        assert_eq!(report(&answer["result"])["message"], n);
        assert_eq!(session.delete().status().await, 200);
    };
    for turn in 0..100 {
        join_all((0..10).map(|n| cycle(turn * 10 + n))).await;
    }
    assert_eq!(rialto.inbound.sessions.count(), 0);
    quiet(&rialto, &puppets.each_ref()).await;
    let own = |what: &str| puppets[0].count(what);
    assert_eq!(own("DELETE") + 1, own("initialize"), "every session was ended but the catalog's");
    let marker = puppets[3].marker();
    let mut rialto = rialto;
    rialto.begin_stop();
    rialto.stopped().await;
    gone(&marker).await;
    until("no server has a session", || puppets.iter().all(|puppet| puppet.sessions() == 0)).await;
}
