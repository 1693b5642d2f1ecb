//! A client that is served by another gateway than before goes on with the very sessions that servers
//! keep for it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use rialto::call::{Call, Caller, ClientInfo as Caps, ClientSink, DropGuard, GatewaySlot, Reply, ServerRequest};
use rialto::protocol::Level;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::children::{gone, marked};
use crate::puppet::Mischief;

/// What all gateways know of one client.
#[derive(Debug, Default)]
struct Store {
    kept: Mutex<HashMap<String, Bytes>>,
    /// Everything that was ever to be remembered.
    told: Mutex<Vec<Option<Value>>>,
}

/// A client as one gateway has it.
#[derive(Debug)]
struct Ada {
    store: Arc<Store>,
    moved: AtomicBool,
    ended: CancellationToken,
    heard: Mutex<Vec<Notification>>,
    shelf: GatewaySlot,
}

impl ClientSink for Ada {
    fn key(&self) -> u128 {
        7
    }

    fn level(&self) -> Option<Level> {
        None
    }

    fn notify(&self, notification: Notification) {
        self.heard.lock().unwrap().push(notification);
    }

    fn ask(self: Arc<Self>, question: ServerRequest) {
        question.abandon();
    }

    fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    fn subscribed(&self, _uri: &str, _kept: DropGuard) {}

    fn unsubscribed(&self, _uri: &str) {}

    fn follows(&self, _uri: &str) -> bool {
        false
    }

    fn shelf(&self) -> &GatewaySlot {
        &self.shelf
    }

    fn remembered(&self, upstream: &str) -> Option<Bytes> {
        self.store.kept.lock().unwrap().get(upstream).cloned()
    }

    fn remember(&self, upstream: &str, what: Option<Bytes>) {
        self.store.told.lock().unwrap().push(what.as_ref().map(|what| serde_json::from_slice(what).unwrap()));
        let mut kept = self.store.kept.lock().unwrap();
        match what {
            Some(what) => kept.insert(upstream.into(), what),
            None => kept.remove(upstream),
        };
    }

    fn moved_to_other_node(&self) -> bool {
        self.moved.load(Ordering::SeqCst)
    }
}

impl Ada {
    fn at(store: &Arc<Store>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(store),
            moved: AtomicBool::new(false),
            ended: CancellationToken::new(),
            heard: Mutex::default(),
            shelf: GatewaySlot::default(),
        })
    }

    /// Lives on elsewhere.
    fn moves(&self) {
        self.moved.store(true, Ordering::SeqCst);
        self.ended.cancel();
    }

    fn heard(&self, notice: &Notice) -> usize {
        self.heard.lock().unwrap().iter().filter(|heard| heard.notice == *notice).count()
    }

    fn asking(self: &Arc<Self>, method: &str, params: &Value) -> Call {
        let info = Raw::of(&json!({ "name": "ada", "version": "1" }));
        let client = Caps { revision: Revision::NEWEST_HANDSHAKE, capabilities: Raw::empty(), info: Some(info) };
        Call {
            id: 1.into(),
            method: method.into(),
            params: Some(Raw::of(params)),
            client: Arc::new(client),
            caller: Arc::new(Caller { principal: "ada".into(), peer: None, headers: HeaderMap::new() }),
            level: None,
            progress: None,
            sink: Some(Arc::clone(self) as _),
        }
    }

    async fn request(self: &Arc<Self>, rialto: &Rialto, method: &str, params: Value) -> Value {
        let mut replies = rialto.group().handle(&self.asking(method, &params));
        loop {
            match in_time(method, replies.next()).await.unwrap() {
                Reply::End(answer) => return value(&answer.outcome.unwrap_or_else(|error| panic!("{error:?}"))),
                Reply::Notice(_) => {}
                Reply::Question(question) => question.abandon(),
            }
        }
    }

    /// Calls a tool, and gives the session at the server and how many calls there were in it.
    async fn call(self: &Arc<Self>, rialto: &Rialto) -> (String, i64) {
        let said = report(&self.request(rialto, "tools/call", json!({ "name": "echo", "arguments": {} })).await);
        (said["session"].as_str().unwrap().to_owned(), said["calls"].as_i64().unwrap())
    }
}

impl Store {
    /// The session that is remembered.
    fn session(&self) -> Option<String> {
        let kept = self.kept.lock().unwrap();
        let kept: Value = serde_json::from_slice(kept.get("web")?).unwrap();
        Some(kept["session"].as_str().unwrap().to_owned())
    }

    fn told(&self) -> Vec<Option<String>> {
        let session = |told: &Option<Value>| told.as_ref().map(|told| told["session"].as_str().unwrap().to_owned());
        self.told.lock().unwrap().iter().map(session).collect()
    }
}

/// How often a client has introduced itself to a puppet; the gateways' own do not count.
fn introduced(puppet: &Puppet) -> usize {
    let of_ada = |seen: &crate::puppet::Seen| seen.body["params"]["clientInfo"]["name"] == "ada";
    puppet.seen().iter().filter(|seen| seen.what == "initialize" && of_ada(seen)).count()
}

/// How often something was sent to a puppet in a session.
fn sent(puppet: &Puppet, what: &str, session: &str) -> usize {
    puppet.seen().iter().filter(|seen| seen.what == what && seen.session == session).count()
}

async fn let_go(rialto: &Rialto) {
    until("nothing is lent", || upstreams(rialto).values().all(|upstream| upstream.lease_count() == 0)).await;
}

/// Time enough for something to be sent that must not be.
async fn a_while() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

#[tokio::test]
async fn a_session_goes_on_at_another_gateway() {
    let web = Puppet::start("web", Speaks::Http).await;
    let (mut first, second) = (group(&[&web]).await, group(&[&web]).await);
    let store = Arc::<Store>::default();
    let here = Ada::at(&store);
    let (session, _) = here.call(&first).await;
    assert_eq!(here.call(&first).await, (session.clone(), 2));
    here.request(&first, "resources/subscribe", json!({ "uri": "res://one" })).await;
    let told = store.told.lock().unwrap().clone();
    let [Some(told)] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!(told["session"], *session);
    assert_eq!(told["url"], format!("http://{}/mcp", web.address));
    assert_eq!(told["revision"], "2025-11-25");
    assert_eq!(told["result"]["serverInfo"]["name"], "web");

    let running = json!({ "name": "do", "arguments": { "steps": [{ "wait": "forever" }] } });
    let mut running = first.group().handle(&here.asking("tools/call", &running));
    tokio::select! {
        reply = running.next() => panic!("{reply:?}"),
        () = web.sees("tools/call", 3) => {}
    }
    // What runs is let go a moment before all the rest.
    here.moved.store(true, Ordering::SeqCst);
    drop(running);
    here.ended.cancel();
    let_go(&first).await;
    first.begin_stop();
    assert!(first.stopped().await);
    a_while().await;
    assert_eq!(sent(&web, "DELETE", &session), 0);
    assert_eq!(sent(&web, "notifications/cancelled", &session), 0, "nothing is told");
    assert_eq!(sent(&web, "abandoned", &session), 1, "what is open is closed");

    let there = Ada::at(&store);
    assert_eq!(there.call(&second).await, (session.clone(), 3));
    assert_eq!((introduced(&web), sent(&web, "notifications/initialized", &session)), (1, 1));
    assert_eq!(sent(&web, "GET", &session), 2, "each of them listens");
    assert_eq!(store.told().len(), 1, "nothing is new");
    // What was subscribed to is still told.
    web.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
    until("it hears", || there.heard(&Notice::ResourceUpdated) == 1).await;
    // No id stands for two requests of one session.
    there.call(&second).await;
    there.call(&second).await;
    let request =
        |seen: &&crate::puppet::Seen| seen.session == session && seen.what != "abandoned" && !seen.body["id"].is_null();
    let ids: Vec<String> = web.seen().iter().filter(request).map(|seen| seen.body["id"].to_string()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");

    there.ended.cancel();
    let_go(&second).await;
    until("it is ended", || sent(&web, "DELETE", &session) == 1).await;
}

#[tokio::test]
async fn it_listens_as_soon_as_the_stream_before_is_gone() {
    let web = Puppet::start("web", Speaks::Http).await;
    let (first, second) = (group(&[&web]).await, group(&[&web]).await);
    let store = Arc::<Store>::default();
    let here = Ada::at(&store);
    let (session, _) = here.call(&first).await;
    here.request(&first, "resources/subscribe", json!({ "uri": "res://one" })).await;
    here.moves();
    let_go(&first).await;
    web.misbehave("GET", Mischief::Bytes(409, "Conflict: Only one SSE stream is allowed per session".into()));
    let there = Ada::at(&store);
    there.call(&second).await;
    until("it is refused", || sent(&web, "GET", &session) == 2).await;
    web.behave();
    until("it listens", || sent(&web, "GET", &session) == 3).await;
    until("it hears", || {
        web.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
        there.heard(&Notice::ResourceUpdated) > 0
    })
    .await;
}

#[tokio::test]
async fn what_is_said_while_nobody_listens_is_made_up_for() {
    let web = Puppet::start("web", Speaks::Http).await;
    let rialto = group(&[&web]).await;
    let ada = Ada::at(&Arc::default());
    let (session, _) = ada.call(&rialto).await;
    ada.request(&rialto, "resources/subscribe", json!({ "uri": "res://one" })).await;
    web.end_streams();
    web.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
    until("it listens again", || sent(&web, "GET", &session) == 2).await;
    until("it is told", || ada.heard(&Notice::ResourceUpdated) == 1).await;
}

#[tokio::test]
async fn one_that_the_server_forgot_is_opened_anew() {
    let web = Puppet::start("web", Speaks::Http).await;
    let (first, second) = (group(&[&web]).await, group(&[&web]).await);
    let store = Arc::<Store>::default();
    let here = Ada::at(&store);
    let (before, _) = here.call(&first).await;
    here.moves();
    let_go(&first).await;
    web.forget();
    let there = Ada::at(&store);
    let (after, calls) = there.call(&second).await;
    assert_ne!(before, after);
    assert_eq!((calls, introduced(&web)), (1, 2));
    assert_eq!(store.told(), [Some(before), Some(after.clone())]);
    // The same when it happens later.
    web.forget();
    let (last, _) = there.call(&second).await;
    assert_eq!(store.session(), Some(last.clone()));
    assert_ne!(last, after);
}

#[tokio::test]
async fn what_cannot_be_gone_on_with_is_ignored() {
    let web = Puppet::start("web", Speaks::Http).await;
    let rialto = group(&[&web]).await;
    let store = Arc::<Store>::default();
    let ada = Ada::at(&store);
    let (known, _) = ada.call(&rialto).await;
    ada.moves();
    let_go(&rialto).await;
    let good: Value = serde_json::from_slice(&store.kept.lock().unwrap()["web"]).unwrap();
    let other = |key: &str, value: Value| {
        let mut other = good.clone();
        other[key] = value;
        other.to_string()
    };
    let mut modern = good.clone();
    modern["revision"] = "2026-07-28".into();
    modern["result"]["protocolVersion"] = "2026-07-28".into();
    let useless = [
        String::new(),
        "rubbish".into(),
        "[1]".into(),
        "{}".into(),
        other("url", "http://127.0.0.1:1/mcp".into()),
        other("session", 5.into()),
        other("session", "".into()),
        other("session", "two\nlines".into()),
        other("revision", "2025-06-18".into()),
        other("revision", "of old".into()),
        other("result", Value::Null),
        modern.to_string(),
    ];
    for useless in useless {
        store.kept.lock().unwrap().insert("web".into(), useless.clone().into());
        let introductions = introduced(&web);
        let ada = Ada::at(&store);
        let (session, calls) = ada.call(&rialto).await;
        assert_eq!((calls, introduced(&web)), (1, introductions + 1), "{useless}");
        assert_ne!(session, known);
        assert_eq!(store.session(), Some(session), "{useless}");
        ada.ended.cancel();
        let_go(&rialto).await;
    }
    // One whose revision may not be spoken.
    let mut pinned = spec(&web);
    pinned.settings.revision = Revision::parse("2025-06-18");
    let pinned = gateway(together(vec![pinned])).await;
    store.kept.lock().unwrap().insert("web".into(), good.to_string().into());
    assert_ne!(Ada::at(&store).call(&pinned).await.0, known);
    // And what was good is good.
    store.kept.lock().unwrap().insert("web".into(), good.to_string().into());
    assert_eq!(Ada::at(&store).call(&rialto).await, (known, 2));
}

#[tokio::test]
async fn one_that_has_not_moved_takes_its_sessions_along() {
    let web = Puppet::start("web", Speaks::Http).await;
    let mut rialto = group(&[&web]).await;
    let store = Arc::<Store>::default();
    let ada = Ada::at(&store);
    let (session, _) = ada.call(&rialto).await;
    ada.ended.cancel();
    let_go(&rialto).await;
    until("it is ended", || sent(&web, "DELETE", &session) == 1).await;
    // The same when the gateway goes before its client.
    store.kept.lock().unwrap().clear();
    let (stays, goes) = (Ada::at(&store), Ada::at(&Arc::default()));
    let (left, _) = goes.call(&rialto).await;
    goes.moves();
    let_go(&rialto).await;
    let (session, _) = stays.call(&rialto).await;
    rialto.begin_stop();
    assert!(rialto.stopped().await);
    assert_eq!((sent(&web, "DELETE", &session), sent(&web, "DELETE", &left)), (1, 0));
    assert_eq!(store.session(), None, "nobody can go on with it");
}

#[tokio::test]
async fn a_gateway_that_stops_leaves_the_sessions_of_those_who_moved() {
    let web = Puppet::start("web", Speaks::Http).await;
    let (mut first, second) = (group(&[&web]).await, group(&[&web]).await);
    let store = Arc::<Store>::default();
    let here = Ada::at(&store);
    let (session, _) = here.call(&first).await;
    here.moved.store(true, Ordering::SeqCst);
    first.begin_stop();
    assert!(first.stopped().await);
    assert_eq!(sent(&web, "DELETE", &session), 0);
    assert_eq!(Ada::at(&store).call(&second).await, (session, 2));
}

#[tokio::test]
async fn a_session_that_nobody_knows_of_is_ended() {
    let web = Puppet::start("web", Speaks::Http).await;
    let rialto = group(&[&web]).await;
    rialto.group().wait_ready().await;
    web.sees("initialize", 1).await;
    web.hold("initialize");
    let store = Arc::<Store>::default();
    let ada = Ada::at(&store);
    let mut replies = rialto.group().handle(&ada.asking("tools/call", &json!({ "name": "echo" })));
    tokio::select! {
        reply = replies.next() => panic!("{reply:?}"),
        () = web.sees("initialize", 2) => {}
    }
    drop(replies);
    // It is only being opened when its client moves: where that is now, nobody hears of it.
    ada.moves();
    web.open("initialize");
    let_go(&rialto).await;
    until("it is ended", || web.count("DELETE") == 1).await;
    assert_eq!(store.told(), []);
}

#[tokio::test]
async fn a_session_that_gets_another_name_goes_on_by_that() {
    let web = Puppet::start("web", Speaks::Http).await;
    let (first, second) = (group(&[&web]).await, group(&[&web]).await);
    let store = Arc::<Store>::default();
    let here = Ada::at(&store);
    let (session, _) = here.call(&first).await;
    web.rename(&session, "another");
    here.call(&first).await;
    assert_eq!(store.told(), [Some(session), Some("another".into())]);
    here.moves();
    let_go(&first).await;
    assert_eq!(Ada::at(&store).call(&second).await.1, 3);
    assert_eq!((introduced(&web), sent(&web, "tools/call", "another")), (1, 1));
}

#[tokio::test]
async fn the_lists_of_a_session_go_on_with_it() {
    let web = Puppet::start("web", Speaks::Http).await;
    let (first, second) = (group(&[&web]).await, group(&[&web]).await);
    let store = Arc::<Store>::default();
    let here = Ada::at(&store);
    let grow = json!({ "name": "do", "arguments": { "steps": [{ "grow": "extra" }] } });
    here.request(&first, "tools/call", grow).await;
    until("it hears", || here.heard(&Notice::ToolsChanged) == 1).await;
    here.moves();
    let_go(&first).await;
    let there = Ada::at(&store);
    there.call(&second).await;
    until("it hears", || there.heard(&Notice::ToolsChanged) == 1).await;
    let listed = there.request(&second, "tools/list", json!({})).await;
    assert_eq!(column(&listed, "tools", "name"), ["echo", "do", "extra"]);
    there.request(&second, "tools/call", json!({ "name": "extra" })).await;
}

#[tokio::test]
async fn servers_that_cannot_be_gone_on_with_are_let_go() {
    for speaks in [Speaks::Stdio, Speaks::Sse, Speaks::PerRequest] {
        let web = Puppet::start("web", speaks).await;
        let rialto = group(&[&web]).await;
        let store = Arc::<Store>::default();
        let ada = Ada::at(&store);
        ada.request(&rialto, "tools/call", json!({ "name": "echo", "arguments": {} })).await;
        let children = marked(&web.marker()).len();
        ada.moves();
        quiet(&rialto, &[&web]).await;
        assert_eq!(store.told(), [], "{speaks:?}");
        if speaks == Speaks::Stdio {
            until("its child is gone", || marked(&web.marker()).len() <= children / 2).await;
            drop(rialto);
            web.stop();
            gone(&web.marker()).await;
        }
    }
}

#[tokio::test]
async fn an_upstream_that_is_changed_leaves_no_session_to_the_next() {
    let web = Puppet::start("web", Speaks::Http).await;
    let rialto = group(&[&web]).await;
    let store = Arc::<Store>::default();
    let ada = Ada::at(&store);
    let (before, _) = ada.call(&rialto).await;
    let running = ada.asking("tools/call", &json!({ "name": "do", "arguments": { "steps": [{ "wait": "end" }] } }));
    let mut running = rialto.group().handle(&running);
    tokio::select! {
        reply = running.next() => panic!("{reply:?}"),
        () = web.sees("tools/call", 2) => {}
    }
    let mut other = spec(&web);
    other.settings.idle_timeout = Duration::from_secs(50);
    rialto.inbound.gateway.apply(&together(vec![other]));
    let begun = tokio::time::Instant::now();
    until("it is forgotten", || store.session().is_none()).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "at once, whatever still runs in it: {:?}", begun.elapsed());
    let (after, _) = ada.call(&rialto).await;
    assert_ne!(before, after);
    // The one before ends with its last call, and takes nothing along.
    web.open("end");
    assert!(matches!(in_time("an answer", running.next()).await, Some(Reply::End(_))));
    drop(running);
    until("it is ended", || sent(&web, "DELETE", &before) == 1).await;
    assert_eq!(store.told(), [Some(before), None, Some(after.clone())]);
    assert_eq!(ada.call(&rialto).await, (after, 2));
    assert_eq!(introduced(&web), 2);
}
