//! A store that is unresponsive for longer than a lease: every request still ends.

use std::time::{Duration, Instant};

use super::load::open_session_at;
use super::load_clients::{Session, initialize_request, post};
use super::load_driver::{CallKind, CallOutcome};
use super::processes::{LEASE, TestCluster};
use crate::harness::{HttpResponse, request};
use crate::redis::RedisServer;

/// Bound for the end of a request: lease expiry plus the store timeout.
const REQUEST_END_TIMEOUT: Duration = Duration::from_secs(LEASE.as_secs() * 2 + 2);

/// Waits for the end of a request, including its stream; returns label, status and body.
async fn ended(what: &'static str, asked: impl Future<Output = HttpResponse>) -> (&'static str, u16, String) {
    let started = Instant::now();
    let received = tokio::time::timeout(REQUEST_END_TIMEOUT, asked).await.unwrap_or_else(|_| panic!("{what} hangs"));
    let (status, again) = (received.status, received.header("retry-after").is_some());
    // The body, too; a stream may break off.
    let left = REQUEST_END_TIMEOUT.saturating_sub(started.elapsed());
    let text = tokio::time::timeout(left, received.try_text()).await;
    let text = text.unwrap_or_else(|_| panic!("{what}: its stream hangs")).unwrap_or_default();
    println!("{what}: {status} after {:?}: {text}", started.elapsed());
    assert!(status != 503 || again, "{what}: a refusal has Retry-After");
    (what, status, text)
}

async fn check_calls_end(pause: impl AsyncFnOnce(&RedisServer), resume: impl AsyncFnOnce(&RedisServer)) {
    let cluster = TestCluster::three().await;
    let (own_session, other_session) = (open_session_at(&cluster, "a").await, open_session_at(&cluster, "b").await);
    let [a, b] = ["a", "b"].map(|name| cluster.node(name).address);
    let call = |session: &Session, call_kind: CallKind, number: u64| {
        let body = request(number, "tools/call", call_kind.params(number));
        let (session, body) = (session.clone(), body);
        move |node| session.post(node, &body).go()
    };
    assert_eq!(own_session.at(cluster.node("c")).call(1, CallKind::Progress(2)).await, CallOutcome::Answered);
    pause(&cluster.store).await;
    let started = Instant::now();
    let ends = tokio::join!(
        ended("a call at home", call(&own_session, CallKind::Plain, 11)(a)),
        ended("a call that is carried", call(&other_session, CallKind::Plain, 12)(a)),
        ended("a call with a stream", call(&own_session, CallKind::Progress(3), 13)(a)),
        ended("a call with a stream that is carried", call(&own_session, CallKind::Progress(3), 14)(b)),
        ended("a call that asks", call(&other_session, CallKind::Ask, 15)(b)),
        ended("a new session", post(a, "/mcp", &initialize_request("2025-11-25")).go()),
    );
    let ends = [ends.0, ends.1, ends.2, ends.3, ends.4, ends.5];
    let of = |name: &str| ends.iter().find(|(what, ..)| *what == name).unwrap();
    // A call at the owner is answered, or refused after the lease expired.
    assert!(of("a call at home").1 == 200 || of("a call at home").1 == 503);
    assert_eq!(of("a new session").1, 503);
    for what in ["a call that is carried", "a call with a stream that is carried"] {
        let (_, status, text) = of(what);
        // The relayed request may have been received; then the error says that its outcome is unknown.
        assert!(*status == 503 || text.contains("may have been carried out"), "{what}: {status} {text}");
    }
    // Keep the store unresponsive for two leases in all.
    for node in &cluster.nodes {
        node.wait_ready_status(503).await;
    }
    tokio::time::sleep((LEASE * 2).saturating_sub(started.elapsed())).await;
    resume(&cluster.store).await;
    for node in &cluster.nodes {
        node.wait_ready().await;
    }
    for (n, node) in cluster.nodes.iter().enumerate() {
        for session in [&own_session, &other_session] {
            assert_eq!(session.at(node).call(100 + n as u64, CallKind::Progress(2)).await, CallOutcome::Answered);
        }
    }
    cluster.wait_session_count(2).await;
    own_session.end().await;
    other_session.end().await;
    cluster.wait_idle().await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_while_the_store_process_is_paused() {
    check_calls_end(async |store| store.pause(), async |store| store.resume()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_during_redis_client_pause() {
    let pause = async |store: &RedisServer| {
        let long = u64::try_from((REQUEST_END_TIMEOUT + LEASE).as_millis()).unwrap();
        let () = store.ask(redis::cmd("CLIENT").arg("PAUSE").arg(long).arg("ALL")).await;
    };
    // The pause ends by itself.
    check_calls_end(pause, async |_| ()).await;
}
