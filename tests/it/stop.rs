//! Graceful shutdown: running calls drain, listening streams end, new requests get 503.

use std::time::Duration;

use serde_json::json;

use crate::harness::{Rialto, initialize, request, survey, until};

#[tokio::test]
async fn drain_finishes_running_calls_and_ends_streams() {
    let mut rialto = Rialto::start().await;
    let (listening, running, old) = {
        let session = rialto.open("2025-11-25").await;
        let mut listening = session.get().go().await.events();
        listening.next().await.unwrap();
        let mut running = session.post(&survey(1, 10, 30)).go().await.events();
        assert!(running.message().await.is_some());
        let mut old = rialto.send("GET", "/sse").header("accept", "text/event-stream").go().await.events();
        old.next().await.unwrap();
        (listening, running, old)
    };
    rialto.begin_stop();
    let messages = running.rest().await;
    assert_eq!(messages.last().unwrap()["id"], 1, "the running call finished");
    assert!(listening.rest().await.is_empty());
    assert!(old.rest().await.is_empty());
    assert!(rialto.stopped().await);
}

#[tokio::test]
async fn drain_refuses_new_requests_with_503() {
    // At an address of its own: nobody else is given the port once it is free.
    let mut rialto = Rialto::with(|settings| settings.listen = "127.0.0.60:0".parse().unwrap()).await;
    let address = rialto.address;
    // An open keep-alive connection stays open while a call drains; new requests on it get 503.
    let mut connection_client = KeepAliveClient::open(address).await;
    let session = {
        let session = rialto.open("2025-11-25").await;
        let mut running = session.post(&survey(1, 118, 5000)).go().await.events();
        assert!(running.message().await.is_some());
        let id = session.id.clone();
        (running, id)
    };
    rialto.begin_stop();
    until("it is draining", || rialto.inbound.shutdown.is_draining()).await;
    for (name, value, body) in [
        ("x-none", "", initialize("2025-11-25")),
        ("mcp-session-id", session.1.as_str(), request(1, "ping", json!({}))),
    ] {
        let (status, retry) = connection_client.post(name, value, &body.to_string()).await;
        assert_eq!((status, retry.as_deref()), (503, Some("1")));
    }
    // Notifications that running calls need are accepted, also over new connections.
    let cancel = async |id: u64| {
        let cancelled = crate::harness::notification("notifications/cancelled", json!({ "requestId": id }));
        rialto.post("/mcp", &cancelled).header("mcp-session-id", &session.1).status().await
    };
    assert_eq!(cancel(77).await, 202);
    assert_eq!(rialto.send("GET", "/readyz").status().await, 503);
    assert_eq!(rialto.send("GET", "/healthz").status().await, 200);
    // The drain lasts until the call ends.
    assert_eq!(cancel(1).await, 202);
    session.0.rest().await;
    assert!(rialto.stopped().await);
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn the_shutdown_timeout_cuts_off_running_calls() {
    let mut rialto = Rialto::with(|settings| settings.inbound.shutdown_timeout = Duration::from_millis(50)).await;
    let running = {
        let session = rialto.open("2025-11-25").await;
        let mut running = session.post(&survey(1, 118, 5000)).go().await.events();
        assert!(running.next().await.is_some());
        running
    };
    rialto.begin_stop();
    let _ = rialto.stopped().await;
    assert!(running.rest().await.is_empty(), "the call was cut off");
}

/// A keep-alive connection for several requests.
struct KeepAliveClient {
    sender: hyper::client::conn::http1::SendRequest<http_body_util::Full<bytes::Bytes>>,
}

impl KeepAliveClient {
    async fn open(address: std::net::SocketAddr) -> Self {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(async move {
            let _ = connection.await;
        });
        let mut connection_client = Self { sender };
        connection_client.post("x-none", "", "{").await;
        connection_client
    }

    async fn post(&mut self, name: &str, value: &str, body: &str) -> (u16, Option<String>) {
        use http_body_util::BodyExt;
        self.sender.ready().await.unwrap();
        let request = http::Request::post("/mcp")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("accept", "*/*")
            .header(name, value)
            .body(body.to_owned().into())
            .unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        let retry = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        let status = response.status().as_u16();
        response.into_body().collect().await.unwrap();
        (status, retry)
    }
}
