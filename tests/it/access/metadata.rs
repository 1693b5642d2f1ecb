//! Protected resource metadata documents.

use std::sync::Arc;

use rialto::app::AppSettings;
use rialto::policy::{ApiKeySpec, ApiKeys, GeneratedKey, HostOriginRules, Policy, PublicUrl, TrustedProxies};
use serde_json::{Value, json};

use super::{ISSUER, TestIssuer, with_research};
use crate::harness::{Rialto, initialize};
use crate::http1::RawClient;

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// Paths of the addresses of the default group and of `research`.
const ADDRESSES: [&str; 8] = [
    "/mcp",
    "/mcp/streamable",
    "/mcp/default",
    "/mcp/research",
    "/sse",
    "/sse/research",
    "/research/mcp/sse",
    "/default/mcp/sse",
];

async fn with_issuer(change: impl FnOnce(&mut Policy)) -> Rialto {
    Rialto::with(|settings: &mut AppSettings| {
        with_research(settings);
        settings.policy.issuers = Some(Arc::new(TestIssuer::default()));
        settings.policy.host_origin = HostOriginRules::new(&["mcp.example".into()], &[]);
        change(&mut settings.policy);
    })
    .await
}

async fn document(rialto: &Rialto, path: &str) -> Value {
    let received = rialto.send("GET", path).go().await;
    assert_eq!(received.status, 200, "{path}");
    received.json().await
}

#[tokio::test]
async fn every_address_has_a_document_that_names_it() {
    let rialto = with_issuer(|policy| policy.scopes = vec!["mcp:read".into()]).await;
    for path in ADDRESSES.iter().chain(&["/mcp/", ""]) {
        let expected = json!({
            "resource": rialto.url(path),
            "authorization_servers": [ISSUER],
            "scopes_supported": ["mcp:read"],
            "bearer_methods_supported": ["header"],
        });
        assert_eq!(document(&rialto, &format!("{WELL_KNOWN}{path}")).await, expected, "{path}");
    }
    // The challenge of each address names its document.
    for path in ADDRESSES {
        let challenge = rialto.send("GET", path).go().await;
        let named = format!("resource_metadata=\"{}\"", rialto.url(&format!("{WELL_KNOWN}{path}")));
        assert!(challenge.header("www-authenticate").unwrap().contains(&named), "{path}");
    }
}

#[tokio::test]
async fn documents_are_public_cacheable_and_readable_by_every_page() {
    let rialto = with_issuer(|_| {}).await;
    let path = format!("{WELL_KNOWN}/mcp");
    let foreign = || rialto.send("GET", &path).header("origin", "https://inspector.example");
    let received = foreign().go().await;
    let header = |name| received.header(name);
    assert_eq!((received.status, header("content-type")), (200, Some("application/json")));
    assert_eq!((header("access-control-allow-origin"), header("cache-control")), (Some("*"), Some("max-age=300")));
    assert_eq!(received.headers.get_all("access-control-allow-origin").iter().count(), 1);
    assert!(received.json().await.get("scopes_supported").is_none());
    let preflight = rialto.send("OPTIONS", &path).header("origin", "https://inspector.example").go().await;
    assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (204, Some("*")));
    assert_eq!(preflight.header("access-control-allow-methods"), Some("GET, HEAD, OPTIONS"));
    assert!(preflight.header("access-control-allow-headers").unwrap().contains("mcp-protocol-version"));
    let posted = rialto.send("POST", &path).go().await;
    assert_eq!((posted.status, posted.header("allow")), (405, Some("GET, HEAD, OPTIONS")));
    // HEAD has the length of the document and no body.
    let mut wire = RawClient::connect(&rialto).await;
    wire.send_text(&format!("HEAD {path} HTTP/1.1\r\nhost: {}\r\n\r\n", rialto.address)).await;
    let head = wire.response_to("HEAD").await;
    assert_eq!(head.status, 200);
    let length: usize = head.header("content-length").unwrap().parse().unwrap();
    assert_eq!(length, foreign().go().await.text().await.len());
    wire.assert_keep_alive().await;
    // The host is checked as everywhere.
    assert_eq!(foreign().replace("host", "evil.example").status().await, 403);
}

#[tokio::test]
async fn what_is_no_address_has_no_document() {
    let rialto = with_issuer(|_| {}).await;
    for path in [
        "/mcp/unknown",
        "/mcp/research/http:0123",
        "/message",
        "/healthz",
        "/admin",
        "/mcp/../admin",
        "/mcp/..",
        "/mcp/%2e%2e",
        "/mcp/%2e%2e/admin",
        "/%2e%2e/mcp",
        "//mcp",
        "/mcp//",
        "/mcp//research",
        "/../oauth-protected-resource/mcp",
        "x",
    ] {
        let mut wire = RawClient::connect(&rialto).await;
        wire.send_text(&format!("GET {WELL_KNOWN}{path} HTTP/1.1\r\nhost: {}\r\n\r\n", rialto.address)).await;
        assert_eq!(wire.response().await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn the_document_of_the_whole_gateway_follows_the_audience_rule() {
    let strict = with_issuer(|policy| policy.accept_origin_audience = false).await;
    assert_eq!(strict.send("GET", WELL_KNOWN).status().await, 404);
    assert_eq!(strict.send("GET", &format!("{WELL_KNOWN}/")).status().await, 404);
    assert_eq!(document(&strict, &format!("{WELL_KNOWN}/mcp")).await["resource"], strict.url("/mcp"));
}

#[tokio::test]
async fn keys_alone_have_no_document_and_name_none() {
    let made = GeneratedKey::random().unwrap();
    let spec =
        ApiKeySpec { name: "ci".into(), hashes: vec![made.hash], roles: Vec::new(), groups: None, expires: None };
    let rialto = Rialto::with(|settings| settings.policy.keys = ApiKeys::new([spec])).await;
    for path in ["", "/mcp"] {
        assert_eq!(rialto.send("GET", &format!("{WELL_KNOWN}{path}")).status().await, 404);
    }
    assert_eq!(rialto.send("GET", "/.well-known/oauth-authorization-server").status().await, 404);
    let received = rialto.post("/mcp", &initialize("2025-11-25")).go().await;
    assert_eq!((received.status, received.header("www-authenticate")), (401, Some("Bearer")));
    let open = Rialto::start().await;
    assert_eq!(open.send("GET", &format!("{WELL_KNOWN}/mcp")).status().await, 404);
}

#[tokio::test]
async fn the_first_issuer_is_shown_to_the_oldest_clients_if_configured() {
    let path = "/.well-known/oauth-authorization-server";
    let rialto = with_issuer(|policy| policy.legacy_metadata = true).await;
    assert_eq!(document(&rialto, path).await, json!({ "issuer": ISSUER }));
    assert_eq!(with_issuer(|_| {}).await.send("GET", path).status().await, 404);
}

#[tokio::test]
async fn a_public_url_with_a_path_is_served_in_both_forms() {
    let rialto = with_issuer(|policy| {
        policy.public_url = Some(PublicUrl::parse("https://mcp.example/gate").unwrap());
    })
    .await;
    let base = "https://mcp.example/gate";
    for path in ADDRESSES.iter().chain(&[""]) {
        // The form of the RFC, the one for proxies that forward only the path, and what is left when they strip it.
        for document_path in
            [format!("{WELL_KNOWN}/gate{path}"), format!("/gate{WELL_KNOWN}{path}"), format!("{WELL_KNOWN}{path}")]
        {
            let found = document(&rialto, &document_path).await;
            assert_eq!(found["resource"], format!("{base}{path}"), "{document_path}");
        }
    }
    for path in ["/mcp", "/gate/mcp"] {
        let challenge = rialto.send("GET", path).replace("host", "mcp.example").go().await;
        assert_eq!(
            challenge.header("www-authenticate").unwrap(),
            format!("Bearer resource_metadata=\"{base}{WELL_KNOWN}/mcp\""),
            "{path}"
        );
    }
}

#[tokio::test]
async fn clients_of_http_sse_are_sent_below_the_public_path() {
    let rialto =
        Rialto::with(|settings| settings.policy.public_url = Some(PublicUrl::parse("https://h/gate").unwrap())).await;
    for (path, endpoint) in [
        ("/sse", "/gate/message?sessionId="),
        ("/gate/sse", "/gate/message?sessionId="),
        ("/gate/default/mcp/sse", "/gate/default/mcp/sse?sessionId="),
    ] {
        let received = rialto.send("GET", path).header("accept", "text/event-stream").go().await;
        let mut events = received.events();
        let event = events.next().await.unwrap();
        assert!(event.data.starts_with(endpoint), "{path}: {}", event.data);
        assert_eq!(rialto.post(&event.data, &initialize("2024-11-05")).status().await, 202, "{}", event.data);
        assert!(events.message().await.unwrap()["result"].is_object());
    }
}

#[tokio::test]
async fn forwarded_headers_of_a_stranger_do_nothing() {
    let proxy = TrustedProxies::parse_network("127.0.0.0/8").unwrap();
    for (proxies, scheme) in [(TrustedProxies::default(), "http"), (TrustedProxies::new(vec![proxy]), "https")] {
        let rialto = with_issuer(|policy| policy.trusted_proxies = proxies).await;
        let get = |path: &str| {
            let sending = rialto.send("GET", path).replace("host", "MCP.Example").header("x-forwarded-proto", "https");
            sending.header("x-forwarded-host", "evil.example").header("forwarded", "host=evil.example;proto=gopher")
        };
        let found = get(&format!("{WELL_KNOWN}/mcp")).go().await.json().await;
        assert_eq!(found["resource"], format!("{scheme}://mcp.example/mcp"));
        let challenge = get("/mcp").go().await;
        let named = format!("resource_metadata=\"{scheme}://mcp.example{WELL_KNOWN}/mcp\"");
        assert!(challenge.header("www-authenticate").unwrap().contains(&named));
    }
}
