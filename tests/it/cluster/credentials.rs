//! Credentials of clients stay on the node that has checked them.

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::load_clients::{initialize_request, post};
use super::processes::TestCluster;
use crate::harness::{HttpRequest, TEST_TIMEOUT, request};

#[tokio::test]
async fn client_credentials_never_reach_the_store() {
    let cluster = TestCluster::start(&["a", "b"]).await;
    let mut commands = TcpStream::connect(("127.0.0.1", cluster.store.port())).await.unwrap();
    commands.write_all(b"MONITOR\r\n").await.unwrap();
    let mut commands = BufReader::new(commands).lines();
    assert_eq!(commands.next_line().await.unwrap().unwrap(), "+OK");

    let secret = "secret-of-the-client";
    let with_credentials = |request: HttpRequest| {
        let bearer = format!("Bearer {secret}");
        request.header("authorization", &bearer).header("cookie", secret).header("x-api-key", secret)
    };
    let initialize = initialize_request("2025-11-25");
    let opened = with_credentials(post(cluster.node("a").address, "/mcp", &initialize)).go().await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    let unknown = request(1, "tools/call", json!({ "name": "relayed-marker" }));
    let relayed = with_credentials(post(cluster.node("b").address, "/mcp", &unknown));
    let (status, answer) = relayed.header("mcp-session-id", &session).json().await;
    assert_eq!((status, &answer["error"]["code"]), (200, &json!(-32602)), "{answer}");

    // The relayed request went through the store, without the credentials.
    loop {
        let command = tokio::time::timeout(TEST_TIMEOUT, commands.next_line()).await.expect("a relayed request");
        let command = command.unwrap().unwrap();
        assert!(!command.contains(secret), "{command}");
        if command.contains("relayed-marker") {
            break;
        }
    }
    cluster.shut_down().await;
}
