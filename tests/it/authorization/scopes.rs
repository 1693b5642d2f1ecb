//! Scopes of real tokens, judged by rules of the file; and what a server behind the gateway sees of a token.

use std::sync::Arc;

use rialto::app::AppSettings;
use rialto::gateway::{DEFAULT_GROUP, GatewayConfig, GroupConfig};
use rialto::store::{ClusterStore, MemoryStore};
use rialto::upstream::{SpecKind, UpstreamSpec};
use serde_json::json;

use super::*;
use crate::cluster::node_with;
use crate::harness::Session;
use crate::rest::Api;
use crate::scripted_server::{ScriptedServer, ServerTransport};

/// Everybody of the issuer may `do`; `echo` needs two scopes.
const RULES: &str = r#"
[[policy.rules]]
principals = ["issuer:corp"]
allow = { tools = ["db/do"] }

[[policy.rules]]
principals = ["issuer:corp"]
require_scopes = ["mcp:read", "mcp:write"]
allow = { tools = ["db/echo"] }
"#;

/// An issuer, and a server with rules.
pub(super) fn with_rules(server: &AuthorizationServer, upstream: &ScriptedServer) -> String {
    format!("{}{}", issuer("corp", server), ruled(upstream))
}

fn ruled(upstream: &ScriptedServer) -> String {
    format!("[servers.db]\nurl = \"http://{}/mcp\"\n{RULES}", upstream.address)
}

#[tokio::test]
async fn a_missing_scope_is_challenged_with_all_that_is_needed_to_get_it() {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let upstream = ScriptedServer::start("db", ServerTransport::Http).await;
    let gateway = Configured::start("scopes", &with_rules(&server, &upstream)).await;
    let resource = gateway.resource();
    let reader = server.log_in("ann", SCOPE, Some(&resource)).await.access_token;
    let writer = server.log_in("ann", "openid mcp:read mcp:write", Some(&resource)).await.access_token;
    let metadata = gateway.rialto.url("/.well-known/oauth-protected-resource/mcp");
    let session = Session::open(&gateway.rialto, "2025-11-25", Some(&reader)).await;
    let echo = json!({ "name": "echo", "arguments": {} });
    let in_session =
        |token: &str| session.post(&request(1, "tools/call", echo.clone())).replace("authorization", &bearer(token));
    let alone = |token: &str| gateway.rialto.modern("tools/call", echo.clone()).header("authorization", &bearer(token));
    for refused in [in_session(&reader).go().await, alone(&reader).go().await] {
        assert_eq!(refused.status, 403);
        assert_eq!(parameter(&refused, "error").as_deref(), Some("insufficient_scope"));
        assert_eq!(parameter(&refused, "scope").as_deref(), Some("mcp:read mcp:write"));
        assert_eq!(parameter(&refused, "resource_metadata").as_deref(), Some(&*metadata));
    }
    assert_eq!(upstream.count("tools/call"), 0, "the server is not called before");
    // The session goes on with the token that has the scopes.
    for (calls, sending) in [in_session(&writer), alone(&writer)].into_iter().enumerate() {
        let (status, called) = sending.answer().await;
        assert!(status == 200 && called["result"]["content"].is_array(), "{called}");
        assert_eq!(upstream.count("tools/call"), calls + 1);
    }
    let (status, _) = gateway
        .rialto
        .modern("tools/call", json!({ "name": "do", "arguments": {} }))
        .header("authorization", &bearer(&reader))
        .answer()
        .await;
    assert_eq!(status, 200);
    assert_unseen(&upstream, &[&reader, &writer]);
}

/// No part of a token is in what the server received.
fn assert_unseen(upstream: &ScriptedServer, tokens: &[&str]) {
    let received = upstream.received();
    assert!(received.iter().any(|message| message.kind == "tools/call"));
    for message in received {
        let text = format!("{:?} {}", message.headers, message.body);
        for part in tokens.iter().flat_map(|token| token.split('.')) {
            assert!(!text.contains(part), "{text}");
        }
        assert!(!text.to_ascii_lowercase().contains("authorization"), "{text}");
    }
}

#[tokio::test]
async fn no_part_of_a_token_reaches_a_server() {
    use ServerTransport::{Http, PerRequest, Sse, Stateless, Stdio};
    let server = AuthorizationServer::oidc_provider(&[]).await;
    for transport in [Http, Stateless, PerRequest, Sse, Stdio] {
        let upstream = ScriptedServer::start("db", transport).await;
        let gateway = Configured::with("unseen", &issuer("corp", &server), |settings| {
            let spec = UpstreamSpec::new(&upstream.name, SpecKind::Target(upstream.target()));
            let groups = vec![GroupConfig::new(DEFAULT_GROUP, [Arc::clone(&spec.name)])];
            settings.gateway = GatewayConfig { upstreams: vec![spec], groups };
        })
        .await;
        let token = server.log_in("ann", SCOPE, Some(&gateway.resource())).await.access_token;
        let session = Session::open(&gateway.rialto, "2025-11-25", Some(&token)).await;
        let params = json!({ "name": "echo", "arguments": {} });
        let called = session.ask("tools/call", params.clone()).await;
        assert!(called["result"]["content"].is_array(), "{transport:?}: {called}");
        let alone = gateway.rialto.modern("tools/call", params).header("authorization", &bearer(&token));
        assert_eq!(alone.status().await, 200, "{transport:?}");
        assert_unseen(&upstream, &[&token]);
    }
}

#[tokio::test]
async fn no_part_of_a_token_reaches_a_rest_api() {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let api = Api::json("{}").await;
    let rest = format!(
        "[servers.users]\nbase_url = \"http://{}\"\n[[servers.users.tools]]\nname = \"list\"\ndescription = \"Users.\"\n\
         url = \"/users\"\nread_only = true\n",
        api.address
    );
    let gateway = Configured::start("rest", &format!("{}{rest}", issuer("corp", &server))).await;
    let token = server.log_in("ann", SCOPE, Some(&gateway.resource())).await.access_token;
    let session = Session::open(&gateway.rialto, "2025-11-25", Some(&token)).await;
    let called = session.ask("tools/call", json!({ "name": "list", "arguments": {} })).await;
    assert!(called["result"]["content"].is_array(), "{called}");
    let text = format!("{:?}", api.take_only_request());
    assert!(text.contains("/users") && !text.to_ascii_lowercase().contains("authorization"), "{text}");
    assert!(token.split('.').all(|part| !text.contains(part)), "{text}");
}

/// The session is on one node, and the client asks another one.
#[tokio::test]
async fn a_challenge_from_another_node_names_the_address_that_was_asked() {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let upstream = ScriptedServer::start("db", ServerTransport::Http).await;
    // The nodes have addresses of their own, so the tokens are for a name that both accept.
    let resource = "http://127.0.0.1:9/both";
    let folder = TempFolder::new("authorization-nodes");
    let text = format!("{}audiences = [\"{resource}\"]\n{}", issuer("corp", &server), ruled(&upstream));
    folder.write("rialto.toml", &file(&text));
    let store: Arc<dyn ClusterStore> = MemoryStore::new();
    let start = async |name| {
        let loaded = rialto::config::load(&folder.0.join("rialto.toml"), &|_| None).unwrap().config.app_settings();
        node_with(&store, name, |settings| {
            let AppSettings { gateway, policy, issuers, .. } = loaded;
            (settings.gateway, settings.policy, settings.issuers) = (gateway, policy, issuers);
        })
        .await
    };
    let [one, two] = [start("one").await, start("two").await];
    let reader = server.log_in("ann", SCOPE, Some(resource)).await.access_token;
    let session = Session::open(&one, "2025-11-25", Some(&reader)).await;
    let echo = request(1, "tools/call", json!({ "name": "echo", "arguments": {} }));
    for node in [&one, &two] {
        let refused = session.at_node(node).post(&echo).go().await;
        assert_eq!(refused.status, 403);
        assert_eq!(parameter(&refused, "scope").as_deref(), Some("mcp:read mcp:write"));
        let metadata = node.url("/.well-known/oauth-protected-resource/mcp");
        assert_eq!(parameter(&refused, "resource_metadata").as_deref(), Some(&*metadata));
    }
    assert_eq!((one.inbound.sessions.count(), two.inbound.sessions.count()), (1, 0), "it was relayed");
    let writer = server.log_in("ann", "openid mcp:read mcp:write", Some(resource)).await.access_token;
    let sending = session.at_node(&two).post(&echo).replace("authorization", &bearer(&writer));
    let (status, called) = sending.answer().await;
    assert!(status == 200 && called["result"]["content"].is_array(), "{called}");
}
