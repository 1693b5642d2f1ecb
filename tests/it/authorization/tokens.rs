//! Tokens that were really given: signed and opaque, for this address and for others, with old and new keys.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::authorization_server::{CLIENT, SECRET};
use crate::harness::{HttpMode, HttpRequest, Session, TEST_TIMEOUT, until};

fn opaque(name: &str, server: &AuthorizationServer) -> String {
    let table = issuer(name, server);
    format!("{table}token_format = \"opaque\"\nclient_id = \"{CLIENT}\"\nclient_secret = \"{SECRET}\"\n")
}

/// Waits until a call has this status.
async fn until_status(gateway: &Configured, token: &str, status: u16) {
    let reached = async {
        while gateway.status(token).await != status {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reached).await.unwrap_or_else(|_| panic!("never {status}"));
}

#[tokio::test]
async fn a_stranger_is_told_where_to_log_in() {
    let [one, two] = [AuthorizationServer::oidc_provider(&[]).await, AuthorizationServer::canaille().await];
    let gateway = Configured::start("metadata", &format!("{}{}", issuer("corp", &one), opaque("id", &two))).await;
    let refused = gateway.rialto.post("/mcp", &initialize("2025-11-25")).go().await;
    assert_eq!((refused.status, parameter(&refused, "scope").as_deref()), (401, Some("mcp:read")));
    let document = parameter(&refused, "resource_metadata").unwrap();
    let path = document.strip_prefix(&gateway.rialto.url("")).expect("the origin that was asked");
    let (status, document) = HttpRequest::to(gateway.rialto.address, "GET", path).json().await;
    assert_eq!((status, &document["resource"]), (200, &json!(gateway.resource())));
    assert_eq!(path.replacen("/.well-known/oauth-protected-resource", "", 1), "/mcp");
    // Each is spelt as it spells itself.
    let spelt: Vec<Value> = vec![one.metadata().await["issuer"].clone(), two.metadata().await["issuer"].clone()];
    assert_eq!(document["authorization_servers"], json!(spelt));
    assert_eq!(document["scopes_supported"], json!(["mcp:read"]));
}

#[tokio::test]
async fn a_person_calls_with_a_signed_token() {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let gateway = Configured::start("signed", &issuer("corp", &server)).await;
    let ann = server.log_in("ann", SCOPE, Some(&gateway.resource())).await;
    let session = Session::open(&gateway.rialto, "2025-11-25", Some(&ann.access_token)).await;
    let called = session.ask("tools/call", json!({ "name": "getElement", "arguments": { "name": "金" } })).await;
    assert!(called["result"]["content"][0]["text"].as_str().unwrap().contains("Gold"), "{called}");
    assert_eq!(gateway.status(&ann.access_token).await, 200);
    assert_eq!(gateway.principals(), [format!("{}|ann", server.issuer)]);
    let metrics = gateway.rialto.inbound.admin.metrics();
    let accepted = r#"rialto_token_validations_total{issuer="corp",outcome="accepted"} 1"#;
    assert!(metrics.lines().any(|line| line == accepted), "{metrics}");
    // Without a person, the client is the caller.
    let robot = server.client_token(&gateway.resource()).await;
    assert_eq!(gateway.initialize(&robot).await.status, 200);
    assert!(gateway.principals().contains(&format!("{}|{CLIENT}", server.issuer)), "{:?}", gateway.principals());
    // The id token is for the program, not for the gateway.
    let refused = gateway.initialize(&ann.id_token.unwrap()).await;
    assert_eq!((refused.status, parameter(&refused, "error").as_deref()), (401, Some("invalid_token")));
}

#[tokio::test]
async fn a_token_for_another_address_is_refused() {
    let server = AuthorizationServer::oidc_provider(&[]).await;
    let groups = "[servers.elements]\nbuiltin = \"elements\"\n[groups.research]\nservers = [\"elements\"]\n";
    let gateway = Configured::start("audience", &format!("{}{groups}", issuer("corp", &server))).await;
    let base = gateway.rialto.url("");
    for resource in [
        format!("{base}/mcp/research"),
        format!("{base}/mcp/deeper/path"),
        format!("{base}/mc"),
        "http://127.0.0.1:9/mcp".to_owned(),
        base.replace("127.0.0.1", "localhost"),
    ] {
        let refused = gateway.initialize(&server.client_token(&resource).await).await;
        let why = parameter(&refused, "error_description");
        assert_eq!((refused.status, why.as_deref()), (401, Some("the token is not for this address")), "{resource}");
        let body = refused.json().await;
        assert!(body["error"]["message"].as_str().unwrap().ends_with(&gateway.resource()), "{body}");
    }
    for resource in [gateway.resource(), base.clone(), format!("{base}/"), format!("{base}/sse")] {
        assert_eq!(gateway.initialize(&server.client_token(&resource).await).await.status, 200, "{resource}");
    }
    let research = server.client_token(&format!("{base}/mcp/research")).await;
    let sending = gateway.rialto.post("/mcp/research", &initialize("2025-11-25"));
    assert_eq!(sending.header("authorization", &bearer(&research)).status().await, 200);
}

#[tokio::test]
async fn the_same_name_at_two_issuers_is_two_people() {
    let [mut one, two] = [AuthorizationServer::oidc_provider(&[]).await, AuthorizationServer::oidc_provider(&[]).await];
    let gateway = Configured::start("two", &format!("{}{}", issuer("one", &one), issuer("two", &two))).await;
    let ann = one.log_in("ann", SCOPE, Some(&gateway.resource())).await.access_token;
    let other_ann = two.log_in("ann", SCOPE, Some(&gateway.resource())).await.access_token;
    let session = Session::open(&gateway.rialto, "2025-11-25", Some(&ann)).await;
    let other_session = Session::open(&gateway.rialto, "2025-11-25", Some(&other_ann)).await;
    let mut principals = gateway.principals();
    principals.sort();
    let mut expected = [format!("{}|ann", one.issuer), format!("{}|ann", two.issuer)];
    expected.sort();
    assert_eq!(principals, expected);
    assert_eq!(session.post(&ping()).replace("authorization", &bearer(&other_ann)).status().await, 404);
    assert_eq!(other_session.post(&ping()).replace("authorization", &bearer(&ann)).status().await, 404);
    assert_eq!((session.post(&ping()).status().await, other_session.post(&ping()).status().await), (200, 200));
    // One that is away harms no other, and its tokens go on.
    one.stop().await;
    assert_eq!((session.post(&ping()).status().await, gateway.status(&other_ann).await), (200, 200));
}

#[tokio::test]
async fn new_keys_are_learned_and_old_ones_forgotten() {
    let mut server = AuthorizationServer::oidc_provider(&[("KEY_ID", "old")]).await;
    let gateway = Configured::start("keys", &issuer("corp", &server)).await;
    let old = server.client_token(&gateway.resource()).await;
    assert_eq!(gateway.status(&old).await, 200);
    server.stop().await;
    assert_eq!(gateway.status(&old).await, 200, "the keys at hand are used while the issuer is away");
    server.restart(&[("KEY_ID", "new")]).await;
    let new = server.client_token(&gateway.resource()).await;
    let statuses = futures_util::future::join_all((0..50).map(|_| gateway.status(&new))).await;
    assert_eq!(statuses, [200; 50]);
    assert_eq!(server.requests("GET /jwks"), 1);
    assert_eq!(gateway.status(&old).await, 401);
}

/// The keys that a server publishes.
async fn published_keys(server: &AuthorizationServer) -> Vec<Value> {
    let address = format!("127.0.0.1:{}", server.port()).parse().unwrap();
    let response = HttpRequest::to(address, "GET", "/jwks").attempt_over(HttpMode::Http1).await.unwrap();
    let document = response.json().await;
    document["keys"].as_array().unwrap().clone()
}

#[tokio::test]
async fn what_was_opened_with_a_token_ends_when_its_key_is_withdrawn() {
    let folder = TempFolder::new("authorization-withdrawn-keys");
    let mut server = AuthorizationServer::oidc_provider(&[("KEY_ID", "old")]).await;
    let old_keys = published_keys(&server).await;
    let set_keys = |keys: &[&[Value]]| folder.write("jwks.json", &json!({ "keys": keys.concat() }).to_string());
    set_keys(&[&old_keys]);
    let table = format!("{}jwks = {:?}\n", issuer("corp", &server), folder.0.join("jwks.json"));
    let gateway = Configured::start("withdrawn", &table).await;
    // Another file, so that it is read again, and the keys with it.
    let reloads = std::cell::Cell::new(0);
    let reload = || {
        reloads.set(reloads.get() + 1);
        gateway.rewrite(&format!("{table}# {}\n", reloads.get()));
    };
    let failed_fetches = || {
        let metrics = gateway.rialto.inbound.admin.metrics();
        let is_wanted = |line: &&str| line.starts_with("rialto_issuer_fetches") && line.contains("\"failed\"");
        let line = metrics.lines().find(is_wanted).unwrap_or_else(|| panic!("{metrics}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let old = server.client_token(&gateway.resource()).await;
    let (left, moved) = (
        Session::open(&gateway.rialto, "2025-11-25", Some(&old)).await,
        Session::open(&gateway.rialto, "2025-11-25", Some(&old)).await,
    );
    let mut stream = left.get().go().await.events();
    server.stop().await;
    server.restart(&[("KEY_ID", "new")]).await;
    let new_keys = published_keys(&server).await;
    let new = server.client_token(&gateway.resource()).await;

    // Both keys: nothing ends.
    set_keys(&[&old_keys, &new_keys]);
    reload();
    until_status(&gateway, &new, 200).await;
    assert_eq!(moved.post(&ping()).replace("authorization", &bearer(&new)).status().await, 200, "the same caller");
    // Keys that cannot be read: nothing ends.
    let failed = failed_fetches();
    folder.write("jwks.json", "away");
    reload();
    until("the keys could not be read", || failed_fetches() > failed).await;
    assert_eq!((left.post(&ping()).status().await, gateway.principals().len()), (200, 2));
    // Without the old key its streams and sessions end; one that has shown a token of the new key goes on.
    set_keys(&[&new_keys]);
    reload();
    while stream.next().await.is_some() {}
    until("the session has ended", || gateway.principals().len() == 1).await;
    assert_eq!(left.post(&ping()).status().await, 401);
    assert_eq!(left.post(&ping()).replace("authorization", &bearer(&new)).status().await, 404);
    assert_eq!(moved.post(&ping()).replace("authorization", &bearer(&new)).status().await, 200);
}

#[tokio::test]
async fn an_issuer_that_is_away_at_the_start_is_waited_for() {
    let mut server = AuthorizationServer::oidc_provider(&[]).await;
    let table = issuer("corp", &server);
    let early = server.client_token("http://127.0.0.1:9/mcp").await;
    server.stop().await;
    let gateway = Configured::start("away", &table).await;
    let refused = gateway.initialize(&early).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
    assert_eq!(refused.header("www-authenticate"), None);
    assert_eq!(
        gateway.rialto.post("/mcp", &initialize("2025-11-25")).status().await,
        401,
        "no token is needed to say so"
    );
    server.restart(&[("KEY_ID", "second")]).await;
    until_status(&gateway, &server.client_token(&gateway.resource()).await, 200).await;
}

#[tokio::test]
async fn opaque_tokens_are_asked_about() {
    let mut server = AuthorizationServer::oidc_provider(&[("FORMAT", "opaque")]).await;
    let gateway = Configured::start("opaque", &opaque("id", &server)).await;
    let ann = server.log_in("ann", SCOPE, Some(&gateway.resource())).await.access_token;
    for _ in 0..10 {
        assert_eq!(gateway.status(&ann).await, 200);
    }
    assert_eq!(server.requests("POST /token/introspection"), 1);
    assert_eq!(gateway.initialize(&ann).await.status, 200);
    assert_eq!(gateway.principals(), [format!("{}|ann", server.issuer)]);
    let refused = gateway.initialize("nobody-gave-this").await;
    assert_eq!((refused.status, parameter(&refused, "error").as_deref()), (401, Some("invalid_token")));
    let revoked = server.client_token(&gateway.resource()).await;
    server.revoke(&revoked).await;
    assert_eq!(gateway.status(&revoked).await, 401);
    let elsewhere = server.client_token("http://127.0.0.1:9/mcp").await;
    let refused = gateway.initialize(&elsewhere).await;
    assert_eq!(parameter(&refused, "error_description").as_deref(), Some("the token is not for this address"));
    let unasked = server.client_token(&gateway.resource()).await;
    server.stop().await;
    let refused = gateway.initialize(&unasked).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
    assert_eq!(gateway.status(&ann).await, 200, "known for half a minute");
}

/// Another implementation, which knows no resources: its tokens are for the program.
#[tokio::test]
async fn opaque_tokens_of_canaille_are_accepted() {
    let server = AuthorizationServer::canaille().await;
    let table = format!("{}audiences = [\"{CLIENT}\"]\n", opaque("id", &server));
    let gateway = Configured::start("canaille", &table).await;
    let ann = server.log_in("ann", "openid profile", None).await;
    assert_eq!(gateway.status(&ann.access_token).await, 200);
    let robot = server.scoped_client_token("profile").await;
    assert_eq!(gateway.initialize(&ann.access_token).await.status, 200);
    assert_eq!(gateway.initialize(&robot).await.status, 200);
    let mut principals = gateway.principals();
    principals.sort();
    assert_eq!(principals, [format!("{}|ann", server.issuer), format!("{}||{CLIENT}", server.issuer)]);
    server.revoke(&robot).await;
    let strict = Configured::start("canaille-strict", &opaque("id", &server)).await;
    assert_eq!((strict.status(&ann.access_token).await, strict.status(&robot).await), (401, 401));
}
