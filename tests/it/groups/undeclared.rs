//! What servers do without declaring it, and what they leave unsaid.

use super::*;
use crate::scripted_server::InjectedFault;

/// A server that declares tools alone, whatever else it does.
async fn taciturn(transport: ServerTransport) -> ScriptedServer {
    ScriptedServer::with("taciturn", transport, |catalog| catalog.capabilities = json!({ "tools": {} })).await
}

const TRANSPORTS: [ServerTransport; 3] = [ServerTransport::Http, ServerTransport::Stdio, ServerTransport::PerRequest];

#[tokio::test]
async fn undeclared_methods_of_a_single_server_are_answered_by_it() {
    for transport in TRANSPORTS {
        let server = taciturn(transport).await;
        let rialto = group(&[&server]).await;
        for client_transport in CLIENT_TRANSPORTS {
            let (client, _) = client(&rialto, client_transport, "ada").await;
            let reference = json!({ "ref": { "type": "ref/prompt", "name": "hello" }, "argument": {} });
            let completed = ask(&client, "completion/complete", reference).await;
            assert_eq!(completed["completion"]["values"], json!(["taciturn", "hello"]), "{transport:?}");
            let listed = ask(&client, "prompts/list", json!({})).await;
            assert_eq!(column(&listed, "prompts", "name"), ["hello"], "{transport:?}");
            let read = ask(&client, "resources/read", json!({ "uri": "res://one" })).await;
            assert_eq!(read["contents"][0]["text"], "taciturn has res://one", "{transport:?}");
            assert!(ask(&client, "prompts/get", json!({ "name": "hello" })).await["messages"].is_array());
            if client_transport != ClientTransport::PerRequest && transport != ServerTransport::PerRequest {
                ask(&client, "logging/setLevel", json!({ "level": "info" })).await;
                ask(&client, "resources/subscribe", json!({ "uri": "res://one" })).await;
            }
            let error = json!({ "code": -32601, "message": "not in this house" });
            server.inject_fault("resources/list", InjectedFault::Error(error));
            let (code, message) = refused(&client, "resources/list", json!({})).await;
            assert_eq!((code, message.trim()), (-32601, "not in this house"), "{transport:?}");
            client.close().await;
        }
    }
}

#[tokio::test]
async fn undeclared_completion_in_a_group_is_answered_by_the_owner_of_the_reference() {
    let with_prompts = |name| {
        ScriptedServer::with(name, ServerTransport::Http, |catalog| catalog.capabilities = json!({ "prompts": {} }))
    };
    let (a, b) = (with_prompts("a").await, with_prompts("b").await);
    let rialto = group(&[&a, &b]).await;
    let (client, _) = client(&rialto, ClientTransport::Http, "ada").await;
    let reference = |name: &str| json!({ "ref": { "type": "ref/prompt", "name": name }, "argument": {} });
    let completed = ask(&client, "completion/complete", reference("b__hello")).await;
    assert_eq!(completed["completion"]["values"], json!(["b", "hello"]));
    assert_eq!(refused(&client, "completion/complete", reference("hello")).await.0, -32601);
    assert_eq!(refused(&client, "resources/list", json!({})).await.0, -32601);
    assert_eq!(a.count("completion/complete"), 0);
}

#[tokio::test]
async fn an_unsaid_result_type_is_complete() {
    let server = ScriptedServer::start("new", ServerTransport::PerRequest).await;
    let rialto = group(&[&server]).await;
    let body = r#"{"jsonrpc":"2.0","id":$id,"result":{"content":[],"x":1.50}}"#;
    for (method, params) in [
        ("tools/call", json!({ "name": "do", "arguments": {} })),
        ("completion/complete", json!({ "ref": { "type": "ref/prompt", "name": "hello" }, "argument": {} })),
        ("x/unknown", json!({})),
    ] {
        server.inject_fault(method, InjectedFault::RawResponse(200, body.into()));
        let text = rialto.modern(method, params).go().await.text().await;
        assert!(text.contains(r#""content":[],"x":1.50,"resultType":"complete""#), "{method}: {text}");
    }
}
