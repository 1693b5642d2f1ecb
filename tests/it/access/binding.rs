//! What belongs to a caller, and ends with its credential.

use std::sync::Arc;
use std::time::Duration;

use rialto::policy::{Policy, Tokens};
use serde_json::{Value, json};

use super::{ISSUER, TestIssuer, signed, token};
use crate::harness::{HttpRequest, HttpResponse, Rialto, Session, TEST_TIMEOUT, modern, request, survey, until};
use crate::http1::RawClient;

async fn with_issuer() -> Rialto {
    Rialto::with(|settings| {
        settings.gateway.groups[0].page_size = 1;
        settings.policy.issuers = Some(Arc::new(TestIssuer::default()));
    })
    .await
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// The response to a request with a token that soon expires, and the token. On a busy machine one may expire before the
/// request arrives; then there is a new one.
async fn admitted(rialto: &Rialto, request: impl Fn(&str) -> HttpRequest) -> (HttpResponse, String) {
    for _ in 0..20 {
        let short = bearer(&token("ann", &rialto.url(""), 0.6));
        let received = request(&short).go().await;
        if received.status != 401 {
            assert_eq!(received.status, 200);
            return (received, short);
        }
    }
    panic!("every token expired before its request arrived");
}

#[tokio::test]
async fn a_session_is_of_its_principal_and_its_client() {
    let rialto = with_issuer().await;
    let base = rialto.url("");
    let of = |sub: &str, client: Option<&str>, jti: u32| {
        let mut claims = json!({ "sub": sub, "aud": base, "exp": 1e12, "jti": jti });
        if let Some(client) = client {
            claims["client_id"] = client.into();
        }
        signed(&claims)
    };
    let session = Session::open(&rialto, "2025-11-25", Some(&of("ann", Some("desktop"), 1))).await;
    let ping = request(1, "ping", json!({}));
    for other in [of("bob", Some("desktop"), 1), of("ann", Some("web"), 1), of("ann", None, 1)] {
        for sending in [session.post(&ping), session.get(), session.delete(), session.resume("0.0")] {
            assert_eq!(sending.replace("authorization", &bearer(&other)).status().await, 404);
        }
    }
    // A new token of the same caller goes on with the session.
    let renewed = of("ann", Some("desktop"), 2);
    assert_eq!(session.post(&ping).replace("authorization", &bearer(&renewed)).status().await, 200);
    let identities: Vec<_> = rialto.inbound.sessions.all().iter().map(|session| session.identity().clone()).collect();
    assert_eq!(&*identities[0].principal, format!("{ISSUER}|ann"));
}

#[tokio::test]
async fn a_cursor_of_another_caller_is_as_an_unknown_one() {
    let rialto = with_issuer().await;
    let [ann, bob] = ["ann", "bob"].map(|sub| bearer(&token(sub, &rialto.url(""), 60.0)));
    let list = async |caller: &str, cursor: Option<&Value>| {
        let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
        rialto.modern("tools/list", params).header("authorization", caller).json().await
    };
    let (status, first) = list(&ann, None).await;
    assert_eq!(status, 200, "{first}");
    let cursor = &first["result"]["nextCursor"];
    let (_, second) = list(&ann, Some(cursor)).await;
    assert!(second["result"]["tools"][0]["name"].is_string(), "{second}");
    let (_, stolen) = list(&bob, Some(cursor)).await;
    let (_, unknown) = list(&bob, Some(&json!("AAAA"))).await;
    assert_eq!((&stolen["error"]["code"], &stolen), (&json!(-32602), &unknown));
}

/// Reads a stream to its end; fails if it does not end in time.
async fn read_to_end(events: crate::harness::Events) {
    tokio::time::timeout(TEST_TIMEOUT, events.rest_events()).await.expect("the stream ends");
}

#[tokio::test]
async fn a_listening_stream_ends_with_its_token_and_resumes_without_loss() {
    let rialto = with_issuer().await;
    let long = token("ann", &rialto.url(""), 60.0);
    let session = Session::open(&rialto, "2025-11-25", Some(&long)).await;
    let (listening, short) = admitted(&rialto, |short| session.get().replace("authorization", short)).await;
    let mut listening = listening.events();
    let priming = listening.next().await.unwrap();
    read_to_end(listening).await;
    let refused = session.get().replace("authorization", &short).go().await;
    let challenge = refused.header("www-authenticate").unwrap();
    assert!(refused.status == 401 && challenge.contains("the token has expired"), "{challenge}");
    // What happened meanwhile is delivered to the stream that resumes with a new token.
    rialto.inbound.sessions.publish("default", &rialto::call::ChangeEvent::Tools);
    let mut resumed = session.resume(&priming.id.unwrap()).go().await.events();
    assert_eq!(resumed.message().await.unwrap()["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn subscriptions_and_http_sse_end_with_their_token() {
    let rialto = with_issuer().await;
    let params = json!({ "notifications": { "toolsListChanged": true } });
    let listen = |short: &str| rialto.modern("subscriptions/listen", params.clone()).header("authorization", short);
    read_to_end(admitted(&rialto, listen).await.0.events()).await;
    let sse =
        |short: &str| rialto.send("GET", "/sse").header("accept", "text/event-stream").header("authorization", short);
    let mut events = admitted(&rialto, sse).await.0.events();
    events.next().await.unwrap();
    read_to_end(events).await;
    until("the session of the stream is closed", || rialto.inbound.sessions.count() == 0).await;
}

#[tokio::test]
async fn a_running_call_survives_the_expiry_of_its_token() {
    let rialto = with_issuer().await;
    let session = Session::open(&rialto, "2025-11-25", Some(&token("ann", &rialto.url(""), 60.0))).await;
    let post = |short: &str| session.post(&survey(1, 10, 100)).replace("authorization", short);
    let (in_session, _) = admitted(&rialto, post).await;
    let params = json!({ "name": "surveyElements", "arguments": { "count": 10, "delayMs": 100 }, "_meta": { "progressToken": 1 } });
    let call = |short: &str| {
        rialto.modern("tools/call", params.clone()).header("mcp-param-count", "10").header("authorization", short)
    };
    let (alone, short) = admitted(&rialto, call).await;
    for (call, received) in [("session", in_session), ("per request", alone)] {
        let answer = received.events().rest().await.pop().unwrap();
        assert!(answer["result"]["content"].is_array(), "{call}: {answer}");
    }
    assert_eq!(session.post(&request(2, "ping", json!({}))).replace("authorization", &short).status().await, 401);
}

#[tokio::test]
async fn callers_on_one_connection_are_told_apart() {
    let tokens = ["ann=a".to_owned(), "bob=b".to_owned()];
    let rialto = Rialto::with(|settings| settings.policy.tokens = Tokens::parse(&tokens).unwrap()).await;
    let session = Session::open(&rialto, "2025-11-25", Some("a")).await;
    let mut wire = RawClient::connect(&rialto).await;
    let body = request(1, "ping", json!({})).to_string();
    for round in 0..3 {
        for (authorization, status) in [
            ("authorization: Bearer a\r\n", 200),
            ("authorization: Bearer b\r\n", 404),
            ("authorization: Bearer c\r\n", 401),
            ("", 401),
        ] {
            wire.send_text(&format!(
                "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: */*\r\n\
                 mcp-session-id: {}\r\n{authorization}content-length: {}\r\n\r\n{body}",
                session.id,
                body.len()
            ))
            .await;
            assert_eq!(wire.response().await.status, status, "round {round}: {authorization:?}");
        }
    }
}

#[tokio::test]
async fn a_removed_issuer_ends_what_its_callers_have_open() {
    let rialto = with_issuer().await;
    let session = Session::open(&rialto, "2025-11-25", Some(&token("ann", &rialto.url(""), 60.0))).await;
    let listening = session.get().go().await.events();
    let ann = bearer(&token("ann", &rialto.url(""), 60.0));
    let params = json!({ "notifications": { "toolsListChanged": true } });
    let mut subscribed =
        rialto.post("/mcp", &modern(1.into(), "subscriptions/listen", params.clone())).header("authorization", &ann);
    subscribed = subscribed.modern_headers("subscriptions/listen", &params);
    let subscribed = subscribed.go().await.events();
    let again = Policy { issuers: Some(Arc::new(TestIssuer::default())), ..Policy::default() };
    rialto.inbound.set_policy(again);
    assert_eq!(session.post(&request(1, "ping", json!({}))).status().await, 200, "the same issuer goes on");
    let tokens = Tokens::parse(&["bob=b".to_owned()]).unwrap();
    rialto.inbound.set_policy(Policy { tokens, ..Policy::default() });
    for events in [listening, subscribed] {
        tokio::time::timeout(Duration::from_secs(5), read_to_end(events)).await.unwrap();
    }
    assert_eq!(rialto.inbound.sessions.count(), 0);
    assert_eq!(session.post(&request(1, "ping", json!({}))).status().await, 401);
}
