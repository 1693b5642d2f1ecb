//! The reference server (`server-everything`).

use super::*;

#[tokio::test]
async fn stdio() {
    over_stdio(EVERYTHING, &["stdio"], &STDIO_REVISIONS).await;
}

#[tokio::test]
async fn streamable_http() {
    over_http(EVERYTHING, &["streamableHttp", "0"], &REVISIONS).await;
}

#[tokio::test]
async fn http_and_sse() {
    over_http(EVERYTHING, &["sse", "0"], &REVISIONS[..5]).await;
}

/// Uses what the server offers to a client with all capabilities.
pub async fn scenario(client: &Client, host: &RecordingHost) {
    let tools = async {
        loop {
            let tools = names(&client.tools().await.unwrap(), "name");
            // Tools that send server requests are added after the handshake.
            if tools.iter().any(|name| name == "get-roots-list") {
                return tools;
            }
        }
    };
    let tools = in_time("the tools that send server requests", tools).await;
    let wanted = ["echo", "get-roots-list", "trigger-elicitation-request", "trigger-sampling-request"];
    assert!(wanted.iter().all(|name| tools.iter().any(|tool| tool == name)), "{tools:?}");
    assert!(!in_time("resources", client.resources()).await.unwrap().is_empty());
    let templates = in_time("templates", client.templates()).await.unwrap();
    assert!(names(&templates, "uriTemplate").iter().any(|template| template.starts_with("demo://")));
    assert!(!in_time("prompts", client.prompts()).await.unwrap().is_empty());

    assert_eq!(text(&call(client, "echo", json!({ "message": "hello" })).await), "Echo: hello");
    let long = "trigger-long-running-operation";
    let done = call(client, long, json!({ "duration": 0.2, "steps": 4 })).await;
    assert!(text(&done).contains("completed"), "{done}");
    assert_eq!(host.take_progress(), [1, 2, 3, 4]);
    check_server_requests(client).await;

    let read = in_time("read", client.read("demo://resource/dynamic/text/1")).await.unwrap();
    assert!(value(&read)["contents"][0]["text"].is_string(), "{read}");
    let filter = ListenRequest { resources: vec!["demo://resource/dynamic/text/1".into()], ..ListenRequest::default() };
    let mut listening = in_time("listening", client.listen(filter)).await.unwrap();
    call(client, "toggle-subscriber-updates", json!({})).await;
    let update = in_time("an update", listening.next()).await.expect("the stream stays open");
    assert_eq!(update.method, NotificationMethod::ResourceUpdated);
    call(client, "toggle-subscriber-updates", json!({})).await;
    crate::harness::until("a log message is seen", || host.has_logged("Received Subscribe")).await;

    start_and_cancel(client, long, json!({ "duration": 2, "steps": 200 })).await;
    assert_eq!(text(&call(client, "echo", json!({ "message": "free" })).await), "Echo: free");
}

async fn check_server_requests(client: &Client) {
    let sampled = call(client, "trigger-sampling-request", json!({ "prompt": "bridges", "maxTokens": 10 })).await;
    assert!(text(&sampled).contains("thoughts on"), "{sampled}");
    let elicited = call(client, "trigger-elicitation-request", json!({})).await;
    assert!(elicited.to_string().contains("Ada"), "{elicited}");
    let roots = call(client, "get-roots-list", json!({})).await;
    assert!(text(&roots).contains(ROOT), "{roots}");
}
