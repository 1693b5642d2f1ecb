//! Many at once: sessions that expire together, tasks that panic, and origins with few connections.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rialto::inbound::Hooks;
use rialto::session::{SessionOwner, StreamTarget};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Rialto, TEST_TIMEOUT, initialize, notification, request, until};

/// The value of a metric without labels.
fn metric(rialto: &Rialto, name: &str) -> i64 {
    let metrics = rialto.inbound.admin.metrics();
    let value = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    value.unwrap_or_else(|| panic!("{name} is not in\n{metrics}")).parse().unwrap()
}

#[tokio::test]
async fn thousands_of_sessions_expire_together_and_a_stream_goes_on() {
    const SESSIONS: usize = 20_000;
    let rialto = Rialto::with(|settings| {
        settings.sessions.idle_timeout = Duration::from_millis(200);
        settings.sessions.retention.max_age = Duration::from_millis(200);
    })
    .await;
    let session = rialto.open("2025-11-25").await;
    let mut events = session.get().go().await.events();
    let sessions = &rialto.inbound.sessions;
    let kept = sessions.all().pop().unwrap();
    for _ in 0..SESSIONS {
        let owner = SessionOwner {
            identity: rialto::identity::Identity::anonymous().into(),
            group: "default".into(),
            quota_key: None,
        };
        let client = Arc::clone(kept.client().unwrap());
        sessions.open(owner, client).unwrap();
    }
    // Each message is read before the next is sent, until all others are gone.
    let mut sent = 0;
    while sessions.count() > 1 {
        kept.send(StreamTarget::Listening, Bytes::from(notification("test/tick", json!({ "n": sent })).to_string()));
        let received = events.message().await.expect("the stream goes on");
        assert_eq!(received["params"]["n"], sent, "{received}");
        sent += 1;
    }
    assert!(sent > 0);
    assert_eq!(session.post(&request(1, "ping", json!({}))).status().await, 200);
    assert!(rialto.inbound.admin.metrics().contains("rialto_quota_used{quota=\"sessions\"} 1\n"));
}

#[tokio::test]
async fn a_panic_is_counted_and_disturbs_nobody_else() {
    // The count is that of the process.
    if !crate::harness::runs_alone("crowds::a_panic_is_counted_and_disturbs_nobody_else") {
        return;
    }
    let rialto = Rialto::with(|settings| {
        settings.workers = 1;
        settings.inbound.hooks = Hooks {
            on_initialized: Some(Arc::new(|session| {
                let info = session.client().and_then(|client| client.info.clone()).unwrap();
                let info: Value = serde_json::from_slice(info.as_bytes()).unwrap();
                assert!(info["name"] != "troublesome", "a bug that this client meets");
            })),
        };
    })
    .await;
    let other = rialto.open("2025-11-25").await;
    let listening = other.get().go().await;
    let before = metric(&rialto, "rialto_panics_total");
    let mut hello = initialize("2025-11-25");
    hello["params"]["clientInfo"]["name"] = "troublesome".into();
    let opened = rialto.post("/mcp", &hello).go().await;
    let id = opened.header("mcp-session-id").unwrap().to_owned();
    for n in 1..=2 {
        let ping = rialto.post("/mcp", &request(1, "tools/list", json!({}))).header("mcp-session-id", &id);
        assert!(ping.attempt().await.is_err() || n == 2, "the connection is lost with its task");
        assert!(metric(&rialto, "rialto_panics_total") > before);
    }
    assert_eq!(other.post(&request(1, "ping", json!({}))).status().await, 200);
    rialto.open("2025-11-25").await;
    assert_eq!(listening.status, 200);
    drop(listening);
    drop(opened);
    let in_use = |quota: &str| {
        let metrics = rialto.inbound.admin.metrics();
        metrics.contains(&format!("rialto_quota_used{{quota=\"{quota}\"}} 0\n"))
    };
    for quota in ["connections", "calls", "body_bytes", "streams"] {
        until("what the task held is given back", || in_use(quota)).await;
    }
}

/// With `http1 = "hyper"`, too, a slow head is not given the time of an idle connection.
#[tokio::test]
async fn a_slow_head_is_cut_by_hyper_before_an_idle_connection() {
    let rialto = Rialto::with(|settings| {
        settings.inbound.http1 = rialto::http::server::Http1Implementation::Hyper;
        settings.inbound.header_timeout = Duration::from_secs(2);
        settings.inbound.keep_alive_timeout = Duration::from_secs(600);
    })
    .await;
    let ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answer = async |stream: &mut TcpStream| {
        stream.write_all(ask).await.unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"alive\n") {
            let read = tokio::time::timeout(TEST_TIMEOUT, stream.read_buf(&mut text)).await.expect("an answer in time");
            assert!(read.unwrap() > 0, "closed after {:?}", String::from_utf8_lossy(&text));
        }
    };
    let mut idle = TcpStream::connect(rialto.address).await.unwrap();
    answer(&mut idle).await;
    for first in [true, false] {
        let mut slow = TcpStream::connect(rialto.address).await.unwrap();
        if !first {
            answer(&mut slow).await;
        }
        slow.write_all(b"GET /healthz HTTP/1.1\r\nhost: local").await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(TEST_TIMEOUT, slow.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "a slow head is cut");
    }
    // The other one has been idle for longer than a head may take.
    answer(&mut idle).await;
}
