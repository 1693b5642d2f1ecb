//! Resumption of upstream sessions: a client that moves to another gateway continues in the same upstream sessions.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rialto::call::{
    AnswerDelivery, Call, Caller, ClientInfo as Caps, ClientSink, DropGuard, GatewaySlot, Reply, ServerRequest,
};
use rialto::protocol::Level;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::children::{gone, marked};
use crate::scripted_server::InjectedFault;

/// Upstream-session records of one client, shared by all gateways.
#[derive(Debug, Default)]
struct SharedRecords {
    records: Mutex<HashMap<String, Bytes>>,
    /// Every write so far; `None` is a removal.
    writes: Mutex<Vec<Option<Value>>>,
}

/// Client session at one gateway, which can move to another gateway.
#[derive(Debug)]
struct MovingClient {
    store: Arc<SharedRecords>,
    moved: AtomicBool,
    ended: CancellationToken,
    notifications: Mutex<Vec<Notification>>,
    shelf: GatewaySlot,
}

impl ClientSink for MovingClient {
    fn key(&self) -> u128 {
        7
    }

    fn level(&self) -> Option<Level> {
        None
    }

    fn notify(&self, notification: Notification) {
        self.notifications.lock().unwrap().push(notification);
    }

    fn send_request(self: Arc<Self>, question: ServerRequest) {
        question.abandon();
    }

    fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    fn add_subscription(&self, _uri: &str, _kept: DropGuard) {}

    fn remove_subscription(&self, _uri: &str) {}

    fn is_subscribed(&self, _uri: &str) -> bool {
        false
    }

    fn gateway_slot(&self) -> &GatewaySlot {
        &self.shelf
    }

    fn saved_upstream_session(&self, upstream: &str) -> Option<Bytes> {
        self.store.records.lock().unwrap().get(upstream).cloned()
    }

    fn save_upstream_session(&self, upstream: &str, what: Option<Bytes>) {
        self.store.writes.lock().unwrap().push(what.as_ref().map(|what| serde_json::from_slice(what).unwrap()));
        let mut records = self.store.records.lock().unwrap();
        match what {
            Some(what) => records.insert(upstream.into(), what),
            None => records.remove(upstream),
        };
    }

    fn moved_to_other_node(&self) -> bool {
        self.moved.load(Ordering::SeqCst)
    }
}

impl MovingClient {
    fn at(store: &Arc<SharedRecords>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(store),
            moved: AtomicBool::new(false),
            ended: CancellationToken::new(),
            notifications: Mutex::default(),
            shelf: GatewaySlot::default(),
        })
    }

    /// Ends the session here because another gateway has taken it over.
    fn move_to_other_gateway(&self) {
        self.moved.store(true, Ordering::SeqCst);
        self.ended.cancel();
    }

    fn notifications(&self, notice: &NotificationMethod) -> usize {
        self.notifications.lock().unwrap().iter().filter(|notified| notified.method == *notice).count()
    }

    fn make_call(self: &Arc<Self>, method: &str, params: &Value) -> Call {
        let info = Raw::of(&json!({ "name": "ada", "version": "1" }));
        let client = Caps { revision: Revision::NEWEST_HANDSHAKE, capabilities: Raw::empty(), info: Some(info) };
        Call {
            target_label: None,
            id: 1.into(),
            method: method.into(),
            params: Some(Raw::of(params).into()),
            client: Arc::new(client),
            caller: Arc::new(Caller::local(rialto::identity::Identity::local())),
            level: None,
            progress_token: None,
            sink: Some(Arc::clone(self) as _),
            limits: None,
            delivery: AnswerDelivery::Whole,
            trace: rialto::trace::CallTrace::PassedOn,
        }
    }

    async fn request(self: &Arc<Self>, rialto: &Rialto, method: &str, params: Value) -> Value {
        let mut replies = rialto.group().handle(&self.make_call(method, &params));
        loop {
            match within_timeout(method, replies.next()).await.unwrap() {
                Reply::End(answer) => return value(&answer.outcome.unwrap_or_else(|error| panic!("{error:?}"))),
                Reply::Notification(_) | Reply::Piece(_) => {}
                Reply::ServerRequest(question) => question.abandon(),
            }
        }
    }

    /// Calls a tool; returns the upstream session id and the number of calls made in it.
    async fn call(self: &Arc<Self>, rialto: &Rialto) -> (String, i64) {
        let reported = report(&self.request(rialto, "tools/call", json!({ "name": "echo", "arguments": {} })).await);
        (reported["session"].as_str().unwrap().to_owned(), reported["calls"].as_i64().unwrap())
    }
}

impl SharedRecords {
    /// Upstream session id on record.
    fn session(&self) -> Option<String> {
        let records = self.records.lock().unwrap();
        let records: Value = serde_json::from_slice(records.get("web")?).unwrap();
        Some(records["session"].as_str().unwrap().to_owned())
    }

    fn writes(&self) -> Vec<Option<String>> {
        let session =
            |writes: &Option<Value>| writes.as_ref().map(|writes| writes["session"].as_str().unwrap().to_owned());
        self.writes.lock().unwrap().iter().map(session).collect()
    }
}

/// Number of `initialize` requests on behalf of the client, not counting the catalog connections.
fn initialize_count(scripted: &ScriptedServer) -> usize {
    let of_ada =
        |received: &crate::scripted_server::ReceivedMessage| received.body["params"]["clientInfo"]["name"] == "ada";
    scripted.received().iter().filter(|received| received.kind == "initialize" && of_ada(received)).count()
}

/// Number of messages of a kind that the server received in one session.
fn sent(scripted: &ScriptedServer, what: &str, session: &str) -> usize {
    scripted.received().iter().filter(|received| received.kind == what && received.session == session).count()
}

async fn wait_no_leases(rialto: &Rialto) {
    until("no lease is held", || upstreams(rialto).values().all(|upstream| upstream.lease_count() == 0)).await;
}

/// Bounded wait in which a message that must not be sent would arrive.
async fn wait_for_unwanted() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

#[tokio::test]
async fn resumption_continues_the_upstream_session_at_another_gateway() {
    let web = ScriptedServer::start("web", ServerTransport::Http).await;
    let (mut first, second) = (group(&[&web]).await, group(&[&web]).await);
    let store = Arc::<SharedRecords>::default();
    let here = MovingClient::at(&store);
    let (session, _) = here.call(&first).await;
    assert_eq!(here.call(&first).await, (session.clone(), 2));
    here.request(&first, "resources/subscribe", json!({ "uri": "res://one" })).await;
    let writes = store.writes.lock().unwrap().clone();
    let [Some(writes)] = writes.as_slice() else { panic!("{writes:?}") };
    assert_eq!(writes["session"], *session);
    assert_eq!(writes["url"], format!("http://{}/mcp", web.address));
    assert_eq!(writes["revision"], "2025-11-25");
    assert_eq!(writes["result"]["serverInfo"]["name"], "web");

    let running = json!({ "name": "do", "arguments": { "steps": [{ "wait": "forever" }] } });
    let mut running = first.group().handle(&here.make_call("tools/call", &running));
    tokio::select! {
        reply = running.next() => panic!("{reply:?}"),
        () = web.wait_received("tools/call", 3) => {}
    }
    // The running call is dropped just before the session ends.
    here.moved.store(true, Ordering::SeqCst);
    drop(running);
    here.ended.cancel();
    wait_no_leases(&first).await;
    first.begin_stop();
    assert!(first.stopped().await);
    wait_for_unwanted().await;
    assert_eq!(sent(&web, "DELETE", &session), 0);
    assert_eq!(sent(&web, "notifications/cancelled", &session), 0, "no cancellation is sent");
    assert_eq!(sent(&web, "abandoned", &session), 1, "the open request is closed");

    let there = MovingClient::at(&store);
    assert_eq!(there.call(&second).await, (session.clone(), 3));
    assert_eq!((initialize_count(&web), sent(&web, "notifications/initialized", &session)), (1, 1));
    assert_eq!(sent(&web, "GET", &session), 2, "each gateway opens a listening stream");
    assert_eq!(store.writes().len(), 1, "nothing changed");
    // The subscription made at the first gateway still delivers.
    web.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
    until("the notification arrives", || there.notifications(&NotificationMethod::ResourceUpdated) == 1).await;
    // Request ids are unique within the upstream session, across both gateways.
    there.call(&second).await;
    there.call(&second).await;
    let request = |received: &&crate::scripted_server::ReceivedMessage| {
        received.session == session && received.kind != "abandoned" && !received.body["id"].is_null()
    };
    let ids: Vec<String> =
        web.received().iter().filter(request).map(|received| received.body["id"].to_string()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");

    there.ended.cancel();
    wait_no_leases(&second).await;
    until("the upstream session is deleted", || sent(&web, "DELETE", &session) == 1).await;
}

#[tokio::test]
async fn resumption_retries_the_listening_stream_after_409_conflict() {
    let web = ScriptedServer::start("web", ServerTransport::Http).await;
    let (first, second) = (group(&[&web]).await, group(&[&web]).await);
    let store = Arc::<SharedRecords>::default();
    let here = MovingClient::at(&store);
    let (session, _) = here.call(&first).await;
    here.request(&first, "resources/subscribe", json!({ "uri": "res://one" })).await;
    here.move_to_other_gateway();
    wait_no_leases(&first).await;
    web.inject_fault(
        "GET",
        InjectedFault::RawResponse(409, "Conflict: Only one SSE stream is allowed per session".into()),
    );
    let there = MovingClient::at(&store);
    there.call(&second).await;
    until("the listening stream is refused", || sent(&web, "GET", &session) == 2).await;
    web.clear_faults();
    until("the listen stream is open", || sent(&web, "GET", &session) == 3).await;
    until("the notification arrives", || {
        web.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
        there.notifications(&NotificationMethod::ResourceUpdated) > 0
    })
    .await;
}

#[tokio::test]
async fn an_update_lost_with_a_listening_stream_is_synthesized() {
    let web = ScriptedServer::start("web", ServerTransport::Http).await;
    let rialto = group(&[&web]).await;
    let ada = MovingClient::at(&Arc::default());
    let (session, _) = ada.call(&rialto).await;
    ada.request(&rialto, "resources/subscribe", json!({ "uri": "res://one" })).await;
    web.end_streams();
    web.notify("notifications/resources/updated", &json!({ "uri": "res://one" }));
    until("the listening stream is open again", || sent(&web, "GET", &session) == 2).await;
    until("the synthetic update arrives", || ada.notifications(&NotificationMethod::ResourceUpdated) == 1).await;
}

#[tokio::test]
async fn resumption_of_a_session_unknown_to_the_server_initializes_again() {
    let web = ScriptedServer::start("web", ServerTransport::Http).await;
    let (first, second) = (group(&[&web]).await, group(&[&web]).await);
    let store = Arc::<SharedRecords>::default();
    let here = MovingClient::at(&store);
    let (before, _) = here.call(&first).await;
    here.move_to_other_gateway();
    wait_no_leases(&first).await;
    web.forget_sessions();
    let there = MovingClient::at(&store);
    let (after, calls) = there.call(&second).await;
    assert_ne!(before, after);
    assert_eq!((calls, initialize_count(&web)), (1, 2));
    assert_eq!(store.writes(), [Some(before), Some(after.clone())]);
    // The same when the server loses the session later.
    web.forget_sessions();
    let (last, _) = there.call(&second).await;
    assert_eq!(store.session(), Some(last.clone()));
    assert_ne!(last, after);
}

#[tokio::test]
async fn resumption_ignores_invalid_records() {
    let web = ScriptedServer::start("web", ServerTransport::Http).await;
    let rialto = group(&[&web]).await;
    let store = Arc::<SharedRecords>::default();
    let ada = MovingClient::at(&store);
    let (known, _) = ada.call(&rialto).await;
    ada.move_to_other_gateway();
    wait_no_leases(&rialto).await;
    let good: Value = serde_json::from_slice(&store.records.lock().unwrap()["web"]).unwrap();
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
        store.records.lock().unwrap().insert("web".into(), useless.clone().into());
        let initializations = initialize_count(&web);
        let ada = MovingClient::at(&store);
        let (session, calls) = ada.call(&rialto).await;
        assert_eq!((calls, initialize_count(&web)), (1, initializations + 1), "{useless}");
        assert_ne!(session, known);
        assert_eq!(store.session(), Some(session), "{useless}");
        ada.ended.cancel();
        wait_no_leases(&rialto).await;
    }
    // A record of another revision than the pinned one is ignored.
    let mut pinned = spec(&web);
    pinned.settings.revision = Revision::parse("2025-06-18");
    let pinned = gateway(default_group_of(vec![pinned])).await;
    store.records.lock().unwrap().insert("web".into(), good.to_string().into());
    assert_ne!(MovingClient::at(&store).call(&pinned).await.0, known);
    // The unmodified record is resumed.
    store.records.lock().unwrap().insert("web".into(), good.to_string().into());
    assert_eq!(MovingClient::at(&store).call(&rialto).await, (known, 2));
}

#[tokio::test]
async fn a_session_that_did_not_move_deletes_its_upstream_session() {
    let web = ScriptedServer::start("web", ServerTransport::Http).await;
    let mut rialto = group(&[&web]).await;
    let store = Arc::<SharedRecords>::default();
    let ada = MovingClient::at(&store);
    let (session, _) = ada.call(&rialto).await;
    ada.ended.cancel();
    wait_no_leases(&rialto).await;
    until("the upstream session is deleted", || sent(&web, "DELETE", &session) == 1).await;
    // The same when the gateway stops before the client session ends.
    store.records.lock().unwrap().clear();
    let (stays, goes) = (MovingClient::at(&store), MovingClient::at(&Arc::default()));
    let (left, _) = goes.call(&rialto).await;
    goes.move_to_other_gateway();
    wait_no_leases(&rialto).await;
    let (session, _) = stays.call(&rialto).await;
    rialto.begin_stop();
    assert!(rialto.stopped().await);
    assert_eq!((sent(&web, "DELETE", &session), sent(&web, "DELETE", &left)), (1, 0));
    assert_eq!(store.session(), None, "no resumption record is left");
}

#[tokio::test]
async fn drain_keeps_upstream_sessions_of_clients_that_moved() {
    let web = ScriptedServer::start("web", ServerTransport::Http).await;
    let (mut first, second) = (group(&[&web]).await, group(&[&web]).await);
    let store = Arc::<SharedRecords>::default();
    let here = MovingClient::at(&store);
    let (session, _) = here.call(&first).await;
    here.moved.store(true, Ordering::SeqCst);
    first.begin_stop();
    assert!(first.stopped().await);
    assert_eq!(sent(&web, "DELETE", &session), 0);
    assert_eq!(MovingClient::at(&store).call(&second).await, (session, 2));
}

#[tokio::test]
async fn an_upstream_session_without_a_record_is_deleted() {
    let web = ScriptedServer::start("web", ServerTransport::Http).await;
    let rialto = group(&[&web]).await;
    rialto.group().wait_ready(Revision::NEWEST).await;
    web.wait_received("initialize", 1).await;
    web.hold_responses("initialize");
    let store = Arc::<SharedRecords>::default();
    let ada = MovingClient::at(&store);
    let mut replies = rialto.group().handle(&ada.make_call("tools/call", &json!({ "name": "echo" })));
    tokio::select! {
        reply = replies.next() => panic!("{reply:?}"),
        () = web.wait_received("initialize", 2) => {}
    }
    drop(replies);
    // The client moves while the upstream session is being opened, so no record of it reaches the other gateway.
    ada.move_to_other_gateway();
    web.open("initialize");
    wait_no_leases(&rialto).await;
    until("the upstream session is deleted", || web.count("DELETE") == 1).await;
    assert_eq!(store.writes(), []);
}

#[tokio::test]
async fn resumption_uses_the_session_id_the_server_changed_to() {
    let web = ScriptedServer::start("web", ServerTransport::Http).await;
    let (first, second) = (group(&[&web]).await, group(&[&web]).await);
    let store = Arc::<SharedRecords>::default();
    let here = MovingClient::at(&store);
    let (session, _) = here.call(&first).await;
    web.rename_session(&session, "another");
    here.call(&first).await;
    assert_eq!(store.writes(), [Some(session), Some("another".into())]);
    here.move_to_other_gateway();
    wait_no_leases(&first).await;
    assert_eq!(MovingClient::at(&store).call(&second).await.1, 3);
    assert_eq!((initialize_count(&web), sent(&web, "tools/call", "another")), (1, 1));
}

#[tokio::test]
async fn resumption_keeps_the_lists_of_the_upstream_session() {
    let web = ScriptedServer::start("web", ServerTransport::Http).await;
    let (first, second) = (group(&[&web]).await, group(&[&web]).await);
    let store = Arc::<SharedRecords>::default();
    let here = MovingClient::at(&store);
    let grow = json!({ "name": "do", "arguments": { "steps": [{ "grow": "extra" }] } });
    here.request(&first, "tools/call", grow).await;
    until("the notification arrives", || here.notifications(&NotificationMethod::ToolsChanged) == 1).await;
    here.move_to_other_gateway();
    wait_no_leases(&first).await;
    let there = MovingClient::at(&store);
    there.call(&second).await;
    until("the notification arrives", || there.notifications(&NotificationMethod::ToolsChanged) == 1).await;
    let listed = there.request(&second, "tools/list", json!({})).await;
    assert_eq!(column(&listed, "tools", "name"), ["echo", "do", "extra"]);
    there.request(&second, "tools/call", json!({ "name": "extra" })).await;
}

#[tokio::test]
async fn transports_without_resumption_release_their_lease() {
    for transport in [ServerTransport::Stdio, ServerTransport::Sse, ServerTransport::PerRequest] {
        let web = ScriptedServer::start("web", transport).await;
        let rialto = group(&[&web]).await;
        let store = Arc::<SharedRecords>::default();
        let ada = MovingClient::at(&store);
        ada.request(&rialto, "tools/call", json!({ "name": "echo", "arguments": {} })).await;
        let children = marked(&web.marker()).len();
        ada.move_to_other_gateway();
        wait_idle(&rialto, &[&web]).await;
        assert_eq!(store.writes(), [], "{transport:?}");
        if transport == ServerTransport::Stdio {
            until("its child is gone", || marked(&web.marker()).len() <= children / 2).await;
            drop(rialto);
            web.stop();
            gone(&web.marker()).await;
        }
    }
}

#[tokio::test]
async fn a_reconfigured_upstream_drops_its_resumption_record() {
    let web = ScriptedServer::start("web", ServerTransport::Http).await;
    let rialto = group(&[&web]).await;
    let store = Arc::<SharedRecords>::default();
    let ada = MovingClient::at(&store);
    let (before, _) = ada.call(&rialto).await;
    let running = ada.make_call("tools/call", &json!({ "name": "do", "arguments": { "steps": [{ "wait": "end" }] } }));
    let mut running = rialto.group().handle(&running);
    tokio::select! {
        reply = running.next() => panic!("{reply:?}"),
        () = web.wait_received("tools/call", 2) => {}
    }
    let mut other = spec(&web);
    other.settings.idle_timeout = Duration::from_secs(50);
    rialto.inbound.gateway.apply(&default_group_of(vec![other]));
    let started = tokio::time::Instant::now();
    until("the resumption record is removed", || store.session().is_none()).await;
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "at once, although a call is in flight: {:?}",
        started.elapsed()
    );
    let (after, _) = ada.call(&rialto).await;
    assert_ne!(before, after);
    // The old lease ends with its last call and leaves the new record alone.
    web.open("end");
    assert!(matches!(within_timeout("a response", running.next()).await, Some(Reply::End(_))));
    drop(running);
    until("the upstream session is deleted", || sent(&web, "DELETE", &before) == 1).await;
    assert_eq!(store.writes(), [Some(before), None, Some(after.clone())]);
    assert_eq!(ada.call(&rialto).await, (after, 2));
    assert_eq!(initialize_count(&web), 2);
}
