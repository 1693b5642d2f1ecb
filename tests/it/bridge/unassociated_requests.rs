//! Server requests that do not say which call they belong to.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::Testbed;
use super::client::Client;
use super::feature_checks::{expect_text, until};
use super::variants::{HTTP_2026_07, Transport, VARIANTS, Variant};

fn is_handshake(variant: &Variant) -> bool {
    !variant.is_per_request()
}

/// Many servers send every request on the GET stream, whichever call it belongs to.
#[tokio::test]
async fn a_server_request_on_the_get_stream_belongs_to_the_only_running_call() {
    let servers: Vec<Variant> = VARIANTS.into_iter().filter(is_handshake).collect();
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

/// Requests that the gateway makes on its own are not calls to which a server request could belong.
#[tokio::test]
async fn roots_list_right_after_initialized_reaches_the_client() {
    let stdio: Vec<Variant> =
        VARIANTS.into_iter().filter(|variant| is_handshake(variant) && variant.transport == Transport::Stdio).collect();
    let testbed = Testbed::open(&stdio).await;
    let scripted = &testbed.endpoints[0].scripted;
    scripted.requests_roots_at_start.store(true, Ordering::Relaxed);
    let mut client = testbed.client(stdio[0], stdio[0].name).await.unwrap();
    // logging/setLevel is the first request on a new lease, when the server sends roots/list.
    client.request("logging/setLevel", json!({ "level": "error" })).await.unwrap();
    expect_text(&client.call("add", json!({ "a": 1, "b": 1 })).await.unwrap(), "2").unwrap();
    client.request("tools/list", json!({})).await.unwrap();
    until("the server has the roots", || scripted.take_log() == ["answered"]).await.unwrap();
    client.close().await.unwrap();
    // A per-request client can only be asked during a call; the server gets the roots or an error, and never hangs.
    let mut client = Client::over_http(HTTP_2026_07, testbed.rialto.address, stdio[0].name, None).await.unwrap();
    expect_text(&client.call("add", json!({ "a": 1, "b": 1 })).await.unwrap(), "2").unwrap();
    until("the server has the roots or an error", || !scripted.take_log().is_empty()).await.unwrap();
    testbed.close().await;
}
