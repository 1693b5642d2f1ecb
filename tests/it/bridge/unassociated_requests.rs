//! Questions that do not say which call they belong to.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::Testbed;
use super::client::Client;
use super::feature_checks::{expect_text, until};
use super::variants::{HTTP_2026_07, Transport, VARIANTS, Variant};

fn handshake(variant: &Variant) -> bool {
    !variant.is_per_request()
}

/// Many servers ask on the stream that listens, whatever the question belongs to.
#[tokio::test]
async fn a_server_request_on_the_get_stream_belongs_to_the_only_running_call() {
    let servers: Vec<Variant> = VARIANTS.into_iter().filter(handshake).collect();
    let testbed = Testbed::open(&servers).await;
    for endpoint in &testbed.endpoints {
        let server = endpoint.scripted.variant;
        for variant in VARIANTS.into_iter().filter(|variant| variant.transport != Transport::Stdio) {
            let mut client = testbed.client(variant, server.name).await.unwrap();
            let answer =
                client.call("aside", json!({})).await.unwrap_or_else(|why| panic!("{variant:?} {server:?}: {why}"));
            expect_text(&answer, "thoughts on bridges").unwrap_or_else(|why| panic!("{variant:?} {server:?}: {why}"));
            assert_eq!(answer.server_requests.len(), 1);
            client.close().await.unwrap();
        }
    }
    testbed.close().await;
}

/// What the gateway asks the server by itself is no call that a client could be asked for.
#[tokio::test]
async fn roots_list_right_after_initialized_reaches_the_client() {
    let stdio: Vec<Variant> =
        VARIANTS.into_iter().filter(|variant| handshake(variant) && variant.transport == Transport::Stdio).collect();
    let testbed = Testbed::open(&stdio).await;
    let scripted = &testbed.endpoints[0].scripted;
    scripted.requests_roots_at_start.store(true, Ordering::Relaxed);
    let mut client = testbed.client(stdio[0], stdio[0].name).await.unwrap();
    // The level is chosen first thing on a new connection, just when the server asks.
    client.request("logging/setLevel", json!({ "level": "error" })).await.unwrap();
    expect_text(&client.call("add", json!({ "a": 1, "b": 1 })).await.unwrap(), "2").unwrap();
    client.request("tools/list", json!({})).await.unwrap();
    until("it knows the roots", || scripted.take_log() == ["answered"]).await.unwrap();
    client.close().await.unwrap();
    // A client that cannot be asked outside of its calls is asked during one, or not at all; nobody waits for ever.
    let mut client = Client::over_http(HTTP_2026_07, testbed.rialto.address, stdio[0].name, None).await.unwrap();
    expect_text(&client.call("add", json!({ "a": 1, "b": 1 })).await.unwrap(), "2").unwrap();
    until("it knows the roots, or that it will not", || !scripted.take_log().is_empty()).await.unwrap();
    testbed.close().await;
}
