//! What belongs to a caller with a token of an issuer, and when it ends.

use std::time::Duration;

use rialto::call::ChangeEvent;
use serde_json::{Value, json};

use super::*;
use crate::authorization_server::OTHER_CLIENT;
use crate::harness::{Session, TEST_TIMEOUT, modern, survey, until};
use crate::scripted_server::{ScriptedServer, ServerTransport};

#[tokio::test]
async fn a_session_belongs_to_a_person_and_a_program() {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let gateway = Configured::start("binding", &issuer("corp", &server)).await;
    let resource = gateway.resource();
    let ann = server.log_in("ann", SCOPE, Some(&resource)).await;
    let bob = server.log_in("bob", SCOPE, Some(&resource)).await;
    let elsewhere = server.log_in_with(OTHER_CLIENT, "ann", SCOPE, Some(&resource)).await;
    let session = Session::open(&gateway.rialto, "2025-11-25", Some(&ann.access_token)).await;
    let event = session.get().go().await.events().next().await.unwrap().id.unwrap();
    for other in [&bob.access_token, &elsewhere.access_token] {
        for sending in [session.post(&ping()), session.get(), session.resume(&event), session.delete()] {
            assert_eq!(sending.replace("authorization", &bearer(other)).status().await, 404);
        }
        assert_eq!(gateway.status(other).await, 200, "the token itself is good");
    }
    // The session goes on with a new token of the same caller.
    let renewed = server.refresh(ann.refresh_token.as_deref().unwrap()).await.access_token;
    assert_ne!(renewed, ann.access_token);
    assert_eq!(session.post(&ping()).replace("authorization", &bearer(&renewed)).status().await, 200);
    assert_eq!(gateway.rialto.inbound.sessions.count(), 1);
}

#[tokio::test]
async fn a_cursor_belongs_to_a_person() {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let text = format!("{}[groups.default]\npage_size = 1\n", issuer("corp", &server));
    let gateway = Configured::start("cursor", &text).await;
    let token = async |user| server.log_in(user, SCOPE, Some(&gateway.resource())).await;
    let [ann, bob] = [token("ann").await, token("bob").await];
    let list = async |token: &str, cursor: Option<&Value>| {
        let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
        gateway.rialto.modern("tools/list", params).header("authorization", &bearer(token)).json().await.1
    };
    let cursor = list(&ann.access_token, None).await["result"]["nextCursor"].clone();
    let renewed = server.refresh(ann.refresh_token.as_deref().unwrap()).await;
    let second = list(&renewed.access_token, Some(&cursor)).await;
    assert_eq!(second["result"]["tools"][0]["name"], "getElementByPosition", "{second}");
    let stolen = list(&bob.access_token, Some(&cursor)).await;
    assert_eq!(stolen, list(&bob.access_token, Some(&json!("AAAA"))).await);
    assert_eq!(stolen["error"]["code"], -32602);
}

#[tokio::test]
async fn a_call_that_waits_for_input_belongs_to_a_person_and_a_program() {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let upstream = ScriptedServer::start("db", ServerTransport::Http).await;
    let text = format!("{}[servers.db]\nurl = \"http://{}/mcp\"\n", issuer("corp", &server), upstream.address);
    let gateway = Configured::start("parked", &text).await;
    let resource = gateway.resource();
    let form = json!({ "message": "Sure?", "requestedSchema": { "type": "object", "properties": {} } });
    let steps = json!({ "steps": [{ "ask": { "method": "elicitation/create", "params": form } }] });
    let call = async |token: &str, more: &Value| {
        let mut params = json!({ "name": "do", "arguments": steps });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut body = modern(4.into(), "tools/call", params.clone());
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
            json!({ "elicitation": { "form": {} } });
        let sending = gateway.rialto.post("/mcp", &body).modern_headers("tools/call", &params);
        sending.header("authorization", &bearer(token)).answer().await.1
    };
    let ann = server.log_in("ann", SCOPE, Some(&resource)).await;
    let waiting = call(&ann.access_token, &json!({})).await;
    assert_eq!(waiting["result"]["resultType"], "input_required", "{waiting}");
    let asked = waiting["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap();
    let given = json!({ asked: { "action": "accept", "content": {} } });
    let resumed = json!({ "inputResponses": given, "requestState": waiting["result"]["requestState"] });
    let bob = server.log_in("bob", SCOPE, Some(&resource)).await;
    let elsewhere = server.log_in_with(OTHER_CLIENT, "ann", SCOPE, Some(&resource)).await;
    for other in [bob, elsewhere] {
        let refused = call(&other.access_token, &resumed).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    assert_eq!(upstream.count("answer"), 0, "the server was not answered");
    let renewed = server.refresh(ann.refresh_token.as_deref().unwrap()).await.access_token;
    let done = call(&renewed, &resumed).await;
    assert!(done["result"]["content"].is_array(), "{done}");
}

#[tokio::test]
async fn a_listening_stream_ends_with_its_token_and_resumes_without_loss() {
    let server = AuthorizationServer::oidc_provider(&[("TTL", "3")]).await;
    let gateway = Configured::start("expiry", &issuer("corp", &server)).await;
    let ann = server.log_in("ann", SCOPE, Some(&gateway.resource())).await;
    let session = Session::open(&gateway.rialto, "2025-11-25", Some(&ann.access_token)).await;
    let mut listening = session.get().go().await.events();
    let event = listening.next().await.unwrap().id.unwrap();
    tokio::time::timeout(TEST_TIMEOUT, listening.rest_events()).await.expect("the stream ends");
    let refused = session.post(&ping()).go().await;
    let why = parameter(&refused, "error_description");
    assert_eq!((refused.status, why.as_deref()), (401, Some("the token has expired")));
    // What happens meanwhile waits for the client with its new token.
    gateway.rialto.inbound.sessions.publish("default", &ChangeEvent::Tools);
    let renewed = server.refresh(ann.refresh_token.as_deref().unwrap()).await.access_token;
    let resumed = session.resume(&event).replace("authorization", &bearer(&renewed)).go().await;
    assert_eq!(resumed.status, 200);
    assert_eq!(resumed.events().message().await.unwrap()["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn a_running_call_outlives_its_token() {
    let server = AuthorizationServer::oidc_provider(&[("TTL", "3")]).await;
    let gateway = Configured::start("running", &issuer("corp", &server)).await;
    let ann = server.log_in("ann", SCOPE, Some(&gateway.resource())).await;
    let session = Session::open(&gateway.rialto, "2025-11-25", Some(&ann.access_token)).await;
    let mut running = session.post(&survey(1, 8, 500)).go().await.events();
    running.message().await.expect("the call has begun");
    let expired = async {
        while session.post(&ping()).status().await != 401 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, expired).await.expect("the token expires");
    let messages = running.rest().await;
    assert!(messages.len() > 1, "the call ran on after that: {messages:?}");
    assert!(messages.last().unwrap()["result"]["content"].is_array(), "{messages:?}");
}

#[tokio::test]
async fn a_removed_issuer_ends_what_its_callers_have_open() {
    let [one, two] = [AuthorizationServer::oidc_provider(&[]).await, AuthorizationServer::oidc_provider(&[]).await];
    let gateway = Configured::start("removed", &format!("{}{}", issuer("one", &one), issuer("two", &two))).await;
    let ann = one.log_in("ann", SCOPE, Some(&gateway.resource())).await.access_token;
    let bob = two.log_in("bob", SCOPE, Some(&gateway.resource())).await.access_token;
    let session = Session::open(&gateway.rialto, "2025-11-25", Some(&ann)).await;
    let other = Session::open(&gateway.rialto, "2025-11-25", Some(&bob)).await;
    let listening = session.get().go().await.events();
    let params = json!({ "notifications": { "toolsListChanged": true } });
    let subscribed = gateway.rialto.modern("subscriptions/listen", params).header("authorization", &bearer(&ann));
    let subscribed = subscribed.go().await.events();
    let mut others = other.get().go().await.events();
    others.next().await.unwrap();
    gateway.rewrite(&issuer("two", &two));
    for events in [listening, subscribed] {
        tokio::time::timeout(TEST_TIMEOUT, events.rest_events()).await.expect("the stream ends");
    }
    until("the session is closed", || gateway.principals() == [format!("{}|bob", two.issuer)]).await;
    assert_eq!((session.post(&ping()).status().await, gateway.status(&ann).await), (401, 401));
    // The issuer that stays is unharmed.
    assert_eq!((other.post(&ping()).status().await, gateway.status(&bob).await), (200, 200));
    gateway.rialto.inbound.sessions.publish("default", &ChangeEvent::Tools);
    assert_eq!(others.message().await.unwrap()["method"], "notifications/tools/list_changed");
    // A session that ended stays so when the issuer is back.
    gateway.rewrite(&format!("{}{}", issuer("one", &one), issuer("two", &two)));
    let back = async {
        while gateway.status(&ann).await != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, back).await.expect("the issuer is back");
    assert_eq!(session.post(&ping()).status().await, 404);
}
