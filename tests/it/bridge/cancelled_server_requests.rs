//! Server requests that the server cancels, for clients of the handshake era.

use serde_json::json;

use super::Testbed;
use super::feature_checks::expect_text;
use super::variants::{VARIANTS, Variant};

fn is_handshake(variant: &Variant) -> bool {
    !variant.is_per_request()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_server_request_is_cancelled_at_the_client() {
    let servers: Vec<Variant> = VARIANTS.into_iter().filter(is_handshake).collect();
    let testbed = Testbed::open(&servers).await;
    for endpoint in &testbed.endpoints {
        let server = endpoint.scripted.variant;
        for variant in servers.iter().copied() {
            let context = format!("{} → {}", variant.label(), server.label());
            let mut client = testbed.client(variant, server.name).await.unwrap();
            let id = client.send("tools/call", json!({ "name": "withdraw", "arguments": {} })).await.unwrap();
            let request_id = client.wait_for_server_request(&id).await.unwrap_or_else(|why| panic!("{context}: {why}"));
            endpoint.scripted.release.notify_one();
            // The call is still running, so the cancellation does not come from its end.
            let cancelled = client
                .wait_for_notification("notifications/cancelled")
                .await
                .unwrap_or_else(|why| panic!("{context}: {why}"));
            assert_eq!(cancelled["params"]["requestId"], request_id, "{context}");
            endpoint.scripted.release.notify_one();
            expect_text(&client.response(&id).await.unwrap(), "never mind").unwrap();
            assert_eq!(endpoint.scripted.take_log(), Vec::<String>::new(), "{context}: the server expects no response");
            client.close().await.unwrap();
        }
    }
    testbed.close().await;
}
