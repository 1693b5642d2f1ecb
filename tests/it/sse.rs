//! HTTP+SSE transport: one stream per session, and session ids that are separate from those of Streamable HTTP.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Events, HANDSHAKE, Rialto, call, initialize, notification, request, survey, until};

struct Client<'r> {
    rialto: &'r Rialto,
    endpoint: String,
    events: Events,
}

impl<'r> Client<'r> {
    async fn open(rialto: &'r Rialto, path: &str) -> Self {
        let received = rialto.send("GET", path).header("accept", "text/event-stream").go().await;
        assert_eq!(received.status, 200);
        let mut events = received.events();
        let first = events.next().await.unwrap();
        assert_eq!(first.name.as_deref(), Some("endpoint"));
        Self { rialto, endpoint: first.data, events }
    }

    async fn initialized(rialto: &'r Rialto, path: &str, revision: &str) -> Self {
        let mut client = Self::open(rialto, path).await;
        let answer = client.request(&initialize(revision)).await;
        assert_eq!(answer["result"]["protocolVersion"], revision);
        client.post(&notification("notifications/initialized", json!({}))).await;
        client
    }

    async fn post(&self, body: &Value) {
        let received = self.rialto.post(&self.endpoint, body).go().await;
        assert_eq!(received.status, 202);
    }

    async fn request(&mut self, body: &Value) -> Value {
        self.post(body).await;
        loop {
            let message = self.events.message().await.unwrap();
            if message.get("id") == body.get("id") {
                return message;
            }
        }
    }

    fn id(&self) -> &str {
        self.endpoint.split_once("sessionId=").unwrap().1
    }
}

#[tokio::test]
async fn every_handshake_revision_works_over_every_http_sse_path() {
    let rialto = Rialto::start().await;
    for revision in HANDSHAKE {
        for (path, endpoint) in [
            ("/sse", "/message?sessionId=sse:"),
            ("/sse/default", "/message/default?sessionId=sse:"),
            ("/default/mcp/sse", "/default/mcp/sse?sessionId=sse:"),
        ] {
            let mut client = Client::initialized(&rialto, path, revision).await;
            assert!(client.endpoint.starts_with(endpoint), "{}", client.endpoint);
            let answer = client.request(&call(5, "getElementByPosition", json!({ "position": 26 }))).await;
            assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("Iron"));
        }
    }
}

#[tokio::test]
async fn progress_and_response_arrive_on_the_sse_stream_in_order() {
    let rialto = Rialto::start().await;
    let mut client = Client::initialized(&rialto, "/sse", "2024-11-05").await;
    client.post(&survey("s", 3, 1)).await;
    for n in 1..=3 {
        let message = client.events.message().await.unwrap();
        assert_eq!(message["params"]["progress"], n);
        assert!(message["params"].get("message").is_none(), "2024-11-05 progress has no message");
    }
    assert_eq!(client.events.message().await.unwrap()["id"], "s");
}

#[tokio::test]
async fn posted_messages_need_an_open_session() {
    let rialto = Rialto::start().await;
    let client = Client::initialized(&rialto, "/sse", "2024-11-05").await;
    let ping = request(1, "ping", json!({}));
    assert_eq!(rialto.post("/message", &ping).status().await, 400);
    assert_eq!(rialto.post("/message?sessionId=nonsense", &ping).status().await, 404);
    let unknown = format!("/message?sessionId=sse:{:032x}", 1);
    let (status, answer) = rialto.post(&unknown, &ping).json().await;
    assert_eq!(status, 404);
    assert!(answer["error"]["message"].as_str().unwrap().starts_with("Session not found: sse:"));
    assert_eq!(rialto.post(&client.endpoint, &ping).body("{").status().await, 400);
    assert_eq!(rialto.post(&client.endpoint, &ping).replace("content-type", "text/plain").status().await, 415);
    assert_eq!(rialto.send("GET", "/message").status().await, 405);
    assert_eq!(rialto.post("/sse", &ping).status().await, 405);
    assert_eq!(rialto.send("GET", "/sse").header("accept", "application/json").status().await, 406);
}

#[tokio::test]
async fn requests_before_initialize_are_refused() {
    let rialto = Rialto::start().await;
    let mut client = Client::open(&rialto, "/sse").await;
    assert_eq!(client.request(&request(1, "ping", json!({}))).await["result"], json!({}));
    assert_eq!(client.request(&request(2, "tools/list", json!({}))).await["error"]["code"], -32600);
    assert_eq!(client.request(&request(3, "initialize", json!({}))).await["error"]["code"], -32602);
    assert_eq!(client.request(&initialize("2024-11-05")).await["result"]["protocolVersion"], "2024-11-05");
    assert_eq!(
        client.request(&request(4, "initialize", json!({ "protocolVersion": "2024-11-05" }))).await["error"]["code"],
        -32600
    );
}

#[tokio::test]
async fn closing_the_sse_stream_ends_the_session_and_cancels_its_calls() {
    let mut rialto = Rialto::start().await;
    let endpoint = {
        let client = Client::initialized(&rialto, "/sse", "2024-11-05").await;
        client.post(&survey(1, 118, 5000)).await;
        client.endpoint.clone()
    };
    let sessions = &rialto.inbound.sessions;
    until("the session is gone", || sessions.count() == 0).await;
    assert_eq!(rialto.post(&endpoint, &request(1, "ping", json!({}))).status().await, 404);
    rialto.begin_stop();
    assert!(rialto.stopped().await, "its call was cancelled");
}

#[tokio::test]
async fn session_ids_do_not_work_across_transports() {
    let rialto = Rialto::start().await;
    let mut old = Client::initialized(&rialto, "/sse", "2024-11-05").await;
    let new = rialto.open("2025-11-25").await;
    let ping = request(1, "ping", json!({}));
    let sse = old.id().to_owned();
    let sse_key = sse.strip_prefix("sse:").unwrap().to_owned();
    let http = new.id.clone();
    let http_key = http.strip_prefix("http:").unwrap();
    // An HTTP+SSE id, in every spelling, on Streamable HTTP.
    for id in
        [sse.clone(), sse_key.clone(), format!("http:{sse_key}"), format!("http:{sse}"), format!("sse:http:{sse_key}")]
    {
        assert_eq!(rialto.post("/mcp", &ping).header("mcp-session-id", &id).status().await, 404, "{id}");
        assert_eq!(rialto.send("DELETE", "/mcp").header("mcp-session-id", &id).status().await, 404, "{id}");
        let get = rialto.send("GET", "/mcp").header("accept", "text/event-stream").header("mcp-session-id", &id);
        assert_eq!(get.status().await, 404, "{id}");
        assert_eq!(
            rialto.post("/mcp", &initialize("2025-11-25")).header("mcp-session-id", &id).status().await,
            404,
            "{id}"
        );
    }
    // A Streamable HTTP id, in every spelling, on HTTP+SSE.
    for id in [
        http.clone(),
        http_key.to_owned(),
        format!("sse:{http_key}"),
        format!("sse:{http}"),
        format!("http:sse:{http_key}"),
    ] {
        for path in ["/message", "/default/mcp/sse"] {
            assert_eq!(rialto.post(&format!("{path}?sessionId={id}"), &ping).status().await, 404, "{id}");
        }
    }
    assert_eq!(old.request(&ping).await["result"], json!({}));
    assert_eq!(new.post(&ping).status().await, 200);
    assert_eq!(rialto.inbound.sessions.count(), 2);
}

#[tokio::test]
async fn an_sse_session_of_another_principal_is_404() {
    let tokens = ["ann=a".to_owned(), "bob=b".to_owned()];
    let rialto =
        Rialto::with(|settings| settings.policy.tokens = rialto::policy::Tokens::parse(&tokens).unwrap()).await;
    let open = rialto.send("GET", "/sse").header("accept", "text/event-stream");
    let mut events = open.header("authorization", "Bearer a").go().await.events();
    let endpoint = events.next().await.unwrap().data;
    let ping = request(1, "ping", json!({}));
    assert_eq!(rialto.post(&endpoint, &ping).status().await, 401);
    assert_eq!(rialto.post(&endpoint, &ping).header("authorization", "Bearer b").status().await, 404);
    assert_eq!(rialto.post(&endpoint, &ping).header("authorization", "Bearer a").status().await, 202);
}

#[tokio::test]
async fn resource_updates_and_cancellation_work_over_http_sse() {
    let rialto =
        Rialto::with(|settings| settings.gateway = rialto::app::builtin_config(Duration::from_millis(30))).await;
    let mut client = Client::initialized(&rialto, "/sse", "2025-06-18").await;
    client.request(&request(1, "resources/subscribe", json!({ "uri": "elements://spotlight" }))).await;
    while client.events.message().await.unwrap()["method"] != "notifications/resources/updated" {}
    client.post(&survey("long", 118, 20)).await;
    while client.events.message().await.unwrap()["method"] != "notifications/progress" {}
    client.post(&notification("notifications/cancelled", json!({ "requestId": "long" }))).await;
    let answer = client.request(&request("long", "ping", json!({}))).await;
    assert_eq!(answer["result"], json!({}), "the id can be reused and the cancelled call got no response");
}

#[tokio::test]
async fn a_batch_gets_one_sse_event_per_response() {
    let rialto = Rialto::start().await;
    let mut client = Client::initialized(&rialto, "/sse", "2025-03-26").await;
    client.post(&json!([request(1, "ping", json!({})), request(2, "ping", json!({}))])).await;
    let mut ids =
        [client.events.message().await.unwrap()["id"].as_i64(), client.events.message().await.unwrap()["id"].as_i64()];
    ids.sort();
    assert_eq!(ids, [Some(1), Some(2)]);
    let other = Client::initialized(&rialto, "/sse", "2024-11-05").await;
    assert_eq!(rialto.post(&other.endpoint, &json!([request(1, "ping", json!({}))])).status().await, 400);
}
