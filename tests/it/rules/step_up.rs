//! A missing scope: a challenge for clients that can get it, an error in the response for others.

use super::*;
use crate::scripted_server::ServerTransport;

fn rules() -> Arc<RuleBook> {
    book(vec![
        callers(&["*"]).allow(TargetKind::Tools, &["db/do"]),
        callers(&["*"]).allow_all(&["db/*"]).scopes(&["write", "audit"]),
    ])
}

const NEEDED: &str = "Forbidden: this needs the scopes write audit";

async fn with_server() -> (ScriptedServer, Rialto) {
    let server = ScriptedServer::start("db", ServerTransport::Http).await;
    let mut people = people();
    people.push(person("wil", &[], &["write"]));
    people.push(person("amy", &[], &["admin", "audit"]));
    let rialto = gateway_for(scripted(&[&server]), &rules(), people).await;
    (server, rialto)
}

#[tokio::test]
async fn a_missing_scope_is_challenged_before_the_server_is_called() {
    let (server, rialto) = with_server().await;
    for via in [Via::Session("2025-11-25"), Via::PerRequest] {
        assert_eq!(listed(&rialto, via, "wil", "tools").await, ["echo", "do"], "what lacks a scope is listed");
        for (method, params) in [
            ("tools/call", call_of("echo")),
            ("prompts/get", json!({ "name": "hello" })),
            ("resources/read", json!({ "uri": "res://one" })),
            ("resources/read", json!({ "uri": "res://item/9" })),
            (
                "completion/complete",
                json!({ "ref": { "type": "ref/prompt", "name": "hello" }, "argument": { "name": "who", "value": "" } }),
            ),
            ("acme/extension", json!({})),
        ] {
            let sending = match via {
                Via::PerRequest => {
                    let sending = rialto.post("/mcp", &modern(7.into(), method, params.clone()));
                    sending.modern_headers(method, &params).header("authorization", "Bearer wil")
                }
                _ => Session::open(&rialto, "2025-11-25", Some("wil")).await.post(&request(7, method, params)),
            };
            let received = sending.go().await;
            assert_eq!(received.status, 403, "{via:?} {method}");
            let challenge = r#"Bearer error="insufficient_scope", scope="write audit", error_description="this needs the scope write audit""#;
            assert_eq!(received.header("www-authenticate"), Some(challenge));
            assert_eq!(received.header("cache-control"), Some("no-store"));
            let body = received.json().await;
            assert_eq!((&body["error"]["code"], &body["error"]["message"]), (&json!(-32600), &json!(NEEDED)), "{body}");
            assert_eq!(body["error"]["data"]["scopes"], json!(["write", "audit"]));
            assert_eq!(body["id"], 7);
        }
        let allowed = answer(&rialto, via, "wil", "tools/call", call_of("do")).await;
        assert!(allowed["result"]["content"].is_array(), "{allowed}");
    }
    let kinds = server.read_received(|received| Some(received.kind.clone()));
    for forwarded in ["prompts/get", "resources/read", "completion/complete", "acme/extension"] {
        assert!(!kinds.contains(&forwarded.to_owned()), "{forwarded}");
    }
    assert_eq!(server.count("tools/call"), 2);
}

#[tokio::test]
async fn a_scope_that_contains_the_needed_one_counts() {
    let (server, rialto) = with_server().await;
    for via in [Via::Session("2025-11-25"), Via::PerRequest] {
        let called = answer(&rialto, via, "amy", "tools/call", call_of("echo")).await;
        assert!(called["result"]["content"].is_array(), "{called}");
    }
    assert_eq!(server.count("tools/call"), 2);
}

#[tokio::test]
async fn clients_and_credentials_that_cannot_step_up_get_the_error_in_the_response() {
    let (server, rialto) = with_server().await;
    let old = [Via::Session("2024-11-05"), Via::Session("2025-03-26"), Via::Session("2025-06-18")];
    let sse = [Via::Sse("2024-11-05"), Via::Sse("2025-11-25")];
    let by_token = [Via::Session("2025-11-25"), Via::PerRequest];
    let ways = old.into_iter().chain(sse).map(|via| (via, "wil")).chain(by_token.map(|via| (via, "eve")));
    for (via, token) in ways {
        let (status, text) = ask(&rialto, via, token, "tools/call", call_of("echo")).await;
        let body: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status, 200, "{via:?} {token}: {body}");
        assert_eq!((&body["error"]["code"], &body["error"]["message"]), (&json!(-32600), &json!(NEEDED)), "{body}");
    }
    // A batch has one status for all of its requests.
    let session = Session::open(&rialto, "2025-03-26", Some("wil")).await;
    let batch = json!([request(1, "tools/call", call_of("echo")), request(2, "ping", json!({}))]);
    let (status, answers) = session.post(&batch).json().await;
    assert_eq!((status, &answers[0]["error"]["message"], &answers[1]["result"]), (200, &json!(NEEDED), &json!({})));

    let settings = || AppSettings { gateway: with_rules(scripted(&[&server]), &rules()), ..AppSettings::default() };
    let handshake = [initialize("2025-11-25"), request(1, "tools/call", call_of("echo"))];
    let answers = over_stdio(settings(), &handshake).await;
    assert_eq!(answers[1]["error"]["message"], NEEDED, "{answers:?}");
    let answers = over_stdio(settings(), &[modern(1.into(), "tools/call", call_of("echo"))]).await;
    assert_eq!(answers[0]["error"]["message"], NEEDED, "{answers:?}");
    assert_eq!(server.count("tools/call"), 0);
}
