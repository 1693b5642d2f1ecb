//! What may be cached of the results of per-request servers, and by whom.

use std::sync::atomic::{AtomicUsize, Ordering};

use rialto::policy::Tokens;

use super::*;
use crate::harness::modern;
use crate::scripted_server::{InjectedFault, tool};

/// Lists two tools with a cache hint.
fn list_with_scope(scope: &'static str) -> InjectedFault {
    let list = json!({ "tools": [tool("one"), tool("two")], "ttlMs": 60_000, "cacheScope": scope });
    InjectedFault::Result(Arc::new(move |_| list.clone()))
}

async fn ask_as(rialto: &Rialto, token: &str, method: &str, params: Value) -> Value {
    let mut body = modern(1.into(), method, params);
    body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({ "roots": {} });
    let post = rialto.post("/mcp", &body).modern_headers(method, &body["params"]);
    let post = post.header("authorization", &format!("Bearer {token}"));
    within_timeout(method, async { post.answer().await.1["result"].clone() }).await
}

/// Two servers, of which callers are told apart.
async fn with_callers(scripted_servers: &[&ScriptedServer], page_size: usize) -> Rialto {
    Rialto::with(|settings| {
        settings.gateway = default_group_of(scripted_servers.iter().map(|scripted| spec(scripted)).collect());
        settings.gateway.groups[0].page_size = page_size;
        settings.policy.tokens = Tokens::parse(&["ann=a".into(), "bob=b".into()]).unwrap();
    })
    .await
}

#[tokio::test]
async fn pages_of_a_merged_list_share_the_scope_of_its_most_private_part() {
    for (scopes, expected) in [(["public", "public"], "public"), (["public", "private"], "private")] {
        let one = ScriptedServer::start("one", ServerTransport::PerRequest).await;
        let two = ScriptedServer::start("two", ServerTransport::PerRequest).await;
        for (server, scope) in [&one, &two].into_iter().zip(scopes) {
            server.inject_fault("tools/list", list_with_scope(scope));
        }
        let rialto = with_callers(&[&one, &two], 1).await;
        let (mut params, mut seen) = (json!({}), Vec::new());
        loop {
            let page = ask_as(&rialto, "a", "tools/list", params).await;
            seen.push(page["cacheScope"].as_str().unwrap_or_default().to_owned());
            match &page["nextCursor"] {
                Value::Null => break,
                cursor => params = json!({ "cursor": cursor }),
            }
        }
        assert_eq!(seen, [expected; 4], "{scopes:?}");
    }
}

#[tokio::test]
async fn private_results_are_read_again_for_another_caller() {
    let server = ScriptedServer::start("one", ServerTransport::PerRequest).await;
    let reads = AtomicUsize::new(0);
    let read = move |params: &Value| {
        let text = reads.fetch_add(1, Ordering::Relaxed).to_string();
        let contents = json!([{ "uri": params["uri"], "text": text }]);
        json!({ "contents": contents, "ttlMs": 60_000, "cacheScope": "private" })
    };
    server.inject_fault("resources/read", InjectedFault::Result(Arc::new(read)));
    let rialto = with_callers(&[&server], 10).await;
    for (n, token) in ["a", "b", "a"].into_iter().enumerate() {
        let result = ask_as(&rialto, token, "resources/read", json!({ "uri": "res://one" })).await;
        assert_eq!(result["contents"][0]["text"], n.to_string(), "{result}");
        assert_eq!((&result["ttlMs"], &result["cacheScope"]), (&json!(60_000), &json!("private")), "the server's hint");
    }
}

/// The result of a retry depends on the input, which a later request does not carry.
#[tokio::test]
async fn results_of_retries_with_input_are_not_cached() {
    let server = ScriptedServer::start("one", ServerTransport::PerRequest).await;
    let read = |params: &Value| match &params["inputResponses"]["where"] {
        Value::Null => {
            let asked = json!({ "where": { "method": "roots/list" } });
            json!({ "resultType": "input_required", "inputRequests": asked, "requestState": "mine" })
        }
        answer => {
            let contents = json!([{ "uri": params["uri"], "text": answer["roots"][0]["uri"] }]);
            json!({ "contents": contents, "ttlMs": 60_000, "cacheScope": "public" })
        }
    };
    server.inject_fault("resources/read", InjectedFault::Result(Arc::new(read)));
    let rialto = with_callers(&[&server], 10).await;
    let ask = async |params: Value| ask_as(&rialto, "a", "resources/read", params).await;
    for round in ["file:///first", "file:///second"] {
        let asked = ask(json!({ "uri": "res://one" })).await;
        assert_eq!(asked["resultType"], "input_required", "{round}: {asked}");
        assert!(asked.get("ttlMs").is_none() && asked.get("cacheScope").is_none(), "{asked}");
        let answers = json!({ "where": { "roots": [{ "uri": round }] } });
        let state = &asked["requestState"];
        let done = ask(json!({ "uri": "res://one", "inputResponses": answers, "requestState": state })).await;
        assert_eq!(done["contents"][0]["text"], round, "{done}");
    }
    assert_eq!(server.count("resources/read"), 4);
}

/// Three methods may ask for input; a server that asks for it elsewhere has failed.
#[tokio::test]
async fn only_calls_prompts_and_reads_ask_for_input() {
    let server = ScriptedServer::start("one", ServerTransport::PerRequest).await;
    let asks = |_: &Value| {
        let asked = json!({ "where": { "method": "roots/list" } });
        json!({ "resultType": "input_required", "inputRequests": asked, "requestState": "mine" })
    };
    server.inject_fault("completion/complete", InjectedFault::Result(Arc::new(asks)));
    let rialto = group(&[&server]).await;
    let completion =
        json!({ "ref": { "type": "ref/prompt", "name": "hello" }, "argument": { "name": "who", "value": "" } });
    for client_transport in CLIENT_TRANSPORTS {
        let (client, host) = client(&rialto, client_transport, "ada").await;
        let (code, message) = refused(&client, "completion/complete", completion.clone()).await;
        assert!(code == -32603 && message.contains("violated the protocol"), "{client_transport:?}: {code} {message}");
        assert!(host.server_requests().is_empty(), "{client_transport:?}");
    }
}
